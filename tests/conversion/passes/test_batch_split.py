"""Models that are computed in chunks of the batch, with results equal to the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openvino as ov
import paddle
import paddle.nn.functional as F
import pytest
from openvino import Node, Type, opset10, opset15

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.conversion import bridge
from paddle_ngraph.conversion.openvino_core import core
from paddle_ngraph.conversion.passes import batch_split
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.settings import SETTINGS
from tests.programs import Program, floats

SAMPLES = 6


def ints(*values: int) -> Node:
    return opset15.constant(np.array(values, np.int64))


def weights(*shape: int) -> Node:
    return opset15.constant(floats(*shape))


def reshape(x: Any, *target: int, special_zero: bool = False) -> Node:
    return opset15.reshape(x, ints(*target), special_zero)


def transpose(x: Any, *order: int) -> Node:
    return opset15.transpose(x, ints(*order))


def by(x: Any, matrix: Any) -> Node:
    return opset15.matmul(x, matrix, False, False)


def padded(x: Any, begin: Any, end: Any) -> Node:
    return opset15.pad(x, begin, end, "constant", opset15.constant(np.float32(7)))


def heads(x: Any) -> Node:
    """Attention of two heads of three, [N, 4, 6] -> [N, 4, 6], as in PP-OCR's recognition."""
    qkv = reshape(by(x, weights(6, 18)), 0, 4, 3, 2, 3, special_zero=True)
    parts = opset15.split(transpose(qkv, 2, 0, 3, 1, 4), opset15.constant(0), 3).outputs()
    q, k, v = (opset15.squeeze(part, ints(0)) for part in parts)
    mixed = opset15.matmul(opset15.softmax(opset15.matmul(q, k, False, True), -1), v, False, False)
    return reshape(transpose(mixed, 0, 2, 1, 3), -1, 4, 6)


def table_of(x: Any) -> Node:
    positions = opset15.convert(opset15.clamp(opset15.abs(x), 0.0, 4.0), Type.i64)
    return opset15.gather(weights(3, 5, 2), positions, opset15.constant(1))


# Operators along samples, by name: the shape of the input after axis 0, and the operator. Axis 0 of
# each result runs over the samples again.
APART: dict[str, tuple[Sequence[int], Callable[[Any], Node]]] = {
    "one by one": ((3, 4), lambda x: opset15.relu(opset15.add(x, weights(3, 4)))),
    "a free operand of the same rank": ((3,), lambda x: opset15.multiply(weights(1, 3), x)),
    "a scalar": ((3,), lambda x: opset15.divide(opset15.constant(np.float32(2)), x)),
    "itself": ((3,), lambda x: opset15.subtract(opset15.exp(x), x)),
    "a choice": ((3,), lambda x: opset15.select(opset15.less(x, weights(3)), x, weights(1, 3))),
    "slopes of channels": ((3, 2), lambda x: opset15.prelu(x, weights(3))),
    "rows": ((4,), lambda x: by(x, weights(4, 3))),
    "rows, turned weights": ((4,), lambda x: opset15.matmul(x, weights(3, 4), False, True)),
    "rows of matrices": ((2, 4), lambda x: by(x, weights(4, 3))),
    "matrices": ((2, 4), lambda x: opset15.matmul(x, x, False, True)),
    "matrices by one matrix": ((2, 4), lambda x: by(weights(3, 2), x)),
    "matrices by a stack of one": (
        (2, 4),
        lambda x: by(x, weights(1, 4, 3)),
    ),
    "turned matrices": ((2, 4), lambda x: opset15.matmul(x, weights(2, 3), True, False)),
    "convolution": (
        (4, 5, 5),
        lambda x: opset15.convolution(x, weights(3, 4, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1]),
    ),
    "grouped convolution": (
        (4, 5, 5),
        lambda x: opset15.group_convolution(
            x, weights(2, 3, 2, 3, 3), [1, 1], [0, 0], [0, 0], [1, 1]
        ),
    ),
    "transposed convolution": (
        (4, 5, 5),
        lambda x: opset15.convolution_backprop_data(x, weights(4, 2, 2, 2), [2, 2]),
    ),
    "average pooling": (
        (2, 6, 6),
        lambda x: opset15.avg_pool(x, [2, 2], [0, 0], [0, 0], [2, 2], True),
    ),
    "maximum pooling": (
        (2, 6, 6),
        lambda x: opset15.max_pool(x, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]).output(0),
    ),
    "interpolation": (
        (2, 3, 3),
        lambda x: opset15.interpolate(x, ints(6, 5), "nearest", "sizes", axes=ints(2, 3)),
    ),
    "softmax": ((3, 4), lambda x: opset15.softmax(x, 1)),
    "softmax from the end": ((3, 4), lambda x: opset15.softmax(x, -2)),
    "mean over places": ((3, 4, 5), lambda x: opset15.reduce_mean(x, ints(2, -1), True)),
    "sum without the axes": ((3, 4), lambda x: opset15.reduce_sum(x, ints(1, 2), False)),
    "normalization": ((8,), lambda x: opset15.mvn(x, ints(1), True, 1e-5, "inside_sqrt")),
    "joined": ((2, 3), lambda x: opset15.concat([x, opset15.relu(x)], 1)),
    "split": ((6,), lambda x: opset15.split(x, opset15.constant(1), 2).output(1)),
    "a slice": ((6,), lambda x: opset15.slice(x, ints(1), ints(5), ints(2), ints(1))),
    "padded": (
        (4,),
        lambda x: opset15.pad(
            x, ints(0, 1), ints(0, 2), "constant", opset15.constant(np.float32(7))
        ),
    ),
    "rows joined": ((2, 3), lambda x: reshape(x, SAMPLES * 2, 3)),
    "rows joined and parted": (
        (2, 3),
        lambda x: reshape(opset15.softmax(reshape(x, SAMPLES * 2, 3), 1), SAMPLES, 6),
    ),
    "reshaped by a copy": ((2, 3), lambda x: reshape(x, 0, 6, special_zero=True)),
    "reshaped by what is left": ((2, 3), lambda x: reshape(x, -1, 6)),
    "a new axis before and after": (
        (3,),
        lambda x: opset15.squeeze(opset15.unsqueeze(x, ints(0, 3)), ints(0, 3)),
    ),
    "picked": ((5, 2), lambda x: opset15.gather(x, ints(4, 0), opset15.constant(1))),
    "one picked": ((5, 2), lambda x: opset15.gather(x, opset15.constant(3), opset15.constant(1))),
    "looked up": ((2,), lambda x: transpose(table_of(x), 1, 0, 2, 3)),
    "batch behind": ((4,), lambda x: transpose(opset15.softmax(transpose(x, 1, 0), 0), 1, 0)),
    "batch behind, reduced": (
        (4, 3),
        lambda x: opset15.reduce_max(transpose(x, 1, 2, 0), ints(0, 1), False),
    ),
    "batch behind, reshaped": (
        (4, 3),
        lambda x: transpose(reshape(transpose(x, 1, 0, 2), 2, 2, SAMPLES * 3), 2, 0, 1),
    ),
    "attention": ((4, 6), heads),
    "core's softmax": ((5,), lambda x: bridge.extension("RowSoftmax", [x])),
    "core's softmax, batch in the middle": (
        (5, 4),
        lambda x: transpose(bridge.extension("RowSoftmax", [transpose(x, 1, 0, 2)]), 1, 0, 2),
    ),
    "core's position of the largest": (
        (5, 4),
        lambda x: bridge.extension("ArgMax", [x], axis=1),
    ),
    "core's layer normalization": (
        (5,),
        lambda x: bridge.extension("LayerNorm", [x, weights(5), weights(5)], epsilon=1e-5).output(
            0
        ),
    ),
}

# Operators that mix samples, or might.
MIXED: dict[str, tuple[Sequence[int], Callable[[Any], Node]]] = {
    "softmax over samples": ((3,), lambda x: opset15.softmax(x, 0)),
    "softmax over samples, from the end": ((3,), lambda x: opset15.softmax(x, -2)),
    "core's softmax over samples": (
        (3,),
        lambda x: transpose(bridge.extension("RowSoftmax", [transpose(x, 1, 0)]), 1, 0),
    ),
    "core's position of the largest sample": (
        (3,),
        lambda x: bridge.extension("ArgMax", [x], axis=0),
    ),
    "mean over samples": (
        (3,),
        lambda x: opset15.subtract(x, opset15.reduce_mean(x, ints(0), True)),
    ),
    "normalization of all": (
        (3,),
        lambda x: opset15.mvn(x, ints(0, 1), True, 1e-5, "inside_sqrt"),
    ),
    "samples by samples": ((SAMPLES,), lambda x: by(x, x)),
    "turned rows": ((4,), lambda x: opset15.matmul(x, weights(SAMPLES, 4), True, False)),
    "weights of a sample": ((3,), lambda x: opset15.add(x, weights(SAMPLES, 3))),
    "matrices of a sample": (
        (2, 4),
        lambda x: by(x, weights(SAMPLES, 4, 3)),
    ),
    "side by side with columns": (
        (SAMPLES,),
        lambda x: opset15.add(x, opset15.reduce_sum(x, ints(1), False)),
    ),
    "joined to another batch": ((3,), lambda x: opset15.concat([x, x], 0)),
    "joined to what is the same": ((3,), lambda x: opset15.concat([x, weights(SAMPLES, 2)], 1)),
    "turned over": (
        (3,),
        lambda x: opset15.slice(x, ints(-1), ints(-100), ints(-1), ints(0)),
    ),
    "moved on": (
        (3,),
        lambda x: padded(x, ints(1, 0), ints(-1, 0)),
    ),
    "exchanged": (
        (3,),
        lambda x: opset15.gather(x, ints(*reversed(range(SAMPLES))), opset15.constant(0)),
    ),
    "transposed": ((SAMPLES,), lambda x: transpose(x, 1, 0)),
    "torn": ((4,), lambda x: reshape(x, 4, SAMPLES)),
    "torn by a copy": (
        (2, SAMPLES),
        lambda x: reshape(transpose(x, 1, 0, 2), SAMPLES, 0, -1, special_zero=True),
    ),
    "sums so far": ((3,), lambda x: opset15.cum_sum(x, opset15.constant(0))),
    "a result for all": ((3,), lambda x: opset15.reduce_sum(x, ints(0, 1), False)),
    "slopes of samples": (
        (SAMPLES,),
        lambda x: opset15.prelu(transpose(x, 1, 0), weights(SAMPLES)),
    ),
    "positions of maxima": (
        (2, 4, 4),
        lambda x: opset15.max_pool(x, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]).output(1),
    ),
    "a node without a rule": ((3,), lambda x: opset15.tile(x, ints(1, 2))),
    "an interpolation of another release": (
        (2, 3, 3),
        lambda x: opset10.interpolate(x, ints(SAMPLES, 2, 6, 6), weights(4), "nearest", "sizes"),
    ),
}


def model_of(shape: Sequence[int], make: Callable[[Any], Node]) -> ov.Model:
    x = opset15.parameter([SAMPLES, *shape], Type.f32)
    return ov.Model([opset15.result(make(x))], [x], "batch")


def compiled(model: ov.Model) -> Callable[[np.ndarray], np.ndarray]:
    function = core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda x: np.array(function([np.ascontiguousarray(x)])[0])


@pytest.fixture
def always(monkeypatch) -> None:
    """A batch split always pays."""
    monkeypatch.setattr(batch_split, "_best_part_count", lambda model, samples, threads: samples)


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("parts", [SAMPLES, 2])
def test_chunks_equal_the_whole(monkeypatch, name, parts):
    monkeypatch.setattr(batch_split, "_best_part_count", lambda model, samples, threads: parts)
    shape, make = APART[name]
    x = floats(SAMPLES, *shape, seed=1)
    expected = compiled(model_of(shape, make))(x)
    model = model_of(shape, make)
    assert batch_split.split_batch(model, 2) == parts
    size = SAMPLES // parts
    run = compiled(model)
    found = [run(x[i : i + size]) for i in range(0, SAMPLES, size)]
    assert len({part.shape for part in found}) == 1
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MIXED)
def test_models_that_mix_samples_are_not_split(always, name):
    model = model_of(*MIXED[name])
    before = [str(node) for node in model.get_ordered_ops()]
    assert batch_split.split_batch(model, 2) == 1
    assert [str(node) for node in model.get_ordered_ops()] == before


# -- cost ----------------------------------------------------------------------------------------


def convolutions(samples: int, channels: int = 128) -> ov.Model:
    x = opset15.parameter([samples, channels, 16, 16], Type.f32)
    filter_ = weights(channels, channels, 3, 3)
    node = opset15.convolution(x, filter_, [1, 1], [1, 1], [1, 1], [1, 1])
    return ov.Model([opset15.result(node)], [x], "convolutions")


@pytest.mark.parametrize(
    "samples, threads, parts",
    [
        (1, 2, 1),
        (2, 1, 2),
        (2, 2, 2),
        (3, 2, 3),  # both threads share the third
        (5, 2, 5),
        (8, 2, 8),
        (3, 4, 1),  # the fourth thread would be idle
        (6, 4, 6),  # of the last two, two threads share each
        (9, 4, 9),
        (10, 4, 10),
        (4, 16, 4),  # four threads for each
        (12, 16, 4),
        (15, 16, 15),
    ],
)
def test_number_of_chunks(samples, threads, parts):
    assert batch_split.split_batch(convolutions(samples), threads) == parts


def test_small_samples_share_a_chunk():
    """A sample of 589824 multiplications is too small for a request."""
    model = convolutions(256, channels=16)
    parts = batch_split.split_batch(model, 2)
    assert 1 < parts < 256
    assert batch_split._multiplications(model) >= SETTINGS.min_multiplications_per_chunk


def test_models_without_convolutions_are_not_split():
    x = opset15.parameter([8, 512], Type.f32)
    model = ov.Model([opset15.result(by(x, weights(512, 512)))], [x], "product")
    assert batch_split.split_batch(model, 2) == 1


# -- programs ------------------------------------------------------------------------------------


@pytest.fixture
def chunk_counts(monkeypatch) -> list[int]:
    """Records the number of chunks of each function built; every sample is large enough."""
    found: list[int] = []
    part = batch_split.split_batch

    def spy(model: ov.Model, threads: int, sizes: batch_split.SizeInfo) -> int:
        found.append(part(model, threads, sizes))
        return found[-1]

    monkeypatch.setattr(SETTINGS, "min_multiplications_per_chunk", 1)
    monkeypatch.setattr(batch_split, "split_batch", spy)
    paddle_ngraph.clear_cache()
    return found


@pytest.fixture(params=[1, 2, 3])
def threads(request) -> Iterator[int]:
    before = flags.get("ngraph_num_threads")
    flags.set("ngraph_num_threads", request.param)
    yield request.param
    flags.set("ngraph_num_threads", before)


@pytest.fixture
def stored(tmp_path) -> Iterator[None]:
    """Stores all functions on disk."""
    before = {name: flags.get(name) for name in ("ngraph_cache_dir", "ngraph_cache_min_ms")}
    flags.set("ngraph_cache_dir", str(tmp_path))
    flags.set("ngraph_cache_min_ms", 0)
    yield
    for name, value in before.items():
        flags.set(name, value)


def network() -> Any:
    """A small residual network over x [-1, 3, 12, 12]: features and classes."""
    x = paddle.static.data("x", [-1, 3, 12, 12], "float32")
    first = F.relu(paddle.nn.Conv2D(3, 8, 3, padding=1)(x))
    second = F.hardswish(paddle.nn.Conv2D(8, 8, 3, padding=1, groups=8)(first))
    pooled = F.max_pool2d(first + second, 2)
    features = F.interpolate(pooled, scale_factor=2, mode="bilinear")
    rows = paddle.flatten(F.adaptive_avg_pool2d(pooled, 2), 1)
    return features, F.softmax(paddle.nn.Linear(32, 5)(rows))


def pictures(samples: int, seed: int = 0) -> np.ndarray:
    return floats(samples, 3, 12, 12, seed=seed)


def test_results_equal_paddles(chunk_counts, threads):
    program = Program(network)
    for seed in range(3):
        program.both(x=pictures(6, seed))
    assert chunk_counts == [6]


@pytest.mark.parametrize("threads", [1, 2, 4], indirect=True)
def test_every_batch_size_is_split(chunk_counts, threads):
    program = Program(network)
    for samples in (4, 1, 2):
        features, classes = program.both(x=pictures(samples))
        assert features.shape[0] == classes.shape[0] == samples
    assert chunk_counts[:2] == [4, 1]


def built() -> int:
    return int(paddle_ngraph.stats()["functions_built"])


def classifier() -> Any:
    """Classes of x [-1, 3, 12, -1], with dynamic batch and width."""
    x = paddle.static.data("x", [-1, 3, 12, -1], "float32")
    found = F.relu(paddle.nn.Conv2D(3, 8, 3, padding=1)(x))
    return paddle.nn.Linear(8, 5)(paddle.flatten(F.adaptive_avg_pool2d(found, 1), 1))


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_several_batch_sizes_are_split(chunk_counts, threads):
    program = Program(classifier)
    batches = [8, 4, 6, 2, 10, 12, 5, 3]
    for samples in batches:
        program.both(x=pictures(samples))
    # The fifth size makes the batch dynamic; later sizes use that function.
    assert chunk_counts == [*batches[: SETTINGS.static_batches_before_dynamic], 1]
    assert built() == SETTINGS.static_batches_before_dynamic + 1


def reader() -> Any:
    """Characters of x [-1, 3, 12, -1], one text line each: the output width follows from x."""
    x = paddle.static.data("x", [-1, 3, 12, -1], "float32")
    found = F.relu(paddle.nn.Conv2D(3, 8, (3, 4), stride=(1, 2), padding=1)(x))
    places = paddle.transpose(F.avg_pool2d(found, (12, 1)).squeeze(2), [0, 2, 1])
    mixed = F.softmax(paddle.matmul(places, places, transpose_y=True)) @ places
    rows = paddle.nn.Linear(8, 20)(paddle.reshape(mixed, [-1, 8]))
    shape = paddle.shape(places)
    letters = paddle.reshape(rows, [shape[0], shape[1], 20])
    return F.softmax(letters), paddle.mean(letters, axis=[1, 2])


def lines(samples: int, width: int) -> np.ndarray:
    return floats(samples, 3, 12, width, seed=width)


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("network", [classifier, reader])
def test_dynamic_widths_are_split(chunk_counts, threads, network):
    program = Program(network)
    met = [(8, 12), (4, 16), (2, 20), (6, 24), (6, 13), (6, 13), (2, 31), (6, 80)]
    for samples, width in met:
        program.both(x=lines(samples, width))
    # From the third size on, there is a function for each batch size.
    assert chunk_counts == [8, 4, 2, 6]
    assert built() == len(chunk_counts)
    assert paddle_ngraph.stats()["engine_runs"] == len(met)


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_a_batch_of_many_sizes_becomes_dynamic(chunk_counts, threads, monkeypatch):
    monkeypatch.setattr(SETTINGS, "max_static_batches", 2)
    program = Program(classifier)
    for samples, width in [(8, 12), (4, 16), (2, 20), (6, 24), (10, 28), (12, 32), (14, 14)]:
        program.both(x=lines(samples, width))
    # The batch of (10, 28) is dynamic, and its function serves the others.
    assert chunk_counts == [8, 4, 2, 6, 1]
    assert built() == len(chunk_counts)


def with_the_batch() -> Any:
    """Values that depend on the batch size, and would differ in chunks."""
    x = paddle.static.data("x", [-1, 3, 12, -1], "float32")
    found = paddle.nn.Conv2D(3, 8, 3, padding=1)(x)
    return found / paddle.cast(paddle.shape(x)[0], "float32")


def torn() -> Any:
    """Rows of several samples each, at widths equal to the batch size."""
    x = paddle.static.data("x", [-1, 3, 12, -1], "float32")
    found = paddle.nn.Conv2D(3, 8, 3, padding=1)(x)
    return paddle.reshape(paddle.transpose(found, [3, 0, 1, 2]), [paddle.shape(x)[0], -1])


@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize("network", [with_the_batch, torn])
def test_values_that_depend_on_the_batch(chunk_counts, threads, network):
    program = Program(network)
    for samples, width in [(8, 12), (4, 16), (6, 6), (6, 12), (6, 18), (5, 10), (6, 7), (4, 4)]:
        program.both(x=lines(samples, width))


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_split_dynamic_functions_are_loaded_from_disk(chunk_counts, threads, stored):
    met = [(8, 12), (4, 16), (6, 24)]
    expected = [Program(reader).both(x=lines(*each)) for each in met][-1]
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    program = Program(reader)
    for samples, width in [*met, (6, 31)]:
        results = program.both(x=lines(samples, width))
        if (samples, width) == met[-1]:
            for one, other in zip(expected, results):
                np.testing.assert_array_equal(one, other)
    assert paddle_ngraph.stats()["functions_loaded"] == len(met)
    assert built() == 0


def side_by_side(
    programs: list[Program], feeds: list[np.ndarray], expected: list[Any]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each result of twenty runs of each program in a thread, and the expected one."""

    def run(number: int) -> list[list[np.ndarray]]:
        return [programs[number].run_as_is(x=feeds[number]) for _ in range(20)]

    with paddle_ngraph.use_ngraph(), ThreadPoolExecutor(len(feeds)) as pool:
        for runs, wanted in zip(pool.map(run, range(len(feeds))), expected):
            for results in runs:
                yield from zip(results, wanted)


@pytest.mark.slow("runs several threads for a while")
def test_split_dynamic_functions_run_from_several_threads(chunk_counts, threads):
    program = Program(reader)
    for samples, width in [(6, 12), (6, 16)]:
        program.both(x=lines(samples, width))
    programs = [Program(reader) for _ in range(4)]
    feeds = [lines(6, width) for width in (20, 24, 28, 33)]
    expected = [each.both(x=feed) for each, feed in zip(programs, feeds)]

    for one, other in side_by_side(programs, feeds, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert 6 in chunk_counts[2:]


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_batches_of_stored_functions_are_split(chunk_counts, threads, stored):
    for samples in (8, 4):
        Program(classifier).both(x=pictures(samples))
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    program = Program(classifier)
    for samples in (8, 4, 6, 2):
        program.both(x=pictures(samples))
    assert paddle_ngraph.stats()["functions_loaded"] == 2
    assert chunk_counts == [8, 4, 6, 2]


def test_loaded_from_disk(chunk_counts, threads, stored):
    expected = Program(network).both(x=pictures(6))
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    results = Program(network).run(x=pictures(6))
    assert paddle_ngraph.stats()["functions_loaded"] == 1
    assert chunk_counts == [6]
    for one, other in zip(expected, results):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("threads", [1, 2, 4], indirect=True)
def test_weights_may_change(chunk_counts, threads):
    program = Program(network)
    program.both(x=pictures(4))
    weights = program.scope.find_var("conv2d_0.w_0").get_tensor()
    weights.set(np.array(weights) * 2, paddle.CPUPlace())
    program.both(x=pictures(4))
    assert chunk_counts == [4, 1]  # written weights are inputs, which all samples share


def test_runs_from_several_threads(chunk_counts, threads):
    feeds = [pictures(6, seed) for seed in range(4)]
    programs = [Program(network) for _ in feeds]
    expected = [program.both(x=feed) for program, feed in zip(programs, feeds)]

    for one, other in side_by_side(programs, feeds, expected):
        np.testing.assert_array_equal(one, other)
    assert set(chunk_counts) == {6}


# -- leftover chunks ------------------------------------------------------------------------------


def filters(width: int = 64) -> Any:
    """Convolutions over x [-1, 3, 32, 32], large enough for more than one thread."""
    x = paddle.static.data("x", [-1, 3, 32, -1], "float32")
    found = F.relu(paddle.nn.Conv2D(3, width, 3, padding=1)(x))
    found = F.relu(paddle.nn.Conv2D(width, width, 3, padding=1)(found))
    return paddle.nn.Linear(width, 5)(paddle.flatten(F.adaptive_avg_pool2d(found, 1), 1))


def images(samples: int, width: int = 32, seed: int = 0) -> np.ndarray:
    return floats(samples, 3, 32, width, seed=seed)


def shared_out() -> int:
    """Returns the number of runs in which all threads shared the leftover chunk."""
    return int(paddle_ngraph.stats()["rests_shared_out"])


RUNS = 4


@pytest.mark.parametrize(
    "samples, threads, is_left",
    [
        (5, 2, True),
        (3, 2, True),
        (6, 2, False),
        (1, 2, False),
        (5, 1, False),
        (5, 3, False),  # the last two have a thread each, as the others had
        (7, 3, True),
        (6, 4, True),
        (8, 4, False),
    ],
    indirect=["threads"],
)
def test_all_threads_share_the_leftover_chunk(chunk_counts, samples, threads, is_left):
    program = Program(filters)
    for run_ in range(RUNS):
        program.both(x=images(samples, seed=run_))
    # The first run has no model for the leftover chunk yet.
    assert shared_out() == (RUNS - 1 if is_left else 0)
    assert built() == 1


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_leftover_chunks_of_dynamic_functions(chunk_counts, threads):
    program = Program(filters)
    for width in (16, 20):
        program.both(x=images(5, width))
    assert shared_out() == 0
    for width in (24, 28, 33, 24):
        program.both(x=images(5, width))
    assert built() == 3
    assert shared_out() == 3


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_leftover_chunks_of_stored_functions(chunk_counts, threads, stored):
    Program(filters).both(x=images(5))
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()
    program = Program(filters)
    for _ in range(RUNS):
        program.both(x=images(5))
    assert paddle_ngraph.stats()["functions_loaded"] == 1
    assert (built(), shared_out()) == (0, RUNS - 1)


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_leftover_chunks_of_functions_built_in_the_background(chunk_counts, threads):
    before = flags.get("ngraph_background_compile")
    flags.set("ngraph_background_compile", "1")
    try:
        program = Program(filters)
        expected = program.run(engine=False, x=images(5))
        program.run(x=images(5))
        assert background_compile.wait(60)
        for _ in range(RUNS):
            np.testing.assert_allclose(program.run(x=images(5))[0], expected[0], 1e-5, 1e-6)
    finally:
        flags.set("ngraph_background_compile", before)
    assert paddle_ngraph.stats()["functions_built_in_background"] == 1
    assert shared_out() == RUNS - 1


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_leftover_chunks_after_clear_cache(chunk_counts, threads):
    program = Program(filters)
    for _ in range(2):
        for _ in range(2):
            program.both(x=images(5))
        paddle_ngraph.clear_cache()
    assert (built(), shared_out()) == (2, 2)


@pytest.mark.slow("runs several threads for a while")
@pytest.mark.parametrize("threads", [2], indirect=True)
def test_leftover_chunks_run_from_several_threads(chunk_counts, threads):
    feeds = [images(5, seed=seed) for seed in range(4)]
    programs = [Program(filters) for _ in feeds]
    expected = [program.both(x=feed) for program, feed in zip(programs, feeds)]

    def run(number: int) -> list[list[np.ndarray]]:
        return [programs[number].run_as_is(x=feeds[number]) for _ in range(20)]

    with paddle_ngraph.use_ngraph(), ThreadPoolExecutor(len(feeds)) as pool:
        for runs, wanted in zip(pool.map(run, range(len(feeds))), expected):
            for (found,) in runs:
                np.testing.assert_allclose(found, wanted[0], rtol=1e-5, atol=1e-6)
    assert shared_out() > 0


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize("samples, kept", [(4, 2), (5, 1)])
def test_weights_of_leftover_chunks_count(chunk_counts, threads, samples, kept):
    before = flags.get("ngraph_cache_mb")
    flags.set("ngraph_cache_mb", 5)  # 2.3 MB each
    try:
        for program in (Program(lambda: filters(256)), Program(lambda: filters(248))):
            for _ in range(2):
                program.both(x=images(samples, 8))
        assert paddle_ngraph.cache_info().currsize == kept
    finally:
        flags.set("ngraph_cache_mb", before)
    assert (shared_out() > 0) == (samples == 5)


def test_batch_statistics_prevent_the_split(chunk_counts):
    def build() -> Any:
        x = paddle.static.data("x", [-1, 3, 12, 12], "float32")
        found = paddle.nn.Conv2D(3, 8, 3)(x)
        return found - paddle.mean(found, axis=0, keepdim=True)

    Program(build).both(x=pictures(6))
    assert chunk_counts == [1]


def test_training_prevents_the_split(chunk_counts):
    def build() -> Any:
        x = paddle.static.data("x", [-1, 3, 12, 12], "float32")
        loss = paddle.mean(F.relu(paddle.nn.Conv2D(3, 8, 3)(x)))
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    program = Program(build)
    program.run(x=pictures(6))
    assert paddle_ngraph.stats()["engine_runs"] > 0, "the engine did not run"
    assert set(chunk_counts) == {1}
