"""One use of a program, predictor, layer or model, in which every run of the engine is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import paddle

from paddle_ngraph import flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.frontends.dynamic import compiled_layer
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.frontends.to_static import hook as to_static_hook
from paddle_ngraph.ir.graph import BFLOAT16
from paddle_ngraph.paddle_private.names import convert_dtype
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.verification import checks
from paddle_ngraph.verification.bisection import reason_of

T = TypeVar("T")

# Calls of a function that is compiled here: the first one runs by Paddle, the second compiles.
_CALLS = 3
# Flags and the log are those of the process: a second use would restore the values of the first.
_one_at_a_time = new_lock()
# The size that drawn inputs have in dynamic dimensions, unless shapes are given.
_OPEN_SIZE = 2


def verify(target: Any, inputs: Any, fetch_list: Sequence[Any] | None = None) -> checks.Log:
    """Uses a target once, and verifies: see :func:`paddle_ngraph.verify`."""
    use = use_of(target, inputs, fetch_list)
    with _verifying() as log:
        _attempt(use, lambda error: _why_unusable(target, inputs, error))
    return log


def verify_model(
    path: str,
    shapes: Mapping[str, Sequence[int]],
    arrays: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> checks.Log:
    """Verifies a saved model, with given or random inputs.

    Args:
        path: As for ``python -m paddle_ngraph explain``, of one model.
        shapes: Shapes of inputs with dynamic dimensions, by name.
        arrays: The inputs by name; by default, random ones.
        seed: For random inputs.

    Raises:
        NgraphError: There is no such model, or Paddle itself cannot run it with these inputs.
    """
    program, scope = saved_model.SavedModel.at(saved_model.find_only(path)).load()
    feed = sample_feed(program, shapes, arrays, seed)
    fetches = paddle.static.pir_io.get_pir_feed_and_fetch(program)[1]
    executor: Any = paddle.static.Executor(paddle.CPUPlace())

    def run() -> None:
        with paddle.pir_utils.IrGuard():
            executor.run(program, feed=feed, fetch_list=fetches, scope=scope)

    flags.set("use_ngraph", False)
    attempt_native(run)
    with _verifying() as log:
        run()
    return log


def sample_feed(
    program: Any,
    shapes: Mapping[str, Sequence[int]],
    arrays: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Returns an array for each input of a PIR program.

    Args:
        program: The program.
        shapes: Shapes of inputs with dynamic dimensions, by name; without one, they have size 2.
        arrays: Inputs by name; others are random.
        seed: For random inputs.

    Raises:
        NgraphError: A name is that of no input, or there are no random numbers of an input's type.
    """
    sources = sources_of(program)
    for name in [*shapes, *(arrays or ())]:
        if name not in sources:
            raise NgraphError(f"{name} is no input of the model; these are: {', '.join(sources)}")
    random = np.random.default_rng(seed)
    return {
        name: arrays[name]
        if arrays and name in arrays
        else _random_values(random, name, value, shapes.get(name))
        for name, value in sources.items()
    }


def attempt_native(run: Callable[[], T]) -> T:
    """Returns the result of ``run``, which runs a model by Paddle alone.

    Raises:
        NgraphError: Paddle itself cannot run it with these inputs.
    """
    return _attempt(
        run,
        lambda error: (
            f"Paddle itself cannot run the model with these inputs "
            f"({reason_of(error)}): give others by --shapes or --inputs"
        ),
    )


def sources_of(program: Any) -> dict[str, Any]:
    """The inputs of a PIR program by name."""
    return {
        op.attrs()["name"]: op.result(0)
        for op in program.global_block().ops
        if op.name() in ("pd_op.data", "pd_op.feed")
    }


def _attempt(action: Callable[[], T], sentence: Callable[[Exception], str]) -> T:
    """Calls ``action``; an error that is not the package's own becomes one with this sentence."""
    with signals.recognized_signals():
        try:
            return action()
        except Exception as error:
            signals.raise_if_from_outside(error)
            if isinstance(error, NgraphError):
                raise
            raise NgraphError(sentence(error)) from error


def _why_unusable(target: Any, inputs: Any, error: Exception) -> str:
    """The sentence about an error in the use of a target."""
    if isinstance(target, paddle.pir.Program) and isinstance(inputs, (Mapping, type(None))):
        names = list(sources_of(target))
        if missing := [name for name in names if name not in (inputs or {})]:
            return (
                f"the inputs of the program are {', '.join(names)}, of which these are missing: "
                f"{', '.join(missing)}"
            )
    return f"Paddle itself cannot run it with these inputs ({type(error).__name__}: " + (
        f"{reason_of(error)})"
    )


def _random_values(
    random: np.random.Generator, name: str, value: Any, shape: Sequence[int] | None
) -> np.ndarray:
    sizes = [_OPEN_SIZE if size < 0 else size for size in (shape or value.shape)]
    dtype = convert_dtype(value.dtype)

    def sampled() -> np.ndarray:
        if dtype.startswith("float"):
            return random.normal(size=sizes).astype(dtype)
        # Integers may be indices, of which only the first ones are certain to exist. As bfloat16,
        # which Paddle feeds as uint16, they are numbers near zero.
        return random.integers(0, 2, sizes).astype("uint16" if dtype == BFLOAT16 else dtype)

    return _attempt(
        sampled,
        lambda error: (
            f"there are no random numbers for the input {name}, {dtype} {sizes} ({error}): give "
            "another shape by --shapes, or the input by --inputs"
        ),
    )


@contextmanager
def _verifying() -> Iterator[checks.Log]:
    """Verifies every run of the engine, of subgraphs of every size, and waits for functions."""
    values = {"use_ngraph": True, "ngraph_verify": 1, "ngraph_min_interval_us": 0}
    with _one_at_a_time, background_compile.compile_synchronously(), checks.collected() as log:
        before = {name: flags.get(name) for name in values}
        try:
            for name, value in values.items():
                flags.set(name, value)
            yield log
        finally:
            for name, value in before.items():
                flags.set(name, value)


def use_of(target: Any, inputs: Any, fetch_list: Sequence[Any] | None) -> Callable[[], object]:
    """Returns a function that uses a program, predictor, layer or function once.

    Args:
        target, inputs, fetch_list: As for :func:`paddle_ngraph.verify`.

    Raises:
        NgraphError: The arguments do not belong together.
    """
    if isinstance(target, (str, Path)):
        raise NgraphError(
            f"verify() takes what runs the model {target}: create a predictor, or use "
            "python -m paddle_ngraph verify"
        )
    if isinstance(target, paddle.inference.Predictor):
        names = target.get_input_names()
        return _attempt(
            lambda: _use_of_predictor(target, names, inputs),
            lambda error: f"the inputs of the predictor are {', '.join(names)} ({error})",
        )
    if isinstance(target, (paddle.nn.Layer, paddle.jit.api.StaticFunction)) or callable(target):
        return _use_of_callable(target, inputs)
    program = ngraph_transpiler.static_program(
        target, "verify", ", a predictor, a layer or a function"
    )
    executor = paddle.static.Executor(paddle.CPUPlace())
    return lambda: executor.run(program, feed=inputs, fetch_list=fetch_list)


def _use_of_predictor(predictor: Any, names: Sequence[str], inputs: Any) -> Callable[[], object]:
    given = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs))
    if set(given) != set(names):
        raise NgraphError(f"the inputs of the predictor are {', '.join(names)}")

    def use() -> None:
        for name in names:
            predictor.get_input_handle(name).copy_from_cpu(np.asarray(given[name]))
        predictor.run()

    return use


def _use_of_callable(target: Any, inputs: Any) -> Callable[[], object]:
    args = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    is_ready = compiled_layer.compiled_in(target) is not None or to_static_hook.is_static(target)
    function = target if is_ready else compiled_layer.compile(lambda *args: target(*args), False)

    def use() -> None:
        for _ in range(_CALLS):
            function(*[_tensor(each) for each in args])

    return use


def _tensor(value: Any) -> Any:
    return paddle.to_tensor(value) if isinstance(value, np.ndarray) else value
