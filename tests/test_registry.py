"""The registry: one converter an operator, limits as data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.function.registry import (
    Limit,
    all_converters,
    converter,
    find_converter,
    unregister,
)
from paddle_ngraph.graph import Op, TensorSpec

NAME = "custom_op.only_in_this_test"


@pytest.fixture
def registered():
    limit = Limit("alpha must be positive", lambda op: op.attr("alpha") > 0)

    @converter(NAME, index=("ids",), unwritten=("mask",), limits=[limit])
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


def test_a_limit_gives_its_sentence(registered):
    assert registered.reason_against(op(attrs={"alpha": -1.0})) == "alpha must be positive"


def test_a_dtype_out_of_the_limits_is_named(registered):
    wrong = {"x": (TensorSpec(0, "float64", (2,)),)}
    assert registered.reason_against(op(inputs=wrong)) == "input 'x' is float64, not float32"


def test_a_used_output_that_is_not_made_is_named(registered):
    outputs = {"mask": (TensorSpec(3, "float32", (2,)),)}
    assert registered.reason_against(op(outputs=outputs)) == "output 'mask' is used"


def test_two_converters_for_one_operator_are_refused(registered):
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


def test_threads_that_ask_first_find_every_converter():
    code = """
import threading
from paddle_ngraph.function.registry import find_converter

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
