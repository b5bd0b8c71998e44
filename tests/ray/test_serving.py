"""Pipelines of saved models and fronts, without a cluster."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from types import SimpleNamespace

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphError
from paddle_ngraph.ray import batches, models, serving
from paddle_ngraph.ray.serving import Answer, Front, ModelPipeline
from tests.cluster import native


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The path of a model with two inputs, and its native results."""
    prefix = tmp_path_factory.mktemp("model") / "model"
    paddle.enable_static()  # as in tests, of which the first comes later
    paddle.seed(5)
    program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, startup):
        x = paddle.static.data("x", [-1, -1, 4])
        ids = paddle.static.data("ids", [-1, 1], "int64")
        hidden = paddle.nn.Linear(4, 3)(paddle.tanh(x)).sum(1)
        result = paddle.log(paddle.abs(hidden * ids.astype("float32")))
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    paddle.static.save_inference_model(str(prefix), [x, ids], [result], executor, program=program)
    return str(prefix), functools.partial(native.result, prefix)


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    monkeypatch.setattr(models, "use_reserved_cores", lambda: 1)
    yield
    paddle_ngraph.disable()


@pytest.fixture
def pipeline(model):
    shapes = [{"x": [1, 2, 4], "ids": [1, 1]}, {"x": [2, 2, 4], "ids": [2, 1]}]
    return ModelPipeline(model[0], shapes, {"ids": "int64"})


def feed(generator, rows, length):
    x = generator.normal(size=(rows, length, 4)).astype("float32")
    return {"x": x, "ids": generator.integers(1, 9, (rows, 1))}


def body(inputs):
    return json.dumps({name: array.tolist() for name, array in inputs.items()}).encode()


def test_a_batch_of_requests_of_several_shapes_has_native_answers(model, pipeline):
    generator = np.random.default_rng(4)
    feeds = [feed(generator, 1 + n % 3, 2 + n % 2) for n in range(8)]
    before = paddle_ngraph.stats()["engine_runs"]
    answers = pipeline([body(each) for each in feeds])
    assert paddle_ngraph.stats()["engine_runs"] == before + 2
    for each, answer in zip(feeds, answers):
        assert answer.status == 200
        (values,) = answer.content.values()
        np.testing.assert_allclose(np.float32(values), model[1](each), rtol=1e-5, atol=1e-5)


def test_values_that_json_lacks_are_an_error_of_their_request_only(pipeline):
    good = feed(np.random.default_rng(4), 1, 2)
    infinite = {**good, "ids": np.zeros((1, 1), "int64")}
    statuses = [each.status for each in pipeline([body(good), body(infinite), body(good)])]
    assert statuses == [200, 422, 200]


def test_whatever_a_stranger_sends_is_answered(pipeline):
    generator = np.random.default_rng(9)
    good = body(feed(generator, 1, 2))
    strange = [
        b"",
        b"\xff",
        b"[" * 100000,
        b"null",
        b"{}",
        b'{"x": 1, "ids": 1}',
        b'{"x": [[[1e999]]]}',
    ]
    values = [
        "[]",
        "[[]]",
        "{}",
        "null",
        '"a"',
        "[[1, 2], [3]]",
        "1" + "0" * 400,
        "[[NaN]]",
        "true",
    ]
    strange += [f'{{"x": {x}, "ids": {i}}}'.encode() for x in values for i in values]
    for _ in range(200):
        bytes_of = bytearray(good)
        for _ in range(generator.integers(1, 4)):
            bytes_of[generator.integers(len(bytes_of))] = generator.integers(256)
        strange.append(bytes(bytes_of))
    answers = pipeline([*strange, good])
    assert len(answers) == len(strange) + 1 and answers[-1].status == 200
    assert {answer.status for answer in answers[:-1]} <= {200, 400, 422}
    assert all(answer.status == 400 for answer in answers[: 7 + len(values) ** 2])
    json.dumps([answer.content for answer in answers], allow_nan=False)


def test_a_predictor_keeps_columns_and_names_outputs(model):
    generator = np.random.default_rng(1)
    found = feed(generator, 3, 2)
    (output,) = models.ActorModel(model[0]).outputs
    predictor = batches.BatchPredictor(
        model[0], inputs={"picture": "x", "ids": "ids"}, outputs={output: "y"}
    )
    batch = {"picture": found["x"], "ids": found["ids"], "path": np.array(["a", "b", "c"])}
    result = predictor(batch)
    assert list(result) == ["path", "y"] and list(result["path"]) == ["a", "b", "c"]
    np.testing.assert_allclose(result["y"], model[1](found), rtol=1e-5, atol=1e-5)
    with pytest.raises(NgraphError, match="the input x is missing: give x, ids"):
        predictor({"ids": found["ids"]})


@pytest.mark.parametrize("failing", [{0}, {1, 3}, {0, 1, 2, 3}, set()])
def test_a_request_that_a_pipeline_fails_for_fails_alone(caplog, failing):
    calls = []

    def pipeline(bodies):
        calls.append(bodies)
        if failing & set(map(int, bodies)):
            raise ZeroDivisionError("by this request\nand more")
        return [Answer(int(body)) for body in bodies]

    bodies = [b"0", b"1", b"2", b"3"]
    answers = serving.answered(pipeline, bodies)
    failed = Answer({"error": "by this request"}, 500)
    assert answers == [failed if n in failing else Answer(n) for n in range(4)]
    assert calls == [bodies, *([body] for body in bodies)] if failing else [bodies]
    assert len(caplog.records) == len(failing)


class Counted:
    """Stands for a counter of Ray."""

    def __init__(self, name, description):
        self.total = 0
        COUNTED[name] = self

    def inc(self, more):
        self.total += more


COUNTED: dict[str, Counted] = {}


@pytest.fixture
def replica(monkeypatch):
    """A replica of a pipeline, without batches."""
    modules = {
        "ray.serve": SimpleNamespace(batch=lambda **options: lambda function: function),
        "ray.serve.metrics": SimpleNamespace(Counter=Counted),
    }
    monkeypatch.setattr(serving, "ray_module", modules.__getitem__)
    monkeypatch.setattr(serving, "use_reserved_cores", lambda: 1)
    return lambda pipeline: serving.Replica(lambda: pipeline, 4, 0.0)


def test_a_replica_is_healthy_once_its_pipeline_is_free(replica):
    entered, leave = threading.Event(), threading.Event()

    def pipeline(bodies):
        entered.set()
        leave.wait()
        return [Answer(len(bodies))]

    async def checked():
        busy = replica(pipeline)
        await busy.check_health()
        answers = asyncio.ensure_future(busy._answer_all([b""]))
        await asyncio.get_running_loop().run_in_executor(None, entered.wait)
        health = asyncio.ensure_future(busy.check_health())
        done, _ = await asyncio.wait({health}, timeout=0.05)
        leave.set()
        await health
        return done, await answers

    assert asyncio.run(checked()) == (set(), [Answer(1)])


def test_counters_of_a_replica_are_metrics_of_ray(replica, pipeline, model):
    COUNTED.clear()
    started = replica(pipeline)
    before = {name: counter.total for name, counter in COUNTED.items()}
    assert set(before) == {f"paddle_ngraph_{name}" for name in serving.ReplicaCounters.NAMES}
    asyncio.run(started._answer_all([body(feed(np.random.default_rng(1), 1, 2))]))
    more = {name: counter.total - before[name] for name, counter in COUNTED.items()}
    assert {name for name, count in more.items() if count} == {"paddle_ngraph_engine_runs"}


class Lost(Exception):
    """Raised for a replica that has died."""


@pytest.fixture
def asks(monkeypatch):
    """Asks a front whose replicas answer or die, in this order; returns its answer."""

    modules = {"ray.exceptions": SimpleNamespace(RayActorError=Lost)}
    monkeypatch.setattr(serving, "ray_module", modules.__getitem__)

    def ask(*outcomes):
        rest = iter(outcomes)

        async def remote(body):
            outcome = next(rest)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        replicas = SimpleNamespace(answer=SimpleNamespace(remote=remote))
        return asyncio.run(Front(replicas).answer(b"")), list(rest)

    return ask


def test_a_front_asks_another_replica_if_one_dies(asks):
    answer = Answer({"y": [1]}, 200)
    assert asks(answer, "unused") == (answer, ["unused"])
    assert asks(Lost(), Lost(), answer) == (answer, [])
    ended, rest = asks(Lost(), Lost(), Lost(), answer)
    assert ended.status == 502 and rest == [answer]
    with pytest.raises(ZeroDivisionError):
        asks(ZeroDivisionError())


def test_a_front_reads_no_more_than_it_accepts(monkeypatch):
    responses = SimpleNamespace(JSONResponse=lambda content, status: (content, status))
    monkeypatch.setattr(serving, "ray_module", {"starlette.responses": responses}.__getitem__)
    read = []

    async def stream():
        while True:
            read.append(1 << 20)
            yield bytes(1 << 20)

    content, status = asyncio.run(Front(None)(SimpleNamespace(stream=stream)))
    assert status == 413 and str(serving.MAX_BYTES) in content["error"]
    assert sum(read) == serving.MAX_BYTES + (1 << 20)
