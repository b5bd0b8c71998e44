"""Operators of ProgramDesc run as in Paddle, each with every attribute off its default."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import static
from paddle.base.core import default_cpu_generator
from paddle.base.layer_helper import LayerHelper
from paddle.static.nn.control_flow import ConditionalBlock

import paddle_ngraph
from paddle_ngraph.frontends.program_desc import chains
from paddle_ngraph.paddle_private.names import VarType
from tests import legacy_operator_reasons as reasons
from tests.legacy_operator_walk import (
    RESULTS,
    accepted,
    case,
    differs,
    prototypes,
    run_natively,
)
from tests.programs import Program, floats

_KNOWN = json.loads(RESULTS.read_text())
_OPERATORS = sorted(type for type in _KNOWN if not type.endswith("_grad"))
# Each of these had a program fall back because of one attribute, or of a LoD, or crash.
_QUANTIZATION = "fake_quantize_dequantize_moving_average_abs_max"
_NAMED = [
    *("eig", "fill_constant", "ftrl", "leaky_relu", "memcpy", "multiclass_nms"),
    *("multiclass_nms3", "unique", "unpool", _QUANTIZATION),
    # Of these, an error and a crash of Paddle is the verdict.
    *("correlation", "full_int_array"),
]
# Paddle's translator has only later versions of these.
_FIRST_VERSIONS = ["expand", "flatten2", "nearest_interp", "top_k", "transpose"]


def walked(path, types):
    """The verdicts of a new walk over operators of these types, and their gradients."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.legacy_operator_walk", "-o", str(path)]
    environment = {**os.environ, "FLAGS_call_stack_level": "0", "GLOG_minloglevel": "3"}
    subprocess.run([*command, *types], check=True, env=environment, stderr=subprocess.DEVNULL)
    return json.loads(path.read_text())


def require_equal(found):
    """Each verdict is as in the table."""
    for type, row in found.items():
        for name, text in row.items():
            assert text == _KNOWN[type][name], (type, name)


def test_a_sample_of_operators(tmp_path):
    types = sorted({*_NAMED, *_FIRST_VERSIONS, *_OPERATORS[::90]})
    found = walked(tmp_path / "found.json", types)
    assert set(types) <= found.keys()
    require_equal(found)
    assert found["leaky_relu"]["alpha"] == "translated"
    assert found["leaky_relu_grad"]["alpha"] == "translated"
    assert found[f"{_QUANTIZATION}_grad"]["is_test"] == "translated"
    assert found["eig_grad"][""].startswith("as it is")
    assert "LoD" in found["multiclass_nms"][""]
    assert {found[type][""] for type in _FIRST_VERSIONS} == {"translated"}
    assert found["nearest_interp"]["scale"] == "translated"


@pytest.mark.slow("walks all operators, for minutes")
@pytest.mark.parametrize("part", range(8))
def test_all_operators(tmp_path, part):
    require_equal(walked(tmp_path / "found.json", _OPERATORS[part::8]))


@pytest.mark.parametrize("type", sorted(chains.SEEDED))
def test_seeded_samplers_share_no_generator(type):
    """The numbers and the state of Paddle's generator are those of a program without the others."""
    proto = prototypes()[type]
    inputs, attributes = accepted(proto)
    for seed in (1, 5):
        one, other = (
            run_natively(case(proto, inputs, {**attributes, "seed": seed}), state)
            for state in (2, 3)
        )
        assert not differs(one, other)
        sample = default_cpu_generator().random()
        paddle.seed(3)
        assert sample == default_cpu_generator().random()


def samplers():
    """Each sampler whose translation loses numbers, between subgraphs."""
    x = F.relu(static.data("x", [-1, 16], "float32") * 2.0)
    attributes = {"shape": [1, 16], "low": 0, "high": 9, "seed": 3, "dtype": int(VarType.INT64)}
    numbers = appended("randint", {}, "int64", **attributes)
    diagonal = {"diag_num": 3, "diag_step": 5, "diag_val": 7.0, "min": 0.0, "max": 1.0}
    matrix = appended("uniform_random", {}, "float32", shape=[16, 16], seed=5, **diagonal)
    samples = [appended("exponential", {"X": x}, "float32", **{"lambda": 2.0}) for _ in range(2)]
    product = appended("matmul_v2", {"X": x, "Y": matrix}, "float32")
    mixed = paddle.cast(numbers, "float32") + product + samples[0]
    return [mixed * 2.0, samples[1] + 1.0, x * 3.0]


def gradient_of_eigenvalues():
    """Of which the operator's result is complex, and the real part is the gradient."""
    x = static.data("x", [-1, 4, 4], "float32")
    x.stop_gradient = False
    helper = LayerHelper("eig")
    outputs = {
        slot: helper.create_variable_for_type_inference("complex64")
        for slot in ("Eigenvalues", "Eigenvectors")
    }
    helper.append_op(type="eig", inputs={"X": F.relu(x) + x}, outputs=outputs)
    found = appended("real", {"X": outputs["Eigenvalues"]}, "float32")
    (gradient,) = static.gradients(paddle.mean(found * found), [x])
    return [gradient * 2.0]


def appended(type, inputs, result, **attributes):
    helper = LayerHelper(type)
    out = helper.create_variable_for_type_inference(result)
    helper.append_op(type=type, inputs=inputs, outputs={"Out": out}, attrs=attributes)
    return out


@pytest.mark.usefixtures("small_intervals_pay")
@pytest.mark.parametrize(
    ("build", "shape", "kept"),
    [
        (samplers, (3, 16), {"randint", "uniform_random"}),
        (gradient_of_eigenvalues, (2, 4, 4), {"eig_grad"}),
    ],
)
def test_operators_that_read_more_than_their_inputs_stay(build, shape, kept):
    with paddle.pir_utils.OldIrGuard():
        program = Program(build)
        for seed in range(2):
            results = []
            for engine in (False, True):
                paddle.seed(seed)
                results.append(program.run(engine, x=floats(*shape, seed=seed)))
            for expected, found in zip(*results):
                np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
        assert {op.type for op in paddle_ngraph.explain(program.main).native} >= kept
        assert paddle_ngraph.stats()["engine_runs"] > 0


def lists_in_a_loop():
    x = paddle.static.data("x", [-1, 8], "float32")
    start, end = (paddle.tensor.fill_constant([1], "int64", value) for value in (0, 3))
    array = paddle.tensor.array_write(x * 2.0, start)

    def body(i, value):
        paddle.tensor.array_write(value, i, array=array)
        return [i + 1, paddle.tensor.array_read(array, i) * 0.5]

    _, value = paddle.static.nn.while_loop(lambda i, _: i < end, body, [start, x])
    length = paddle.tensor.array_length(array)
    with ConditionalBlock([length > start], is_scalar_condition=True).block():
        paddle.assign(value * 2.0, output=value)
    helper = LayerHelper("tensor_array_to_tensor")
    joined, sizes = (helper.create_variable_for_type_inference(t) for t in ("float32", "int32"))
    outputs, attributes = {"Out": joined, "OutIndex": sizes}, {"axis": 0}
    helper.append_op(
        type="tensor_array_to_tensor", inputs={"X": array}, outputs=outputs, attrs=attributes
    )
    return [value, joined, length]


@pytest.mark.usefixtures("small_intervals_pay")
def test_operators_with_blocks_and_lists_run(tmp_path):
    """Of one that prints, or calls Python, a program stays native as a whole: other tests."""
    with paddle.pir_utils.OldIrGuard():
        native, engine = Program(lists_in_a_loop), Program(lists_in_a_loop)
        native.run(False, x=floats(2, 8))
        with paddle.static.scope_guard(native.scope):
            x, fetches = native.main.global_block().var("x"), native.fetches
            prefix = str(tmp_path / "model")
            paddle.static.save_inference_model(
                prefix, [x], fetches, native.executor, program=native.main
            )
            saved, *_ = paddle.static.load_inference_model(prefix, native.executor)
        types = {op.type for block in saved.blocks for op in block.ops}
        assert types >= reasons.FRAMES - {"print", "py_func"}
        for expected, found in zip(native.run(False, x=floats(2, 8)), engine.run(x=floats(2, 8))):
            np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
        assert paddle_ngraph.stats()["engine_runs"] > 0
