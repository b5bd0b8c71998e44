"""Checks before the first step that all ranks run equal programs, and compiles on each rank.

A collective waits 30 seconds for the other ranks and then fails, so no rank may enter one while
another rank is still compiling: the first run is without communication. Ranks with different
programs would deadlock, or sum unrelated tensors.
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
from paddle_ngraph.distributed.agreement import RejectedJobError
from paddle_ngraph.distributed.job import RING, DistributedJob
from paddle_ngraph.paddle_private.names import IrMapping, producer_of, set_random_states
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Scope, Value
from paddle_ngraph.partitioning.analysis.block_view import RING_ATTRIBUTE, blocks_outermost_first
from paddle_ngraph.partitioning.analysis.placement import PLACE_ATTRIBUTE
from paddle_ngraph.transpiler import two_level_sums
from paddle_ngraph.transpiler.building import Builder
from paddle_ngraph.transpiler.scope_copies import copies_of
from paddle_ngraph.transpiler.two_level_sums import TwoLevels
from paddle_ngraph.version import __version__

_DIFFERENCE_MESSAGES = {
    "program": "run different programs",
    "feed": "are fed different shapes or dtypes",
    "versions": "have different versions installed",
}


def agree(job: DistributedJob, programs: Sequence[Program], feed: Mapping[str, Any]) -> None:
    """Compares programs and feeds of all ranks.

    Raises:
        RejectedJobError: Ranks differ.
    """
    mine = {
        "program": digest(*programs),
        "feed": "; ".join(f"{name} {_feed_signature(feed[name])}" for name in sorted(feed)),
        "versions": ", ".join([__version__, *installation.versions()]),
    }
    first, *others = map(json.loads, job.exchange(json.dumps(mine)))
    for rank, other in enumerate(others, 1):
        for key, what in _DIFFERENCE_MESSAGES.items():
            if first[key] != other[key]:
                raise RejectedJobError(
                    f"ranks 0 and {rank} {what} ({first[key]} and {other[key]}): all ranks have "
                    "to build the same program, and be fed the same shapes"
                )


# The layer's name that a printed operator has. Its index counts over all programs of the process,
# so digests leave it out.
_LAYER_NAME = re.compile(r'struct_name:"[^"]*",?')


# The attribute of an operator with the digest of the program before its all-reduces were replaced,
# which depends neither on the rank nor on the choice.
_DIGEST_ATTRIBUTE = "ngraph_digest"


def digest(*programs: Program) -> str:
    """A digest of programs that is equal on all ranks, and in each run of a script."""
    for block in (block for each in programs for block in blocks_outermost_first(each)):
        for op in block.ops:
            if op.has_attr(_DIGEST_ATTRIBUTE):
                return op.str_attr(_DIGEST_ATTRIBUTE)
    text = "".join(_LAYER_NAME.sub("", str(program)) for program in programs)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def replace_all_reduces(program: Program, plan: TwoLevels) -> None:
    """Replaces the all-reduces of a program by sums in two levels; its digest remains."""
    text = digest(program)
    for op in two_level_sums.replace_all_reduces(program, RING, plan)[:1]:
        op.set_str_attr(_DIGEST_ATTRIBUTE, text)


def _feed_signature(value: Any) -> str:
    array = np.asarray(value)
    return f"{array.dtype} {list(array.shape)}"


def single_rank_program(program: Program, fetch_list: Sequence[Any]) -> tuple[Program, list[Any]]:
    """A copy without communication, and its variables for ``fetch_list``.

    A collective is replaced by an assignment, marked as a communicating operator, so that the
    partition into subgraphs does not change.
    """
    mapping = IrMapping()
    copy = program.clone(mapping)
    silent: dict[int, Any] = {}
    for block in blocks_outermost_first(copy):
        for op in filter(_is_removable_collective, list(block.ops)):
            (result,) = op.results()
            silent[result.id] = _without_collective(block, op)
            result.replace_all_uses_with(silent[result.id])
            block.remove_op(op)
    values = [each if isinstance(each, str) else mapping.look_up(each) for each in fetch_list]
    return copy, [v if isinstance(v, str) else silent.get(v.id, v) for v in values]


def _is_removable_collective(op: Operation) -> bool:
    """Whether a program without this collective is valid: the output has the input's shape."""
    if not op.has_attr(RING_ATTRIBUTE) or (op.num_operands(), len(op.results())) != (1, 1):
        return False
    return list(op.operand_source(0).shape) == list(op.result(0).shape)


def _without_collective(block: Block, op: Operation) -> Value:
    build = Builder(block, before=op)
    name = "pd_op.assign_" if op.name().endswith("_") else "pd_op.assign"
    value: Value = build(name, [op.operand_source(0)])
    assignment = producer_of(value)
    assignment.set_int_attr(RING_ATTRIBUTE, op.attrs()[RING_ATTRIBUTE])
    if op.has_attr(PLACE_ATTRIBUTE):
        assignment.set_str_attr(PLACE_ATTRIBUTE, op.str_attr(PLACE_ATTRIBUTE))
    return value


def compile_single_rank(
    executor: Any,
    program: Program,
    feed: Mapping[str, Any],
    fetch_list: Sequence[Any],
    scope: Scope,
) -> None:
    """Builds the functions of a program: runs one step on copies, without communication."""
    copy, fetches = single_rank_program(program, fetch_list)
    copies = copies_of(program, scope)
    random = paddle.get_rng_state("cpu")
    try:
        executor.run(copy, feed=dict(feed), fetch_list=fetches, scope=copies)
    finally:
        set_random_states(random)
