"""The pipeline transpiler: splits a training program into the programs of pipeline stages.

A stage has a subset of the operators and of the parameters. For each micro-batch a stage runs its
forward program and, later, its backward program, which accumulates gradients; values that the
backward program reads of the forward one, and values that cross stages, are fetched and fed. The
update program of the stage then clips, decays and updates with the gradients of a whole batch. If
updates depend on scalars of all stages, such as the norm of all gradients, a program computes the
scalars of this stage, and each update is fed those of all stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import paddle

from paddle_ngraph.errors import SENTENCES, NgraphError, printable
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.paddle_private.names import IrMapping, drop_scheduler, make_temporary
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    DRAW,
    SCOPE_NAMES,
    SINKS,
    SOURCES,
    BlockView,
    OpNode,
    can_be_placed,
    dtype_name,
    has_bfloat16,
    is_fed,
    mark_trained_elsewhere,
    scope_name,
    value_id,
)
from paddle_ngraph.partitioning.analysis.placement import NATIVE, place_on
from paddle_ngraph.transpiler import memory_transpiler, training_program
from paddle_ngraph.transpiler.building import ACCUMULATED, Builder
from paddle_ngraph.transpiler.cutting import ancestors, keep
from paddle_ngraph.transpiler.stage_updates import StageUpdates
from paddle_ngraph.transpiler.staging import Staging
from paddle_ngraph.transpiler.training_program import TrainingProgram

_MAX_PARTS = 4096  # maximum number of stages, and of micro-batches
_BYTES_PER_ELEMENT = 4  # bytes per element that are assumed for values between stages
# Types of updates that functions do in place, without more memory
# (conversion/optimizer_updates.py).
_IN_PLACE = frozenset({"pd_op.adam_", "pd_op.adamw_", "pd_op.momentum_", "pd_op.sgd_"})


@dataclass(frozen=True)
class StageProgram:
    """One program of a stage.

    Attributes:
        program: The program.
        feeds: The feeds of the user that it reads.
        takes: Names of its other feeds, which are fetches of other programs.
        gives: The fetches for other programs, by name.
        results: The fetches for the user, by index in the ``fetch_list``.
    """

    program: Program
    feeds: Sequence[str]
    takes: Sequence[str]
    gives: Mapping[str, Value]
    results: Mapping[int, Value]

    @property
    def fetches(self) -> list[Value]:
        """The fetched values of the program: those in ``gives``, then those in ``results``."""
        return [*self.gives.values(), *self.results.values()]


@dataclass(frozen=True)
class StagePrograms:
    """The programs of one stage.

    Attributes:
        forward: Run for each micro-batch; ``None`` in the last stage, whose backward program
            includes the forward pass.
        backward: Run for each micro-batch: accumulates gradients.
        norms: Run once per batch, before ``update``: scalars of this stage's gradients for all
            stages. ``None`` if there are none.
        update: Run once per batch: updates with the averages of gradients, and resets the sums.
        startup: Initializes the sums and, given a startup program, the variables of the stage.
        activations: Names of values sent to the next stage for each micro-batch, as in
            ``StageProgram``.
        gradients: Names of values sent to the previous stage.
    """

    forward: StageProgram | None
    backward: StageProgram
    norms: StageProgram | None
    update: StageProgram
    startup: Program
    activations: Sequence[str]
    gradients: Sequence[str]

    @property
    def programs(self) -> list[StageProgram]:
        """The programs that the stage runs per batch or micro-batch: all but ``startup``."""
        each = [self.forward, self.backward, self.norms, self.update]
        return [stage_program for stage_program in each if stage_program is not None]

    @property
    def results(self) -> list[int]:
        """Which values of the ``fetch_list``, by index, this stage computes."""
        return sorted(number for stage_program in self.programs for number in stage_program.results)

    @property
    def num_shared(self) -> int:
        """The number of values that all stages get once per batch: norms, then results."""
        return len(self.norms.gives if self.norms is not None else ()) + len(self.results)

    @property
    def variables(self) -> dict[str, Value]:
        """The variables of the stage in the scope: parameters, states, sums of gradients."""
        found = (
            training_program.variables(stage_program.program) for stage_program in self.programs
        )
        return {name: value for each in found for name, value in each.items()}


class Pipeline(NamedTuple):
    """The result of :func:`paddle_ngraph.pipeline`.

    Attributes:
        stages: The stages, in the order of data flow.
        micro_batches: The number of micro-batches of a batch.
        sliced: The feeds that are split into micro-batches; other feeds are passed unchanged.
        together: For each result whether those of the micro-batches are concatenated; otherwise
            the mean is taken.
    """

    stages: list[StagePrograms]
    micro_batches: int
    sliced: frozenset[str]
    together: list[bool]

    def __str__(self) -> str:
        """A readable list of the stages with their operators, parameters and messages."""
        return printable("\n".join(map(_described, range(len(self.stages)), self.stages)))


@dataclass(frozen=True)
class PipelineOptions:
    """The options of :func:`paddle_ngraph.pipeline`."""

    stages: int = 2
    micro_batches: int = 4
    cuts: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        for name in ("stages", "micro_batches"):
            number = getattr(self, name)
            is_number = isinstance(number, int) and not isinstance(number, bool)
            if not is_number or not 1 <= number <= _MAX_PARTS:
                raise NgraphError(f"{name} is {number!r}: give an integer from 1 to {_MAX_PARTS}")
        if self.cuts is not None and len(self.cuts) != self.stages - 1:
            raise NgraphError(
                f"cuts has {len(self.cuts)} places for {self.stages} stages: give "
                f"{self.stages - 1}, for each stage but the last its last variables"
            )

    @property
    def ends(self) -> list[list[Any]]:
        """The option ``cuts``, where each cut is a list of variables even if it is a single one."""
        lists = (list, tuple)
        return [list(cut) if isinstance(cut, lists) else [cut] for cut in self.cuts or ()]


def transpile(
    program: Any, wanted: Sequence[Any], options: PipelineOptions, startup: Any = None
) -> Pipeline:
    """Creates the programs of each stage from a single-process training program.

    Args:
        program: A static training program, PIR or ProgramDesc; not modified.
        wanted: The fetch list: variables, or names of variables.
        options: Number of stages or cuts, and micro-batches.
        startup: The startup program of the training program; split into those of the stages.

    Raises:
        NgraphError: As :func:`distribution_transpiler.transpile`; the program cannot be cut there;
            a variable in ``wanted`` depends on the updates, or is not a mean.
    """
    given = ngraph_transpiler.static_program(program, "pipeline")
    ends = [variable for cut in options.ends for variable in cut]
    try:
        whole, fetching = ngraph_transpiler.copied(given, [*wanted, *ends])
    except ngraph_transpiler.UnknownFetch as error:
        if error.index < len(wanted):
            raise
        index = error.index - len(wanted)
        sentence = SENTENCES["unknown_cut"].format(index=index, shown=error.shown)
        raise NgraphError(sentence) from error
    kept, cutting = fetching[: len(wanted)], fetching[len(wanted) :]
    values = iter(ngraph_transpiler.remove_fetches(whole, cutting))
    cuts = [[value_id(next(values)) for _ in cut] for cut in options.ends]
    staging = Staging(
        TrainingProgram(whole), kept, options.stages, cuts if options.cuts is not None else None
    )
    builder = _StageBuilder(whole, staging, kept, options)
    first = None if startup is None else ngraph_transpiler.static_program(startup, "pipeline")
    return builder.build(first)


@dataclass(frozen=True)
class _StageOperators:
    """The operators of the forward or backward program of a stage.

    Attributes:
        stage: The stage.
        is_backward: Whether the operators are those of the backward program.
        nodes: The operators of the program.
        kept: ``nodes``, and needed operators that belong to no stage.
        takes: The variables that other programs compute.
    """

    stage: int
    is_backward: bool
    nodes: set[OpNode]
    kept: set[OpNode]
    takes: list[str]


class _StageBuilder:
    """Builds the programs of the stages.

    Args:
        whole: A copy of the user's program.
        staging: The stages of the operators.
        fetching: The fetch operators of the program.
        options: The options of the pipeline.
    """

    def __init__(
        self,
        whole: Program,
        staging: Staging,
        fetching: Sequence[Operation],
        options: PipelineOptions,
    ) -> None:
        self._whole = whole
        self._staging = staging
        self._options = options
        self._fetched = [value_id(op.operand_source(0)) for op in fetching]
        self._parameters = {value_id(g.value): g.parameter for g in staging.gradients}
        self._updates = StageUpdates(staging)
        self._passes = [
            self._pass(stage, is_backward)
            for stage in range(options.stages)
            for is_backward in (False, True)
        ]

    def build(self, startup: Any) -> Pipeline:
        """Builds all stages. ``startup``: the user's startup program, or ``None``."""
        sliced = self._sliced()
        together = [self._is_concatenated(number) for number in range(len(self._fetched))]
        stages = [self._stage(number, startup) for number in range(self._options.stages)]
        return Pipeline(stages, self._options.micro_batches, sliced, together)

    def _stage(self, number: int, startup: Any) -> StagePrograms:
        forward, backward = (
            self._pass_program(each) for each in self._passes if each.stage == number
        )
        assert backward is not None
        norms, update = self._norms(number), self._update(number)
        programs = [
            stage_program
            for stage_program in (forward, backward, norms, update)
            if stage_program is not None
        ]
        found = (training_program.variables(stage_program.program) for stage_program in programs)
        variables = {name: value for each in found for name, value in each.items()}
        return StagePrograms(
            forward=forward,
            backward=backward,
            norms=norms,
            update=update,
            startup=_startup(startup, variables),
            activations=self._crossing(number, is_backward=False),
            gradients=self._crossing(number, is_backward=True),
        )

    # -- feeds and fetches -----------------------------------------------------------------------

    def _sliced(self) -> frozenset[str]:
        feeds = [op for op in self._whole.global_block().ops if is_fed(op)]
        found = {scope_name(op) for op in feeds if list(op.result(0).shape)[:1] == [-1]}
        if not found and self._options.micro_batches > 1:
            raise NgraphError(
                "no feed of the program has a dynamic first dimension, the samples of a batch: "
                "declare it as in paddle.static.data('x', [-1, ...])"
            )
        return frozenset(found)

    def _is_concatenated(self, number: int) -> bool:
        vid = self._fetched[number]
        producer, value = self._staging.producer(vid), self._staging.view.values[vid]
        if producer not in self._staging.stage:
            raise NgraphError(
                f"fetch_list[{number}] is nothing that the forward or backward pass computes with "
                "parameters: fetch a loss or a result"
            )
        if list(value.shape)[:1] == [-1]:
            return True
        dtype = dtype_name(value.dtype)
        if self._options.micro_batches > 1 and not dtype.startswith(("float", "bfloat")):
            raise NgraphError(
                f"fetch_list[{number}] of dtype {dtype} is neither a mean over samples nor one for "
                "each sample, so that micro-batches do not have it: fetch the variable from "
                "which it is computed"
            )
        return False

    def _crossing(self, stage: int, is_backward: bool) -> list[str]:
        """Names of values that a stage sends for each micro-batch, in its forward or backward pass.

        A forward pass sends to the next stage, a backward pass to the previous one.
        """
        found = set()
        for each in self._passes:
            for vid in each.takes:
                producer = self._staging.producer(vid)
                assert producer is not None
                source_stage = self._staging.stage[producer]
                if is_backward and each.stage < stage <= source_stage:
                    found.add(self._name(vid))
                if not is_backward and source_stage <= stage < each.stage:
                    found.add(self._name(vid))
        return sorted(found)

    def _name(self, vid: str) -> str:
        """The name of the feed by which a stage gets the variable ``vid``."""
        node = self._staging.view.producer[vid]
        return f"ngraph_value_{node.index}_{node.writes.index(vid)}"

    # -- the forward and backward pass -----------------------------------------------------------

    def _pass(self, stage: int, is_backward: bool) -> _StageOperators:
        is_last = stage == self._options.stages - 1
        backward = self._staging.backward
        nodes = {
            node
            for node, number in self._staging.stage.items()
            # The forward program of the last stage is part of its backward program.
            if number == stage and ((node in backward) or is_last) == is_backward
        }
        kept, takes = self._with_dependencies(nodes)
        if is_backward:
            computed = {vid for node in nodes for vid in node.writes}
            takes += [vid for vid in self._sums(stage) if vid not in computed and vid not in takes]
        return _StageOperators(stage, is_backward, nodes, kept, takes)

    def _sums(self, stage: int) -> list[str]:
        """The ids of the gradients of the parameters that belong to a stage."""
        homes = self._staging.variable_stages
        return [vid for vid, name in self._parameters.items() if homes[name] == stage]

    def _with_dependencies(self, nodes: set[OpNode]) -> tuple[set[OpNode], list[str]]:
        """Returns ``nodes`` with those producers that belong to no stage, and the ids to be fed.

        A variable that they read is fed if another of the pipeline's programs computes it.
        """
        pending, found, outside = list(nodes), set(nodes), set()
        while pending:
            node = pending.pop()
            for vid in [*node.reads, *self._staging.reads(node)]:
                producer = self._staging.producer(vid)
                if producer is None or producer in found:
                    continue
                if producer in self._staging.free:
                    found.add(producer)
                    pending.append(producer)
                else:
                    outside.add(vid)
        named = [n for n in self._staging.view.nodes if n.type in SINKS and n.may_write_variables]
        found |= {n for n in named if self._staging.producer(n.reads[0]) in nodes}
        return found, sorted(outside, key=self._name)

    def _pass_program(self, own: _StageOperators) -> StageProgram | None:
        """The program of the pass of a stage; ``None`` for the forward pass of the last stage."""
        if not own.is_backward and own.stage == self._options.stages - 1:
            return None
        copy = _ProgramCopy(self._whole)
        self._feed(copy, own.takes)
        if own.is_backward:
            for total, value in [self._sum(copy, vid) for vid in self._sums(own.stage)]:
                copy.after("pd_op.add_", [total, value])
        computed = {vid for node in own.nodes for vid in node.writes}
        given = {vid for other in self._passes if other is not own for vid in other.takes}
        return copy.stage_program(
            kept=own.kept,
            takes=[self._name(vid) for vid in own.takes],
            gives={self._name(vid): self._staging.view.values[vid] for vid in computed & given},
            results={
                number: self._staging.view.values[vid]
                for number, vid in enumerate(self._fetched)
                if vid in computed
            },
        )

    def _feed(self, copy: _ProgramCopy, taken: Iterable[str]) -> None:
        """Replaces variables that other programs or stages compute by feeds."""
        view = self._staging.view
        overwritten = {root for node in view.nodes for root, _ in node.overwrites}
        for vid in taken:
            producer = view.producer[vid]
            if not view.is_tensor(vid):
                raise NgraphError(
                    f"{producer.type} (operator {producer.index}) hands on something that is no "
                    "tensor, from one stage to another or to its own gradient: such a program can "
                    "only be cut behind its gradient, in the last stage"
                )
            if vid in overwritten:
                raise NgraphError(
                    f"what {producer.type} (operator {producer.index}) computes is overwritten "
                    "later, and crosses from one stage to another or to a gradient: use the "
                    "operator without '_'"
                )
            copy.feed(self._name(vid), view.values[vid])

    # -- updates ---------------------------------------------------------------------------------

    def _norms(self, stage: int) -> StageProgram | None:
        nodes, sent = self._updates.before(stage)
        if not sent:
            return None
        copy = _ProgramCopy(self._whole)
        self._average(copy, stage)
        gives = {self._name(vid): self._staging.view.values[vid] for vid in sent}
        stage_program = copy.stage_program(kept=nodes, takes=[], gives=gives, results={})
        # Paddle's kernels run this program, which averages the summed gradients: a function would
        # need memory for all sums again in its first run, since OpenVINO allocates its inputs. With
        # bfloat16 the engine runs the program nevertheless: Paddle has few kernels for that type.
        if not has_bfloat16(stage_program.program):
            _place_on_paddle(stage_program.program)
        return stage_program

    def _update(self, stage: int) -> StageProgram:
        copy = _ProgramCopy(self._whole, is_update=True)
        sent = sorted(self._updates.sent, key=self._name)
        self._feed(copy, sent)
        for total in self._average(copy, stage):
            zeros = copy.after.zeros(list(total.shape), dtype_name(total.dtype))
            copy.after("pd_op.assign_out_", [zeros, total])
        takes = [self._name(vid) for vid in sent]
        nodes = self._updates.of_stage(stage)
        stage_program = copy.stage_program(kept=nodes, takes=takes, gives={}, results={})
        if any(node.overwrites and node.type not in _IN_PLACE for node in nodes):
            # In a function, new parameters and states would need memory in addition to the old
            # ones.
            _place_on_paddle(stage_program.program)
        return stage_program

    def _sum(self, copy: _ProgramCopy, vid: str) -> tuple[Value, Value]:
        """A read of the variable that sums a parameter's gradients, and the gradient to add."""
        value = copy.value(self._staging.view.values[vid])
        name, dtype = f"{ACCUMULATED}{self._parameters[vid]}", dtype_name(value.dtype)
        return copy.before.variable(name, list(value.shape), dtype), value

    def _average(self, copy: _ProgramCopy, stage: int) -> list[Value]:
        """Replaces gradients by averages over micro-batches; returns the sums of gradients."""
        totals = []
        for vid in self._sums(stage):
            total, value = self._sum(copy, vid)
            average = copy.before.scaled(total, 1 / self._options.micro_batches)
            value.replace_all_uses_with(average)
            totals.append(total)
        return totals


class _ProgramCopy:
    """A copy of the whole program that is reduced to one of a stage.

    Args:
        whole: The whole program.
        is_update: Whether the program reads the learning rate.

    Attributes:
        before: Builder that adds operators at the beginning of the program.
        after: The same at its end.
    """

    def __init__(self, whole: Program, is_update: bool = False) -> None:
        self._mapping = IrMapping()
        self.program = whole.clone(self._mapping)
        if not is_update:
            drop_scheduler(self.program)
        self._block = self.program.global_block()
        self._operators = list(self._block.ops)
        first = next(op for op in self._operators if op.name() not in SOURCES)
        self.before = Builder(self._block, before=first)
        self.after = Builder(self._block)
        self._fed: dict[int, Value] = {}

    def value(self, of_whole: Value) -> Value:
        """The value of the stage's copy of the program that corresponds to ``of_whole``."""
        found: Value = self._mapping.look_up(of_whole)
        return self._fed.get(found.id, found)

    def feed(self, name: str, of_whole: Value) -> None:
        """Has readers of a variable read the feed ``name`` instead."""
        value = self.value(of_whole)
        fed = self.before.fed(name, list(value.shape), dtype_name(value.dtype))
        value.replace_all_uses_with(fed)
        self._fed[value.id] = fed

    def stage_program(
        self,
        kept: Iterable[OpNode],
        takes: Sequence[str],
        gives: Mapping[str, Value],
        results: Mapping[int, Value],
    ) -> StageProgram:
        """The program of the operators ``kept``, and of the operators that the builders added."""
        positions = {node.index for node in kept}
        removed = [op for i, op in enumerate(self._operators) if i not in positions]
        found = {name: self.value(value) for name, value in gives.items()}
        fetched = {number: self.value(value) for number, value in results.items()}
        removed_ids = {op.id() for op in removed if op.name() not in SOURCES}
        keep(self._block, {op.id() for op in self._block.ops} - removed_ids)
        for op in self._block.ops:
            if op.name() in SOURCES and op.result(0).use_empty():
                self._block.remove_op(op)
        mark_trained_elsewhere(self.program)
        fed = {scope_name(op) for op in self._block.ops if is_fed(op)}
        return StageProgram(
            self.program, sorted(fed - set(takes)), [t for t in takes if t in fed], found, fetched
        )


def _place_on_paddle(program: Program) -> None:
    """Has Paddle's kernels run a program, one operator at a time, in an order that saves memory."""
    for op in filter(can_be_placed, program.global_block().ops):
        place_on(op, NATIVE)
    memory_transpiler.rewrite(program, memory_transpiler.Limits())


def _startup(given: Any, variables: Mapping[str, Value]) -> Program:
    """The startup program of a stage: initializes its variables and its sums of gradients.

    Args:
        given: The startup program of all stages; ``None``: only sums of gradients are initialized.
        variables: The variables of the stage.
    """
    program: Program
    if given is None:
        program = paddle.pir.Program()
    else:
        program, _ = ngraph_transpiler.copied(given, ())
        _keep_startup(program.global_block(), variables)
    build = Builder(program.global_block())
    for name, value in variables.items():
        if name.startswith(ACCUMULATED):
            build.set_variable(name, build.zeros(list(value.shape), dtype_name(value.dtype)))
    return program


def _keep_startup(block: Block, variables: Mapping[str, Value]) -> None:
    """Removes initializers of variables of other stages; random values stay those of all stages."""
    nodes = BlockView(block).nodes
    kept = [n.op for n in nodes if n.type in SCOPE_NAMES and scope_name(n.op) in variables]
    stochastic = [node.op for node in nodes if DRAW in node.effects]
    keep(block, ancestors([*kept, *stochastic]))
    for sampled in (value for op in stochastic for value in op.results() if value.initialized()):
        # The stage still samples numbers that only another stage reads, so that the random stream
        # advances.
        if sampled.use_empty():
            make_temporary(sampled)


def _described(number: int, stage: StagePrograms) -> str:
    programs = [
        stage_program
        for stage_program in (stage.forward, stage.backward)
        if stage_program is not None
    ]
    operators = sum(len(stage_program.program.global_block().ops) for stage_program in programs)
    variables = [v for n, v in stage.variables.items() if not n.startswith(ACCUMULATED)]
    megabytes = sum(prod(v.shape) * _BYTES_PER_ELEMENT for v in variables) / 2**20
    return (
        f"stage {number}: {operators} operators, {megabytes:.1f} MB of parameters and states; "
        f"sends {len(stage.activations)} activations, {len(stage.gradients)} gradients"
    )
