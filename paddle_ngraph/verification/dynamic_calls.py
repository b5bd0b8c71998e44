"""Operators of optimizers in dynamic mode by kernels of the core, compared with Paddle's kernels.

They are part of no subgraph: the core computes a call of a C function of Paddle. The reference is
that function, on copies of the arguments.
"""

from __future__ import annotations

from typing import Any

from paddle_ngraph.verification import checks
from paddle_ngraph.verification.bisection import Located
from paddle_ngraph.verification.kernel_runs import CallRun


def check_call(name: str, given: tuple[Any, ...], result: Any) -> None:
    """Compares the result of a call with Paddle's. Called by the core, whose kernels are off here.

    Args:
        name: The function.
        given: Its arguments before the call, with copies of tensors.
        result: The result; of a call in place, tensors among the arguments.
    """

    def compared() -> None:
        run, found = CallRun.of_call(name, given, result)
        subject = checks.subjects.get_or_create(
            run.text, lambda: checks.Subject(run.graph, run.text)
        )
        located = Located(run.graph.ops[0], run.description)
        checks.judge(subject, run, found, lambda wrong: checks.Mismatch(wrong, located, run, found))

    checks.check(compared)
