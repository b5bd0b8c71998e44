"""Frontend of static programs that ``paddle.static.Executor`` runs."""
