"""Execution plans: which device runs which operators, and what runs at the same time."""
