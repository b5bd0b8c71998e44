"""Lazy tensors: operators of a dynamic graph are deferred, and run as one program."""
