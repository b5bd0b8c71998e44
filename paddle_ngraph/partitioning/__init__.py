"""The program pass: finds the intervals of a program and replaces each with one engine operator."""
