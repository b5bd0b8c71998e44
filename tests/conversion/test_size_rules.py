"""Converters and passes read shapes where symbolic sizes are known, or not at all."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from openvino import Type, opset15

import paddle_ngraph
from paddle_ngraph.conversion.size_rules import Shapes, broadcast_shapes, slice_extent
from paddle_ngraph.conversion.symbolic_sizes import Guards, SymbolicSize, evaluate

pytestmark = pytest.mark.pure

PACKAGE = Path(paddle_ngraph.__file__).parent

_SHAPES = frozenset(
    {
        *("get_shape", "get_output_shape", "get_input_shape", "shape_of"),
        *("get_partial_shape", "get_output_partial_shape", "get_input_partial_shape"),
    }
)
# Sources: complete models with dynamic dimensions, or the chunks of a static batch.
_OF_MODELS = frozenset(
    {
        "algebra",
        "attention",
        "batch_split",
        "channels_last",
        "constants",
        "functions",
        "fusion",
        "gradient_pinning",
    }
    | {"int8", "mixed_precision", "node_times", "plugin_workarounds", "matmuls"}
)
_KNOWING = frozenset(
    {"bodies", "constant_folding", "function_builder", "kernel_calls", "kernel_shapes"}
    | {"model_inputs", "regions", "size_rules", "sizes"}
)


def asked(path: Path) -> set[str]:
    text = path.read_text()
    if not any(name in text for name in _SHAPES):  # most files: not worth a syntax tree
        return set()
    nodes = ast.walk(ast.parse(text))
    return {n.attr for n in nodes if isinstance(n, ast.Attribute)} & _SHAPES


def test_shapes_are_read_through_symbolic_sizes():
    paths = [p for p in sorted(PACKAGE.rglob("*.py")) if p.stem not in _OF_MODELS | _KNOWING]
    assert {path: found for path in paths if (found := asked(path))} == {}


# -- rules -----------------------------------------------------------------------------------------


def ints(*values: int) -> opset15.constant:
    return opset15.constant(np.array(values, np.int64))


NODES = {
    "broadcast": lambda x: opset15.add(x, opset15.constant(np.ones((3, 1), np.float32))),
    "reshape": lambda x: opset15.reshape(x, ints(0, -1, 1), True),
    "transpose": lambda x: opset15.transpose(x, ints(1, 0)),
    "matmul": lambda x: opset15.matmul(x, x, True, False),
    "concat": lambda x: opset15.concat([x, x, x], 1),
    "slice": lambda x: opset15.slice(x, ints(-9), ints(40), ints(2), ints(1)),
    "slice back": lambda x: opset15.slice(x, ints(-1), ints(-100), ints(-3), ints(1)),
    "strided slice": lambda x: opset15.strided_slice(
        x, ints(0, 2), ints(0, -1), ints(1, 1), [1, 0], [1, 0]
    ),
    "split": lambda x: opset15.variadic_split(x, 1, ints(3, -1)),
    "pad": lambda x: opset15.pad(x, ints(0, 2), ints(1, 5), "constant"),
    "gather": lambda x: opset15.gather(x, ints(1, 0, 1), ints(0)),
    "tile": lambda x: opset15.tile(x, ints(2, 3)),
    "reduce": lambda x: opset15.reduce_sum(x, ints(0), True),
    "top": lambda x: opset15.topk(x, opset15.constant(np.int64(2)), 1, "max", "value"),
    "squeeze": lambda x: opset15.squeeze(opset15.unsqueeze(x, ints(0, 3)), ints(0)),
    "convolution": lambda x: opset15.convolution(
        opset15.unsqueeze(x, ints(0, 1)),
        opset15.constant(np.ones((4, 1, 2, 5), np.float32)),
        *([1, 2], [1, 1], [0, 2], [1, 2]),
    ),
    "transposed convolution": lambda x: opset15.convolution_backprop_data(
        opset15.unsqueeze(x, ints(0, 1)),
        opset15.constant(np.ones((1, 4, 2, 3), np.float32)),
        strides=[1, 3],
        pads_begin=[0, 1],
        pads_end=[0, 0],
        dilations=[1, 2],
        output_padding=[0, 1],
    ),
    "pool": lambda x: opset15.avg_pool(
        opset15.unsqueeze(x, ints(0, 1)), [1, 3], [0, 1], [0, 1], [1, 4], exclude_pad=False
    ),
    "einsum": lambda x: opset15.einsum([x, x], "ij,kj->ik"),
    "elements": lambda x: opset15.gather_elements(x, ints_like(x), 1),
}


def ints_like(x: opset15.parameter) -> opset15.convert:
    return opset15.convert(x, Type.i64)


@pytest.mark.parametrize("name", NODES)
def test_rules_agree_with_ngraph_at_every_size(name):
    guards = Guards({7: 23})
    x = opset15.parameter([3, 23], Type.f32)
    shapes = Shapes(guards)
    shapes.declare(x.output(0), [None, guards.size(7)])
    found = [shapes.of(output) for output in NODES[name](x).outputs()]
    assert guards.fixed() == {}
    is_dynamic = any(isinstance(dim, SymbolicSize) for dims in found for dim in dims)
    assert is_dynamic or name in ("top", "einsum", "slice")  # equal counts at every size
    for size in (2, 5, 9, 22, 24, 39, 41, 230):
        if not all(guard.holds({7: size}) for guard in guards.remaining()):
            continue
        at = opset15.parameter([3, size], Type.f32)
        expected = [list(output.get_shape()) for output in NODES[name](at).outputs()]
        rule_shape = [
            [evaluate(d.terms, {7: size}) if isinstance(d, SymbolicSize) else d for d in dims]
            for dims in found
        ]
        assert rule_shape == expected


def test_a_type_without_a_rule_fixes_its_input_sizes():
    guards = Guards({0: 6})
    x = opset15.parameter([2, 6], Type.f32)
    shapes = Shapes(guards)
    shapes.declare(x.output(0), [None, guards.size(0)])
    node = opset15.reverse_sequence(x, opset15.constant(np.array([3, 3])), 0, 1)
    assert shapes.of(node.output(0)) == [2, 6]
    assert guards.fixed() == {0: 6}


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_slices_agree_with_python(step):
    for size in (1, 2, 5, 8):
        for start in range(-10, 11):
            for end in range(-10, 11):
                expected = range(size)[start:end:step]
                first, count = slice_extent(size, start, end, step)
                assert count == len(expected)
                assert not count or first == expected[0]


def test_shapes_broadcast_as_in_numpy():
    assert broadcast_shapes([3, 1], [4], [2, 1, 1]) == [2, 3, 4]
    with pytest.raises(ValueError, match="cannot be broadcast"):
        broadcast_shapes([3], [4])
