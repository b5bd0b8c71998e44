"""Partitioning: replaces subgraphs of a program that can be converted by engine operators."""
