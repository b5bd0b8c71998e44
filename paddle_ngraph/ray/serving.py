"""Servers by Ray Serve: a saved model, or any pipeline, that loses no request with a replica.

Serve batches requests, starts replicas, checks their health and collects metrics. A front holds
each request until a replica has answered: if one dies, the front asks another one, which is right
for answers of models, as requests change nothing.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph.errors import first_line
from paddle_ngraph.ray.installed import ray_module
from paddle_ngraph.ray.models import ActorModel, use_reserved_cores
from paddle_ngraph.utils import signals

ATTEMPTS = 3  # a request that kills each replica that gets it must not kill all
MAX_BYTES = 32 << 20  # of the body of a request
# Bodies of a batch of requests -> an answer for each.
Pipeline = Callable[[list[bytes]], "list[Answer]"]


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        content: What JSON can express.
        status: The status of HTTP.
    """

    content: Any
    status: int = 200


class ModelPipeline:
    """Requests of a saved model: ``{"x": [[0.5, ...]]}``, the inputs by name as lists.

    The answer has the outputs by name.

    Args:
        model, shapes: See :class:`paddle_ngraph.ray.models.ActorModel`.
        dtypes: The dtypes of the inputs that are not float32.
    """

    def __init__(
        self,
        model: str,
        shapes: Sequence[Mapping[str, Sequence[int]]] = (),
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        self._model = ActorModel(model, shapes)
        self._dtypes = dtypes or {}

    def __call__(self, bodies: list[bytes]) -> list[Answer]:
        """Answers requests; those of equal shapes together, as samples of one batch."""
        answers: dict[int, Answer] = {}
        groups: dict[Any, list[tuple[int, dict[str, np.ndarray]]]] = {}
        for number, body in enumerate(bodies):
            try:
                inputs = self._decoded(body)
            except _INVALID as error:
                answers[number] = _rejected(str(error))
            else:
                # The samples of an input are its rows.
                key = tuple(array.shape[1:] for array in inputs.values())
                groups.setdefault(key, []).append((number, inputs))
        for group in groups.values():
            answers.update(zip((number for number, _ in group), self._run([i for _, i in group])))
        return [answers[number] for number in range(len(bodies))]

    def _decoded(self, body: bytes) -> dict[str, np.ndarray]:
        """The inputs of a request. Raises _INVALID if they are not those of the model."""
        found = json.loads(body)
        names = self._model.inputs
        if not isinstance(found, dict) or sorted(found) != sorted(names):
            raise ValueError(f"a request is a JSON object with the inputs {', '.join(names)}")
        inputs = {n: np.asarray(found[n], self._dtypes.get(n, "float32")) for n in names}
        rows = {array.shape[:1] for array in inputs.values()}
        if len(rows) != 1 or rows in ({()}, {(0,)}):
            raise ValueError("the inputs need the same number of rows, 1 or more")
        return inputs

    def _run(self, requests: Sequence[Mapping[str, np.ndarray]]) -> list[Answer]:
        inputs = {n: np.concatenate([each[n] for each in requests]) for n in self._model.inputs}
        with signals.recognized_signals():
            try:
                outputs = self._model.run(inputs)
            except Exception as error:  # Paddle raises errors of many types
                signals.raise_if_from_outside(error)
                if len(requests) > 1:
                    return [answer for each in requests for answer in self._run([each])]
                return [_rejected(first_line(error))]
        if len(requests) == 1:
            return [_answer_of(outputs)]
        sizes = [next(iter(each.values())).shape[0] for each in requests]
        ends = np.cumsum(sizes)[:-1]
        if any(array.shape[:1] != (sum(sizes),) for array in outputs.values()):
            # An output without a row for each sample: this model has no batches.
            return [answer for each in requests for answer in self._run([each])]
        parts = {name: np.split(array, ends) for name, array in outputs.items()}
        return [
            _answer_of({name: part[number] for name, part in parts.items()})
            for number in range(len(requests))
        ]


# Errors of bytes that are no JSON, or no arrays.
_INVALID = (ValueError, TypeError, OverflowError, RecursionError)


def _rejected(reason: str) -> Answer:
    return Answer({"error": reason}, 400)


def _answer_of(outputs: Mapping[str, np.ndarray]) -> Answer:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return Answer({"error": f"{name} has values that JSON lacks: NaN or infinity"}, 422)
    return Answer({name: array.tolist() for name, array in outputs.items()})


class Replica:
    """A pipeline in a replica of Serve; use :func:`application`.

    Args:
        make: Makes the pipeline, and has it ready for the first request.
        max_batch_size: The most requests of a batch.
        batch_wait_timeout_s: The longest wait for more requests.
    """

    def __init__(
        self, make: Callable[[], Pipeline], max_batch_size: int, batch_wait_timeout_s: float
    ) -> None:
        use_reserved_cores()
        # The pipeline is made and runs in one thread: the loop remains free for Serve.
        self._thread = ThreadPoolExecutor(1)
        self._pipeline = self._thread.submit(make).result()
        self._counters = ReplicaCounters()
        batched = ray_module("ray.serve").batch(
            max_batch_size=max_batch_size, batch_wait_timeout_s=batch_wait_timeout_s
        )
        self._answer = batched(self._answer_all)

    async def _answer_all(self, bodies: list[bytes]) -> list[Answer]:
        loop = asyncio.get_running_loop()
        answers = await loop.run_in_executor(self._thread, answered, self._pipeline, bodies)
        self._counters.update()
        return answers

    async def answer(self, body: bytes) -> Answer:
        """The answer to a request."""
        found: Answer = await self._answer(body)
        return found

    async def check_health(self) -> None:
        """Returns when the thread of the pipeline is free.

        Serve replaces a replica that takes longer than ``health_check_timeout_s``.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)


def answered(pipeline: Pipeline, bodies: list[bytes]) -> list[Answer]:
    """The answers of a pipeline to a batch.

    If the pipeline fails, each request is answered alone: only those that make it fail get status
    500, and not the others of their batch.
    """
    with signals.recognized_signals():
        try:
            return pipeline(bodies)
        except Exception as error:  # of any type: the pipeline is the user's
            signals.raise_if_from_outside(error)
            if len(bodies) > 1:
                return [answer for body in bodies for answer in answered(pipeline, [body])]
            logging.getLogger("ray.serve").exception("the pipeline has failed")
            return [Answer({"error": first_line(error)}, 500)]


class ReplicaCounters:
    """Counters of :func:`paddle_ngraph.stats` as metrics of Ray, ``paddle_ngraph_engine_runs`` ...

    ``functions_built`` and ``native_runs`` are 0 after the start of a replica that is warm.
    """

    NAMES = ("engine_runs", "native_runs", "functions_loaded", "functions_built")

    def __init__(self) -> None:
        counter = ray_module("ray.serve.metrics").Counter
        self._counters = {
            name: counter(f"paddle_ngraph_{name}", f'stats()["{name}"] of the replica')
            for name in self.NAMES
        }
        self._before = dict.fromkeys(self.NAMES, 0)
        self.update()

    def update(self) -> None:
        """Adds what has happened since the last update."""
        stats: Mapping[str, Any] = paddle_ngraph.stats()
        for name, counter in self._counters.items():
            if (more := stats[name] - self._before[name]) > 0:
                counter.inc(more)
            self._before[name] = stats[name]


class Front:
    """Forwards the bodies of HTTP requests to the replicas of a pipeline; see :func:`application`.

    Args:
        replicas: The handle of the deployment.
    """

    def __init__(self, replicas: Any) -> None:
        paddle.disable_signal_handler()  # as in replicas
        self._replicas = replicas

    async def __call__(self, request: Any) -> Any:
        """Answers a request of Starlette by a response of it."""
        response = ray_module("starlette.responses").JSONResponse
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BYTES:
                return response({"error": f"more than {MAX_BYTES} bytes"}, 413)
        answer = await self.answer(bytes(body))
        return response(answer.content, answer.status)

    async def answer(self, body: bytes) -> Answer:
        """The answer of a replica; of another one, if it dies."""
        lost = ray_module("ray.exceptions").RayActorError
        for _ in range(ATTEMPTS):
            try:
                return Answer(*await self._replicas.answer.remote(body))
            except lost:
                continue
        return Answer({"error": f"{ATTEMPTS} replicas have died of this request"}, 502)


def application(
    make: str | Callable[[], Pipeline],
    *,
    shapes: Sequence[Mapping[str, Sequence[int]]] = (),
    max_batch_size: int = 1,
    batch_wait_timeout_s: float = 0.0,
    num_cpus: int = 1,
    fronts: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """An application for ``ray.serve.run`` or the ``import_path`` of a RayService.

    ::

        app = paddle_ngraph.ray.application("model", shapes=[{"x": [1, 256]}], num_replicas=4)

    Args:
        make: A saved model, see :class:`ModelPipeline`; or a function without arguments that makes
            a pipeline: a function from the bodies of a batch of requests to their answers.
        shapes: For a saved model: the shapes for which functions are ready before the first
            request.
        max_batch_size: The most requests of a batch. Above 1, the rows of the inputs of a saved
            model have to be samples, which do not depend on each other.
        batch_wait_timeout_s: The longest wait for more requests.
        num_cpus: The cores of a replica: as many threads compute.
        fronts: Options of ``ray.serve.deployment`` for the front.
        options: Those for the replicas, such as ``num_replicas``, ``autoscaling_config`` or
            ``health_check_timeout_s``.

    Returns:
        An ``Application`` of Serve, which answers POST requests.

    Raises:
        NgraphError: Ray Serve is missing.
    """
    serve = ray_module("ray.serve")
    if isinstance(make, str):
        make = functools.partial(ModelPipeline, make, shapes)
    options.setdefault("max_ongoing_requests", 2 * max_batch_size)
    replicas = serve.deployment(
        Replica, name="Replica", ray_actor_options={"num_cpus": num_cpus}, **options
    )
    front = serve.deployment(
        Front, **{"name": "Front", "max_ongoing_requests": 1000,
                  "ray_actor_options": {"num_cpus": 0}, **(fronts or {})}
    )  # fmt: skip
    return front.bind(replicas.bind(make, max_batch_size, batch_wait_timeout_s))
