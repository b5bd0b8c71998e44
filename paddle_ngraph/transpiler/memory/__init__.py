"""Analyses and schedules of the memory transpiler."""
