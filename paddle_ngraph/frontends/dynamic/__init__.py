"""Dynamic mode: layers and functions that are compiled where they run."""
