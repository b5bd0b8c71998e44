"""Analyses of the operators of a block, on which partitioning relies."""
