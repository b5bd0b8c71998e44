"""Dynamic graphs: layers and functions that are compiled where they run."""
