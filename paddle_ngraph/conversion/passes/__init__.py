"""Passes that rewrite the OpenVINO model of a subgraph."""
