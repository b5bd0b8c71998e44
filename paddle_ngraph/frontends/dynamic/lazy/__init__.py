"""Lazy tensors: operators of dynamic mode are deferred, and run as one program."""
