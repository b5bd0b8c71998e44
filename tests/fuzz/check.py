"""Runs a random program by Paddle and by the engine, and judges whether they agree.

The judgement is that of :mod:`paddle_ngraph.verification.judgement`; here the lines of the program
run in float64, and noise reaches gradients by differentiation. Operators that only move or select
elements, and arithmetic of short values, get no noise: ties and zeros that are exact stay exact
there, and have to be treated exactly as in Paddle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph.verification import checks
from paddle_ngraph.verification.judgement import (
    FLOAT32,
    SAMPLES,
    Spread,
    differences,
    is_nearer,
)
from tests.fuzz.programs import Line, Program

Real = Literal["float32", "float64"]

NOISE = FLOAT32.noise


@dataclass
class Tally:
    """The outcomes of many programs."""

    programs: int = 0
    lines: int = 0
    engine_runs: int = 0
    converted: int = 0
    native: Counter[str] = field(default_factory=Counter)
    judged_by_noise: int = 0
    native_failures: int = 0
    with_gradients: int = 0
    with_optimizer: int = 0
    lives: int = 0
    layer_lives: int = 0
    layer_lives_without_engine: int = 0
    steps: int = 0
    strings: int = 0
    files: int = 0
    batches: int = 0
    verified: int = 0

    def add(self, other: Tally) -> None:
        """Adds another tally to this one."""
        for name, value in vars(other).items():
            if name == "native":
                self.native.update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def as_dict(self) -> dict[str, Any]:
        """Returns a representation for JSON, which :meth:`from_dict` reads."""
        return {**vars(self), "native": dict(self.native)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Tally:
        """The tally of :meth:`as_dict`."""
        return Tally(**{**values, "native": Counter(values["native"])})

    def __str__(self) -> str:
        native = sum(self.native.values())
        share = self.converted / max(1, self.converted + native)
        most = ", ".join(
            f"{kind.removeprefix('pd_op.')} x{count}" for kind, count in self.native.most_common(24)
        )
        return (
            f"{self.programs} programs ({self.with_gradients} with gradients, "
            f"{self.with_optimizer} with an optimizer; {self.batches} more sizes), "
            f"{self.lives} lives of programs, {self.layer_lives} of layers (and "
            f"{self.layer_lives_without_engine} in which the engine did not run), "
            f"{self.steps} steps, "
            f"{self.strings} graph strings, {self.files} files of functions; "
            f"{self.engine_runs} engine runs; "
            f"{self.converted} of {self.converted + native} operators converted ({share:.1%}); "
            f"{self.verified} runs verified; "
            f"{self.judged_by_noise} judged by noise, {self.native_failures} others that "
            f"Paddle itself cannot run\nmost often native: {most}"
        )


class Mismatch(AssertionError):
    """The engine and plain Paddle differ."""


class NativeFailure(Exception):
    """Plain Paddle does not run the program, which is then no evidence about the engine."""


def check(program: Program, tally: Tally | None = None) -> None:
    """Asserts that the engine runs the program as Paddle does.

    Raises:
        Mismatch: The results differ, or the engine did not run.
        NativeFailure: Paddle cannot run it.
    """
    try:
        built = Built(program)
    except ValueError as error:
        raise NativeFailure(str(error)[-500:]) from error
    try:
        native, _ = built.run(engine=False)
    except Exception as error:
        if tally is not None:
            tally.native_failures += 1
        raise NativeFailure(str(error)[-500:]) from error
    checks.reset()
    engine, stats = built.run(engine=True)
    verified = _verified_runs()
    if not stats["engine_runs"] and not (
        _may_stay_native(program) and (stats["native_runs"] or not stats["ops_converted"])
    ):
        raise Mismatch("the engine did not run")
    suspects = {
        name: where for name in native if (where := _differences(native[name], engine[name])).any()
    }
    if tally is not None:
        tally.programs += 1
        tally.lines += len(program.lines)
        tally.engine_runs += stats["engine_runs"]
        tally.converted += stats["ops_converted"]
        tally.native.update(stats["native_by_type"])
        tally.with_gradients += bool(program.targets)
        tally.with_optimizer += program.optimizer is not None
        tally.judged_by_noise += bool(suspects)
        tally.verified += verified
    if suspects:
        _judge(program, native, engine, suspects)
    for rows in program.batches if program.open_dims else []:
        _check_batch(program, built, rows, tally)


def _verified_runs() -> int:
    """The runs that ``FLAGS_ngraph_verify`` compared with Paddle's; asserts that none is wrong."""
    log = paddle_ngraph.verified_runs()
    if log.wrong or log.unchecked:
        raise Mismatch(f"by verification: {log}")
    return log.checked


def _may_stay_native(program: Program) -> bool:
    """Whether Paddle chooses its elements in a run, or runs subgraphs that are empty."""
    chosen = ("nonzero", "masked_select", "[0:0]")
    return any(word in line.code for line in program.lines for word in chosen)


def _check_batch(program: Program, built: Built, rows: int, tally: Tally | None) -> None:
    """Asserts that the engine runs the program at another size, if Paddle does.

    Paddle's kernels do not check every shape of their operands; its shape inference does. For empty
    operands some kernels write no output: the fetched memory is then arbitrary.
    """
    try:
        sized = Built(program, rows=rows)
        native, _ = built.run(engine=False, rows=rows)
    except Exception:  # the program requires its first size
        return
    if not sized.are_declared(native):
        return
    engine, stats = built.run(engine=True, rows=rows)
    suspects = {
        name: where for name in native if (where := _differences(native[name], engine[name])).any()
    }
    if tally is not None:
        tally.batches += 1
        tally.engine_runs += stats["engine_runs"]
    if suspects:
        _judge(program, native, engine, suspects, rows)


class Built:
    """A program built with Paddle.

    Args:
        program: The program.
        real: The dtype of its floats.
        noisy: Whether to build noise into it.
        rows: A size of the first dimension that replaces the sampled one.
    """

    def __init__(
        self,
        program: Program,
        real: Real = "float32",
        noisy: bool = False,
        rows: int | None = None,
    ) -> None:
        self._program = program
        self._real = real
        self._rows = rows
        try:
            namespace = self._build(noisy, program.open_dims and not noisy and rows is None)
        except Exception:  # not every operator accepts or infers dynamic dimensions
            if not program.open_dims:
                raise
            program.open_dims = False
            namespace = self._build(noisy, False)
        self._fetches = namespace["fetches"]
        names = {"np": np}
        self._feed = {
            item.value.name: self._as_fed(eval(item.data, names)) for item in program.feeds
        }

    def _build(self, noisy: bool, open_dims: bool) -> dict[str, Any]:
        self._main, self._startup = paddle.static.Program(), paddle.static.Program()
        namespace: dict[str, Any] = {
            "paddle": paddle,
            "F": paddle.nn.functional,
            "np": np,
            "REAL": self._real,
            "noise": _noise,
            "shrunk": _shrunk,
            "ClipGradByNorm": _ClipGradByNorm,
        }
        code = self._program.body(noisy, open_dims, self._rows)
        if noisy:
            code = code.replace("F.tanhshrink(", "shrunk(")
        if self._real == "float64":
            code = code.replace("paddle.nn.ClipGradByNorm", "ClipGradByNorm")
        before: Any = paddle.get_default_dtype()
        paddle.set_default_dtype(self._real)
        try:
            guard = paddle.static.program_guard(self._main, self._startup)
            with guard, paddle.utils.unique_name.guard():
                exec(code, namespace)
        finally:
            paddle.set_default_dtype(before)
        if self._rows is None:
            for line in self._program.lines:
                _check_declared(line, namespace)
        return namespace

    def _as_fed(self, array: Any) -> np.ndarray:
        array = np.asarray(array)
        return array.astype(self._real) if array.dtype.kind == "f" else array

    def are_declared(self, results: Mapping[str, np.ndarray]) -> bool:
        """Whether the fetched values of the first run have the shapes that Paddle infers."""
        found = [np.shape(results[f"fetch {n} of run 0"]) for n in range(len(self._fetches))]
        return all(
            len(have) == len(value.shape)
            and all(wanted in (-1, size) for wanted, size in zip(value.shape, have))
            for value, have in zip(self._fetches, found)
        )

    def run(
        self, engine: bool, seed: int = 1, rows: int | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Runs it, from its initial state.

        Args:
            engine: Whether the engine runs it.
            seed: For the random numbers.
            rows: See :class:`Built`; here for a program with dynamic dimensions.

        Returns:
            All outputs by name, and the counters.
        """
        results: dict[str, np.ndarray] = {}
        executor = paddle.static.Executor(paddle.CPUPlace())
        scope = paddle.static.Scope()
        rows = rows or self._rows
        feed = {name: self._program.resized(array, rows) for name, array in self._feed.items()}
        with paddle.static.scope_guard(scope):
            with paddle_ngraph.use_ngraph(False):
                executor.run(self._startup)
            paddle_ngraph.reset_stats()
            with paddle_ngraph.use_ngraph(engine):
                for number in range(self._program.runs):
                    paddle.seed(seed + number)
                    values = executor.run(self._main, feed=feed, fetch_list=self._fetches)
                    for position, value in enumerate(values):
                        results[f"fetch {position} of run {number}"] = value
            stats = paddle_ngraph.stats()
            for item in self._program.parameters:
                name = item.value.name
                results[f"parameter {name}"] = np.array(scope.find_var(name).get_tensor())
        return results, stats


class _ClipGradByNorm(paddle.nn.ClipGradByNorm):  # type: ignore[misc]
    """Clips gradients to a norm in float64, which Paddle's own operator does not support."""

    def _pir_clip(self, params_grads: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return [(parameter, self._clipped(grad)) for parameter, grad in params_grads]

    def _clipped(self, grad: Any) -> Any:
        norm = paddle.sqrt(paddle.sum(grad * grad))
        return paddle.where(norm > self.clip_norm, grad * (self.clip_norm / norm), grad)


def _check_declared(line: Line, namespace: Mapping[str, Any]) -> None:
    """Fails for a mistake in the table of operators, which is no fault of the engine."""
    for value in line.targets:
        found = namespace[value.name]
        shape = tuple(found.shape)
        dtype = str(found.dtype).rsplit(".", 1)[-1].lower()
        expected = namespace["REAL"] if value.dtype == "real" else value.dtype
        fits = len(shape) == value.rank and all(
            have in (-1, want) for have, want in zip(shape, value.shape)
        )
        if not fits or dtype != expected:
            raise TypeError(f"{line.code}: {dtype} {shape}, not {expected} {value.shape}")


def _noise(value: Any) -> Any:
    """Returns rounding errors for a float tensor: in each run for all elements, or for none."""
    dtype = str(value.dtype).rsplit(".", 1)[-1].lower()
    if dtype != "float64":
        return value
    error = paddle.uniform(list(value.shape), "float64", -NOISE, NOISE)
    # A rounding may preserve a tie in one run and break it in the next.
    happens = paddle.uniform([], "float64", 0.0, 1.0) < 0.5
    return value * (1 + error * paddle.cast(happens, "float64"))


def _shrunk(value: Any) -> Any:
    """``F.tanhshrink``, whose difference cancels: a rounding decides its sign, or makes it 0."""
    pair = [paddle.cast(each, "float32") for each in (value, _noise(paddle.tanh(value)))]
    return paddle.cast(pair[0] - pair[1], value.dtype)


def _differences(native: np.ndarray, engine: np.ndarray) -> np.ndarray:
    if native.shape != engine.shape or native.dtype != engine.dtype:
        raise Mismatch(f"{engine.dtype} {engine.shape} instead of {native.dtype} {native.shape}")
    return differences(native, engine)


def _judge(
    program: Program,
    native: Mapping[str, np.ndarray],
    engine: Mapping[str, np.ndarray],
    suspects: Mapping[str, np.ndarray],
    rows: int | None = None,
) -> None:
    exact, _ = Built(program, "float64", rows=rows).run(engine=False)
    noisy = Built(program, "float64", noisy=True, rows=rows)
    samples = [noisy.run(engine=False, seed=100 * n)[0] for n in range(SAMPLES)]
    for name, where in suspects.items():
        spread = Spread(exact[name])
        for sample in samples:
            spread.add(sample[name])
        wrong = (
            where
            & ~spread.explains(engine[name])
            & ~is_nearer(exact[name], engine[name], native[name])
        )
        if wrong.any():
            place = tuple(int(n) for n in np.argwhere(wrong)[0])
            raise Mismatch(
                f"{name}{f' with {rows} rows' if rows else ''} {engine[name].shape} "
                f"differs in {int(wrong.sum())} of {wrong.size} "
                f"elements, first at {place}: engine {engine[name][place]!r}, native "
                f"{native[name][place]!r}, in float64 {exact[name][place]!r}"
            )
