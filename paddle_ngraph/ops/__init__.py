"""Converters: one module per group of Paddle operators, forward and gradient together."""
