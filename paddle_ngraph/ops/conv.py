"""Convolutions over two or three axes, plain, depthwise and transposed, and their gradients.

The data gradient of a convolution is a transposed convolution. The filter gradient is a convolution
again, of the input with the output's gradient as filter, batch and channels exchanged and stride
and dilation exchanged, which uses the engine's fastest kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from openvino import Node, Output, opset15
from openvino.utils.types import NodeInput

from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.passes.blocked_layout import Blocked, blocks_of_convolution
from paddle_ngraph.conversion.registry import Limit, Role, converter
from paddle_ngraph.conversion.symbolic_sizes import is_always
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.ops.higher_gradients import Bilinear, Term, operands
from paddle_ngraph.ops.nodes import reshaped, transposed
from paddle_ngraph.ops.spatial import get_data, padding, set_data

_LIMITS = (
    Limit(
        "a padding is negative",
        lambda op: min(op.attr("paddings"), default=0) >= 0,
    ),
)


@dataclass(frozen=True)
class _Geometry:
    """The spatial sizes of a convolution's input, kernel and output, and its attributes.

    Each list has one element for each of the one to three spatial axes.
    """

    size: list[int]
    kernel: list[int]
    out: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]
    groups: int

    def reach(self, axis: int) -> int:
        """The number of elements of the padded input on which the outputs along ``axis`` depend."""
        return (self.out[axis] - 1) * self.strides[axis] + self.extent(axis)

    def extent(self, axis: int) -> int:
        """The number of input elements along an axis that the dilated kernel spans."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def excess(self, axis: int) -> int:
        """The number of elements at the end of the padded input on which no output depends."""
        return self.size[axis] + self.begin[axis] + self.end[axis] - self.reach(axis)

    def needed_end(self) -> list[int]:
        """Per axis, the padding after the input that some window covers."""
        return [max(0, end - self.excess(axis)) for axis, end in enumerate(self.end)]

    def sees_only_padding(self) -> bool:
        """Whether every window covers padding only, so that no output depends on the data."""
        return any(self.reach(axis) <= self.begin[axis] for axis in range(len(self.size)))

    def is_full(self, axis: int) -> bool:
        """Whether the convolution's kernel covers the whole axis: a sum, as over channels."""
        return (
            self.groups == 1
            and is_always(self.out[axis], 1)
            and is_always(self.kernel[axis], self.size[axis])
            and self.dilations[axis] == 1
            and self.begin[axis] == self.end[axis] == 0
        )

    def is_dense(self) -> bool:
        """Whether the kernel covers the whole input: then the convolution is a matmul."""
        return all(self.is_full(axis) for axis in range(len(self.size)))

    def is_pointwise(self) -> bool:
        """Whether the convolution has a kernel of one element, one group and no padding."""
        return self.groups == 1 and {*self.kernel} == {1} and not any(self.begin + self.end)

    def along(self, axis: int) -> _Geometry:
        """The geometry of the convolution along one axis only."""
        picked: dict[str, Any] = {
            name: [getattr(self, name)[axis]]
            for name in ("size", "kernel", "out", "strides", "dilations", "begin", "end")
        }
        return replace(self, **picked)


def _geometry(op: Op, data: list[int], filter_shape: list[int]) -> _Geometry:
    """The geometry of a forward convolution of ``data`` [N, C, H, W] with a filter."""
    size, kernel = data[2:], filter_shape[2:]
    strides = [int(s) for s in op.attr("strides")]
    dilations = [int(d) for d in op.attr("dilations")]
    begin, end = padding(op, size, kernel, strides)
    if op.attr("padding_algorithm") == "SAME":
        # With this padding algorithm Paddle ignores the dilations.
        dilations = [1] * len(size)
    out = [
        (size[i] + begin[i] + end[i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(len(size))
    ]
    return _Geometry(size, kernel, out, strides, dilations, begin, end, int(op.attr("groups")))


def _convolution(geometry: _Geometry) -> Callable[..., Node]:
    return opset15.convolution if geometry.groups == 1 else opset15.group_convolution


def _transposed_convolution(geometry: _Geometry) -> Callable[..., Node]:
    if geometry.groups == 1:
        return opset15.convolution_backprop_data
    return opset15.group_convolution_backprop_data


class _Convolution:
    """A convolution and its gradients, in the representation that the engine runs fastest.

    Where the kernel covers a whole axis (conv1d, text CNN), the axis joins the channels and a
    convolution over the other axis remains; where it covers both, a matmul.
    """

    def __init__(self, bridge: NgraphBridge, geometry: _Geometry) -> None:
        self._bridge = bridge
        self._full = geometry
        planar = len(geometry.size) == 2
        self._axis = next((axis for axis in (0, 1) if planar and geometry.is_full(axis)), None)
        self._g = geometry if self._axis is None else geometry.along(1 - self._axis)

    def forward(self, data: Output, filter_: Output) -> Output:
        """Convolves [N, C, H, W] with [O, C / groups, KH, KW] -> [N, O, OH, OW]."""
        g = self._g
        if self._full.is_dense():
            rows = opset15.matmul(self._rows(data), self._rows(filter_), False, True)
            return reshaped(self._bridge, rows, [*self._bridge.shape(rows), *self._full.out])
        filter_ = self._grouped(self._fold(filter_))
        out = self._convolve(self._fold(data), filter_, g.strides, g.begin, g.end, g.dilations)
        return reshaped(self._bridge, out, [*self._bridge.shape(out)[:2], *self._full.out])

    def data_gradient(self, grad: Output, filter_: Output) -> Output:
        """The data gradient: [N, O, OH, OW], [O, C / groups, KH, KW] -> [N, C, H, W]."""
        g = self._g
        channels = self._bridge.shape(filter_)[1] * g.groups
        if self._full.is_dense():
            rows = opset15.matmul(self._rows(grad), self._rows(filter_), False, False)
            first = self._bridge.shape(rows)[0]
            return reshaped(self._bridge, rows, [first, channels, *self._full.size])
        folded = _transposed_convolution(g)(
            self._flat(grad),
            self._grouped(self._fold(filter_)),
            g.strides,
            pads_begin=g.begin,
            pads_end=g.end,
            dilations=g.dilations,
            output_padding=[g.excess(axis) for axis in range(len(g.size))],
        )
        return self._unfold(folded, channels, self._full.size)

    def filter_gradient(self, data: Output, grad: Output) -> Output:
        """The filter gradient: [N, C, H, W], [N, O, OH, OW] -> [O, C / groups, KH, KW]."""
        channels = self._bridge.shape(data)[1]
        if self._full.sees_only_padding():
            shape = [self._bridge.shape(grad)[1], channels // self._g.groups, *self._full.kernel]
            return self._bridge.full(0.0, "float32", shape).output(0)
        if channels == self._g.groups > 1:
            return self._depthwise_filter_gradient(data, grad)
        if self._full.is_dense():
            rows = opset15.matmul(self._rows(grad), self._rows(data), True, False)
            first = self._bridge.shape(rows)[0]
            return reshaped(self._bridge, rows, [first, channels, *self._full.kernel])
        folded = self._cropped(self._fold(data)), self._flat(grad)
        found = (self._pointwise if self._g.is_pointwise() else self._exchanged)(*folded)
        return self._unfold(found, channels // self._g.groups, self._full.kernel)

    def _convolve(
        self,
        data: Output,
        filter_: Any,
        strides: Sequence[int],
        begin: Sequence[int],
        end: Sequence[int],
        dilations: Sequence[int],
    ) -> Node:
        """The engine's convolution.

        For a kernel of one element the engine moves the strides to the preceding node and drops
        the padding, so the elements are sliced before the convolution.
        """
        bridge = self._bridge
        size = bridge.shape(data)[2:]
        axes = len(size)
        is_single = {*bridge.shape(filter_)[-axes:]} == {1}
        if is_single and {*strides} != {1} and any([*begin, *end]):
            frame = (bridge.ints([0, 0, *begin]), bridge.ints([0, 0, *end]))
            data = opset15.pad(data, *frame, "constant", bridge.full(0.0, "float32")).output(0)
            data = self._sliced(data, [0] * axes, bridge.shape(data)[2:], strides)
            strides, begin, end = [1] * axes, [0] * axes, [0] * axes
        return _convolution(self._g)(data, filter_, strides, begin, end, dilations)

    def _rows(self, node: Output) -> Output:
        """Reshapes to a matrix with one row for each sample, or each filter."""
        return reshaped(self._bridge, node, [self._bridge.shape(node)[0], -1])

    def _pointwise(self, data: Output, grad: Output) -> Output:
        """The gradient of a pointwise filter: the matmul of [O, N * OH * OW], [N * OH * OW, C]."""
        bridge, g = self._bridge, self._g
        batch, channels, *_ = bridge.shape(data)
        features = bridge.shape(grad)[1]
        if {*g.strides} != {1}:
            data = self._sliced(data, [0] * len(g.out), bridge.shape(data)[2:], g.strides)
        data = transposed(bridge, reshaped(bridge, data, [batch, channels, -1]), (0, 2, 1))
        grad = transposed(bridge, reshaped(bridge, grad, [batch, features, -1]), (1, 0, 2))
        rows = opset15.matmul(
            reshaped(bridge, grad, [features, -1]),
            reshaped(bridge, data, [-1, channels]),
            False,
            False,
        )
        return reshaped(bridge, rows, [features, channels, *g.kernel])

    def _exchanged(self, data: Output, grad: Output) -> Output:
        bridge, g = self._bridge, self._g
        axes = range(len(g.size))
        batch, channels, *_ = bridge.shape(data)
        spatial = bridge.shape(data)[2:]
        data = reshaped(bridge, data, [batch, g.groups, channels // g.groups, *spatial])
        data = transposed(bridge, data, [2, 1, 0, *(3 + axis for axis in axes)])
        data = reshaped(bridge, data, [channels // g.groups, g.groups * batch, *spatial])
        swapped = transposed(bridge, grad, [1, 0, *(2 + axis for axis in axes)])
        grad = self._grouped(swapped)
        found = self._convolve(data, grad, g.dilations, g.begin, g.needed_end(), g.strides)
        return transposed(bridge, found, [1, 0, *(2 + axis for axis in axes)])

    def _cropped(self, data: Output) -> Output:
        """The input without elements at the end of axes that no window covers."""
        g = self._g
        ends = [g.size[axis] - max(0, g.excess(axis) - g.end[axis]) for axis in range(len(g.size))]
        if ends == g.size:
            return data
        return self._sliced(data, [0] * len(ends), ends, [1] * len(ends))

    def _sliced(
        self, data: NodeInput, begin: Sequence[int], end: Sequence[int], steps: Sequence[int]
    ) -> Output:
        bridge, axes = self._bridge, range(2, 2 + len(begin))
        return opset15.slice(
            data, bridge.ints(begin), bridge.ints(end), bridge.ints(steps), bridge.ints(axes)
        ).output(0)

    def _depthwise_filter_gradient(self, data: Output, grad: Output) -> Output:
        """The filter gradient of a depthwise convolution: one sum for each kernel element."""
        bridge, g = self._bridge, self._g
        batch, channels, *_ = bridge.shape(data)
        multiplier = bridge.shape(grad)[1] // channels
        padded = opset15.pad(
            self._cropped(data),
            bridge.ints([0, 0, *g.begin]),
            bridge.ints([0, 0, *g.needed_end()]),
            "constant",
            bridge.full(0.0, "float32"),
        )
        grads = reshaped(bridge, grad, [batch, channels, multiplier, *g.out])
        summed = [0, *range(3, 3 + len(g.out))]
        taps = []
        for position in product(*map(range, g.kernel)):
            begin = [at * dilation for at, dilation in zip(position, g.dilations)]
            end = [b + (o - 1) * s + 1 for b, o, s in zip(begin, g.out, g.strides)]
            seen = self._sliced(padded, begin, end, g.strides)
            seen = reshaped(bridge, seen, [batch, channels, 1, *g.out])
            tap = opset15.reduce_sum(opset15.multiply(seen, grads), bridge.ints(summed), False)
            taps.append(reshaped(bridge, tap, [channels * multiplier, 1]))
        return reshaped(bridge, opset15.concat(taps, 1), [channels * multiplier, 1, *g.kernel])

    # -- the folded representation --------------------------------------------------------------

    def _fold(self, node: Output) -> Output:
        """[A, C, H, W] with the axis that the kernel covers whole merged into the channels."""
        bridge = self._bridge
        if self._axis is None:
            return node
        first, channels, height, width = bridge.shape(node)
        if self._axis == 0:
            return reshaped(bridge, node, [first, channels * height, width])
        if width > 1:
            node = transposed(bridge, node, (0, 3, 1, 2))
        return reshaped(bridge, node, [first, width * channels, height])

    def _unfold(self, node: NodeInput, channels: int, spatial: list[int]) -> Output:
        """Reverts ``_fold``: reshapes to [A, channels, *spatial]."""
        bridge = self._bridge
        first = bridge.shape(node)[0]
        if self._axis != 1 or spatial[1] == 1:
            return reshaped(bridge, node, [first, channels, *spatial])
        height, width = spatial
        split = reshaped(bridge, node, [first, width, channels, height])
        return transposed(bridge, split, (0, 2, 3, 1))

    def _flat(self, node: Output) -> Output:
        """Removes the axis of size 1 from the gradient of the output."""
        first, channels, *_ = self._bridge.shape(node)
        return reshaped(self._bridge, node, [first, channels, *self._g.out])

    def _grouped(self, filter_: Output) -> Output:
        """[O, I, ...] as [G, O / G, I, ...].

        A Squeeze, not a Reshape, feeds the convolution: OpenVINO moves a factor after the
        convolution before the Reshape, even if the Reshape has other consumers, and merges equal
        Reshapes before that.
        """
        groups = self._g.groups
        if groups == 1:
            return filter_
        first, *rest = self._bridge.shape(filter_)
        shape = self._bridge.ints([1, groups, first // groups, *rest])
        return opset15.squeeze(opset15.reshape(filter_, shape, False), [0]).output(0)


# -- in training: oneDNN's kernels ------------------------------------------------------------

# The number of channels to which data with fewer ones are padded, as oneDNN's kernel of the filter
# gradient requires.
_IMAGE_CHANNELS = 3


class _Blocks:
    """A convolution and its gradients by this package's operators, over channels in blocks.

    Each method returns None where oneDNN has no fast kernel.
    """

    def __init__(self, bridge: NgraphBridge, geometry: _Geometry, data: int, out: int) -> None:
        self._bridge = bridge
        self._layout = Blocked.of(bridge)
        self._g = geometry
        self._data_block, self._out_block = data, out

    @staticmethod
    def of(
        bridge: NgraphBridge, geometry: _Geometry, data: list[int], filter_: list[int]
    ) -> _Blocks | None:
        """Returns a builder of the blocked convolution of data and a filter of these shapes.

        ``None`` unless the program trains on CPU and the layout is suitable.
        """
        trains = bridge.trains("pd_op.conv2d_grad", "pd_op.depthwise_conv2d_grad")
        if not bridge.on_cpu or not trains or len(data) != 4 or geometry.sees_only_padding():
            return None
        data_block, block = blocks_of_convolution(data[1], filter_[0], geometry.groups)
        return _Blocks(bridge, geometry, data_block, block) if block > 1 else None

    def forward(self, data: Output, filter_: Output) -> Output | None:
        """Convolves [N, C, H, W] with [O, C / groups, KH, KW] -> [N, O, OH, OW]."""
        data = self._layout.reordered(data, self._data_block)
        out = self._operator("BlockedConvolution", data, filter_, [self._out_block])
        return out and self._layout.plain(out, self._bridge.shape(filter_)[0])

    def data_gradient(self, grad: Output, filter_: Output) -> Output | None:
        """The data gradient: [N, O, OH, OW], [O, C / groups, KH, KW] -> [N, C, H, W]."""
        if self._data_block == 1:
            return None
        grad = self._layout.reordered(grad, self._out_block)
        found = self._operator("BlockedConvolutionDataGrad", grad, filter_, self._g.size)
        channels = self._bridge.shape(filter_)[1] * self._g.groups
        return found and self._layout.plain(found, channels)

    def filter_gradient(self, data: Output, grad: Output) -> Output | None:
        """The filter gradient: [N, C, H, W], [N, O, OH, OW] -> [O, C / groups, KH, KW]."""
        (_, channels, *_), (_, features, *_) = map(self._bridge.shape, (data, grad))
        data = self._layout.reordered(data, self._data_block)
        grad = self._layout.reordered(grad, self._out_block)
        shape = [features, channels // self._g.groups, *self._g.kernel]
        found = self._operator("BlockedConvolutionFilterGrad", data, grad, shape)
        if found is None and self._data_block == 1 and channels < _IMAGE_CHANNELS:
            return self._image_filter_gradient(data, grad, shape)
        return found

    def _image_filter_gradient(self, data: Output, grad: Output, shape: list[int]) -> Output | None:
        """The filter gradient for data with fewer than ``_IMAGE_CHANNELS`` channels.

        oneDNN requires that many: the data are padded with channels of zeros, whose part of the
        gradient is cut off.
        """
        bridge = self._bridge
        before, after = bridge.ints([0] * 4), bridge.ints([0, _IMAGE_CHANNELS - shape[1], 0, 0])
        data = opset15.pad(data, before, after, "constant").output(0)
        whole = [shape[0], _IMAGE_CHANNELS, *shape[2:]]
        found = self._operator("BlockedConvolutionFilterGrad", data, grad, whole)
        ends = [bridge.ints([value]) for value in (0, shape[1], 1, 1)]
        return found and opset15.slice(found, *ends).output(0)

    def _operator(self, name: str, first: Output, second: Output, sizes: list[int]) -> Any:
        g = self._g
        try:
            node = self._bridge.extension(
                name,
                [first, second],
                strides=g.strides,
                pads_begin=g.begin,
                pads_end=g.end,
                dilations=g.dilations,
                groups=g.groups,
                sizes=sizes,
            )
        except NgraphError:
            return None
        return node.output(0)


# -- convolution ------------------------------------------------------------------------------


@converter("pd_op.conv2d", limits=_LIMITS)
@converter("pd_op.conv3d", limits=_LIMITS)
@converter("pd_op.depthwise_conv2d", limits=_LIMITS)
def conv2d(bridge: NgraphBridge, op: Op) -> None:
    """``out[n, o] = sum_c input[n, c] * filter[o, c]`` (cross-correlation, Paddle ``conv2d``)."""
    data = get_data(bridge, op, "input")
    filter_ = bridge.get_input_node(op, "filter")
    set_data(bridge, op, "out", _convolution_of(bridge, op, data, filter_).value(data, filter_))


@converter("pd_op.conv2d_grad", limits=_LIMITS)
@converter("pd_op.conv3d_grad", limits=_LIMITS)
@converter("pd_op.depthwise_conv2d_grad", limits=_LIMITS)
def conv2d_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of input and filter (Paddle ``conv2d_grad``); each is optional."""
    data = get_data(bridge, op, "input")
    filter_ = bridge.get_input_node(op, "filter")
    grad = get_data(bridge, op, "out_grad")
    convolution = _convolution_of(bridge, op, data, filter_)
    if op.has_output("input_grad"):
        set_data(bridge, op, "input_grad", convolution.x_gradient(data, filter_, grad))
    if op.has_output("filter_grad"):
        found = convolution.y_gradient(data, filter_, grad)
        bridge.set_output_node(op, "filter_grad", found)


def _convolution_of(bridge: NgraphBridge, op: Op, data: Output, filter_: Output) -> Bilinear:
    """The convolution of ``op`` for data [N, C, ...] and a filter of these shapes."""
    geometry = _geometry(op, bridge.shape(data), bridge.shape(filter_))
    plain = _Convolution(bridge, geometry)
    blocks = _Blocks.of(bridge, geometry, bridge.shape(data), bridge.shape(filter_))

    def value(data: Output, filter_: Output) -> Output:
        return (blocks and blocks.forward(data, filter_)) or plain.forward(data, filter_)

    def data_gradient(data: Term, filter_: Output, grad: Output) -> Output:
        found = blocks and blocks.data_gradient(grad, filter_)
        return found or plain.data_gradient(grad, filter_)

    def filter_gradient(data: Output, filter_: Term, grad: Output) -> Output:
        found = blocks and blocks.filter_gradient(data, grad)
        return found or plain.filter_gradient(data, grad)

    return Bilinear(value, data_gradient, filter_gradient)


@converter("pd_op.conv2d_grad_grad", "pd_op.conv3d_double_grad", limits=_LIMITS)
def conv2d_grad_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of ``input``, ``filter`` and ``grad_out`` (Paddle ``conv2d_grad_grad``)."""
    given = [
        node if node is None or "filter" in name else get_data(bridge, op, name)
        for name, node in zip(op.inputs, operands(bridge, op))
    ]
    gradients = _convolution_of(bridge, op, *given[:2]).double_gradient(*given)
    for name, make, like in zip(op.outputs, gradients, given):
        if not op.has_output(name):
            continue
        term = make()
        node = bridge.full(0.0, "float32", bridge.shape(like)) if term is None else term
        if "filter" in name:
            bridge.set_output_node(op, name, node)
        else:
            set_data(bridge, op, name, node)


# -- transposed convolution: the data gradient of a convolution from `out` to `x` --------------


def _output_size(bridge: NgraphBridge, op: Op) -> list[int]:
    """The requested spatial size of a transposed convolution's output; empty if none is requested.

    The size is an input of some operators, and an attribute of others.
    """
    if op.has_input("output_size"):
        return [int(size) for size in bridge.constant(op, "output_size").reshape(-1)]
    return [int(size) for size in op.attr("output_size", ())]


def _transposed_geometry(bridge: NgraphBridge, op: Op, x: Output, filter_: Output) -> _Geometry:
    out, kernel = bridge.shape(x)[2:], bridge.shape(filter_)[2:]
    strides = [int(s) for s in op.attr("strides")]
    dilations = [int(d) for d in op.attr("dilations")]
    begin, end = padding(op, out, kernel, strides)
    if op.attr("padding_algorithm") == "SAME":
        dilations = [1] * len(out)
    given = _output_size(bridge, op)
    extra = [int(size) for size in op.attr("output_padding")] or [0] * len(out)
    size = given or [
        (out[i] - 1) * strides[i]
        + (kernel[i] - 1) * dilations[i]
        + 1
        - begin[i]
        - end[i]
        + extra[i]
        for i in range(len(out))
    ]
    return _Geometry(size, kernel, out, strides, dilations, begin, end, int(op.attr("groups")))


@converter("pd_op.conv3d_transpose", limits=_LIMITS)
@converter(
    "pd_op.conv2d_transpose",
    inputs={"output_size": Role.CONSTANT},
    limits=_LIMITS,
    kept_for="fusion between convolutions",
)
@converter(
    "pd_op.depthwise_conv2d_transpose", inputs={"output_size": Role.CONSTANT}, limits=_LIMITS
)
def conv2d_transpose(bridge: NgraphBridge, op: Op) -> None:
    """Spreads ``x`` over the kernel [C, O / groups, KH, KW] (Paddle ``conv2d_transpose``)."""
    x = get_data(bridge, op, "x")
    filter_ = bridge.get_input_node(op, "filter")
    convolution = _Convolution(bridge, _transposed_geometry(bridge, op, x, filter_))
    set_data(bridge, op, "out", convolution.data_gradient(x, filter_))


@converter("pd_op.conv3d_transpose_grad", limits=_LIMITS)
@converter("pd_op.conv2d_transpose_grad", inputs={"output_size": Role.CONSTANT}, limits=_LIMITS)
@converter(
    "pd_op.depthwise_conv2d_transpose_grad", inputs={"output_size": Role.CONSTANT}, limits=_LIMITS
)
def conv2d_transpose_grad(bridge: NgraphBridge, op: Op) -> None:
    """Gradients of x and filter: those of ``conv2d``, exchanged (``conv2d_transpose_grad``)."""
    x = get_data(bridge, op, "x")
    filter_ = bridge.get_input_node(op, "filter")
    grad = get_data(bridge, op, "out_grad")
    convolution = _Convolution(bridge, _transposed_geometry(bridge, op, x, filter_))
    if op.has_output("x_grad"):
        set_data(bridge, op, "x_grad", convolution.forward(grad, filter_))
    if op.has_output("filter_grad"):
        bridge.set_output_node(op, "filter_grad", convolution.filter_gradient(grad, x))
