"""Serves a model on 127.0.0.1: workers of uvicorn or gunicorn, and a front that loses no request.

python demos/serving_demo/serve.py classifier --server gunicorn --port 8000
curl --data-binary @picture.png http://127.0.0.1:8000/predict
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos.serving_demo.front import Front
from demos.serving_demo.settings import ENGINES, NGRAPH, Settings, workers_and_threads

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("uvicorn", "gunicorn")
APPLICATIONS = ("classifier", "ocr")
READY_SECONDS = 1800.0
"""Ends a server that hangs; a busy machine takes minutes to load a model."""


def command(server: str, application: str, socket: Path, workers: int) -> list[str]:
    """Returns the command of a server whose workers accept on a Unix socket."""
    target = f"demos.serving_demo.{application}:app"
    if server == "uvicorn":
        return [
            *(sys.executable, "-m", "uvicorn", target, "--uds", str(socket)),
            *("--workers", str(workers), "--no-access-log", "--log-level", "warning"),
            # A worker that holds the GIL while it loads a model answers no health check.
            *("--timeout-worker-healthcheck", "60"),
        ]
    settings = Path(__file__).with_name("gunicorn_settings.py")
    return [
        *(sys.executable, "-m", "gunicorn", "-c", str(settings), target),
        *("--bind", f"unix:{socket}", "--workers", str(workers), "--log-level", "warning"),
    ]


def usable_cores() -> int:
    """Returns the number of cores that this process may use.

    Another process finds it: this one imports no native code that could end it.
    """
    code = "import paddle_ngraph; print(paddle_ngraph.num_threads())"
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE, check=True
    )
    return int(found.stdout)


def prepare(application: str, models: Path, threads: int) -> None:
    """Has another process write the models."""
    code = (
        "import sys; from pathlib import Path; from demos.serving_demo import models; "
        "models.prepare(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, application, str(models), str(threads)],
        check=True,
        cwd=ROOT,
    )


async def serve(options: argparse.Namespace) -> None:
    """Serves until SIGTERM or SIGINT; then waits for the requests in flight."""
    workers, threads = workers_and_threads(usable_cores(), options.workers)
    prepare(options.application, options.models, threads)
    settings = Settings(options.models.resolve(), options.engine, threads)
    with tempfile.TemporaryDirectory() as folder:
        socket, metrics = Path(folder, "workers.sock"), Path(folder, "metrics")
        metrics.mkdir()
        server = await asyncio.create_subprocess_exec(
            *command(options.server, options.application, socket, workers),
            cwd=ROOT,
            stdout=sys.stderr,
            env={
                **os.environ,
                **settings.environment(),
                "PYTHONPATH": str(ROOT),
                "PROMETHEUS_MULTIPROC_DIR": str(metrics),
            },
        )
        try:
            await _forward(options, Front(socket, workers), server, f"{workers} x {threads}")
        finally:
            if server.returncode is None:
                server.terminate()
                await server.wait()


async def _forward(
    options: argparse.Namespace, front: Front, server: asyncio.subprocess.Process, size: str
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ended = asyncio.create_task(server.wait())
    stopped = asyncio.create_task(stop.wait())
    runner = web.AppRunner(front.application(), access_log=None)
    await runner.setup()
    ready = asyncio.create_task(front.wait_until_ready(READY_SECONDS))
    try:
        await asyncio.wait({ended, stopped, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            ready.result()
            site = web.TCPSite(runner, "127.0.0.1", options.port)
            await site.start()
            print(f"ready: workers x threads = {size}, port {runner.addresses[0][1]}", flush=True)
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise SystemExit(f"the server has ended with status {ended.result()}")
    finally:
        ready.cancel()
        await runner.cleanup()


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("application", choices=APPLICATIONS)
    parser.add_argument("--server", choices=SERVERS, default="gunicorn", help="(%(default)s)")
    parser.add_argument("--engine", choices=ENGINES, default=NGRAPH, help="(%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0: any (%(default)s)")
    parser.add_argument(
        "--workers", type=int, help="processes (default: one for each core that may be used)"
    )
    parser.add_argument(
        "--models",
        type=Path,
        default=Path("serving_models"),
        help="folder of the models, written at first (%(default)s)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    asyncio.run(serve(parser().parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
