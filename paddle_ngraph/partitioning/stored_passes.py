"""Results of the program pass on disk, for predictors of later processes.

Digests of programs (core/paddle/program_fingerprint.h) hold in one process. So the key of a result
has the digest of the file that Paddle has read the program from, and that of the program's text,
which settings of a predictor may have changed since: the text rounds numbers, the file does not.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import denylist, disk_cache, registry
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import serialize_program
from paddle_ngraph.paddle_private.protocols import Program, Value
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first
from paddle_ngraph.partitioning.block_report import BlockReport, IntervalReport, NativeOp
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import signals


def key_of(program: Program, file_digest: bytes, threads: int) -> str | None:
    """The key of a program's result; ``None`` if results depend on more than can be compared.

    Args:
        program: The program before the pass.
        file_digest: The digest of the file of the program.
        threads: The maximum number of threads for a subgraph.
    """
    if not flags.get("ngraph_cache_dir") or registry.foreign_types() or not denylist.is_empty():
        return None
    conditions = [
        file_digest.hex(),
        _core.digest(str(program.clone()).encode()).hex(),
        *disk_cache.fixed_conditions(),
        *disk_cache.kernel_conditions(),
        f"{len(os.sched_getaffinity(0))} cores, {threads} threads",
        repr((flags.values(), tuple(vars(SETTINGS).values()))),
        " ".join(registry.all_converters()),
    ]
    return "\n".join(conditions)


def store(key: str, report: Report, has_state: bool, rewritten: Program | None) -> None:
    """Stores a result, if the rewritten program can be read again without a loss."""
    facts: dict[str, Any] = {"report": _as_dict(report), "has_state": has_state}
    text = b""
    with signals.own_errors():
        try:
            if rewritten is not None:
                facts["empty"], text = _serialized(rewritten)
        except Exception:  # Paddle cannot write some attributes, or cannot read them
            return
    _core.store_bytes(key, json.dumps(facts).encode() + b"\n" + text)


def find(key: str) -> tuple[Report, bool, Program | None] | None:
    """The arguments of :func:`store` for this key; ``None`` if there are none, or none readable."""
    if (stored := _core.find_bytes(key)) is None:
        return None
    line, _, text = stored.partition(b"\n")
    with signals.own_errors():
        try:
            facts = json.loads(line)
            program = _program(text, facts["empty"]) if "empty" in facts else None
            return _report(facts["report"]), facts["has_state"], program
        except Exception:  # also where the system has no room for a temporary file
            return None


def _serialized(program: Program) -> tuple[list[int], bytes]:
    """A program in Paddle's format, after the numbers of values that get lost in that.

    Raises:
        ValueError: Another program would be read.
    """
    empty = [number for number, value in enumerate(_tensors(program)) if value.shape == [0]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.json"
        serialize_program(program, str(path))
        text = path.read_bytes()
    if _core.program_digest(_program(text, empty)) != _core.program_digest(program):
        raise ValueError("Paddle's format does not hold all of the program")
    return empty, text


def _program(text: bytes, empty: Collection[int]) -> Program:
    """Reads a program in Paddle's format, in which tensors of the shape [0] have the shape []."""
    program: Program = paddle.pir.Program()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.json"
        path.write_bytes(text)
        replaced.OPEN_PROGRAM.original(str(path), program)
    for number, value in enumerate(_tensors(program) if empty else ()):
        if number in empty:
            value.set_type(paddle.pir.create_shaped_type(value.type(), [0]))
    return program


def _tensors(program: Program) -> Iterator[Value]:
    """The results of all operators that are tensors, in program order."""
    for block in blocks_outermost_first(program):
        for op in block.ops:
            for value in op.results():
                if value.initialized() and value.is_dense_tensor_type():
                    yield value


def _as_dict(report: Report | BlockReport | IntervalReport | NativeOp) -> dict[str, Any]:
    """The fields of a report that are shown, with those of its parts."""
    return {each.name: _value(getattr(report, each.name)) for each in fields(report) if each.repr}


def _value(value: Any) -> Any:
    if isinstance(value, (BlockReport, IntervalReport, NativeOp)):
        return _as_dict(value)
    return [_value(each) for each in value] if isinstance(value, (list, tuple)) else value


def _report(stored: dict[str, Any]) -> Report:
    blocks = [
        BlockReport(
            **{
                **block,
                "intervals": [IntervalReport(**each) for each in block["intervals"]],
                "native": [NativeOp(**each) for each in block["native"]],
            }
        )
        for block in stored["blocks"]
    ]
    return Report(**{**stored, "blocks": blocks})
