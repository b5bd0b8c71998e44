"""Analyses of a graph, before its nodes are built."""
