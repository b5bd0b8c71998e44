"""Values passed from a forward to a backward program are in the blocked layout of convolutions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import build
from paddle_ngraph.conversion.draft import Draft
from paddle_ngraph.conversion.passes import blocked_layout as blocked
from paddle_ngraph.paddle_private.names import clone_program
from paddle_ngraph.partitioning import blocked_layout
from tests.dynamic import agree, floats, gradients, made, static, twice, values

pytestmark = [
    pytest.mark.usefixtures("in_dynamic_mode"),
    pytest.mark.usefixtures("little_to_collect", "nothing_cached"),
    pytest.mark.skipif(blocked.widest_block() == 1, reason="the processor is not known"),
]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts conversions between both layouts, in all functions that are built."""
    counts: Counter[str] = Counter()

    def count(draft: Draft) -> None:
        for node in draft.model.get_ops():
            kind = node.get_type_name()
            if kind == "BlockedReorder":
                ranks = [len(each.get_partial_shape()) for each in (node.input(0), node.output(0))]
                kind = "copy" if ranks == [5, 5] else "reorder"
            counts[kind] += 1

    spy = build.BuildPass("count", "what moves data is counted", count)
    monkeypatch.setattr(build, "PASSES", (*build.PASSES, spy))
    return counts


class Block(nn.Layer):
    """For [N, 3, H, W]: an image's convolution, then another one, and operators between them.

    Args:
        between: For a blocked [N, C, H, W].
        channels: Of both convolutions.
        groups: Of the second one.
    """

    def __init__(
        self, between: Callable[[Any], Any], channels: tuple[int, int] = (16, 32), groups: int = 1
    ) -> None:
        super().__init__()
        self.first = nn.Conv2D(3, channels[0], 3, padding=1, bias_attr=False)
        self.norm = nn.BatchNorm2D(channels[0])
        self.between = between
        self.second = nn.Conv2D(*channels, 3, padding=1, groups=groups)
        self.last = nn.BatchNorm2D(channels[1])

    def forward(self, x: Any) -> Any:
        hidden = self.between(self.norm(self.first(x)))
        return F.relu(self.last(self.second(hidden))).mean(axis=[2, 3])


def _trained(make: Callable[[], Any], run: Any = static, sizes: Any = ((4, 9, 9),) * 2) -> Any:
    """Returns results, gradients and statistics of some steps."""
    layer = made(make)
    network = run(layer)
    found = []
    for number, (batch, *area) in enumerate(sizes):
        x = floats(batch, 3, *area, seed=number)
        x.stop_gradient = False
        out = network(x)
        (out * floats(*out.shape, seed=9)).sum().backward()
        found += [out, x.grad, gradients(layer), values(layer)]
        layer.clear_gradients()
    return found


def _gate(x: Any) -> Any:
    return x * F.sigmoid(F.adaptive_avg_pool2d(x, 1))


BETWEEN = {
    "relu": F.relu,
    "relu in place": lambda x: F.relu_(x * 2.0),
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "silu": F.silu,
    "leaky relu": F.leaky_relu,
    "sum": lambda x: F.relu(x) + x,
    "gate": _gate,
    "maximum of places": lambda x: F.max_pool2d(F.relu(x), 2),
    "mean of places": lambda x: F.avg_pool2d(F.relu(x), 3, 2, 1),
    "what needs the plain layout": lambda x: F.relu(x).transpose([0, 1, 3, 2]),
}


@pytest.mark.slow("trains through many compiles")
@pytest.mark.parametrize("run", [static, paddle_ngraph.compile], ids=["to_static", "compile"])
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_training_equals_paddles(moved, between, run):
    def scenario() -> Any:
        run_here = run if paddle_ngraph.is_enabled() else static
        return _trained(lambda: Block(between), run_here, ((4, 9, 9),) * 3)

    twice(scenario, runs=2, rtol=1e-3, atol=1e-4)
    assert moved["copy"] > 0, "nothing was handed on in blocks"


@pytest.mark.parametrize(
    ("channels", "groups"),
    [((8, 8), 1), ((16, 24), 1), ((24, 40), 1), ((32, 32), 32), ((16, 16), 2), ((64, 16), 1)],
)
def test_values_between_programs_stay_blocked(moved, channels, groups):
    twice(lambda: _trained(lambda: Block(F.relu, channels, groups)), runs=4, rtol=1e-3, atol=1e-4)
    # Inputs of both normalizations, and the output of the first ReLU.
    assert moved["copy"] >= 3
    # Plain are the mean over pixels, its upstream gradient, and the gradient of the image.
    assert moved["reorder"] <= 4
    assert moved["Transpose"] == 0


# For [N, C, H, W]: values that converters compute in the plain layout from blocked ones.
PLAIN = {
    "gate of places": lambda x: x * F.sigmoid(x.mean(axis=1, keepdim=True)),
    "less the mean of channels": lambda x: F.relu(x - x.mean(axis=1, keepdim=True)),
    "less the first sample": lambda x: F.relu(x) - x[:1],
    "gate of samples": lambda x: F.relu(x) * F.sigmoid(x.mean(axis=[1, 2, 3], keepdim=True)),
}


@pytest.mark.parametrize("between", PLAIN.values(), ids=PLAIN)
def test_plain_values_are_not_transposed_by_the_plugin(moved, between):
    twice(lambda: _trained(lambda: Block(between)), runs=4, rtol=1e-3, atol=1e-4)
    assert moved["copy"] > 0
    assert moved["Transpose"] == 0


@pytest.mark.parametrize("channels", [(12, 20), (7, 16)])
def test_channels_that_do_not_fill_blocks_are_passed_plain(moved, channels):
    twice(lambda: _trained(lambda: Block(F.relu, channels)), runs=4, rtol=1e-3, atol=1e-4)
    assert moved["Transpose"] == 0


@pytest.mark.slow("compiles many or large functions")
def test_batches_of_any_size(moved):
    spec = [paddle.static.InputSpec([None, 3, 9, 9], "float32")]

    def run(layer: Any) -> Any:
        return paddle.jit.to_static(layer, input_spec=spec, full_graph=True)

    sizes = [(size, 9, 9) for size in (4, 2, 5, 7, 1, 4, 6, 3)]
    twice(lambda: _trained(lambda: Block(F.relu), run, sizes), runs=16, rtol=1e-3, atol=2e-4)
    assert moved["copy"] > 0


@pytest.mark.slow("compiles many or large functions")
def test_images_of_dynamic_size_are_passed_plain(moved):
    spec = [paddle.static.InputSpec([None, 3, None, None], "float32")]

    def run(layer: Any) -> Any:
        return paddle.jit.to_static(layer, input_spec=spec, full_graph=True)

    sizes = [(4, 9, 9), (2, 8, 10), (4, 7, 7)]
    twice(lambda: _trained(lambda: Block(F.relu), run, sizes), runs=6, rtol=1e-3, atol=2e-4)
    assert moved["copy"] == 0


def test_returned_values_stay_plain(moved):
    class Both(Block):
        def forward(self, x: Any) -> Any:
            hidden = F.relu(self.norm(self.first(x)))
            return self.second(hidden).mean(axis=[2, 3]) + hidden.mean(axis=[1, 2, 3])[
                :, None
            ], hidden

    def scenario() -> Any:
        layer = made(lambda: Both(F.relu))
        network = static(layer)
        out, hidden = network(floats(4, 3, 9, 9))
        (out.sum() + (hidden * hidden).sum()).backward()
        return [out, hidden, gradients(layer)]

    twice(scenario, runs=2, rtol=1e-3, atol=1e-4)
    assert moved["copy"] > 0


def test_a_second_backward_pass(moved):
    def scenario() -> Any:
        layer = made(lambda: Block(F.relu))
        network = paddle_ngraph.compile(layer) if paddle_ngraph.is_enabled() else layer
        found = []
        for _ in range(4):
            loss = network(floats(4, 3, 9, 9)).square().sum()
            loss.backward(retain_graph=True)
            found.append(gradients(layer))
            loss.backward()
            found.append(gradients(layer))
            layer.clear_gradients()
        return found

    twice(scenario, runs=3, rtol=1e-3, atol=1e-4)
    assert moved["copy"] > 0


def test_several_forward_passes_before_their_backward_passes(moved):
    def scenario() -> Any:
        layer = made(lambda: Block(F.relu))
        network = static(layer)
        losses = [network(floats(4, 3, 9, 9, seed=seed)).square().sum() for seed in range(3)]
        for loss in (losses[1], losses[0], losses[2]):
            loss.backward()
        return gradients(layer)

    twice(scenario, runs=6, rtol=1e-3, atol=1e-4)
    assert moved["copy"] > 0


def test_paddle_runs_the_same_programs():
    """A subgraph rejected at run time falls back, with its layout conversions."""
    expected = _trained(lambda: Block(F.relu))
    _core.fail_at("compile")
    with pytest.warns(UserWarning, match="Paddle runs"), paddle_ngraph.use_ngraph():
        results = _trained(lambda: Block(F.relu))
    _core.fail_at("")
    assert paddle_ngraph.stats()["engine_runs"] == 0
    agree(results, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "native", ["pd_op.conv2d", "pd_op.conv2d_grad", "pd_op.batch_norm_grad", "pd_op.transpose"]
)
def test_fallback_operators_convert_no_layout(leave_native, moved, native):
    leave_native(native)
    twice(lambda: _trained(lambda: Block(F.relu)), runs=2, rtol=1e-3, atol=1e-4)
    if native != "pd_op.batch_norm_grad":
        assert moved["Transpose"] == 0


@pytest.mark.slow("compiles many or large functions")
def test_a_subgraph_without_convolutions_converts_no_layout(leave_native, moved):
    """The gradient of hardswish is between two operators that fall back."""
    leave_native("pd_op.tanh_grad")

    def between(x: Any) -> Any:
        return F.tanh(F.hardswish(F.tanh(x)))

    twice(lambda: _trained(lambda: Block(between)), runs=6, rtol=1e-3, atol=1e-4)
    assert moved["copy"] > 0
    assert moved["Transpose"] == 0


@pytest.mark.slow("compiles many or large functions")
def test_convolutions_in_branches_alone_convert_no_layout(moved):
    class Branch(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2D(3, 16, 3), nn.Conv2D(16, 16, 3)

        def forward(self, x: Any) -> Any:
            hidden = F.relu(self.first(x))
            if hidden.mean() > -9.0:
                out = F.hardswish(self.second(hidden))
            else:
                out = hidden[:, :, 2:, 2:] * 0.5
            return F.hardswish(out).mean(axis=[2, 3])

    twice(lambda: _trained(Branch), runs=2, rtol=1e-3, atol=1e-4)
    assert moved["Transpose"] == 0


def _programs() -> tuple[Any, Any, set[str]]:
    """Returns the forward and the backward program of a layer, as Paddle builds them."""
    layer = made(lambda: Block(F.relu))
    network = static(layer)
    network(floats(4, 3, 9, 9))
    (_, partial), *_ = network.forward.program_cache.last()[1:]
    programs = partial.train_program
    names = programs.program_attr
    copies = [
        clone_program(each)[0] for each in (programs.forward_program, programs.backward_program)
    ]
    return *copies, {*names["fo_names"], *names["no_need_buffers_names"]}


def test_fallback_programs_convert_layouts():
    forward, backward, as_it_is = _programs()
    assert blocked_layout.save_in_blocked_layout(forward, backward, as_it_is)
    kinds = [Counter(op.name() for op in each.global_block().ops) for each in (forward, backward)]
    assert kinds[0]["pd_op.transpose"] == kinds[1]["pd_op.transpose"] >= 3
    assert blocked_layout.must_paddle_transpose(forward)
    shapes = [value.shape for value in backward.global_block().kwargs().values()]
    assert sum(len(shape) == 5 for shape in shapes) == kinds[1]["pd_op.transpose"]
