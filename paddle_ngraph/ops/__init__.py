"""Converters: one module per family of Paddle operators, forward and gradient together."""
