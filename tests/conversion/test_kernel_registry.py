"""Every CPU kernel of Paddle: converted, called in functions, or native with a reason."""

from __future__ import annotations

import re

import pytest

from paddle_ngraph import _core
from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.conversion.registry import find_converter
from paddle_ngraph.ir.graph import is_random

# What an operator does that no function computes.
REASONS = re.compile(
    "samples|overwrites an operand|communicates|has side effects|"
    "(reads|makes|reads or makes) a "
    "(SelectedRows|SparseCooTensor|SparseCsrTensor|DenseTensorArray|ExtendedTensor)|"
    "reads or makes a LoD|acts outside of its results|moves, shares or names memory|"
    "leaves its results undefined|has an attribute that may name a file|"
    "makes other tensors than programs declare"
)


def test_every_kernel_has_a_way():
    """A kernel of a new release of Paddle has one, too: reasons follow from declarations."""
    called, native = set(kernel_calls.callable_types()), kernel_calls.native_types()
    assert not called & native.keys()
    kernels = kernel_calls.cpu_kernels()
    assert len(kernels) > 1000
    for kernel, (types, other_tensors) in kernels.items():
        for type in types:
            ways = [find_converter(type) is not None, type in called, type in native]
            assert sum(ways) == 1, (kernel, type)
            if type in called:
                assert not other_tensors, (kernel, type)
    for type, reason in native.items():
        assert REASONS.fullmatch(reason), (type, reason)


def test_the_list_names_operators_that_paddle_has():
    """The list has no operator that Paddle's declarations exclude already."""
    for type, reason in _core.impure_operators().items():
        assert _core.reason_against_kernel(type) == reason, type


@pytest.mark.parametrize("word", ["seed", "random", "sample"])
def test_no_kernel_that_samples_is_called(word):
    """Gradients read what the operator has drawn."""
    for type in kernel_calls.callable_types():
        assert word not in type or type.endswith("_grad"), type
        assert not is_random(type)


def test_paddle_declares_that_operators_sample():
    """The trait that the core reads: new operators that sample have it."""
    assert _core.reason_against_kernel("pd_op.random_routing") == "has side effects"
    assert _core.reason_against_kernel("pd_op.randint") == "has side effects"
