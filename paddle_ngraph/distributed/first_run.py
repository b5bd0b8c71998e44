"""Before the first step: do all ranks run the same, and has each compiled it?

A collective waits 30 seconds for the other ranks and then fails, so nobody may enter one while
another rank is still compiling. And ranks that run different programs would wait for each other, or
add up what does not belong together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from paddle_ngraph import installation
from paddle_ngraph.distributed.job import ALONE, Job
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_seam.names import IrMapping
from paddle_ngraph.paddle_seam.protocols import Program, Scope
from paddle_ngraph.program.view import blocks_outside_in
from paddle_ngraph.transpiler.scope_copies import copies_of
from paddle_ngraph.version import __version__

_WHAT = {
    "program": "run different programs",
    "feed": "are fed different shapes or dtypes",
    "versions": "have different versions installed",
}


def agree(job: Job, programs: Sequence[Program], feed: Mapping[str, Any]) -> None:
    """Compares what the ranks are about to run: programs, and what they are fed.

    Raises:
        NgraphError: They differ: on every rank, with the same sentence.
    """
    mine = {
        "program": digest(*programs),
        "feed": "; ".join(f"{name} {_kind(feed[name])}" for name in sorted(feed)),
        "versions": ", ".join([__version__, *installation.versions()]),
    }
    first, *others = map(json.loads, job.exchange(json.dumps(mine)))
    for rank, other in enumerate(others, 1):
        for key, what in _WHAT.items():
            if first[key] != other[key]:
                raise NgraphError(
                    f"ranks 0 and {rank} {what} ({first[key]} and {other[key]}): all ranks have "
                    "to build the same program, and be fed the same shapes"
                )


# Which layer an operator belongs to, counted over all programs of the process.
_LAYER_NAME = re.compile(r'struct_name:"[^"]*",?')


def digest(*programs: Program) -> str:
    """Tells programs apart: the same for all ranks, and in each run of a script."""
    text = "".join(_LAYER_NAME.sub("", str(program)) for program in programs)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _kind(value: Any) -> str:
    array = np.asarray(value)
    return f"{array.dtype} {list(array.shape)}"


def alone(program: Program) -> tuple[Program, IrMapping]:
    """A copy whose collectives are those of this rank alone, and what became of its values."""
    mapping = IrMapping()
    copy = program.clone(mapping)
    for block in blocks_outside_in(copy):
        for op in block.ops:
            if op.has_attr("ring_id"):
                op.set_int_attr("ring_id", ALONE)
    return copy, mapping


def compile_alone(
    executor: Any,
    program: Program,
    feed: Mapping[str, Any],
    fetch_list: Sequence[Any],
    scope: Scope,
) -> None:
    """Runs a step on copies of the variables, without the other ranks: functions are built."""
    copy, mapping = alone(program)
    copies = copies_of(program, scope)
    fetches = [each if isinstance(each, str) else mapping.look_up(each) for each in fetch_list]
    random = paddle.get_rng_state("cpu")
    try:
        executor.run(copy, feed=dict(feed), fetch_list=fetches, scope=copies)
    finally:
        paddle.set_rng_state(random, "cpu")
