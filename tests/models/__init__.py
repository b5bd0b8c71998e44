"""Whole models through the engine, against native Paddle.

``python -m tests.models`` runs them at their real sizes and writes ``docs/development/models.md``.
"""
