"""Optimizers of dynamic mode, whose updates run on all threads."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.paddle_private.names import dynamic_tracer

pytestmark = pytest.mark.usefixtures("in_dynamic_mode")

O = paddle.optimizer  # noqa: E741
Parameters = Sequence[Any]
OPTIMIZERS: dict[str, Callable[[Parameters], Any]] = {
    "sgd": lambda p: O.SGD(0.1, parameters=p),
    "sgd, decay": lambda p: O.SGD(0.1, parameters=p, weight_decay=0.01),
    "momentum": lambda p: O.Momentum(0.1, 0.9, parameters=p),
    "nesterov": lambda p: O.Momentum(0.1, 0.9, parameters=p, use_nesterov=True, weight_decay=0.1),
    "adam": lambda p: O.Adam(0.01, parameters=p),
    "adam, L1": lambda p: O.Adam(0.01, parameters=p, weight_decay=paddle.regularizer.L1Decay(0.1)),
    "amsgrad": lambda p: O.Adam(0.01, parameters=p, amsgrad=True),
    "adamw": lambda p: O.AdamW(0.01, parameters=p, weight_decay=0.1),
    "some decay": lambda p: O.AdamW(
        O.lr.LinearWarmup(0.1, 3, 0.0, 0.1),
        parameters=p,
        apply_decay_param_fun=lambda name: name == p[0].name,
        beta1=0.8,
        epsilon=1e-3,
    ),
    "clipped": lambda p: O.AdamW(0.01, parameters=p, grad_clip=nn.ClipGradByGlobalNorm(0.5)),
    "groups": lambda p: O.AdamW(
        0.01, parameters=[{"params": p[:1], "learning_rate": 0.1}, {"params": p[1:]}]
    ),
}
SHAPES = [(1,), (), (7, 73), (3, 171), (200, 333), (3, 5, 7)]  # for one thread, and for several
STEPS = 4


def parameter(data: np.ndarray) -> Any:
    return paddle.create_parameter(
        list(data.shape), str(data.dtype), default_initializer=nn.initializer.Assign(data)
    )


def random_tensor(seed: int, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).normal(size=shape)).astype(dtype)


def trained(make: Callable[[Parameters], Any], parameters: Parameters, on: bool) -> list[Any]:
    """Parameters and states after some steps, natively or not."""
    optimizer = make(parameters)
    with paddle_ngraph.use_ngraph(on):
        for step in range(STEPS):
            for number, each in enumerate(parameters):
                each.grad = paddle.to_tensor(random_tensor(step * 100 + number, each.shape))
            optimizer.step()
            if not isinstance(optimizer._learning_rate, (float, int)):
                optimizer._learning_rate.step()
    kept = [each for each in optimizer.state_dict().values() if isinstance(each, paddle.Tensor)]
    return [each.numpy() for each in (*parameters, *kept)]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("threads", [0, 1, 8])
def test_steps_are_those_of_paddle(make, threads):
    paddle.set_flags({"FLAGS_ngraph_num_threads": threads})
    try:
        native, engine = (
            trained(make, [parameter(random_tensor(9, shape)) for shape in SHAPES], on)
            for on in (False, True)
        )
    finally:
        paddle.set_flags({"FLAGS_ngraph_num_threads": 0})
    # A gradient of no dimensions that is clipped has one.
    assert paddle_ngraph.stats()["optimizer_steps"] >= STEPS * (len(SHAPES) - 1)
    assert len(native) == len(engine) >= len(SHAPES)
    for expected, found in zip(native, engine):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


NUMBERS = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-30, 1e-40, 1.0]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_on_extreme_numbers_are_those_of_paddle(make):
    data = np.array(NUMBERS * len(NUMBERS), "float32")
    gradient = np.repeat(np.array(NUMBERS, "float32"), len(NUMBERS))
    found = []
    for on in (False, True):
        weights = [parameter(data), parameter(data[:1])]
        optimizer = make(weights)
        with paddle_ngraph.use_ngraph(on), np.errstate(all="ignore"):
            for _ in range(2):
                weights[0].grad, weights[1].grad = map(paddle.to_tensor, (gradient, gradient[:1]))
                optimizer.step()
        found.append(weights[0].numpy())
    assert paddle_ngraph.stats()["optimizer_steps"] == 4
    np.testing.assert_allclose(found[1], found[0], rtol=2e-6, atol=1e-37)


Case = tuple[Any, Callable[[], Any]]  # a parameter, and a function that updates it


def sgd(weight: Any, gradient: Any) -> Any:
    with paddle.no_grad():
        return paddle._C_ops.sgd_(weight, paddle.to_tensor([0.1]), gradient, None, False)


def adam_arguments(weight: Any, others: dict[int, Any]) -> list[Any]:
    rate, moments = paddle.to_tensor([0.1]), [paddle.zeros(weight.shape) for _ in range(2)]
    powers = [paddle.to_tensor([0.9]), paddle.to_tensor([0.999])]
    tensors = [weight, weight.grad, rate, *moments, None, *powers, None, None]
    arguments = [*tensors, 0.9, 0.999, 1e-8, False, 1000, False, False, False]
    return [others.get(number, each) for number, each in enumerate(arguments)]


def apart() -> Case:
    weight = parameter(random_tensor(0, (30, 20)))
    weight.grad = paddle.to_tensor(random_tensor(1, (30, 20)))
    return weight, O.Adam(0.1, parameters=[weight]).step


def double() -> Case:
    weight = parameter(random_tensor(0, (30, 20), "float64"))
    weight.grad = paddle.to_tensor(random_tensor(1, (30, 20), "float64"))
    return weight, O.Adam(0.1, parameters=[weight]).step


def of_another_layout() -> Case:
    weight, _ = apart()
    gradient = paddle.to_tensor(random_tensor(1, (20, 30))).transpose([1, 0])
    assert not gradient.is_contiguous()
    return weight, lambda: sgd(weight, gradient)


def of_its_own_memory() -> Case:
    weight, _ = apart()
    return weight, lambda: sgd(weight, weight.detach())


def of_the_memory_of_its_rate() -> Case:
    weight, _ = apart()
    power, one = paddle.to_tensor([0.9]), paddle.zeros([30, 20])
    arguments = adam_arguments(weight, {2: power, 3: one, 6: power})

    def step() -> Any:
        with paddle.no_grad():
            return paddle._C_ops.adam_(*arguments)

    return weight, step


def rows() -> Case:
    layer = nn.Embedding(30, 20, sparse=True)
    layer.weight.set_value(random_tensor(0, (30, 20)))
    layer(paddle.to_tensor([3, 7, 3])).sum().backward()
    return layer.weight, O.Adam(0.1, parameters=[layer.weight], lazy_mode=True).step


def empty() -> Case:
    weight = parameter(random_tensor(0, (0, 20)))
    weight.grad = paddle.zeros([0, 20])
    return weight, O.SGD(0.1, parameters=[weight]).step


def several_at_once() -> Case:
    weight = parameter(random_tensor(0, (30, 20)))
    weight.grad = paddle.to_tensor(random_tensor(1, (30, 20)))
    return weight, O.Momentum(0.1, parameters=[weight], use_multi_tensor=True).step


def in_two_precisions() -> Case:
    weight = parameter(random_tensor(0, (30, 20))).astype("bfloat16").detach()
    weight.stop_gradient = False
    weight.grad = paddle.to_tensor(random_tensor(1, (30, 20))).astype("bfloat16")
    return weight, O.SGD(0.1, parameters=[weight], multi_precision=True).step


NATIVE = [
    double,
    of_another_layout,
    of_its_own_memory,
    of_the_memory_of_its_rate,
    rows,
    empty,
    several_at_once,
]


@pytest.mark.parametrize("case", [*NATIVE, in_two_precisions])
def test_updates_without_a_kernel_here_fall_back(case):
    found = []
    for on in (False, True):
        weight, update = case()
        with paddle_ngraph.use_ngraph(on):
            update()
        found.append(weight.astype("float64").numpy())
    assert paddle_ngraph.stats()["optimizer_steps"] == 0
    np.testing.assert_array_equal(*found)


def test_nan_check_finds_nan():
    weight, update = apart()
    weight.grad = paddle.full([30, 20], np.nan)
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        with paddle_ngraph.use_ngraph(), pytest.raises(Exception, match=r"(?i)nan|inf"):
            update()
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})
    assert paddle_ngraph.stats()["optimizer_steps"] == 0


def test_errors_are_those_of_paddle():
    messages = []
    for on in (False, True):
        weight, _ = apart()
        rates = paddle.to_tensor([0.1, 0.2])
        with (
            paddle_ngraph.use_ngraph(on),
            paddle.no_grad(),
            pytest.raises(Exception, match="earning") as error,
        ):
            paddle._C_ops.sgd_(weight, rates, weight.grad, None, False)
        messages.append((type(error.value), str(error.value)))
    assert messages[0] == messages[1]


def arguments_of(name: str) -> list[Any]:
    """The arguments of a call, with the types of the signature."""
    weight, _ = apart()
    gradient, rate, velocity = weight.grad, paddle.to_tensor([0.1]), paddle.zeros([30, 20])
    if name == "sgd_":
        return [weight, rate, gradient, None, False]
    if name == "momentum_":
        numbers = [0.9, False, "l2_decay", 0.1, False, 1.0]
        return [weight, gradient, velocity, rate, None, *numbers]
    arguments = adam_arguments(weight, {})
    return arguments if name == "adam_" else [*arguments[:13], 1.0, 0.1, True, *arguments[13:]]


# Arguments that are not tensors: Paddle may crash on other objects in place of a tensor, and does
# if a flag asks for a tensor that is absent.
NO_TENSORS = {"sgd_": range(4, 5), "momentum_": range(5, 11)}
NO_TENSORS |= {"adam_": range(10, 18), "adamw_": range(10, 21)}
OTHER_ARGUMENTS = [None, "no", True, 3, 0.5, 2**80, 2**2000, [0.1], np.float32(0.1)]


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, numbers in NO_TENSORS.items() for number in numbers],
)
def test_arguments_of_other_types_behave_as_in_paddle(name, number):
    """Arguments that the kernel does not read are checked as well."""

    def compute(argument: Any) -> Any:
        arguments = arguments_of(name)
        assert len(arguments) == NO_TENSORS[name].stop
        weight, arguments[number] = arguments[0], argument
        try:
            with paddle.no_grad():
                getattr(paddle._C_ops, name)(*arguments)
        except Exception as error:
            return type(error), str(error)
        return weight.numpy()

    is_flag = isinstance(arguments_of(name)[number], bool)
    for argument in OTHER_ARGUMENTS:
        if is_flag and argument is True:
            continue
        native, engine = both(lambda argument=argument: compute(argument))
        if isinstance(native, tuple):
            assert native == engine
        else:
            np.testing.assert_allclose(engine, native, rtol=2e-6, atol=1e-7)


def test_profilers_list_the_operators():
    def listed() -> list[str]:
        paddle.base.core.clear_low_precision_op_list()
        _, update = apart()
        update()
        with paddle.no_grad():
            paddle.multiply(paddle.rand(LARGE), paddle.rand([1]))
        return sorted(paddle.base.core.get_low_precision_op_list())

    paddle.set_flags({"FLAGS_low_precision_op_list": 1})
    try:
        native, engine = both(listed)
    finally:
        paddle.set_flags({"FLAGS_low_precision_op_list": 0})
    assert native == engine and len(native) > 1


def test_an_interruption_stays_one():
    """Python may run a signal handler wherever the core calls a Python function."""
    weight, _ = apart()

    def interrupt(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is dynamic_tracer.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with paddle_ngraph.use_ngraph(), paddle.no_grad(), pytest.raises(KeyboardInterrupt):
        rate, gradient = paddle.to_tensor([0.1]), weight.grad
        sys.setprofile(interrupt)
        try:
            paddle._C_ops.sgd_(weight, rate, gradient, None, False)
        finally:
            sys.setprofile(None)


@pytest.fixture
def two_threads() -> Iterator[None]:
    paddle.set_flags({"FLAGS_ngraph_num_threads": 2})
    yield
    paddle.set_flags({"FLAGS_ngraph_num_threads": 0})


@pytest.mark.slow("runs several threads for a while")
@pytest.mark.usefixtures("two_threads")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    """Threads that run updates hold slots for threads, and a fork does not free them.

    Nor the locks that Paddle takes when a thread computes for the first time: all have by then.
    """
    is_over, taken = threading.Event(), [0] * 3

    def work(number: int, steps: int) -> None:
        weight, gradient = paddle.zeros([1 << 20]), paddle.ones([1 << 20])
        while steps > 0 and not is_over.is_set():
            sgd(weight, gradient)
            taken[number] += 1
            steps -= 1

    with paddle_ngraph.use_ngraph():
        threads = [threading.Thread(target=work, args=(n, sys.maxsize)) for n in range(3)]
        for each in threads:
            each.start()
        while min(taken) < 5 and all(each.is_alive() for each in threads):
            is_over.wait(0.001)
        children = []
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                before = paddle_ngraph.stats()["optimizer_steps"]
                work(0, 3)
                os._exit(paddle_ngraph.stats()["optimizer_steps"] - before)
            children.append(child)
        found = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        is_over.set()
        for each in threads:
            each.join()
    assert found == [3] * len(children)


def test_updates_return_their_arguments():
    weight, _ = apart()
    rate, velocity = paddle.to_tensor([0.1]), paddle.zeros([30, 20])
    with paddle_ngraph.use_ngraph(), paddle.no_grad():
        found = sgd(weight, weight.grad)
        assert found[0] is weight and found[1:] == (None,)
        found = paddle._C_ops.momentum_(
            weight, weight.grad, velocity, rate, None, 0.9, False, "", 0.0, False, 1.0
        )
        assert found[0] is weight and found[1] is velocity and found[2:] == (None,)
    assert paddle_ngraph.stats()["optimizer_steps"] == 2


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_layers_that_infer_have_the_new_weights(make):
    """Functions keep weights as constants, so updates have to report their writes."""
    layer = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 3))
    layer.set_state_dict(
        {name: random_tensor(0, each.shape) for name, each in layer.state_dict().items()}
    )
    compiled = paddle_ngraph.compile(lambda x: layer(x))
    optimizer, x = make(layer.parameters()), paddle.to_tensor(random_tensor(1, (4, 20)))
    with paddle_ngraph.use_ngraph():
        for step in range(3):
            with paddle.no_grad():
                for _ in range(6):
                    np.testing.assert_allclose(compiled(x), layer(x), rtol=1e-4, atol=1e-4)
            for number, each in enumerate(layer.parameters()):
                each.grad = paddle.to_tensor(random_tensor(step * 10 + number, each.shape))
            optimizer.step()
    stats = paddle_ngraph.stats()
    assert stats["optimizer_steps"] == 12 and stats["engine_runs"] > 6


def test_threads_take_steps_at_once():
    def train(on: bool) -> list[np.ndarray]:
        make, weights = (
            OPTIMIZERS["adamw"],
            [parameter(random_tensor(n, (300, 200))) for n in range(8)],
        )
        found: dict[int, Any] = {}
        with paddle_ngraph.use_ngraph(on):
            threads = [
                threading.Thread(target=lambda n=n: found.update({n: steps(make([weights[n]]))}))
                for n in range(8)
            ]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
        assert len(found) == 8
        return [each.numpy() for each in weights]

    def steps(optimizer: Any) -> bool:
        for seed in range(5):
            (weight,) = optimizer._parameter_list
            weight.grad = paddle.to_tensor(random_tensor(seed, (300, 200)))
            optimizer.step()
        return True

    native, engine = train(False), train(True)
    assert paddle_ngraph.stats()["optimizer_steps"] == 40
    for expected, found in zip(native, engine):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


LARGE = (300, 200)


def both(compute: Callable[[], Any]) -> list[Any]:
    found = []
    for on in (False, True):
        with paddle_ngraph.use_ngraph(on):
            found.append(compute())
    return found


@pytest.mark.parametrize("shape", [(200,), (182, 181), (4096 * 16,), LARGE, (3, 5, 7, 500)])
def test_norms_are_those_of_paddle(shape):
    x = paddle.to_tensor(random_tensor(0, shape))
    with paddle.no_grad():
        native, engine = both(lambda: paddle._C_ops.squared_l2_norm(x))
    np.testing.assert_allclose(engine, native, rtol=1e-5)
    assert engine.shape == native.shape and engine.stop_gradient == native.stop_gradient
    assert paddle_ngraph.stats()["clipping_loops"] == (x.size > 2**15)


@pytest.mark.parametrize("number", [0.0, -0.0, 0.3, np.inf, np.nan, 1e-42, 3e38])
@pytest.mark.parametrize("shape", [(1,), (), (1, 1)])
def test_products_with_a_number_are_those_of_paddle(number, shape):
    data = random_tensor(0, LARGE)
    data.reshape(-1)[: len(NUMBERS)] = NUMBERS
    x, y = paddle.to_tensor(data), paddle.full(shape, number)
    with paddle.no_grad():
        native, engine = both(lambda: paddle.multiply(x, y))
    np.testing.assert_array_equal(engine, native)
    np.testing.assert_array_equal(*(np.signbit(each.numpy()) for each in (engine, native)))
    assert engine.shape == native.shape and engine.stop_gradient == native.stop_gradient
    assert (engine.name == "") == (native.name == "") and engine.is_leaf == native.is_leaf
    assert paddle_ngraph.stats()["clipping_loops"] == 1


PRODUCTS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "few": lambda: (paddle.rand([30, 20]), paddle.rand([1])),
    "two numbers": lambda: (paddle.rand([30000, 2]), paddle.rand([2])),
    "more dimensions": lambda: (paddle.rand([60000]), paddle.rand([1, 1])),
    "the number first": lambda: (paddle.rand([1]), paddle.rand(LARGE)),
    "double": lambda: (paddle.rand(LARGE, "float64"), paddle.rand([1], "float64")),
    "whole": lambda: (paddle.randint(0, 9, LARGE), paddle.randint(0, 9, [1])),
    "another order": lambda: (paddle.rand(LARGE).transpose([1, 0]), paddle.rand([1])),
    "none": lambda: (paddle.rand([0, 20]), paddle.rand([1])),
}


@pytest.mark.parametrize("make", PRODUCTS.values(), ids=PRODUCTS)
def test_other_products_are_left_to_paddle(make):
    x, y = make()
    with paddle.no_grad():
        native, engine = both(lambda: paddle.multiply(x, y))
    np.testing.assert_array_equal(engine, native)
    assert engine.dtype == native.dtype
    assert paddle_ngraph.stats()["clipping_loops"] == 0


def test_differentiated_calls_fall_back():
    x = paddle.to_tensor(random_tensor(0, LARGE), stop_gradient=False)

    def gradient() -> Any:
        (found,) = paddle.grad((x * paddle.multiply(x, paddle.full([1], 3.0))).sum(), x)
        return found.numpy()

    np.testing.assert_array_equal(*both(gradient))
    assert paddle_ngraph.stats()["clipping_loops"] == 0


@pytest.mark.parametrize("number", [0.0, 0.3, np.inf, np.nan, 1e-42])
@pytest.mark.parametrize("shape", [(1,), (), (1, 1)])
def test_products_in_place_are_those_of_paddle(number, shape):
    data = random_tensor(0, LARGE)
    data.reshape(-1)[: len(NUMBERS)] = NUMBERS

    def compute() -> Any:
        x, y = paddle.to_tensor(data), paddle.full(shape, number)
        view, before = x.reshape([-1]), x.inplace_version
        with paddle.no_grad():
            found = x.multiply_(y)
            assert found is x
        return x.numpy(), view.numpy(), np.array(x.inplace_version - before)

    native, engine = both(compute)
    for expected, found in zip(native, engine):
        np.testing.assert_array_equal(found, expected)
    assert paddle_ngraph.stats()["clipping_loops"] == 1


def test_in_place_multiplication_by_itself_falls_back():
    def compute() -> Any:
        x = paddle.to_tensor(random_tensor(0, (60000,)))
        with paddle.no_grad():
            return x.multiply_(x[59000:59001]).numpy()

    native, engine = both(compute)
    np.testing.assert_array_equal(engine, native)
    assert paddle_ngraph.stats()["clipping_loops"] == 0


def test_overwritten_values_are_an_error_in_the_backward_pass():
    def compute() -> str:
        x = paddle.to_tensor(random_tensor(0, LARGE), stop_gradient=False)
        y = x * 1.0
        loss = (y * y).sum()
        with paddle.no_grad():
            y.multiply_(paddle.full([1], 0.5))
        with pytest.raises(Exception, match="inplace") as error:
            loss.backward()
        return str(error.value).split("[Hint")[0].rsplit("\n", 3)[-1]

    native, engine = both(compute)
    assert native == engine and paddle_ngraph.stats()["clipping_loops"] == 1


def test_results_can_be_written_and_kept():
    x, three = paddle.to_tensor(random_tensor(0, LARGE)), paddle.full([1], 3.0)
    with paddle.no_grad(), paddle_ngraph.use_ngraph():
        kept = [paddle.multiply(x, three) for _ in range(5)]
        for number, each in enumerate(kept):
            each.add_(paddle.full([1], float(number)))
    assert paddle_ngraph.stats()["clipping_loops"] == 5
    for number, each in enumerate(kept):
        np.testing.assert_array_equal(each, x * 3.0 + number)


@pytest.mark.parametrize("clips", [nn.ClipGradByNorm, nn.ClipGradByGlobalNorm, nn.ClipGradByValue])
def test_gradients_are_clipped_as_by_paddle(clips):
    gradients = [
        (parameter(random_tensor(n, LARGE)), paddle.to_tensor(random_tensor(n, LARGE)))
        for n in range(3)
    ]
    native, engine = both(lambda: [found.numpy() for _, found in clips(0.7)(gradients)])
    for expected, found in zip(native, engine):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_only_while_it_is_on():
    _, update = apart()
    update()
    assert paddle_ngraph.stats()["optimizer_steps"] == 0
