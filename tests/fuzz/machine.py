"""The rule-based state machine that samples lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.fuzz.layers import FEED_WRITERS, LAYERS, OLD, OPTIMIZERS
from tests.fuzz.lives import WRITERS, Life, call_of

MOST_PROGRAMS = 5

# Sizes around those at which layers change behaviour, powers of two and a tile of the kernels.
_ROWS = st.sampled_from([3, 1, 2, 0, 4, 5, 7, 8, 9, 11, 15, 16, 17, 33, 65, 130])
_SEEDS = st.integers(0, 9)
_PARAMETERS = st.sampled_from(
    ["wide", "w0", "w1", "b0", "table", "norm_w", "batch_mean", "batch_variance", "filter",
     "average", "steps", "wide_in", "wide_out"]
)  # fmt: skip
_OPERATORS = st.sampled_from(
    ["pd_op.tanh", "pd_op.matmul", "pd_op.add", "pd_op.concat", "pd_op.slice", "pd_op.relu",
     "pd_op.softmax", "pd_op.assign_value", "pd_op.sgd_", "pd_op.tanh_grad"]
)  # fmt: skip
_ANY = st.integers(0, 10**6)


def _layers(names: list[str]) -> Any:
    return st.lists(
        st.tuples(st.sampled_from(names), st.integers(0, 4)), min_size=1, max_size=5
    )  # fmt: skip


_PIR_LAYERS, _OLD_LAYERS = _layers(list(LAYERS)), _layers(OLD)


class LifeMachine(RuleBasedStateMachine):
    """Samples the steps of a life.

    Attributes:
        watch: Called with each step before it is taken, ``begin`` and ``end`` among them; raises
            the known failure of a step.
        ended: Called with a life that ended well, and with the number of engine runs.
        failed: Called with a life that failed.
    """

    watch: ClassVar[Callable[[str], None]] = staticmethod(lambda line: None)
    ended: ClassVar[Callable[[Life, int], None]] = staticmethod(lambda life, runs: None)
    failed: ClassVar[Callable[[Life, Exception], None]] = staticmethod(lambda life, error: None)

    def __init__(self) -> None:
        super().__init__()
        self.life: Life | None = None
        self._old: list[bool] = []  # of each program
        self._failed = False
        self._again = False  # in a new process

    def _do(self, step: str, **arguments: Any) -> bool:
        assert self.life is not None
        try:
            self.watch(call_of(step, arguments))
            return self.life.do(step, **arguments)
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        assert self.life is not None
        self._failed = True
        self.failed(self.life, error)

    def _program(self, index: int) -> int:
        return index % len(self._old)

    @initialize(
        interleaved=st.booleans(),
        disk=st.booleans(),
        again=st.sampled_from([False] * 19 + [True]),
        layers=_PIR_LAYERS,
    )
    def begin(self, interleaved: bool, disk: bool, again: bool, layers: Any) -> None:
        self.watch(f"begin {interleaved}, {disk}")
        self.life = Life(interleaved, disk)
        self._again = again
        self._build([("linear", 0)])
        self._build(layers)

    def _build(self, layers: Any, **options: Any) -> None:
        if self._do("build", layers=layers, **options):
            self._old.append(bool(options.get("old")))
            self._do("run", program=len(self._old) - 1)

    # Programs.

    @precondition(lambda self: len(self._old) < MOST_PROGRAMS)
    @rule(
        layers=_PIR_LAYERS,
        train=st.sampled_from([None, *OPTIMIZERS]),
        gradient=st.booleans(),
        test=st.booleans(),
        closed=st.sampled_from([False, False, True]),
    )
    def build(
        self, layers: Any, train: str | None, gradient: bool, test: bool, closed: bool
    ) -> None:
        if any(name in FEED_WRITERS for name, _ in layers):
            train, gradient = None, False  # Paddle has no gradient of an overwritten variable
        test = test and train is None
        self._build(layers, train=train, gradient=gradient, test=test, closed=closed)

    @precondition(lambda self: len(self._old) < MOST_PROGRAMS)
    @rule(layers=_OLD_LAYERS, train=st.sampled_from([None, "SGD", "Momentum", "Adam"]))
    def build_old(self, layers: Any, train: str | None) -> None:
        if any(name in FEED_WRITERS for name, _ in layers):
            train = None
        self._build(layers, train=train, old=True)

    @precondition(lambda self: len(self._old) < MOST_PROGRAMS)
    @rule(program=_ANY)
    def clone(self, program: int) -> None:
        number = self._program(program)
        if self._do("clone", program=number):
            self._old.append(self._old[number])

    @rule(program=_ANY)
    def append(self, program: int) -> None:
        self._do("append", program=self._program(program))

    # Runs: most of a life.

    @rule(program=_ANY, rows=_ROWS, seed=_SEEDS)
    def run(self, program: int, rows: int, seed: int) -> None:
        self._do("run", program=self._program(program), rows=rows, seed=seed)

    @rule(program=_ANY, rows=_ROWS, times=st.integers(2, 4))
    def run_often(self, program: int, rows: int, times: int) -> None:
        for seed in range(times):
            self._do("run", program=self._program(program), rows=rows, seed=seed)

    @rule(program=_ANY, rows=st.lists(_ROWS, min_size=3, max_size=5, unique=True))
    def run_many_shapes(self, program: int, rows: list[int]) -> None:
        for size in rows:
            self._do("run", program=self._program(program), rows=size)

    @rule(program=_ANY, fetches=st.integers(1, 15), rows=_ROWS, cache=st.booleans())
    def run_other_fetches(self, program: int, fetches: int, rows: int, cache: bool) -> None:
        number = self._program(program)
        self._do("run", program=number, rows=rows, fetches=fetches, cache=cache)

    @rule(program=_ANY, rows=_ROWS)
    def run_fed_again(self, program: int, rows: int) -> None:
        for _ in range(3):
            self._do("run", program=self._program(program), rows=rows, again=True)

    @rule(program=_ANY, rows=_ROWS)
    def run_in_thread(self, program: int, rows: int) -> None:
        self._do("run", program=self._program(program), rows=rows, thread=True)

    # Writes, each between runs that would miss them if values were cached.

    @rule(name=_PARAMETERS, how=st.sampled_from(list(WRITERS)), seed=_SEEDS, program=_ANY)
    def write(self, name: str, how: str, seed: int, program: int) -> None:
        number = self._program(program)
        for write_index in range(2):
            self._do("run", program=number)
            self._do("write", name=name, how=how, seed=seed + write_index, program=number)
        self._do("run", program=number)

    @rule(name=_PARAMETERS, program=_ANY, row=st.integers(0, 127))
    def write_later(self, name: str, program: int, row: int) -> None:
        number = self._program(program)
        self._do("view", name=name)
        self._do("run", program=number)
        self._do("write_view", name=name, row=row, value=0.75)
        self._do("run", program=number)

    @rule(name=_PARAMETERS, row=st.integers(0, 127))
    def write_kept_view(self, name: str, row: int) -> None:
        self._do("write_view", name=name, row=row, value=-0.5)

    @rule(program=_ANY, slot=st.integers(0, 1))
    def save(self, program: int, slot: int) -> None:
        self._do("save", program=self._program(program), slot=slot)

    @rule(slot=st.integers(0, 1))
    def load(self, slot: int) -> None:
        self._do("load", slot=slot)

    @rule(program=_ANY)
    def startup(self, program: int) -> None:
        self._do("startup", program=self._program(program))

    # Scopes, executors and settings.

    @rule(number=st.integers(0, 2))
    def scope(self, number: int) -> None:
        self._do("scope", number=number)

    @rule()
    def executor(self) -> None:
        self._do("executor")

    @rule(program=_ANY, rows=_ROWS)
    def switch(self, program: int, rows: int) -> None:
        for on in (False, True):
            self._do("switch", on=on)
            self._do("run", program=self._program(program), rows=rows)

    @rule(collect=st.booleans())
    def clear(self, collect: bool) -> None:
        self._do("clear", collect=collect)

    @rule(number=st.sampled_from([1, 2, 3]))
    def threads(self, number: int) -> None:
        self._do("threads", number=number)

    @rule(type=_OPERATORS, program=_ANY, rows=_ROWS)
    def fail_converter(self, type: str, program: int, rows: int) -> None:
        number = self._program(program)
        self._do("fail", type=type)
        self._do("clear")
        self._do("run", program=number, rows=rows)
        self._do("run", program=number, rows=rows + 1)
        self._do("heal")

    def teardown(self) -> None:
        if self.life is None:
            return
        if self._failed:
            self.life.close()
            return
        try:
            self.watch("end")
            runs = self.life.end()
            if self.life.disk and self._again:
                self.life.in_new_process()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self.life.close()
        self.ended(self.life, runs)
