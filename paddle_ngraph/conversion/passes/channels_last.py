"""Values of convolutions in Paddle's layout, by a transposition.

With AVX-512 the plugin's convolutions store channels last. Where Paddle's layout is needed, the
plugin moves up to 64 channels pixel by pixel (its node Reorder). The elements of a pixel are a
plane apart there: planes of a multiple of 4 KB, such as 64 x 64, share a set of the first-level
cache, which has fewer ways than there are channels. That takes 3 to 25 times as long as a
Transpose.
"""

from __future__ import annotations

import math

import numpy as np
from openvino import Model, Node, Output, Type, opset15

from paddle_ngraph.conversion import constants, processor
from paddle_ngraph.conversion.node_tools import ELEMENTWISE, Key, key_of

# The plugin moves more channels by oneDNN, in blocks.
_MAX_CHANNELS = 64
# First-level caches have 8 to 12 ways.
_MIN_CHANNELS_PER_SET = 16
# The bytes after which addresses share a set again.
_SET_PERIOD = 4096
_RANKS = (4, 5)
_LAYOUT_PRESERVING = ELEMENTWISE | {"PRelu"}
_READERS_IN_PLAIN_LAYOUT = frozenset({"Reshape", "Result"})


def move_channels(model: Model) -> None:
    """Transposes values of convolutions for readers in Paddle's layout, where that is faster."""
    if not processor.has_avx512():
        return
    last: set[Key] = set()
    moved: dict[Key, Node] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() in _READERS_IN_PLAIN_LAYOUT:
            value = node.input_value(0)
            key = key_of(value)
            if key in last and _is_slow(value):
                if key not in moved:
                    moved[key] = _transposed(value)
                node.input(0).replace_source_output(moved[key].output(0))
        elif _has_channels_last(node, last):
            last.add(key_of(node.output(0)))


def _has_channels_last(node: Node, last: set[Key]) -> bool:
    """Whether the plugin stores the result of a node as convolutions do."""
    if node.get_type_name() == "Convolution":
        return len(node.get_output_partial_shape(0)) in _RANKS
    if node.get_type_name() not in _LAYOUT_PRESERVING:
        return False
    read = [value for value in node.input_values() if not constants.is_constant(value)]
    return bool(read) and all(key_of(value) in last for value in read)


def _is_slow(value: Output) -> bool:
    is_dynamic = any(size.is_dynamic for size in list(value.get_partial_shape())[1:])
    if is_dynamic or value.get_element_type() != Type.f32:
        return False
    channels, *sizes = _sample(value)
    plane = math.prod(sizes) * value.get_element_type().size
    sets = _SET_PERIOD // math.gcd(_SET_PERIOD, plane)
    return _MIN_CHANNELS_PER_SET * sets <= channels <= _MAX_CHANNELS


def _sample(value: Output) -> list[int]:
    """Channels and the sizes of their planes."""
    return [size.get_length() for size in list(value.get_partial_shape())[1:]]


def _transposed(value: Output) -> Node:
    """A value moved by the second Transpose; the first one only names the layout that it has."""
    channels, *sizes = _sample(value)
    to_last = np.array([0, *range(2, 2 + len(sizes)), 1])
    by_pixels = opset15.transpose(value, opset15.constant(to_last))
    rows = opset15.reshape(by_pixels, np.array([0, math.prod(sizes), channels]), True)
    columns = opset15.transpose(rows, opset15.constant(np.array([0, 2, 1])))
    return opset15.reshape(columns, np.array([0, channels, *sizes]), True)
