"""A model for each request: predictors and programs that are made again, and 100 in pair."""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.ocr_widths import memory_mb
from benchmarks.options import Progress
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array

ENGINES = ("native", "engine")
MODELS, ROUNDS, REQUESTS = 100, 6, 20
TOLERANCE = 1e-4
WAYS = {"predictors": "a predictor", "programs": "a program, and its answer"}
# Requests before a model is known, and seconds between them in which functions are compiled.
FIRST_REQUESTS, SECONDS_TO_COMPILE = 3, 3.0
Builder = Callable[[Any], Any]
# Milliseconds and milliseconds of processor time of requests.
Times = list[tuple[float, float]]
# The times of each pair, by way and engine.
Found = dict[str, dict[str, list[Times]]]
ABOUT = """\
Native Paddle and the engine have a process each, with two threads and without oneDNN, and take
pairs with the same requests. A *predictor* is created, and answers nothing; a *program* is loaded
into a new Scope by `load_inference_model`, and answers one request by `Executor.run`. The models
are known: the process has served them before. Medians of the requests of a pair, and of the pairs;
the ratio is the median over the pairs. Answers are compared.

*Models in pair*: one process serves {models} models with weights of their own, each by a predictor
and then by a program, in rounds. Memory is what the process is resident with after a round."""


def _classifier(x: Any) -> Any:
    """Handwritten digits, by a convolution."""
    from paddle import nn

    x = nn.functional.max_pool2d(nn.functional.relu(nn.Conv2D(1, 20, 5)(x)), 2)
    return nn.functional.softmax(nn.Linear(20 * 12 * 12, 10)(x.flatten(1)))


def _mobilenet(x: Any) -> Any:
    from paddle.vision.models import mobilenet_v2

    network = mobilenet_v2()
    network.eval()
    return network(x)


def _encoder(x: Any) -> Any:
    from paddle import nn

    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, activation="gelu")
    return nn.TransformerEncoder(layer, 4)(x)


# A title, the shape of an input, and the function that builds the network, by name.
NETWORKS: dict[str, tuple[str, tuple[int, ...], Builder]] = {
    "digits": ("one convolution, 28 x 28", (1, 28, 28), _classifier),
    "mobilenet_v2": ("MobileNetV2, 224 x 224", (3, 224, 224), _mobilenet),
    "encoder": ("Transformer, 4 layers of 256, 64 words", (64, 256), _encoder),
}


def save(name: str, prefix: Path, seed: int) -> None:
    """Saves a network of :data:`NETWORKS`, with random weights of this seed."""
    import paddle

    paddle.enable_static()
    _, shape, build = NETWORKS[name]
    main, startup = paddle.static.Program(), paddle.static.Program()
    paddle.seed(seed)
    with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [None, *shape], "float32")
        y = build(x)
        executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(paddle.static.Scope()):
            executor.run(startup)
            paddle.static.save_inference_model(str(prefix), [x], [y], executor, program=main)


def save_many(name: str, folder: Path, count: int) -> None:
    """Saves a network ``count`` times, each with weights of its own."""
    for number in range(count):
        save(name, folder / str(number), 1 + number)


class Server:
    """Answers requests, each with a model that is opened for it, in a process of its own.

    Args:
        engine: Name in :data:`ENGINES`.
    """

    def __init__(self, engine: str) -> None:
        import paddle

        import paddle_ngraph

        paddle.enable_static()
        self._place = paddle.CPUPlace()
        if engine == "engine":
            paddle_ngraph.enable()

    def predictors(self, prefix: Path, count: int) -> Times:
        """The times in which predictors are created."""
        return _times(count, lambda: self._predictor(prefix))

    def programs(self, prefix: Path, x: Array, count: int) -> Times:
        """The times in which programs are loaded and answer a request each."""
        return _times(count, lambda: self.answer_by_program(prefix, x))

    def one_after_another(self, folder: Path, count: int, x: Array) -> tuple[float, list[Array]]:
        """The memory after a request for each model by each way, and the answers."""
        answers = []
        for number in range(count):
            predictor = self._predictor(folder / str(number))
            predictor.get_input_handle("x").copy_from_cpu(x)
            predictor.run()
            (name,) = predictor.get_output_names()
            answers.append(predictor.get_output_handle(name).copy_to_cpu())
            del predictor
            answers.append(self.answer_by_program(folder / str(number), x))
        return memory_mb(), answers

    def engine_runs(self) -> int:
        """How often an engine operator has run."""
        import paddle_ngraph

        return int(paddle_ngraph.stats()["engine_runs"])

    def _predictor(self, prefix: Path) -> Any:
        from paddle import inference

        config = inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
        config.disable_mkldnn()
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(2)
        return inference.create_predictor(config)

    def answer_by_program(self, prefix: Path, x: Array) -> Array:
        """The answer of a program that is loaded into a new Scope."""
        from paddle import static

        with static.scope_guard(static.Scope()):
            executor = static.Executor(self._place)
            program, feeds, fetches = static.load_inference_model(str(prefix), executor)
            (answer,) = executor.run(program, feed={feeds[0]: x}, fetch_list=fetches)
        return np.array(answer)


def _times(count: int, action: Callable[[], object]) -> Times:
    found: Times = []
    for _ in range(count):
        start, processor = time.perf_counter(), time.process_time()
        action()
        end, end_processor = time.perf_counter(), time.process_time()
        found.append((1000 * (end - start), 1000 * (end_processor - processor)))
    return found


def measure(options: Namespace) -> None:
    """Measures requests; writes ``requests.md`` and ``requests_<processor>.json``."""
    rounds, models = (2, 4) if options.quick else (ROUNDS, MODELS)
    pairs, requests = (1, 2) if options.quick else (options.rounds, REQUESTS)
    known = {}
    with Progress("requests", len(NETWORKS) + 1) as progress:
        for name in NETWORKS:
            known[name] = _known(name, pairs, requests)
            progress.done(f"{name}: {_row(name, 'programs', known[name])}")
        memory = _one_after_another(models, rounds)
        progress.done(f"models in pair: {memory}")
    rows = [_row(name, way, found) for name, found in known.items() for way in WAYS]
    header = ["", "engine, ms", "native", "", "processor time, ms", "native", ""]
    memory_rows = [[each, *(f"{mb:.0f}" for mb in memory[each])] for each in reversed(ENGINES)]
    memory_table = report.table(["MB", *map(str, range(1, rounds + 1))], memory_rows)
    sections = [
        ABOUT.format(models=models),
        f"## A model for each request\n\n{report.table(header, rows)}",
        f"## {models} models in pair, after each round\n\n{memory_table}",
    ]
    data = {"known": known, "memory_mb": memory}
    report.write(options.output, "requests", "A model for each request", sections, data)


@contextmanager
def _servers() -> Iterator[dict[str, Worker]]:
    """A process with a :class:`Server` for each engine, which compiles in the background."""
    settings = {"FLAGS_paddle_num_threads": "2", "FLAGS_ngraph_background_compile": "1"}
    with Worker(settings) as native, Worker(settings) as engine:
        servers = dict(zip(ENGINES, (native, engine)))
        for name, worker in servers.items():
            worker.hold(Server, name)
        yield servers


def _known(name: str, pairs: int, requests: int) -> Found:
    """The times of both ways with a network, by way and engine, a list for each pair."""
    with tempfile.TemporaryDirectory() as folder, _servers() as servers:
        prefix, x = Path(folder) / name, _input(name)
        servers["native"].call(save, name, prefix, 1)
        answers = {each: _known_answer(worker, prefix, x) for each, worker in servers.items()}
        np.testing.assert_allclose(answers["engine"], answers["native"], TOLERANCE, TOLERANCE)
        found: Found = {way: {engine: [] for engine in ENGINES} for way in WAYS}
        for _ in range(pairs):
            for engine, worker in servers.items():
                found["predictors"][engine].append(worker.ask("predictors", prefix, requests))
                found["programs"][engine].append(worker.ask("programs", prefix, x, requests))
        _require_engine(servers["engine"])
    return found


def _known_answer(worker: Worker, prefix: Path, x: Array) -> Array:
    """The answer to a request, after some that have the model be known."""
    for _ in range(FIRST_REQUESTS):
        answer: Array = worker.ask("answer_by_program", prefix, x)
        worker.ask("predictors", prefix, 1)
        time.sleep(SECONDS_TO_COMPILE)
    return answer


def _one_after_another(models: int, rounds: int) -> dict[str, list[float]]:
    """The memory of each engine after each round."""
    memory: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    with tempfile.TemporaryDirectory() as folder, _servers() as servers:
        servers["native"].call(save_many, "digits", Path(folder), models)
        for _ in range(rounds):
            answers = {}
            for engine, worker in servers.items():
                asked = worker.ask("one_after_another", Path(folder), models, _input("digits"))
                memory[engine].append(asked[0])
                answers[engine] = asked[1]
            np.testing.assert_allclose(answers["engine"], answers["native"], TOLERANCE, TOLERANCE)
        _require_engine(servers["engine"])
    return memory


def _require_engine(worker: Worker) -> None:
    if worker.ask("engine_runs") == 0:
        raise PeerError("no request was answered by the engine")


def _input(name: str) -> Array:
    shape = NETWORKS[name][1]
    return np.random.default_rng(1).random((1, *shape), dtype=np.float32)


def _row(name: str, way: str, found: Found) -> list[str]:
    cells = []
    for kind in (0, 1):
        pairs = {e: [[t[kind] for t in pair] for pair in found[way][e]] for e in ENGINES}
        medians = {e: [statistics.median(pair) for pair in pairs[e]] for e in ENGINES}
        ratio = statistics.median(map(truediv, medians["engine"], medians["native"]))
        whole = [f"{statistics.median(medians[e]):.1f}" for e in reversed(ENGINES)]
        cells += [*whole, f"{ratio:.2f}x"]
    return [f"{NETWORKS[name][0]}: {WAYS[way]}", *cells]
