"""Profiles: where the time of a program goes, by subgraph, node and operator."""
