"""The parameter-server transpiler: splits a training program into trainer and server programs.

A trainer computes gradients; the server clips, decays and updates with them. All states of the
optimizer are on the server. Messages are flat tensors: one of all gradients, one of all parameters.
Of a *table*, the weight of an ``Embedding(sparse=True)``, only the rows that a batch looks up are
sent to the trainer, and only their gradients are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import LISTS, SOURCES, dtype_name, overwritten
from paddle_ngraph.transpiler import training_program
from paddle_ngraph.transpiler.building import Builder
from paddle_ngraph.transpiler.cutting import (
    ancestors,
    descendants,
    drop_unread_sources,
    keep,
    remove_updates,
)
from paddle_ngraph.transpiler.training_program import ParameterGradient, TrainingProgram

# Names of feeds: parameters for the trainers' program, gradients for the server's program.
PARAMETERS, GRADIENTS = "ngraph_parameters", "ngraph_gradients"
_LOOKUP, _LOOKUP_GRAD = "pd_op.embedding", "pd_op.embedding_grad"
_NO_PADDING = -1


@dataclass(frozen=True)
class Table:
    """A parameter of which trainers receive only the rows that they look up.

    Attributes:
        name: The name of the parameter in the scope of the server.
        length: The number of rows.
        width: The number of columns.
        lookups: Feeds of the trainer's program: the user's feed of row indices -> the feed of their
            indices among the rows that were sent.
        paddings: Rows that are always sent, first.
    """

    name: str
    length: int
    width: int
    lookups: dict[str, str]
    paddings: list[int]

    def place_of(self, padding: int) -> int:
        """The index of the padding row of a lookup among the rows that trainers receive."""
        return self.paddings.index(padding) if padding in self.paddings else _NO_PADDING

    @property
    def rows(self) -> str:
        """The name of the feed with the rows that a batch reads, float32 [rows, width]."""
        return f"{self.name}@rows"

    @property
    def numbers(self) -> str:
        """The name of the feed of the server's programs with indices of rows, int64 [rows]."""
        return f"{self.name}@numbers"

    @property
    def gradients(self) -> str:
        """The name of the feed of the server's program with gradients, float32 [rows, width]."""
        return f"{self.name}@gradients"


class ServerForm(NamedTuple):
    """The result of :func:`paddle_ngraph.distribute_to_server`.

    Attributes:
        trainer: Is fed parameters, computes gradients.
        fetches: The variables in ``trainer`` that correspond to the ``fetch_list``.
        gradients: The variables in ``trainer`` that are sent to the server: all dense gradients in
            one, if there are any; then those of the rows of each table.
        kept: The names of other variables of ``trainer``: frozen parameters and statistics, which
            are copied from the server when training starts.
        server: Is fed gradients, updates parameters.
        tables: The tables.
        lookup: A program that reads rows of the tables on the server, and its results.
        send: A program that reads the parameters on the server, and its results, which are sent to
            the trainers.
    """

    trainer: Program
    fetches: list[Value]
    gradients: list[Value]
    kept: list[str]
    server: Program
    tables: list[Table]
    lookup: tuple[Program, list[Value]]
    send: tuple[Program, list[Value]]


def transpile(program: Any, wanted: Sequence[Any] = ()) -> ServerForm:
    """Creates the programs of trainers and server from a single-process training program.

    Args:
        program: A static training program, PIR or ProgramDesc; not modified.
        wanted: The fetch list of trainers: variables, or names of variables.

    Raises:
        NgraphError: As :func:`distribution_transpiler.transpile`; a parameter is not float32; a
            variable in ``wanted`` is computed by the server; a table has readers other than
            lookups, or row indices that the program computes, or weight decay.
    """
    given = ngraph_transpiler.static_program(program, "distribute_to_server")
    trainer, fetching = ngraph_transpiler.copied(given, wanted)
    server, _ = ngraph_transpiler.copied(given, ())
    form = _TrainerBuilder(trainer, fetching)
    _make_server(server, form.tables)
    shapes = {name: list(v.shape) for name, v in training_program.variables(server).items()}
    return ServerForm(
        trainer=trainer,
        fetches=ngraph_transpiler.remove_fetches(trainer, fetching),
        gradients=form.gradients,
        kept=sorted(training_program.variables(trainer).keys() - dict(form.dense).keys()),
        server=server,
        tables=form.tables,
        lookup=_lookup(form.tables, shapes),
        send=_send(form.dense),
    )


def _require_float32(parameter: str, value: Value) -> None:
    dtype = dtype_name(value.dtype)
    if dtype != "float32":
        raise NgraphError(
            f"the parameter {parameter!r} is {dtype}: a parameter server supports float32"
        )


def _is_table(gradient: ParameterGradient) -> bool:
    """Whether a gradient belongs to the weight of an ``Embedding(sparse=True)``."""
    readers = _parameter(gradient).all_used_ops()
    return any(op.name() == _LOOKUP and op.attrs()["sparse"] for op in readers)


def _parameter(gradient: ParameterGradient) -> Value:
    names = gradient.update.get_input_names()
    return gradient.update.operand_source(names.index("param"))


def _written_by_server(program: Program, training: TrainingProgram) -> set[str]:
    """The names of the variables that the operators after the last gradient overwrite.

    The parameter server runs these operators: optimizer updates, and others without a gradient.
    """
    last = max((gradient.index for gradient in training.gradients), default=-1)
    variables = training_program.variables(program)
    names = {value.id: name for name, value in variables.items()}
    written = [v for op in training.operators[last + 1 :] for v, _ in overwritten(op)]
    return {names[v.id] for v in written if v.id in names}


# -- the trainer ---------------------------------------------------------------------------------


class _TrainerBuilder:
    """Transforms a training program into that of a trainer.

    Args:
        program: A copy of the user's program.
        fetching: The fetch operators of the program.

    Attributes:
        dense: Names and shapes of dense parameters, and of other variables that trainers read and
            the server writes: averages of parameters, or parameters that only decay.
        tables: The other parameters.
        gradients: As in :class:`ServerForm`.
    """

    def __init__(self, program: Program, fetching: Sequence[Operation]) -> None:
        self._block = program.global_block()
        training = TrainingProgram(program)
        gradients = training.gradients
        for gradient in gradients:
            _require_float32(gradient.parameter, gradient.value)
        others = [g for g in gradients if not _is_table(g)]
        parameters = [_parameter(gradient) for gradient in others]
        self.dense = [(g.parameter, list(g.value.shape)) for g in others]
        looked_up = [(g.parameter, _parameter(g)) for g in gradients if _is_table(g)]
        names = {g.parameter for g in gradients}
        written = _written_by_server(program, training) - names
        remove_updates(program, training, fetching)
        build = Builder(self._block)
        self.gradients = [build.flat([g.value for g in others])] if others else []
        for name, value in training_program.variables(program).items():
            if name in written and not value.use_empty():
                _require_float32(name, value)
                parameters.append(value)
                self.dense.append((name, list(value.shape)))
        if parameters:
            self._feed_parameters(parameters)
        self.tables = [self._look_up(name, weight) for name, weight in looked_up]
        drop_unread_sources(self._block)

    def _feed_parameters(self, parameters: Sequence[Value]) -> None:
        """Adds operators at the beginning that overwrite the parameters with the fed values."""
        build = Builder(self._block, before=_first_operator(self._block))
        fed = build.fed(PARAMETERS, [sum(map(_size, parameters))], "float32")
        shapes = [list(value.shape) for value in parameters]
        for parameter, new in zip(parameters, build.unflattened(fed, shapes)):
            build("pd_op.assign_out_", [new, parameter])

    def _look_up(self, name: str, weight: Value) -> Table:
        """Has embeddings read fed rows instead of the table; returns a description of the table."""
        readers = weight.all_used_ops()
        for op in readers:
            if op.name() not in (_LOOKUP, _LOOKUP_GRAD):
                raise NgraphError(
                    f"the table {name!r} is read by {op.name()}: give its embedding sparse=False"
                )
        table = _table(name, weight, readers)
        build = Builder(self._block, before=_first_operator(self._block))
        rows = build.fed(table.rows, [-1, table.width], "float32")
        numbers = {_fed_name(op.operand_source(0)): op.operand_source(0) for op in readers}
        positions = {
            name: build.fed(table.lookups[name], list(each.shape), dtype_name(each.dtype))
            for name, each in numbers.items()
        }
        gradients = []
        for op in readers:
            build = Builder(self._block, before=op)
            given = [positions[_fed_name(op.operand_source(0))], rows, *op.operands_source()[2:]]
            padding = table.place_of(op.attrs()["padding_idx"])
            options = {"sparse": False} if op.name() == _LOOKUP else {}
            found = build(op.name(), given, padding_idx=("int64", padding), **options)
            if op.name() == _LOOKUP:
                op.result(0).replace_all_uses_with(found)
            else:
                gradients.append(found)
        keep(self._block, {op.id() for op in self._block.ops} - descendants(readers))
        build = Builder(self._block)
        self.gradients.append(
            gradients[0] if len(gradients) == 1 else build("pd_op.add_n", [gradients])
        )
        return table


def _table(name: str, weight: Value, readers: Sequence[Operation]) -> Table:
    lookups, paddings = {}, set()
    for op in readers:
        producer = op.operand_source(0).get_defining_op()
        if producer is None or producer.name() != "pd_op.data":
            raise NgraphError(
                f"the table {name!r} is looked up by computed indices: feed the indices of the "
                "rows, or give its embedding sparse=False"
            )
        fed = str(producer.attrs()["name"])
        lookups[fed] = f"{fed}@{name}"
        paddings.add(int(op.attrs()["padding_idx"]))
    length, width = weight.shape
    return Table(name, length, width, lookups, sorted(paddings - {_NO_PADDING}))


def _fed_name(value: Value) -> str:
    return str(producer_of(value).attrs()["name"])


# -- the server ----------------------------------------------------------------------------------


def _make_server(program: Program, tables: Sequence[Table]) -> None:
    """Turns a training program into that of the server: only updates, with fed gradients."""
    block = program.global_block()
    named = {table.name: table for table in tables}
    training = TrainingProgram(program)
    others = [g for g in training.gradients if g.parameter not in named]
    # The operators after the last gradient that overwrite a variable: updates of parameters, and
    # operators of some optimizers that update states separately.
    last = max(gradient.index for gradient in training.gradients)
    updates = [op for op in training.operators[last + 1 :] if list(overwritten(op))]
    _feed_gradients(block, others)
    for gradient in training.gradients:
        if gradient.parameter in named:
            replaced = gradient.update.id()
            updates = [op for op in updates if op.id() != replaced]
            updates += _update_rows(block, gradient, named[gradient.parameter])
    keep(block, ancestors(updates))


def _feed_gradients(block: Block, gradients: Sequence[ParameterGradient]) -> None:
    """Has updates read fed gradients instead of those that the program computes."""
    if not gradients:
        return
    build = Builder(block, before=_first_operator(block))
    fed = build.fed(GRADIENTS, [sum(_size(g.value) for g in gradients)], "float32")
    shapes = [list(gradient.value.shape) for gradient in gradients]
    for gradient, new in zip(gradients, build.unflattened(fed, shapes)):
        for op, number in gradient.readers:
            op.operand(number).set_source(new)


def _update_rows(block: Block, gradient: ParameterGradient, table: Table) -> list[Operation]:
    """Restricts an update to rows of a table and of its states; returns the new operators."""
    whole = list(gradient.value.shape)
    build = Builder(block, before=_first_operator(block))
    numbers = build.fed(table.numbers, [-1], "int64")
    now = {gradient.value.id: build.fed(table.gradients, [-1, table.width], "float32")}
    after = descendants(op for op, _ in gradient.readers)
    for op in [op for op in block.ops if op.id() in after and op.name() not in LISTS]:
        members = [m for value in op.operands_source() for m in _members(value)]
        if op.id() != gradient.update.id() and any(m.id in now for m in members):
            _repeat(block, op, now, whole, table)
    return _repeat_update(block, gradient.update, now, whole, numbers)


def _repeat(
    block: Block, op: Operation, now: dict[int, Value], whole: list[int], table: Table
) -> None:
    """Copies an operator on a table's gradient, such as clipping, for the gradient of some rows.

    The copy's result for rows is added to ``now``, under the id of a result in the shape of the
    table. Other results of the copy, such as a norm, replace those of the operator.

    Raises:
        NgraphError: The operator also reads another tensor of all rows, as weight decay does.
    """
    for value in (m for each in op.operands_source() for m in _members(each)):
        if value.id not in now and list(value.shape) == whole:
            raise NgraphError(
                f"{op.name()} adds to the gradient of all rows of the table "
                f"{table.name!r}: train it without decay, or give its embedding sparse=False"
            )
    build = Builder(block, before=op)
    operands = [
        [now.get(m.id, m) for m in _members(value)] if _is_list(value) else now.get(value.id, value)
        for value in op.operands_source()
    ]
    results = build.like(op, operands)
    for old, new in zip(op.results(), results):
        if list(old.shape) == whole:
            now[old.id] = new
        else:
            old.replace_all_uses_with(new)


def _repeat_update(
    block: Block, op: Operation, now: dict[int, Value], whole: list[int], numbers: Value
) -> list[Operation]:
    build = Builder(block, before=op)
    axis = build.number(0, "int32")
    operands: list[Value | None] = []
    for value in op.operands_source():
        if not value.initialized():
            operands.append(None)
        elif value.id in now:
            operands.append(now[value.id])
        elif list(value.shape) == whole:
            operands.append(build("pd_op.gather", [value, numbers, axis]))
        else:
            operands.append(value)
    results = build.like(op, operands)
    operators = [producer_of(next(each for each in results if each.initialized()))]
    new = dict(zip((old.id for old in op.results() if old.initialized()), results))
    for variable, result in overwritten(op):
        if list(variable.shape) == list(result.shape) == whole:
            written = build("pd_op.scatter_", [variable, numbers, new[result.id]], overwrite=True)
            operators.append(producer_of(written))
    return operators


# -- programs for lookups and parameters ---------------------------------------------------------


def _lookup(tables: Sequence[Table], shapes: dict[str, list[int]]) -> tuple[Program, list[Value]]:
    """The program that reads fed rows of all tables, and its results."""
    program: Program = paddle.pir.Program()
    build = Builder(program.global_block())
    found = []
    for table in tables:
        numbers = build.fed(table.numbers, [-1], "int64")
        weight = _core.append_variable(
            program.global_block(), table.name, ("float32", shapes[table.name])
        )
        found.append(build("pd_op.gather", [weight, numbers, build.number(0, "int32")]))
    return program, found


def _send(dense: Sequence[tuple[str, list[int]]]) -> tuple[Program, list[Value]]:
    """The program that reads all dense parameters as one vector, and its results."""
    program: Program = paddle.pir.Program()
    block = program.global_block()
    variables = [_core.append_variable(block, name, ("float32", shape)) for name, shape in dense]
    return program, [Builder(block).flat(variables)] if variables else []


# -- operators of a block ------------------------------------------------------------------------


def _members(value: Value) -> list[Value]:
    """The members of an operand that is a list; the operand itself if not; ``[]`` if absent."""
    if not value.initialized():
        return []
    return producer_of(value).operands_source() if _is_list(value) else [value]


def _is_list(value: Value) -> bool:
    return value.initialized() and not value.is_dense_tensor_type()


def _size(value: Value) -> int:
    return prod(value.shape)


def _first_operator(block: Block) -> Operation:
    """The first operator of a block that is not a source of variables."""
    return next(op for op in block.ops if op.name() not in SOURCES)
