"""``python -m paddle_ngraph doctor``: facts, a self-test, and advice from measurements.

``facts`` reads versions, processor, memory, threads and folders; ``self_test`` compares small
programs with native Paddle; ``observation`` runs a model or a script and notes what ran where;
``advice`` derives the changes that would gain most; ``checkup`` puts all of them together.
"""
