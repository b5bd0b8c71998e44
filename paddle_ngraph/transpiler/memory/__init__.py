"""Analyses, schedules and recomputation for the memory transpiler."""
