"""Verification names the operator of faults in converters, passes, kernels and updates.

Each fault is planted in the code of a part of the package, as a mistake of its author would be: a
sign, a scale, an axis, a pass that changes the result, an attribute of a kernel, an update that is
dropped or of another size, another seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import openvino as ov
import paddle
import paddle.nn.functional as F
import pytest
from openvino import opset15
from paddle.tensor.manipulation import tensor_array_to_tensor

import paddle_ngraph
from paddle_ngraph.conversion import build, extensions, model_inputs, optimizer_updates
from paddle_ngraph.verification import checks
from tests.programs import Program, floats
from tests.verification.planted import (
    Fault,
    dropped_update,
    negated,
    planted,
    reversed_rows,
    scaled,
)
from tests.verification.test_checks import verified

Build = Callable[[], Any]


def encoder() -> Any:
    words = paddle.static.data("words", [6, 5], "int64")
    x = F.dropout(F.embedding(words, _parameter([11, 8])), 0.2)
    query, key = (paddle.matmul(x, _parameter([8, 8])) for _ in range(2))
    weights = F.softmax(paddle.matmul(query, key, transpose_y=True) * 0.35)
    x = paddle.nn.LayerNorm(8)(x + paddle.matmul(weights, x))
    x = F.gelu(paddle.nn.Linear(8, 12)(x))
    logits = paddle.nn.Linear(12, 7)(paddle.mean(F.silu(x), 1))
    loss = paddle.mean(F.cross_entropy(logits, words[:, :1] % 7, reduction="none"))
    paddle.optimizer.AdamW(0.01).minimize(loss)
    return loss


def images() -> Any:
    x = paddle.static.data("x", [4, 3, 10, 10])
    hidden = F.relu(paddle.nn.Conv2D(3, 4, 3)(x))
    hidden = F.hardswish(paddle.nn.Conv2D(4, 4, 3, groups=4, padding=1)(hidden))
    hidden = F.avg_pool2d(F.max_pool2d(hidden, 2), 2)
    hidden = paddle.nn.GroupNorm(2, 4)(hidden)
    loss = paddle.mean(F.sigmoid(paddle.nn.Linear(16, 3)(paddle.flatten(hidden, 1))) ** 2)
    paddle.optimizer.Momentum(0.05).minimize(loss)
    return loss


def normalized() -> Any:
    x = paddle.static.data("x", [4, 3, 10, 10])
    hidden = paddle.nn.BatchNorm2D(3)(F.leaky_relu(x, 0.1))
    hidden = F.interpolate(hidden, scale_factor=2, mode="bilinear", align_corners=False)
    return F.log_softmax(F.pad(F.softplus(hidden), [1, 1, 1, 1], value=0.5), 1)


def elements() -> Any:
    x = paddle.static.data("x", [5, 6])
    chosen = paddle.gather(paddle.concat([x, paddle.exp(x)], 1), paddle.to_tensor([3, 1]), 0)
    values, _ = paddle.topk(paddle.cumsum(chosen, 1), 4, axis=1)
    powers = paddle.clip(paddle.pow(paddle.abs(values) + 0.1, 1.7), 0.2, 40.0)
    table = paddle.where(powers > 1.0, paddle.log(powers), powers / 3.0)
    return paddle.transpose(paddle.tile(table, [1, 2]), [1, 0]) - paddle.max(table)


def reduced() -> Any:
    x = paddle.static.data("x", [5, 6])
    rows = paddle.sum(paddle.stack([x, paddle.tanh(x)], 0), 2)
    other = paddle.rsqrt(paddle.var(x, 1) + 0.5) * paddle.logsumexp(x, 1)
    return paddle.prod(F.elu(rows), 0) + paddle.minimum(other, paddle.sin(other)) * 0.5


def loop() -> Any:
    x = paddle.static.data("x", [4, 4])
    n = paddle.full([], 0, "int32")
    return paddle.static.nn.while_loop(
        lambda n, v: n < 3, lambda n, v: (n + 1, F.sigmoid(v) + paddle.matmul(v, x)), [n, x]
    )[1]


def array() -> Any:
    x = paddle.static.data("x", [4, 4])
    n, found = paddle.full([], 0, "int64"), paddle.tensor.create_array("float32")

    def body(n: Any, v: Any, found: Any) -> Any:
        value = F.tanh(paddle.matmul(v, x))
        return n + 1, value, paddle.tensor.array_write(value, n, found)

    found = paddle.static.nn.while_loop(lambda n, v, found: n < 3, body, [n, x, found])[2]
    return tensor_array_to_tensor(found, 0, True)[0]


def _parameter(shape: list[int]) -> Any:
    return paddle.create_parameter(shape, "float32")


FEEDS: dict[Build, dict[str, np.ndarray]] = {
    encoder: {"words": np.arange(30).reshape(6, 5) * 7 % 11},
    images: {"x": floats(4, 3, 10, 10)},
    normalized: {"x": floats(4, 3, 10, 10)},
    elements: {"x": floats(5, 6)},
    reduced: {"x": floats(5, 6)},
    loop: {"x": floats(4, 4)},
    array: {"x": floats(4, 4)},
}


@contextmanager
def _pass(node_type: str) -> Iterator[None]:
    """A pass over the model that changes the results of nodes of a type by a hundredth."""

    def run(draft: Any) -> None:
        for node in draft.model.get_ordered_ops():
            if node.get_type_name() == node_type:
                readers = node.output(0).get_target_inputs()
                factor = opset15.constant(np.float32(1.01))
                wrong = opset15.multiply(node.output(0), factor).output(0)
                for reader in readers:
                    reader.replace_source_output(wrong)

    passes = [*build.PASSES[:-1], build.BuildPass("wrong", "for a test", run), build.PASSES[-1]]
    with patch.object(build, "PASSES", passes):
        yield


@contextmanager
def _kernel(name: str, attribute: str, value: Any) -> Iterator[None]:
    """A kernel of the core that computes with another attribute."""
    factory = extensions._extension_factory()

    class Wrong:
        def create(self, type: str, inputs: Any, attributes: dict[str, Any]) -> ov.Node:
            changed = {**attributes, attribute: value} if type == name else attributes
            return factory.create(type, inputs, changed)

    with patch.object(extensions, "_extension_factory", Wrong):
        yield


@contextmanager
def _updates(change: Callable[[Any], Any]) -> Iterator[None]:
    """Optimizer updates in place that are changed."""
    original = optimizer_updates._update
    with patch.object(
        optimizer_updates, "_update", lambda *args, **kw: change(original(*args, **kw))
    ):
        yield


@contextmanager
def _seed() -> Iterator[None]:
    """Random numbers of another seed."""
    original = model_inputs.FunctionInputs.draw

    def draw(self: Any, distribution: str, a: float, b: float, seed: int, shape: Any) -> Any:
        return original(self, distribution, a, b, seed + 5, shape)

    with patch.object(model_inputs.FunctionInputs, "draw", draw):
        yield


CONVERTERS: list[tuple[Build, str, Fault]] = [
    *((encoder, name, negated) for name in ("embedding", "softmax", "layer_norm", "silu")),
    *((encoder, name, scaled) for name in ("gelu", "mean", "scale", "add_grad")),
    *((encoder, name, scaled) for name in ("cross_entropy_with_softmax", "softmax_grad")),
    *((encoder, name, negated) for name in ("embedding_grad", "gelu_grad", "dropout")),
    *((encoder, name, reversed_rows) for name in ("matmul_grad", "layer_norm_grad")),
    (encoder, "adamw_", dropped_update),
    *((images, name, negated) for name in ("relu", "sigmoid", "conv2d_grad", "group_norm")),
    *((images, name, scaled) for name in ("depthwise_conv2d", "hardswish", "pool2d_grad")),
    *((images, name, reversed_rows) for name in ("conv2d", "pool2d", "flatten_grad")),
    (images, "momentum_", dropped_update),
    *((normalized, name, scaled) for name in ("leaky_relu", "softplus", "log_softmax")),
    *((normalized, name, reversed_rows) for name in ("bilinear_interp", "pad3d")),
    *((elements, name, scaled) for name in ("exp", "cumsum", "topk", "pow", "log")),
    *((elements, name, negated) for name in ("gather", "where", "tile", "abs", "max")),
    *((reduced, name, scaled) for name in ("tanh", "sum", "rsqrt", "logsumexp", "prod", "sin")),
    (loop, "sigmoid", scaled),
    (loop, "matmul", negated),
    (array, "array_to_tensor", reversed_rows),
]
OTHERS: dict[str, tuple[Build, str, Callable[[], Any]]] = {
    "a pass over Gelu": (encoder, "gelu", lambda: _pass("Gelu")),
    "a pass over Sigmoid": (images, "sigmoid", lambda: _pass("Sigmoid")),
    "a pass over Pad": (normalized, "pad3d", lambda: _pass("Pad")),
    "a pass over CumSum": (elements, "cumsum", lambda: _pass("CumSum")),
    "a pass over Tanh": (reduced, "tanh", lambda: _pass("Tanh")),
    "another seed": (encoder, "dropout", _seed),
    "a kernel of LayerNorm": (encoder, "layer_norm", lambda: _kernel("LayerNorm", "epsilon", 0.1)),
    "a kernel of its gradient": (
        encoder,
        "layer_norm_grad",
        lambda: _kernel("LayerNormGrad", "epsilon", 0.1),
    ),
    "a kernel of EmbeddingGrad": (
        encoder,
        "embedding_grad",
        lambda: _kernel("EmbeddingGrad", "padding_idx", 7),
    ),
    "a kernel of Adam": (encoder, "adamw_", lambda: _kernel("Adam", "beta1", 0.8)),
    "a kernel of Momentum": (images, "momentum_", lambda: _kernel("Momentum", "nesterov", True)),
    "a kernel of Sort": (elements, "topk", lambda: _kernel("Sort", "descending", False)),
    "updates of another size": (
        encoder,
        "adamw_",
        lambda: _updates(lambda u: u._replace(attributes=[a * 0.9 for a in u.attributes])),
    ),
}


def _named(build: Build) -> str:
    program = Program(build)
    paddle.seed(5)
    program.run(**FEEDS[build])
    assert checks.log.wrong, "the fault has no effect, or was not found"
    return checks.log.mismatches[0].operator


@pytest.mark.slow("builds functions by bisection")
@pytest.mark.parametrize(
    ("build", "name", "fault"),
    CONVERTERS,
    ids=[f"{build.__name__}-{name}-{fault.__name__}" for build, name, fault in CONVERTERS],
)
def test_a_fault_in_a_converter(build: Build, name: str, fault: Fault) -> None:
    with planted(f"pd_op.{name}", fault), verified(), pytest.warns(UserWarning, match="wrong at"):
        assert _named(build) == f"pd_op.{name}"


@pytest.mark.slow("builds functions by bisection")
@pytest.mark.parametrize("fault", OTHERS)
def test_a_fault_elsewhere(fault: str) -> None:
    build, name, plant = OTHERS[fault]
    paddle_ngraph.clear_cache()
    with plant(), verified(), pytest.warns(UserWarning, match="wrong at"):
        assert _named(build) == f"pd_op.{name}"
    paddle_ngraph.clear_cache()


@pytest.mark.parametrize("build", FEEDS)
def test_without_a_fault(build: Build) -> None:
    with verified():
        Program(build).run(**FEEDS[build])
    assert checks.log.checked
    assert (checks.log.wrong, checks.log.unchecked) == (0, {})
