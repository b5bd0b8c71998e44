"""The program pass: replaces each convertible subgraph of a program with one engine operator.

Data flows one way: :func:`classify` determines the convertible operators, :func:`partition` groups
them into as few subgraphs as the dependencies allow, :func:`subgraph_of` describes a subgraph as a
graph, and :func:`rewrite` replaces each subgraph with one ``ngraph_engine`` operator. This module
has the loop around the first three, and the entry points.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from paddle_ngraph import statistics
from paddle_ngraph.partitioning import (
    cost_model,
    dequantization,
    einsum_operands,
    float64_masks,
    legacy_operators,
    list_members,
    packed_layers,
    rules,
)
from paddle_ngraph.partitioning.analysis import loops, single_assignment
from paddle_ngraph.partitioning.analysis.aliases import Aliases
from paddle_ngraph.partitioning.analysis.block_view import (
    FETCH,
    BlockView,
    OpNode,
    blocks_outermost_first,
    changes_parameters,
    is_packed,
    may_write_variables,
)
from paddle_ngraph.partitioning.analysis.capability import Capability
from paddle_ngraph.partitioning.classify import classify, fixpoint
from paddle_ngraph.partitioning.partition import partition
from paddle_ngraph.partitioning.report import BlockReport, IntervalReport, NativeOp, Report
from paddle_ngraph.partitioning.rewrite import rewrite
from paddle_ngraph.partitioning.subgraph import Subgraph, SubgraphSettings, subgraph_of
from paddle_ngraph.partitioning.whole_program import Whole, find_whole_program
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import first_use, signals

T = TypeVar("T")


def apply(
    program: Any,
    keep_weights: bool = False,
    open_size: int | None = SETTINGS.typical_dimension_size,
    gradients: Collection[str] = (),
    eager_weights: bool = False,
    threads: int = 0,
    tries: bool = True,
    folds_constants: bool = False,
) -> Report:
    """Rewrites a PIR program in place, every block of it.

    Args:
        program: A ``paddle.pir.Program`` (``paddle.static.Program`` in PIR mode), or its global
            block.
        keep_weights: Let functions retain its parameters as constants. Only for a program that
            writes none of its variables, and where every other writer reports its writes
            (``weights_written`` of the core).
        open_size: The approximate size of dynamic dimensions, for the cost model; ``None`` disables
            the cost model.
        gradients: Types of operators in another program that compute gradients for this one.
        eager_weights: Whether eager tensors share the parameters while the program runs.
        threads: The maximum number of threads for a subgraph; 0: as the flags specify.
        tries: Whether to try conversions now even if the function will be compiled in the
            background.
        folds_constants: Whether operators that read no variable fall back: Paddle's predictors
            compute them once.

    Returns:
        A report of converted subgraphs, and of fallbacks with their reasons.
    """
    first_use.begin()
    collect(program)
    packed = canonicalize(program)
    settings = SubgraphSettings(
        keep_weights, open_size, sorted(gradients), eager_weights, threads, tries, folds_constants
    )
    aliases = Aliases(next(iter(blocks_outermost_first(program))))
    blocks = [
        # Replacing a block changes the values of others, but creates no alias.
        _apply_to_block(block, settings, None if aliases else aliases)
        for block in blocks_outermost_first(program)
    ]
    report = Report(blocks, packed)
    statistics.count(report)
    return report


def canonicalize(program: Any) -> int:
    """Applies the rewrites that precede partitioning. Idempotent.

    Returns:
        The number of recurrent layers converted to packed weights.
    """
    with signals.deferred_signals():
        list_members.split_lists(program)
        loops.capture_arrays(program)
        loops.declare_sizes_of_all_iterations(program)
        single_assignment.to_single_assignment(program)
        loops.drop_dead_loop_outputs(program)
        loops.share_initial_values(program)
        dequantization.replace_dequantize_linear(program)
        float64_masks.round_before_moves(program)
        einsum_operands.give_gradients_operands(program)
        return packed_layers.apply(program)


def apply_by_name(block: Any, scope: Any) -> None:
    """Entry point of the pass ``ngraph_pass`` in Paddle's pass manager.

    Functions retain weights only for a predictor, whose ``scope`` has no other writer. In other
    cases the programs that share the scope are unknown.
    """
    runs = _runs_by_name.get()
    has_state = runs is not None and changes_parameters(block)
    keep_weights = scope is not None and not may_write_variables(block)
    is_predictor = runs is not None
    report = apply(
        block,
        keep_weights,
        threads=_threads.get(),
        tries=not is_predictor,
        folds_constants=is_predictor,
    )
    if runs is not None:
        parameters = [
            op.attrs()["parameter_name"] for op in block.ops if op.name() == "builtin.parameter"
        ]
        runs.append(
            RunByName(report, has_state, parameters, scope, find_whole_program(block, FETCH))
        )


class RunByName(NamedTuple):
    """Record of a run of the program pass that Paddle started by its name, ``ngraph_pass``.

    Attributes:
        report: The report on the program.
        has_state: Whether the program changes parameters.
        parameters: The names of all its parameters.
        scope: The scope of the parameters; valid as long as the predictor lives.
        whole: The program, if it is now a single engine operator.
    """

    report: Report
    has_state: bool
    parameters: list[str]
    scope: Any
    whole: Whole | None


# For this thread, lists to which runs of the pass are appended while a caller collects them; else
# ``None``.
_runs_by_name: ContextVar[list[RunByName] | None] = ContextVar("runs by name", default=None)
_rewritten: ContextVar[list[Any] | None] = ContextVar("rewritten programs", default=None)
# Thread limit of subgraphs when Paddle applies the program pass by its name, in this thread: Paddle
# passes no arguments to a pass.
_threads: ContextVar[int] = ContextVar("threads", default=0)


@contextmanager
def _collected(where: ContextVar[list[T] | None]) -> Iterator[list[T]]:
    found: list[T] = []
    token = where.set(found)
    try:
        yield found
    finally:
        where.reset(token)


@contextmanager
def runs_by_name(threads: int = 0) -> Iterator[list[RunByName]]:
    """Collects records of runs of ``ngraph_pass`` by name, inside ``with``, in this thread.

    Args:
        threads: The maximum number of threads for a subgraph; 0: as the flags specify.
    """
    token = _threads.set(threads)
    try:
        with _collected(_runs_by_name) as runs:
            yield runs
    finally:
        _threads.reset(token)


def rewritten_programs() -> AbstractContextManager[list[Any]]:
    """Collects, for tests and tools, the programs that the pass rewrites inside the ``with`` block.

    Only programs that this thread rewrites, or finds rewritten.
    """
    return _collected(_rewritten)


def collect(program: Any) -> None:
    """Adds a program to those that :func:`rewritten_programs` collects in this thread."""
    if (programs := _rewritten.get()) is not None:
        programs.append(program)


def dry_run(
    program: Any,
    open_size: int | None = SETTINGS.typical_dimension_size,
    folds_constants: bool = False,
) -> Report:
    """Returns the report of :func:`apply` without changing the program."""
    copy = program.clone()
    packed = canonicalize(copy)
    settings = SubgraphSettings(False, open_size, folds_constants=folds_constants)
    reports, pending = [], [copy.global_block()]
    aliases = Aliases(copy.global_block())
    while pending:
        block = pending.pop(0)
        plan = _partition_block(block, settings, aliases)
        reports.append(plan.report())
        inside = {node.index for subgraph in plan.subgraphs for node in subgraph.interval.nodes}
        # The body of a converted loop or branch belongs to its subgraph, and is not reported.
        remaining = [op for index, op in enumerate(block.ops) if index not in inside]
        pending += [inner for op in remaining if op.num_regions() > 0 for inner in op.blocks()]
    return Report(reports, packed)


def _apply_to_block(block: Any, settings: SubgraphSettings, aliases: Aliases | None) -> BlockReport:
    plan = _partition_block(block, settings, aliases)
    if plan.subgraphs:
        with signals.deferred_signals():
            rewrite(plan.capable, plan.levels, plan.subgraphs)
    return plan.report()


class _BlockPartition(NamedTuple):
    """The subgraphs into which a block is partitioned, with the reasons for a report."""

    capable: Capability
    levels: Mapping[OpNode, int]
    subgraphs: Sequence[Subgraph]
    has_small_interval: bool

    def report(self) -> BlockReport:
        """Returns a report of the block's subgraphs, and of its operators that fall back."""
        capable = self.capable
        intervals = [
            IntervalReport(
                first=interval.range[0],
                last=interval.range[1],
                types=[node.type for node in interval.nodes],
                draws=bool(capable.random_nodes(interval.nodes)),
                device=interval.device,
                indices=[node.index for node in interval.nodes],
                graph=subgraph.graph,
                kernel_calls=[n.type for n in interval.nodes if capable.is_kernel_call(n)],
            )
            for subgraph, interval in ((subgraph, subgraph.interval) for subgraph in self.subgraphs)
        ]
        nodes = capable.view.nodes
        return BlockReport(
            intervals=intervals,
            native=[
                NativeOp(
                    node.index,
                    legacy_operators.shown_type(node.op),
                    capable.reasons.get(node, "no converter"),
                )
                for node in nodes
                if node.is_compute and not capable.can_convert(node) and not is_packed(node.type)
            ],
            has_small_interval=self.has_small_interval,
            engines=sum(node.is_engine for node in nodes),
            drawing=sum(i.draws for i in intervals) + sum(node.draws for node in nodes),
        )


# Paddle's constant folding in a predictor would compute the engine operator, and fail on its many
# results.
_CONSTANT = "it computes a constant, which Paddle computes once for a predictor"


def _partition_block(
    block: Any, settings: SubgraphSettings, aliases: Aliases | None
) -> _BlockPartition:
    """Partitions a block into subgraphs that satisfy the cost model and the legality rules.

    The iteration terminates: each round rejects at least one operator, or cuts at least one more
    off from a variable that it reads. There are finitely many of each, and neither is undone.
    """
    capable = classify(BlockView(block, aliases))
    has_small_interval = False
    while True:
        signals.safe_point()
        intervals, levels = partition(capable)
        subgraphs = [subgraph_of(capable, interval, settings) for interval in intervals]
        rejected: dict[OpNode, str] = {}
        for subgraph in subgraphs:
            signals.safe_point()
            reason = cost_model.reason_against(subgraph.graph, settings.open_size)
            if settings.folds_constants and not (subgraph.inputs or subgraph.states):
                rejected.update(dict.fromkeys(subgraph.interval.nodes, _CONSTANT))
            elif reason is not None:
                has_small_interval = True
                rejected.update(dict.fromkeys(subgraph.interval.nodes, reason))
            else:
                rejected.update(rules.illegal_operators(capable, subgraph, settings.tries))
        cut_off = frozenset(rules.build_time_cuts(capable, intervals)) - capable.cut_off
        if not rejected and not cut_off:
            return _BlockPartition(capable, levels, subgraphs, has_small_interval)
        capable = fixpoint(capable.without(rejected).with_cuts(cut_off))
