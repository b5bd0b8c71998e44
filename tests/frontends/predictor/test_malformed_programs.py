"""Explanations of damaged and hostile program files, on which Paddle may crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import inference

import paddle_ngraph
from paddle_ngraph.paddle_private.names import ProgramDesc, VarType, set_attribute
from paddle_ngraph.utils import child_process

# Operators with blocks, operands of the program, or lists, of which the translation has own code.
TYPES = ["pylayer", "select_input", "select_output", "conditional_block", "while", "feed", "fetch"]
TYPES += ["write_to_array", "read_from_array", "recurrent", "py_func", "concat", "rnn", "unknown"]
# The operands of such an operator: none, those that the block has, others.
FORMS: dict[str, dict[str, list[str]]] = {
    "bare": {},
    "complete": {"X": ["x"], "Out": ["y"]},
    "undeclared": {"X": ["q"], "Mask": ["q"], "Condition": ["q"], "Out": ["r"], "Scope": ["s"]},
}


def program_of(operator: str, operands: dict[str, list[str]], attributes: dict[str, Any]) -> bytes:
    program = ProgramDesc()
    block = program.block(0)
    for name in "xy":
        variable = block.var(name.encode())
        variable.set_type(VarType.DENSE_TENSOR)
        variable.set_dtype(VarType.FP32)
        variable.set_shape([2, 3])
    op = block.append_op()
    op.set_type(operator)
    for name, variables in operands.items():
        give = op.set_output if name in ("Out", "Scope") else op.set_input
        give(name, variables)
    for name, value in attributes.items():
        set_attribute(op, name, value)
    return bytes(program.serialize_to_string())


def explained(folder: Path, contents: bytes, ending: str = "pdmodel") -> paddle_ngraph.Report:
    files = folder / f"m.{ending}", folder / "m.pdiparams"
    files[0].write_bytes(contents)
    files[1].write_bytes(b"")
    return paddle_ngraph.explain(inference.Config(*map(str, files)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", TYPES)
def test_a_malformed_operator_is_explained(tmp_path: Path, operator: str, form: str) -> None:
    report = explained(tmp_path, program_of(operator, FORMS[form], {}))
    assert str(report).startswith("Runs natively") and not report.intervals
    assert "\n" not in (report.why_native or "")


def test_crashes_of_paddle_are_reported(tmp_path: Path) -> None:
    """Without its blocks, an operator crashes Paddle's translator: in a child process here."""
    report = explained(tmp_path, program_of("pylayer", {}, {}))
    assert "Paddle crashes on it (SIGSEGV)" in str(report.why_native)
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "paddle_ngraph", "explain", tmp_path / "m.pdmodel"],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert "Paddle crashes on it" in found.stdout and "Traceback" not in found.stderr


def saved(folder: Path) -> bytes:
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        x = paddle.static.data("x", [-1, 4], "float32")
        y = paddle.static.nn.cond(paddle.mean(x) > 0, lambda: x * 2.0, lambda: paddle.tanh(x))
        executor = paddle.static.Executor(paddle.CPUPlace())
        paddle.static.save_inference_model(str(folder / "s"), [x], [y], executor)
    (found,) = folder.glob("s.*[!s]")
    return found.read_bytes()


@pytest.mark.parametrize("seed", range(12))
def test_damaged_files_are_explained(tmp_path: Path, seed: int) -> None:
    """Cut off, or with some bytes changed; as either format."""
    draw = np.random.default_rng(seed)
    contents = bytearray(
        saved(tmp_path) if seed % 2 else program_of("concat", FORMS["complete"], {"axis": 1})
    )
    if seed % 3 == 0:
        del contents[int(draw.integers(len(contents))) :]
    else:
        for position in draw.integers(len(contents), size=1 + seed):
            contents[position] = int(draw.integers(256))
    report = explained(tmp_path, bytes(contents), "json" if seed % 2 else "pdmodel")
    assert str(report)


def test_a_trial_reports_the_signal_that_ended_it() -> None:
    assert child_process.signal_of_trial(os.abort) == "SIGABRT"
    assert child_process.signal_of_trial(lambda: 1) is None
    assert child_process.signal_of_trial(lambda: 1 / 0) is None


def test_all_signals_have_names() -> None:
    assert child_process.name_of(signal.SIGSEGV) == "SIGSEGV"
    assert [child_process.name_of(number) for number in range(35, 64)] == [
        f"signal {number}" for number in range(35, 64)
    ]


def test_an_interrupt_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[int] = []

    def interrupted(child: int, options: int) -> tuple[int, int]:
        children.append(child)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "waitpid", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child_process.signal_of_trial(signal.pause)
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)
