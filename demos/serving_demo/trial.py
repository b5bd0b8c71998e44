"""Servers under test: started, loaded with requests, compared with native Paddle, stopped."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demos.ocr_demo import files
from demos.running import DemoError
from demos.serving_demo import load
from demos.serving_demo.load import Load
from demos.serving_demo.models import SIDE
from demos.serving_demo.settings import NGRAPH

APART = 1e-3
"""How far scores and probabilities may part by rounding."""
PICTURES = 8
SCALES = ((1.0, 1.0), (0.77, 0.77), (1.0, 0.6), (0.8, 1.0))
"""Sizes of pages, beside that of the photograph; none has the shape of a saved function."""
STOP_SECONDS = 60


def bodies(application: str) -> list[bytes]:
    """Returns requests of an application: pictures, or pages of several sizes, as PNG files."""
    if application == "ocr":
        page = files.open_picture("page")
        return [
            _png(page.resize((round(page.width * width), round(page.height * height))))
            for width, height in SCALES
        ]
    generator = np.random.default_rng(0)
    # Coarse patterns: noise of single pixels has the same statistics in each picture.
    patterns = generator.integers(0, 256, (PICTURES, 7, 7, 3), dtype="uint8")
    return [_png(Image.fromarray(pattern).resize((SIDE, SIDE))) for pattern in patterns]


def _png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@contextmanager
def served(
    application: str, models: Path, server: str = "gunicorn", engine: str = NGRAPH
) -> Iterator[int]:
    """Serves an application in processes of their own; yields the port of 127.0.0.1.

    Raises:
        DemoError: The server has ended, in the beginning or meanwhile.
    """
    script = Path(__file__).with_name("serve.py")
    command = [sys.executable, "-W", "ignore", str(script), application, "--port", "0"]
    command += ["--server", server, "--engine", engine, "--models", str(models)]
    # Functions of the user's own folder would hide that a saved one was not found.
    environment = {**os.environ, "FLAGS_ngraph_cache_dir": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            ready = next((line for line in process.stdout if line.startswith("ready:")), None)
            if ready is None:
                raise DemoError(f"the server of {application} did not start")
            yield int(ready.rpartition(" ")[2])
            if process.poll() is not None:
                raise DemoError(f"the server of {application} has ended")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def send(port: int, requests: Sequence[bytes], count: int, at_once: int, **options: Any) -> Load:
    """Sends requests (``load.send``) and waits for the answers."""
    return asyncio.run(load.send(port, requests, count, at_once, **options))


def metrics(port: int) -> dict[str, float]:
    """Returns the metrics of a server."""
    return asyncio.run(load.metrics(port))


def memory(port: int) -> dict[int, float]:
    """Returns the resident memory of each worker of a server, in MB by process."""
    return load.alive_megabytes(metrics(port))


def processor_seconds(port: int) -> float:
    """Returns the processor time of the workers of a server until now."""
    return load.processor_seconds(memory(port))


def require_equal(found: Load, expected: Load) -> None:
    """Raises DemoError unless each answer is native Paddle's, but for rounding."""
    for index, answers in found.answers.items():
        for answer in answers:
            if not _is_equal(answer, expected.answers[index][0]):
                raise DemoError(
                    f"request {index}: {answer} instead of {expected.answers[index][0]}"
                )


def _is_equal(answer: Any, other: Any) -> bool:
    if isinstance(answer, dict):
        return answer.keys() == other.keys() and all(
            _is_equal(answer[key], other[key]) for key in answer
        )
    if isinstance(answer, list):
        return len(answer) == len(other) and all(map(_is_equal, answer, other))
    return bool(abs(answer - other) < APART) if isinstance(answer, float) else answer == other
