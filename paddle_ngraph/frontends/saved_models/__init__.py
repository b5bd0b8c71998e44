"""Saved models: readers of their files, and models saved with engine operators."""
