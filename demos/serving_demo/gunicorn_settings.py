"""Settings of gunicorn: ``gunicorn -c demos/serving_demo/gunicorn_settings.py MODULE:app``."""

from __future__ import annotations

from typing import Any

from prometheus_client import multiprocess

worker_class = "uvicorn_worker.UvicornWorker"
# Paddle is imported once, and a killed worker's successor is ready sooner. Nothing may run in
# Paddle before the fork: see docs/how_it_works/threads.md.
preload_app = True
timeout = 60
control_socket_disable = True


def child_exit(server: Any, worker: Any) -> None:
    """Removes the gauges of a worker that has ended from the metrics."""
    multiprocess.mark_process_dead(worker.pid)
