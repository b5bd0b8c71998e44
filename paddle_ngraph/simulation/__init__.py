"""Discrete-event simulation of training steps on many ranks, from measured profiles."""
