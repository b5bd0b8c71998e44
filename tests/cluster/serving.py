"""A driver of Ray Serve: starts an application, and sends requests while replicas are killed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import ray
from ray import serve

import paddle_ngraph
import paddle_ngraph.ray
from paddle_ngraph.ray.serving import Answer, ModelPipeline

PORT, CLIENTS, SHAPES = 8000, 4, [{"x": [1, 8]}, {"x": [2, 8]}, {"x": [3, 8]}]
BEFORE_KILL, AFTER_SWITCH, MOST = 60, 60, 20000


class Pipeline:
    """The pipeline of a saved model, whose answers have the process and its counters."""

    def __init__(self, model: str) -> None:
        self._pipeline = ModelPipeline(model, SHAPES)
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
        return [Answer({**each.content, **more}, each.status) for each in answers]


@dataclass
class Outcome:
    """Answers by request, and what went wrong."""

    answers: list[tuple[int, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    malformed: list[int] = field(default_factory=list)


async def load(folder: Path, bodies: list[bytes]) -> Outcome:
    """Sends requests: a replica is killed, then the test switches a machine off."""
    outcome, sent, switched_at = Outcome(), 0, None
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
                if count >= BEFORE_KILL and not outcome.killed:
                    outcome.killed.append(outcome.answers[-1][1]["pid"])
                    os.kill(outcome.killed[0], signal.SIGKILL)
                if count >= 3 * BEFORE_KILL and outcome.killed and not (folder / "wish").exists():
                    (folder / "wish").touch()
                if switched_at is None and (folder / "switched").exists():
                    switched_at = count
                if switched_at is not None and count >= switched_at + AFTER_SWITCH:
                    return

        for body in (b"", b"[1]", b'{"y": [[1]]}', b'{"x": [["a"]]}', b'{"x": [[1, 2]]}', b"\\xff"):
            async with session.post(f"http://127.0.0.1:{PORT}/", data=body) as r:
                outcome.malformed.append(r.status)
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    from tests.cluster.serving import Pipeline  # by name in the replicas, too

    ray.init()
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": PORT})
    model = str(folder / "model")
    application = paddle_ngraph.ray.application(
        lambda: Pipeline(model),
        max_batch_size=4,
        batch_wait_timeout_s=0.01,
        num_replicas=2,
        max_replicas_per_node=1,
        fronts={
            "ray_actor_options": {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
        },
    )
    serve.run(application)
    bodies = [line.encode() for line in (folder / "requests.jsonl").read_text().splitlines()]
    outcome = asyncio.run(load(folder, bodies))
    (folder / "outcome.json").write_text(json.dumps(asdict(outcome)))
    serve.shutdown()


if __name__ == "__main__":
    main()
