"""Bugs of the CPU plugin (OpenVINO 2026.4.1), and rewrites of a model that avoid them.

Bugs that appear only with constants are in constants.py, simplifications that change results in
algebra.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from openvino import Model, Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import constants
from paddle_ngraph.conversion.node_tools import ELEMENTWISE, key_of

# Marks a Divide that the engine must not turn into a multiplication by a rounded reciprocal.
EXACT_DIVIDE = "nonconvertable_divide_0"
# Prefixes of the types of nodes with which the plugin fuses a division, and then computes a wrong
# quotient.
_FUSED_PREFIXES = (
    "Reduce",
    "MatMul",
    "Convolution",
    "GroupConvolution",
    "MVN",
    "NormalizeL2",
    "Interpolate",
)
# For each comparison, the type of node that is equivalent with swapped operands.
_MIRRORED_COMPARISONS = {"Greater": opset15.less, "GreaterEqual": opset15.less_equal}

# Key of a model's runtime information: the core compiles a model that has it without fused loops
# (snippets).
_NO_LOOP_FUSION_MARK = "ngraph_loops_apart"
# The longest chain of elementwise nodes that the plugin may fuse: its time for that grows with the
# square of their number.
_MAX_LOOP_LENGTH = 128
# Types of nodes that may be between the components of a unit (see _crashes), or that the plugin
# removes.
_UNIT_PRESERVING = ELEMENTWISE | {
    "Mod",
    "PRelu",
    "Reshape",
    "Softmax",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}
_SUMS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})
# The maximum rank of data and weights of a layer whose matmul may belong to a unit; see _crashes.
_MAX_RANK_OF_LAYERS = 2
# The rank of the input of a normalization over groups of channels: [samples, groups, rest].
_RANK_OF_GROUPS = 3
RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
# Types of nodes before which the plugin moves a following mean; two means are merged.
_MOVABLE_BEHIND_REDUCTION = RESHAPES | {"ReduceMean", "Transpose"}
_REDUCTIONS = {
    "ReduceL1": opset15.reduce_l1,
    "ReduceL2": opset15.reduce_l2,
    "ReduceLogicalAnd": opset15.reduce_logical_and,
    "ReduceLogicalOr": opset15.reduce_logical_or,
    "ReduceMax": opset15.reduce_max,
    "ReduceMean": opset15.reduce_mean,
    "ReduceMin": opset15.reduce_min,
    "ReduceProd": opset15.reduce_prod,
    "ReduceSum": opset15.reduce_sum,
}
# Types of nodes in whose loop the plugin also computes a parameter, whichever operand it is; for
# others, such as a - b, it may compute the parameter in a separate loop.
_COMMUTATIVE = frozenset({"Add", "Maximum", "Minimum", "Multiply"})


def divide_exactly(model: Model) -> None:
    """Marks divisions that the plugin must not turn into products, where it divides correctly.

    The plugin fuses a division by or of a constant with the producer of its other input; fused with
    one of ``_FUSED_PREFIXES``, the result is wrong.
    """
    constant: set[str] = set()
    fused: set[str] = set()
    for node in model.get_ordered_ops():
        type_name, name = node.get_type_name(), node.get_name()
        sources = {value.get_node().get_name() for value in node.input_values()}
        if type_name == "Constant" or (sources and sources <= constant):
            constant.add(name)
        elif type_name.startswith(_FUSED_PREFIXES) or sources & fused:
            fused.add(name)
        if type_name == "Divide" and not (sources & constant and sources & fused):
            node.get_rt_info()[EXACT_DIVIDE] = True


def reduce_without_ones(model: Model) -> None:
    """Squeezes axes of size 1 before a reduction, where a node before it adds or moves such axes.

    The plugin moves reductions before nodes that add such axes, and then miscounts the axes: the
    result has another shape, and its readers get other elements.
    """
    for node in model.get_ordered_ops():
        type_name = node.get_type_name()
        if type_name not in _REDUCTIONS:
            continue
        source = node.input_value(0).get_node().get_type_name()
        if source in _REDUCTIONS or source in _MOVABLE_BEHIND_REDUCTION:
            _remove_unit_axes(node, _REDUCTIONS[type_name])


def _remove_unit_axes(node: Node, reduce: Callable[..., Node]) -> None:
    sizes = list(node.get_input_partial_shape(0))
    ones = [axis for axis, size in enumerate(sizes) if size == 1]
    rest = [axis for axis in range(len(sizes)) if axis not in ones]
    axes = _reduced(node)
    left = [rest.index(axis) for axis in sorted(axes) if axis in rest]
    if not ones or not left:
        return
    keeps = node.get_attributes()["keep_dims"]
    found = reduce(opset15.squeeze(node.input_value(0), ones), np.array(left), False)
    remaining = [axis for axis in range(len(sizes)) if keeps or axis not in axes]
    unit_axes = [index for index, axis in enumerate(remaining) if axis in ones or axis in axes]
    replace_node(node, opset15.unsqueeze(found, np.array(unit_axes)) if unit_axes else found)


def divide_sums_over_samples(model: Model) -> None:
    """Computes means over axis 0, and others, as sums divided by their number of terms.

    Over a batch in blocked layout, to which pooling puts 2 or 3 channels, the plugin's kernel
    divides leftovers of the previous run. The plugin merges two means in a row, and moves means
    before transpositions: only the set of axes that is reduced in the end matters.
    """
    means = [node for node in model.get_ordered_ops() if node.get_type_name() == "ReduceMean"]
    for node in [mean for mean in means if _is_over_samples(mean)]:
        x, axes = node.input_values()
        total = opset15.reduce_sum(x, axes, node.get_attributes()["keep_dims"])
        replace_node(node, opset15.divide(total, _size_along(x, axes)))


def _is_over_samples(mean: Node) -> bool:
    """Whether a chain of means, which the plugin merges, reduces axis 0 of its first value."""
    node, axes = mean, _reduced(mean)
    while 0 not in axes:
        node = node.input_value(0).get_node()
        before = (
            _axes_before(node, axes) if node.get_type_name() in _MOVABLE_BEHIND_REDUCTION else None
        )
        if before is None:
            return False
        axes = before
    return True


def _reduced(mean: Node) -> set[int]:
    along = mean.input_value(1).get_node().get_data().reshape(-1)
    return set((along % len(mean.get_input_partial_shape(0))).tolist())


def _axes_before(node: Node, axes: set[int]) -> set[int] | None:
    """The axes of the input of ``node`` that are reduced if ``axes`` of its output are.

    ``None`` where elements change their indices: the plugin moves no mean before that.
    """
    type_name = node.get_type_name()
    if type_name == "Transpose":
        order = node.input_value(1).get_node().get_data().reshape(-1).tolist()
        return {order[axis] for axis in axes}
    before = list(node.get_input_partial_shape(0))
    if type_name == "ReduceMean":
        own = _reduced(node)
        keeps = node.get_attributes()["keep_dims"]
        left = [axis for axis in range(len(before)) if keeps or axis not in own]
        return own | {left[axis] for axis in axes}
    after = list(node.get_output_partial_shape(0))
    non_unit_axes = [[i for i, size in enumerate(shape) if size != 1] for shape in (before, after)]
    if [before[i] for i in non_unit_axes[0]] != [after[i] for i in non_unit_axes[1]]:
        return None
    return {i for i, axis in zip(*non_unit_axes) if axis in axes}


def _size_along(x: Output, axes: Output) -> Node:
    """The number of elements that a reduction along ``axes`` combines, as a float32 node."""
    if x.get_partial_shape().is_static:
        sizes = np.array(list(x.get_shape()))[axes.get_node().get_data()]
        return opset15.constant(np.float32(sizes.prod()))
    zero = opset15.constant(np.int64(0))
    sizes = opset15.gather(opset15.shape_of(x, Type.i64), axes, zero)
    return opset15.convert(opset15.reduce_prod(sizes, zero, False), Type.f32)


def separate_abs_input(model: Model) -> None:
    """Computes |x| as |-x| where x has another reader, so that -x has only one.

    The plugin's kernel of Abs overwrites the register of x, and a node fused after it then reads
    |x| there: |x| + x comes out as 2 |x|. The maximum of x and -x would not do: which of 0 and -0
    is larger depends on the instruction set.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Abs":
            continue
        x = node.input_value(0)
        if len(x.get_target_inputs()) > 1 and x.get_element_type() == Type.f32:
            replace_node(node, opset15.abs(opset15.negative(x)))


def compare_by_less(model: Model) -> None:
    """Replaces a > b and a >= b in a model by b < a and b <= a.

    With AVX-512 the plugin treats NaN as greater than every number.
    """
    for node in model.get_ops():
        swapped = _MIRRORED_COMPARISONS.get(node.get_type_name())
        if swapped is not None:
            replace_node(node, swapped(node.input_value(1), node.input_value(0)))


def squeeze_to_scalars(model: Model) -> None:
    """Creates scalars by Squeeze: the engine crashes on some that Reshape creates from matmuls."""
    for node in model.get_ops():
        if node.get_type_name() == "Reshape" and len(node.get_output_partial_shape(0)) == 0:
            source = node.input_value(0)
            rank = len(source.get_partial_shape())
            if rank:
                axes = opset15.constant(np.arange(rank), Type.i64)
                replace_node(node, opset15.squeeze(source, axes))


def preserve_branch_results(model: Model, extension: Callable[..., Node]) -> None:
    """Passes results of an If with dynamic shapes through a ShapeBarrier, which changes nothing.

    Results of dynamic shape share memory with each other. The plugin resizes all of them after an
    If before any node has read the If's result; where memory has to grow for that, as in a first
    run, the contents are lost. Before a node of this package, the plugin completes its inputs, and
    retains them.
    """
    for node in [each for each in model.get_ordered_ops() if each.get_type_name() == "If"]:
        for result in node.outputs():
            if result.get_partial_shape().is_dynamic:
                readers = result.get_target_inputs()
                barrier = extension("ShapeBarrier", [result, result], axes=[]).output(0)
                for reader in readers:
                    reader.replace_source_output(barrier)


# -- loops after a unit --------------------------------------------------------------------------


def disable_loop_fusion(model: Model, inside: Sequence[Model] = ()) -> None:
    """Marks a finished model if the plugin would crash while fusing loops in it or ``inside``."""
    if any(map(_crashes, [model, *inside])):
        model.set_rt_info(True, _NO_LOOP_FUSION_MARK)


def _crashes(model: Model) -> bool:
    """Whether the plugin would crash while fusing loops of a model.

    The plugin merges some sequences into a unit: small matmuls with elementwise nodes in between,
    attention, group normalization. If an elementwise node reads the end of a unit and also a value
    that another loop computes, it should join that loop; the plugin then mistakes the unit for a
    loop too, and follows a null pointer. So loops are not fused where that can happen. A unit may
    end earlier than possible, so each elementwise node after it is treated as its end.
    """
    traits: dict[str, frozenset[str]] = {}
    lengths: dict[str, int] = {}
    for node in model.get_ordered_ops():
        traits[node.get_name()] = _traits(node, traits)
        if node.get_type_name() not in ELEMENTWISE:
            continue
        sources = [lengths.get(value.get_node().get_name(), 0) for value in node.input_values()]
        lengths[node.get_name()] = length = 1 + max(sources)
        if length > _MAX_LOOP_LENGTH or _joins(node, traits):
            return True
    return False


def _traits(node: Node, known: dict[str, frozenset[str]]) -> frozenset[str]:
    """The parts of a unit (:func:`_crashes`) up to ``node``; "unit": maybe the end of one."""
    type_name = node.get_type_name()
    sources = [known[value.get_node().get_name()] for value in node.input_values()]
    before = frozenset().union(*sources)
    if type_name == "MatMul":
        return _traits_of_matmul(node, sources)
    if type_name == "GroupNormalization":
        return frozenset({"unit"})
    if type_name == "MVN":
        return frozenset({"normalized"}) if _is_of_groups(node.input_value(0)) else frozenset()
    if type_name not in _UNIT_PRESERVING | _SUMS:
        return frozenset()
    if type_name in {"Softmax", "ReduceSum"} and "heads" in before:
        before |= {"attention"}
    if type_name == "Multiply" and all("weighted" in source for source in sources):
        before |= {"gate"}
    if type_name == "ReduceMean" and _is_of_groups(node.input_value(0)):
        before |= {"mean"}
    if type_name in {"Power", "Sqrt"} and "mean" in before:
        before |= {"normalized"}
    if type_name == "Transpose":
        before |= {"transposed"}
    # The plugin does not remove a reshape that changes the rank, so the reshape's readers do not
    # read the end of a unit.
    if type_name in RESHAPES and _changes_rank(node):
        before -= {"unit"}
    # A reshape from groups back to channels ends a group normalization, which is a unit.
    if type_name == "Reshape" and "normalized" in before:
        before |= {"unit"}
    return before


def _changes_rank(node: Node) -> bool:
    return len(node.get_input_partial_shape(0)) != len(node.get_output_partial_shape(0))


def _traits_of_matmul(matmul: Node, sources: Sequence[frozenset[str]]) -> frozenset[str]:
    """The kinds of matmul in the plugin's units that this may be; "unit" if it may be the last one.

    Args:
        sources: The traits of the operands.
    """
    before = sources[0] | sources[1]
    left, right = (
        matmul.get_attributes()[f"transpose_{name}"] and "transposed" not in source
        for name, source in zip("ab", sources)
    )
    found = set()
    if not left:
        is_last = "attention" in before and not right
        found |= {"heads", *["unit"] * is_last}
    if constants.is_constant(matmul.input_value(1)):
        found |= {"heads", "weighted", *["unit"] * (not before.isdisjoint({"attention", "gate"}))}
        ranks = [len(matmul.get_input_partial_shape(index)) for index in (0, 1)]
        if max(ranks) <= _MAX_RANK_OF_LAYERS:
            found |= {"layer", *["unit"] * ("layer" in before)}
    return frozenset(found)


def _is_of_groups(value: Output) -> bool:
    """Whether a mean of ``value`` may be over the groups of a group normalization.

    Its input is then [samples, groups, rest]. Nodes that the plugin removes may follow the Reshape,
    but none that joins another value.
    """
    while value.get_node().get_type_name() in _UNIT_PRESERVING - {"Reshape"}:
        joined = [v for v in value.get_node().input_values() if not constants.is_constant(v)]
        if len(joined) != 1:
            return False
        value = joined[0]
    is_reshaped = value.get_node().get_type_name() == "Reshape"
    return is_reshaped and len(value.get_partial_shape()) == _RANK_OF_GROUPS


def _joins(node: Node, traits: dict[str, frozenset[str]]) -> bool:
    """Whether the plugin may crash: ``node`` reads a unit's end and the value of another loop."""
    read = {
        key_of(value): value for value in node.input_values() if not constants.is_constant(value)
    }
    units = sum("unit" in traits[name] for name, _ in read)
    return units > 0 and sum(not _reads_directly(value, node) for value in read.values()) > 1


def _reads_directly(value: Output, reader: Node) -> bool:
    source = value.get_node().get_type_name()
    is_float = value.get_element_type() == Type.f32
    return source == "Parameter" and is_float and reader.get_type_name() in _COMMUTATIVE
