"""Verification: results of the engine beside those of Paddle's kernels, judged in float64."""
