"""Copies of the variables of a program."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_ngraph import NgraphError
from paddle_ngraph.paddle_private.names import new_scope
from paddle_ngraph.transpiler.scope_copies import copies_of, variables_of
from tests.programs import Program, floats, linear_regression


def contents(program: Program, scope) -> dict[str, np.ndarray]:
    found = variables_of(program.main, scope)
    return {name: np.array(each.get_tensor()) for name, each in found.items()}


def test_runs_on_copies_change_nothing():
    program = Program(linear_regression)
    feed = {"x": floats(3, 4), "y": floats(3, 1)}
    before = contents(program, program.scope)
    assert len(before) >= 2
    copies = copies_of(program.main, program.scope)
    program.executor.run(program.main, feed, program.fetches, scope=copies)
    after = contents(program, copies)
    assert any(not np.array_equal(after[name], before[name]) for name in before)
    for name, array in contents(program, program.scope).items():
        np.testing.assert_array_equal(array, before[name])


def test_a_variable_that_is_not_there_is_an_error():
    program = Program(linear_regression)
    with pytest.raises(NgraphError, match="run the startup program first"):
        copies_of(program.main, new_scope())
