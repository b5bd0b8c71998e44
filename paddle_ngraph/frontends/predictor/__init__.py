"""Predictors of Paddle Inference."""
