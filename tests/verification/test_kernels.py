"""Kernels outside of subgraphs: packed recurrent layers, and operators of dynamic optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import NgraphError, _core
from paddle_ngraph.__main__ import main
from paddle_ngraph._core import RandomState
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import clock
from paddle_ngraph.verification import checks, dynamic_calls, reproducer
from paddle_ngraph.verification.evaluation import tensor_of
from paddle_ngraph.verification.kernel_runs import CallRun, PackedRun, layer_graph
from tests.clocks import Clock
from tests.dynamic import dynamic_mode
from tests.frontends.dynamic.test_optimizer_calls import (
    OPTIMIZERS,
    SHAPES,
    parameter,
    random_tensor,
    trained,
)
from tests.mkl_packed import comparing
from tests.mkl_packed.comparing import MODES, Shape
from tests.verification.test_checks import verified


@contextmanager
def fault(step: str) -> Iterator[None]:
    """A kernel computes a wrong result."""
    _core.fail_at(step)
    try:
        yield
    finally:
        _core.fail_at("")


@pytest.fixture
def in_dynamic_mode() -> Iterator[None]:
    """Dynamic mode."""
    paddle.disable_static()
    yield
    paddle.enable_static()


LAYER = Shape(input=5, hidden=7, batch=3, steps=6, layers=2, direction="bidirect")


@pytest.mark.usefixtures("in_dynamic_mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_packed_layers_of_dynamic_mode(mode: str, ragged: bool, dropout: float) -> None:
    layer = comparing.layer(mode, LAYER, packed=True, dropout=dropout)
    given = comparing.data(mode, LAYER, ragged)
    before = comparing.run(layer, given)
    with verified():
        found = comparing.run(layer, given)
    assert all(np.array_equal(before[name], found[name]) for name in before)
    assert (checks.log.checked, checks.log.wrong, checks.log.unchecked) == (2, 0, {})


def _replayed(mismatch: Any, file: Path, fault_in: str, capsys: Any) -> None:
    """Saves a run, whole and as shapes only, and runs it again with the fault and without it."""
    for shapes_only, command in ((False, "replay"), (True, "bisect")):
        summary = mismatch.save(file, shapes_only=shapes_only)
        assert f"MB: the {mismatch.run.kernel} (operators" in summary
        with fault(fault_in):
            assert main([command, str(file)]) == 1
        shown = capsys.readouterr().out
        assert "elements are wrong" in shown
        if command == "bisect":
            assert f"wrong at {mismatch.run.description}" in shown
        assert main([command, str(file)]) == 0
        assert "\nright" in f"\n{capsys.readouterr().out}"
    found = reproducer.load(file).run
    for ours, theirs in zip(found.given, mismatch.run.given):
        assert ours.shape() == theirs.shape()
        # Without data: lengths of sequences and single numbers have narrow ranges.
        assert np.array(ours).size < 9 or not np.array_equal(np.array(ours), np.array(theirs))


@pytest.mark.usefixtures("in_dynamic_mode")
def test_faults_of_packed_layers_are_named_and_replayed(tmp_path: Path, capsys: Any) -> None:
    layer = comparing.layer("GRU", LAYER, packed=True, dropout=0.3)
    given = comparing.data("GRU", LAYER, True)
    message = "wrong at pd_op.rnn, a recurrent layer with packed weights .GRU.; output 0: float"
    with verified(), fault("layer"), pytest.warns(UserWarning, match=message):
        comparing.run(layer, given)
    mismatches = checks.log.mismatches
    assert [each.operator for each in mismatches] == ["pd_op.rnn", "pd_op.rnn_grad"]
    for mismatch in mismatches:
        _replayed(mismatch, tmp_path / "wrong.npz", "layer", capsys)


@pytest.mark.usefixtures("in_dynamic_mode")
def test_a_gradient_with_dropout_whose_forward_run_was_not_compared() -> None:
    layer = comparing.layer("GRU", LAYER, packed=True, dropout=0.4)
    paddle.seed(3)
    out, _ = layer(paddle.rand([3, 6, 5]))
    with verified():
        out.sum().backward()
    ((reason, count),) = checks.log.unchecked.items()
    assert (count, checks.log.checked) == (1, 0)
    assert reason.startswith("the gradient of a packed layer with dropout")


def test_packed_layers_of_programs() -> None:
    options = {"packed": False, "engine": True, "steps": 3, "dropout": 0.2}
    losses = comparing.train_static("LSTM", LAYER, **options)  # type: ignore[arg-type]
    with verified():
        assert comparing.train_static("LSTM", LAYER, **options) == losses  # type: ignore[arg-type]
    assert (checks.log.wrong, checks.log.unchecked) == (0, {})
    assert checks.log.checked > 6
    with (
        verified(),
        fault("layer"),
        pytest.warns(UserWarning, match="pd_op.rnn, a recurrent layer"),
    ):
        comparing.train_static("LSTM", LAYER, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("in_dynamic_mode")
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_updates_of_dynamic_optimizers(make: Any, tmp_path: Path, capsys: Any) -> None:
    def run() -> list[np.ndarray]:
        return trained(make, [parameter(random_tensor(9, shape)) for shape in SHAPES], True)

    before = run()
    with verified():
        assert all(map(np.array_equal, before, run()))
    assert checks.log.checked >= paddle_ngraph.stats()["optimizer_steps"] / 2
    assert (checks.log.wrong, checks.log.unchecked) == (0, {})
    checks.subjects.clear()  # which remembers wrong kernels
    with verified(), fault("update"), pytest.warns(UserWarning, match="a call of dynamic mode"):
        run()
    mismatch, *_ = checks.log.mismatches
    assert mismatch.operator in {"pd_op.sgd_", "pd_op.momentum_", "pd_op.adam_", "pd_op.adamw_"}
    if make is next(iter(OPTIMIZERS.values())):
        _replayed(mismatch, tmp_path / "wrong.npz", "update", capsys)


@pytest.mark.usefixtures("in_dynamic_mode")
def test_clipping_by_a_norm() -> None:
    tensor = paddle.to_tensor(random_tensor(1, (300, 300)))
    tensor.stop_gradient = False
    with paddle_ngraph.use_ngraph(), verified():
        optimizer = paddle.optimizer.SGD(
            0.1, [parameter(np.ones((300, 300), "float32"))], grad_clip=nn.ClipGradByGlobalNorm(0.5)
        )
        optimizer._parameter_list[0].grad = tensor
        optimizer.step()
    assert checks.log.checked >= 3
    assert (checks.log.wrong, checks.log.unchecked) == (0, {})


@pytest.mark.usefixtures("in_dynamic_mode")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "pd_op.print"}, "none of a call of an optimizer"),
        ({"attrs": {"1": [[1]]}}, "none of a call of an optimizer"),
        ({"attrs": {"7": 1.0}}, "none of a call of an optimizer"),
        ({"attrs": {"x": 1.0}}, "none of a call of an optimizer"),
        ({"attrs": {"1": 0.5, "2": "text"}}, ""),
    ],
)
def test_forged_calls_do_not_run(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: Any
) -> None:
    run, _ = CallRun.of_call("squared_l2_norm", [paddle.ones([3])], paddle.ones([1]))
    op = replace(run.graph.ops[0], **change)
    forged = replace(run, graph=replace(run.graph, ops=[op]), known_text="")
    file = tmp_path / "forged.npz"
    reproducer.save(file, reproducer.contents(reproducer.recorded(forged), False))
    assert main(["replay", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


_ADAM = [None, None, *[0.9, 0.99, 1e-8], False, 1000, False, False, False]


@pytest.mark.usefixtures("in_dynamic_mode")
@pytest.mark.parametrize(
    ("name", "arguments", "wrong"),
    [
        # Paddle's kernels would read beyond the arguments, or beyond their memory.
        ("sgd_", [9, 1, 9], -1),
        ("sgd_", [9, 1, 1, None, False], 2),
        ("sgd_", [9, 1, 9, 1, True], 3),
        ("momentum_", [9, 9, 9, 1, None, 0.9], -1),
        ("momentum_", [9, 1, 9, 1, None, 0.9, False, "", 0.0, False, 1.0], 1),
        ("momentum_", [9, 9, 9, 1, None, "0.9", False, "", 0.0, False, 1.0], 5),
        ("adam_", [9, 1, 1, 9, 9, None, 1, 1, *_ADAM], 1),
        ("adam_", [9, 9, 1, 9, 9, None, 1, 1, *_ADAM[:-1], True], 5),
        ("adam_", [9, 9, 1, 9, 9, 1, 1, 1, *_ADAM[:-1], True], 5),
        ("adam_", [9, 9, 1, 9, 9, 9, 1, 1, *_ADAM], 5),
        ("multiply", [9, 9], 1),
    ],
)
def test_forged_arguments_do_not_reach_paddle(
    name: str, arguments: list[Any], wrong: int, tmp_path: Path
) -> None:
    given = [paddle.ones([each]) if type(each) is int and each < 10 else each for each in arguments]
    run, _ = CallRun.of_call(name, given, given[0])
    reproducer.save(tmp_path / "a.npz", reproducer.contents(reproducer.recorded(run), False))
    message = f"argument {wrong} is" if wrong >= 0 else "none of a call of an optimizer"
    with pytest.raises(NgraphError, match=message):
        reproducer.load(tmp_path / "a.npz")


@pytest.mark.parametrize("weights", [[(21, 5), (21, 7), (21,), (21,)], [], [(1, 1)] * 4])
@pytest.mark.parametrize("lengths", [[6, 1, 2], [-6, 1, 2], [600, 1, 2]])
@pytest.mark.parametrize("states", [0, 1])
def test_forged_layers_do_not_reach_paddle(
    weights: list[tuple[int, ...]], lengths: list[int], states: int, tmp_path: Path, capsys: Any
) -> None:
    """Nor does it need dynamic mode to run a layer again."""
    attributes = {
        **{"mode": "GRU", "hidden_size": 7, "num_layers": 1, "is_bidirec": False},
        **{"dropout_prob": 0.0, "seed": 0, "is_test": False},
    }
    shapes = {"x": [(6, 3, 5)], "pre_state": [(1, 3, 7)] * states, "weight_list": weights}
    kinds = {name: [("float32", each) for each in found] for name, found in shapes.items()}
    graph = layer_graph(attributes, {**kinds, "sequence_length": [("int32", (3,))]})
    floating = [tensor_of(np.ones(each), "float32") for found in shapes.values() for each in found]
    run = PackedRun(graph, [*floating, tensor_of(np.array(lengths), "int32")], RandomState())
    file = tmp_path / "layer.npz"
    reproducer.save(file, reproducer.contents(reproducer.recorded(run), False))
    is_right = len(weights) == 4 and weights[0] != (1, 1) and lengths[0] == 6 and states == 1
    assert main(["replay", str(file)]) == (0 if is_right else 2)
    sentence = capsys.readouterr().err
    assert not is_right or not sentence
    assert len(sentence.splitlines()) == (0 if is_right else 1)


@pytest.mark.usefixtures("in_dynamic_mode")
def test_forged_kernels_do_not_run(tmp_path: Path) -> None:
    run, _ = CallRun.of_call("squared_l2_norm", [paddle.ones([3])], paddle.ones([1]))
    arrays = reproducer.contents(reproducer.recorded(run), False)
    for kernel, message in (("packed layer", "none of a recurrent layer"), ("other", "unknown")):
        arrays["kernel"] = np.frombuffer(kernel.encode(), np.uint8)
        reproducer.save(tmp_path / "forged.npz", arrays)
        with pytest.raises(NgraphError, match=message):
            reproducer.load(tmp_path / "forged.npz")


def test_a_judgement_of_a_call_that_is_finished_in_static_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call was one of dynamic mode; the user's program gets no operators."""
    monkeypatch.setattr(SETTINGS, "max_judgement_time_ratio", 2.0)
    checks.reset()
    with clock.overridden(Clock(tick=1.0)):
        with dynamic_mode():
            x, y, double = (
                paddle.arange(1.0, 5.0),
                paddle.to_tensor(2.0),
                paddle.arange(2.0, 10.0, 2),
            )
            dynamic_calls.check_call("multiply", (x, y), double * 1.0001)  # does not pause
            assert not checks.log.unchecked
            dynamic_calls.check_call("multiply", (x, y), double * 1.01)
            assert checks.log.unchecked
        wrong = checks.log.wrong
        assert paddle_ngraph.verified_runs().wrong == wrong + 1
    assert not checks.log.unchecked
    assert not paddle.static.default_main_program().global_block().ops
