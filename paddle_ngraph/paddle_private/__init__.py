"""Private API of Paddle: all private names that the package reads or patches.

No other code of the package assigns to a part of Paddle, or imports a private name of Paddle. If a
release lacks one of these names, or has another signature, the engine reports it when it is loaded,
before any patch is applied.
"""
