"""The ngraph transpiler: a static program in, a program with engine operators out.

``paddle_ngraph.transpile`` is the program pass as a step of its own, whose result can be printed,
saved and run. The executor hook and saved models transpile by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
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
from paddle_ngraph.partitioning import cost_model, program_pass
from paddle_ngraph.partitioning.analysis.block_view import (
    FETCH,
    is_trained_elsewhere,
    may_write_variables,
)
from paddle_ngraph.partitioning.report import Report


def transpile(program: Any, wanted: Sequence[Any] = ()) -> tuple[Program, list[Value]]:
    """Makes a program with engine operators of a static program, which stays as it is.

    Args:
        program: A static program, PIR or old-style.
        wanted: What will be fetched: variables, or names of variables.

    Returns:
        The new program, and the values in it that stand for what is wanted.

    Raises:
        NgraphError: ``program`` is no static program or cannot become a PIR program, or something
            in ``wanted`` is no variable of it.
    """
    copy, fetching = copied(static_program(program, "transpile"), wanted)
    rewrite_before_run(copy)
    return copy, remove_fetches(copy, fetching)


def copied(program: Any, wanted: Sequence[Any]) -> tuple[Program, list[Operation]]:
    """A copy of a static program, and operators of the copy that fetch what is wanted.

    Args:
        program: What :func:`static_program` returns.
        wanted: As in :func:`transpile`.

    Raises:
        NgraphError: As in :func:`transpile`.
    """
    copy = _translated if isinstance(program, LegacyProgram) else _cloned
    return copy(program, wanted)


def remove_fetches(program: Program, fetching: Sequence[Operation]) -> list[Value]:
    """The values that operators fetch, which are removed from the program."""
    fetches = [op.operand_source(0) for op in fetching]
    for op in fetching:
        program.global_block().remove_op(op)
    return fetches


def rewrite(
    program: Program,
    may_write: bool | None = None,
    open_size: int | None = cost_model.TYPICAL_SIZE,
    tries: bool = True,
) -> Report:
    """Applies the program pass to a program that will run in a scope, in place.

    Args:
        program: A PIR program.
        may_write: Whether what runs may write to variables of the scope: this program, or others
            of the same plan. ``None``: as this program alone says.
        open_size, tries: As in :func:`program_pass.apply`.

    Returns:
        What was converted.
    """
    if may_write is None:
        may_write = may_write_variables(program)
    keeps = not may_write and not is_trained_elsewhere(program)
    return program_pass.apply(program, keep_weights=keeps, open_size=open_size, tries=tries)


def rewrite_before_run(program: Program) -> Report:
    """The same, before anybody knows what the program will be fed, and how often it will run."""
    report = rewrite(program)
    if report.has_small_interval and not report.changes and could_be_single_engine([program]):
        report = rewrite(program, open_size=None)
    return report


def could_be_single_engine(programs: Iterable[Program]) -> bool:
    """Whether one engine operator could be all of it, if the cost rule did not apply.

    That gains more than the rule knows of: nothing of Paddle's runs then.
    """
    reports = [program_pass.dry_run(program, None) for program in programs]
    is_one = sum(len(report.intervals) for report in reports) == 1
    return is_one and not any(report.ops_native or report.engines for report in reports)


def static_program(program: Any, function: str, others: str = "") -> Any:
    """What a static program is: a ``paddle.pir.Program``, or an old-style ``Program``.

    Args:
        program: What the user has given.
        function: To which function; for the message.
        others: What else that function takes.

    Raises:
        NgraphError: It is no static program.
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
    """A copy of a PIR program, and operators of the copy that fetch what is wanted."""
    operators = program.global_block().ops
    values = {value.id for op in operators for value in op.results() if value.initialized()}
    named = {op.attrs()["name"]: op.operand_source(0) for op in operators if op.name() == FETCH}
    mapping = IrMapping()
    copy = program.clone(mapping)
    set_random_seed(copy, program.random_seed)
    fetching = []
    for number, each in enumerate(wanted):
        value = named.get(each) if isinstance(each, str) else each
        if not isinstance(value, paddle.pir.Value) or value.id not in values:
            raise _unknown(number, each)
        attributes = [("name", None, f"transpiled_{number}"), ("col", None, number)]
        operands = [mapping.look_up(value)]
        (fetched,) = _core.append_operator(copy.global_block(), FETCH, operands, None, attributes)
        fetching.append(producer_of(fetched))
    return copy, fetching


def _translated(program: Any, wanted: Sequence[Any]) -> tuple[Program, list[Operation]]:
    """The same of an old-style program."""
    with paddle.pir_utils.OldIrGuard():
        old = promote_types(program.clone())
    names: list[str] = []
    for number, each in enumerate(wanted):
        name = each.name if isinstance(each, paddle.static.Variable) else each
        if not isinstance(name, str) or not old.global_block().has_var(name):
            raise _unknown(number, each)
        names.append(name)
    try:
        copy, fetching = translation.translate_fetching(old.desc, names)
    except NotTranslatable as reason:
        raise NgraphError(f"the program cannot become a PIR program: {reason}") from reason
    translation.rename_as_pir(copy)
    set_random_seed(copy, program.random_seed)
    if (scheduler := getattr(program, "lr_scheduler", None)) is not None:
        set_scheduler(copy, scheduler)
    return copy, fetching


def _unknown(number: int, fetch: Any) -> NgraphError:
    what = repr(fetch) if isinstance(fetch, str) else type(fetch).__name__
    return NgraphError(f"fetch_list[{number}] ({what}) is no variable of the program")
