"""Saved models: what their files hold, and models saved with engine operators."""
