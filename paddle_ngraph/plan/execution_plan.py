"""Execution plan of a program: placed operators, their subgraphs, and copies between devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.ir.graph import CPU
from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Program, Value
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.analysis.block_view import (
    LISTS,
    SINKS,
    BlockView,
    OpNode,
    can_be_placed,
    scope_name,
)
from paddle_ngraph.partitioning.analysis.placement import (
    NATIVE,
    device_of,
    is_copy,
    place_copy,
    place_on,
)
from paddle_ngraph.partitioning.block_report import summary
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.plan.devices import known_device
from paddle_ngraph.plan.spreading import assign_devices, leading_operators, producers_of
from paddle_ngraph.transpiler.training_program import is_update


@dataclass(frozen=True)
class PlacedOperator:
    """An operator of the planned program.

    Attributes:
        index: The index in the operator list, copies included.
        type: The type of the operator.
        device: The device of the operator.
        interval: The index of its subgraph; ``None`` if Paddle's own kernel runs it.
        reason: The reason for a run by Paddle's kernel, else empty.
        copied_from: The source device, if it is a copy.
        reads: The indices of the operators whose results it reads.
    """

    index: int
    type: str
    device: str
    interval: int | None
    reason: str
    copied_from: str | None
    reads: Sequence[int]


@dataclass(frozen=True)
class _Planned:
    """The program that a plan has built, with its fetched variables and reports."""

    program: Program
    fetches: list[Value]
    operators: list[PlacedOperator]
    report: Report


class ExecutionPlan:
    """A program with a device per operator; see :func:`paddle_ngraph.execution_plan`."""

    def __init__(
        self, program: Any, default_devices: Sequence[str] | None, wanted: Sequence[Any]
    ) -> None:
        self._given = ngraph_transpiler.static_program(program, "execution_plan")
        if isinstance(default_devices, str):
            default_devices = [default_devices]
        self._defaults = [known_device(name) for name in default_devices or [CPU]]
        self._wanted = wanted
        self._rules: list[tuple[int | str, str]] = []
        self._planned: _Planned | None = None
        # The copy is dropped: it is made so that errors of the program or the fetches are raised
        # here.
        ngraph_transpiler.copied(self._given, wanted)

    def place(self, which: Any, device: str) -> ExecutionPlan:
        """Places operators of the outermost block on a device. Later rules override earlier ones.

        Args:
            which: An operator of the program (``op.name()`` is its type); a variable, for the
                operator that computes it; or a pattern, with ``*`` and ``?``: of the type of
                operators (``matmul``, ``conv2d*``), or of the name of a parameter that they read
                (``linear_0.*``). Gradients and updates of these operators are placed with them.
            device: The device.

        Returns:
            The plan.

        Raises:
            NgraphError: There is no such operator or device. The plan is unchanged then.
        """
        chosen = known_device(device)
        rule = which if isinstance(which, str) else self._position(which)
        if isinstance(rule, str):
            copy, _ = ngraph_transpiler.copied(self._given, ())
            view = BlockView(copy.global_block())
            if not any(_matches(view, node, rule) for node in _placeable(view)):
                raise NgraphError(
                    f"no operator of the program matches {rule!r}: give the type of an operator, "
                    "such as 'matmul', or the name of a parameter that it reads"
                )
        self._rules.append((rule, chosen))
        self._planned = None
        return self

    @property
    def program(self) -> Program:
        """The program with its placed operators, for ``Executor.run`` with the engine on or off."""
        return self._build().program

    @property
    def fetches(self) -> list[Value]:
        """The values of :attr:`program` that correspond to the variables in ``fetch_list``."""
        return self._build().fetches

    @property
    def operators(self) -> list[PlacedOperator]:
        """The placed operators of the outermost block, without those that compute nothing."""
        return self._build().operators

    @property
    def report(self) -> Report:
        """The report of the program pass on :attr:`program`."""
        return self._build().report

    def __str__(self) -> str:
        operators = self.operators
        intervals = _grouped_by_interval(operators)
        copies = [op for op in operators if op.copied_from is not None]
        native = [op for op in operators if op.interval is None]
        counts = f"{len(intervals)} intervals, {len(copies)} copies, {len(native)} native operators"
        lines = [f"{len(operators)} operators: {counts}."]
        for index, members in intervals.items():
            types = summary([op.type for op in members])
            where = ", ".join(_ranges([op.index for op in members]))
            lines.append(f"interval {index} on {members[0].device}: operators {where}: {types}")
        lines += [f"copy {op.index}: {op.copied_from} -> {op.device}" for op in copies]
        lines += [f"native {_short(op.type)} {op.index}: {op.reason}" for op in native]
        return printable("\n".join(lines))

    def to_dot(self) -> str:
        """The plan as a graph in DOT: a cluster for each subgraph, a colour for each device."""
        lines = ["digraph plan {", "  node [shape=box, style=filled];"]
        placed = sorted({op.device for op in self.operators})
        colour = {device: f"/set312/{index % 12 + 1}" for index, device in enumerate(placed)}
        for index, members in _grouped_by_interval(self.operators).items():
            lines.append(f"  subgraph cluster_{index} {{")
            lines.append(f'    label="interval {index} on {members[0].device}";')
            lines += [f"    {_dot_node(op, colour[op.device])}" for op in members]
            lines.append("  }")
        native = [op for op in self.operators if op.interval is None]
        lines += [f"  {_dot_node(op, colour[op.device])}" for op in native]
        known = {op.index for op in self.operators}
        lines += [
            f"  op{producer} -> op{op.index};"
            for op in self.operators
            for producer in op.reads
            if producer in known
        ]
        return "\n".join([*lines, "}"]) + "\n"

    # -- construction ----------------------------------------------------------------------------

    def _position(self, which: Any) -> int:
        """The index in the program of a given operator, or of the producer of a given variable."""
        op = which.get_defining_op() if hasattr(which, "get_defining_op") else which
        operators = self._given.global_block().ops if _is_pir(self._given) else []
        identity = op.id() if hasattr(op, "id") and callable(op.id) else None
        for index, other in enumerate(operators):
            if identity is not None and other.id() == identity and can_be_placed(other):
                return index
        raise NgraphError(
            f"place() takes an operator or variable of the program, or a pattern, not {which!r}"
            if identity is None
            else "place() was given an operator that is none of those of the program's outermost "
            "block that compute something"
        )

    def _build(self) -> _Planned:
        if self._planned is None:
            copy, fetching = ngraph_transpiler.copied(self._given, self._wanted)
            program_pass.canonicalize(copy)
            self._place_all(BlockView(copy.global_block()))
            _insert_copies(BlockView(copy.global_block()))
            view = BlockView(copy.global_block())
            nodes = _placeable(view)
            reads = {
                node: [producer.index for producer in producers_of(view, node)] for node in nodes
            }
            devices = {node: (device_of(node.op), _source(view, node)) for node in nodes}
            report = ngraph_transpiler.rewrite(copy, open_size=None)
            fetches = ngraph_transpiler.remove_fetches(copy, fetching)
            operators = list(_described(nodes, reads, devices, report))
            self._planned = _Planned(copy, fetches, operators, report)
        return self._planned

    def _place_all(self, view: BlockView) -> None:
        """Chooses a device for each operator: by a rule, by its forward operator, by default."""
        nodes = _placeable(view)
        fixed = {node: node.device for node in nodes if node.device}
        for rule, device in self._rules:
            for node in nodes:
                is_match = node.index == rule if isinstance(rule, int) else False
                if is_match or (isinstance(rule, str) and _matches(view, node, rule)):
                    fixed[node] = device
        forward = leading_operators(view, nodes)
        for node, device in assign_devices(view, nodes, fixed, forward, self._defaults).items():
            place_on(node.op, device)


def _is_pir(program: Any) -> bool:
    return hasattr(program.global_block(), "move_op_to_block_end")


def _placeable(view: BlockView) -> list[OpNode]:
    return [node for node in view.nodes if can_be_placed(node.op)]


def _matches(view: BlockView, node: OpNode, pattern: str) -> bool:
    """Whether a device plan's pattern matches the type of ``node`` or a parameter that it reads."""
    if node.type.removesuffix("_").endswith("_grad") or is_update(node.op):
        return fnmatchcase(node.type, pattern) or fnmatchcase(_short(node.type), pattern)
    names = [node.type, _short(node.type)]
    for vid in node.reads:
        producer = view.producer.get(vid)
        if producer is not None and producer.type == "builtin.parameter":
            names.append(scope_name(producer.op))
    return any(fnmatchcase(name, pattern) for name in names)


# -- copies --------------------------------------------------------------------------------------


def _insert_copies(view: BlockView) -> None:
    """Inserts a copy where data changes device: one for each variable and device."""
    overwritten = {view.memory(operand) for node in view.nodes for operand, _ in node.overwrites}
    overwritten |= {view.memory(vid) for node in view.nodes for vid in node.outer_writes}
    for node in view.nodes:
        device = _device_of_results(view, node)
        for vid in node.writes if device not in ("", NATIVE) else ():
            # A variable that is overwritten is read where it is: its copy would have the old
            # contents.
            if (
                view.is_tensor(vid)
                and view.memory(vid) not in overwritten
                and not view.is_outer(vid)
            ):
                _insert_copies_of(view, vid, device)


def _insert_copies_of(view: BlockView, vid: str, source: str) -> None:
    value = view.values[vid]
    copies: dict[str, Value] = {}
    for reader in dict.fromkeys(view.readers.get(vid, ())):
        device = _device_of_reader(view, reader)
        if device in ("", NATIVE, source) or is_copy(reader.op):
            continue
        if device not in copies:
            (copies[device],) = _core.append_operator(
                view.block, "pd_op.assign", [value], None, [], before=reader.op
            )
            place_copy(producer_of(copies[device]), device)
        for index, operand in enumerate(reader.op.operands_source()):
            if operand.initialized() and operand.is_same(value):
                reader.op.operand(index).set_source(copies[device])


def _device_of_results(view: BlockView, node: OpNode) -> str:
    """The device that has the results of an operator; for a list, that of its first member."""
    if node.type not in LISTS:
        return node.device
    return next((producer.device for producer in producers_of(view, node)), "")


def _device_of_reader(view: BlockView, reader: OpNode) -> str:
    """The device of a reader; for a list operator, that of the first reader of the list."""
    if reader.type in LISTS:
        readers = (r for vid in reader.writes for r in view.readers.get(vid, ()))
        return next((_device_of_reader(view, r) for r in readers), "")
    if reader.type in SINKS or reader.op.num_regions() > 0:
        return ""
    return reader.device


def _source(view: BlockView, node: OpNode) -> str | None:
    """The device from which a copy inserted by the plan reads; ``None`` for other operators."""
    if not is_copy(node.op):
        return None
    producers = producers_of(view, node)
    return producers[0].device if producers else CPU


# -- presentation --------------------------------------------------------------------------------


def _described(
    nodes: Sequence[OpNode],
    reads: Mapping[OpNode, Sequence[int]],
    devices: Mapping[OpNode, tuple[str, str | None]],
    report: Report,
) -> Iterator[PlacedOperator]:
    outermost = report.blocks[0]
    intervals = {i: n for n, each in enumerate(outermost.intervals) for i in each.indices}
    reasons = {op.index: op.reason for op in outermost.native}
    for node in nodes:
        device, source = devices[node]
        index = intervals.get(node.index)
        yield PlacedOperator(
            index=node.index,
            type=node.type,
            device=NATIVE if index is None else device,
            interval=index,
            reason="" if index is not None else reasons.get(node.index, "nothing reads it"),
            copied_from=source,
            reads=reads[node],
        )


def _grouped_by_interval(operators: Sequence[PlacedOperator]) -> dict[int, list[PlacedOperator]]:
    found: dict[int, list[PlacedOperator]] = {}
    for op in operators:
        if op.interval is not None:
            found.setdefault(op.interval, []).append(op)
    return dict(sorted(found.items()))


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """Yields runs of consecutive integers as ranges such as ``3-7``."""
    first = last = None
    for index in [*sorted(numbers), None]:
        if first is not None and last is not None and index != last + 1:
            yield str(first) if first == last else f"{first}-{last}"
            first = None
        first = index if first is None else first
        last = index


def _dot_node(op: PlacedOperator, colour: str) -> str:
    title = _short(op.type) if op.copied_from is None else f"copy {op.copied_from} to {op.device}"
    return f'op{op.index} [label="{op.index} {title}\\n{op.device}", fillcolor="{colour}"];'


def _short(op_type: str) -> str:
    return op_type.removeprefix("pd_op.")
