"""Single gradients of compiled training, judged by float64: also accumulated, on retained graphs.

Training programs are chaotic: networks whose weights differ by 1e-7 part within some steps, so a
trajectory shows no wrong gradient. Nor is Paddle's own accumulated gradient a reference: a second
backward pass through its ``cross_entropy`` reads memory that the first one wrote
(``tests/paddle_faults/cross_entropy_twice.py``). The reference is one backward pass of the sum of
all losses in float64, and the measure is the error of that pass in float32. The networks are
smooth: an element that rounding moves over a kink changes a gradient by more than all rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from tests.dynamic import CLASSES, WORDS, made

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

# A gradient is right up to these multiples: of the error of native float32, of the largest element
# of the parameter's gradient, and of the largest element of all gradients.
NATIVE_ERRORS, OWN_SCALE, WHOLE_SCALE = 8.0, 2e-5, 1e-7


def _convolution(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    padding = (size - 1) // 2
    convolution = nn.Conv2D(inputs, outputs, size, stride, padding, groups=groups, bias_attr=False)
    return nn.Sequential(convolution, nn.BatchNorm2D(outputs))


class Squeezed(nn.Layer):
    """Channels scaled by a function of their means (squeeze and excitation)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2D(channels, 4, 1), nn.Conv2D(4, channels, 1)

    def forward(self, x: Any) -> Any:
        return x * F.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Layer):
    """A block of MobileNetV3: expansion, depthwise convolution, projection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.is_residual = stride == 1 and inputs == outputs
        wide = 3 * inputs
        self.expand, self.depthwise = (
            _convolution(inputs, wide, 1),
            _convolution(wide, wide, 3, stride, wide),
        )
        self.squeezed, self.project = Squeezed(wide), _convolution(wide, outputs, 1)

    def forward(self, x: Any) -> Any:
        y = F.silu(self.depthwise(F.silu(self.expand(x))))
        y = self.project(self.squeezed(y))
        return x + y if self.is_residual else y


class MapHead(nn.Layer):
    """A map of four times the height and width."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow = _convolution(channels, 6, 3)
        self.wider = nn.Conv2DTranspose(6, 6, 2, 2)
        self.norm, self.out = nn.BatchNorm2D(6), nn.Conv2DTranspose(6, 1, 2, 2)

    def forward(self, x: Any) -> Any:
        return F.sigmoid(self.out(F.silu(self.norm(self.wider(F.silu(self.narrow(x)))))))


def _larger(x: Any, factor: int) -> Any:
    return F.interpolate(x, scale_factor=factor, mode="nearest") if factor > 1 else x


class Detector(nn.Layer):
    """A text detector by differentiable binarization: backbone, pyramid, two maps, three losses."""

    def __init__(self) -> None:
        super().__init__()
        widths = [8, 8, 12, 16, 24]
        self.first = _convolution(3, widths[0], 3, 2)
        self.stages = nn.LayerList(
            [
                nn.Sequential(Inverted(before, after, 2), Inverted(after, after, 1))
                for before, after in zip(widths, widths[1:])
            ]
        )
        self.lateral = nn.LayerList([nn.Conv2D(w, 16, 1, bias_attr=False) for w in widths[1:]])
        self.smooth = nn.LayerList([nn.Conv2D(16, 4, 3, padding=1) for _ in widths[1:]])
        self.probability, self.threshold = MapHead(16), MapHead(16)

    def forward(self, x: Any, text: Any) -> list[Any]:
        x = F.silu(self.first(x))
        levels = []
        for stage, lateral in zip(self.stages, self.lateral):
            x = stage(x)
            levels.append(lateral(x))
        for fine, coarse in ((2, 3), (1, 2), (0, 1)):
            levels[fine] = levels[fine] + _larger(levels[coarse], 2)
        pyramid = [_larger(s(y), 2**n) for n, (s, y) in enumerate(zip(self.smooth, levels))]
        features = paddle.concat(pyramid[::-1], axis=1)
        shrunk, threshold = self.probability(features), self.threshold(features)
        binary = paddle.reciprocal(1 + paddle.exp(-50 * (shrunk - threshold)))
        dice = 1 - 2 * (binary * text).sum() / ((binary + text).sum() + 1e-6)
        distance = F.mse_loss(threshold, 0.3 + 0.4 * text)
        return [dice, F.binary_cross_entropy(shrunk, text), distance]


class Classifier(nn.Layer):
    """A network with two heads, and a loss of each beside one of both."""

    def __init__(self, body: nn.Layer, width: int) -> None:
        super().__init__()
        self.body, self.one, self.other = body, nn.Linear(width, CLASSES), nn.Linear(width, CLASSES)

    def forward(self, x: Any, classes: Any) -> list[Any]:
        features = self.body(x)
        one, other = self.one(features), self.other(features)
        losses = [F.cross_entropy(logits, classes) for logits in (one, other)]
        return [*losses, F.cross_entropy(one * other, classes), (one * other).mean()]


class Images(nn.Layer):
    """Convolutions of several categories, with the given normalization."""

    def __init__(self, normalization: Callable[[int], nn.Layer]) -> None:
        super().__init__()
        self.first = nn.Conv2D(3, 16, 3, padding=1)
        self.grouped = nn.Conv2D(16, 24, 3, 2, 1, groups=2)
        self.depthwise = nn.Conv2D(24, 24, 3, 2, 1, groups=24)
        self.norms = nn.LayerList([normalization(size) for size in (16, 24, 24)])

    def forward(self, x: Any) -> Any:
        for layer, norm in zip((self.first, self.grouped, self.depthwise), self.norms):
            x = F.silu(norm(layer(x)))
        return x.mean([2, 3])


class Words(nn.Layer):
    """Attention or recurrence over embedded tokens."""

    def __init__(self, is_recurrent: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 24)
        self.recurrent = nn.LSTM(24, 24) if is_recurrent else None
        layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, activation="gelu")
        self.encoder = None if is_recurrent else nn.TransformerEncoder(layer, 2)

    def forward(self, x: Any) -> Any:
        x = self.words(x)
        return self.encoder(x).mean(1) if self.recurrent is None else self.recurrent(x)[0].mean(1)


NETWORKS: dict[str, Callable[[], nn.Layer]] = {
    "detector": Detector,
    "batch norm": lambda: Classifier(Images(nn.BatchNorm2D), 24),
    "group norm": lambda: Classifier(Images(lambda size: nn.GroupNorm(4, size)), 24),
    "attention": lambda: Classifier(Words(is_recurrent=False), 24),
    "recurrent": lambda: Classifier(Words(is_recurrent=True), 24),
}


def _batch(network: str, number: int, real: str) -> tuple[Any, Any]:
    """Inputs and labels of a network, whose reals are float32 numbers in the dtype ``real``."""
    numbers = np.random.default_rng(number)

    def reals(array: np.ndarray) -> Any:
        return paddle.to_tensor(array.astype("float32").astype(real))

    if network == "detector":
        text = np.kron(numbers.integers(0, 2, (2, 1, 4, 4)), np.ones((16, 16)))
        return reals(numbers.normal(size=(2, 3, 64, 64)) + text), reals(text)
    classes = paddle.to_tensor(numbers.integers(0, CLASSES, (4,)))
    if network in ("attention", "recurrent"):
        return paddle.to_tensor(numbers.integers(0, WORDS, (4, 9))), classes
    return reals(numbers.normal(size=(4, 3, 24, 24))), classes


@contextmanager
def _default_dtype(real: str) -> Iterator[None]:
    before = paddle.get_default_dtype()
    paddle.set_default_dtype(real)
    try:
        yield
    finally:
        paddle.set_default_dtype(before)


def _network(network: str, real: str, weights: dict[str, np.ndarray] | None = None) -> nn.Layer:
    with _default_dtype(real):
        layer = made(NETWORKS[network])
        if weights is not None:
            state = {name: paddle.to_tensor(value.astype(real)) for name, value in weights.items()}
            layer.set_state_dict(state)
    return layer


def _trained(network: str, steps: int) -> dict[str, np.ndarray]:
    """The weights after some native steps with Adam."""
    layer = _network(network, "float32")
    optimizer = paddle.optimizer.Adam(0.003, parameters=layer.parameters())
    for step in range(steps):
        sum(layer(*_batch(network, step % 4, "float32"))).backward()
        optimizer.step()
        optimizer.clear_grad()
    return {name: value.numpy() for name, value in layer.state_dict().items()}


# A backward pass: coefficients of the losses of each batch, and whether `paddle.grad` computes it.
Pass = tuple[list[list[float]], bool]


def _random_passes(seed: int, batches: int, losses: int) -> list[Pass]:
    """Backward passes over graphs that are all retained until the last one."""
    generator = random.Random(seed)

    def coefficients() -> list[float]:
        return [generator.choice((0.0, 0.25, 0.5, 1.0, 2.0)) for _ in range(losses)]

    passes = [
        ([coefficients() for _ in range(batches)], generator.random() < 0.3) for _ in range(4)
    ]
    return [*passes, ([[1.0] * losses] * batches, False)]


def _weighted(losses: list[list[Any]], coefficients: list[list[float]]) -> Any:
    pairs = zip(chain(*losses), chain(*coefficients))
    return sum(factor * loss for loss, factor in pairs if factor)


def _trainable(layer: nn.Layer) -> dict[str, Any]:
    """The parameters without the statistics of a normalization."""
    return {name: each for name, each in layer.named_parameters() if not each.stop_gradient}


def _gradients(layer: nn.Layer) -> dict[str, np.ndarray]:
    return {name: each.grad.numpy().astype("float64") for name, each in _trainable(layer).items()}


def _accumulated(layer: nn.Layer, batches: list[Any], passes: list[Pass]) -> dict[str, np.ndarray]:
    """Gradients added up by several passes over retained graphs."""
    layer.clear_gradients()
    added: dict[str, Any] = {}
    losses = [layer(*batch) for batch in batches]
    for number, (coefficients, by_grad) in enumerate(passes):
        total = _weighted(losses, coefficients)
        if not isinstance(total, paddle.Tensor):  # all coefficients are 0
            continue
        if not by_grad:
            total.backward(retain_graph=number < len(passes) - 1)
            continue
        parameters = _trainable(layer)
        found = paddle.grad(total, [*parameters.values()], retain_graph=True, allow_unused=True)
        for name, gradient in zip(parameters, found):
            if gradient is not None:
                added[name] = added.get(name, 0.0) + gradient.numpy().astype("float64")
    return {name: value + added.get(name, 0.0) for name, value in _gradients(layer).items()}


def _expected(
    network: str, real: str, weights: dict[str, np.ndarray], batches: int, passes: list[Pass]
) -> dict[str, np.ndarray]:
    """Gradients of the sum of all losses, by a single native pass."""
    layer = _network(network, real, weights)
    losses = [layer(*_batch(network, number, real)) for number in range(batches)]
    factors = np.sum([coefficients for coefficients, _ in passes], axis=0)
    _weighted(losses, factors.tolist()).backward()
    return _gradients(layer)


def _errors(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(np.abs(found[name] - exact[name]).max()) for name in exact}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("network", "steps"), [("detector", 0), *((network, 14) for network in NETWORKS)]
)
def test_accumulated_gradients_are_as_exact_as_native_ones(network, steps, seed):
    weights = _trained(network, steps)
    batches = 1 + seed % 2
    losses = 3 if network == "detector" else 4
    passes = _random_passes(seed, batches, losses)
    exact = _expected(network, "float64", weights, batches, passes)
    native = _errors(_expected(network, "float32", weights, batches, passes), exact)

    layer = paddle_ngraph.compile(_network(network, "float32", weights))
    given = [_batch(network, number, "float32") for number in range(batches)]
    for _ in range(3):  # the first calls are recorded, and run natively
        before = paddle_ngraph.stats()["engine_runs"]
        found = _accumulated(layer, given, passes)
    runs = paddle_ngraph.stats()["engine_runs"] - before
    assert runs >= 2 * batches, f"the engine ran {runs} times"

    whole = max(np.abs(value).max() for value in exact.values())
    for name, error in _errors(found, exact).items():
        scale = OWN_SCALE * np.abs(exact[name]).max() + WHOLE_SCALE * whole
        assert error <= NATIVE_ERRORS * native[name] + scale, name
