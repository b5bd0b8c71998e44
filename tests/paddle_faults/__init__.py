"""Faults of Paddle itself: a script each, listed in docs/development/paddle_faults.md."""
