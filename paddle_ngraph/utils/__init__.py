"""Utilities of every stage: LRU cache, thread-local values, locks, signals, dtypes, clock."""
