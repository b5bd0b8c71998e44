"""The variables that a program finds in a scope; copies of them, for runs that change nothing."""

from __future__ import annotations

import numpy as np
import paddle

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.names import new_scope
from paddle_ngraph.paddle_private.protocols import Program, Scope, Variable
from paddle_ngraph.transpiler import training_program


def variables_of(program: Program, scope: Scope) -> dict[str, Variable]:
    """The variables that a program finds in a scope, by name.

    Raises:
        NgraphError: One is not there.
    """
    found = {}
    for name in training_program.variables(program):
        variable = scope.find_var(name)
        if variable is None:
            raise NgraphError(f"there is no variable {name!r} yet: run the startup program first")
        found[name] = variable
    return found


def copies_of(program: Program, scope: Scope) -> Scope:
    """A scope with copies of the variables that a program finds in another one.

    Raises:
        NgraphError: One is not there.
    """
    copies = new_scope()
    for name, variable in variables_of(program, scope).items():
        copies.var(name).get_tensor().set(np.array(variable.get_tensor()), paddle.CPUPlace())
    return copies
