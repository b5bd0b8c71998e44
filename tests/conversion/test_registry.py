"""The registry: one converter for each operator, limits as data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paddle_ngraph.conversion.registry import (
    KNOWN,
    Limit,
    Role,
    all_converters,
    converter,
    find_converter,
    unregister,
    without,
)
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op, TensorSpec

pytestmark = pytest.mark.pure

NAME = "custom_op.only_in_this_test"


@pytest.fixture
def registered():
    limit = Limit("alpha must be positive", lambda op: op.attr("alpha") > 0)

    @converter(NAME, inputs={"ids": Role.INDEX}, outputs={"mask": Role.OMITTED}, limits=[limit])
    def convert(bridge, op):
        raise AssertionError("never built")

    yield find_converter(NAME)
    unregister(NAME)


def op(**changes):
    fields = {
        "inputs": {
            "x": (TensorSpec(0, "float32", (2,)),),
            "ids": (TensorSpec(1, "int64", (2,)),),
        },
        "outputs": {"out": (TensorSpec(2, "float32", (2,)),), "mask": (None,)},
        "attrs": {"alpha": 1.0},
    }
    return Op(NAME, 0, **{**fields, **changes})


def test_within_the_limits(registered):
    assert registered.reason_against(op()) is None


def test_a_limit_reports_its_sentence(registered):
    assert registered.reason_against(op(attrs={"alpha": -1.0})) == "alpha must be positive"


def test_a_dtype_out_of_the_limits_is_named(registered):
    wrong = {"x": (TensorSpec(0, "float64", (2,)),)}
    assert registered.reason_against(op(inputs=wrong)) == "input 'x' is float64, not float32"


def test_a_used_output_without_result_is_named(registered):
    outputs = {"mask": (TensorSpec(3, "float32", (2,)),)}
    assert registered.reason_against(op(outputs=outputs)) == "output 'mask' is used"


@pytest.mark.parametrize(
    ("role", "dtypes"),
    [
        (Role.DATA, {"float32", "bfloat16"}),
        (Role.SAVED, {"float32", "bfloat16"}),
        (Role.INDEX, {"float32", "bfloat16", "int32", "int64"}),
        (Role.CONSTANT, KNOWN),
        (Role.SHAPE_ONLY, KNOWN),
        (Role.UNUSED, KNOWN),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_role_of_an_input_restricts_its_dtypes(role, dtypes):
    converter(NAME, inputs={"x": role})(lambda bridge, op: None)
    try:
        entry = find_converter(NAME)
        for dtype in KNOWN:
            reason = entry.reason_against(op(inputs={"x": (TensorSpec(0, dtype, (2,)),)}))
            assert (reason is None) == (dtype in dtypes), (dtype, reason)
    finally:
        unregister(NAME)


@pytest.mark.parametrize("role", [r for r in Role if not r.is_of_inputs], ids=lambda r: r.name)
def test_the_role_of_an_output_restricts_its_use(role):
    converter(NAME, outputs={"mask": role})(lambda bridge, op: None)
    try:
        used = {"mask": (TensorSpec(3, "uint8", (2,)),)}
        reason = find_converter(NAME).reason_against(op(inputs={}, outputs=used))
        assert (reason is None) == (role is Role.WORKSPACE)
        assert reason is None or ("is used" in reason) == (role is Role.OMITTED)
    finally:
        unregister(NAME)


@pytest.mark.parametrize(
    ("side", "role"),
    [
        *(("inputs", role) for role in Role if not role.is_of_inputs),
        *(("outputs", role) for role in Role if role.is_of_inputs),
        ("inputs", "constant"),
        ("outputs", None),
    ],
)
def test_unknown_roles_are_rejected(side, role):
    with pytest.raises(NgraphError, match=f"{side}: the role of 'x' is {role!s}, not Role"):
        converter(NAME, **{side: {"x": role}})
    assert find_converter(NAME) is None


@pytest.mark.parametrize(
    ("side", "role"), [("inputs", Role.UNUSED), ("outputs", Role.OMITTED)], ids=["input", "output"]
)
def test_a_role_of_an_unknown_operand_is_named(side, role):
    converter(NAME, **{side: {"missing": role}})(lambda bridge, op: None)
    try:
        reason = find_converter(NAME).reason_against_roles(op())
        assert (
            reason == f"its converter gives a role to {side[:-1]} 'missing', which it does not have"
        )
    finally:
        unregister(NAME)


def test_converters_can_be_hidden_temporarily(registered):
    with without([NAME, "pd_op.exp", "custom_op.that_has_none"]):
        assert find_converter(NAME) is find_converter("pd_op.exp") is None
    assert find_converter(NAME) is registered and find_converter("pd_op.exp") is not None


def test_two_converters_for_one_operator_are_rejected(registered):
    with pytest.raises(NgraphError, match=f"there is a converter for {NAME} already"):
        converter(NAME)(lambda bridge, op: None)


def test_one_converter_for_two_operators():
    names = [NAME, f"{NAME}_"]
    converter(*names, dtypes=("int32",))(lambda bridge, op: None)
    try:
        first, second = (find_converter(name) for name in names)
        assert (first.type, second.type) == (NAME, f"{NAME}_")
        assert first.function is second.function
        assert first.dtypes == second.dtypes == {"int32"}
    finally:
        for name in names:
            unregister(name)


def test_an_unknown_operator_has_no_converter():
    assert find_converter("pd_op.there_is_no_such_operator") is None


def test_every_limit_is_a_sentence():
    for entry in all_converters().values():
        for limit in entry.limits:
            assert len(limit.text) > 10, entry.type


@pytest.mark.slow("starts a process")
def test_concurrent_first_lookups_find_every_converter():
    code = """
import threading
from paddle_ngraph.conversion.registry import find_converter

found = []
meet = threading.Barrier(4)

def ask():
    meet.wait()
    found.append(find_converter("pd_op.transpose") is not None)

threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert found == [True] * 4, found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
