"""Frontend of dynamic mode: layers and functions that are compiled when they are called."""
