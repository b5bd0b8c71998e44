"""The seam to Paddle: all of its private names that we read, and all that we put in their places.

Nothing else in the package assigns to anything of Paddle, or imports a private name of it. A
release that lacks one of these names, or calls one otherwise, is found when the engine is loaded,
before anything is replaced.
"""
