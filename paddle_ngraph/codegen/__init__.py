"""Code generation: translates a program to a C++ project."""
