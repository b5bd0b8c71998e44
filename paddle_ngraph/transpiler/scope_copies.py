"""Variables of a program in a scope, and copies of them for runs without side effects."""

from __future__ import annotations

import numpy as np
import paddle

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.names import new_scope
from paddle_ngraph.paddle_private.protocols import Program, Scope, Variable
from paddle_ngraph.transpiler import training_program


def variables_of(program: Program, scope: Scope) -> dict[str, Variable]:
    """The variables of a program in a scope, by name.

    Raises:
        NgraphError: A variable is missing.
    """
    found = {}
    for name in training_program.variables(program):
        variable = scope.find_var(name)
        if variable is None:
            raise NgraphError(f"there is no variable {name!r} yet: run the startup program first")
        found[name] = variable
    return found


def copies_of(program: Program, scope: Scope) -> Scope:
    """A new scope with copies of the variables of a program in ``scope``.

    Raises:
        NgraphError: A variable is missing.
    """
    copies = new_scope()
    for name, variable in variables_of(program, scope).items():
        copies.var(name).get_tensor().set(np.array(variable.get_tensor()), paddle.CPUPlace())
    return copies
