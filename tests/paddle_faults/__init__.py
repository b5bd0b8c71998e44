"""Faults of Paddle itself: a script each, listed in docs/paddle_faults.md."""
