"""Programs with Paddle's mixed precision in bfloat16 run through the engine, in subgraphs.

Many of them end the process in plain Paddle on CPUs, so the references are float32 runs and NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.conversion import processor
from tests.conversion.passes.test_mixed_precision import rounded
from tests.programs import Program, floats


class Perceptron(nn.Layer):
    """Layers large enough for matmuls on bfloat16 units."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 16)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        return self.last(F.gelu(self.norm(self.first(x))))


class Convolutions(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2D(16, 32, 3, padding=1), nn.Conv2D(32, 32, 3, stride=2)
        self.norm, self.last = nn.BatchNorm2D(32), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.last(F.relu(self.second(x)).mean([2, 3]))


Case = tuple[Callable[[], nn.Layer], list[int]]
NETWORKS: dict[str, Case] = {
    "perceptron": (Perceptron, [64, 64]),
    "convolutions": (Convolutions, [16, 16, 12, 12]),
}


def training(
    make: Callable[[], nn.Layer],
    shape: list[int],
    amp: bool = True,
    optimizer: Callable[..., Any] = paddle.optimizer.AdamW,
    **lists: Any,
) -> Program:
    """A training program with AMP as users of Paddle write it."""

    def build() -> Any:
        paddle.seed(7)
        x = paddle.static.data("x", shape)
        y = paddle.static.data("y", [shape[0], 1], "int64")
        network = make()
        minimizer = optimizer(1e-3, parameters=network.parameters())
        with paddle.amp.auto_cast(amp, dtype="bfloat16", **lists):
            out = network(x)
            loss = F.cross_entropy(out.astype("float32"), y)
        if amp:
            minimizer = paddle.static.amp.decorate(
                minimizer, level="O1", dtype="bfloat16", init_loss_scaling=1.0
            )
        minimizer.minimize(loss)
        return [loss, out]

    return Program(build)


def batch(shape: list[int], seed: int = 0) -> dict[str, np.ndarray]:
    labels = np.random.default_rng(seed).integers(0, 10, [shape[0], 1])
    x = floats(*shape, seed=seed)
    x.reshape(shape[0], -1)[np.arange(shape[0]), labels[:, 0]] += 3.0
    return {"x": x, "y": labels}


def ran() -> int:
    """Returns the number of subgraph runs; all operators are in subgraphs, without fallback."""
    stats = paddle_ngraph.stats()
    assert stats["ops_native"] == 0 and stats["native_runs"] == 0, stats["native_by_type"]
    return int(stats["engine_runs"])


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("name", NETWORKS)
def test_o1_trains_in_one_subgraph(name: str, kinds) -> None:
    make, shape = NETWORKS[name]
    programs = [training(make, shape, amp) for amp in (True, False)]
    casts = [op for op in programs[0].main.global_block().ops if op.name() == "pd_op.cast"]
    assert len(casts) >= 8
    losses: list[list[float]] = [[], []]
    for number in range(20):
        for program, found in zip(programs, losses):
            found.append(float(program.run(**batch(shape, number % 2))[0]))
    assert ran() == 40
    ours, exact = map(np.array, losses)
    assert 0 < abs(ours[0] - exact[0]) < 2e-2 * exact[0]
    assert ours[-1] < 0.6 * ours[0] and abs(ours[-1] - exact[-1]) < 0.05 * exact[0]
    assert (kinds["ToBfloat16"] + kinds["ToChannelsLast"] > 0) == processor.has_bfloat16()
    assert kinds["Bfloat16Gemm"] > 0 or not (processor.has_bfloat16() and name == "perceptron")


_erf = np.vectorize(math.erf)


@pytest.mark.slow("compiles many or large functions")
def test_the_first_loss_equals_numpys() -> None:
    """Operands and results of matmuls are rounded, and no other values."""
    make, shape = NETWORKS["perceptron"]
    program, feed = training(make, shape), batch(shape)
    given = {name: program.variable(name) for name in ("linear_0.w_0", "linear_1.w_0")}
    assert not any(program.variable(f"linear_{number}.b_0").any() for number in (0, 1))

    def product(x: np.ndarray, name: str) -> np.ndarray:
        return rounded(rounded(x).astype("float64") @ rounded(given[name])).astype("float64")

    h = product(feed["x"], "linear_0.w_0")
    h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5)
    h = product(0.5 * h * (1 + _erf(h / np.sqrt(2))), "linear_1.w_0")
    loss, out = program.run(**feed)
    assert ran() == 1
    # Sums on two sides of a tie, or of an operand's tie, are different bfloat16 values.
    np.testing.assert_allclose(out, h, atol=2e-2)
    assert np.mean(out != h) < 0.05
    chosen = np.take_along_axis(h, feed["y"], 1)
    expected = np.mean(np.log(np.exp(h).sum(-1, keepdims=True)) - chosen)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("name", NETWORKS)
def test_results_without_bfloat16_units_are_equal(name: str, kinds, monkeypatch) -> None:
    """Products of rounded values are exact in float32; only ties of sums may round differently."""
    make, shape = NETWORKS[name]
    losses = []
    for units in (processor.has_bfloat16(), False):
        monkeypatch.setattr(processor, "has_bfloat16", lambda units=units: units)
        paddle_ngraph.clear_cache()
        kinds.clear()
        program = training(make, shape)
        losses.append([float(program.run(**batch(shape))[0]) for _ in range(3)])
    assert kinds["Bfloat16Gemm"] == kinds["ToBfloat16"] == 0 and kinds["RoundToBfloat16"] > 0
    np.testing.assert_allclose(*losses, rtol=2e-3)
    assert ran() == 6
    paddle_ngraph.clear_cache()  # others have the units


# -- operators ---------------------------------------------------------------------------------

_BOTH = {"custom_black_list": {"matmul", "matmul_v2"}}
LISTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "Paddle's": ({}, {"matmul", "conv2d"}),
    "matmul in the black list": (_BOTH, {"conv2d"}),
    "conv2d in the black list": ({"custom_black_list": {"conv2d"}}, {"matmul"}),
    "relu in the white list": ({"custom_white_list": {"relu"}}, {"matmul", "conv2d", "relu"}),
}


@pytest.mark.parametrize("name", LISTS)
def test_black_and_white_lists(name: str) -> None:
    """Operators of the black list compute in float32, those of the white list are rounded."""
    lists, short = LISTS[name]

    def build(amp: bool) -> Any:
        x, y = paddle.static.data("x", [40, 48]), paddle.static.data("y", [48, 40])
        image, kernel = (
            paddle.static.data("i", [2, 16, 9, 9]),
            paddle.static.data("k", [8, 16, 3, 3]),
        )
        with paddle.amp.auto_cast(amp, dtype="bfloat16", **lists):
            outs = [paddle.matmul(x, y), F.conv2d(image, kernel), F.relu(x)]
        return [out.astype("float32") for out in outs]

    feed = {"x": floats(40, 48), "y": floats(48, 40)}
    feed |= {"i": floats(2, 16, 9, 9), "k": floats(8, 16, 3, 3)}
    found, exact = (Program(lambda amp=amp: build(amp)).run(**feed) for amp in (True, False))
    assert ran() == 2
    for kind, ours, theirs in zip(("matmul", "conv2d", "relu"), found, exact):
        assert (ours == rounded(ours)).all() == (kind in short)
        off = np.abs(ours - theirs).max() / np.abs(theirs).max()
        assert off < 1e-2 if kind in short else off < 1e-6


# -- dynamic mode --------------------------------------------------------------------------------


class Mixed(nn.Layer):
    def __init__(self, make: Callable[[], nn.Layer], amp: bool) -> None:
        super().__init__()
        self.network, self.amp = make(), amp

    def forward(self, x: Any) -> Any:
        with paddle.amp.auto_cast(self.amp, dtype="bfloat16"):
            return self.network(x)


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("name", NETWORKS)
def test_to_static_trains_and_evaluates(name: str, in_dynamic_mode, kinds) -> None:
    make, shape = NETWORKS[name]
    losses: list[list[float]] = []
    for amp in (True, False):
        paddle.seed(7)
        layer = Mixed(make, amp)
        network = paddle.jit.to_static(layer, full_graph=True)
        optimizer = paddle.optimizer.Adam(2e-3, parameters=layer.parameters())
        losses.append([])
        for number in range(21):
            given = batch(shape, number % 2)
            if number == 20:
                network.eval()
            with paddle_ngraph.use_ngraph(), paddle.set_grad_enabled(number < 20):
                out = network(paddle.to_tensor(given["x"]))
                loss = F.cross_entropy(out, paddle.to_tensor(given["y"]))
                if number < 20:
                    loss.backward()
            losses[-1].append(float(loss))
            optimizer.step()
            optimizer.clear_grad()
    assert ran() == 2 * 41, "forward and backward of each step, and the evaluation"
    ours, exact = map(np.array, losses)
    assert 0 < abs(ours[0] - exact[0]) < 2e-2 * exact[0]
    assert ours[19] < 0.6 * ours[0] and (np.abs(ours - exact) < 0.05 * exact[0]).all()
    assert (kinds["ToBfloat16"] > 0) == processor.has_bfloat16()


# -- bfloat16 parameters -------------------------------------------------------------------------


def test_pure_bfloat16_of_program_desc_programs() -> None:
    """Parameters and optimizer states are bfloat16 too, for which Paddle has no kernels."""
    scope = paddle.static.Scope()
    with paddle.pir_utils.OldIrGuard(), paddle.static.scope_guard(scope):
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            x = paddle.static.data("x", [64, 64], "bfloat16")
            y = paddle.static.data("y", [64, 1], "int64")
            with paddle.static.amp.bf16.bf16_guard():
                h = paddle.static.nn.fc(x, 96, activation="relu")
                h = paddle.static.nn.fc(h, 16)
            loss = paddle.mean(F.cross_entropy(paddle.cast(h, "float32"), y))
            optimizer = paddle.static.amp.bf16.decorate_bf16(
                paddle.optimizer.Adam(1e-2), use_pure_bf16=True
            )
            optimizer.minimize(loss, startup)
        executor = paddle.static.Executor(paddle.CPUPlace())
        paddle.seed(5)
        executor.run(startup)
        optimizer.amp_init(executor.place, scope=scope)
        feed = batch([64, 64])
        feed["x"] = (rounded(feed["x"]).view("uint32") >> 16).astype("uint16")
        before = paddle_ngraph.stats()["engine_runs"]
        with paddle_ngraph.use_ngraph():
            losses = [float(executor.run(main, feed=feed, fetch_list=[loss])[0]) for _ in range(20)]
    assert ran() == before + 20
    assert losses[-1] < 0.3 * losses[0]
    assert np.array(scope.find_var("fc_0.w_0").get_tensor()).dtype == np.uint16


def test_bfloat16_parameters_of_level_o2() -> None:
    """Paddle's update ignores the master copy, and falls back for that reason."""

    def build(amp: bool) -> Any:
        paddle.seed(7)
        x, y = paddle.static.data("x", [64, 64]), paddle.static.data("y", [64, 1], "int64")
        network = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 16))
        optimizer = paddle.optimizer.SGD(0.05, parameters=network.parameters())
        if amp:
            network, optimizer = paddle.amp.decorate(
                models=network, optimizers=optimizer, level="O2", dtype="bfloat16"
            )
        with paddle.amp.auto_cast(amp, dtype="bfloat16", level="O2"):
            out = network(x)
        loss = F.cross_entropy(out.astype("float32"), y)
        optimizer.minimize(loss)
        return [loss]

    programs = [Program(lambda amp=amp: build(amp)) for amp in (True, False)]
    losses = [[float(each.run(**batch([64, 64]))[0]) for _ in range(20)] for each in programs]
    ours, exact = map(np.array, losses)
    assert paddle_ngraph.stats()["engine_runs"] == 40
    assert set(paddle_ngraph.stats()["native_by_type"]) == {"pd_op.sgd_"}
    assert ours[-1] < 0.6 * ours[0] and (np.abs(ours - exact) < 0.05 * exact[0]).all()


def test_feeds_parameters_and_results_are_bfloat16() -> None:
    """Dtypes equal Paddle's; Paddle's executor, which runs first, modifies its program."""
    feed = (floats(40, 48).view("uint32") >> 16).astype("uint16")

    def build() -> Any:
        x = paddle.static.data("x", [-1, 48], "bfloat16")
        uniform = nn.initializer.Uniform(-1.0, 1.0)
        w = paddle.static.create_parameter([48, 64], "bfloat16", default_initializer=uniform)
        out = F.relu(paddle.matmul(x, w))
        return [out, out.sum(1), paddle.reshape(out, [-1])]

    program = Program(build)
    native = program.run(engine=False, x=feed)
    for _ in range(2):
        found = program.run(x=feed)
        for ours, theirs in zip(found, native):
            assert ours.dtype == theirs.dtype == np.uint16
            assert np.mean(ours != theirs) < 0.02, "sums near a tie"
            assert np.abs(ours.astype(int) - theirs).max() <= 1
    assert ran() == 2 and paddle_ngraph.stats()["functions_with_weights"] == 1


def test_a_fallback_run_does_not_modify_bfloat16_branches() -> None:
    """Paddle's executor would permanently insert oneDNN operators into the program."""

    def build() -> Any:
        x = paddle.static.data("x", [40, 48])
        return paddle.static.nn.cond(
            x.sum() > 0,
            lambda: F.relu(x.astype("bfloat16")).astype("float32"),
            lambda: F.relu(-x.astype("bfloat16")).astype("float32"),
        )

    program, feed = Program(build), floats(40, 48)
    (native,), (found,) = program.run(engine=False, x=feed), program.run(x=feed)
    np.testing.assert_array_equal(found, native)
    assert ran() == 1


@pytest.fixture
def background() -> Iterator[None]:
    """Compiles everything possible in the background."""
    before = {name: flags.get(name) for name in ("ngraph_background_compile", "ngraph_cache_dir")}
    paddle_ngraph.clear_cache()
    flags.set("ngraph_background_compile", "1")
    flags.set("ngraph_cache_dir", "")
    yield
    assert paddle_ngraph.wait_for_compiles(60)
    for name, value in before.items():
        flags.set(name, value)


@pytest.mark.parametrize("in_branch", [False, True])
def test_bfloat16_never_falls_back_while_compiling(background, in_branch: bool) -> None:
    """Paddle's convolution raises there, and its softplus has wrong results."""

    def convolve(x: Any, kernel: Any) -> Any:
        product = F.conv2d(x.astype("bfloat16"), kernel.astype("bfloat16"))
        return F.softplus(product).astype("float32")

    def build() -> Any:
        x = paddle.static.data("x", [-1, 16, 9, 9])
        uniform = nn.initializer.Uniform(-1.0, 1.0)
        kernel = paddle.static.create_parameter(
            [8, 16, 3, 3], "float32", default_initializer=uniform
        )
        if not in_branch:
            return convolve(x, kernel)
        return paddle.static.nn.cond(
            x.sum() > 0, lambda: convolve(x, kernel), lambda: convolve(-x, kernel)
        )

    program = Program(build)
    feed = np.abs(floats(2, 16, 9, 9))
    first, *others = (program.run(x=feed)[0] for _ in range(3))
    for other in others:
        np.testing.assert_array_equal(first, other)
    assert ran() == 3 and paddle_ngraph.stats()["runs_while_compiling"] == 0


@pytest.mark.parametrize("rows", [3, 4, 1])
@pytest.mark.parametrize("made_on", [False, True])
def test_bfloat16_results_of_a_switched_predictor(tmp_path, made_on: bool, rows: int) -> None:
    """Output handles have the values of the other executor, in its dtype."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, 7])
        return [x, F.relu(x.astype("bfloat16")), x.max().astype("bfloat16")]

    program = Program(build)
    path, (x, *outs) = str(tmp_path / "net"), program.fetches
    paddle.static.save_inference_model(path, [x], outs, program.executor, program=program.main)
    config = paddle.inference.Config(path + ".json", path + ".pdiparams")
    with paddle_ngraph.use_ngraph(made_on):
        predictor = paddle.inference.create_predictor(config)
    feed = floats(rows, 7)
    for on in (made_on, not made_on, made_on):
        with paddle_ngraph.use_ngraph(on):
            predictor.get_input_handle("x").copy_from_cpu(feed)
            predictor.run()
        for name, expected in zip(
            predictor.get_output_names(), (np.maximum(feed, 0), np.max(feed))
        ):
            handle = predictor.get_output_handle(name)
            assert handle.type() == paddle.inference.DataType.BFLOAT16
            found = handle.copy_to_cpu()  # as float32, with the bits in its upper half
            assert found.shape == expected.shape
            bits = found.ravel().view("uint16")[: found.size]
            np.testing.assert_array_equal(bits, rounded(expected).ravel().view("uint32") >> 16)
        feed = feed + 1
    assert ran() == (2 if made_on else 1)


# -- failures of the engine ----------------------------------------------------------------------


def test_a_run_that_would_crash_paddle_is_an_error() -> None:
    """Paddle would end the process for a label out of range."""
    make, shape = NETWORKS["perceptron"]
    program, feed = training(make, shape), batch(shape)
    program.run(**feed)
    before = program.variable("linear_0.w_0")
    with pytest.raises(ValueError, match=r"'label' is out of range"):
        program.run(x=feed["x"], y=feed["y"] + 1000)
    np.testing.assert_array_equal(program.variable("linear_0.w_0"), before)
    program.run(**feed)
    assert ran() == 2
    assert (program.variable("linear_0.w_0") != before).any()
