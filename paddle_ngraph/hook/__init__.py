"""The hooks: where Paddle runs a program, they look at the flag.

There is one for each way in which Paddle runs programs: Executor, Paddle Inference, dynamic mode.
"""
