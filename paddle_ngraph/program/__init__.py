"""The program pass: a program in, intervals found, one engine operator in the place of each."""
