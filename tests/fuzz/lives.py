"""Lives: programs that share parameters, and events, run by Paddle and by the engine.

A life is a list of steps. Two sides take each step: one with the engine, and a reference by Paddle,
with a separate scope and programs. After every step outputs, all variables of the scope, the fed
arrays and the results retained from earlier steps have to agree up to rounding; for larger
differences, perturbed reference runs with noise on every input determine how much of them rounding
explains.

The script that runs is the one that is printed for a failure: a step is a call of a method.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph.conversion import registry
from paddle_ngraph.verification.judgement import FLOAT32, SPREAD
from tests.fuzz.check import Mismatch, _differences
from tests.fuzz.layers import LAYERS, WIDTH, Context, optimizer

Outcome = dict[str, np.ndarray]

PERTURBED_RUNS = 6  # with noise, where the two sides differ
_CLOSED_ROWS = 3
_CACHE = "FUZZ_CACHE_DIR"  # where a new process finds the functions on disk
_KEPT = 6  # results whose memory nothing may overwrite


@dataclasses.dataclass(frozen=True)
class Raised:
    """A step that ended with an error, and the variables after it."""

    error: Exception
    variables: Outcome


class _Program:
    """A program of a side, and the state needed to run it."""

    def __init__(self, main: Any, startup: Any, fetches: list[Any], old: bool, rows: int) -> None:
        self.main = main
        self.startup = startup
        self.fetches = fetches
        self.old = old
        self.rows = rows  # -1: any


class Side:
    """One of the two: its programs, scopes and steps. By Paddle, if it is not an :class:`Engine`.

    Args:
        folder: Where it saves.
        noise: The source of relative errors on inputs; ``None``: no errors.
    """

    engine = False

    def __init__(self, folder: Path, noise: np.random.Generator | None = None) -> None:
        self._folder = folder
        self._noise = noise
        self._programs: list[_Program] = []
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._scopes = [paddle.static.Scope()]
        self._scope = self._scopes[0]
        self._views: dict[str, np.ndarray] = {}
        self._fed: dict[str, np.ndarray] = {}
        self._kept: list[tuple[np.ndarray, np.ndarray]] = []
        self._saved: dict[int, int] = {}
        self.names: list[str] = []

    # Programs.

    def build(
        self,
        layers: list[tuple[str, int]],
        train: str | None = None,
        gradient: bool = False,
        test: bool = False,
        old: bool = False,
        closed: bool = False,
    ) -> Outcome:
        """Builds a program and runs its startup program in every scope."""
        main, startup = paddle.static.Program(), paddle.static.Program()
        with _ir(old):
            main, startup = paddle.static.Program(), paddle.static.Program()
            guard = paddle.static.program_guard(main, startup)
            with guard, paddle.utils.unique_name.guard():
                rows = _CLOSED_ROWS if closed else -1
                x = paddle.static.data("x", [rows, WIDTH], "float32")
                x.stop_gradient = not gradient
                context, h, fetches = Context(x, test, old), x, []
                for name, k in layers:
                    h = LAYERS[name](context, h, k)
                    fetches.append(h)
                loss = 0.01 * context.total((h - 0.3) * (h - 0.3))
                # The last one is large enough to be returned without a copy.
                fetches = [loss, h, *fetches[-3:-1], paddle.tile(h, [1, 4200])]
                if gradient:
                    fetches += paddle.static.gradients(loss, [x])
                if train is not None:
                    optimizer(train).minimize(loss)
            program = _Program(main, startup, fetches, old, rows)
            self.names = sorted({*self.names, *_persistable(startup)})
        for scope in self._scopes:
            self._start(program, scope)
        self._programs.append(program)
        return {}

    def clone(self, program: int) -> Outcome:
        """A copy of a program; of a ProgramDesc program, the program for tests."""
        source = self._programs[program]
        with _ir(source.old):
            if source.old:
                copy = source.main.clone(for_test=True)
                fetches = [value.name for value in source.fetches[:2]]
            else:  # has no ``for_test``
                copy = source.main.clone()
                fetches = [_same_value(source.main, copy, value) for value in source.fetches[:2]]
        clone = _Program(copy, source.startup, fetches, source.old, source.rows)
        self._programs.append(clone)
        return {}

    def append(self, program: int) -> Outcome:
        """Appends operators to a program that may have run."""
        target = self._programs[program]
        with _ir(target.old):
            guard = paddle.static.program_guard(target.main, target.startup)
            with guard, paddle.utils.unique_name.guard("more"):
                more = _variable(target, target.fetches[1]) * 0.5 + 0.25
            target.fetches.append(more)
        return {}

    def run(
        self,
        program: int,
        rows: int = 3,
        seed: int = 0,
        fetches: int = -1,
        again: bool = False,
        thread: bool = False,
        cache: bool = True,
    ) -> Outcome:
        """Runs a program.

        Args:
            program: Its index.
            rows: Rows of the feed.
            seed: For the feed and the random numbers.
            fetches: Bits: which variables are fetched.
            again: Feeds the array of the last run, unchanged.
            thread: In a separate thread.
            cache: Whether Paddle may cache its preparations.
        """
        target = self._programs[program]
        array = self._array(target.rows if target.rows > 0 else rows, seed, again)
        wanted = [value for n, value in enumerate(target.fetches) if fetches >> n & 1]
        before = array.copy()

        def call() -> list[np.ndarray]:
            paddle.seed(seed)
            with _ir(target.old):
                return self._executor.run(  # type: ignore[no-any-return]
                    target.main,
                    feed={"x": array},
                    fetch_list=wanted,
                    scope=self._scope,
                    use_program_cache=cache,
                )

        with self._switched():
            try:
                values = _in_thread(call) if thread else call()
            except Exception:
                self._forget_fetches()
                raise
        found = {f"fetch {n}": value.copy() for n, value in enumerate(values)}
        self._kept = [*self._kept, *((value, value.copy()) for value in values)][-_KEPT:]
        found["fed array"] = array.copy()
        found["fed array changed"] = np.array(not np.array_equal(array, before))
        return found

    def _forget_fetches(self) -> None:
        """Drops fetches, since Paddle would return those of a failed run from the next one."""
        if (variable := self._scope.find_var("fetch")) is not None:
            variable.get_fetch_list()._move_to_list()

    def _array(self, rows: int, seed: int, again: bool) -> np.ndarray:
        if again and "x" in self._fed and self._fed["x"].shape[0] == rows:
            return self._fed["x"]
        rng = np.random.default_rng(seed)
        array = rng.uniform(-2, 2, (rows, WIDTH)).astype("float32")
        self._fed["x"] = self._noised(array)
        return self._fed["x"]

    def startup(self, program: int) -> Outcome:
        """Runs a startup program again."""
        self._start(self._programs[program], self._scope)
        return {}

    def _start(self, program: _Program, scope: Any) -> None:
        paddle.seed(7)
        with self._switched(), _ir(program.old):
            self._executor.run(program.startup, scope=scope)
        if self._noise is not None:
            for name in self.names:
                tensor = self._tensor(name, scope)
                if tensor is not None:
                    tensor.set(self._noised(np.array(tensor)), paddle.CPUPlace())

    def scope(self, number: int) -> Outcome:
        """Switches to another scope; a new one is started with every program."""
        while len(self._scopes) <= number:
            self._scopes.append(paddle.static.Scope())
            for program in self._programs:
                self._start(program, self._scopes[-1])
        self._scope = self._scopes[number]
        self._views = {}
        return {}

    def executor(self) -> Outcome:
        """Switches to another executor."""
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        return {}

    # Writers.

    def write(self, name: str, how: str, seed: int = 0, program: int = 0) -> Outcome:
        """Writes to a parameter, by one of :data:`WRITERS`."""
        tensor = self._tensor(name, self._scope)
        if tensor is None:
            return {}
        shape = tuple(tensor.shape())
        values = np.random.default_rng(seed).uniform(-0.6, 0.6, shape).astype("float32")
        values = self._noised(values / max(1.0, (shape[0] if shape else 1) / 16))
        return WRITERS[how](self, name, tensor, values, self._programs[program]) or {}

    def view(self, name: str) -> Outcome:
        """Retains NumPy's view of a parameter, for a later step."""
        tensor = self._tensor(name, self._scope)
        if tensor is not None:
            self._views[name] = view_of(tensor)
        return {}

    def write_view(self, name: str, row: int, value: float) -> Outcome:
        """Writes to a slice of a parameter through the retained view, if it is still one."""
        view, tensor = self._views.get(name), self._tensor(name, self._scope)
        if view is None or tensor is None or view.size == 0:
            return {}
        is_view = view.ctypes.data == tensor._ptr()
        if is_view:
            view[row % view.shape[0]] = value
        return {"is a view": np.array(is_view)}

    def save(self, program: int, slot: int) -> Outcome:
        """Saves a program and its parameters, if Paddle can: it aborts on gradients of branches."""
        target = self._programs[program]
        if not target.old and "cf.tuple_pop" in str(target.main):
            return {}
        with _ir(target.old), paddle.static.scope_guard(self._scope):
            paddle.static.save(target.main, str(self._folder / f"saved{slot}"))
        self._saved[slot] = program
        return {}

    def load(self, slot: int) -> Outcome:
        """Loads the saved model."""
        if slot not in self._saved:
            return {}
        target = self._programs[self._saved[slot]]
        with _ir(target.old), paddle.static.scope_guard(self._scope):
            paddle.static.load(target.main, str(self._folder / f"saved{slot}"), self._executor)
        return {}

    # Steps that affect the engine only.

    def switch(self, on: bool) -> Outcome:
        """Switches the engine on or off from here on."""
        return {}

    def clear(self, collect: bool = False) -> Outcome:
        """Clears the caches."""
        return {}

    def threads(self, number: int) -> Outcome:
        """Sets the number of threads of the engine."""
        return {}

    def fail(self, type: str) -> Outcome:
        """Makes a converter raise."""
        return {}

    def heal(self) -> Outcome:
        """Ends :meth:`fail`."""
        return {}

    # Reading without side effects.

    def variables(self) -> Outcome:
        """The variables of the scope, read without an exposure."""
        found = {}
        for name in self.names:
            tensor = self._tensor(name, self._scope)
            if tensor is not None:
                found[f"variable {name}"] = _contents(tensor)
        return found

    def overwritten(self) -> int:
        """Returns the number of changed results of earlier runs."""
        return sum(not np.array_equal(now, then, equal_nan=True) for now, then in self._kept)

    def _tensor(self, name: str, scope: Any) -> Any:
        variable = scope.find_var(name)
        if variable is None or not variable.get_tensor()._is_initialized():
            return None
        return variable.get_tensor()

    def _noised(self, array: np.ndarray) -> np.ndarray:
        if self._noise is None or array.dtype.kind != "f":
            return array
        error = self._noise.uniform(-FLOAT32.noise, FLOAT32.noise, array.shape)
        return (array * (1 + error)).astype(array.dtype)

    def _switched(self) -> Any:
        return paddle_ngraph.use_ngraph(False)


class Engine(Side):
    """The side that the engine runs."""

    engine = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._on = True
        self._failing: dict[str, registry.Converter] = {}

    def _switched(self) -> Any:
        return paddle_ngraph.use_ngraph(self._on)

    def switch(self, on: bool) -> Outcome:
        self._on = on
        return {}

    def clear(self, collect: bool = False) -> Outcome:
        paddle_ngraph.clear_cache()
        if collect:
            gc.collect()
        return {}

    def threads(self, number: int) -> Outcome:
        paddle.set_flags({"FLAGS_ngraph_num_threads": number})
        return {}

    def fail(self, type: str) -> Outcome:
        converter = registry.find_converter(type)
        if converter is not None and type not in self._failing:
            self._failing[type] = converter
            registry._converters[type] = dataclasses.replace(converter, function=_raise)
        return {}

    def heal(self) -> Outcome:
        registry._converters.update(self._failing)
        self._failing = {}
        return {}


def _raise(bridge: Any, op: Any) -> None:
    raise RuntimeError("a fault of the test")


# --- writers -----------------------------------------------------------------------------------


def view_of(tensor: Any) -> np.ndarray:
    """NumPy's view of a tensor's memory; ``np.asarray`` would be one of a copy."""
    with paddle.base.dygraph.guard():
        return np.from_dlpack(paddle.Tensor(tensor))


Writer = Callable[[Side, str, Any, np.ndarray, _Program], Any]


def _by_set(side: Side, name: str, tensor: Any, values: np.ndarray, program: _Program) -> None:
    tensor.set(values, paddle.CPUPlace())


def _by_view(side: Side, name: str, tensor: Any, values: np.ndarray, program: _Program) -> None:
    view_of(tensor)[...] = values


def _by_row(side: Side, name: str, tensor: Any, values: np.ndarray, program: _Program) -> None:
    if values.size:
        view_of(tensor)[-1:] = values[-1:]


def _by_eager(side: Side, name: str, tensor: Any, values: np.ndarray, program: _Program) -> None:
    with paddle.base.dygraph.guard():
        eager = paddle.Tensor(tensor)
        paddle.assign(paddle.to_tensor(values), output=eager)


def _by_dlpack(side: Side, name: str, tensor: Any, values: np.ndarray, program: _Program) -> None:
    with paddle.base.dygraph.guard():
        eager = paddle.utils.dlpack.from_dlpack(tensor._to_dlpack())
        eager.scale_(0.5)


def _by_state(side: Side, name: str, tensor: Any, values: np.ndarray, program: _Program) -> None:
    with _ir(program.old), paddle.static.scope_guard(side._scope):
        paddle.static.set_program_state(program.main, {name: values})


def _by_copy(side: Side, name: str, tensor: Any, values: np.ndarray, program: _Program) -> None:
    other = paddle.base.core.DenseTensor()
    other.set(values, paddle.CPUPlace())
    tensor._share_data_with(other)


WRITERS: dict[str, Writer] = {
    "set": _by_set,
    "view": _by_view,
    "row": _by_row,
    "eager": _by_eager,
    "dlpack": _by_dlpack,
    "state": _by_state,
    "share": _by_copy,
}


# --- a life ------------------------------------------------------------------------------------


class Life:
    """The two sides, step by step.

    Args:
        interleaved: Whether each step is taken by both before the next; otherwise Paddle's side
            takes all of them at the end, in :meth:`end`.
        disk: Whether all functions are stored on disk, even if built quickly: cleared caches are
            filled from there, and so are those of :meth:`in_new_process`.
    """

    def __init__(self, interleaved: bool = True, disk: bool = False) -> None:
        self.steps: list[tuple[str, dict[str, Any]]] = []
        self.interleaved = interleaved
        self.disk = disk
        self._folder = tempfile.TemporaryDirectory()
        self._native = Side(self._subfolder("native"))
        self._engine = Engine(self._subfolder("engine"))
        self._found: list[Outcome | Raised] = []
        self._has_diverged = False
        self._must_run = 0
        self.judged = 0
        self._cache = os.environ.get(_CACHE) or str(self._subfolder("cache"))
        if disk:
            flags = {"FLAGS_ngraph_cache_dir": self._cache, "FLAGS_ngraph_cache_min_ms": 0}
            paddle.set_flags(flags)
            paddle_ngraph.clear_cache()
        paddle_ngraph.reset_stats()

    def _subfolder(self, name: str) -> Path:
        folder = Path(self._folder.name) / name
        folder.mkdir()
        return folder

    def do(self, step: str, **arguments: Any) -> bool:
        """Takes a step; returns whether it succeeded, or raised, equally on both sides.

        Raises:
            Mismatch: The two sides differ.
        """
        if self._has_diverged:
            return True
        self.steps.append((step, arguments))
        found = _outcome(self._engine, step, arguments)
        self._found.append(found)
        self._must_run += self._is_run_of_engine(step, arguments, found)
        if self._engine.overwritten():
            raise Mismatch("a result of an earlier run was written to")
        if self.interleaved:
            self._compare(len(self.steps) - 1)
        return not isinstance(found, Raised)

    def _is_run_of_engine(self, step: str, arguments: dict[str, Any], found: Any) -> bool:
        return (
            step == "run"
            and not isinstance(found, Raised)
            and self._engine._on
            and not self._engine._failing
            and not self._engine._programs[arguments["program"]].old
            and arguments.get("rows") != 0
        )

    def end(self) -> int:
        """Ends the life; returns the number of engine runs.

        Raises:
            Mismatch: The two sides differ, or the engine did not run although it should.
        """
        if not self.interleaved:
            for number in range(len(self.steps)):
                if not self._has_diverged:
                    self._compare(number)
        runs = int(paddle_ngraph.stats()["engine_runs"])
        if self._must_run and not runs:
            raise Mismatch("the engine did not run")
        return runs

    def in_new_process(self) -> None:
        """Repeats the life in a new process, with the functions that this one left on disk.

        Raises:
            Mismatch: It failed there.
        """
        calls = [call_of(step, arguments) for step, arguments in self.steps]
        command = [sys.executable, "-W", "ignore", "-c", script(self.interleaved, self.disk, calls)]
        environment = {**os.environ, _CACHE: self._cache}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise Mismatch(f"in a new process, ended with {done.returncode}: {done.stderr[-1000:]}")

    def close(self) -> None:
        """Releases everything."""
        self._engine.heal()
        flags = {"FLAGS_ngraph_cache_dir": "", "FLAGS_ngraph_cache_min_ms": 100}
        paddle.set_flags({"FLAGS_ngraph_num_threads": _THREADS, **flags})
        self._folder.cleanup()

    def _compare(self, number: int) -> None:
        step, arguments = self.steps[number]
        native, engine = _outcome(self._native, step, arguments), self._found[number]
        place = f"step {number}, {call_of(step, arguments)}"
        if isinstance(native, Raised) or isinstance(engine, Raised):
            self._compare_errors(number, place, native, engine)
            return
        if native.keys() != engine.keys():
            raise Mismatch(f"{place}: {sorted(native.keys() ^ engine.keys())} on one side only")
        try:
            suspects = {
                name: where
                for name in native
                if (where := _differences(native[name], engine[name])).any()
            }
        except Mismatch as error:
            raise Mismatch(f"{place}: {error}") from error
        if "is a view" in suspects and engine["is a view"]:
            del suspects["is a view"]  # more than Paddle promises
        if suspects:
            self._judge(number, place, native, engine, suspects)

    def _compare_errors(
        self, number: int, place: str, native: Outcome | Raised, engine: Outcome | Raised
    ) -> None:
        """Asserts that an error leaves the state of plain Paddle, or the state before."""
        message = f"{place}:\nnative {_described(native)}\nengine {_described(engine)}"
        if isinstance(native, Raised) and _NO_MEMORY in str(native.error):
            self._has_diverged = True  # Paddle reads outputs of a branch that were never written
            return
        if not isinstance(native, Raised) or not isinstance(engine, Raised):
            raise Mismatch(message)
        if type(native.error) is not type(engine.error):
            raise Mismatch(message)
        if _agree(native.variables, engine.variables):
            return
        before = self._found[number - 1]
        known = before.variables if isinstance(before, Raised) else before
        # Paddle runs operators concurrently: those that precede the error depend on a race.
        if native.variables.keys() != engine.variables.keys() or not all(
            _agree({name: known.get(name)}, {name: found})
            or _agree({name: native.variables[name]}, {name: found})
            for name, found in engine.variables.items()
        ):
            raise Mismatch(
                f"{message}\nvariables are neither as they were nor as native leaves them"
            )
        self._has_diverged = (
            True  # plain Paddle has written a variable: the sides differ from now on
        )

    def _judge(
        self, number: int, place: str, native: Outcome, engine: Outcome, suspects: Outcome
    ) -> None:
        self.judged += 1
        perturbed = [self._perturbed_run(number, seed) for seed in range(PERTURBED_RUNS)]
        for name, where in suspects.items():
            wrong = where & ~_explained(
                native[name], engine[name], [reference[name] for reference in perturbed]
            )
            if wrong.any():
                at = tuple(int(n) for n in np.argwhere(wrong)[0])
                raise Mismatch(
                    f"{place}: {name} {engine[name].shape} differs in {int(wrong.sum())} of "
                    f"{wrong.size} elements, first at {at}: engine {engine[name][at]!r}, "
                    f"native {native[name][at]!r}"
                )

    def _perturbed_run(self, last: int, seed: int) -> Outcome:
        """Returns the results of a perturbed reference run of the same steps."""
        with tempfile.TemporaryDirectory() as folder:
            reference = Side(Path(folder), np.random.default_rng(seed))
            found: Outcome | Raised = {}
            for step, arguments in self.steps[: last + 1]:
                found = _outcome(reference, step, arguments)
            assert not isinstance(found, Raised), found.error
            return found


def shrunk(text: str, fails: Callable[[str], bool]) -> str:
    """The script of a life with no more steps than it needs to fail.

    Args:
        text: The script.
        fails: Whether a script fails; in a separate process, since the state that a life leaves may
            prevent the next failure. Any difference is a failure, also another than at first.
    """
    lines = text.splitlines(keepends=True)
    size = sum(map(_is_step, lines)) // 2
    while size:
        steps = [number for number, line in enumerate(lines) if _is_step(line)]
        for start in range(len(steps) - size, -1, -size):
            without = set(steps[start : start + size])
            fewer = [line for number, line in enumerate(lines) if number not in without]
            if fails("".join(fewer)):
                lines = fewer
        size //= 2
    return "".join(lines)


def _is_step(line: str) -> bool:
    return line.startswith("life.do(")


def script(interleaved: bool, disk: bool, calls: Iterable[str]) -> str:
    """A script that takes these steps."""
    lines = "\n".join(f"life.do({call})" for call in calls)
    life = f"life = Life(interleaved={interleaved}, disk={disk})"
    return f"{_SCRIPT}{life}\n{lines}\nprint(life.end(), 'engine runs')\nlife.close()\n"


_SCRIPT = '''"""A life, to be run from the root of the repository."""
import tests  # the smallest interval is worth the engine
import paddle

from tests.fuzz.lives import Life

paddle.enable_static()
'''

_NO_MEMORY = "Tensor holds no memory"
_THREADS = int(os.environ.get("FLAGS_ngraph_num_threads", "0"))  # noqa: SIM112 - Paddle's spelling


def call_of(step: str, arguments: Mapping[str, Any]) -> str:
    """The arguments of the call that takes a step."""
    return ", ".join([repr(step), *(f"{name}={value!r}" for name, value in arguments.items())])


def _described(outcome: Outcome | Raised) -> str:
    if isinstance(outcome, Raised):
        return f"{type(outcome.error).__name__}: {str(outcome.error).strip()[-400:]}"
    return "is fine"


def _outcome(side: Side, step: str, arguments: dict[str, Any]) -> Outcome | Raised:
    """Returns the outcome of a step: outputs and state afterwards, or the error."""
    try:
        found = getattr(side, step)(**arguments)
    except Exception as error:
        return Raised(error, side.variables())
    return {**found, **side.variables()}


def _agree(expected: Mapping[str, Any], found: Outcome) -> bool:
    """Whether two sets of variables are equal, up to rounding."""
    try:
        return expected.keys() == found.keys() and not any(
            expected[name] is None or _differences(expected[name], found[name]).any()
            for name in found
        )
    except Mismatch:  # of shape or dtype
        return False


def _explained(native: np.ndarray, engine: np.ndarray, perturbed: list[np.ndarray]) -> np.ndarray:
    """Where errors on inputs explain the difference."""
    if native.dtype.kind != "f":
        return np.asarray(np.any([reference != native for reference in perturbed], axis=0))
    with np.errstate(invalid="ignore"):
        spread = np.max(
            [np.abs(reference.astype("float64") - native) for reference in perturbed], axis=0
        )
        rounding = FLOAT32.rtol * abs(native) + FLOAT32.atol
        return np.asarray(np.abs(engine - native) <= SPREAD * spread + rounding)


def _contents(tensor: Any) -> np.ndarray:
    """A copy of a tensor's memory that no hook and no reference counter notices."""
    shape, dtype = tuple(tensor.shape()), str(tensor._dtype()).rsplit(".", 1)[-1].lower()
    array = np.empty(shape, {"fp32": "float32", "bool": "bool"}.get(dtype, dtype))
    if array.nbytes:
        ctypes.memmove(array.ctypes.data, tensor._ptr(), array.nbytes)
    return array


def _persistable(startup: Any) -> set[str]:
    """The variables of the scope that a startup program creates."""
    if hasattr(startup, "desc"):
        return {variable.name for variable in startup.list_vars() if variable.persistable}
    names = set()
    for op in startup.global_block().ops:
        if op.name() in ("builtin.set_parameter", "builtin.shadow_output"):
            attributes = op.attrs()
            names.add(attributes.get("parameter_name") or attributes["output_name"])
    return names


def _same_value(program: Any, clone: Any, value: Any) -> Any:
    """The variable of a clone that is ``value`` in its program."""
    for op, copy in zip(program.global_block().ops, clone.global_block().ops):
        for result, copied in zip(op.results(), copy.results()):
            if result.is_same(value):
                return copied
    raise LookupError("the program has no such variable")


def _variable(program: _Program, fetch: Any) -> Any:
    return program.main.global_block().var(fetch) if isinstance(fetch, str) else fetch


def _ir(old: bool) -> Any:
    return paddle.pir_utils.OldIrGuard() if old else nullcontext()


def _in_thread(call: Callable[[], Any]) -> Any:
    outcome: list[Any] = [None, None]

    def target() -> None:
        try:
            paddle.enable_static()
            outcome[0] = call()
        except Exception as error:
            outcome[1] = error

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
