"""Private names of Paddle: all that we read, and everything that we replace.

Nothing else in the package assigns to any part of Paddle, or imports a private name of it. If a
release lacks one of these names, or calls one differently, that is found when the engine is loaded,
before anything is replaced.
"""
