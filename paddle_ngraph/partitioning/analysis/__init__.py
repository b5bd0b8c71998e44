"""Analyses of a block, which the partitioner decides by."""
