"""Analyses of a block for partitioning."""
