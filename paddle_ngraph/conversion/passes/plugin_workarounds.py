"""Faults of the CPU plugin (OpenVINO 2026.4.1), and the forms of a model that avoid them.

Faults that appear only with constants are in constants.py, algebra that changes numbers in
algebra.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from openvino import Model, Node, Output, Type, opset15
from openvino.utils import replace_node

from paddle_ngraph.conversion import constants
from paddle_ngraph.conversion.node_tools import ELEMENTWISE, key_of

# Marks a Divide that the engine must not turn into a product with a rounded reciprocal.
EXACT_DIVIDE = "nonconvertable_divide_0"
# What the plugin joins a division to, and then divides wrongly.
_FUSED_PREFIXES = (
    "Reduce",
    "MatMul",
    "Convolution",
    "GroupConvolution",
    "MVN",
    "NormalizeL2",
    "Interpolate",
)
# Comparisons, and the same with the operands exchanged.
_MIRRORED_COMPARISONS = {"Greater": opset15.less, "GreaterEqual": opset15.less_equal}

# The core compiles a model with this in its runtime information without fused loops (snippets).
_NO_LOOP_FUSION_MARK = "ngraph_loops_apart"
# The time that the plugin takes to fuse elementwise nodes grows with the square of their number.
_MAX_LOOP_LENGTH = 128
# What the plugin sees through when it looks for the parts of a unit, or removes.
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
_MAX_RANK_OF_LAYERS = 2  # of both factors
_RANK_OF_GROUPS = 3  # when they are normalized
RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze"})
# What the plugin takes a mean before, or joins it to.
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
# The plugin computes a parameter that these read in no loop of its own, as it may that of a - b.
_COMMUTATIVE = frozenset({"Add", "Maximum", "Minimum", "Multiply"})


def divide_exactly(model: Model) -> None:
    """Marks divisions to be kept as they are, where the engine computes them correctly.

    The plugin joins a division by or of a constant to the node that its other input comes from;
    joined to one of ``_FUSED_PREFIXES``, the result is wrong.
    """
    constant: set[str] = set()
    joined: set[str] = set()
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_name()
        sources = {value.get_node().get_name() for value in node.input_values()}
        if kind == "Constant" or (sources and sources <= constant):
            constant.add(name)
        elif kind.startswith(_FUSED_PREFIXES) or sources & joined:
            joined.add(name)
        if kind == "Divide" and not (sources & constant and sources & joined):
            node.get_rt_info()[EXACT_DIVIDE] = True


def reduce_without_ones(model: Model) -> None:
    """Takes axes of one element away before a reduction, where something puts or moves them there.

    The plugin takes reductions before what makes such axes, and then loses count of them: the
    result has another shape, and what reads it other elements.
    """
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind not in _REDUCTIONS:
            continue
        source = node.input_value(0).get_node().get_type_name()
        if source in _REDUCTIONS or source in _MOVABLE_BEHIND_REDUCTION:
            _remove_unit_axes(node, _REDUCTIONS[kind])


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
    kept = [axis for axis in range(len(sizes)) if keeps or axis not in axes]
    new = [place for place, axis in enumerate(kept) if axis in ones or axis in axes]
    replace_node(node, opset15.unsqueeze(found, np.array(new)) if new else found)


def divide_sums_over_samples(model: Model) -> None:
    """Computes means over axis 0, and others, as sums divided by their number of terms.

    Over a batch in blocks of channels, as pooling makes it of 2 or 3 channels, the plugin's kernel
    divides what was left there by the run before. It makes one mean of two that follow each other,
    and takes means before transpositions: what counts is which axes are gone in the end.
    """
    means = [node for node in model.get_ordered_ops() if node.get_type_name() == "ReduceMean"]
    for node in [mean for mean in means if _is_over_samples(mean)]:
        x, axes = node.input_values()
        total = opset15.reduce_sum(x, axes, node.get_attributes()["keep_dims"])
        replace_node(node, opset15.divide(total, _size_along(x, axes)))


def _is_over_samples(mean: Node) -> bool:
    """Whether a mean, with those before it, is over axis 0 of what comes before them all."""
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
    """The axes of what ``node`` reads that are gone if these of its own are.

    ``None`` where elements change their places: no mean is taken before that.
    """
    kind = node.get_type_name()
    if kind == "Transpose":
        order = node.input_value(1).get_node().get_data().reshape(-1).tolist()
        return {order[axis] for axis in axes}
    before = list(node.get_input_partial_shape(0))
    if kind == "ReduceMean":
        own = _reduced(node)
        keeps = node.get_attributes()["keep_dims"]
        left = [axis for axis in range(len(before)) if keeps or axis not in own]
        return own | {left[axis] for axis in axes}
    after = list(node.get_output_partial_shape(0))
    places = [[i for i, size in enumerate(shape) if size != 1] for shape in (before, after)]
    if [before[i] for i in places[0]] != [after[i] for i in places[1]]:
        return None
    return {i for i, axis in zip(*places) if axis in axes}


def _size_along(x: Output, axes: Output) -> Node:
    """How many elements ``x`` has along some axes, in float32."""
    if x.get_partial_shape().is_static:
        sizes = np.array(list(x.get_shape()))[axes.get_node().get_data()]
        return opset15.constant(np.float32(sizes.prod()))
    zero = opset15.constant(np.int64(0))
    sizes = opset15.gather(opset15.shape_of(x, Type.i64), axes, zero)
    return opset15.convert(opset15.reduce_prod(sizes, zero, False), Type.f32)


def separate_abs_input(model: Model) -> None:
    """Computes |x| as |-x| where something else reads x too: nothing else reads -x.

    The plugin's kernel of Abs overwrites the register that holds x, and a node fused after it then
    finds |x| there: |x| + x comes out as 2 |x|. The maximum of x and -x would not do: which of 0
    and -0 is the larger depends on the instruction set.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Abs":
            continue
        x = node.input_value(0)
        if len(x.get_target_inputs()) > 1 and x.get_element_type() == Type.f32:
            replace_node(node, opset15.abs(opset15.negative(x)))


def compare_by_less(model: Model) -> None:
    """Computes a > b as b < a: with AVX-512 the plugin treats NaN as greater than every number."""
    for node in model.get_ops():
        swapped = _MIRRORED_COMPARISONS.get(node.get_type_name())
        if swapped is not None:
            replace_node(node, swapped(node.input_value(1), node.input_value(0)))


def squeeze_to_scalars(model: Model) -> None:
    """Makes scalars by Squeeze: the engine crashes on some that Reshape makes from products."""
    for node in model.get_ops():
        if node.get_type_name() == "Reshape" and len(node.get_output_partial_shape(0)) == 0:
            source = node.input_value(0)
            rank = len(source.get_partial_shape())
            if rank:
                axes = opset15.constant(np.arange(rank), Type.i64)
                replace_node(node, opset15.squeeze(source, axes))


def preserve_branch_results(model: Model, extension: Callable[..., Node]) -> None:
    """Hands on what an If makes of open size through a node of the core's, which changes nothing.

    Results of open sizes share memory with each other. The plugin gives all that come behind an If
    their sizes before anything has read what the If made; where memory has to grow for that, as in
    a first run, the contents are lost. Before a node of the core's it waits for what comes before,
    and keeps it.
    """
    for node in [each for each in model.get_ordered_ops() if each.get_type_name() == "If"]:
        for made in node.outputs():
            if made.get_partial_shape().is_dynamic:
                readers = made.get_target_inputs()
                kept = extension("ShapeBarrier", [made, made], axes=[]).output(0)
                for reader in readers:
                    reader.replace_source_output(kept)


# -- loops behind a unit -------------------------------------------------------------------------


def disable_loop_fusion(model: Model, inside: Sequence[Model] = ()) -> None:
    """Marks a finished model if the plugin would crash while fusing loops in it, or ``inside``."""
    if any(map(_crashes, [model, *inside])):
        model.set_rt_info(True, _NO_LOOP_FUSION_MARK)


def _crashes(model: Model) -> bool:
    """Whether it is a model on which the plugin would crash while fusing loops.

    The plugin makes a unit of some sequences: small matrix products with elementwise nodes in
    between, attention, group normalization. If an elementwise node reads the end of a unit and also
    what another loop computes, it should join that loop; the plugin then mistakes the unit for a
    loop too, and follows a null pointer. So loops are not fused where that can happen. A unit may
    end earlier than it could, so each elementwise node after it counts as its end.
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
    """Which parts of a unit are on the way to ``node``; "unit": possibly all of one."""
    kind = node.get_type_name()
    sources = [known[value.get_node().get_name()] for value in node.input_values()]
    before = frozenset().union(*sources)
    if kind == "MatMul":
        return _traits_of_matmul(node, sources)
    if kind == "GroupNormalization":
        return frozenset({"unit"})
    if kind == "MVN":
        return frozenset({"normalized"}) if _is_of_groups(node.input_value(0)) else frozenset()
    if kind not in _UNIT_PRESERVING | _SUMS:
        return frozenset()
    if kind in {"Softmax", "ReduceSum"} and "heads" in before:
        before |= {"attention"}
    if kind == "Multiply" and all("weighted" in source for source in sources):
        before |= {"gate"}
    if kind == "ReduceMean" and _is_of_groups(node.input_value(0)):
        before |= {"mean"}
    if kind in {"Power", "Sqrt"} and "mean" in before:
        before |= {"normalized"}
    if kind == "Transpose":
        before |= {"transposed"}
    if kind in RESHAPES and _changes_rank(node):  # stays, so that who reads it reads no unit
        before -= {"unit"}
    if kind == "Reshape" and "normalized" in before:  # of groups, back to channels
        before |= {"unit"}
    return before


def _changes_rank(node: Node) -> bool:
    return len(node.get_input_partial_shape(0)) != len(node.get_output_partial_shape(0))


def _traits_of_matmul(product: Node, sources: Sequence[frozenset[str]]) -> frozenset[str]:
    """The forms of products that make up units, and whether this may be the last in one."""
    before = sources[0] | sources[1]
    left, right = (
        product.get_attributes()[f"transpose_{name}"] and "transposed" not in source
        for name, source in zip("ab", sources)
    )
    found = set()
    if not left:
        is_last = "attention" in before and not right
        found |= {"heads", *["unit"] * is_last}
    if constants.is_constant(product.input_value(1)):
        found |= {"heads", "weighted", *["unit"] * (not before.isdisjoint({"attention", "gate"}))}
        ranks = [len(product.get_input_partial_shape(number)) for number in (0, 1)]
        if max(ranks) <= _MAX_RANK_OF_LAYERS:
            found |= {"layer", *["unit"] * ("layer" in before)}
    return frozenset(found)


def _is_of_groups(value: Output) -> bool:
    """Whether a mean of ``value`` may be over groups of channels: samples, groups, the rest.

    Between the two there may be nodes that the plugin removes, but none that joins another value.
    """
    while value.get_node().get_type_name() in _UNIT_PRESERVING - {"Reshape"}:
        joined = [v for v in value.get_node().input_values() if not constants.is_constant(v)]
        if len(joined) != 1:
            return False
        value = joined[0]
    is_reshaped = value.get_node().get_type_name() == "Reshape"
    return is_reshaped and len(value.get_partial_shape()) == _RANK_OF_GROUPS


def _joins(node: Node, traits: dict[str, frozenset[str]]) -> bool:
    """Whether ``node`` reads the end of a unit and what a loop may compute."""
    read = {
        key_of(value): value for value in node.input_values() if not constants.is_constant(value)
    }
    units = sum("unit" in traits[name] for name, _ in read)
    return units > 0 and sum(not _reads_directly(value, node) for value in read.values()) > 1


def _reads_directly(value: Output, reader: Node) -> bool:
    source = value.get_node().get_type_name()
    is_float = value.get_element_type() == Type.f32
    return source == "Parameter" and is_float and reader.get_type_name() in _COMMUTATIVE
