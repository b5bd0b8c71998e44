"""Numbers among the attributes of operators: each call computes with its own.

A number that differs from call to call is an input of a graph, or a constant of another graph. All
floats and integers of all operators of dynamic mode are varied, as given and computed from others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
import pytest
from paddle import _C_ops

import paddle_ngraph
from paddle_ngraph.frontends.dynamic.lazy.deferral_rules import METHODS, OPERATORS
from paddle_ngraph.partitioning import background_compile
from tests.dynamic import agree, floats

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")


class Varied(tuple[Any, ...]):
    """The values of a number that differs from call to call."""


def varied(*values: Any) -> Varied:
    return Varied(values)


class Given:
    """A tensor of this shape, computed in the function, with elements within 1 of the offset."""

    def __init__(self, *shape: int, offset: float = 0.0) -> None:
        self.shape, self.offset = shape, offset

    def tensor(self, seed: int) -> Any:
        return floats(*self.shape, seed=seed)


class Fixed:
    """A tensor that is no result of a deferred operator, such as indices."""

    def __init__(self, values: Any, dtype: str = "int64") -> None:
        self.values, self.dtype = values, dtype


X, POSITIVE = Given(2, 6, 8), Given(2, 6, 8, offset=1.5)
PICTURE, VOLUME, MATRIX = Given(2, 4, 6, 6), Given(2, 4, 6, 6, 6), Given(6, 8)
AXIS, SHIFT = varied(0, 1, 2), varied(1, 2, -1)
SMALL = varied(0.1, 0.25, 0.4)
_CPU = paddle.CPUPlace()
_SIZES = [None, None, None, "NCHW"]

# For each operator with numbers among its attributes, an example of its arguments.
EXAMPLES: dict[str, list[Any]] = {
    "addmm": [Given(6, 5), MATRIX, Given(8, 5), varied(0.5, 1.0, 2.0), varied(0.5, 1.0, 2.0)],
    "all": [Fixed([[True, False], [True, True]], "bool"), [varied(0, 1, -1)], False],
    "any": [Fixed([[True, False], [True, True]], "bool"), [varied(0, 1, -1)], False],
    "argmax": [X, AXIS, False, paddle.int64],
    "argmin": [X, AXIS, False, paddle.int64],
    "argsort": [X, AXIS, False, False],
    "baddbmm": [
        Given(2, 6, 5),
        X,
        Given(2, 8, 5),
        varied(0.5, 1.0, 2.0),
        varied(0.5, 1.0, 2.0),
    ],
    "batch_norm": [
        PICTURE,
        Fixed([0.1, 0.2, 0.3, 0.4], "float32"),
        Fixed([1.0, 2.0, 0.5, 1.5], "float32"),
        None,
        None,
        True,
        varied(0.9, 0.8, 0.7),
        varied(1e-5, 0.1, 0.5),
        "NCHW",
        False,
        False,
    ],
    "celu": [X, SMALL],
    "channel_shuffle": [PICTURE, varied(1, 2, 4), "NCHW"],
    "clip": [X, varied(-0.5, -0.1, 0), varied(0.5, 0.25, 1)],
    "concat": [[X, X], AXIS],
    "conv2d": [
        PICTURE,
        Given(4, 4, 2, 2),
        [varied(1, 2, 3), varied(1, 2, 3)],
        [varied(0, 1, 2), varied(0, 1, 2)],
        "EXPLICIT",
        [varied(1, 2, 3), varied(1, 2, 3)],
        1,
        "NCHW",
    ],
    "conv2d_transpose": [
        PICTURE,
        Given(4, 4, 3, 3),
        [varied(1, 2, 3), 1],
        [varied(0, 1, 2), 0],
        [],
        [],
        "EXPLICIT",
        1,
        [varied(1, 2, 3), 1],
        "NCHW",
    ],
    "conv3d": [
        VOLUME,
        Given(4, 4, 2, 2, 2),
        [varied(1, 2, 3), 1, 1],
        [varied(0, 1, 2), 0, 0],
        "EXPLICIT",
        1,
        [varied(1, 2, 3), 1, 1],
        "NCDHW",
    ],
    "cross": [Given(3, 3, 3), Given(3, 3, 3), varied(0, 1, 2)],
    "cross_entropy_with_softmax": [
        Given(6, 4),
        Fixed([[1], [2], [3], [0], [1], [2]]),
        False,
        True,
        True,
        varied(-100, 1, 2),
        varied(-1, 1),
    ],
    "cumprod": [X, AXIS, False, False],
    "cumsum": [X, AXIS, False, False, False],
    "depthwise_conv2d": [
        PICTURE,
        Given(4, 1, 2, 2),
        [varied(1, 2, 3), 1],
        [varied(0, 1, 2), 0],
        "EXPLICIT",
        4,
        [varied(1, 2, 3), 1],
        "NCHW",
    ],
    "diag": [Given(5), varied(0, 1, -1), varied(0.0, 0.5, 2.0)],
    "diag_embed": [X, varied(0, 1, -1), varied(-2, 0, 1), -1],
    "diagonal": [X, varied(0, 1, -1), varied(0, 2), 1],
    "dist": [X, Given(2, 6, 8, offset=1.0), varied(1.0, 2.0, 3.0)],
    "dropout": [X, None, varied(0.1, 0.25, 0.5), True, "downgrade_in_infer", 0, False],
    "elu": [X, SMALL],
    "embedding": [Fixed([1, 2, 0]), MATRIX, varied(-1, 1, 2), False],
    "expand": [Given(1, 6, 1), [varied(1, 2, 3), 6, varied(1, 2, 3)]],
    "flatten": [X, varied(0, 1), varied(1, 2)],
    "flip": [X, [AXIS]],
    "frobenius_norm": [X, [AXIS], False, False],
    "assign_value_": [Given(2), [2], paddle.float32, [varied(0.5, 1.0, 2.0), 3.0], _CPU],
    "fill": [X, varied(0.5, 2.0, 3)],
    "increment": [Given(1), varied(0.5, 1.0, 2)],
    "full_like": [X, varied(0.5, 2.0, 3), paddle.float32, _CPU],
    "gather": [X, Fixed([1, 0]), AXIS],
    "group_norm": [PICTURE, None, None, varied(1e-5, 0.1, 0.5), varied(1, 2, 4), "NCHW"],
    "hardshrink": [X, SMALL],
    "hardsigmoid": [X, SMALL, varied(0.5, 0.25, 0.75)],
    "hardtanh": [X, varied(-0.5, -0.25, -0.1), varied(0.5, 0.25, 0.1)],
    "huber_loss": [X, Given(2, 6, 8, offset=0.3), SMALL],
    "index_add": [X, Fixed([1, 0]), Given(2, 6, 8), varied(0)],
    "index_select": [X, Fixed([1, 0]), AXIS],
    "instance_norm": [PICTURE, None, None, varied(1e-5, 0.1, 0.5)],
    "label_smooth": [X, None, SMALL],
    "layer_norm": [X, None, None, varied(1e-5, 1e-4, 1e-3), varied(1, 2)],
    "leaky_relu": [X, SMALL],
    "log_loss": [Given(6, 1), Fixed([[0.0]] * 6, "float32"), varied(2.0, 3.0, 4.0)],
    "log_softmax": [X, AXIS],
    "logit": [X, SMALL],
    "logsumexp": [X, [AXIS], False, False],
    "max": [X, [AXIS], False],
    "max_pool2d_with_index": [
        PICTURE,
        [varied(2, 3, 4), 2],
        [varied(1, 2, 3), 1],
        [varied(0, 1), 0],
        False,
        False,
        False,
    ],
    "maxout": [PICTURE, varied(2, 4), 1],
    "mean": [X, [AXIS], False],
    "min": [X, [AXIS], False],
    "mish": [X, varied(20.0, 0.5, 0.1)],
    "nll_loss": [Given(6, 4), Fixed([1, 2, 3, 0, 1, 2]), None, varied(-100, 1, 2), "mean"],
    "one_hot": [Fixed([1, 2, 0]), varied(4, 5, 6)],
    "p_norm": [X, varied(2.0, 1.0, 3.0), AXIS, varied(1e-12, 0.1, 0.5), False, False],
    "pad": [X, [0, 0, varied(1, 2, 3), 1, 0, 0], varied(0.0, 0.5, 2.0)],
    "pad3d": [VOLUME, [varied(1, 2, 3), 1, 0, 0, 0, 0], "constant", varied(0.0, 0.5, 2.0), "NCDHW"],
    "pixel_shuffle": [PICTURE, varied(1, 2), "NCHW"],
    "pixel_unshuffle": [PICTURE, varied(1, 2, 3), "NCHW"],
    "pool2d": [
        PICTURE,
        [varied(2, 3, 4), 2],
        [varied(1, 2, 3), 1],
        [varied(0, 1), 0],
        False,
        True,
        "NCHW",
        "avg",
        False,
        False,
        "EXPLICIT",
    ],
    "pool3d": [
        VOLUME,
        [varied(2, 3, 4), 2, 2],
        [varied(1, 2, 3), 1, 1],
        [varied(0, 1), 0, 0],
        False,
        True,
        "NCDHW",
        "max",
        False,
        False,
        "EXPLICIT",
    ],
    "pow": [POSITIVE, varied(0.5, 2.0, 3, 1.5)],
    "prod": [X, [AXIS], False, False],
    "put_along_axis": [X, Fixed([[[1]]]), Given(1, 1, 1), AXIS, "assign", True],
    "repeat_interleave": [X, varied(1, 2, 3), AXIS, -1],
    "reshape": [X, [varied(2, 4, 8, 1), -1]],
    "roll": [X, [SHIFT], [AXIS]],
    "round": [X, varied(0, 1, 2)],
    "scale": [X, varied(0.5, 2.0, 3), varied(0.0, 0.5, -1), True],
    "selu": [X, varied(1.05, 1.5, 2.0), varied(1.67, 1.5, 2.0)],
    "sigmoid_cross_entropy_with_logits": [
        X,
        Given(2, 6, 8, offset=0.3),
        None,
        False,
        varied(-100, 1, 2),
    ],
    "slice": [X, [varied(1, 2)], [varied(0, 1, 2)], [varied(4, 5, 3)], [1], []],
    "softmax": [X, AXIS],
    "softplus": [X, varied(0.5, 1.0, 2.0), varied(20.0, 0.5, 1.0)],
    "softshrink": [X, SMALL],
    "split": [X, [varied(1, 2, 3), -1], varied(1, 2)],
    "split_with_num": [Given(4, 4, 4), 2, AXIS],
    "squeeze": [Given(1, 1, 1, 5), [varied(0, 1, 2)]],
    "stack": [[X, X], AXIS],
    "stanh": [X, varied(0.67, 0.5, 1.0), varied(1.7, 1.5, 2.0)],
    "strided_slice": [X, [1], [varied(0, 1, 2)], [varied(6, 5, 4)], [varied(1, 2, 3)]],
    "sum": [X, [AXIS], None, False],
    "take_along_axis": [X, Fixed([[[1]]]), AXIS],
    "thresholded_relu": [X, SMALL, varied(0.0, 0.5, 2.0)],
    "tile": [X, [varied(1, 2, 3), 1, varied(1, 2, 3)]],
    "topk": [X, varied(1, 2, 3), varied(1, 2), True, True],
    "trace": [X, varied(0, 1, -1), varied(0, 2), 1],
    "transpose": [Given(4, 4), [0, 1]],
    "tril": [X, varied(0, 1, -1)],
    "triu": [X, varied(0, 1, -1)],
    "unbind": [Given(3, 3, 3), AXIS],
    "unfold": [
        PICTURE,
        [varied(2, 3, 4), 2],
        [varied(1, 2, 3), 1],
        [varied(0, 1, 2), 0, 0, 0],
        [varied(1, 2, 3), 1],
    ],
    "uniform": [[varied(2, 3, 4), 5], paddle.float32, varied(0.0, 0.5), varied(1.0, 2.0), 0, _CPU],
    "unsqueeze": [X, [varied(0, 1, 2)]],
    "unstack": [Given(3, 3, 3), AXIS, 3],
    **{
        f"{name}_interp": [
            x,
            *_SIZES[:3],
            layout,
            *sizes,
            [],
            name,
            False,
            0,
        ]
        for name, x, layout, sizes in (
            ("linear", X, "NCHW", [0, 0, varied(3, 5, 9)]),
            ("nearest", PICTURE, "NCHW", [0, varied(3, 5, 9), varied(3, 5, 9)]),
            ("bilinear", PICTURE, "NCHW", [0, varied(3, 5, 9), varied(3, 5, 9)]),
            ("bicubic", PICTURE, "NCHW", [0, varied(3, 5, 9), varied(3, 5, 9)]),
            ("trilinear", VOLUME, "NCHW", [varied(3, 5, 9), varied(3, 5, 9), 4]),
        )
    },
}
# Operators in place.
EXAMPLES |= {
    name: EXAMPLES[name[:-1]]
    for name in OPERATORS
    if name.endswith("_") and name[:-1] in EXAMPLES and name not in EXAMPLES
}
_ARITHMETIC = [name for name in METHODS if name.startswith("__") and name != "__matmul__"]
METHOD_EXAMPLES: dict[str, list[Any]] = {
    **{name: [POSITIVE, varied(1.5, 2.5, 3, 0.5)] for name in _ARITHMETIC},
    "_getitem_dygraph": [
        X,
        (varied(0, 1), slice(varied(0, 1, 2), varied(3, 4, 5, -1), varied(1, 2)), varied(0, 3, -1)),
    ],
    "_setitem_dygraph": [
        X,
        (varied(0, 1), slice(varied(0, 1, 2), varied(3, 4, 5, -1), varied(1, 2)), varied(0, 3, -1)),
        varied(0.5, 1.5, 2),
    ],
}


def _with(example: Any, chosen: int, value: Any, seen: Iterator[int]) -> Any:
    """An example, whose varied number ``chosen`` is ``value``, and the others their first one."""
    if isinstance(example, Varied):
        return value if next(seen) == chosen else example[0]
    if isinstance(example, slice):
        bounds = (example.start, example.stop, example.step)
        return slice(*(_with(each, chosen, value, seen) for each in bounds))
    if isinstance(example, (list, tuple)):
        return type(example)(_with(each, chosen, value, seen) for each in example)
    return example


def _varied_in(example: Any) -> list[Varied]:
    if isinstance(example, Varied):
        return [example]
    if isinstance(example, slice):
        example = (example.start, example.stop, example.step)
    if not isinstance(example, (list, tuple)):
        return []
    return [each for item in example for each in _varied_in(item)]


def _tensors(example: Any, seed: int) -> list[Any]:
    if isinstance(example, Given):
        return [example.tensor(seed)]
    if isinstance(example, (list, tuple)):
        return [each for n, item in enumerate(example) for each in _tensors(item, seed + n)]
    return []


def _filled(example: Any, tensors: Iterator[Any]) -> Any:
    if isinstance(example, Given):
        return paddle.tanh(next(tensors)) + example.offset
    if isinstance(example, Fixed):
        return paddle.to_tensor(example.values, example.dtype)
    if isinstance(example, (list, tuple)):
        return type(example)(_filled(each, tensors) for each in example)
    return example


def _called(name: str, is_method: bool, arguments: list[Any]) -> Any:
    if name == "_setitem_dygraph":
        x = arguments[0] * 1.0
        x._setitem_dygraph(*arguments[1:])
        return x
    owner = paddle.Tensor if is_method else _C_ops
    return getattr(owner, name)(*arguments)


def _floats_of(result: Any) -> list[Any]:
    if isinstance(result, (list, tuple)):
        return [each for item in result for each in _floats_of(item)]
    if result is None or not result._is_initialized():
        return []
    return [result.astype("float32") * 2.0]


CASES = [
    pytest.param(name, is_method, example, at, id=f"{name}-{at}")
    for is_method, examples in ((False, EXAMPLES), (True, METHOD_EXAMPLES))
    for name, example in examples.items()
    for at in range(len(_varied_in(example)))
]


@pytest.mark.parametrize(("name", "is_method", "example", "at"), CASES)
def test_each_call_computes_with_its_own_number(
    name: str, is_method: bool, example: list[Any], at: int
) -> None:
    def function(tensors: list[Any], a: Any) -> list[Any]:
        # The second number is computed from others.
        numbers = a, (a + len(tensors)) - len(tensors) if isinstance(a, int) else a * 0.5 + a * 0.5
        found = []
        for number in numbers:
            given = _with(example, at, number, iter(range(99)))
            arguments = _filled(given, iter(tensors))
            result = _called(name, is_method, arguments)
            # The other results are for the gradient, and have no values in evaluation mode.
            found += _floats_of(result[0] if name == "batch_norm" else result)
        return found

    values = _varied_in(example)[at]
    compiled = paddle_ngraph.compile(function)
    before = paddle_ngraph.stats()["engine_runs"]
    with paddle.no_grad(), background_compile.compile_synchronously():
        for call, value in enumerate([values[0], *values, *values, values[-1]]):
            tensors = _tensors(example, call)
            results = []
            for run in (compiled, function):
                paddle.seed(call)
                results.append(run(tensors, value))
            agree(*results)
    assert paddle_ngraph.stats()["engine_runs"] > before


def test_all_numbers_are_varied() -> None:
    header = Path(paddle.sysconfig.get_include()) / "paddle/phi/api/include/api.h"
    declared = dict(re.findall(r"^PADDLE_API [^;(]*?(\w+)\(([^;]*)\);$", header.read_text(), re.M))
    number = r"\b(float|double|int|int64_t|Scalar|IntArray)\b(?! (out_d|depth))"
    for name in OPERATORS:
        if re.search(number, declared.get(name, "")):
            assert name in EXAMPLES or name in _WITHOUT_NUMBERS, name
    assert set(METHOD_EXAMPLES) >= set(_ARITHMETIC)


# Paddle's functions of dynamic mode do not take these numbers, or only together with weights of
# other shapes.
_WITHOUT_NUMBERS = {"expand_as", "rnn"}
