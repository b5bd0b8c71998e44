"""Analyses of a graph string's operators, before nodes are built from these."""
