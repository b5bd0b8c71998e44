"""Resident memory over requests of random sizes: texts, pieces of audio, pages."""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.ocr_widths import memory_mb
from benchmarks.options import Progress
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array, Feed

WIDTH, WORDS, LONGEST_TEXT = 128, 2000, 512
PARTS = 20
TOLERANCE = 1e-3
ENGINES = ("native", "engine")
ABOUT = """\
A predictor of Paddle Inference without oneDNN, one thread, answers requests of random sizes, one
after the other; native Paddle and the engine have a process each. Memory is what the process is
resident with, after the first twentieth of the requests, and the most after any twentieth; the
engine's includes OpenVINO's libraries. Processor time is of all requests, compilations included.
Answers are compared."""


@dataclass(frozen=True)
class Kind:
    """A kind of requests: how many, the feed of each, its inputs, and the network."""

    title: str
    count: int
    draw: Callable[[np.random.Generator], Feed]
    inputs: dict[str, tuple[list[int | None], Any]]
    network: Callable[[], Any]


@dataclass
class Found:
    """Results of one engine: memory after each part, processor time, and sums of the answers."""

    memory_mb: list[float] = field(default_factory=list)
    processor_seconds: float = 0.0
    sums: list[float] = field(default_factory=list)


def _text(generator: np.random.Generator) -> Feed:
    rows, length = generator.integers(1, 5), generator.integers(16, 166)
    ids = generator.integers(1, WORDS, (rows, length))
    ids[-1, length // 2 :] = 0  # padding
    return {"ids": ids}


def _audio(generator: np.random.Generator) -> Feed:
    samples = generator.integers(8_000, 64_000)  # half a second to four, at 16 kHz
    return {"samples": generator.standard_normal((1, 1, samples), dtype=np.float32)}


def _page(generator: np.random.Generator) -> Feed:
    height, width = 32 * generator.integers(6, 24, 2)
    return {"page": generator.standard_normal((1, 3, height, width), dtype=np.float32)}


def _encoder(layers: int) -> Any:
    from paddle import nn

    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu")
    return nn.TransformerEncoder(layer, layers)


def _text_network() -> Any:
    """An encoder with two pointers for each word, as UIE has (PaddleNLP)."""
    import paddle
    from paddle import nn

    class Pointers(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = (nn.Embedding(n, WIDTH) for n in (WORDS, LONGEST_TEXT))
            self.encoder, self.pointers = _encoder(3), nn.Linear(WIDTH, 2)

        def forward(self, ids: Any) -> Any:
            mask = ((ids == 0).astype("float32") * -1e4).unsqueeze([1, 2])
            places = paddle.cumsum(paddle.ones_like(ids), axis=1) - 1
            encoded = self.encoder(self.words(ids) + self.places(places), mask)
            return nn.functional.sigmoid(self.pointers(encoded))

    return Pointers()


def _audio_network() -> Any:
    """Convolutions over samples, then an encoder, as wav2vec 2.0 has."""
    from paddle import nn

    class Listener(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            layers, channels = [], 1
            for kernel, stride in ((10, 5), (8, 4), (4, 2), (4, 2), (4, 2)):
                layers += [nn.Conv1D(channels, WIDTH, kernel, stride), nn.GELU()]
                channels = WIDTH
            self.samples, self.encoder = nn.Sequential(*layers), _encoder(2)
            self.letters = nn.Linear(WIDTH, 32)

        def forward(self, samples: Any) -> Any:
            frames = self.samples(samples).transpose([0, 2, 1])
            return nn.functional.softmax(self.letters(self.encoder(frames)))

    return Listener()


def _page_network() -> Any:
    """A map of text on a page, from features of four resolutions, as DB has (PaddleOCR)."""
    from paddle import nn

    class Detector(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            widths = (3, 16, 32, 64, 128, 128)
            self.stages = nn.LayerList(
                nn.Sequential(
                    nn.Conv2D(before, width, 3, 2, 1), nn.BatchNorm2D(width), nn.Hardswish()
                )
                for before, width in zip(widths, widths[1:])
            )
            self.sides = nn.LayerList(nn.Conv2D(width, 32, 1) for width in widths[2:])
            self.head = nn.Sequential(
                nn.Conv2D(32, 16, 3, 1, 1), nn.ReLU(), nn.Conv2DTranspose(16, 1, 4, 4)
            )

        def forward(self, page: Any) -> Any:
            features = []
            for stage in self.stages:
                page = stage(page)
                features.append(page)
            sides = [side(each) for side, each in zip(self.sides, features[1:])]
            found = sides.pop()
            while sides:
                found = sides.pop() + nn.functional.interpolate(found, scale_factor=2)
            return nn.functional.sigmoid(self.head(found))

    return Detector()


KINDS = {
    "texts": Kind(
        "texts of 16 to 165 words, 1 to 4 at once",
        10_000,
        _text,
        {"ids": ([None, None], "int64")},
        _text_network,
    ),
    "audio": Kind(
        "audio of 0.5 to 4 s",
        2_000,
        _audio,
        {"samples": ([1, 1, None], "float32")},
        _audio_network,
    ),
    "pages": Kind(
        "pages of 192 to 736 pixels a side",
        300,
        _page,
        {"page": ([1, 3, None, None], "float32")},
        _page_network,
    ),
}


class Subject:
    """A predictor in a separate process.

    Args:
        kind: Name in :data:`KINDS`.
        engine: Name in :data:`ENGINES`.
        folder: Folder of the saved network.
    """

    def __init__(self, kind: str, engine: str, folder: Path) -> None:
        import paddle

        import paddle_ngraph

        self._draw, self._engine = KINDS[kind].draw, engine
        if engine == "engine":
            paddle_ngraph.enable()
        prefix = folder / kind
        config = paddle.inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
        config.disable_mkldnn()
        config.set_cpu_math_library_num_threads(1)
        self._predictor = paddle.inference.create_predictor(config)

    def answer(self, first: int, count: int) -> tuple[float, float, list[float]]:
        """Returns the memory after these requests, their processor time, and sums of answers."""
        sums, start = [], time.process_time()
        for number in range(first, first + count):
            feed = self._draw(np.random.default_rng(number))
            for name, array in feed.items():
                self._predictor.get_input_handle(name).copy_from_cpu(array)
            self._predictor.run()
            (output,) = self._predictor.get_output_names()
            sums.append(_weighted_mean(self._predictor.get_output_handle(output).copy_to_cpu()))
        return memory_mb(), time.process_time() - start, sums

    def native_runs(self) -> int:
        """Returns the number of requests that the engine did not run."""
        import paddle_ngraph

        return int(paddle_ngraph.stats()["native_runs"])


def _weighted_mean(array: Array) -> float:
    """A mean that another order of the elements changes."""
    weights = 1 + np.cos(0.1 * np.arange(array.size))
    return float((array.reshape(-1) * weights).mean(dtype=np.float64))


def save(kind: str, folder: Path) -> None:
    """Saves the network of a kind, with random weights."""
    import paddle

    paddle.seed(2026)
    network = KINDS[kind].network()
    network.eval()
    spec = [
        paddle.static.InputSpec(shape, dtype, name)
        for name, (shape, dtype) in KINDS[kind].inputs.items()
    ]
    paddle.jit.save(network, str(folder / kind), input_spec=spec)


def measure(options: Namespace) -> None:
    """Measures the kinds; writes ``sizes.md`` and ``.json`` after each of them."""
    kinds = [name for name in KINDS if not options.kinds or name in options.kinds]
    rows = report.earlier(options.output, "sizes").get("sizes", {})
    with Progress("sizes", len(kinds)) as progress:
        for kind in kinds:
            count = 2 * PARTS if options.quick else KINDS[kind].count
            found = _measured(kind, count)
            rows[kind] = {"requests": count} | {name: asdict(each) for name, each in found.items()}
            progress.done(f"{kind}: {_row(kind, rows[kind])}")
            header = ["", "requests", "engine, MB", "native, MB", "", "processor time, s", "native"]
            table = report.table(header, [_row(name, row) for name, row in rows.items()])
            report.write(options.output, "sizes", "Random sizes", [ABOUT, table], {"sizes": rows})


def _measured(kind: str, count: int) -> dict[str, Found]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        with Worker({}) as worker:
            worker.call(save, kind, Path(folder))
        for engine in ENGINES:
            found[engine] = each = Found()
            threads = {"OMP_NUM_THREADS": "1", "FLAGS_ngraph_num_threads": "1"}
            with Worker(threads) as worker:
                worker.hold(Subject, kind, engine, Path(folder))
                for part in range(PARTS):
                    size = count // PARTS
                    memory, seconds, sums = worker.ask("answer", part * size, size)
                    each.memory_mb.append(memory)
                    each.processor_seconds += seconds
                    each.sums += sums
                if engine == "engine" and (runs := worker.ask("native_runs")) > 0:
                    raise PeerError(f"{kind}: {runs} runs were native")
    np.testing.assert_allclose(found["engine"].sums, found["native"].sums, TOLERANCE, TOLERANCE)
    return found


def _row(kind: str, row: dict[str, Any]) -> list[str]:
    native, engine = row["native"], row["engine"]
    most = {name: max(row[name]["memory_mb"]) for name in ENGINES}
    return [
        KINDS[kind].title,
        str(row["requests"]),
        f"{engine['memory_mb'][0]:.0f}, at most {most['engine']:.0f}",
        f"{native['memory_mb'][0]:.0f}, at most {most['native']:.0f}",
        f"{most['engine'] / most['native']:.2f}x",
        f"{engine['processor_seconds']:.1f}",
        f"{native['processor_seconds']:.1f}",
    ]
