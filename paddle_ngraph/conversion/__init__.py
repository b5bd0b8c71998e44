"""From a graph string to an nGraph function: the bridge, and the passes on its model."""
