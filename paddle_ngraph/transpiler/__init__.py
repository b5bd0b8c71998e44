"""Transpilers: a program in, another program out."""
