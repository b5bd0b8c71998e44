"""Functions on a plan of Paddle's executor, whose programs are PIR or ProgramDesc."""

from __future__ import annotations

from collections.abc import Iterable

from paddle_ngraph.frontends.executor import scope_tracking
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.paddle_private.names import PaddlePlan
from paddle_ngraph.paddle_private.protocols import LegacyProgramDesc, Plan, Program
from paddle_ngraph.partitioning.analysis import block_view
from paddle_ngraph.partitioning.analysis.block_view import has_bfloat16


def is_sequential(plan: Plan) -> bool:
    """Whether the operators of a plan run one by one, in program order."""
    return any(map(block_view.is_sequential, map(plan.ir_program, plan.job_types())))


def pir_programs(plan: Plan, owner: str) -> dict[str, Program]:
    """Copies of the plan's programs, in PIR, by job type; ``{}`` if Paddle cannot translate one.

    Args:
        plan: The plan.
        owner: Names the plan: operators of all its copies share their state.
    """
    copies = {job_type: pir_program(plan, job_type, owner) for job_type in job_types(plan)}
    found = {job_type: each for job_type, each in copies.items() if each is not None}
    return found if len(found) == len(copies) else {}


def programs(plan: Plan) -> dict[str, Program | LegacyProgramDesc]:
    """The programs of the plan (PIR or ProgramDesc), by job type."""
    is_pir = plan.job_types()
    return {t: plan.ir_program(t) if t in is_pir else plan.program(t) for t in job_types(plan)}


def plan_for_paddle(plan: Plan) -> Plan:
    """``plan`` for a run by Paddle's executor, with copies of programs that use bfloat16.

    Paddle's executor modifies such programs in place: it inserts oneDNN operators.
    """
    programs = {t: plan.ir_program(t) for t in plan.job_types()}
    if not any(map(has_bfloat16, programs.values())):
        return plan
    return PaddlePlan(plan.job_list(), {t: each.clone() for t, each in programs.items()})


def with_existing_variables(plan: Plan) -> Plan:
    """The plan, with programs that write to the existing variables of the scope."""
    if not plan.job_types():
        return plan  # a ProgramDesc program writes to existing variables in any case
    return PaddlePlan(plan.job_list(), {t: pir_program(plan, t) for t in plan.job_types()})


def runs_python(plan: Plan) -> bool:
    """Whether some ProgramDesc program of the plan calls a Python function."""
    return any(map(translation.calls_python, legacy_programs(plan)))


def legacy_programs(plan: Plan) -> list[LegacyProgramDesc]:
    """The programs of the plan that are ProgramDesc."""
    return [plan.program(t) for t in job_types(plan) if t not in plan.job_types()]


def persistable_in(programs: Iterable[LegacyProgramDesc]) -> frozenset[str]:
    """The names of the persistable variables in the outermost blocks of ProgramDesc programs."""
    variables = (v for program in programs for v in program.block(0).all_vars())
    return frozenset(variable.name() for variable in variables if variable.persistable())


def job_types(plan: Plan) -> set[str]:
    """The types of all jobs in the plan."""
    return {job.type() for job in plan.job_list()}


def pir_program(plan: Plan, job_type: str, owner: str = "") -> Program | None:
    """A copy of a program of the plan; a ProgramDesc program is translated, ``None`` if impossible.

    The copy writes to existing variables of the scope instead of recreating them.
    """
    is_pir = job_type in plan.job_types()
    if is_pir:
        program: Program | None = plan.ir_program(job_type).clone()
    else:
        program = translation.to_pir(plan.program(job_type), f"{owner}, {job_type}")
    if program is not None:
        scope_tracking.keep_variables(program)
    return program
