"""The commands of ``python -m paddle_ngraph``, a module for each group."""
