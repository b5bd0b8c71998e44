"""Calls that mutate a tensor within a captured graph: its data, or its stop_gradient."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from paddle_ngraph.frontends.dynamic.lazy import deferral_rules
from paddle_ngraph.paddle_private.names import operators
from tests.dynamic import floats, gradients
from tests.frontends.dynamic.lazy.test_captured_integers import check_one_graph, played
from tests.frontends.dynamic.test_compiled_layer import both

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

TRAINS = pytest.mark.parametrize("trains", [False, True], ids=["inferred", "trained"])
CALLS = 4


def called(function: Callable[..., Any], trains: bool, count: int = CALLS) -> Any:
    """A scenario that calls a function of two tensors, with their gradients."""

    def scenario(compiled: Callable[[Any], Any]) -> Any:
        compiled_function, found = compiled(function), []
        for number in range(count):
            x, y = floats(4, 6, seed=number), floats(4, 6, seed=number + 50)
            x.stop_gradient = y.stop_gradient = not trains
            results = compiled_function(x, y)
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            found += [*results, *(each.stop_gradient for each in results)]
            if trains:
                losses = [each.square().sum() for each in results if not each.stop_gradient]
                sum(losses, paddle.zeros([])).backward()
                found += [x.grad, y.grad]
        return found

    return scenario


# -- stop_gradient -------------------------------------------------------------------------------


def stopped(x: Any) -> Any:
    x.stop_gradient = True
    return x


def stopped_and_on(x: Any) -> Any:
    x.stop_gradient = True
    y = x * 3.0
    x.stop_gradient = False
    return x * y


STOPPED: dict[str, Callable[[Any, Any], Any]] = {
    "a mask": lambda x, y: stopped((x > 0).astype("float32") * y) * (x + y),
    "a factor": lambda x, y: stopped(F.sigmoid(x * 2.0)) * y + x,
    "read before": lambda x, y: (lambda z: F.tanh(z) + stopped(z) * y)(x * 2.0),
    "twice": lambda x, y: stopped(stopped(x * 2.0) + y) * x,
    "a view": lambda x, y: (lambda z: stopped(z[1:]) * y[1:] + z[1:])(x * 2.0),
    "beneath a view": lambda x, y: (lambda z: (lambda v: stopped(z) * y + v)(z.reshape([4, 6])))(
        x * 2.0
    ),
    "what is detached": lambda x, y: stopped((x * 2.0).detach() * y) + y,
}
RETURNED: dict[str, Callable[[Any, Any], Any]] = {
    "alone": lambda x, y: (x + y, stopped(x * y)),
    "read before": lambda x, y: (lambda z: (F.tanh(z) + y, stopped(z)))(x * 2.0),
    "read since": lambda x, y: (lambda z: (stopped(z), z * y))(x * 2.0),
    "read before and since": lambda x, y: (lambda z: (z * y, stopped(z), z + y))(x * 2.0),
    "read by what reads others": lambda x, y: (lambda z, w: (w, F.tanh(z) * w, stopped(z), z * w))(
        x * 2.0, F.relu(y) * x
    ),
    "of no use": lambda x, y: (stopped(x * 2.0), y * 3.0)[1:],
    "a view of what is given": lambda x, y: (stopped(x[:3]), F.tanh(x) * y),
}


@pytest.mark.slow("trains through many compiles")
@TRAINS
@pytest.mark.parametrize("function", STOPPED.values(), ids=STOPPED)
def test_stop_gradient_set_inside_stops_gradients(function, trains):
    check_one_graph(played(called(function, trains), runs=2))


@TRAINS
@pytest.mark.parametrize("function", RETURNED.values(), ids=RETURNED)
def test_results_with_stop_gradient_break_no_graph(function, trains):
    assert played(called(function, trains), runs=2).breaks == []


def test_a_gradient_that_is_enabled_again_is_unchanged():
    both(called(lambda x, y: stopped_and_on(x * 2.0) + y, trains=True))
    both(called(lambda x, y: stopped_and_on(stopped(x * 2.0)) + y, trains=True))


def test_callers_may_clear_stop_gradient_of_results():
    def scenario(compiled):
        function, found = compiled(lambda x: (lambda y: (stopped(y), F.relu(y) + x))(x * 2.0)), []
        for number in range(CALLS):
            x = floats(4, 6, seed=number)
            x.stop_gradient = False
            y, z = function(x)
            y.stop_gradient = False
            (y.square().sum() + z.sum()).backward()
            found += [y, z, x.grad]
        return found

    both(scenario)


def test_stop_gradient_of_inputs_is_set():
    """stop_gradient of an input is visible to its other owners: a graph break."""

    def scenario(compiled):
        layer = nn.Linear(6, 6)
        compiled_function, found = compiled(lambda x, y: stopped(x) * y + layer(x) * x), []
        for number in range(CALLS):
            x, y = floats(4, 6, seed=number), floats(4, 6, seed=number + 9)
            x.stop_gradient = y.stop_gradient = False
            compiled_function(x, y).sum().backward()
            found += [x.grad, y.grad, x.stop_gradient, y.stop_gradient, *gradients(layer)]
            layer.clear_gradients()
        return found

    both(scenario)


# -- mutated tensors -----------------------------------------------------------------------------


def with_item(x: Any, index: Any, value: Any) -> Any:
    x[index] = value
    return x


def zeros_with(index: Any, value: Any) -> Any:
    return with_item(paddle.zeros([4, 6]), index, value)


WRITTEN: dict[str, Callable[[Any, Any], Any]] = {
    "a number": lambda x, y: with_item(x * 2.0, 1, 5.0) + y,
    "a whole number": lambda x, y: with_item(x * 2.0, (1, -2), 5) + y,
    "a truth": lambda x, y: with_item(x * 2.0, (slice(None), 0), True) + y,
    "infinity": lambda x, y: F.softmax(with_item(x * 2.0, (..., -1), -float("inf"))) + y,
    "all": lambda x, y: with_item(x * 2.0, slice(None), 1.5) + y,
    "dots": lambda x, y: with_item(x * 2.0, ..., y * 2.0) + y,
    "nothing": lambda x, y: with_item(x * 2.0, slice(2, 2), 1.5) + y,
    "from the end": lambda x, y: with_item(x * 2.0, slice(-3, -1), 0.1) + y,
    "backwards": lambda x, y: with_item(x * 2.0, slice(None, None, -2), y[:2] * 3.0) + y,
    "a row": lambda x, y: with_item(x * 2.0, 2, y[0] * 3.0),
    "a column": lambda x, y: with_item(x * 2.0, (..., 3), y[:, 0] * 3.0),
    "a block": lambda x, y: with_item(x * 2.0, (slice(1, 3), slice(0, None, 2)), y[:2, :3] * 3.0),
    "broadcast": lambda x, y: with_item(x * 2.0, (slice(1, 3),), y[:1] * 3.0),
    "a tensor of the user": lambda x, y: with_item(x * 2.0, slice(1, 3), y[1:3]),
    "another dtype": lambda x, y: with_item(x * 2.0, 0, (y[0] > 0)) + y,
    "again and again": lambda x, y: with_item(with_item(x * 2.0, 0, y[1]), 1, 3.0) * y,
    "its own part": lambda x, y: (lambda z: with_item(z, 0, F.tanh(z[0])) + y)(x * 2.0),
    "what was read before": lambda x, y: (lambda z: F.tanh(z + y) + with_item(z, 0, 1.0))(x * 2.0),
    "beneath a name": lambda x, y: (lambda z: (with_item(z, 0, y[0]), z + y)[1])(x * 2.0),
    "a mask": lambda x, y: with_item(x * 2.0, x > 0, 7.0) * y,
    "a mask, infinity": lambda x, y: F.softmax(with_item(x * 2.0, y > 0.5, -float("inf"))) + y,
    "a mask of itself": lambda x, y: (lambda z: with_item(z, z > 0.1, 1) * y)(x * 2.0),
    "masks in turn": lambda x, y: (
        lambda z: with_item(with_item(z, z > 0.1, 1), z <= 0.1, 0.0) + x * y
    )(x * 2.0),
    "a mask, a truth": lambda x, y: with_item(x + y, paddle.logical_and(x > 0, y > 0), True) * x,
    "rows": lambda x, y: with_item(x * 2.0, paddle.to_tensor([0, -2]), 7.0) * y,
    "rows, a tensor": lambda x, y: with_item(x * 2.0, (paddle.to_tensor([3, 1]),), y[:2] * 3.0) + x,
    "rows, one for all": lambda x, y: with_item(x * 2.0, paddle.to_tensor([0, 2]), y[0] * 3.0) + x,
    "rows, twice": lambda x, y: with_item(x * 2.0, paddle.to_tensor([1, 1]), 3.0) + x,
    "rows that are found": lambda x, y: with_item(y * 2.0, x[:, :4].argmax(1), 3.0) + x,
    "a list": lambda x, y: with_item(x * 2.0, [0, -1, 2], 7.0) * y,
    "a list, a tensor": lambda x, y: with_item(x * 2.0, [2, 0], y[:2] * 3.0) * y,
    "zeros, by rows": lambda x, y: with_item(paddle.zeros([4, 6]), [0, 2], x[:2] * 3.0) + x * y,
    "zeros, by a mask": lambda x, y: with_item(paddle.zeros([4, 6]), x * 2.0 > y, 3.0) + x * y,
    "zeros": lambda x, y: zeros_with((slice(None), 0), 1.0) + x * y,
    "zeros, behind others": lambda x, y: (x * y) + zeros_with((slice(None), 0), 1.0),
    "zeros, with what waits": lambda x, y: zeros_with(slice(1, 3), x[:2] * y[:2]) * y,
    "zeros, again": lambda x, y: with_item(zeros_with(0, x[0] * 2.0), (1, 2), 3.0) + x * y,
    "zeros_like": lambda x, y: with_item(paddle.zeros_like(x), 1, y[0] * 3.0) + x * y,
}
# Writes that are visible through other tensors of the same memory: a graph break at the next read.
SHARED: dict[str, Callable[[Any, Any], Any]] = {
    "a view": lambda x, y: (lambda z: (lambda v: (with_item(v, 0, y[0]), z))(z[1:]))(x * 2.0),
    "beneath a view": lambda x, y: (lambda z: (lambda v: (with_item(z, 0, y[0]), v + 1.0))(z[:2]))(
        x * 2.0
    ),
    "a detached one": lambda x, y: (lambda z: (z.detach(), with_item(z, 0, y[0])))(x * 2.0),
    "a sibling": lambda x, y: (
        lambda parts: (with_item(parts[0], 0, 7.0), parts[1] + 1.0, parts)[:2]
    )((lambda z: (z[:2].flatten(), z.flatten()))(x * 2.0)),
    "a view of the user's": lambda x, y: with_item(x.detach()[1:], 0, 7.0) * y[1:],
    "the user's": lambda x, y: with_item(x.detach(), 0, 7.0) * y,
    "its value": lambda x, y: (lambda z: with_item(z, slice(0, 2), z[2:]) + y)(x.detach() * 2.0),
    "transposed": lambda x, y: with_item((x * 2.0).t(), 0, 7.0) * y.t(),
    "what was told to stop": lambda x, y: with_item(stopped(x * 2.0), 0, y[0] * 3.0) * x,
    "rows, values twice": lambda x, y: (
        with_item(x * 2.0, paddle.to_tensor([1, -3]), y[2:] * 3.0) + x
    ),
    "values for rows that are found": lambda x, y: (
        with_item(y * 2.0, x[:, :4].argmax(1), x * 3.0) + x
    ),
    "a mask of rows": lambda x, y: with_item(x * 2.0, x[:, 0] > 0, 7.0) * y,
    "a mask of tensors": lambda x, y: with_item(x * 2.0, x > 0, y[0, 0]) * y,
    "a mask beneath a view": lambda x, y: (
        lambda z: (lambda v: (with_item(z, x > 0, 7.0), v + 1.0))(z[:2])
    )(x * 2.0),
    "a mask of the user's": lambda x, y: with_item(x.detach(), x > 0, 7.0) * y,
    "an array": lambda x, y: with_item(x * 2.0, 0, np.arange(6, dtype="float32")) * y,
    "a new axis": lambda x, y: with_item(x * 2.0, (None, 0), 7.0) * y,
    "shared zeros": lambda x, y: (
        lambda z: (lambda v: (with_item(z, 0, x[0] * 2.0), v))(z.detach())
    )(paddle.zeros([4, 6])),
    "a view of zeros": lambda x, y: (lambda z: (lambda v: (with_item(v, 0, x[0] * 2.0), z))(z[1:]))(
        paddle.zeros([4, 6])
    ),
    "zeros that were read": lambda x, y: (
        lambda z: (lambda w: (w, with_item(z, 0, 1.0) + w))(x * y + z)
    )(paddle.zeros([4, 6])),
}


# -- operators that write their result to their first argument -------------------------------------


def integers_of(*shape: int) -> Any:
    return paddle.to_tensor(np.arange(np.prod(shape)).reshape(shape) % 5 + 1)


# Further arguments of operators of x and y [4, 6], and their dtype unless it is float32.
_ROWS = paddle.to_tensor([0, 2])
ARGUMENTS: dict[str, Callable[[Any], Sequence[Any]]] = {
    **dict.fromkeys(
        ["add_", "divide_", "multiply_", "subtract_", "lerp_", "remainder_"], lambda y: [y]
    ),
    "clip_": lambda y: [0.3, 0.6],
    "cumprod_": lambda y: [1, False, False],
    "cumsum_": lambda y: [1, False, False, False],
    "elu_": lambda y: [0.5],
    "fill_": lambda y: [0.5],
    "hardtanh_": lambda y: [0.3, 0.6],
    "increment_": lambda y: [1.5],
    "index_add_": lambda y: [_ROWS, y[:2], 0],
    "index_put_": lambda y: [[_ROWS], y[:2], False],
    "leaky_relu_": lambda y: [0.2],
    "lerp_": lambda y: [y, y * 0.5],
    "logit_": lambda y: [1e-6],
    "masked_fill_": lambda y: [y > 0.5, y[0, 0].detach()],
    "pow_": lambda y: [2.0],
    "put_along_axis_": lambda y: [integers_of(4, 6) % 6, y, 1, "assign", True],
    "round_": lambda y: [1],
    "scale_": lambda y: [2.0, 0.5, True],
    "scatter_": lambda y: [_ROWS, y[:2], True],
    "softmax_": lambda y: [-1],
    "thresholded_relu_": lambda y: [0.5, 0.0],
    "tril_": lambda y: [0],
    "triu_": lambda y: [0],
}
_WHOLE = ["bitwise_and_", "bitwise_or_", "bitwise_xor_", "floor_divide_"]
_TRUTHS = ["logical_and_", "logical_or_", "logical_xor_"]


def written_by(name: str, x: Any, y: Any) -> list[Any]:
    """Results beside an operator that writes x: what read it before and after, and x itself."""
    y = y * 1.0
    if name in (*_WHOLE, "bitwise_not_"):
        written, others = integers_of(4, 6) + (x > 0).astype("int64"), [integers_of(4, 6)]
    elif name in (*_TRUTHS, "logical_not_"):
        written, others = x > 0, [y > 0]
    else:
        written, others = F.sigmoid(x) * 0.4 + 0.3, ARGUMENTS.get(name, lambda y: [])(F.sigmoid(y))
    if name.endswith("_not_"):
        others = []
    if name == "acosh_":
        written = written + 1.0
    if name == "increment_":
        written = written[0, 0] * 1.0
    read = written * 2 if written.dtype != paddle.bool else paddle.logical_not(written)
    result = getattr(operators, name)(written, *others)
    assert result is written
    return [read, written, written.astype("float32") * y]


@TRAINS
@pytest.mark.parametrize("name", deferral_rules.IN_PLACE)
def test_operators_that_write_an_argument_are_captured_in_one_graph(name, trains):
    if trains and name in (*_WHOLE, *_TRUTHS, "increment_", "remainder_"):
        pytest.skip("without a gradient")
    check_one_graph(played(called(partial(written_by, name), trains), runs=2))


def overwritten(name: str, x: Any, y: Any) -> list[Any]:
    """Results around an operator without a gradient that writes what has one."""
    written = F.sigmoid(x) * 4.0
    if name == "increment_":
        written = written[0, 0] * 1.0
    read = written * 2.0
    others = {"increment_": [1.0], "logical_not_": []}.get(name, [F.sigmoid(y).detach() + 0.5])
    assert getattr(operators, name)(written, *others) is written
    return [read, written.astype("float32") * y]


@pytest.mark.parametrize("name", ["floor_divide_", "increment_", "logical_not_", *_TRUTHS])
def test_an_overwritten_tensor_keeps_its_gradient(name):
    both(called(partial(overwritten, name), trains=True))


WRITERS: dict[str, Callable[[Any, Any], Any]] = {
    "a view": lambda x, y: (lambda z: (lambda v: (v.add_(y[1:]), z))(z[1:]))(x * 2.0),
    "beneath a view": lambda x, y: (lambda z: (lambda v: (z.add_(y), v + 1.0))(z[:2]))(x * 2.0),
    "its own part": lambda x, y: (lambda z: z.add_(z[:1]) * y)(x * 2.0),
    "itself": lambda x, y: (lambda z: z.add_(z) * y)(x * 2.0),
    "the user's": lambda x, y: x.detach().clone().add_(y.detach()) + (x.detach()).scale_(1.0) + y,
    "zeros": lambda x, y: paddle.zeros([4, 6]).add_(x * y) * y,
    "what is larger": lambda x, y: (x * 2.0).add_(y[0]) * y,
    "doubles": lambda x, y: (x * 2.0).detach().add_(y.detach().astype("float64")) * y,
    "random ones": lambda x, y: (x * 2.0).detach().uniform_(0.0, 1.0) * y,
}


@TRAINS
@pytest.mark.parametrize("function", WRITERS.values(), ids=WRITERS)
def test_written_arguments_have_the_numbers_of_eager_mode(function, trains):
    both(called(function, trains))


def test_a_larger_result_than_its_target_raises():
    def scenario(compiled):
        def function(x, rows):
            z = x * 2.0
            z.add_(floats(rows, 6))
            return z + 1.0

        called_function, found = compiled(function), []
        for number in range(4 * CALLS):
            rows = [1, 2, 3][number % 3]
            x = floats(rows, 6, seed=number)
            found.append(called_function(x, rows))
            with pytest.raises(Exception, match=r"(?i)shape|broadcast|dimension"):
                called_function(floats(1, 6), 4)
        return found

    both(scenario)


@TRAINS
@pytest.mark.parametrize("function", WRITTEN.values(), ids=WRITTEN)
def test_writes_are_captured_in_one_graph(function, trains):
    check_one_graph(played(called(function, trains), runs=2))


@TRAINS
@pytest.mark.parametrize("function", SHARED.values(), ids=SHARED)
def test_tensors_that_share_memory_see_writes(function, trains):
    both(called(function, trains))


def test_stop_gradient_of_a_full_slice_sets_it_on_the_tensor():
    """For autograd, x[:] is x itself: its gradient stops as well."""

    def function(x: Any, y: Any) -> Any:
        return stopped(x[:]), y * 2.0, F.tanh(x), x.stop_gradient

    def scenario(compiled: Callable[[Any], Any]) -> Any:
        compiled_function, found = compiled(function), []
        for number in range(CALLS):
            x, y = floats(4, 6, seed=number), floats(4, 6, seed=number + 50)
            x.stop_gradient = y.stop_gradient = False
            *results, is_off = compiled_function(x, y)
            results[1].sum().backward()
            found += [*results, *(each.stop_gradient for each in results), is_off, y.grad]
        return found

    both(scenario)


def test_item_writes_between_graphs_run_in_paddle():
    def function(x: Any, y: Any) -> Any:
        at = paddle.argmax(x, axis=1)
        at[0] = 2
        first = paddle.gather(y, at % 4) * 2.0
        at[1] = 3
        return first, paddle.index_select(y, at.clip(0, 3)) * 2.0, at

    assert played(called(function, trains=True), runs=2).breaks == []


@TRAINS
def test_all_references_see_a_write(trains):
    """In a list, in a closure, as a result: all are one tensor."""

    def function(x: Any, y: Any) -> Any:
        z = x * 2.0
        kept = [z]
        before = F.tanh(z)
        z[0] = y[0]
        kept[0][1] = 3.0
        assert kept[0] is z
        return z, before + y, kept[0] * y

    assert played(called(function, trains), runs=2).breaks == []


@TRAINS
@pytest.mark.parametrize("whose", ["its own", "the value's"])
def test_writes_under_no_grad_are_not_recorded_by_autograd(whose, trains):
    def function(x: Any, y: Any) -> Any:
        z = x * 2.0 if whose == "its own" else x.detach() * 2.0
        value = y[0] * 3.0
        with paddle.no_grad():
            z[0] = value
        return z * z + y

    both(called(function, trains))


DTYPES: dict[str, list[Any]] = {
    "float32": [0.1, 3, True, -float("inf"), float("nan")],
    "int32": [7, -3],
    "int64": [7, -3, 2**31 + 5],
    "bool": [True, False],
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_scalars_of_each_dtype_are_written(dtype):
    def scenario(compiled):
        found = []
        for value in DTYPES[dtype]:
            function = compiled(
                lambda x, value=value: (with_item((x * 3.0).astype(dtype), 1, value), F.relu(x) * 2)
            )
            found += [list(function(floats(4, 6, seed=number))) for number in range(CALLS)]
        return found

    both(scenario)


def test_doubles_are_written_as_such():
    def scenario(compiled):
        function = compiled(lambda x: (with_item(x.astype("float64"), 1, 0.1), F.relu(x) + 1.0))
        return [list(function(floats(4, 6, seed=number))) for number in range(CALLS)]

    both(scenario, rtol=1e-12, atol=0)


def random_index(draw: random.Random, shape: list[int]) -> Any:
    """Integers and slices, also out of bounds, for some of the axes."""

    def end(size: int) -> int | None:
        return None if draw.random() < 0.3 else draw.randint(-size - 2, size + 2)

    items: list[Any] = []
    for size in shape[: draw.randint(1, len(shape))]:
        if draw.random() < 0.25:
            items.append(draw.randrange(-size, size))
        else:
            items.append(slice(end(size), end(size), draw.choice([None, 1, 2, 3, -1, -2])))
    if len(items) < len(shape) and draw.random() < 0.3:
        items.insert(draw.randint(0, len(items)), ...)
    return items[0] if len(items) == 1 and draw.random() < 0.5 else tuple(items)


@pytest.mark.parametrize("seed", range(12))
def test_writes_to_random_indices_match_eager_mode(seed):
    draw = random.Random(seed)

    def scenario(compiled):
        draw.seed(seed)
        found = []
        for _ in range(4):
            shape = [draw.randint(2, 5) for _ in range(draw.randint(1, 3))]
            index = random_index(draw, shape)
            part = list(np.zeros(shape)[index].shape)
            takes_tensor = 0 not in part and draw.random() < 0.6
            is_part = part != shape  # for full slices, one of Paddle's gradients raises
            function = compiled(
                lambda x, v, index=index, takes=takes_tensor: (
                    with_item(x * 2.0, index, v * 3.0 if takes else 4.0) * 1.5
                )
            )
            for number in range(3):
                x, v = floats(*shape, seed=number), floats(*(part or [1]), seed=number + 50)
                x.stop_gradient = v.stop_gradient = not is_part
                result = function(x, v)
                found.append(result)
                if is_part:
                    result.square().sum().backward()
                    found += [x.grad, v.grad]
        return found

    both(scenario)


def test_mismatched_shapes_raise_at_the_write():
    def scenario(compiled):
        def function(x, y):
            z, said = x * 2.0, ""
            try:
                z[0] = y * 3.0
            except ValueError as error:
                said = str(error).splitlines()[-1]
            return z + 1.0, said

        function, found = compiled(function), []
        for number, width in enumerate([6, 6, 5, 6, 5]):
            result, said = function(floats(4, 6, seed=number), floats(width))
            heard.append(said)
            found.append(result)
        return found

    heard: list[str] = []
    both(scenario)
    assert [bool(said) for said in heard[:5]] == [False, False, True, False, True]
    assert all(heard[at] == said for at, said in enumerate(heard[:5] * (len(heard) // 5)))


def test_a_cache_written_at_changing_indices_breaks_the_graph():
    """A cache is written at a constant index: another index would be another trace."""

    def scenario(compiled):
        cache = paddle.zeros([8, 6])

        def function(x, at):
            y = F.tanh(x * 2.0)
            cache[at : at + 4] = y
            return F.relu(cache + 1.0) * 2.0

        function = compiled(function)
        return [(function(floats(4, 6, seed=number), number % 4), cache + 0) for number in range(8)]

    both(scenario, runs=8)


def test_another_thread_reads_a_mutated_tensor():
    def scenario(compiled):
        def function(x, is_read):
            y = x * 2.0
            y[0] = x[1] * 3.0
            box: list[Any] = []
            if is_read:
                thread = threading.Thread(target=lambda: box.append(y + 1.0))
                thread.start()
                thread.join()
            y[1] = 4.0
            return [*box, y * 2.0]

        function = compiled(function)
        return [function(floats(4, 6, seed=number), number % 3 == 2) for number in range(6)]

    both(scenario)


def test_a_mask_of_windows():
    """A mask built as in Swin, alongside deferred operators."""

    def scenario(compiled):
        paddle.seed(3)
        scores = nn.Linear(6, 16)

        def windows(x):
            y = F.gelu(scores(x)) * 2.0
            parts = slice(0, -2), slice(-2, -1), slice(-1, None)
            mask = paddle.zeros([1, 4, 4, 1])
            for number, (rows, columns) in enumerate((a, b) for a in parts for b in parts):
                mask[:, rows, columns, :] = number
            return F.softmax(y + (mask.reshape([1, 16]) - 3.0).clip(max=0.0) * -100.0, axis=-1)

        function = compiled(windows)
        with paddle.no_grad():
            return [function(floats(4, 6, seed=number)) for number in range(CALLS)]

    check_one_graph(played(scenario, runs=CALLS))


# -- running statistics --------------------------------------------------------------------------


def _of_memory(first: int, second: int) -> Callable[[Any], tuple[Any, Any]]:
    """Statistics that are parts of one memory, from these elements on."""

    def statistics(_: Any) -> tuple[Any, Any]:
        memory = paddle.ones([16])
        return memory[first : first + 6], memory[second : second + 6]

    return statistics


STATISTICS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "new": lambda _: (paddle.zeros([6]), paddle.ones([6])),
    "computed": lambda x: (F.tanh(x).mean(0).detach(), x.exp().mean(0).detach()),
    "one computed": lambda x: (paddle.zeros([6]), x.exp().mean(0).detach()),
    "one variable": lambda _: (paddle.ones([6]),) * 2,
    "one computed variable": lambda x: (x.exp().mean(0).detach(),) * 2,
    "a row": lambda x: ((x * 2.0).detach()[0], paddle.ones([6])),
    "parts": _of_memory(0, 6),
    "equal parts": _of_memory(0, 0),
    "overlapping parts": _of_memory(0, 3),
}


@TRAINS
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_all_kinds_are_written(name: str, trains: bool) -> None:
    """Also in an open trace, whose statistics are kept for the case that its graph fails."""

    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        def normalized(x: Any) -> tuple[Any, ...]:
            mean, variance = STATISTICS[name](x)
            return F.batch_norm(F.tanh(x) * 2.0, mean, variance, training=True), mean, variance

        function, found = compiled(normalized), []
        other = compiled(lambda x: F.tanh(x) * 3.0)  # runs in the engine, whatever the first does
        for rows in (4, 4, 5, 7, 9, 8):
            x = floats(rows, 6, seed=rows)
            x.stop_gradient = not trains
            results = function(x)
            if trains:
                results[0].pow(3).sum().backward()
            found += [*results, x.grad, other(x)]
        return found

    both(scenario, runs=3)
