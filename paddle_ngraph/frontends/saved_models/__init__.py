"""Saved models: reading their files, and saving models with engine operators."""
