"""Passes over the model of a subgraph."""
