"""The distribution transpiler: data parallelism for a static training program.

All ranks run one program, each on its share of the batch: the gradients are averaged over the
ranks between the backward pass and their consumers, clipping, decay and updates. Gradients are
sent in flat buckets, each as soon as its gradients are computed. The collectives are Paddle's own
operators, over gloo (``paddle_ngraph.distributed.init``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import paddle

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import FETCH, SHADOW_OUTPUT, dtype_name
from paddle_ngraph.partitioning.analysis.placement import LINK_DEVICE, place_on
from paddle_ngraph.transpiler import training_program
from paddle_ngraph.transpiler.building import ACCUMULATED, Builder
from paddle_ngraph.transpiler.cutting import drop_unread_sources, remove_updates
from paddle_ngraph.transpiler.training_program import ParameterGradient, TrainingProgram

COLLECTIVES = frozenset({"pd_op.all_reduce_", "pd_op.broadcast_"})


@dataclass(frozen=True)
class DistributionOptions:
    """Options of the distribution.

    Attributes:
        bucket_mb: The maximal size of a bucket of gradients in MB; a larger gradient has a
            separate bucket.
        accumulate: The number of runs per update, which uses the average of their gradients.
        ring: The ring id of the gloo context.
        overlap: Whether gradients are averaged while the backward pass computes others.
    """

    bucket_mb: float = 25.0
    accumulate: int = 1
    ring: int = 0
    overlap: bool = False

    def __post_init__(self) -> None:
        if not self.bucket_mb > 0:
            raise NgraphError(f"bucket_mb={self.bucket_mb}: give a size in MB above 0")
        if self.accumulate < 1:
            raise NgraphError(f"accumulate={self.accumulate}: give a number of runs, 1 or more")


class Distributed(NamedTuple):
    """The result of :func:`paddle_ngraph.distribute`.

    Attributes:
        program: The program of a rank: a step with its communication and its update.
        startup: Broadcasts the variables of rank 0: to be run once, after the startup program or
            after rank 0 has loaded a checkpoint.
        fetches: The variables in ``program`` that correspond to the ``fetch_list``.
        accumulating: A program, and its fetches, that accumulates gradients and neither
            communicates nor updates: for all runs but the last before an update, for which
            ``program`` is run. ``None`` if each run updates.
    """

    program: Program
    startup: Program
    fetches: list[Value]
    accumulating: tuple[Program, list[Value]] | None = None


def transpile(
    program: Any, ranks: int, wanted: Sequence[Any] = (), options: DistributionOptions | None = None
) -> Distributed:
    """Creates the program of each rank from a single-process one, which is not modified.

    Args:
        program: A static training program, PIR or ProgramDesc.
        ranks: The number of processes.
        wanted: The fetch list: variables, or names of variables.
        options: See :class:`DistributionOptions`.

    Raises:
        NgraphError: ``program`` is not a static program, cannot be translated to PIR, updates no
            parameters, or not by their gradients alone; ``wanted`` contains a variable that is not
            in it; the number of ranks is invalid.
    """
    options = options or DistributionOptions()
    given = ngraph_transpiler.static_program(program, "distribute")
    copy, fetching = ngraph_transpiler.copied(given, wanted)
    distribute(copy, ranks, options)
    fetches = ngraph_transpiler.remove_fetches(copy, fetching)
    accumulating = _accumulating(given, wanted, options) if options.accumulate > 1 else None
    return Distributed(copy, _startup(copy, ranks, options), fetches, accumulating)


def distribute(program: Program, ranks: int, options: DistributionOptions) -> None:
    """Turns a training program into the one that each rank runs, in place."""
    if ranks < 1:
        raise NgraphError(f"ranks={ranks}: give the number of processes, 1 or more")
    training = TrainingProgram(program)
    if ranks > 1 or options.accumulate > 1:
        _CollectiveInserter(program.global_block(), training, ranks, options).apply()


def _accumulating(
    given: Any, wanted: Sequence[Any], options: DistributionOptions
) -> tuple[Program, list[Value]]:
    """The program that only adds up gradients, with its fetches; see :class:`Distributed`."""
    program, fetching = ngraph_transpiler.copied(given, wanted)
    block = program.global_block()
    training = TrainingProgram(program)
    remove_updates(program, training, fetching)
    for number, bucket in enumerate(gradient_buckets(training, options)):
        build = Builder(block, before=fetching[0] if fetching else None)
        flat = build.flat([gradient.value for gradient in bucket])
        build("pd_op.add_", [_sum(build, number, flat), flat])
    drop_unread_sources(block)
    return program, ngraph_transpiler.remove_fetches(program, fetching)


def _sum(build: Builder, number: int, flat: Value) -> Value:
    """A read of the variable that sums the gradients of bucket ``number`` over several runs."""
    return build.variable(f"{ACCUMULATED}{number}", list(flat.shape), dtype_name(flat.dtype))


def distribute_startup(startup: Program, ranks: int, options: DistributionOptions) -> None:
    """Adds operators to a startup program that broadcast its variables from rank 0."""
    if ranks == 1:
        return
    block = startup.global_block()
    setting = [op for op in block.ops if op.name() in (SHADOW_OUTPUT, "builtin.set_parameter")]
    build = Builder(block)
    for bucket in _buckets((op.operand_source(0) for op in setting), options):
        _broadcast_from_rank_0(build, bucket, options)
    for op in setting:
        block.move_op_to_block_end(op)


def _startup(program: Program, ranks: int, options: DistributionOptions) -> Program:
    """The program that broadcasts the variables of ``program`` from rank 0 to all ranks."""
    startup: Program = paddle.pir.Program()
    build = Builder(startup.global_block())
    shared = []
    for name, value in training_program.variables(program).items():
        shape, dtype = list(value.shape), dtype_name(value.dtype)
        if name.startswith(ACCUMULATED):
            build.set_variable(name, build.zeros(shape, dtype))
        elif ranks > 1:
            shared.append(build.variable(name, shape, dtype))
    for bucket in _buckets(shared, options):
        _broadcast_from_rank_0(build, bucket, options)
    return startup


def _broadcast_from_rank_0(
    build: Builder, values: Sequence[Value], options: DistributionOptions
) -> None:
    """Adds operators that overwrite ``values`` with those of rank 0."""
    flat = build.flat(values) if len(values) > 1 else build("pd_op.assign", values)
    sent = build("pd_op.broadcast_", [flat], root=0, ring_id=options.ring)
    for value, first in zip(values, build.unflattened(sent, [list(v.shape) for v in values])):
        build("pd_op.assign_out_", [first, value])


def _buckets(values: Iterable[Value], options: DistributionOptions) -> Iterator[list[Value]]:
    """Groups values by dtype into buckets of limited size, in order, without empty tensors."""
    limit = options.bucket_mb * 2**20
    pending: dict[str, list[Value]] = {}
    for value in values:
        # Empty tensors, which recurrent layers may have, are skipped: Paddle cannot send them.
        if 0 in value.shape:
            continue
        dtype = dtype_name(value.dtype)
        bucket = pending.setdefault(dtype, [])
        if bucket and sum(map(_bytes, [*bucket, value])) > limit:
            yield pending.pop(dtype)
            bucket = pending.setdefault(dtype, [])
        bucket.append(value)
    yield from pending.values()


def _bytes(value: Value) -> int:
    return prod(value.shape) * np.dtype(dtype_name(value.dtype)).itemsize


def gradient_buckets(
    training: TrainingProgram, options: DistributionOptions
) -> Iterator[list[ParameterGradient]]:
    """Groups gradients into buckets, in the order in which the backward pass computes them."""
    by_value = {id(gradient.value): gradient for gradient in training.gradients}
    for group in _gradient_rounds(training):
        for bucket in _buckets((gradient.value for gradient in group), options):
            yield [by_value[id(value)] for value in bucket]


def _gradient_rounds(training: TrainingProgram) -> Iterator[list[ParameterGradient]]:
    """Groups gradients so that a group is computed before any of it is read: by optimizer."""
    group: list[ParameterGradient] = []
    for gradient in sorted(training.gradients, key=lambda each: each.index):
        if group and gradient.index > min(each.first_reader for each in group):
            yield group
            group = []
        group.append(gradient)
    yield group


class _CollectiveInserter:
    """Inserts the collectives that average gradients into a program; see :func:`distribute`."""

    def __init__(
        self, block: Block, training: TrainingProgram, ranks: int, options: DistributionOptions
    ) -> None:
        self._block = block
        self._training = training
        self._ranks = ranks
        self._options = options
        self._operators: list[Operation | None] = [*training.operators, None]

    def apply(self) -> None:
        statistics = self._training.running_statistics()
        for number, bucket in enumerate(gradient_buckets(self._training, self._options)):
            self._average(number, bucket)
        for variables in _buckets(statistics, self._options) if self._ranks > 1 else ():
            self._average_in_place(variables)

    def _average(self, number: int, bucket: Sequence[ParameterGradient]) -> None:
        """Averages the gradients of a bucket over ranks, and has all readers read the averages."""
        last = max(gradient.index for gradient in bucket)
        build = Builder(self._block, before=self._operators[last + 1])
        flat, runs = build.flat([gradient.value for gradient in bucket]), self._options.accumulate
        if runs > 1:
            others = _sum(build, number, flat)
            flat = build("pd_op.add", [flat, others])
            empty = build.zeros(list(others.shape), dtype_name(others.dtype))
            build("pd_op.assign_out_", [empty, others])
        shapes = [list(gradient.value.shape) for gradient in bucket]
        summed = self._averaged(build, flat, runs)
        if self._options.overlap and self._ranks > 1:
            place_on(producer_of(summed), LINK_DEVICE)
        averages = build.unflattened(summed, shapes)
        for gradient, average in zip(bucket, averages):
            for op, operand in gradient.readers:
                op.operand(operand).set_source(average)

    def _averaged(self, build: Builder, flat: Value, runs: int = 1) -> Value:
        """The average of flat gradients or variables over ``runs`` runs and all ranks.

        ``flat`` is the sum over these runs on this rank.
        """
        # The gradients are divided before the all-reduce: their sum over the ranks might overflow.
        flat = build.scaled(flat, 1 / (self._ranks * runs))
        if self._ranks == 1:
            return flat
        summed: Value = build(
            "pd_op.all_reduce_", [flat], ring_id=self._options.ring, reduce_type=0
        )
        return summed

    def _average_in_place(self, variables: Sequence[Value]) -> None:
        """Overwrites variables with averages over all ranks, at the end of the program."""
        fetches = (op for op in self._block.ops if op.name() == FETCH)
        build = Builder(self._block, before=next(fetches, None))
        averages = self._averaged(build, build.flat(variables))
        shapes = [list(variable.shape) for variable in variables]
        for variable, average in zip(variables, build.unflattened(averages, shapes)):
            build("pd_op.assign_out_", [average, variable])
