"""Execution plans: placement of operators on devices, and their concurrent execution."""
