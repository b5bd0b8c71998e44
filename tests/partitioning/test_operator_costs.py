"""Estimated work of operators, from the reports on programs of Paddle."""

from __future__ import annotations

import math

import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.utils.dtypes import DTYPES, element_bytes
from tests.programs import Program, parameter

pytestmark = pytest.mark.pure


def flops_by_type(build) -> dict[str, int]:
    (block, *_) = paddle_ngraph.explain(Program(build).main).blocks
    return {op.type.removeprefix("pd_op."): op.num_flops for op in block.operators}


def bytes_by_type(build) -> dict[str, int]:
    (block, *_) = paddle_ngraph.explain(Program(build).main).blocks
    return {op.type.removeprefix("pd_op."): op.num_bytes for op in block.operators}


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_a_matmul_takes_two_for_each_product(batch, transposed):
    m, k, n = 4, 5, 6
    left, right = (k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n)

    def build():
        x = paddle.static.data("x", [*batch, *left])
        return paddle.matmul(x, parameter(*right), *transposed)

    assert flops_by_type(build)["matmul"] == 2 * math.prod(batch) * m * k * n


def test_a_gradient_takes_as_many_for_each_result():
    def build():
        x = parameter(4, 5)
        loss = paddle.sum(paddle.matmul(x, parameter(5, 6, seed=1)))
        paddle.optimizer.SGD(0.1).minimize(loss)
        return loss

    found = flops_by_type(build)
    assert found["matmul"] == 2 * 4 * 5 * 6 and found["matmul_grad"] == 2 * found["matmul"]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_takes_two_for_each_weight_and_place(groups):
    def build():
        x = paddle.static.data("x", [2, 4, 8, 8])
        return paddle.nn.functional.conv2d(x, parameter(6, 4 // groups, 3, 3), groups=groups)

    assert flops_by_type(build)["conv2d"] == 2 * (2 * 6 * 6 * 6) * (4 // groups * 3 * 3)


def test_a_transposed_convolution_takes_two_for_each_weight_and_element():
    def build():
        x = paddle.static.data("x", [2, 4, 8, 8])
        return paddle.nn.functional.conv2d_transpose(x, parameter(4, 6, 3, 3))

    assert flops_by_type(build)["conv2d_transpose"] == 2 * (2 * 4 * 8 * 8) * (6 * 3 * 3)


def test_others_take_one_for_each_element_and_read_their_bytes_once():
    def build():
        return paddle.exp(paddle.static.data("x", [3, 4]))

    assert flops_by_type(build)["exp"] == 12 and bytes_by_type(build)["exp"] == 2 * 48


def test_elements_have_their_sizes():
    sizes = {"bool": 1, "int64": 8, "bfloat16": 2, "complex128": 16, "float8_e4m3fn": 1}
    assert {name: element_bytes(name) for name in sizes} == sizes
    assert all(element_bytes(name) >= 1 for name in (*DTYPES, "pstring", "undefined"))
