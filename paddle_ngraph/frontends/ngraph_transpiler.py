"""The ngraph transpiler: from a static program to a program with engine operators.

``paddle_ngraph.transpile`` is the program pass as a separate function, whose result can be printed,
saved and run. The executor hook and saved models use the functions of this module, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import SENTENCES, NgraphError
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.frontends.program_desc.single_assignment import NotTranslatable
from paddle_ngraph.paddle_private.names import (
    IrMapping,
    LegacyProgram,
    producer_of,
    program_in,
    promote_types,
    set_random_seed,
    set_scheduler,
)
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning import program_pass
from paddle_ngraph.partitioning.analysis.block_view import (
    FETCH,
    is_trained_elsewhere,
    may_write_variables,
)
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.settings import SETTINGS


def transpile(program: Any, wanted: Sequence[Any] = ()) -> tuple[Program, list[Value]]:
    """Returns a program with engine operators for a static program, which is not modified.

    Args:
        program: A static program, PIR or ProgramDesc.
        wanted: The variables to fetch, or their names.

    Returns:
        The new program, and its values that correspond to ``wanted``.

    Raises:
        NgraphError: ``program`` is no static program or cannot be translated to PIR, or an element
            of ``wanted`` is no variable of the program.
    """
    copy, fetching = copied(static_program(program, "transpile"), wanted)
    rewrite_before_run(copy)
    return copy, remove_fetches(copy, fetching)


def copied(program: Any, wanted: Sequence[Any]) -> tuple[Program, list[Operation]]:
    """A copy of a static program, and operators of the copy that fetch the wanted variables.

    Args:
        program: A result of :func:`static_program`.
        wanted: As in :func:`transpile`.

    Raises:
        NgraphError: As in :func:`transpile`.
    """
    copy = _translated if isinstance(program, LegacyProgram) else _cloned
    return copy(program, wanted)


def remove_fetches(program: Program, fetching: Sequence[Operation]) -> list[Value]:
    """Removes the fetch operators ``fetching``; returns the values that they fetched."""
    fetches = [op.operand_source(0) for op in fetching]
    for op in fetching:
        program.global_block().remove_op(op)
    return fetches


def rewrite(
    program: Program,
    may_write: bool | None = None,
    open_size: int | None = SETTINGS.typical_dimension_size,
    tries: bool = True,
) -> Report:
    """Applies the program pass to a program that will run in a scope, in place.

    Args:
        program: A PIR program.
        may_write: Whether this program, or others of its plan, may write to variables of the scope.
            ``None``: derived from this program alone.
        open_size, tries: As in :func:`program_pass.apply`.

    Returns:
        A report on the converted operators.
    """
    if may_write is None:
        may_write = may_write_variables(program)
    keep_weights = not may_write and not is_trained_elsewhere(program)
    return program_pass.apply(program, keep_weights=keep_weights, open_size=open_size, tries=tries)


def rewrite_before_run(program: Program) -> Report:
    """Rewrites a program by the pass before its feeds and number of runs are known."""
    report = rewrite(program)
    if report.has_small_interval and not report.changes and could_be_single_engine([program]):
        report = rewrite(program, open_size=None)
    return report


def could_be_single_engine(programs: Iterable[Program]) -> bool:
    """Whether programs could become one engine operator, if the cost model did not apply.

    The gain is larger than the model's estimate, since no operators or executors of Paddle run
    then.
    """
    reports = [program_pass.dry_run(program, None) for program in programs]
    is_one = sum(len(report.intervals) for report in reports) == 1
    return is_one and not any(report.ops_native or report.engines for report in reports)


def static_program(program: Any, function: str, others: str = "") -> Any:
    """Unwraps a static program to a ``paddle.pir.Program`` or a ProgramDesc ``Program``.

    Args:
        program: The user's argument.
        function: The name of the function that received it, for the message.
        others: Text about other arguments that the function accepts, the end of the message.

    Raises:
        NgraphError: ``program`` is no static program.
    """
    if isinstance(program, paddle.static.CompiledProgram):
        program = program_in(program)
    if isinstance(program, (paddle.pir.Program, LegacyProgram)):
        return program
    raise NgraphError(
        f"{function}() takes a static program, not {type(program).__name__}: pass the "
        f"paddle.static.Program that Executor.run gets{others}"
    )


def _cloned(program: Program, wanted: Sequence[Any]) -> tuple[Program, list[Operation]]:
    """A copy of a PIR program, and operators of the copy that fetch the wanted variables."""
    operators = program.global_block().ops
    values = {value.id for op in operators for value in op.results() if value.initialized()}
    named = {op.attrs()["name"]: op.operand_source(0) for op in operators if op.name() == FETCH}
    mapping = IrMapping()
    copy = program.clone(mapping)
    set_random_seed(copy, program.random_seed)
    fetching = []
    for index, each in enumerate(wanted):
        value = named.get(each) if isinstance(each, str) else each
        if not isinstance(value, paddle.pir.Value) or value.id not in values:
            raise UnknownFetch(index, each)
        attributes = [("name", None, f"transpiled_{index}"), ("col", None, index)]
        operands = [mapping.look_up(value)]
        (fetched,) = _core.append_operator(copy.global_block(), FETCH, operands, None, attributes)
        fetching.append(producer_of(fetched))
    return copy, fetching


def _translated(program: Any, wanted: Sequence[Any]) -> tuple[Program, list[Operation]]:
    """Returns a PIR translation of a ProgramDesc program, and its fetches of wanted variables."""
    with paddle.pir_utils.OldIrGuard():
        legacy = promote_types(program.clone())
    names: list[str] = []
    for index, each in enumerate(wanted):
        name = each.name if isinstance(each, paddle.static.Variable) else each
        if not isinstance(name, str) or not legacy.global_block().has_var(name):
            raise UnknownFetch(index, each)
        names.append(name)
    try:
        copy, fetching = translation.translate_fetching(legacy.desc, names)
    except NotTranslatable as reason:
        raise NgraphError(f"the program cannot become a PIR program: {reason}") from reason
    translation.rename_as_pir(copy)
    set_random_seed(copy, program.random_seed)
    if (scheduler := getattr(program, "lr_scheduler", None)) is not None:
        set_scheduler(copy, scheduler)
    return copy, fetching


class UnknownFetch(NgraphError):
    """An element of the fetch list is no variable of the program.

    Attributes:
        index: The index of the element in the fetch list.
        shown: The element, as the message names it.
    """

    def __init__(self, index: int, fetch: Any) -> None:
        self.index = index
        self.shown = repr(fetch) if isinstance(fetch, str) else type(fetch).__name__
        super().__init__(SENTENCES["unknown_fetch"].format(index=index, shown=self.shown))
