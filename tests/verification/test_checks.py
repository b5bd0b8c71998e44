"""``FLAGS_ngraph_verify`` compares runs of the engine with Paddle's kernels, in every frontend."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphError, _core
from paddle_ngraph.conversion import model_inputs, registry
from paddle_ngraph.ir.graph import Graph, TensorSpec
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.verification import checks
from paddle_ngraph.verification.comparison import SubgraphRun, compare
from paddle_ngraph.verification.evaluation import tensor_of
from tests.dynamic import dynamic_mode
from tests.ops.test_quantization import dequantize_linear, quantize_linear
from tests.programs import Program, at_once, floats
from tests.verification.planted import (
    Fault,
    dropped_update,
    negated,
    planted,
    reversed_rows,
    scaled,
)


@contextmanager
def verified(every: int = 1, time_ratio: float = math.inf) -> Iterator[None]:
    """Verifies one run in ``every``, with this time for judgements in later runs."""
    checks.reset()
    ratio_before = SETTINGS.max_judgement_time_ratio
    SETTINGS.max_judgement_time_ratio = time_ratio
    names = ["FLAGS_ngraph_verify", "FLAGS_ngraph_background_compile"]
    before = paddle.get_flags([*names, "FLAGS_ngraph_min_interval_us"])
    paddle.set_flags(
        {
            "FLAGS_ngraph_verify": every,
            "FLAGS_ngraph_background_compile": "0",
            "FLAGS_ngraph_min_interval_us": 0,
        }
    )
    try:
        yield
    finally:
        SETTINGS.max_judgement_time_ratio = ratio_before
        paddle.set_flags(before)


def training() -> Any:
    x = paddle.static.data("x", [-1, 6])
    hidden = F.dropout(F.gelu(paddle.nn.Linear(6, 8)(x)), 0.4)
    hidden = paddle.nn.LayerNorm(8)(hidden)
    loss = paddle.mean((paddle.nn.Linear(8, 1)(F.tanh(hidden)) - 0.3) ** 2)
    paddle.optimizer.Adam(0.02).minimize(loss)
    return loss


def images() -> Any:
    x = paddle.static.data("x", [-1, 3, 8, 8])
    hidden = F.relu(paddle.nn.BatchNorm2D(4)(paddle.nn.Conv2D(3, 4, 3)(x)))
    pooled = F.avg_pool2d(F.max_pool2d(hidden, 2), 3)
    logits = paddle.nn.Linear(4, 5)(paddle.flatten(pooled, 1))
    loss = F.cross_entropy(logits, paddle.argmax(logits, 1))
    paddle.optimizer.Momentum(0.05).minimize(loss)
    return loss


def losses(build: Callable[[], Any], shape: tuple[int, ...], steps: int = 3) -> list[float]:
    program = Program(build)
    paddle.seed(11)
    results = [float(program.run(x=floats(*shape))[0]) for _ in range(steps)]
    assert paddle_ngraph.stats()["engine_runs"]
    return results


@pytest.mark.parametrize(("build", "shape"), [(training, (9, 6)), (images, (4, 3, 8, 8))])
def test_verified_training_is_that_of_the_engine_to_the_last_bit(
    build: Callable[[], Any], shape: tuple[int, ...]
) -> None:
    expected = losses(build, shape)
    with verified():
        assert losses(build, shape) == expected
    assert checks.log.checked == 3
    assert (checks.log.wrong, checks.log.unchecked) == (0, {})


def test_one_run_in_three_is_verified() -> None:
    with verified(every=3):
        losses(training, (5, 6), steps=7)
    assert checks.log.checked == 3


FAULTS: list[tuple[Callable[[], Any], tuple[int, ...], str, Fault]] = [
    (training, (9, 6), "gelu", negated),
    (training, (9, 6), "layer_norm", scaled),
    (training, (9, 6), "matmul_grad", reversed_rows),
    (training, (9, 6), "tanh_grad", scaled),
    (training, (9, 6), "dropout_grad", negated),
    (training, (9, 6), "adam_", dropped_update),
    (images, (4, 3, 8, 8), "conv2d", scaled),
    (images, (4, 3, 8, 8), "relu_grad", negated),
    (images, (4, 3, 8, 8), "relu", negated),
    (images, (4, 3, 8, 8), "pool2d", reversed_rows),
    (images, (4, 3, 8, 8), "momentum_", dropped_update),
]


@pytest.mark.parametrize(
    ("build", "shape", "name", "fault"),
    FAULTS,
    ids=[f"{name}-{fault.__name__}" for _, _, name, fault in FAULTS],
)
def test_a_planted_fault_is_named(
    build: Callable[[], Any], shape: tuple[int, ...], name: str, fault: Fault
) -> None:
    message = f"the engine is wrong at pd_op.{name}, operator"
    with planted(f"pd_op.{name}", fault), verified(), pytest.warns(UserWarning, match=message):
        losses(build, shape, steps=2)
    (mismatch,) = checks.log.mismatches
    assert mismatch.operator == f"pd_op.{name}"
    assert checks.log.wrong == 2  # the second run is counted, and not searched again


def test_other_random_numbers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = model_inputs.FunctionInputs.draw

    def draw(self: Any, distribution: str, a: float, b: float, seed: int, shape: Any) -> Any:
        return original(self, distribution, a, b, seed + 5, shape)

    monkeypatch.setattr(model_inputs.FunctionInputs, "draw", draw)
    with verified(), pytest.warns(UserWarning, match="wrong at pd_op.dropout"):
        losses(training, (9, 6), steps=1)


def test_an_outdated_function_is_distinguished_from_a_wrong_one() -> None:
    def build() -> Any:
        return F.gelu(paddle.static.data("x", [4, 4]))

    program = Program(build)
    with planted("pd_op.gelu", scaled):
        program.run(x=floats(4, 4))
        before = registry._converters["pd_op.gelu"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(registry._converters, "pd_op.gelu", _original(before))
            with verified(), pytest.warns(UserWarning, match="the compiled function is outdated"):
                program.run(x=floats(4, 4))


def _original(entry: Any) -> Any:
    """The converter in which a fault was planted."""
    cells = (cell.cell_contents for cell in entry.function.__closure__)
    return next(cell for cell in cells if isinstance(cell, registry.Converter))


def test_samples_of_many_numbers() -> None:
    def build() -> Any:
        x = paddle.static.data("x", [-1, 700])
        return paddle.sum(F.dropout(F.dropout(x, 0.2), 0.5), 1)

    with verified():
        Program(build).run(x=floats(300, 700))
    assert (checks.log.checked, checks.log.wrong, checks.log.unchecked) == (1, 0, {})


def test_threads_that_sample_at_once() -> None:
    def build() -> Any:
        return F.dropout(paddle.static.data("x", [-1, 500]) * 2.0, 0.3)

    programs = [Program(build) for _ in range(3)]

    def work(number: int) -> None:
        for _ in range(8):
            programs[number].run_as_is(x=floats(20, 500))

    with paddle_ngraph.use_ngraph(), verified():
        work(0)
        assert (checks.log.checked, checks.log.unchecked) == (8, {})
        at_once(work, 3)
    assert checks.log.wrong == 0
    assert checks.log.checked + sum(checks.log.unchecked.values()) == 32
    assert set(checks.log.unchecked) <= {
        "another thread has sampled from the same random generator"
    }


def test_the_first_of_several_wrong_results_is_named() -> None:
    def build() -> Any:
        x = paddle.static.data("x", [4, 4])
        first, second = F.sigmoid(x), paddle.exp(x)
        return [F.softmax(second), first]

    program = Program(build)
    with planted("pd_op.exp", negated), verified(), pytest.warns(UserWarning, match="pd_op.exp,"):
        program.run(x=floats(4, 4))


def test_a_run_that_cannot_be_compared_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise NgraphError("Paddle cannot run it twice\n  [Hint: none]\n  [operator < a > error]")

    monkeypatch.setattr(fallback, "run", broken)
    expected = losses(training, (9, 6))
    with verified():
        assert losses(training, (9, 6)) == expected
    assert checks.log.checked == 0
    assert checks.log.unchecked == {"Paddle cannot run it twice": 3}


def test_a_run_without_memory_for_copies_is_counted() -> None:
    with verified():
        _core.fail_at("copy")
        try:
            losses(training, (9, 6), steps=2)
        finally:
            _core.fail_at("")
    assert checks.log.checked == 0
    assert checks.log.unchecked == {"there is no memory for copies of its inputs and results": 2}


@pytest.mark.parametrize("value", [-3, "-3", "many", 1.5, 2**31])
def test_nonsense_in_the_flag_is_rejected(value: object) -> None:
    with pytest.raises(NgraphError, match=r"FLAGS_ngraph_verify=.*: use 0 for no run"):
        paddle.set_flags({"FLAGS_ngraph_verify": value})


def test_a_result_of_another_dtype_or_shape() -> None:
    x = TensorSpec(0, "bfloat16", (2, 2))
    run = SubgraphRun(Graph([], [x], [], [x], []), [], None)
    ones = np.ones((2, 2), "float32")
    tensors = (
        tensor_of(ones, "float32"),
        tensor_of(ones, "bfloat16"),
        tensor_of(ones[0], "bfloat16"),
    )
    for found, text in zip(tensors, ("float32 [2, 2]", "", "bfloat16 [2]")):
        sentences = [each.text for each in compare(run, [found], [tensors[1]])]
        assert sentences == ([f"{text} instead of bfloat16 [2, 2]"] if text else [])


def loop() -> Any:
    x = paddle.static.data("x", [3, 3])
    n = paddle.full([], 0, "int32")
    _, out = paddle.static.nn.while_loop(
        lambda n, v: n < 4, lambda n, v: (n + 1, F.tanh(v) + paddle.matmul(v, x)), [n, x]
    )
    return out


def branch() -> Any:
    x = paddle.static.data("x", [3, 3])
    return paddle.static.nn.cond(
        paddle.mean(x) > -100, lambda: F.softmax(x) * 2, lambda: F.sigmoid(x)
    )


@pytest.mark.parametrize(("build", "name"), [(loop, "while"), (branch, "if")])
def test_faults_in_loops_and_branches(build: Callable[[], Any], name: str) -> None:
    with verified():
        Program(build).both(x=floats(3, 3))
    assert (checks.log.checked, checks.log.wrong, checks.log.unchecked) == (1, 0, {})
    inner = "pd_op.tanh" if name == "while" else "pd_op.softmax"
    message = f"wrong at {inner}, .* in the body of pd_op.{name}, operator"
    with planted(inner, scaled), verified(), pytest.warns(UserWarning, match=message):
        Program(build).run(x=floats(3, 3))


def test_program_desc_programs() -> None:
    def build() -> Any:
        x = paddle.static.data("x", [-1, 6])
        loss = paddle.mean(F.relu(paddle.nn.Linear(6, 8)(x)))
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    with paddle.pir_utils.OldIrGuard():
        with verified():
            losses(build, (9, 6), steps=2)
        assert (checks.log.checked, checks.log.wrong, checks.log.unchecked) == (2, 0, {})
        message = "wrong at pd_op.relu_grad,"
        with planted("pd_op.relu_grad", scaled), verified(), pytest.warns(match=message):
            losses(build, (9, 6), steps=1)


def test_int8_has_bounds_of_its_own() -> None:
    def build() -> Any:
        x = paddle.static.data("x", [8, 16])
        quantized = dequantize_linear(quantize_linear(x, -1, [2.0])[0], -1, [2.0])
        return F.softmax(paddle.matmul(quantized, quantized, transpose_y=True))

    with verified():
        Program(build).run(x=floats(8, 16))
    assert (checks.log.checked, checks.log.wrong, checks.log.unchecked) == (1, 0, {})
    with planted("pd_op.matmul", scaled), verified(), pytest.warns(UserWarning, match="matmul,"):
        Program(build).run(x=floats(8, 16))


def test_bfloat16_has_bounds_of_its_own() -> None:
    def build() -> Any:
        x = paddle.cast(paddle.static.data("x", [16, 16]), "bfloat16")
        return paddle.cast(F.softmax(paddle.matmul(x, x) * 0.1), "float32")

    with verified():
        Program(build).run(x=floats(16, 16))
    assert (checks.log.checked, checks.log.wrong, checks.log.unchecked) == (1, 0, {})
    with planted("pd_op.matmul", negated), verified(), pytest.warns(UserWarning, match="matmul,"):
        Program(build).run(x=floats(16, 16))


class Network(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = paddle.nn.Linear(6, 8), paddle.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.second(F.gelu(self.first(x)))


def _predict(network: Network, folder: Any) -> None:
    paddle.jit.save(network, f"{folder}/m", [paddle.static.InputSpec([-1, 6], "float32")])
    config = paddle.inference.Config(f"{folder}/m.json", f"{folder}/m.pdiparams")
    predictor = paddle.inference.create_predictor(config)
    predictor.run([paddle.to_tensor(floats(5, 6))])


def _load(network: Network, folder: Any) -> None:
    paddle.jit.save(network, f"{folder}/m", [paddle.static.InputSpec([-1, 6], "float32")])
    paddle.jit.load(f"{folder}/m")(paddle.to_tensor(floats(5, 6)))


def _to_static(network: Network, folder: Any) -> None:
    static = paddle.jit.to_static(network, full_graph=True)
    optimizer = paddle.optimizer.SGD(0.1, parameters=network.parameters())
    for _ in range(2):
        paddle.mean(static(paddle.to_tensor(floats(5, 6)))).backward()
        optimizer.step()


def _compile(network: Network, folder: Any) -> None:
    compiled = paddle_ngraph.compile(network)
    for _ in range(4):
        paddle.mean(compiled(paddle.to_tensor(floats(5, 6)))).backward()


def _enable(network: Network, folder: Any) -> None:
    paddle_ngraph.enable(dynamic=True)
    with paddle.no_grad():
        for _ in range(9):
            network(paddle.to_tensor(floats(5, 6)))


@pytest.mark.parametrize("use", [_predict, _load, _to_static, _compile, _enable])
def test_frontends_of_dynamic_mode(use: Callable[[Network, Any], None], tmp_path: Any) -> None:
    with dynamic_mode(), paddle_ngraph.use_ngraph(), verified():
        use(Network(), tmp_path)
        assert checks.log.checked > 0
        assert (checks.log.wrong, checks.log.unchecked) == (0, {})
        with planted("pd_op.gelu", scaled), pytest.warns(UserWarning, match="at pd_op.gelu,"):
            use(Network(), tmp_path)


def test_a_step_function_of_a_difference_inside_an_operator() -> None:
    """Rounding decides the sign of ``x - tanh(x)`` where x is small."""

    def build() -> Any:
        shrunk = F.tanhshrink(paddle.static.data("x", [-1]))
        return [paddle.floor(shrunk * 0.5), paddle.cast(shrunk, "bool"), paddle.sign(shrunk)]

    with verified():
        Program(build).run(x=np.linspace(1e-6, 2e-3, 5000).astype("float32"))
    assert (checks.log.checked, checks.log.wrong, checks.log.unchecked) == (1, 0, {})


STALE = """
import ctypes

import numpy as np
import paddle

paddle.enable_static()
main, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, startup):
    x = paddle.static.data("x", [-1, 6])
    layers = paddle.nn.Linear(6, 8), paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 3)
    hidden = paddle.tanh(layers[0](x))
    out = layers[2](paddle.nn.functional.gelu(layers[1](hidden)))
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(startup)
scope = paddle.static.global_scope()
# Known before the package intercepts this: it does not see the write below.
address = scope.find_var(layers[1].weight.name).get_tensor()._ptr()

import paddle_ngraph

flags = {"min_interval_us": 0, "background_compile": "0", "cache_dir": "", "verify": 0}
paddle.set_flags({f"FLAGS_ngraph_{name}": value for name, value in flags.items()})


def run():
    feed = {"x": np.ones((5, 6), "float32")}
    return executor.run(main, feed=feed, fetch_list=[out])[0]


with paddle_ngraph.use_ngraph():
    before = [run() for _ in range(20)][-1]
    memory = (ctypes.c_float * 64).from_address(address)
    memory[:] = [-value for value in memory]
    paddle.set_flags({"FLAGS_ngraph_verify": 1})
    assert np.array_equal(run(), before)
print(paddle_ngraph.verified_runs())
"""


def test_the_reader_of_an_outdated_weight_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STALE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 runs of subgraphs compared with Paddle, 1 wrong" in done.stdout
    (line,) = re.findall(r"wrong at (pd_op.\w+), operator (\d+) .*former contents", done.stdout)
    assert line[0] == "pd_op.matmul"
    # The second matmul: after add and tanh.
    assert "pd_op.tanh" not in done.stdout
    assert int(line[1]) > 8
