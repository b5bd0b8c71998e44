"""Reproducers: what they hold, how they run again, and that damaged ones are one sentence."""

from __future__ import annotations

import errno
import io
import os
import random
import signal
import struct
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphError
from paddle_ngraph.__main__ import main
from paddle_ngraph.ir.graph import FallbackForm, Op
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.verification import bisection, checks, reproducer
from paddle_ngraph.verification.comparison import SubgraphRun
from tests.programs import Program, floats
from tests.verification.planted import negated, planted
from tests.verification.test_checks import losses, training, verified


@pytest.fixture
def mismatch() -> Any:
    """The mismatch of a planted fault, which is still planted."""
    with planted("pd_op.gelu", negated), verified(), pytest.warns(UserWarning, match="gelu"):
        losses(training, (9, 6), steps=1)
        yield checks.log.mismatches[0]


def test_a_reproducer_holds_a_run_bit_by_bit(mismatch: Any, tmp_path: Path) -> None:
    file = tmp_path / "wrong.npz"
    summary = mismatch.save(file)
    assert "the contents of 32 inputs and states, 31 results" in summary
    found = reproducer.load(file)
    assert found.run.text == mismatch.run.text
    assert found.run.random == mismatch.run.random
    for ours, theirs in zip(found.run.given, mismatch.run.given):
        assert np.array(ours).tobytes() == np.array(theirs).tobytes()
    differences, engine = bisection.rerun_with_results(found.run)
    assert [each.tensor for each in differences]
    assert found.other_results(engine) == []


def test_shapes_only_holds_no_data(mismatch: Any, tmp_path: Path) -> None:
    whole, file = tmp_path / "whole.npz", tmp_path / "shapes.npz"
    mismatch.save(whole)
    summary = mismatch.save(file, shapes_only=True)
    assert "no data" in summary
    rows = [np.array(tensor) for tensor in mismatch.run.given if np.array(tensor).size > 2]
    assert len(rows) > 9
    for array in rows:
        assert array.tobytes() in whole.read_bytes()
        assert array.tobytes() not in file.read_bytes() or not array.any()
    found = reproducer.load(file)
    assert found.run.random != mismatch.run.random
    for ours, theirs in zip(found.run.given, mismatch.run.given):
        replaced, real = np.array(ours), np.array(theirs)
        assert (replaced.shape, replaced.dtype) == (real.shape, real.dtype)
        assert replaced.min() >= real.min()
        assert replaced.max() <= real.max()
    assert bisection.rerun(found.run)


def test_the_command_line_replays_and_bisects(
    mismatch: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("wrong.npz", "results.npz", "narrow.npz")]
    mismatch.save(files[0])
    assert main(["replay", files[0], "--save-intermediates", files[1]]) == 1
    shown = capsys.readouterr().out
    assert "elements are wrong" in shown
    assert shown.splitlines()[-10].startswith("pd_op.gelu (")
    with np.load(files[1]) as results:
        (name,) = [each for each in results if "pd_op.gelu " in each and "engine" in each]
        np.testing.assert_allclose(
            results[name], -results[name.replace("engine", "exact")], rtol=1e-5
        )
    assert main(["bisect", files[0], "--save", files[2]]) == 1
    shown = capsys.readouterr().out
    assert "wrong at pd_op.gelu, operator" in shown
    assert f"{files[2]} will hold 0.0 MB" in shown
    (op,) = reproducer.load(files[2]).run.graph.ops
    assert op.type == "pd_op.gelu"


def test_a_reproducer_of_a_fault_that_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "once_wrong.npz")
    with planted("pd_op.gelu", negated), verified(), pytest.warns(UserWarning, match="gelu"):
        losses(training, (9, 6), steps=1)
    checks.log.mismatches[0].save(file)
    assert main(["replay", file]) == 0
    assert main(["bisect", file]) == 0
    assert "not as recorded, bit by bit: output 0" in capsys.readouterr().out


def _file(mismatch: Any, tmp_path: Path) -> Path:
    file = tmp_path / "file.npz"
    mismatch.save(file)
    return file


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_reproducer_is_one_sentence(mismatch: Any, tmp_path: Path, seed: int) -> None:
    rng, file = random.Random(seed), _file(mismatch, tmp_path)
    whole = file.read_bytes()
    for _ in range(40):
        contents = bytearray(whole)
        if rng.random() < 0.3:
            del contents[rng.randrange(len(contents)) :]
        for _ in range(rng.choice((0, 1, 8)) if len(contents) < len(whole) else 4):
            if contents:
                contents[rng.randrange(len(contents))] = rng.randrange(256)
        file.write_bytes(contents)
        try:
            reproducer.load(file)
        except NgraphError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 600


def _with(file: Path, name: str, array: Any, **options: Any) -> None:
    """Replaces an array of a reproducer, or removes it if ``array`` is ``None``."""
    with np.load(file) as found:
        arrays = {**found, name: array}
    if array is None:
        del arrays[name]
    np.savez(file, **arrays)


CHANGES: dict[str, tuple[str, Any, str]] = {
    "another format": ("format", np.array([99]), "its format is"),
    "a pickle": ("input 0", np.array([{}, []], object), "'input 0' is object"),
    "another graph": ("graph", np.frombuffer(b"print(1)", np.uint8), "of another release"),
    "another dtype": ("input 1", np.zeros(8, np.int64), "input 1 is int64"),
    "another rank": ("input 1", np.zeros((1,) * 8, np.float32), "input 1 is float32"),
    "another generator": ("random", np.arange(3, dtype=np.uint64), "no state of a random"),
    "another precision": ("precision", np.frombuffer(b"f8", np.uint8), "precision is unknown"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_hostile_reproducer_is_one_sentence(mismatch: Any, tmp_path: Path, change: str) -> None:
    file, (name, array, message) = _file(mismatch, tmp_path), CHANGES[change]
    _with(file, name, array)
    with pytest.raises(NgraphError, match=message):
        reproducer.load(file)


@pytest.mark.parametrize("calls_kernels", [False, True])
def test_operators_that_are_called_are_those_that_may_be(
    mismatch: Any, tmp_path: Path, calls_kernels: bool
) -> None:
    """Although their types have converters."""
    file, graph = _file(mismatch, tmp_path), mismatch.run.graph
    type = "pd_op.gelu" if not calls_kernels else "pd_op.dropout"
    ops = [
        replace(op, called=True, type=type) if op.type == "pd_op.gelu" else op for op in graph.ops
    ]
    text = replace(graph, ops=ops).to_string().encode()
    _with(file, "graph", np.frombuffer(text, np.uint8))
    _with(file, "kernel calls", np.array([True]) if calls_kernels else None)
    with pytest.raises(NgraphError, match=f"no converter for {type}"):
        reproducer.load(file)


def test_claimed_sizes_are_checked_before_memory_is_allocated(
    mismatch: Any, tmp_path: Path
) -> None:
    def build() -> Any:
        return paddle.nn.functional.gelu(paddle.static.data("x", [-1, -1]))

    with verified(), pytest.warns(UserWarning, match="gelu"):
        Program(build).run(x=floats(3, 4))
    shapes = tmp_path / "shapes.npz"
    checks.log.mismatches[0].save(shapes, shapes_only=True)
    _with(shapes, "shape 0", np.array([2**31, 2**31]))
    with pytest.raises(NgraphError, match="its shapes take more than"):
        reproducer.load(shapes)

    file, stream = _file(mismatch, tmp_path), io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    )
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("format.npy", stream.getvalue())
    with pytest.raises(NgraphError, match="'format' is float32"):
        reproducer.load(file)


def test_a_compressed_file_is_rejected(mismatch: Any, tmp_path: Path) -> None:
    file = tmp_path / "bomb.npz"
    np.savez_compressed(file, format=np.zeros(10**7))
    with pytest.raises(NgraphError, match="claims more data than it has"):
        reproducer.load(file)


def test_a_full_disk_leaves_no_file(
    mismatch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NgraphError, match="No space left on device"):
        mismatch.save(tmp_path / "wrong.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_large_run_is_not_saved(
    mismatch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproducer, "MAX_BYTES", 1000)
    with pytest.raises(NgraphError, match="save it with shapes only, or bisect first"):
        mismatch.save(tmp_path / "wrong.npz")


def test_bfloat16_is_saved_bit_by_bit(tmp_path: Path) -> None:
    def build() -> Any:
        x = paddle.static.data("x", [4, 4], "bfloat16")
        return paddle.cast(paddle.nn.functional.softmax(x), "float32")

    with planted("pd_op.softmax", negated), verified(), pytest.warns(UserWarning, match="softmax"):
        Program(build).run(x=(floats(4, 4).view(np.uint32) >> 16).astype(np.uint16))
    (found,) = checks.log.mismatches
    found.save(tmp_path / "bfloat16.npz")
    again = reproducer.load(tmp_path / "bfloat16.npz")
    assert np.array_equal(np.array(again.run.given[0]), np.array(found.run.given[0]))


def _archive(directory: int) -> bytes:
    """The directory of an archive with entries of no data, without the entries themselves."""
    fields = (20, 3, 20, *(0,) * 8, 1, *(0,) * 6)
    entries = (struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", *fields) + b"a") * (directory // 47)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0, 0, len(entries), 0, 0)
    return entries + end


def test_a_directory_of_millions_of_arrays_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "many.npz"
    file.write_bytes(_archive(5 << 20))
    monkeypatch.setattr(zipfile, "ZipFile", pytest.fail)
    with pytest.raises(NgraphError, match="it lists too many arrays"):
        reproducer.load(file)
    # zipfile prefers a ZIP64 directory, of which the plain one says nothing.
    contents = bytearray(_archive(47 * 3))
    contents[-42:-38] = b"PK\6\7"
    file.write_bytes(contents)
    with pytest.raises(NgraphError, match="its end is no directory"):
        reproducer.load(file)


@pytest.mark.parametrize("header", ["{'descr': ('<f4', ", "((((", "'''", "-" * 3000, "\x1b[31m"])
def test_a_header_that_is_no_header(tmp_path: Path, header: str) -> None:
    file, text = tmp_path / "header.npz", header.encode() + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("format.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text)
    with pytest.raises(NgraphError, match="or is damaged") as error:
        reproducer.load(file)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_only_regular_files_are_read_and_replaced(mismatch: Any, tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    state = os.stat(path)
    for use in (reproducer.load, mismatch.save):
        with pytest.raises(NgraphError, match="is no "):
            use(path)
    assert os.stat(path).st_ino == state.st_ino


def test_a_crash_in_the_command_line_is_one_sentence(
    mismatch: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = _file(mismatch, tmp_path)
    monkeypatch.setattr(sys, "argv", ["paddle-ngraph", "replay", str(file)])
    monkeypatch.setattr(
        "paddle_ngraph.commands.verifying._replay",
        lambda options: os.kill(os.getpid(), signal.SIGKILL),
    )
    assert main() == 2
    expected = f"a kernel that runs {file} has ended its process by SIGKILL"
    assert capfd.readouterr().err == f"paddle_ngraph: {expected}\n"


def test_the_command_line_in_a_process_of_its_own(mismatch: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "paddle_ngraph", "replay"]
    for file, status in ((_file(mismatch, tmp_path), 0), (tmp_path / "none.npz", 2)):
        done = subprocess.run([*command, file], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
    assert "No such file" in done.stderr


def _with_operator(mismatch: Any, file: Path, type: str, **attrs: Any) -> SubgraphRun:
    """Saves the run with an operator that reads its first input, and that nobody has checked."""
    run = mismatch.run
    graph, (source, *_) = run.graph, run.graph.inputs
    result = replace(source, id=1 + max(spec.id for spec in graph.all_specs()))
    form = FallbackForm(results={"out": (result,)})
    name = "in" if type == "pd_op.print" else "x"
    op = Op(type, 99, {name: (source,)}, {"out": (result,)}, attrs, form=form)
    forged = replace(graph, ops=[*graph.ops, op], outputs=[*graph.outputs, result])
    other = SubgraphRun(forged, run.given, run.random)
    replace(mismatch, run=other).save(file)
    return other


def test_operators_that_no_reproducer_has_do_not_run(
    mismatch: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "print.npz"
    flags = {f"print_tensor_{name}": True for name in ("name", "type", "shape", "layout", "lod")}
    texts = {"message": "\x1b[31m", "print_phase": "FORWARD", "is_forward": True}
    _with_operator(mismatch, file, "pd_op.print", first_n=-1, summarize=3, **flags, **texts)
    assert main(["replay", str(file)]) == 2
    captured = capfd.readouterr()
    assert "no converter for pd_op.print" in captured.err
    assert "\x1b" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("type", "attrs"),
    [
        ("pd_op.matmul", {}),
        ("pd_op.gelu", {"approximate": [[1], [2]]}),  # Paddle's shape inference reads a bool there
        ("pd_op.gelu", {"approximate": "text"}),
        ("pd_op.gelu", {}),
    ],
)
def test_operators_that_paddle_rejects_do_not_run(
    mismatch: Any, tmp_path: Path, type: str, attrs: dict[str, Any]
) -> None:
    run = _with_operator(mismatch, tmp_path / "wrong.npz", type, **attrs)
    assert not fallback.makes_empty(run.text, run.given)  # without a crash
    with pytest.raises(NgraphError, match="Paddle rejects its operators"):
        reproducer.load(tmp_path / "wrong.npz")


@pytest.mark.parametrize("command", ["replay", "bisect"])
def test_inputs_that_a_kernel_rejects_are_one_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def build() -> Any:
        rows = paddle.static.data("rows", [5], "int64")
        table = paddle.static.data("table", [7, 3])
        return paddle.nn.functional.gelu(paddle.gather(table, rows))

    with planted("pd_op.gelu", negated), verified(), pytest.warns(UserWarning, match="gelu"):
        Program(build).run(rows=np.arange(5), table=floats(7, 3))
        file = tmp_path / "wrong.npz"
        checks.log.mismatches[0].save(file)
    graph = reproducer.load(file).run.graph
    (index,) = [n for n, spec in enumerate(graph.inputs) if spec.dtype == "int64"]
    _with(file, f"input {index}", np.full(5, 10**12))
    assert main([command, str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Paddle cannot run the subgraph: OutOfRangeError" in line


@pytest.mark.parametrize("shapes_only", [False, True])
def test_a_subgraph_with_kernel_calls(
    shapes_only: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def build() -> Any:
        x = paddle.static.data("x", [4, 6])
        return paddle.nn.functional.gelu(paddle.linalg.matrix_power(x[:, :4], 2)) + 1.0

    file, name = tmp_path / "wrong.npz", "FLAGS_ngraph_kernel_calls"
    paddle.set_flags({name: True})
    try:
        with planted("pd_op.gelu", negated):
            with verified(), pytest.warns(UserWarning, match="wrong at pd_op.gelu,"):
                Program(build).run(x=floats(4, 6))
            assert paddle_ngraph.stats()["kernel_calls"]
            checks.log.mismatches[0].save(file, shapes_only=shapes_only)
            paddle.set_flags({name: False})
            assert "pd_op.matrix_power" in reproducer.load(file).run.text
            for command in ("replay", "bisect"):
                assert main([command, str(file)]) == 1
                assert "gelu" in capsys.readouterr().out
        assert main(["replay", str(file)]) == 0
        assert not paddle.get_flags([name])[name]
    finally:
        paddle.set_flags({name: False})
