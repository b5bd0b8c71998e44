"""The native code generator: a program in, a C++ project out."""
