"""The program pass: replaces each convertible subgraph of a program with one engine operator.

Data flows one way: :func:`classify` determines the convertible operators, :func:`partition` groups
them into as few subgraphs as the dependencies allow, :func:`subgraph_of` describes a subgraph as a
graph, and :func:`rewrite` replaces each subgraph with one ``ngraph_engine`` operator. This module
has the loop around the first three, and the entry points.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from paddle_ngraph import _core, flags, statistics
from paddle_ngraph.conversion import denylist, registry
from paddle_ngraph.ir.reasons import NO_CONVERTER, FallbackReason
from paddle_ngraph.partitioning import (
    cost_model,
    dequantization,
    einsum_operands,
    fallback,
    float64_masks,
    legacy_operators,
    list_members,
    operator_lines,
    packed_layers,
    rules,
    stored_passes,
    unrolled_loops,
)
from paddle_ngraph.partitioning.analysis import loops, single_assignment
from paddle_ngraph.partitioning.analysis.aliases import Aliases
from paddle_ngraph.partitioning.analysis.block_view import (
    FETCH,
    BlockView,
    OpNode,
    blocks_outermost_first,
    changes_parameters,
    is_engine,
    is_packed,
    may_write_variables,
)
from paddle_ngraph.partitioning.analysis.capability import Capability
from paddle_ngraph.partitioning.analysis.operator_kinds import is_legacy_operator
from paddle_ngraph.partitioning.analysis.static_types import Shapes
from paddle_ngraph.partitioning.block_report import BlockReport, IntervalReport, NativeOp
from paddle_ngraph.partitioning.classify import classify, fixpoint
from paddle_ngraph.partitioning.operator_reports import BlockOperators
from paddle_ngraph.partitioning.partition import partition
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.partitioning.rewrite import rewriting_of
from paddle_ngraph.partitioning.subgraph import Subgraph, SubgraphSettings, subgraph_of
from paddle_ngraph.partitioning.whole_program import Whole, find_whole_program
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import clock, first_use, signals
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

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
    settings = SubgraphSettings(
        keep_weights, open_size, sorted(gradients), eager_weights, threads, tries, folds_constants
    )
    first_use.begin()
    collect(program)
    return _apply(program, settings, canonicalize(program))


def _apply(program: Any, settings: SubgraphSettings, packed: int) -> Report:
    """Replaces the subgraphs of all blocks."""
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
        loops.declare_unknown_sizes(program)
        single_assignment.to_single_assignment(program)
        # Before loops get copies of initial values that have several readers: here some get them.
        unrolled_loops.compute_steps_once(program)
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
    key = None if runs is None or scope is None else _key(block)
    known = None if key is None else _known.get(key)
    on_disk = None if key is None or known is not None else _key_on_disk(block.program)
    if on_disk is not None:
        known = _stored(key, on_disk)
    if known is not None:
        known.repeat(block)
    else:
        known = _applied_and_stored(block, scope, key, on_disk)
    if runs is not None:
        parameters = [
            op.attrs()["parameter_name"] for op in block.ops if op.name() == "builtin.parameter"
        ]
        whole = find_whole_program(block, FETCH)
        graphs = _graphs(block)
        runs.append(RunByName(known.report, known.has_state, parameters, scope, whole, graphs))


def _graphs(block: Any) -> list[str]:
    """The graphs of all engine operators of a program."""
    return [
        op.attrs()["graph"]
        for inner in blocks_outermost_first(block)
        for op in inner.ops
        if is_engine(op.name())
    ]


class _Applied(NamedTuple):
    """The changes that the pass, run by name, has made to a program, for others of equal contents.

    Attributes:
        report: The report on the program.
        has_state: Whether the program changes parameters.
        rewritten: A copy of the rewritten program; ``None`` if nothing was changed.
    """

    report: Report
    has_state: bool
    rewritten: Any

    def repeat(self, block: Any) -> None:
        """Does the same to a block of equal contents."""
        first_use.begin()
        collect(block)
        if self.rewritten is not None:
            with signals.deferred_signals():
                _core.replace_contents(block, self.rewritten)
            for graph in _graphs(block):
                fallback.record_graph(graph)
        statistics.count(self.report)


_known: LRUCache[Hashable, _Applied] = process_cache(
    __name__,
    "predictor_passes",
    "changes that the program pass has made to programs of predictors",
    key="digest of the program, flags, policy, converters, denylist and threads",
    bound=64,
)


def _key_on_disk(program: Any) -> str | None:
    """The key of a predictor's program, before the pass, for other processes."""
    with signals.own_errors():
        digest = _file_digest.get()()
        return None if digest is None else stored_passes.key_of(program, digest, _threads.get())


def _stored(key: Hashable, on_disk: str) -> _Applied | None:
    """The changes that another process has made to a predictor's program, if they are on disk."""
    with signals.own_errors():
        found = stored_passes.find(on_disk)
    return None if found is None else _known.put(key, _Applied(*found))


def _applied_and_stored(
    block: Any, scope: Any, key: Hashable | None, on_disk: str | None
) -> _Applied:
    """Runs the pass, and keeps its changes under the keys that there are."""
    start = clock.now()
    applied = _applied(block, scope, is_predictor=_runs_by_name.get() is not None)
    if key is not None:
        _known.put(key, applied)
    is_slow = clock.now() - start >= flags.get("ngraph_cache_min_ms") / 1000
    if on_disk is not None and is_slow and denylist.is_empty():
        stored_passes.store(on_disk, *applied)
    return applied


def _key(block: Any) -> Hashable:
    """The key of a predictor's program: servers create predictors of one model again and again."""
    return _core.program_digest(block.program), conditions(_threads.get())


def conditions(threads: int) -> Hashable:
    """All but the program on which the pass, run by name, depends, with this limit of threads."""
    generations = registry.generation(), denylist.generation()
    return flags.values(), tuple(vars(SETTINGS).values()), *generations, threads


def _applied(block: Any, scope: Any, is_predictor: bool) -> _Applied:
    has_state = is_predictor and changes_parameters(block)
    settings = SubgraphSettings(
        keep_weights=scope is not None and not may_write_variables(block),
        open_size=SETTINGS.typical_dimension_size,
        threads=_threads.get(),
        tries=not is_predictor,
        folds_constants=is_predictor,
    )
    first_use.begin()
    collect(block)
    before = _core.program_digest(block.program)
    report = _apply(block, settings, canonicalize(block))
    is_changed = _core.program_digest(block.program) != before
    return _Applied(report, has_state, block.program.clone() if is_changed else None)


class RunByName(NamedTuple):
    """Record of a run of the program pass that Paddle started by its name, ``ngraph_pass``.

    Attributes:
        report: The report on the program.
        has_state: Whether the program changes parameters.
        parameters: The names of all its parameters.
        scope: The scope of the parameters; valid as long as the predictor lives.
        whole: The program, if it is now a single engine operator.
        graphs: The graphs of all its engine operators.
    """

    report: Report
    has_state: bool
    parameters: list[str]
    scope: Any
    whole: Whole | None
    graphs: list[str]


# For this thread, lists to which runs of the pass are appended while a caller collects them; else
# ``None``.
_runs_by_name: ContextVar[list[RunByName] | None] = ContextVar("runs by name", default=None)
_rewritten: ContextVar[list[Any] | None] = ContextVar("rewritten programs", default=None)
# Thread limit of subgraphs when Paddle applies the program pass by its name, in this thread: Paddle
# passes no arguments to a pass.
_threads: ContextVar[int] = ContextVar("threads", default=0)
# The digest of the file of the program to which Paddle applies it.
FileDigest = Callable[[], "bytes | None"]
_file_digest: ContextVar[FileDigest] = ContextVar("file digest", default=lambda: None)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def runs_by_name(
    threads: int = 0, file_digest: FileDigest = lambda: None
) -> Iterator[list[RunByName]]:
    """Collects records of runs of ``ngraph_pass`` by name, inside ``with``, in this thread.

    Args:
        threads: The maximum number of threads for a subgraph; 0: as the flags specify.
        file_digest: Returns the digest of the file that Paddle has read the program from, or
            ``None`` if the pass may get another program.
    """
    runs: list[RunByName] = []
    with _set(_threads, threads), _set(_file_digest, file_digest), _set(_runs_by_name, runs):
        yield runs


@contextmanager
def rewritten_programs() -> Iterator[list[Any]]:
    """Collects, for tests and tools, the programs that the pass rewrites inside the ``with`` block.

    Only programs that this thread rewrites, or finds rewritten.
    """
    programs: list[Any] = []
    with _set(_rewritten, programs):
        yield programs


def collect(program: Any) -> None:
    """Adds a program to those that :func:`rewritten_programs` collects in this thread."""
    if (programs := _rewritten.get()) is not None:
        programs.append(program)


def dry_run(
    program: Any,
    open_size: int | None = SETTINGS.typical_dimension_size,
    folds_constants: bool = False,
    shapes: Shapes = MappingProxyType({}),
) -> Report:
    """Returns the report of :func:`apply` without changing the program.

    Args:
        program: The program.
        open_size, folds_constants: As for :func:`apply`.
        shapes: The shapes of some feeds, for estimates of work.
    """
    copy = program.clone()
    packed = canonicalize(copy)
    settings = SubgraphSettings(False, open_size, folds_constants=folds_constants)
    reports, pending = [], [copy.global_block()]
    aliases = Aliases(copy.global_block())
    while pending:
        block = pending.pop(0)
        plan = _partition_block(block, settings, aliases)
        reports.append(plan.report(shapes))
        inside = {node.index for subgraph in plan.subgraphs for node in subgraph.interval.nodes}
        # The body of a converted loop or branch belongs to its subgraph, and is not reported.
        remaining = [op for index, op in enumerate(block.ops) if index not in inside]
        pending += [inner for op in remaining if op.num_regions() > 0 for inner in op.blocks()]
    return Report(reports, packed)


def _apply_to_block(block: Any, settings: SubgraphSettings, aliases: Aliases | None) -> BlockReport:
    plan = _partition_block(block, settings, aliases)
    report = plan.report()  # which reads values that the rewriting erases
    for op in report.native:
        operator_lines.remember_native(op.type, report.call_stack(op.index))
    for subgraph, interval in zip(plan.subgraphs, report.intervals):
        stacks = {index: report.call_stack(index) for index in interval.indices}
        operator_lines.remember(subgraph.text, stacks)
    if plan.subgraphs:
        rewriting = rewriting_of(plan.capable, plan.levels, plan.subgraphs)
        with signals.deferred_signals():
            rewriting.apply(block, plan.capable.view.values)
    return report


class _BlockPartition(NamedTuple):
    """The subgraphs into which a block is partitioned, with the reasons for a report."""

    capable: Capability
    levels: Mapping[OpNode, int]
    subgraphs: Sequence[Subgraph]
    has_small_interval: bool

    def report(self, shapes: Shapes = MappingProxyType({})) -> BlockReport:
        """Returns a report of the block's operators and subgraphs; valid before a rewrite.

        Args:
            shapes: The shapes of some feeds, for estimates of work.
        """
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
                kernel_calls=[n.type for n in interval.nodes if capable.runs_kernel(n)],
                calls_inside=[
                    op.type for node in interval.nodes for op in capable.calls_inside(node)
                ],
            )
            for subgraph, interval in ((subgraph, subgraph.interval) for subgraph in self.subgraphs)
        ]
        nodes = capable.view.nodes
        native = [
            node
            for node in nodes
            if node.is_compute and not capable.can_convert(node) and not is_packed(node.type)
        ]
        return BlockReport(
            intervals=intervals,
            native=[
                NativeOp(
                    node.index,
                    legacy_operators.shown_type(node.op),
                    capable.reasons.get(node, NO_CONVERTER),
                )
                for node in native
            ],
            has_small_interval=self.has_small_interval,
            engines=sum(node.is_engine for node in nodes),
            drawing=sum(i.draws for i in intervals) + sum(node.draws for node in nodes),
            block_operators=BlockOperators(capable.view, shapes),
            onednn_kernels=self._count_onednn_kernels(native),
        )

    def _count_onednn_kernels(self, native: Sequence[OpNode]) -> int:
        """Counts oneDNN's kernels for native operators and for kernel calls, which lose them."""
        capable = self.capable
        converted = [node for each in self.subgraphs for node in each.interval.nodes]
        calls = [node for node in converted if capable.is_kernel_call(node)]
        inside = [op for node in converted for op in capable.calls_inside(node)]
        return cost_model.count_onednn_kernels(capable.view, [*native, *calls]) + sum(
            cost_model.has_onednn_kernel(op.type, spec.dtype)
            for op in inside
            for spec in [*op.input_specs(), *op.output_specs()][:1]
        )


# Paddle's constant folding in a predictor would compute the engine operator, and fail on its many
# results.
_CONSTANT = FallbackReason(
    "it computes a constant, which Paddle computes once for a predictor",
    "nothing: it costs no time in runs",
)


def _partition_block(
    block: Any, settings: SubgraphSettings, aliases: Aliases | None
) -> _BlockPartition:
    """Partitions a block into subgraphs that satisfy the cost model and the legality rules.

    The iteration terminates: each round rejects at least one operator, or cuts at least one more
    off from a variable that it reads. There are finitely many of each, and neither is undone.
    """
    capable = classify(BlockView(block, aliases))
    has_small_interval = False
    legacy = sum(is_legacy_operator(node.type) for node in capable.view.nodes)
    while True:
        signals.safe_point()
        intervals, levels = partition(capable)
        subgraphs = [subgraph_of(capable, interval, settings) for interval in intervals]
        rejected: dict[OpNode, str] = {}
        reason_against_all = cost_model.reason_against_all(
            [subgraph.graph for subgraph in subgraphs], legacy, settings.open_size
        )
        for subgraph in subgraphs:
            signals.safe_point()
            reason = reason_against_all or cost_model.reason_against(
                subgraph.graph, settings.open_size
            )
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
