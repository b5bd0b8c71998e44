"""A driver of Ray Serve: starts an application, and sends requests while replicas are killed.

The application is that of a saved model, or of PaddleOCR.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import ray
from ray import serve

import paddle_ngraph
import paddle_ngraph.ray
from paddle_ngraph.ray.serving import Answer, ModelPipeline, Pipeline

PORT, CLIENTS, SHAPES = 8000, 4, [{"x": [1, 8]}, {"x": [2, 8]}, {"x": [3, 8]}]
MOST = 20000
METRICS_SECONDS = 60
# The number of answers before a replica is killed, and after a machine is switched off.
ANSWERS = {"model": 60, "ocr": 12}
MALFORMED = {
    "model": (b"", b"[1]", b'{"y": [[1]]}', b'{"x": [["a"]]}', b'{"x": [[1, 2]]}', b"\\xff"),
    "ocr": (b"", b"[1]", b"\x89PNG\r\n\x1a\n", b"\\xff"),
}
METRICS = re.compile(r"^ray_(paddle_ngraph_\w+?)(?:_total)?{.*} (\S+)$", re.MULTILINE)


def made(kind: str, folder: Path) -> Pipeline:
    """The pipeline of an application."""
    if kind == "model":
        return ModelPipeline(str(folder / "model"), SHAPES)
    from demos.serving_demo.on_ray import PagePipeline

    return PagePipeline(folder / "models")


class ReportingPipeline:
    """A pipeline whose answers have the process and its counters."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._pipeline = made(kind, folder)
        self._ready = paddle_ngraph.stats()["functions_built"]

    def __call__(self, bodies: list[bytes]) -> list[Answer]:
        answers = self._pipeline(bodies)
        stats = paddle_ngraph.stats()
        more = {
            "pid": os.getpid(),
            "batch": len(bodies),
            "built": stats["functions_built"] - self._ready,
            "engine": stats["engine_runs"],
            "threads": paddle_ngraph.num_threads(),
        }
        return [Answer({**each.content, "report": more}, each.status) for each in answers]


@dataclass
class Outcome:
    """Answers by request, and what went wrong."""

    answers: list[tuple[int, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    malformed: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


async def load(folder: Path, kind: str, bodies: list[bytes]) -> Outcome:
    """Sends requests: a replica is killed, then the test switches a machine off."""
    outcome, sent, switched_at = Outcome(), 0, None
    answers = ANSWERS[kind]
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def client() -> None:
            nonlocal sent, switched_at
            while sent < MOST:
                number, sent = sent % len(bodies), sent + 1
                try:
                    async with session.post(f"http://127.0.0.1:{PORT}/", data=bodies[number]) as r:
                        text = await r.text()
                        if r.status != 200:
                            outcome.failures.append(f"{r.status}: {text[:300]}")
                        else:
                            outcome.answers.append((number, json.loads(text)))
                except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                    outcome.failures.append(repr(error))
                count = len(outcome.answers)
                if count >= answers and not outcome.killed:
                    outcome.killed.append(outcome.answers[-1][1]["report"]["pid"])
                    os.kill(outcome.killed[0], signal.SIGKILL)
                if count >= 3 * answers and outcome.killed and not (folder / "wish").exists():
                    (folder / "wish").touch()
                if switched_at is None and (folder / "switched").exists():
                    switched_at = count
                if switched_at is not None and count >= switched_at + answers:
                    return

        for body in MALFORMED[kind]:
            async with session.post(f"http://127.0.0.1:{PORT}/", data=body) as r:
                outcome.malformed.append(r.status)
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        outcome.metrics = await metrics(session)
    return outcome


async def metrics(session: aiohttp.ClientSession) -> dict[str, float]:
    """The sums of this package's metrics over the machines that live, once Ray exports them."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    urls = [f"http://{n['NodeManagerAddress']}:{n['MetricsExportPort']}/metrics" for n in nodes]
    found: dict[str, float] = {}
    for _ in range(METRICS_SECONDS):
        for url in urls:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url) as response:
                    for name, value in METRICS.findall(await response.text()):
                        found[name] = found.get(name, 0.0) + float(value)
        if found.get("paddle_ngraph_engine_runs"):
            break
        await asyncio.sleep(1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=ANSWERS)
    options = parser.parse_args()
    folder, kind = options.folder, options.kind
    from tests.cluster.serving import ReportingPipeline  # by name in the replicas, too

    ray.init()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": PORT})
    application = paddle_ngraph.ray.application(
        lambda: ReportingPipeline(kind, folder),
        max_batch_size=4,
        batch_wait_timeout_s=0.01,
        num_replicas=2,
        max_replicas_per_node=1,
        fronts={
            "ray_actor_options": {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
        },
    )
    serve.run(application)
    bodies = [each.read_bytes() for each in sorted((folder / "requests").iterdir())]
    outcome = asyncio.run(load(folder, kind, bodies))
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome)))
    serve.shutdown()


if __name__ == "__main__":
    main()
