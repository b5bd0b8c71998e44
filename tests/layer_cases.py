"""Layers run by Paddle and with the engine, in a separate process.

``run_layer_cases`` starts it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SAME, DIFFERENT, NATIVE_TOO, SKIPPED = "same", "different", "fails natively too", "skipped"
WAYS = ("to_static", "sot", "compile", "enable")
RUNS = 3  # first runs of a function differ from later ones: they fall back, or build it
ULPS, FACTOR, LEAST = 4, 6.0, 1e-5


@dataclass
class Case:
    """One file.

    Attributes:
        outcome: ``same``, ``different``, ``fails natively too`` or ``skipped``.
        message: The difference, or why it failed or was skipped.
        engine_runs: How often the engine ran.
    """

    name: str
    outcome: str
    message: str = ""
    engine_runs: int = 0


@dataclass(frozen=True)
class Play:
    """Settings for running cases.

    Attributes:
        way: One of ``WAYS``.
        trains: Whether they train, or are evaluated without gradients.
        most: Cases with inputs of more elements are skipped.
    """

    way: str
    trains: bool
    most: int

    def case(self, path: Path) -> Case:
        """Runs a file."""
        import paddle_ngraph

        name = path.name
        try:
            module = _module(path)
            inputs = list(module.create_numpy_inputs())
        except Exception as error:
            return Case(name, SKIPPED, _said(error))
        if sum(each.size for each in inputs if isinstance(each, np.ndarray)) > self.most:
            return Case(name, SKIPPED, f"larger than {self.most} numbers")
        try:
            state = {key: each.numpy() for key, each in module.LayerCase().state_dict().items()}
            expected = self._life(module.LayerCase, state, inputs, False)
        except Exception as error:
            return Case(name, NATIVE_TOO, _said(error))
        before = paddle_ngraph.stats()["engine_runs"]
        try:
            found = self._life(module.LayerCase, state, inputs, True)
        except Exception as error:
            return Case(name, DIFFERENT, _said(error))
        runs = paddle_ngraph.stats()["engine_runs"] - before
        if not differences(expected, found):
            return Case(name, SAME, engine_runs=runs)
        moved = self._life(module.LayerCase, state, [_moved(each) for each in inputs], False)
        message = differences(expected, found, moved)
        return Case(name, DIFFERENT if message else SAME, message, runs)

    def _life(self, make: Any, state: Any, inputs: Sequence[Any], engine: bool) -> list[Any]:
        import paddle

        import paddle_ngraph

        paddle.seed(0)
        layer = make()
        layer.set_state_dict(state)
        layer.train() if self.trains else layer.eval()
        dynamic: Any = ("training" if self.trains else True) if self.way == "enable" else False
        if engine:
            paddle_ngraph.enable(dynamic)
        try:
            with _small_graphs():
                function = self._function(layer, engine)
                return [self._step(layer, function, inputs, number) for number in range(RUNS)]
        finally:
            paddle_ngraph.disable()
            paddle_ngraph.clear_cache()

    def _function(self, layer: Any, engine: bool) -> Callable[..., Any]:
        import paddle

        import paddle_ngraph

        if self.way in ("to_static", "sot"):
            made: Any = paddle.jit.to_static(layer, full_graph=self.way == "to_static")
        else:
            made = paddle_ngraph.compile(layer) if engine and self.way == "compile" else layer
        return made  # type: ignore[no-any-return]

    def _step(self, layer: Any, function: Any, inputs: Sequence[Any], number: int) -> list[Any]:
        import paddle

        paddle.seed(number)
        np.random.seed(number)
        given = [self._tensor(each) for each in inputs]
        with nullcontext() if self.trains else paddle.no_grad():
            results = list(_flat(function(*given)))
        if not self.trains:
            return [_array(each) for each in results]
        wanted = [each for each in results if _has_gradient(each)]
        if wanted:
            sum((_weighed(each) for each in wanted[1:]), _weighed(wanted[0])).backward()
        tensors = [each for each in given if isinstance(each, paddle.Tensor)]
        gradients = [each.grad for each in (*tensors, *layer.parameters())]
        found = [_array(each) for each in (*results, *gradients, *layer.buffers())]
        for each in layer.parameters():
            each.clear_gradient()
        return found

    def _tensor(self, given: Any) -> Any:
        import paddle

        if isinstance(given, paddle.Tensor):
            given = given.numpy()
        if not isinstance(given, np.ndarray):
            return given
        return paddle.to_tensor(given, stop_gradient=not self.trains or given.dtype.kind != "f")


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("layer_case", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _small_graphs() -> AbstractContextManager[None]:
    """SOT leaves graphs of few operators to dynamic mode otherwise, and caches those of others."""
    from paddle.jit.sot.opcode_translator.executor.executor_cache import OpcodeExecutorCache
    from paddle.jit.sot.utils.envs import min_graph_size_guard

    OpcodeExecutorCache().clear()
    guard: AbstractContextManager[None] = min_graph_size_guard(0)
    return guard


def _flat(results: Any) -> Iterator[Any]:
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        for each in results:
            yield from _flat(each)
    else:
        yield results


def _array(value: Any) -> Any:
    import paddle

    return value.numpy() if isinstance(value, paddle.Tensor) else value


def _has_gradient(value: Any) -> bool:
    import paddle

    floats = (paddle.float32, paddle.float64)
    return isinstance(value, paddle.Tensor) and value.dtype in floats and not value.stop_gradient


def _weighed(value: Any) -> Any:
    """A sum with a separate weight for each element, since normalized ones sum up to a constant."""
    import paddle

    weights = paddle.cos(paddle.arange(value.size, dtype=value.dtype)).reshape(value.shape)
    return (value * weights).sum()


def _moved(given: Any) -> Any:
    if not isinstance(given, np.ndarray) or given.dtype != np.float32:
        return given
    errors = np.random.default_rng(0).uniform(-ULPS, ULPS, given.shape)
    return (given * (1 + errors * np.finfo("float32").eps)).astype("float32")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[-300:]}"


def differences(expected: Any, found: Any, moved: Any = None) -> str:
    """Describes differences beyond rounding; empty if there are none.

    Args:
        expected, found: Arrays, lists of them and other values, by Paddle and with the engine.
        moved: Paddle's results for perturbed inputs, if known.
    """
    ours, native = list(_flat(found)), list(_flat(expected))
    others = native if moved is None else list(_flat(moved))
    if len(ours) != len(native):
        return f"{len(ours)} results instead of {len(native)}"
    pairs = zip(native, ours, others if len(others) == len(native) else native)
    messages = (_difference(*each) for each in pairs)
    return next((f"result {at}: {text}" for at, text in enumerate(messages) if text), "")


def _difference(native: Any, ours: Any, moved: Any) -> str:
    if not isinstance(native, np.ndarray) or not isinstance(ours, np.ndarray):
        is_same = type(native) is type(ours) and (native is None or bool(native == ours))
        return "" if is_same else f"{_short(ours)} instead of {_short(native)}"
    if native.shape != ours.shape or native.dtype != ours.dtype:
        return f"{_short(ours)} instead of {_short(native)}"
    if native.dtype.kind not in "fc":
        return "" if np.array_equal(native, ours) else _worst(native, ours, native != ours)
    with np.errstate(all="ignore"):
        finite = np.isfinite(native)
        scale = np.abs(native[finite]).max(initial=0.0)
        bound = LEAST * max(scale, LEAST)
        if moved.shape == native.shape:
            bound += FACTOR * np.abs(moved - native)[finite & np.isfinite(moved)].max(initial=0.0)
        wrong = np.where(finite, ~(np.abs(ours - native) <= bound), ~_alike(native, ours))
    return _worst(native, ours, wrong) if wrong.any() else ""


def _alike(one: Any, other: Any) -> Any:
    return (one == other) | ((one != one) & (other != other))


def _worst(native: Any, ours: Any, wrong: Any) -> str:
    return f"{ours[wrong][0]} instead of {native[wrong][0]}, {np.mean(wrong):.1%} of {native.shape}"


def _short(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
