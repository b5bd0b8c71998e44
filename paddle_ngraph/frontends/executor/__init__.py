"""Static programs that ``paddle.static.Executor`` runs."""
