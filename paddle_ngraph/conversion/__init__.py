"""Conversion of a graph string to an nGraph function: the bridge, and passes on its model."""
