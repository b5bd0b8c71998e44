"""Front ends: the ways in which Paddle runs or loads programs, and hooks that look at the flag.

Executor, Paddle Inference, ``to_static``, dynamic mode, ProgramDesc, saved models, ``transpile``.
"""
