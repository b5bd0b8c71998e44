"""Data parallelism in one process: concurrent computation of several slices of a batch.

All operators that depend on the data become one subgraph, and that subgraph becomes one engine
operator for each slice. These operators have one graph, so that they share one function and one
copy of the parameters. Their results are combined: results per sample are concatenated, all others
are averaged over slices. Clipping, decay and updates follow once, with the gradients of the whole
batch.

In a pipeline, the subgraph is cut into stages, each on a separate core group, and each stage
becomes an operator for each slice: a stage computes one slice while the next stage computes the
previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning import packed_layers, program_pass
from paddle_ngraph.partitioning.analysis.block_view import (
    BlockView,
    OpNode,
    can_be_placed,
    dtype_name,
    is_engine,
    is_fed,
    scope_name,
    value_id,
)
from paddle_ngraph.partitioning.analysis.placement import (
    NATIVE,
    clear_device,
    core_share,
    device_of,
    place_on,
)
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.plan import rows
from paddle_ngraph.plan.pipelining import staged
from paddle_ngraph.transpiler.building import Builder
from paddle_ngraph.transpiler.training_program import TrainingProgram, is_update

# Maximum number of slices of a batch: more than any machine has cores.
_MAX_SLICES = 1024
# Type of functions that choose devices of operators, which are given in program order.
_Placing = Callable[[BlockView, Sequence[OpNode]], dict[OpNode, str]]


@dataclass(frozen=True)
class DataParallel:
    """A program that computes slices of a batch concurrently.

    Attributes:
        program: The program for ``Executor.run``, with the engine switched on or off.
        fetches: Variables of the program that correspond to those in the ``fetch_list``.
        places: The number of slices.
    """

    program: Program
    fetches: list[Value]
    places: int


def check_divisible(name: str, size: int, num_slices: int, what: str) -> None:
    """Rejects a batch that does not divide evenly.

    Args:
        name: The name of the feed.
        size: The number of samples of the batch.
        num_slices: The number of equal slices.
        what: The noun for these in the message.

    Raises:
        NgraphError: The batch is empty or does not divide into ``num_slices`` slices.
    """
    if size == 0 or size % num_slices != 0:
        raise NgraphError(
            f"the batch of {name!r} has {size} samples, which are not divisible among "
            f"{num_slices} {what}: feed a multiple, for example with drop_last of a DataLoader"
        )


def feeds_in_slices(program: Program) -> tuple[int, list[str]]:
    """The number of slices into which a program divides its feeds, and the names of these feeds.

    Returns:
        1 and no names for a program that this module has not built.
    """
    view = BlockView(program.global_block())
    counts = rows.split_feeds(view)
    return max(counts.values(), default=1), [scope_name(node.op) for node in counts]


def data_parallel(program: Any, places: int, wanted: Sequence[Any]) -> DataParallel:
    """Slices the batch of a program; see :func:`paddle_ngraph.data_parallel`."""
    return _in_slices(
        program, places, wanted, lambda view, nodes: dict.fromkeys(nodes, core_share(places))
    )


def pipeline(
    program: Any,
    places: int,
    devices: Sequence[str],
    wanted: Sequence[Any],
    measured: Sequence[float] = (),
) -> DataParallel:
    """Builds a program that computes slices of a batch in pipeline stages.

    Args:
        program, places, wanted: As for :func:`data_parallel`.
        devices: The core group of each stage.
        measured: As for :func:`staged`.

    Raises:
        NgraphError: As for :func:`data_parallel`, or there are too few operators.
    """

    def staging(view: BlockView, nodes: Sequence[OpNode]) -> dict[OpNode, str]:
        stages = staged(view, nodes, len(devices), measured)
        return {node: devices[stage] for node, stage in stages.items()}

    return _in_slices(program, places, wanted, staging)


def _in_slices(program: Any, places: int, wanted: Sequence[Any], placing: _Placing) -> DataParallel:
    given = ngraph_transpiler.static_program(program, "data_parallel")
    is_integer = isinstance(places, int) and not isinstance(places, bool)
    if not is_integer or not 1 <= places <= _MAX_SLICES:
        raise NgraphError(f"places is {places!r}: give an integer from 1 to {_MAX_SLICES}")
    copy, fetching = ngraph_transpiler.copied(given, wanted)
    # The program is rewritten without packed recurrent layers: they would split the operators on
    # the data, which have to be one subgraph.
    with packed_layers.disabled():
        program_pass.canonicalize(copy)
        _Slices(copy, places, placing).apply()
        ngraph_transpiler.rewrite(copy, open_size=None)
    return DataParallel(copy, ngraph_transpiler.remove_fetches(copy, fetching), places)


class _Slices:
    """Changes a program in place so that it computes slices of the batch.

    Args:
        program: The program.
        places: The number of slices.
        placing: Chooses the devices of the operators that depend on the data.
    """

    def __init__(self, program: Program, places: int, placing: _Placing) -> None:
        self._program = program
        self._block = program.global_block()
        self._places = places
        self._placing = placing
        # The slices of each feed or result that is divided, by the id of the whole value.
        self._slices: dict[str, list[Value]] = {}

    def apply(self) -> None:
        """Replaces the operators that depend on the data with one engine operator for each slice.

        Raises:
            NgraphError: The program cannot be computed in slices.
        """
        engines = self._convert_to_engines()
        for engine in engines:
            self._insert_slices(engine)
        # In reverse order: the readers of an operator have to be removed before the operator.
        for engine in reversed(engines):
            self._replace(engine)

    def _insert_slices(self, engine: Operation) -> None:
        """Inserts an engine operator for each slice before the one for the whole batch."""
        graph = Graph.from_string(engine.attrs()["graph"])
        before = Builder(self._block, engine)
        slices = [self._sliced_input(before, value) for value in _members(engine.operand_source(0))]
        outputs = list(engine.results()[: len(graph.outputs)])
        results = [
            _core.insert_ngraph_engine(
                self._block,
                engine,
                [of_input[index] for of_input in slices],
                [],
                outputs,
                engine.attrs()["graph"],
                list(engine.attrs()["interval"]),
            )
            for index in range(self._places)
        ]
        self._slices.update(zip(map(value_id, outputs), map(list, zip(*results))))

    def _replace(self, engine: Operation) -> None:
        """Replaces an engine operator for the batch with the combined results of slices."""
        after = Builder(self._block, engine)
        for old in engine.results():
            if not old.use_empty():
                old.replace_all_uses_with(self._concatenated(after, self._slices[value_id(old)]))
        combined = [producer_of(value) for value in engine.operands_source() if value.initialized()]
        self._block.remove_op(engine)
        for op in combined:
            self._block.remove_op(op)

    def _convert_to_engines(self) -> list[Operation]:
        """Converts the operators that depend on the data to one engine operator for each device."""
        view = BlockView(self._block)
        computing = [node for node in view.nodes if can_be_placed(node.op)]
        if any(node.is_engine for node in computing):
            raise NgraphError("the program has engine operators already: pass the original program")
        local = self._data_dependent(view)
        placed = self._placing(view, [node for node in computing if node in local])
        for node in computing:
            place_on(node.op, placed.get(node, NATIVE))
        report = ngraph_transpiler.rewrite(self._program, open_size=None)
        _reject_native(report, {node.index for node in local})
        engines = [op for op in self._block.ops if is_engine(op.name())]
        for op in self._block.ops:
            if device_of(op) == NATIVE:
                clear_device(op)
        graphs = [Graph.from_string(op.attrs()["graph"]) for op in engines]
        if len(set(placed.values())) <= 1 and len(engines) != 1:
            raise NgraphError(
                f"the operators on the data form {len(engines)} intervals, not one: "
                "such a program cannot be computed in slices"
            )
        if any(graph.states for graph in graphs):
            raise NgraphError(
                "the program updates variables in the forward or backward pass: such a "
                "program cannot be computed in slices"
            )
        return engines

    def _data_dependent(self, view: BlockView) -> set[OpNode]:
        """The operators that depend on the data, up to the gradients of parameters."""
        gradients: set[str] = set()
        if any(is_update(node.op) for node in view.nodes):
            training = TrainingProgram(self._program)
            if statistics := training.running_statistics():
                name = scope_name(producer_of(statistics[0]))
                raise NgraphError(
                    "a batch normalization takes the mean and the variance of the whole batch, "
                    f"which no slice of it has, and updates {name!r} with them: such a program "
                    "cannot be trained in slices; train it whole, or use group or layer "
                    "normalization"
                )
            gradients = {value_id(gradient.value) for gradient in training.gradients}
        sources = [node for node in view.nodes if node.is_source and is_fed(node.op)]
        data = {node.writes[0] for node in sources if _is_sliced(node.op.result(0))}
        if not data:
            raise NgraphError(
                "no feed of the program has a dynamic first dimension, the samples of a batch: "
                "declare it as in paddle.static.data('x', [-1, ...])"
            )
        found = set()
        for node in view.nodes:
            members = {m for vid in node.reads for m in view.members(vid)} | set(node.reads)
            if members & data:
                data |= set(node.writes) - gradients
                if can_be_placed(node.op):
                    found.add(node)
        return found

    def _sliced_input(self, build: Builder, value: Value) -> list[Value]:
        """Returns one input of a subgraph for each slice: rows of it, or the whole input."""
        vid = value_id(value)
        if vid not in self._slices:
            is_divided = self._places > 1 and is_fed(producer_of(value)) and _is_sliced(value)
            slices = rows.split_rows(build, value, self._places) if is_divided else None
            self._slices[vid] = slices or [value] * self._places
        return self._slices[vid]

    def _concatenated(self, build: Builder, slices: list[Value]) -> Value:
        """Combines the results of slices: concatenates rows of samples, averages other results."""
        if self._places == 1:
            return slices[0]
        if _is_sliced(slices[0]):
            return rows.concat_rows(build, slices)
        if any(size < 0 for size in slices[0].shape):
            raise NgraphError(
                f"a result of shape {list(slices[0].shape)} has its samples in another dimension "
                "than the first: such a program cannot be computed in slices"
            )
        dtype = dtype_name(slices[0].dtype)
        if not dtype.startswith(("float", "bfloat")):
            raise NgraphError(
                f"a result of dtype {dtype} is neither a mean over samples nor one for each "
                "sample: such a program cannot be computed in slices"
            )
        return build.scaled(build("pd_op.add_n", [slices]), 1 / self._places)


def _is_sliced(value: Value) -> bool:
    """Whether axis 0 of a variable is the batch, so that it can be sliced."""
    return len(value.shape) > 0 and value.shape[0] < 0


def _members(value: Value) -> list[Value]:
    return list(producer_of(value).operands_source())


def _reject_native(report: Report, local: set[int]) -> None:
    for block in report.blocks[:1]:
        for op in block.native:
            if op.index in local:
                raise NgraphError(
                    f"{op.type} (operator {op.index}) computes on the data and runs natively "
                    f"({op.reason}): such a program cannot be computed in slices"
                )
