"""Code generation: a C++ project from a program."""
