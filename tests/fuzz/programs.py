"""Random programs: their definition, sampling, and rendering as Python code.

A program is a list of inputs and of lines of code. It is stored as code, so that the script that
runs is the one that is printed for a failure. The same lines can be built in float64, and with
noise of the size of a rounding error at every rounding (see :mod:`tests.fuzz.check`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

T = TypeVar("T")
Shape = tuple[int, ...]

LARGEST = 600  # elements of a tensor
MAX_RANK = 5
_REAL_BOUND = 16.0  # larger values are scaled down, by a power of two
_EXACT_BITS = 21
_INTEGER_BOUND = 2.0**30


@dataclass(frozen=True)
class Value:
    """A tensor of the program.

    Attributes:
        name: The Python variable.
        shape: Its shape.
        dtype: ``real`` (float32, or float64 in the reference), ``int32``, ``int64`` or ``bool``.
        bound: No element is larger in magnitude (NaN and infinity in ``special`` inputs aside).
        bits: The maximum number of binary digits after the point of a real that is computed without
            any rounding; ``None`` for others.
        leaf: An input or a parameter.
        wild: NaN and infinities are among its elements.
    """

    name: str
    shape: Shape
    dtype: str = "real"
    bound: float = 1.0
    bits: int | None = None
    leaf: bool = False
    wild: bool = False

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Input:
    """A feed or initial value of a parameter: an expression of numpy."""

    value: Value
    data: str
    parameter: bool = False
    trainable: bool = True


@dataclass(frozen=True)
class Line:
    """A line of the program, with ``{0}``, ``{1}``, ... as placeholders for the arguments."""

    targets: tuple[Value, ...]
    code: str
    arguments: tuple[Value, ...]
    rounds: bool

    def render(self, noisy: bool) -> str:
        """The line as Python code."""
        noisy = noisy and self.rounds
        names = [
            f"noise({value.name})" if noisy and value.dtype == "real" else value.name
            for value in self.arguments
        ]
        code = self.code.format(*names)
        targets = ", ".join(value.name for value in self.targets)
        return f"{targets} = noise({code})" if noisy and self.real else f"{targets} = {code}"

    @property
    def real(self) -> bool:
        """Whether the results are floats."""
        return self.targets[0].dtype == "real"


@dataclass
class Program:
    """A random program.

    Attributes:
        inputs: Feeds and parameters.
        lines: The operators.
        fetches: Names of fetched values.
        targets: Outputs whose gradients are taken, with the names of their cotangents.
        optimizer: The optimizer's constructor, if parameters are trained.
        open_dims: Whether the first dimension of feeds is declared as -1.
        runs: How often it runs.
        batches: Further sizes of the first dimension, where it is dynamic.
    """

    inputs: list[Input] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    fetches: list[str] = field(default_factory=list)
    targets: list[tuple[str, str]] = field(default_factory=list)
    optimizer: str | None = None
    open_dims: bool = False
    runs: int = 1
    batches: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int | None:
        """The first dimension of the first feed: the one that batches resize, in every feed."""
        return next((item.value.shape[0] for item in self.feeds if item.value.shape), None)

    def resized(self, array: np.ndarray, rows: int | None) -> np.ndarray:
        """A fed array resized to ``rows`` rows, if its first dimension is the batch."""
        if rows is None or array.shape[:1] != (self.rows,):
            return array
        return np.resize(array, (rows, *array.shape[1:]))

    @property
    def feeds(self) -> list[Input]:
        """The inputs that are fed."""
        return [item for item in self.inputs if not item.parameter]

    @property
    def parameters(self) -> list[Input]:
        """The inputs that live in the scope."""
        return [item for item in self.inputs if item.parameter]

    def body(
        self, noisy: bool = False, open_dims: bool | None = None, rows: int | None = None
    ) -> str:
        """The code that builds the program; it stores the variables to fetch in ``fetches``."""
        open_dims = self.open_dims if open_dims is None else open_dims
        lines = [_declaration(item, open_dims, {self.rows: rows}) for item in self.inputs]
        lines += [line.render(noisy) for line in self.lines]
        lines.append(f"fetches = [{', '.join(self.fetches)}]")
        if self.targets:
            lines += self._gradients(noisy)
        if self.optimizer:
            lines += self._training(noisy)
        return "\n".join(lines)

    def _gradients(self, noisy: bool) -> list[str]:
        names = [f"noise({name})" if noisy else name for name, _ in self.targets]
        sources = [
            item.value.name for item in self.inputs if item.value.dtype == "real" and item.trainable
        ]
        cotangents = [cotangent for _, cotangent in self.targets]
        return [
            f"gradients = paddle.static.gradients([{', '.join(names)}], [{', '.join(sources)}], "
            f"[{', '.join(cotangents)}])",
            "fetches += [gradient for gradient in gradients if gradient is not None]",
        ]

    def _training(self, noisy: bool) -> list[str]:
        terms = [f"paddle.mean(paddle.square({name} - 0.3))" for name in self._loss_terms()]
        loss = " + ".join(f"noise({term})" if noisy else term for term in terms)
        return [f"loss = {loss}", f"{self.optimizer}.minimize(loss)", "fetches.append(loss)"]

    def _loss_terms(self) -> list[str]:
        real = {value.name for line in self.lines if line.real for value in line.targets}
        trained = [item.value.name for item in self.parameters if item.trainable]
        return [name for name in self.fetches if name in real][:3] + trained

    def script(self) -> str:
        """A stand-alone script that runs the program by Paddle and by the engine."""
        feeds = "".join(f'    "{item.value.name}": {item.data},\n' for item in self.feeds)
        body = self.body().replace("REAL", '"float32"')
        return _SCRIPT.format(
            body="\n".join(f"    {line}" for line in body.splitlines()),
            feeds=feeds,
            runs=self.runs,
            rows=self.rows,
            sizes=[None, *self.batches],
            parameters=[item.value.name for item in self.parameters],
        )


def _declaration(item: Input, open_dims: bool, rows: Mapping[int | None, int | None]) -> str:
    value = item.value
    dtype = "REAL" if value.dtype == "real" else f'"{value.dtype}"'
    if item.parameter:
        line = (
            f"{value.name} = paddle.static.create_parameter({list(value.shape)}, {dtype}, "
            f'"{value.name}", '
            f"default_initializer=paddle.nn.initializer.Assign({item.data}))"
        )
        return line if item.trainable else f"{line}; {value.name}.stop_gradient = True"
    shape = list(value.shape)
    if shape:
        shape[0] = -1 if open_dims else rows.get(shape[0]) or shape[0]
    line = f'{value.name} = paddle.static.data("{value.name}", {shape}, {dtype})'
    needed = value.dtype == "real" and item.trainable
    return f"{line}; {value.name}.stop_gradient = False" if needed else line


_SCRIPT = '''"""A program on which the engine and native Paddle part."""
import numpy as np
import paddle
import paddle.nn.functional as F

import paddle_ngraph

paddle.enable_static()
main, startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
{body}
feed = {{
{feeds}}}
results = []
for engine in (False, True):
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(startup)
        with paddle_ngraph.use_ngraph(engine):
            values = []
            for rows in {sizes}:
                fed = {{
                    name: np.resize(array, (rows, *array.shape[1:]))
                    if rows and array.shape[:1] == ({rows},) else array
                    for name, array in feed.items()
                }}
                for _ in range({runs}):
                    paddle.seed(1)
                    values += executor.run(main, feed=fed, fetch_list=fetches)
        scope = paddle.static.global_scope()
        values += [np.array(scope.find_var(name).get_tensor()) for name in {parameters}]
        results.append(values)
print(paddle_ngraph.explain(main))
for native, engine in zip(*results):
    print("native", native, "engine", engine, sep="\\n")
'''


class Builder:
    """Samples a program piece by piece; the operators in :mod:`tests.fuzz.operators` work on it.

    Args:
        draw: Samples from a hypothesis strategy.
        parameters: The percentage of new float inputs that are parameters.
    """

    def __init__(self, draw: Callable[[Any], Any], parameters: int = 15) -> None:
        self._draw = draw
        self._parameters = parameters
        self.program = Program()
        self.values: list[Value] = []
        self._used: set[str] = set()
        self._counter = 0

    # Sampling. All choices shrink to the first option.

    def integer(self, first: int, last: int) -> int:
        """An integer from ``first`` to ``last``."""
        return first if first == last else self._draw(st.integers(first, last))

    def choose(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """True in ``percent`` of the cases."""
        return self.integer(0, 99) >= 100 - percent

    def shape(self, low: int = 0, high: int = MAX_RANK, largest: int = 5) -> Shape:
        """A shape of ``low`` to ``high`` dimensions."""
        rank = self.choose([n for n in (2, 1, 3, 4, 0, 5) if low <= n <= high] or [low])
        dims: list[int] = []
        for _ in range(rank):
            room = max(1, LARGEST // (4 * math.prod(dims)))
            dims.append(min(self.choose([2, 3, 1, 4, 5, 7, 9][: largest + 2]), room, largest))
        return tuple(dims)

    def axis(self, value: Value) -> int:
        """An axis of a value, from the front or from the back."""
        return self.integer(-value.rank, value.rank - 1)

    # Choosing tensors.

    def real(
        self, low: int = 0, high: int = MAX_RANK, where: Callable[[Value], bool] | None = None
    ) -> Value:
        """A float tensor of the program, or a new input."""

        def fits(value: Value) -> bool:
            return (
                value.dtype == "real"
                and low <= value.rank <= high
                and (where is None or where(value))
            )

        found = [value for value in reversed(self.values) if fits(value)]
        if found and not self.chance(10):
            return self._use(self.choose(found[:12]))
        for _ in range(4):
            value = self.new_real(self.shape(low, high))
            if where is None or where(value):
                return value
        return self.new_real((2,) * max(low, min(2, high)), calm=True)

    def of_shape(self, shape: Shape, dtype: str = "real", calm: bool = False) -> Value:
        """A tensor of exactly this shape, old or new; without NaN and infinities if ``calm``."""
        found = [
            value
            for value in reversed(self.values)
            if value.shape == shape and value.dtype == dtype and not (calm and value.wild)
        ]
        if found and not self.chance(30):
            return self._use(self.choose(found))
        return self.new_real(shape, calm) if dtype == "real" else self.new(shape, dtype)

    def partner(self, value: Value, dtype: str | None = None) -> Value:
        """A tensor that can be broadcast with ``value``, of its dtype."""
        dtype = dtype or value.dtype

        def fits(other: Value) -> bool:
            joined = broadcast(value.shape, other.shape)
            return other.dtype == dtype and joined is not None and math.prod(joined) <= LARGEST

        found = [other for other in reversed(self.values) if fits(other)]
        if found and not self.chance(25):
            return self._use(self.choose(found))
        shape = [1 if self.chance(25) else dim for dim in value.shape]
        shape = shape[self.choose([0, 0, 1, 2]) :]
        return self.new(tuple(shape), dtype)

    def whole(self, where: Callable[[Value], bool] | None = None) -> Value:
        """An integer tensor."""
        found = [
            value
            for value in reversed(self.values)
            if value.dtype in ("int32", "int64") and (where is None or where(value))
        ]
        if found and not self.chance(15):
            return self._use(self.choose(found))
        return self.new(self.shape(), self.choose(["int32", "int32", "int64"]))

    def truth(self) -> Value:
        """A bool tensor."""
        found = [value for value in reversed(self.values) if value.dtype == "bool"]
        if found and not self.chance(15):
            return self._use(self.choose(found))
        return self.new(self.shape(), "bool")

    def any_value(self, low: int = 0, high: int = MAX_RANK) -> Value:
        """A tensor of any dtype."""
        found = [value for value in reversed(self.values) if low <= value.rank <= high]
        return self._use(self.choose(found)) if found else self.real(low, high)

    def _use(self, value: Value) -> Value:
        self._used.add(value.name)
        return value

    # Inputs.

    def new(self, shape: Shape, dtype: str) -> Value:
        """A new input."""
        if dtype == "real":
            return self.new_real(shape)
        if dtype == "bool":
            return self.add_input(shape, "bool", f"RNG.integers(0, 2, {shape}).astype(bool)", 1)
        low, high = self.choose([(0, 4), (-5, 6), (-(2**24) - 9, 2**24 + 9)])
        return self.add_input(
            shape, dtype, f'RNG.integers({low}, {high}, {shape}).astype("{dtype}")', high
        )

    def new_real(self, shape: Shape, calm: bool = False) -> Value:
        """A new float input, or a parameter."""
        kind = self.choose(["uniform"] * 6 + ["grid"] * 3 + ["special"] * (not calm))
        if kind == "grid":  # many equal values: ties, zeros
            data = f'(RNG.integers(-4, 5, {shape}) / 2).astype("float32")'
            return self.add_input(
                shape, "real", data, 2.0, bits=1, parameter=self._parameter(shape)
            )
        if kind == "special" and not self.program.parameters:
            odd = "[0.5, -1.5, 2, 0, -0.0, np.nan, np.inf, -np.inf]"
            data = f'RNG.choice({odd}, {shape}).astype("float32")'
            return self.add_input(shape, "real", data, 2.0, bits=1, wild=True)
        data = f'RNG.uniform(-2, 2, {shape}).astype("float32")'
        return self.add_input(shape, "real", data, 2.0, parameter=self._parameter(shape))

    def new_ids(self, shape: Shape, count: int) -> Value:
        """A new input of indices below ``count``."""
        dtype = self.choose(["int64", "int32"])
        data = f'RNG.integers(0, {count}, {shape}).astype("{dtype}")'
        return self.add_input(shape, dtype, data, count - 1)

    def fixed(self, shape: Shape, low: float, high: float) -> Value:
        """A state that is not trained, such as a running mean."""
        data = f'RNG.uniform({low}, {high}, {shape}).astype("float32")'
        return self.add_input(shape, "real", data, high, parameter=True, trainable=False)

    def cotangent(self, shape: Shape) -> Value:
        """A new input that no operator reads: the gradient of a result."""
        number = len(self.program.inputs)
        value = Value(f"cotangent{number}", shape, leaf=True)
        data = f'np.random.default_rng({number}).uniform(-1, 1, {shape}).astype("float32")'
        self.program.inputs.append(Input(value, data, trainable=False))
        return value

    def _parameter(self, shape: Shape) -> bool:
        return bool(shape) and self.chance(self._parameters)

    def add_input(
        self,
        shape: Shape,
        dtype: str,
        data: str,
        bound: float,
        bits: int | None = None,
        parameter: bool = False,
        trainable: bool = True,
        wild: bool = False,
    ) -> Value:
        """A new input, or a parameter; ``RNG`` in its data is a separate generator."""
        number = len(self.program.inputs)
        name = f"{'p' if parameter else 'x'}{number}"
        value = Value(name, shape, dtype, bound, bits, leaf=True, wild=wild)
        data = data.replace("RNG", f"np.random.default_rng({number})")
        self.program.inputs.append(Input(value, data, parameter, trainable))
        if trainable:
            self.values.append(value)
        return value

    # Operators.

    def emit(
        self,
        code: str,
        *arguments: Value,
        shape: Shape,
        dtype: str = "real",
        bound: float | None = None,
        rounds: bool = True,
        bits: int | None = None,
        keep: bool = True,
    ) -> Value:
        """Appends a line with one result.

        Args:
            code: ``{0}``, ``{1}``, ... are placeholders for the arguments.
            arguments: The tensors read.
            shape: The result's shape.
            dtype: The result's dtype.
            bound: The result's bound; that of the largest argument if not given.
            rounds: Whether it rounds; false for operators that move or select elements.
            bits: See :class:`Value`, for operators that do not round short values.
            keep: Whether other operators may read the result.
        """
        if bound is None:
            bound = max((value.bound for value in arguments), default=1.0)
        factor = 1.0
        if dtype == "real" and bound > _REAL_BOUND:
            shift = math.ceil(math.log2(bound / _REAL_BOUND))
            factor, bound = 2.0**-shift, bound * 2.0**-shift
            bits = None if bits is None else bits + shift
        if bits is not None and bits + math.log2(max(bound, 1.0)) > _EXACT_BITS:
            bits, rounds = None, True
        if dtype == "real" and bits is not None:
            rounds = False
        wild = dtype == "real" and any(value.wild for value in arguments)
        value = Value(self._name(), shape, dtype, bound, bits, wild=wild)
        code = code if factor == 1.0 else f"{code} * {factor!r}"
        self.program.lines.append(Line((value,), code, arguments, rounds))
        if keep:
            self.values.append(value)
        return value

    def select(self, code: str, *arguments: Value, shape: Shape, **options: Any) -> Value:
        """Appends a line that moves or selects elements of its float arguments."""
        reals = [value for value in arguments if value.dtype == "real"]
        options.setdefault("bits", joint_bits(*reals))
        options.setdefault("dtype", arguments[0].dtype)
        return self.emit(code, *arguments, shape=shape, rounds=False, **options)

    def emit_several(
        self,
        code: str,
        x: Value,
        shapes: Sequence[Shape],
    ) -> list[Value]:
        """Appends a line with several results, which are slices of ``x``."""
        results = [
            Value(self._name(), shape, x.dtype, x.bound, x.bits, wild=x.wild) for shape in shapes
        ]
        if len(results) == 1:
            code = f"({code})[0]"
        self.program.lines.append(Line(tuple(results), code, (x,), rounds=False))
        self.values += results
        return results

    def in_place(self, code: str, value: Value, bound: float, rounds: bool) -> Value:
        """Appends a line that overwrites a value, which has no later readers."""
        self.values = [other for other in self.values if other is not value]
        bits = None if rounds else value.bits
        return self.emit(code, value, shape=value.shape, bound=bound, rounds=rounds, bits=bits)

    def is_fresh(self, value: Value) -> bool:
        """Whether a value is the result of an operator and has no reader yet."""
        return not value.leaf and value.name not in self._used

    def _name(self) -> str:
        self._counter += 1
        return f"v{self._counter}"


def joint_bits(*values: Value) -> int | None:
    """The binary digits after the point of any of these, ``None`` if one was rounded."""
    bits = [value.bits for value in values]
    known = [number for number in bits if number is not None]
    return max(known, default=0) if len(known) == len(bits) else None


def broadcast(first: Shape, second: Shape) -> Shape | None:
    """The common shape of two, ``None`` if there is none."""
    rank = max(len(first), len(second))
    result = []
    for one, other in zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second):
        if one != other and 1 not in (one, other):
            return None
        result.append(max(one, other))
    return tuple(result)
