"""Deferral rules: calls of Paddle's core that may be deferred, and calls without a graph break.

An operator may be deferred if its errors depend only on the shapes and dtypes of its tensors and
on its other arguments: any other error would be raised later than by Paddle. An integer division
or a lookup may be deferred if its divisors or indices are known to be valid
(core/paddle/integer_ranges.h).
Random numbers are sampled in the order of the calls: any other call that samples, or sets a seed,
is a graph break, as is every call that is not listed here.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from typing import Any

import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.names import legacy_operators
from paddle_ngraph.paddle_private.names import operators as _C_ops

_UNLIMITED_TENSORS = 99


def _rule(
    max_tensors: int = _UNLIMITED_TENSORS,
    requires_floats: bool = False,
    required: tuple[tuple[int, Any], ...] = (),
    required_with_gradient: tuple[tuple[int, Any], ...] = (),
    values: _core.ValueRule | None = None,
    ranges: _core.RangeRule | None = None,
    unread: int = -1,
    has_reserve: bool = False,
    is_stochastic: bool = False,
    is_arithmetic: bool = False,
    mutation: _core.Mutation = _core.Mutation.NONE,
    int_lists: tuple[int, ...] = (),
    shape: _core.ShapeRule | None = None,
    joined: _core.ListRule = _core.ListRule.NONE,
) -> _core.DeferralRule:
    """Creates a deferral rule: ``DeferralRule`` in core/paddle/call_interception.h."""
    return _core.DeferralRule(
        max_tensors,
        requires_floats,
        list(required),
        list(required_with_gradient),
        values or _core.ValueRule(),
        ranges or _core.RangeRule(),
        unread,
        has_reserve,
        is_stochastic,
        is_arithmetic,
        mutation,
        list(int_lists),
        shape or _core.ShapeRule(),
        joined,
    )


def _values_of(*arguments: int) -> _core.RangeRule:
    """The range rule of results whose elements are elements of the arguments at these indices."""
    return _core.RangeRule(_core.RangeRuleKind.PRESERVED, list(arguments))


# Integer ranges of results, by the name of an operator or of the tensor method that calls it.
_VALUE_PRESERVING = (
    "assign clone contiguous _copy_to detach expand expand_as flatten flip gather gather_nd "
    "index_sample index_select reshape roll slice split split_with_num squeeze strided_slice "
    "take_along_axis "
    "tile transpose unbind unsqueeze unstack concat max min repeat_interleave cast "
    "channel_shuffle pixel_shuffle pixel_unshuffle diagonal _getitem_dygraph meshgrid"
)
_ARITHMETIC_RULES = {
    _core.RangeRuleKind.SUM: "add __add__ __radd__",
    _core.RangeRuleKind.DIFFERENCE: "subtract __sub__",
    _core.RangeRuleKind.PRODUCT: "multiply __mul__ __rmul__",
    _core.RangeRuleKind.QUOTIENT: "floor_divide __floordiv__",
    _core.RangeRuleKind.REMAINDER: "remainder __mod__",
}
_RANGE_RULES: dict[str, _core.RangeRule] = {
    **dict.fromkeys(_VALUE_PRESERVING.split(), _values_of(0)),
    **dict.fromkeys(("fmax", "fmin", "maximum", "minimum"), _values_of(0, 1)),
    **dict.fromkeys(("argmax", "argmin"), _core.RangeRule(_core.RangeRuleKind.INDICES)),
    **{
        name: _core.RangeRule(kind)
        for kind, names in _ARITHMETIC_RULES.items()
        for name in names.split()
    },
    "argsort": _core.RangeRule(_core.RangeRuleKind.SORTED),
    "clip": _core.RangeRule(_core.RangeRuleKind.CLIPPED),
    "masked_fill": _values_of(0, 2),
    "_setitem_dygraph": _values_of(0, 2),
    "full_like": _values_of(1),
    "stack": _core.RangeRule(_core.RangeRuleKind.STACKED),
    "topk": _core.RangeRule(_core.RangeRuleKind.SORTED, axis_argument=2),
    "where": _values_of(1, 2),
}


# Shapes of results: operators, or the tensor methods that call them, by the kind of rule and the
# parameters. Of these, integers of those with * are sizes, and numbers of those with ~ may differ;
# behind = is the value of a parameter that a call leaves out.
_INTERPOLATIONS = "bilinear_interp nearest_interp bicubic_interp linear_interp trilinear_interp"
_KINDS = _core.ShapeRuleKind
_UNARY = "x, _, _, _, _, _, _"
_SHAPES: dict[_core.ShapeRuleKind, dict[str, str]] = {
    _KINDS.SAME: {
        "x, scale~, bias~, _": "scale",
        _UNARY: (
            "abs acos acosh asin asinh assign atan atanh bitwise_not cast ceil celu clone cos "
            "cosh cumprod cumsum detach elu erf exp expm1 flip floor gelu hardshrink hardsigmoid "
            "hardswish hardtanh isfinite isinf isnan label_smooth leaky_relu log log10 log1p log2 "
            "log_softmax logical_not logit logsigmoid mish prelu reciprocal relu relu6 roll round "
            "rsqrt selu sigmoid sign silu sin sinh softmax softplus softshrink softsign sqrt "
            "square stanh tan tanh tanh_shrink thresholded_relu tril triu trunc argsort full_like "
            "dropout pow swish channel_shuffle group_norm instance_norm layer_norm "
            "_tensor_use_gpudnn _copy_to contiguous fill increment legacy.hard_swish legacy.relu "
            "legacy.relu6 legacy.sigmoid legacy.swish legacy.tanh"
        ),
    },
    _KINDS.ALL_SAME: {
        "x": "add_n",
        "x, label, _": "log_loss",
        "x, label, _, _, _": "sigmoid_cross_entropy_with_logits",
    },
    _KINDS.FIRST_SAME: {"x, mean, variance, _, _, _, _, _, _, _, _": "batch_norm"},
    _KINDS.BROADCAST: {
        "x, y, _, _": (
            "add atan2 bitwise_and bitwise_or bitwise_xor divide elementwise_pow equal "
            "floor_divide fmax fmin greater_equal greater_than heaviside huber_loss less_equal "
            "less_than lerp logical_and logical_or logical_xor masked_fill maximum minimum "
            "multiply not_equal remainder subtract where __add__ __radd__ __sub__ __rsub__ "
            "__mul__ __rmul__ __truediv__ __rtruediv__ __div__ __rdiv__ __pow__ __rpow__ "
            "__gt__ __ge__ __lt__ __le__ __eq__ __ne__ __floordiv__ __mod__"
        )
    },
    _KINDS.RESHAPE: {"x, shape*": "reshape"},
    _KINDS.TRANSPOSE: {"x, perm": "transpose"},
    _KINDS.CONCAT: {"x, axis": "concat"},
    _KINDS.STACK: {"x, axis": "stack"},
    _KINDS.SPLIT: {"x, sections*, axis": "split", "x, num, axis": "split_with_num"},
    _KINDS.UNBIND: {"x, axis": "unbind", "x, axis, _": "unstack"},
    _KINDS.SQUEEZE: {"x, axis": "squeeze"},
    _KINDS.UNSQUEEZE: {"x, axis": "unsqueeze"},
    _KINDS.FLATTEN: {"x, start_axis, stop_axis": "flatten"},
    _KINDS.EXPAND: {"x, shape*": "expand"},
    _KINDS.EXPAND_AS: {"x, y": "expand_as"},
    _KINDS.TILE: {"x, repeat_times*": "tile"},
    _KINDS.PAD: {"x, paddings*, _": "pad", "x, paddings*, _, _, data_format": "pad3d"},
    _KINDS.MATMUL: {
        "x, y, transpose_x, transpose_y": "matmul bmm",
        "x, y": "__matmul__",
    },
    _KINDS.LINEAR: {"x, weight, bias": "linear"},
    _KINDS.SLICE: {
        "x, axes, starts*, ends*, _, decrease_axis": "slice",
        "x, axes, starts*, ends*, strides": "strided_slice",
    },
    _KINDS.SUBSCRIPT: {"x, index*": "_getitem_dygraph"},
    _KINDS.REDUCTION: {
        "x, axis, _, keepdim": "sum",
        "x, axis, keepdim": "all any max mean min",
        "x, axis, keepdim, flatten, _": "argmax argmin",
        "x": "mean_all squared_l2_norm",
        "x, axis, keepdim, reduce_all": "frobenius_norm logsumexp prod",
        "x, _, axis, _, keepdim, reduce_all": "p_norm",
    },
    _KINDS.TOP_K: {"x, k*, axis, _, _": "topk"},
    _KINDS.GATHER: {"x, index, axis": "gather index_select"},
    _KINDS.GATHER_ND: {"x, index": "gather_nd"},
    _KINDS.EMBEDDING: {"x, weight, _, _": "embedding"},
    _KINDS.ONE_HOT: {"x, num_classes": "one_hot"},
    _KINDS.LIKE_INDEX: {"x, index": "index_sample", "x, index, _": "take_along_axis"},
    _KINDS.CONVOLUTION: {
        "x, filter, strides, paddings, padding_algorithm, dilations, groups, data_format": (
            "conv2d depthwise_conv2d"
        ),
        "x, filter, strides, paddings, padding_algorithm, groups, dilations, data_format": "conv3d",
    },
    _KINDS.POOL: {
        "x, kernel_size, strides, paddings, ceil_mode, _, data_format, _, global_pooling, "
        "adaptive, padding_algorithm": "pool2d pool3d",
        "x, kernel_size, strides, paddings, global_pooling, adaptive, ceil_mode": (
            "max_pool2d_with_index"
        ),
    },
    _KINDS.INTERPOLATION: {
        "x, out_size, size_tensor, scale_tensor, data_format, out_d*, out_h*, out_w*, scale, _, _, "
        "_": _INTERPOLATIONS
    },
    _KINDS.PIXEL_SHUFFLE: {"x, upscale_factor, data_format": "pixel_shuffle"},
    _KINDS.PIXEL_UNSHUFFLE: {"x, downscale_factor, data_format": "pixel_unshuffle"},
    _KINDS.GRID_SAMPLE: {"x, grid, _, _, _": "grid_sample"},
    _KINDS.RECURRENT: {
        "x, pre_state, _, _, _, _, is_bidirec, _, hidden_size, _, _, _, _": "rnn",
    },
    _KINDS.DOT: {"x, y": "dot"},
    _KINDS.MATRIX_VECTOR: {"x, y": "mv"},
    _KINDS.SWIGLU: {"x, y": "swiglu"},
    _KINDS.DIVERGENCE: {"x, label, reduction, _": "kldiv_loss"},
    _KINDS.LIKELIHOOD: {"x, label, _, _, reduction": "nll_loss"},
    _KINDS.EINSUM: {"x, equation": "einsum"},
    _KINDS.TRANSPOSED_CONVOLUTION: {
        "x, filter, strides, paddings, output_padding, output_size, padding_algorithm, groups, "
        "dilations, data_format": "conv2d_transpose"
    },
    _KINDS.UNFOLD: {"x, kernel_sizes, strides, paddings, dilations": "unfold"},
    _KINDS.MESHGRID: {"x": "meshgrid"},
    _KINDS.REPEAT: {"x, repeats, axis, _": "repeat_interleave"},
    _KINDS.CROSS_ENTROPY: {"x, label, _, _, _, _, axis": "cross_entropy_with_softmax"},
    _KINDS.CLIP: {"x, min~, max~": "clip"},
    _KINDS.ASSIGN: {"x, index*, value": "_setitem_dygraph"},
    _KINDS.FILL: {"shape*, _, _, _, _": "uniform"},
    # The names and values of Paddle's declarations.
    _KINDS.INFERRED: {
        "x, y": "kron",
        "x, y, p=2.0": "dist",
        "x, y, axis=9": "cross",
        "input, x, y, beta=1.0, alpha=1.0": "addmm baddbmm",
        "x, offset=0, padding_value=0.0": "diag",
        "input, offset=0, dim1=-2, dim2=-1": "diag_embed",
        "x, offset=0, axis1=0, axis2=1": "diagonal trace",
        "x, groups, axis=1": "maxout",
        "x, index, add_value, axis=0": "index_add",
        "x, indices, value, accumulate=False": "index_put",
        "arr, indices, values, axis, reduce='assign', include_self=True": "put_along_axis",
        "x, index, updates, overwrite=True": "scatter",
        "x, index, updates": "scatter_nd_add",
    },
}


def _shape_rules() -> dict[str, _core.ShapeRule]:
    rules: dict[str, _core.ShapeRule] = {}
    for kind, variants in _SHAPES.items():
        for parameters, names in variants.items():
            declared = [each.partition("=") for each in parameters.split(", ")]
            given = [name for name, _, _ in declared]
            plain = [each.rstrip("*~") for each in given]
            defaults = [(name, literal_eval(value)) for name, _, value in declared if value]
            sizes, numbers = (
                [each[:-1] for each in given if each.endswith(mark)] for mark in ("*", "~")
            )
            rule = _core.ShapeRule(kind, plain, sizes, numbers, defaults)
            rules |= dict.fromkeys(names.split(), rule)
    return rules


_SHAPE_RULES = _shape_rules()


# Operators that join a list of tensors, which may grow from call to call.
_LIST_RULES = {
    "add_n": _core.ListRule.SUMMED,
    "concat": _core.ListRule.CONCATENATED,
    "stack": _core.ListRule.STACKED,
}


def _rules(names: str, **options: Any) -> dict[str, _core.DeferralRule]:
    """Creates the same deferral rule for each of the names, which are separated by spaces."""
    return {
        name: _rule(
            ranges=_RANGE_RULES.get(name),
            shape=_SHAPE_RULES.get(name),
            joined=_LIST_RULES.get(name, _core.ListRule.NONE),
            **options,
        )
        for name in names.split()
    }


# Operators whose errors depend on shapes and dtypes only, and whose arguments may all be tensors.
_POINTWISE = (
    "abs acos acosh add add_n asin asinh assign atan atan2 atanh bitwise_and bitwise_not "
    "bitwise_or bitwise_xor cast ceil celu cos cosh elementwise_pow elu equal erf exp "
    "expand_as expm1 floor fmax fmin full_like gelu greater_equal greater_than grid_sample "
    "hardshrink hardsigmoid hardswish hardtanh heaviside huber_loss isfinite isinf isnan "
    "kldiv_loss leaky_relu lerp less_equal less_than log log10 log1p log2 log_softmax "
    "logical_and logical_not logical_or logical_xor logit logsigmoid masked_fill maximum "
    "minimum mish multiply not_equal prelu reciprocal relu relu6 round rsqrt selu sigmoid "
    "sigmoid_cross_entropy_with_logits sign silu sin sinh softmax softplus softshrink "
    "softsign sqrt square stanh subtract swiglu swish tan tanh tanh_shrink thresholded_relu "
    "trunc where dist label_smooth log_loss"
)
_MATMULS_AND_CONVOLUTIONS = (
    "linear addmm baddbmm bmm conv2d conv3d conv2d_transpose depthwise_conv2d cross dot einsum "
    "kron matmul mv"
)
_NORMALIZATION = "group_norm instance_norm layer_norm"
# Operators whose sizes, axes and scalars may be tensors, too. The shape of the result would depend
# on their values, so a call is deferred only if no argument but the first one is a tensor.
_SHAPE_DEPENDENT = (
    "all any argmax argmin argsort full_like clip concat cumsum diag diag_embed diagonal flatten "
    "flip frobenius_norm logsumexp max max_pool2d_with_index maxout mean mean_all meshgrid min pad "
    "pixel_shuffle pixel_unshuffle channel_shuffle pool2d pool3d pow p_norm "
    "repeat_interleave roll slice split split_with_num squared_l2_norm squeeze "
    "stack strided_slice sum topk transpose tril triu unbind unfold unsqueeze unstack "
    "cumprod prod trace fill increment"
)
# Operators that index a tensor by indices in another one: the number of leading arguments that may
# be tensors, and the rule by which the indices are checked against the indexed tensor's shape.
_ALONG, _FROM_END = _core.ValueRuleKind.ALONG_AXIS, True
_LOOKUPS: dict[str, tuple[int, _core.ValueRule]] = {
    "cross_entropy_with_softmax": (
        2,
        _core.ValueRule(_ALONG, 1, 0, axis_argument=6, ignored_argument=5),
    ),
    "gather": (2, _core.ValueRule(_ALONG, 1, 0, 2, 0, _FROM_END)),
    "gather_nd": (2, _core.ValueRule(_core.ValueRuleKind.COORDINATES, 1, 0, -1, 0, _FROM_END)),
    "index_add": (3, _core.ValueRule(_ALONG, 1, 0, 3, 0, _FROM_END)),
    "index_put": (3, _core.ValueRule(_core.ValueRuleKind.INDEX_PER_AXIS, 1, 0, -1, 0, _FROM_END)),
    "index_sample": (2, _core.ValueRule(_ALONG, 1, 0, axis=1)),
    "index_select": (2, _core.ValueRule(_ALONG, 1, 0, 2, 0, _FROM_END)),
    "nll_loss": (3, _core.ValueRule(_ALONG, 1, 0, axis=1, ignored_argument=3)),
    "one_hot": (1, _core.ValueRule(_core.ValueRuleKind.CLASS_IDS, 0, 1)),
    "put_along_axis": (3, _core.ValueRule(_ALONG, 1, 0, 3, 0, _FROM_END)),
    "scatter": (3, _core.ValueRule(_ALONG, 1, 0, axis=0)),
    "scatter_nd_add": (3, _core.ValueRule(_core.ValueRuleKind.COORDINATES, 1, 0)),
    "take_along_axis": (2, _core.ValueRule(_ALONG, 1, 0, 2, 0, _FROM_END)),
}
_DIVISOR = _core.ValueRule(_core.ValueRuleKind.NONZERO_DIVISOR, 1)
# Activations that `paddle.nn.BatchNorm(act=...)` calls, and their names in programs.
_LEGACY_ACTIVATIONS = {
    "hard_swish": "hardswish",
    **{name: name for name in ("relu", "relu6", "sigmoid", "swish", "tanh")},
}
OPERATORS: dict[str, _core.DeferralRule] = {
    **_rules(" ".join(f"legacy.{name}" for name in _LEGACY_ACTIVATIONS), max_tensors=1),
    **_rules(_POINTWISE + " " + _MATMULS_AND_CONVOLUTIONS + " " + _NORMALIZATION),
    **_rules(_SHAPE_DEPENDENT + " " + _INTERPOLATIONS, max_tensors=1),
    **_rules("expand pad3d reshape tile", max_tensors=1, int_lists=(1,)),
    **_rules("scale", max_tensors=2),  # the factor may be a tensor: no shape depends on its value
    **_rules("floor_divide remainder", values=_DIVISOR),
    **{
        name: _rule(
            most, values=values, ranges=_RANGE_RULES.get(name), shape=_SHAPE_RULES.get(name)
        )
        for name, (most, values) in _LOOKUPS.items()
    },
    **_rules("batch_norm", has_reserve=True),
    **_rules("divide", requires_floats=True),
    **_rules("dropout", is_stochastic=True),
    # An embedding with ``sparse=True`` is not deferred while gradients are on: its gradient, of
    # selected rows, is no dense tensor.
    **_rules(
        "embedding",
        required_with_gradient=((3, False),),
        values=_core.ValueRule(_ALONG, 0, 1),
    ),
    **_rules("rnn", required=((3, None), (5, 0.0)), unread=4),
    **_rules("uniform", max_tensors=0, is_stochastic=True),
}

# Operators that may write their result to their first argument: the names of those end in an
# underscore. No comparisons and the like, whose results have another dtype or size.
_WRITING = (
    "abs acos acosh add asin asinh atan atanh bitwise_and bitwise_not bitwise_or "
    "bitwise_xor ceil clip cos cosh cumprod cumsum divide elu erf exp expm1 fill floor "
    "floor_divide hardtanh increment index_add index_put leaky_relu lerp log log10 log1p "
    "log2 logical_and logical_not logical_or logical_xor logit masked_fill multiply pow "
    "put_along_axis reciprocal relu relu6 remainder round rsqrt scale scatter sigmoid sin "
    "sinh softmax sqrt square subtract tan tanh thresholded_relu tril triu trunc"
)
IN_PLACE = {f"{name}_": name for name in _WRITING.split() if hasattr(_C_ops, f"{name}_")}
OPERATORS |= {
    name: OPERATORS[base].mutating(_core.Mutation.VALUES) for name, base in IN_PLACE.items()
}
# Written at once where nothing is deferred that reads the first argument: never deferred.
OPERATORS |= _rules("assign_value_", max_tensors=0, mutation=_core.Mutation.VALUES)

# Operators that do not sample and may not be deferred: computed at once, with a graph break only
# if an argument is lazy. Creation operators are among them, since lookups need index values.
_EAGER_OPERATORS = (
    "arange bincount eye full histogram linspace logspace masked_select nonzero searchsorted "
    "sequence_mask tril_indices triu_indices unique unique_consecutive"
)
EAGER_OPERATORS = frozenset(_EAGER_OPERATORS.split())

# Operators whose results depend on shapes only, which lazy tensors have, are computed at once, too.
# Values computed from these results are equal for equal shapes, so that reading them is no graph
# break.
SHAPE_QUERIES = frozenset({"numel", "shape", "shape64"})
# Calls that read the data of a tensor, which is no graph break if the tensor is materialized. The
# NumPy array of the first set exposes the memory to writes; results of the second set do not.
DATA_ACCESSES = frozenset({"numpy"})
READ_ONLY_DATA_ACCESSES = frozenset(
    {"_getitem_from_offset", "_is_dense_tensor_hold_allocation", "_is_initialized"}
)

# Calls that register a hook on the gradient of their tensor, or remove one.
GRADIENT_HOOKS = frozenset({"_register_grad_hook", "_remove_grad_hook", "retain_grads"})

# Calls that only call a function in Python while gradients are off.
TRANSPARENT = frozenset({"PyLayer.apply"})

# Methods of tensors that compute operators, and so can be deferred. To build the program of a
# graph, the method with this name is called on a value of the program in place of the tensor.
_ARITHMETIC = (
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__ "
    "__rdiv__ __matmul__ __pow__ __rpow__ __gt__ __ge__ __lt__ __le__ __eq__ __ne__"
)
METHODS: dict[str, _core.DeferralRule] = {
    **_rules(_ARITHMETIC, is_arithmetic=True),
    **_rules("__floordiv__ __mod__", values=_DIVISOR, is_arithmetic=True),
    **_rules("_tensor_use_gpudnn clone detach"),
    **_rules("_copy_to", max_tensors=1),
    **_rules("contiguous", mutation=_core.Mutation.LAYOUT),
    **_rules(
        "_getitem_dygraph",
        max_tensors=2,
        values=_core.ValueRule(_core.ValueRuleKind.SUBSCRIPT, 1, 0, -1, 0, _FROM_END),
    ),
    **_rules(
        "_setitem_dygraph",
        values=_core.ValueRule(_core.ValueRuleKind.SLICE_ASSIGNMENT, 1, 0, -1, 0, _FROM_END),
        mutation=_core.Mutation.VALUES,
    ),
}

# Methods of tensors that read metadata only.
_TYPE_PREDICATES = (
    "element_size is_dense is_dist is_same_shape is_selected_rows is_sparse is_sparse_coo "
    "is_sparse_csr"
)
METADATA_METHODS = frozenset(_TYPE_PREDICATES.split())
# Attributes of a deferred tensor that can be read, and those that can be set, without its data.
# Layers set the names of their inputs.
METADATA_ATTRIBUTES = frozenset(
    {"dtype", "name", "persistable", "place", "shape", "stop_gradient", "type", "_place_str"}
)
SETTABLE_METADATA = frozenset({"name"})

# Operators that write to an argument; below, operators that sample random numbers.
STATISTICS_WRITERS = frozenset({"batch_norm"})
STOCHASTIC = frozenset({"dropout", "uniform"})
# Values of arguments, by position, for which an operator has no effect: it then neither mutates an
# argument nor samples. Each operator of the two sets above has an entry.
EVALUATION_ARGUMENTS: dict[str, dict[int, Any]] = {
    "batch_norm": {5: True, 10: False},
    "dropout": {3: True},
    "uniform": {0: None},
}


def eager_function(name: str, is_method: bool) -> Callable[..., Any]:
    """Returns Paddle's function of dynamic mode for an operator, or else the method of tensors.

    Args:
        name: The name of the operator, or of the method.
        is_method: Whether the call that was deferred is that of a method.
    """
    if name in _IN_PLACE_VARIANTS:
        return _IN_PLACE_VARIANTS[name]
    function: Callable[..., Any] = getattr(paddle.Tensor if is_method else _C_ops, name)
    return function


def _with_stopped_gradient(x: Any) -> Any:
    # Sets `stop_gradient` by the core: setting Python's attribute would be a graph break, and read
    # the memory of a view.
    _core.set_stop_gradient(x, True)
    return x


def _copy_with_item(x: Any, index: Any, value: Any) -> Any:
    # The item is set in a copy, since deferred operators may read the former contents of x later.
    y = x.clone()
    getattr(y, _SET_ITEM)(index, value)
    return y


_SET_ITEM = "_setitem_dygraph"
_IN_PLACE_VARIANTS: dict[str, Callable[..., Any]] = {
    "stop_gradient": _with_stopped_gradient,
    _SET_ITEM: _copy_with_item,
    **{f"legacy.{name}": getattr(legacy_operators, name) for name in _LEGACY_ACTIVATIONS},
    # Deferred operators may read the former contents later.
    **{name: getattr(_C_ops, base) for name, base in IN_PLACE.items()},
}


def program_function(name: str, is_method: bool) -> Callable[..., Any]:
    """Returns the function that adds an operator to a program; its arguments are the call's."""
    name = IN_PLACE.get(name, name)
    if name in _PROGRAM_VARIANTS:
        return _PROGRAM_VARIANTS[name]
    if is_method:
        return lambda self, *args: getattr(self, name)(*args)
    function: Callable[..., Any] = getattr(_C_ops, name)
    return function


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    product = _C_ops.matmul(x, weight, False, False)
    return product if bias is None else _C_ops.add(product, bias)


# Attributes that select a library, and change no number.
_LIBRARY_ATTRIBUTES = frozenset({"use_cudnn", "use_mkldnn", "use_onednn"})


def _activation(name: str) -> Callable[..., Any]:
    function = getattr(_C_ops, name)

    def activation(x: Any, *attributes: Any) -> Any:
        if not _LIBRARY_ATTRIBUTES.issuperset(attributes[::2]):
            raise NgraphError(f"{name} has attributes: {attributes}")
        return function(x)

    return activation


def _detach(x: Any) -> Any:
    detached = _C_ops.assign(x)
    detached.stop_gradient = True
    return detached


def _slice(x: Any, axes: Any, starts: Any, ends: Any, _: Any, removed: Any) -> Any:
    # Paddle infers sizes, wrong ones, from bounds of which only some are numbers.
    is_known = all(isinstance(each, int) for each in (*starts, *ends))
    return _C_ops.slice(x, axes, starts, ends, [1 if is_known else -1] * len(axes), removed)


def _pad(x: Any, paddings: Any, value: Any) -> Any:
    # The operator takes numbers only, but `pad3d` tensors, too: for the last three of five axes.
    if not any(isinstance(each, paddle.pir.Value) for each in paddings):
        return _C_ops.pad(x, paddings, value)
    added = list(range(5 - len(x.shape)))
    paddings = [0, 0] * len(added) + list(paddings)
    if any(isinstance(each, paddle.pir.Value) or each != 0 for each in paddings[:-6]):
        raise NgraphError("pad has other axes than the last three")
    sides = [side for axis in (8, 6, 4) for side in paddings[axis : axis + 2]]
    if added:
        x = _C_ops.unsqueeze(x, added)
    padded = _C_ops.pad3d(x, sides, "constant", value, "NCDHW")
    return _C_ops.squeeze(padded, added) if added else padded


def _interpolation(name: str) -> Callable[..., Any]:
    function = getattr(_C_ops, name)

    def interpolate(x: Any, *given: Any) -> Any:
        out_size, lengths, scales, layout, *sizes = given[:7]
        if any(isinstance(each, paddle.pir.Value) for each in sizes):
            lengths = [_as_length(each) for each in sizes[2 - len(x.shape) :]]
            sizes = [-1 if isinstance(each, paddle.pir.Value) else each for each in sizes]
        return function(x, out_size, lengths, scales, layout, *sizes, *given[7:])

    return interpolate


def _as_length(size: Any) -> Any:
    if not isinstance(size, paddle.pir.Value):
        return paddle.full([1], size, "int32")
    return _C_ops.reshape(_C_ops.cast(size, paddle.int32), [1])


def _scale(x: Any, factor: Any, bias: Any = 0.0, is_bias_last: bool = True) -> Any:
    if not isinstance(bias, paddle.pir.Value):
        return _C_ops.scale(x, factor, bias, is_bias_last)
    if is_bias_last:
        return _C_ops.add(_C_ops.scale(x, factor, 0.0, True), bias)
    return _C_ops.scale(_C_ops.add(x, bias), factor, 0.0, True)


def _rnn(x: Any, states: Any, weights: Any, lengths: Any, unread: Any, *others: Any) -> Any:
    return _C_ops.rnn(x, states, weights, lengths, paddle.zeros([1], "uint8"), *others)


def _uniform(shape: Any, dtype: Any, low: Any, high: Any, *others: Any, out: Any = None) -> Any:
    return _C_ops.uniform(shape, dtype, low, high, *others)


def _as_program_index(x: Any, index: Any) -> Any:
    """Returns ``x[index]`` of a program, which has no ``...`` next to tensors, nor scalar indices.

    Ellipses become slices, and 0-d tensors become lookups of one row.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    if not any(isinstance(each, paddle.pir.Value) for each in items):
        return x[index]
    missing = [slice(None)] * (len(x.shape) - sum(each is not Ellipsis for each in items))
    at = next((at for at, each in enumerate(items) if each is Ellipsis), len(items))
    items[at : at + 1] = missing
    for axis in range(len(items) - 1, -1, -1):
        if isinstance(items[axis], paddle.pir.Value) and not items[axis].shape:
            row = _C_ops.gather(x, _C_ops.reshape(items.pop(axis), [1]), axis)
            x = _C_ops.squeeze(row, [axis])
    if len({each.dtype for each in items if isinstance(each, paddle.pir.Value)}) > 1:
        # In a program, unlike in dynamic mode, all index tensors must have one dtype.
        items = [
            _C_ops.cast(each, paddle.int64) if isinstance(each, paddle.pir.Value) else each
            for each in items
        ]
    is_all = all(
        isinstance(each, slice) and each.start is each.stop is each.step is None for each in items
    )
    return x if is_all else x[tuple(items)]


def _with_assigned_item(x: Any, index: Any, value: Any) -> Any:
    """Returns ``x`` with ``x[index] = value`` done; ``index``: integers, slices and ``...``.

    Or a mask with the shape of ``x``, if ``value`` is a number; or indices of rows.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    if isinstance(items[0], paddle.pir.Value):
        if not isinstance(value, paddle.pir.Value):
            value = paddle.full([], value, x.dtype)
        if items[0].dtype == paddle.bool:
            return _C_ops.masked_fill(x, items[0], value)
        return _C_ops.index_put(x, items, value, False)
    at = next((at for at, each in enumerate(items) if each is Ellipsis), len(items))
    rest = items[at + 1 :]
    axes = [*range(at), *range(len(x.shape) - len(rest), len(x.shape))]
    ranges = [_range(each) for each in items[:at] + rest]
    scalar_axes = [
        axis for axis, each in zip(axes, items[:at] + rest) if not isinstance(each, slice)
    ]
    where = *(list(each) for each in zip(*ranges)), axes, scalar_axes, []
    if not axes:
        where = [], [], [], [], [], []
    if not isinstance(value, paddle.pir.Value):
        # The assigned scalar is converted to a tensor: Paddle's operator for the assignment of
        # scalars would propagate gradients to the overwritten elements.
        value = paddle.full([1], value, x.dtype)
    elif value.dtype != x.dtype:
        value = _C_ops.cast(value, x.dtype)
    return _C_ops.set_value_with_tensor(x, value, *where)


# Bounds of slices that are outside of any axis.
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


def _range(item: Any) -> tuple[Any, Any, Any]:
    """Returns start, end and step of the elements that a slice or an integer selects."""
    if not isinstance(item, slice):
        return item, _INT32_MAX if isinstance(item, int) and item == -1 else item + 1, 1
    step = 1 if item.step is None else item.step
    start = item.start if item.start is not None else 0 if step > 0 else _INT32_MAX
    end = item.stop if item.stop is not None else _INT32_MAX if step > 0 else _INT32_MIN
    return start, end, step


# For operators with another name, or other arguments, in programs: a function that calls the
# program's variant.
_PROGRAM_VARIANTS: dict[str, Callable[..., Any]] = {
    "batch_norm": _C_ops.batch_norm_,
    "contiguous": _C_ops.assign,
    "detach": _detach,
    "linear": _linear,
    "pad": _pad,
    "rnn": _rnn,
    "scale": _scale,
    "slice": _slice,
    "stop_gradient": _detach,
    "uniform": _uniform,
    "_copy_to": lambda x, *_: _detach(x),
    "_getitem_dygraph": _as_program_index,
    "_setitem_dygraph": _with_assigned_item,
    "_tensor_use_gpudnn": lambda x, _: x,
    **{name: _interpolation(name) for name in _INTERPOLATIONS.split()},
    **{f"legacy.{name}": _activation(other) for name, other in _LEGACY_ACTIVATIONS.items()},
}
