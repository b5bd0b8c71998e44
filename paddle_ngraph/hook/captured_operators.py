"""Which calls of Paddle's core a capture may let wait, and which leave what waits alone.

An operator may wait if what it raises depends only on the shapes and dtypes of its tensors and on
its other arguments. One that divides integers or checks a range may not: its error would come later
than natively. Random numbers are drawn in the order of the calls: who draws otherwise, or sets a
seed, is a graph break, as is everything that is not listed here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import paddle

from paddle_ngraph import _core
from paddle_ngraph.paddle_seam.names import operators as _C_ops

_ANY = 99


def _rule(
    most_tensors: int = _ANY,
    needs_floats: bool = False,
    needed: tuple[tuple[int, Any], ...] = (),
    is_lookup: bool = False,
    unread: int = -1,
    has_reserve: bool = False,
    draws: bool = False,
) -> _core.WaitRule:
    """When a call may wait, see ``WaitRule`` in core/paddle/announced_calls.h."""
    return _core.WaitRule(
        most_tensors, needs_floats, list(needed), is_lookup, unread, has_reserve, draws
    )


# Errors depend on shapes and dtypes, whichever arguments are tensors.
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
    "trunc where"
)
_PRODUCTS = "linear addmm baddbmm bmm conv2d conv3d conv2d_transpose depthwise_conv2d dot matmul mv"
_NORMALIZATION = "group_norm instance_norm layer_norm"
# Sizes, axes and numbers may be tensors, too, of which a result's shape would depend.
_SHAPED = (
    "all any argmax argmin argsort clip concat cumsum diag_embed diagonal expand flatten "
    "flip frobenius_norm logsumexp max max_pool2d_with_index maxout mean mean_all meshgrid min pad "
    "pad3d pixel_shuffle pixel_unshuffle channel_shuffle pool2d pool3d pow p_norm "
    "repeat_interleave reshape roll scale slice split split_with_num squared_l2_norm squeeze "
    "stack strided_slice sum tile topk transpose tril triu unbind unfold unsqueeze unstack "
    "bilinear_interp nearest_interp bicubic_interp linear_interp trilinear_interp"
)
OPERATORS: dict[str, _core.WaitRule] = {
    **dict.fromkeys((_POINTWISE + " " + _PRODUCTS + " " + _NORMALIZATION).split(), _rule()),
    **dict.fromkeys(_SHAPED.split(), _rule(most_tensors=1)),
    "batch_norm": _rule(has_reserve=True),
    "divide": _rule(needs_floats=True),
    "dropout": _rule(draws=True),
    "embedding": _rule(needed=((3, False),), is_lookup=True),
    "rnn": _rule(needed=((3, None), (5, 0.0)), unread=4),
}

# What makes tensors of numbers is computed at once, since lookups have to know their numbers.
ASIDE = frozenset({"arange", "full"})

# What depends on shapes only, which are known of what waits, is computed at once, too. What is
# computed of it is the same for the same shapes, so that these need nothing that waits then.
SIZES = frozenset({"numel", "shape", "shape64"})
_VALUES = "_getitem_from_offset _is_initialized numpy"
OF_NUMBERS = frozenset(("__floordiv__ __mod__ floor_divide remainder " + _VALUES).split())

# Methods of tensors that are operators. What Paddle's programs call the same is called there.
_ARITHMETIC = (
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__ "
    "__rdiv__ __matmul__ __pow__ __rpow__ __gt__ __ge__ __lt__ __le__ __eq__ __ne__"
)
METHODS: dict[str, _core.WaitRule] = {
    **dict.fromkeys(_ARITHMETIC.split(), _rule()),
    "_getitem_dygraph": _rule(most_tensors=1),
    "_tensor_use_gpudnn": _rule(),
    "clone": _rule(),
    "detach": _rule(),
}

# Methods that need no memory.
_KINDS_OF_TENSORS = (
    "element_size is_dense is_dist is_same_shape is_selected_rows is_sparse is_sparse_coo "
    "is_sparse_csr"
)
PASSIVE_METHODS = frozenset(_KINDS_OF_TENSORS.split())
# Attributes that do not when they are read.
PASSIVE_ATTRIBUTES = frozenset({"dtype", "persistable", "place", "shape", "stop_gradient", "type"})

# Operators that write over what they are given, and those that draw random numbers.
WRITERS = frozenset({"batch_norm"})
DRAWING = frozenset({"dropout"})
# Arguments, by their place, with which they do neither.
IN_EVALUATION = {"batch_norm": {5: True, 10: False}, "dropout": {3: True}}


def in_programs(name: str, is_method: bool) -> Callable[..., Any]:
    """What adds an operator to a program: a function of the same arguments."""
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    if is_method:
        return lambda self, *args: getattr(self, name)(*args)
    function: Callable[..., Any] = getattr(_C_ops, name)
    return function


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    product = _C_ops.matmul(x, weight, False, False)
    return product if bias is None else _C_ops.add(product, bias)


def _detach(x: Any) -> Any:
    detached = _C_ops.assign(x)
    detached.stop_gradient = True
    return detached


def _rnn(x: Any, states: Any, weights: Any, lengths: Any, unread: Any, *others: Any) -> Any:
    return _C_ops.rnn(x, states, weights, lengths, paddle.zeros([1], "uint8"), *others)


# What is named otherwise in programs, or takes other arguments.
_OTHERWISE: dict[str, Callable[..., Any]] = {
    "batch_norm": _C_ops.batch_norm_,
    "detach": _detach,
    "linear": _linear,
    "rnn": _rnn,
    "_getitem_dygraph": operator.getitem,
    "_tensor_use_gpudnn": lambda x, _: x,
}
