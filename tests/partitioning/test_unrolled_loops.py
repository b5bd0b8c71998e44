"""Decoders whose loops are unrolled: steps compute what earlier steps have computed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import inference, nn

import paddle_ngraph
from paddle_ngraph.partitioning import packed_layers, unrolled_loops
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first
from paddle_ngraph.partitioning.analysis.value_facts import ValueFacts
from tests.dynamic import dynamic_mode
from tests.programs import Program, floats
from tests.zips import zip_equal

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

WIDTH, WORDS, STEPS = 6, 5, 4
KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.SimpleRNN}


class Decoder(nn.Layer):
    """An attention decoder that computes all words again in each step, in eval mode.

    Args:
        kind: The recurrent layer, one of ``KINDS``; empty: none, only operators by position.
        layers: The number of its layers.
        options: Other arguments of it.
    """

    def __init__(self, kind: str = "LSTM", layers: int = 2, **options: Any) -> None:
        super().__init__()
        self.recurrent = KINDS[kind](WIDTH, WIDTH, layers, **options) if kind else None
        out = WIDTH * (2 if options.get("direction") == "bidirect" else 1)
        self.key, self.query = nn.Conv2D(3, WIDTH, 3, padding=1), nn.Linear(out, WIDTH)
        self.score, self.logits = nn.Linear(WIDTH, 1), nn.Linear(out + 3, WORDS)
        self.norm, self.words = nn.LayerNorm(out), nn.Embedding(WORDS, WIDTH)
        self.eval()

    def hidden(self, read: Any) -> Any:
        """The sequence that a step reads, [N, T, WIDTH]."""
        return read if self.recurrent is None else self.norm(self.recurrent(read)[0])

    def attend(self, found: Any, picture: Any) -> Any:
        """The logits of all words, [N, T, WORDS]."""
        query = self.query(found).unsqueeze([3, 4])
        sums = paddle.tanh(self.key(picture).unsqueeze(1) + query).transpose([0, 1, 3, 4, 2])
        scores = self.score(sums)
        rows, length, high, wide, _ = paddle.shape(scores)
        weights = F.softmax(scores.reshape([rows, length, -1]))
        weights = weights.reshape([rows, length, 1, high, wide])
        seen = paddle.sum(picture.unsqueeze(1) * weights, [3, 4])
        return self.logits(paddle.concat([found, seen], 2))

    def begin(self, picture: Any) -> Any:
        """The words before the first step, [N, STEPS + 1, WIDTH]."""
        rows = picture.shape[0] if picture.shape[0] > 0 else paddle.shape(picture)[0]
        word = self.words(paddle.full([rows], 1, "int64")).unsqueeze(1)
        return paddle.expand(word, [rows, STEPS + 1, WIDTH])

    def forward(self, picture: Any) -> Any:
        read, found = self.begin(picture), []
        for step in range(STEPS):
            found.append(F.softmax(self.attend(self.hidden(read), picture)[:, step]))
            if step + 1 < STEPS:
                read[:, step + 1] = self.words(paddle.argmax(found[-1], axis=1))
        return paddle.stack(found, 1)


def program_of(network: Callable[[], Callable[[Any], Any]], size: Any = (-1, 3, -1, -1)) -> Program:
    def build() -> Any:
        return network()(paddle.static.data("picture", list(size), "float32"))

    return Program(build)


class Rewritten(NamedTuple):
    """A program in front of its partition.

    Attributes:
        types: The number of operators of each type.
        steps: The number of steps of all recurrent layers.
        text: The program.
    """

    types: Counter[str]
    steps: int
    text: str


def checked(program: Program, **feeds: np.ndarray) -> Rewritten:
    """Compares results of the engine with native ones; returns the program that the engine ran."""
    found = []

    def record(main: Any) -> None:
        compute(main)
        ops = next(iter(blocks_outermost_first(main))).ops
        steps = sum(op.operand_source(0).shape[0] for op in ops if op.name() == "pd_op.rnn")
        types = Counter(op.name().removeprefix("pd_op.") for op in ops)
        found.append(Rewritten(types, steps, str(main)))
        compute(main)
        assert str(main) == found[-1].text, "the rewritten program is rewritten again"

    compute = unrolled_loops.compute_steps_once
    with patch.object(unrolled_loops, "compute_steps_once", record), packed_layers.disabled():
        program.both(**feeds)
    return found[-1]


def on_pictures(program: Program) -> Rewritten:
    """:func:`checked`, for two batches and sizes of pictures."""
    found = checked(program, picture=floats(3, 3, 2, 5))
    program.both(picture=floats(1, 3, 4, 5, seed=1))
    return found


@pytest.mark.parametrize("kind", [*KINDS, ""])
def test_each_step_is_computed_once(kind: str) -> None:
    found = on_pictures(program_of(lambda: Decoder(kind, 1 if kind == "GRU" else 2)))
    # A step of the recurrent layer for each word; three products of one position for each.
    assert found.types["conv2d"] == 1 and found.types["matmul"] == 3 * STEPS
    assert found.steps == (STEPS if kind else 0)


def read_elsewhere(network: Decoder, picture: Any) -> Any:
    """Each step also reads the mean of all positions: none can be left out."""
    read, found = network.begin(picture), []
    for step in range(STEPS):
        hidden = network.hidden(read)
        found.append(network.attend(hidden, picture)[:, step] + paddle.mean(hidden))
        if step + 1 < STEPS:
            read[:, step + 1] = network.words(paddle.argmax(found[-1], axis=1))
    return found


def of_all_positions(network: Decoder, picture: Any) -> Any:
    """All positions of one product are read."""
    logits = network.attend(network.begin(picture), picture)
    logits = network.logits(paddle.concat([logits, logits[:, :, :4]], 2))
    return [logits[:, step] for step in range(STEPS)]


def written_behind(network: Decoder, picture: Any) -> Any:
    """Steps write what an earlier step has read, twice, and by negative and several positions."""
    read, found = network.begin(picture), []
    for step in range(STEPS):
        found.append(network.attend(network.hidden(read), picture)[:, max(0, 2 - step)])
        word = network.words(paddle.argmax(found[-1], axis=1))
        read[:, 0] = word
        read[:, -2] = word * 0.5
        read[:, 1:3] = word.unsqueeze(1) * 0.1 if step == 1 else word.unsqueeze(1)
        read[:, step] = word * 0.2
    return found


def mixed(network: Decoder, picture: Any) -> Any:
    """Each position depends on later ones."""
    read, found = network.begin(picture), []
    for step in range(STEPS):
        hidden = network.hidden(read)
        hidden = hidden + paddle.flip(paddle.cumsum(paddle.flip(hidden, [1]), 1), [1])
        found.append(network.attend(hidden, picture)[:, step])
        read[:, step + 1] = network.words(paddle.argmax(found[-1], axis=1))
    return found


def over_positions(network: Decoder, picture: Any) -> Any:
    """Softmax, a sum and a product over positions."""
    read, found = network.begin(picture), []
    for step in range(STEPS):
        hidden = network.hidden(read)
        weights = F.softmax(hidden, axis=1) + hidden.sum(1, keepdim=True)
        attended = paddle.matmul(F.softmax(paddle.matmul(hidden, weights, False, True)), hidden)
        found.append(network.attend(attended, picture)[:, step])
        read[:, step + 1] = network.words(paddle.argmax(found[-1], axis=1))
    return found


# How many steps of the recurrent layer are left, all of them where a step reads other positions;
# None: any number.
OTHERS: dict[str, tuple[Callable[[Decoder, Any], Any], int | None]] = {
    "read elsewhere": (read_elsewhere, STEPS * (STEPS + 1)),
    "of all positions": (of_all_positions, 0),
    "mixed": (mixed, STEPS * (STEPS + 1)),
    "over positions": (over_positions, STEPS * (STEPS + 1)),
    "written behind": (written_behind, None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_positions_that_depend_on_others_are_computed(name: str) -> None:
    loop, steps = OTHERS[name]

    class Network(Decoder):
        def forward(self, picture: Any) -> Any:
            return loop(self, picture)

    found = on_pictures(program_of(lambda: Network("LSTM", 1)))
    assert found.types["conv2d"] == 1
    assert steps in (None, found.steps)


# Operators on a sequence [N, T, WIDTH], each position by itself or not.
FORMS: list[Callable[[Any], Any]] = [
    lambda x: paddle.cumsum(x, 1),
    lambda x: paddle.flip(x, [1]),
    lambda x: paddle.roll(x, 1, 1),
    lambda x: x + paddle.max(x, axis=1, keepdim=True),
    lambda x: x * paddle.max(x, axis=-1, keepdim=True),
    lambda x: x + x[:, -1:],
    lambda x: x - paddle.mean(x, [1, 2], keepdim=True),
    lambda x: x + paddle.expand(x[:, 1:2], [-1, STEPS + 1, -1]),
    lambda x: paddle.concat([x[:, 1:], x[:, :1]], 1),
    lambda x: paddle.concat([x[:, :, 2:], x[:, :, :2]], 2),
    lambda x: paddle.transpose(F.softmax(paddle.transpose(x, [0, 2, 1])), [0, 2, 1]),
    lambda x: paddle.squeeze(paddle.tanh(paddle.unsqueeze(x, [0, 3])), [0, 3]),
    lambda x: paddle.reshape(paddle.tanh(paddle.reshape(x, [-1, WIDTH])), [-1, STEPS + 1, WIDTH]),
    lambda x: paddle.reshape(paddle.reshape(x, [0, 0, 2, 3]).transpose([0, 1, 3, 2]), [0, 0, -1]),
    lambda x: paddle.reshape(paddle.transpose(x, [1, 0, 2]), [-1, STEPS + 1, WIDTH]),
    lambda x: paddle.reshape(paddle.transpose(x, [0, 2, 1]), [0, STEPS + 1, WIDTH]),
    lambda x: paddle.matmul(paddle.matmul(x, x, False, True), x) * 0.1,
    lambda x: paddle.squeeze(paddle.matmul(x.unsqueeze(2), x.unsqueeze(3)), 3) * x * 0.1,
    lambda x: paddle.where(x > 0, x, paddle.mean(x, 1, keepdim=True)),
    lambda x: F.layer_norm(x, [STEPS + 1, WIDTH]),
    lambda x: F.layer_norm(x, [WIDTH]),
    lambda x: paddle.stack(list(paddle.unbind(x, 1))[::-1], 1),
    lambda x: paddle.sort(x, axis=1),
]


@pytest.mark.parametrize("seed", range(6))
def test_a_random_decoder_computes_the_same(seed: int) -> None:
    draw = np.random.default_rng(seed)
    forms = [FORMS[n] for n in draw.permutation(len(FORMS))[:4]]

    class Network(Decoder):
        def hidden(self, read: Any) -> Any:
            read = forms[1](forms[0](read)) if seed % 2 else read
            return forms[3](forms[2](super().hidden(read)))

    on_pictures(program_of(lambda: Network(["", "LSTM", "GRU"][seed % 3], 1)))


def test_a_layer_that_reads_backwards_computes_all_steps() -> None:
    found = on_pictures(program_of(lambda: Decoder("LSTM", 1, direction="bidirect")))
    assert found.steps == STEPS * (STEPS + 1) and found.types["conv2d"] == 1


@pytest.mark.parametrize("written", [1, 3, -1])
def test_sizes_are_those_that_are_fed(written: int) -> None:
    """A feed may be longer than declared: -1 is another position then."""

    def build() -> Any:
        x = paddle.static.data("x", [2, 4, WIDTH], "float32") * 1.5
        first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        found = []
        for step in range(3):
            x[:, written] = paddle.tanh(x[:, step])
            found.append(second(first(x))[:, -1])
        return found

    program = Program(build)
    for length in (4, 6):
        program.both(x=floats(2, length, WIDTH, seed=length))


# Operators of x [N, STEPS, WIDTH] and y [M, WIDTH, WIDTH], of which N or M may be 1.
BROADCASTS: dict[str, Callable[[Any, Any], Any]] = {
    "matmul": lambda x, y: paddle.matmul(x, y),
    "transposed": lambda x, y: paddle.matmul(x, y, transpose_y=True),
    "add": lambda x, y: x + y[:, :1],
    "where": lambda x, y: paddle.where(y[:, :1] > 0, x, y[:, 1:2]),
}


@pytest.mark.parametrize("name", BROADCASTS)
@pytest.mark.parametrize("size_of_x", [False, True])
def test_a_size_is_that_of_no_operand_if_one_is_broadcast(name: str, size_of_x: bool) -> None:
    """A reshape by the size of one operand moves positions to other rows where it is 1."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, 1, WIDTH], "float32")
        y = paddle.static.data("y", [-1, WIDTH, WIDTH], "float32")
        network = nn.Linear(WIDTH, WIDTH)
        both = BROADCASTS[name](network(paddle.expand(x, [-1, STEPS, WIDTH])), y)
        added = paddle.arange(STEPS, dtype="float32").unsqueeze(1)
        rows = paddle.shape(x if size_of_x else y)[0]
        found = paddle.reshape(network(both + added), [rows, -1, WIDTH])
        return [found[:, 0], found[:, 2]]

    program = Program(build)
    for n, m in ((3, 3), (1, 3), (3, 1), (1, 1)):
        program.both(x=floats(n, 1, WIDTH, seed=n), y=floats(m, WIDTH, WIDTH, seed=m))


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        *((258, "int8"), (-254, "int8"), (65538, "int16"), (2.9, "int64")),
        *((float("nan"), "int32"), (float("inf"), "int64"), (1e30, "int64")),
    ],
)
def test_constants_are_numbers_of_their_dtype(number: float, dtype: str) -> None:
    def build() -> Any:
        x = paddle.static.data("x", [-1, 1, WIDTH], "float32")
        network, constant = nn.Linear(WIDTH, WIDTH), paddle.full([1], number, dtype)
        found = network(network(paddle.expand(x, [-1, STEPS, WIDTH])))
        found = found + paddle.arange(STEPS, dtype="float32").unsqueeze(1)
        read = [found[:, 0], constant + constant]
        if abs(number) < 2**40:  # a position
            start = paddle.cast(constant, "int64")
            read.append(paddle.slice(found, [1], start, start + 1))
            read.append(paddle.slice(found, [1], start, paddle.full([1], 3, "int64")))
        return read

    program = Program(build)
    program.both(x=floats(2, 1, WIDTH))


class EqualOutputs(nn.Layer):
    """Reads of one position, with and without its axis, and equal products."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        found = self.linear(self.linear(paddle.expand(x.unsqueeze(1), [-1, STEPS, WIDTH])))
        reads = [found[:, 0:1], found[:, 0:1], found[:, 1], found[:, 1]]
        return *reads, self.linear(x), self.linear(x)


def test_equal_outputs_are_separate_tensors() -> None:
    with dynamic_mode(), paddle.no_grad():
        layer = EqualOutputs()
        layer.eval()
        x = paddle.to_tensor(floats(2, WIDTH))
        expected = [each.numpy() for each in layer(x)]
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle_ngraph.use_ngraph():
            found = paddle.jit.to_static(layer, full_graph=True)(x)
        assert paddle_ngraph.stats()["engine_runs"] > before
        for changed, other, result in zip(found[::2], found[1::2], expected[1::2]):
            changed.add_(paddle.ones_like(changed))
            np.testing.assert_allclose(other.numpy(), result, rtol=1e-5, atol=1e-6)


def test_equal_outputs_of_a_predictor_have_names(tmp_path: Path) -> None:
    with dynamic_mode():
        layer = EqualOutputs()
        layer.eval()
        x = floats(2, WIDTH)
        expected = [each.numpy() for each in layer(paddle.to_tensor(x))]
        spec = paddle.static.InputSpec([None, WIDTH], "float32")
        paddle.jit.save(layer, str(tmp_path / "model"), input_spec=[spec])
    files = (str(tmp_path / f"model.{ending}") for ending in ("json", "pdiparams"))
    before = paddle_ngraph.stats()["engine_runs"]
    with paddle_ngraph.use_ngraph():
        predictor = inference.create_predictor(inference.Config(*files))
        predictor.get_input_handle(predictor.get_input_names()[0]).copy_from_cpu(x)
        predictor.run()
        names = predictor.get_output_names()
        found = [predictor.get_output_handle(name).copy_to_cpu() for name in names]
    assert paddle_ngraph.stats()["engine_runs"] > before
    for one, other in zip_equal(expected, found):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_tensors_without_axes_are_reduced() -> None:
    """Axes 0 and -1 of a tensor of rank 0, which has none, name it whole."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, 1, WIDTH], "float32")
        network = nn.Linear(WIDTH, WIDTH)
        found = network(network(paddle.expand(x, [-1, STEPS, WIDTH])))
        mean = paddle.mean(network(x))
        scalars = [form(mean) for form in SCALAR_FORMS]
        return [found[:, 0], *scalars]

    found = checked(Program(build), x=floats(2, 1, WIDTH))
    assert found.types["matmul"] == 3


def test_the_searches_of_a_loop_grow_with_its_positions() -> None:
    """Each position is searched for once, although each step reads what all earlier ones wrote."""

    def calls(steps: int) -> int:
        def build() -> Any:
            p = paddle.static.data("p", [-1, WIDTH], "float32")
            network = nn.Linear(WIDTH, WIDTH)
            read, found = paddle.expand(p.unsqueeze(1), [-1, steps + 1, WIDTH]), []
            for step in range(steps):
                found.append(F.softmax(paddle.cumsum(network(read), 1)[:, step]))
                read = paddle.static.setitem(read, (slice(None), step + 1), found[-1])
            return [found[-1], *[network(read)[:, step] for step in range(steps)]]

        with patch.object(ValueFacts, "integers", autospec=True, side_effect=integers) as counted:
            Program(build).both(p=floats(2, WIDTH))
        return counted.call_count

    integers = ValueFacts.integers
    # The number of positions is four times as large.
    assert calls(16) < 6 * calls(8)


def test_a_network_is_deeper_than_the_stack_of_python() -> None:
    depth = sys.getrecursionlimit() // 5

    def build() -> Any:
        x = paddle.static.data("x", [-1, 1, WIDTH], "float32")
        network = nn.Linear(WIDTH, WIDTH)
        found = paddle.expand(x, [-1, STEPS, WIDTH])
        for _ in range(depth):
            found = network(found)
        return [found[:, 0], found[:, 1]]

    found = checked(Program(build), x=floats(2, 1, WIDTH))
    assert found.types["matmul"] == 2 * depth  # products of one position


# Operators of a tensor of rank 0 that name an axis.
SCALAR_FORMS: list[Callable[[Any], Any]] = [
    lambda x: paddle.sum(x, axis=0),
    lambda x: paddle.sum(x, axis=-1, keepdim=True),
    lambda x: paddle.max(x, axis=0),
    lambda x: paddle.mean(x, axis=-1),
    lambda x: paddle.squeeze(x, axis=0),
    lambda x: paddle.argmax(x, axis=0),
    lambda x: F.softmax(x, axis=0),
    lambda x: paddle.unsqueeze(x, [0, 1]),
]


def test_gradients_keep_all_positions() -> None:
    def build() -> Any:
        x = paddle.static.data("x", [2, STEPS, WIDTH], "float32")
        network = nn.Linear(WIDTH, WIDTH)
        read, found = paddle.expand(network(x[:, :1]), [2, STEPS, WIDTH]), []
        for step in range(STEPS):
            found.append(network(read)[:, step])
            write = (slice(None), slice(step, step + 1))
            read = paddle.static.setitem(read, write, found[-1].unsqueeze(1))
        loss = paddle.mean(paddle.stack(found) ** 2)
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    x, found = floats(2, STEPS, WIDTH), []
    for engine in (False, True):
        program = Program(build)
        runs = [program.run(engine, x=x)[0] for _ in range(2)]
        found.append([*runs, program.variable("linear_0.w_0")])
    for one, other in zip_equal(*found):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
