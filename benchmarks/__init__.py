"""Benchmarks of paddle-ngraph."""
