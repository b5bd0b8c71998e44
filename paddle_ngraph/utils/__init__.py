"""Utilities for all packages: LRU cache, thread-local values, locks, signals, dtypes, clock."""
