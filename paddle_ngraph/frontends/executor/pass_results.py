"""Results of the program pass, found again for plans of equal contents.

Servers that load their model for each request, into a scope of its own, run equal programs: the
pass would take several times as long as the run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from paddle_ngraph import _core, flags, statistics
from paddle_ngraph.conversion import denylist, registry
from paddle_ngraph.frontends.executor import paddle_plans, scope_tracking
from paddle_ngraph.paddle_private.protocols import Plan, Program
from paddle_ngraph.partitioning import fallback, program_pass
from paddle_ngraph.partitioning.analysis.block_view import (
    FETCH,
    is_packed,
    may_share_memory,
    must_run_sequentially,
    nodes_of,
)
from paddle_ngraph.partitioning.block_report import NativeOp
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.partitioning.whole_program import Whole, find_whole_program
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache

_results: LRUCache[Hashable, PassResult] = process_cache(
    __name__,
    "pass_results",
    "programs that the program pass has rewritten, with their properties",
    key="job type and digest of a plan's program, flags, policy, converters and denylist",
    bound=64,
)


class RewrittenPrograms:
    """The rewritten PIR programs of a plan, and their properties. Never changed, so plans share it.

    Args:
        plan: Paddle's plan, of which the programs are rewritten copies.
        programs: The rewritten programs by job type.
        num_stochastic: The number of their engine operators that sample random numbers.

    Attributes:
        graphs: The graph strings of the engine operators.
        has_order: Whether the operators of the plan run one by one, in program order.
        runs_in_order: Whether those of the rewritten programs have to.
        shares_memory: Whether variables may share memory.
        runs_all: Whether the engine computes all operators.
        is_single: Whether the plan is one run of one program.
        unfed: Variables that translated programs read from the scope and that are not persistable.
    """

    def __init__(self, plan: Plan, programs: dict[str, Program], num_stochastic: int) -> None:
        self._programs = programs
        nodes = [node for program in programs.values() for node in nodes_of(program)]
        self.graphs = [node.graph for node in nodes if node.is_engine]
        self.has_order = paddle_plans.is_sequential(plan)
        self.runs_in_order = self.has_order or must_run_sequentially(nodes, num_stochastic)
        self.shares_memory = may_share_memory(nodes)
        self.runs_all = all(is_packed(node.type) for node in nodes if node.is_compute)
        self.is_single = len(plan.job_list()) == 1 and len(programs) == 1
        pir = plan.job_types()
        legacy = [each for job_type, each in programs.items() if job_type not in pir]
        self.unfed = [name for program in legacy for name in _unfed(program)]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the scope variables that the programs use."""
        return scope_tracking.names_in(self._programs.values())

    @cached_property
    def whole(self) -> Whole | None:
        """The programs as one engine operator; ``None`` if they have other operators."""
        if not self.is_single:
            return None
        (program,) = self._programs.values()
        return find_whole_program(program.global_block(), FETCH)

    def record(self) -> None:
        """Records programs and graphs as a pass does."""
        for program in self._programs.values():
            program_pass.collect(program)
        for graph in self.graphs:
            fallback.record_graph(graph)

    def copies(self) -> dict[str, Program]:
        """Copies for an executor of Paddle, which may change its programs."""
        return {job_type: program.clone() for job_type, program in self._programs.items()}


class CountedOperators(NamedTuple):
    """The operators of a program that the pass converted, and that fall back, for the counters."""

    ops_converted: int
    native: list[NativeOp]
    kernel_calls: list[str]


@dataclass(frozen=True)
class PassResult:
    """A result of the program pass.

    Attributes:
        rewritten: The programs; ``None`` if the pass has changed nothing.
        dynamic_axes: The dynamic axes of the feeds, by name.
        size: The largest dynamic size of the feeds for which the programs were rewritten, if the
            cost model left subgraphs to Paddle; 0: any.
        may_write: Whether a run may write variables of the scope.
        is_translated: Whether there are programs in PIR.
        conversions: What the pass converted, by program.
    """

    rewritten: RewrittenPrograms | None
    dynamic_axes: list[tuple[str, int]]
    size: int
    may_write: bool
    is_translated: bool
    conversions: Sequence[CountedOperators]

    def is_outgrown_by(self, size: int) -> bool:
        """Whether feeds have grown so much that subgraphs left to Paddle may pay off."""
        return self.size > 0 and size >= SETTINGS.rewrite_growth_factor * self.size

    def record(self) -> None:
        """Counts the conversions as a pass does, and records the graphs for the fallback."""
        for conversion in self.conversions:
            statistics.count(conversion)
        if self.rewritten is not None:
            self.rewritten.record()


def conversions_of(reports: Sequence[Report]) -> list[CountedOperators]:
    """The counted part of reports."""
    return [
        CountedOperators(each.ops_converted, list(each.native), each.kernel_calls)
        for each in reports
    ]


def key_of(plan: Plan) -> Hashable | None:
    """The key of a plan's result; ``None`` for a plan of several jobs, or of ProgramDesc."""
    types = plan.job_types()
    if len(types) != 1 or len(plan.job_list()) != 1:
        return None
    (job_type,) = types
    return (
        job_type,
        _core.program_digest(plan.ir_program(job_type)),
        flags.values(),
        tuple(vars(SETTINGS).values()),
        registry.generation(),
        denylist.generation(),
    )


def find(key: Hashable | None) -> PassResult | None:
    """The result of a key, if there is one."""
    return None if key is None else _results.get(key)


def add(key: Hashable | None, result: PassResult) -> None:
    """Adds a result."""
    if key is not None:
        _results.put(key, result)


def clear() -> None:
    """Drops all results."""
    _results.clear()


def _unfed(program: Program) -> list[str]:
    """The variables that a program reads from the scope and that are not persistable."""
    sources = [op for op in program.global_block().ops if op.name() == "pd_op.data"]
    return [op.attrs()["name"] for op in sources if not any(op.attrs().get("persistable", ()))]
