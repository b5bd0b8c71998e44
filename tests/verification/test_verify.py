"""``paddle_ngraph.verify``, and the command: one use of a target, compared."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphError, flags
from paddle_ngraph.__main__ import main
from tests.dynamic import dynamic_mode
from tests.programs import floats
from tests.verification.planted import negated, planted, scaled


class Network(paddle.nn.Layer):  # type: ignore[misc]
    """A network of two layers on embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = paddle.nn.Embedding(2, 6), paddle.nn.Linear(6, 3)

    def forward(self, x: Any, y: Any) -> Any:
        return F.softmax(self.last(F.gelu(self.words(x).mean(1)) + y))


INPUTS = [np.array([[0, 1, 1], [1, 1, 0]]), floats(2, 6)]


def saved(folder: Path) -> str:
    """A saved model."""
    specs = [
        paddle.static.InputSpec([-1, -1], "int64", "x"),
        paddle.static.InputSpec([-1, 6], "float32", "y"),
    ]
    with dynamic_mode():
        paddle.jit.save(Network(), f"{folder}/model", specs)
    return f"{folder}/model"


def test_a_program() -> None:
    main_program, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main_program, startup), paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [-1, 6])
        loss = paddle.mean(F.gelu(paddle.nn.Linear(6, 4)(x)))
        paddle.optimizer.SGD(0.1).minimize(loss)
    with paddle.static.scope_guard(paddle.static.Scope()):
        paddle.static.Executor(paddle.CPUPlace()).run(startup)
        report = paddle_ngraph.verify(main_program, {"x": floats(5, 6)}, fetch_list=[loss])
        assert report.is_right
        assert str(report) == "1 runs of subgraphs compared with Paddle, 0 wrong"
        with planted("pd_op.gelu_grad", scaled), pytest.warns(UserWarning, match="gelu_grad"):
            report = paddle_ngraph.verify(main_program, {"x": floats(5, 6)}, fetch_list=[loss])
    assert not report.is_right
    assert report.mismatches[0].operator == "pd_op.gelu_grad"
    assert not flags.get("ngraph_verify")
    assert not paddle_ngraph.is_enabled()
    assert paddle_ngraph.verified_runs() is not report


@pytest.mark.parametrize("named", [False, True])
def test_a_predictor(tmp_path: Path, named: bool) -> None:
    path = saved(tmp_path)
    config = paddle.inference.Config(f"{path}.json", f"{path}.pdiparams")
    predictor = paddle.inference.create_predictor(config)
    report = paddle_ngraph.verify(predictor, dict(zip("xy", INPUTS)) if named else INPUTS)
    assert report.is_right
    with pytest.raises(NgraphError, match="the inputs of the predictor are x, y"):
        paddle_ngraph.verify(predictor, INPUTS[:1])


@pytest.mark.parametrize("form", ["layer", "compiled", "static", "function"])
def test_layers_and_functions(form: str) -> None:
    def changed(layer: Any) -> Any:
        if form == "compiled":
            return paddle_ngraph.compile(layer)
        return paddle.jit.to_static(layer, full_graph=True) if form == "static" else layer

    with dynamic_mode():
        target: Any = changed(Network())
        if form == "function":
            target = lambda x, y: paddle.mean(Network()(x, y)).backward()  # noqa: E731
        report = paddle_ngraph.verify(target, INPUTS)
        assert report.is_right, str(report)
        with planted("pd_op.gelu", negated), pytest.warns(UserWarning, match="wrong at pd_op.gelu"):
            assert not paddle_ngraph.verify(changed(Network()), INPUTS).is_right


def test_another_target() -> None:
    with pytest.raises(NgraphError, match=r"verify\(\) takes a static program, not int"):
        paddle_ngraph.verify(3, {})
    with pytest.raises(NgraphError, match="create a predictor, or use python -m"):
        paddle_ngraph.verify("model", {})


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = saved(tmp_path), str(tmp_path / "wrong.npz")
    assert main(["verify", path]) == 0
    assert main(["verify", path, "--shapes", "x=4x7", "y=4x6", "--seed", "3"]) == 0
    np.savez(tmp_path / "inputs.npz", x=INPUTS[0], y=INPUTS[1])
    assert main(["verify", path, "--inputs", str(tmp_path / "inputs.npz")]) == 0
    assert capsys.readouterr().out.count("1 runs of subgraphs compared with Paddle, 0 wrong") == 3
    with planted("pd_op.gelu", negated), pytest.warns(UserWarning, match="wrong at pd_op.gelu"):
        assert main(["verify", path, "--save", file, "--shapes-only"]) == 1
        shown = capsys.readouterr().out
        assert "the engine is wrong at pd_op.gelu" in shown
        assert f"{file} will hold" in shown
        assert main(["replay", file]) == 1


def test_missing_inputs_are_one_sentence(tmp_path: Path) -> None:
    main_program = paddle.static.Program()
    with paddle.static.program_guard(main_program), paddle.utils.unique_name.guard():
        x, y = paddle.static.data("x", [-1, 6]), paddle.static.data("y", [-1, 6])
        z = F.gelu(x) + y
    for given in ({"x": floats(5, 6)}, {}, None):
        with pytest.raises(NgraphError, match=r"inputs of the program are x, y.*missing: (x, )?y$"):
            paddle_ngraph.verify(main_program, given, fetch_list=[z])
    wrong = {"x": floats(5, 6), "y": floats(4, 6)}
    with pytest.raises(NgraphError, match="Paddle itself cannot run it with these inputs") as error:
        paddle_ngraph.verify(main_program, wrong, fetch_list=[z])
    assert "\n" not in str(error.value)
    with (
        dynamic_mode(),
        pytest.raises(NgraphError, match=r"inputs .TypeError: .*missing 1 required"),
    ):
        paddle_ngraph.verify(Network(), INPUTS[:1])
    path = saved(tmp_path)
    config = paddle.inference.Config(f"{path}.json", f"{path}.pdiparams")
    predictor = paddle.inference.create_predictor(config)
    with pytest.raises(NgraphError, match="the inputs of the predictor are x, y"):
        paddle_ngraph.verify(predictor, 3)
    assert main(["verify", path, "--shapes", "x=99999999999x99999999999"]) == 2


def test_inputs_that_paddle_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path)
    np.savez(tmp_path / "inputs.npz", x=INPUTS[0] + 7, y=INPUTS[1])
    assert main(["verify", path, "--inputs", str(tmp_path / "inputs.npz")]) == 2
    message = capsys.readouterr().err
    assert "Paddle itself cannot run the model with these inputs" in message
    assert "but got " in message  # Paddle's sentence, not the operator that it appends
    with pytest.raises(SystemExit):
        main(["verify", path, "--seed", "-1"])
    assert "-1 is no number of at least 0" in capsys.readouterr().err
    assert main(["verify", path, "--shapes", "z=3"]) == 2
    assert "z is no input of the model; these are: x, y" in capsys.readouterr().err


def test_uses_in_two_threads_leave_flags_as_they_were() -> None:
    names = ("use_ngraph", "ngraph_verify", "ngraph_min_interval_us")
    before = [flags.get(name) for name in names]
    has_entered, has_ended = threading.Event(), threading.Event()
    reports = []

    def second(x: Any) -> Any:
        has_entered.set()
        has_ended.wait()
        return x

    def verify_second() -> None:
        reports.append(paddle_ngraph.verify(second, floats(2)))

    other = threading.Thread(target=verify_second)

    def first(x: Any) -> Any:
        if not other.ident:
            other.start()
            has_entered.wait(0.3)  # the other use begins now, unless it waits for the end of this
        return x

    with dynamic_mode():
        paddle_ngraph.verify(first, floats(2))
        has_ended.set()
        other.join()
    assert len(reports) == 1
    assert [flags.get(name) for name in names] == before
