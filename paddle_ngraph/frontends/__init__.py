"""Frontends: hooks at the entry points where Paddle runs or loads programs, which read the flag.

Executor, Paddle Inference, ``to_static``, dynamic mode, ProgramDesc, saved models, ``transpile``.
"""
