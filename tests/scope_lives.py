"""Lives of programs on scopes, compared with the expected result of each run.

tests/frontends/executor/test_scope_tracking.py runs them.

A step of a life runs a program or creates variables again; the result of a run depends on nothing
but the number of training steps since the variables were created. A fault of this type ends the
process, so that this is a script of its own: ``python -m tests.scope_lives KIND PART OF``.
"""

from __future__ import annotations

import itertools
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import paddle
from paddle.nn import functional
from paddle.pir_utils import OldIrGuard

import paddle_ngraph
from tests.programs import floats

LENGTH = 4
KINDS = ("whole", "cut", "kid", "old_style")


def network(kind: str, trains: bool) -> tuple[Any, Any]:
    """Prediction and loss. The engine runs the whole program, unless it is split."""
    x = paddle.static.data("x", [-1, 6], "float32")
    y = paddle.static.data("y", [-1, 1], "int64")
    first, last = (
        paddle.nn.Linear(
            *shape,
            paddle.ParamAttr(initializer=paddle.nn.initializer.Assign(floats(*shape))),
            False,
        )
        for shape in ((6, 5), (5, 3))
    )
    norm = paddle.nn.BatchNorm1D(5)
    if not trains:
        norm.eval()
    hidden = functional.relu(first(x)) if kind == "old_style" else norm(first(x))
    logits = last(hidden) * paddle.arange(3, dtype="float32") * 0.3
    if kind == "cut":
        logits = (logits.cast("float64") * 1.25).cast("float32")
    return logits, functional.cross_entropy(logits, y).mean()


class Life:
    """Programs that share parameters, and their scopes."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.main, self.startup, self.test = (paddle.static.Program() for _ in range(3))
        with paddle.static.program_guard(self.main, self.startup), paddle.utils.unique_name.guard():
            _, self.loss = network(kind, trains=True)
            paddle.optimizer.Adam(0.05).minimize(self.loss)
        with paddle.static.program_guard(self.test), paddle.utils.unique_name.guard():
            self.logits, _ = network(kind, trains=False)
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        self.begin()

    def begin(self) -> None:
        """A new scope."""
        self.root = paddle.static.Scope()
        self.scope = self.root.new_scope() if self._kind == "kid" else self.root
        self.start()

    def _run(self, program: Any, fetch: list[Any], feed: dict[str, Any]) -> Any:
        before = paddle_ngraph.stats()["engine_runs"]
        found = self.executor.run(program, feed=feed, fetch_list=fetch, scope=self.scope)
        if feed and paddle_ngraph.is_enabled():
            assert paddle_ngraph.stats()["engine_runs"] > before, "the engine did not run"
        return found

    def start(self) -> None:
        """Runs the startup program: initial parameters."""
        self._run(self.startup, [], {})
        self.trained = 0

    def train(self) -> Any:
        """Runs a training step; returns its loss."""
        feed = {"x": floats(7, 6, seed=self.trained), "y": np.arange(7).reshape(7, 1) % 3}
        self.trained += 1
        return self._run(self.main, [self.loss], feed)[0]

    def infer(self) -> Any:
        """Returns a prediction; writes no variable."""
        feed = {"x": floats(3, 6, seed=99), "y": np.zeros([3, 1], "int64")}
        return self._run(self.test, [self.logits], feed)[0]

    def switch(self) -> None:
        """Switches between Paddle and the engine."""
        paddle_ngraph.disable() if paddle_ngraph.is_enabled() else paddle_ngraph.enable()

    def start_elsewhere(self) -> None:
        """Runs the startup program by another Executor, which erases existing variables."""
        executor, self.executor = self.executor, paddle.static.Executor(paddle.CPUPlace())
        self.start()
        self.executor = executor

    def erase(self) -> None:
        """Erases every variable of the scope, and creates it again."""
        for name in self.root.local_var_names():
            self.root.erase([name])
        self.start()

    def end_scope(self) -> None:
        """Ends the scope; the next one may be at the same address."""
        self.root.drop_kids() if self._kind == "kid" else self.root._remove_from_pool()
        if self._kind == "kid":
            self.scope = self.root.new_scope()
            self.start()
        else:
            self.begin()


STEPS = ("start", "train", "infer", "switch", "start_elsewhere", "erase", "end_scope")


def expected(life: Life) -> tuple[list[Any], list[Any]]:
    """By Paddle, without a restart: the loss of each step, the prediction before each step."""
    losses, predictions = [], []
    for _ in range(2 * LENGTH + 2):
        predictions.append(life.infer())
        losses.append(life.train())
    return losses, predictions


def live(life: Life, steps: tuple[str, ...], losses: list[Any], predictions: list[Any]) -> None:
    """Runs a life; training and inference between its steps."""
    for step in ("train", *steps, "infer", "train"):
        at = life.trained
        found = getattr(life, step)()
        want = {"train": losses, "infer": predictions}.get(step)
        if want is not None:
            np.testing.assert_allclose(found, want[at], rtol=2e-4, atol=1e-5, err_msg=step)


def main(kind: str, part: int, of: int) -> None:
    """Runs every ``of``-th life of a type."""
    paddle_ngraph.enable()  # before the first use, Paddle itself crashes after an erasure
    paddle_ngraph.disable()
    with OldIrGuard() if kind == "old_style" else nullcontext():
        losses, predictions = expected(Life(kind))
        lives = list(itertools.product(STEPS, repeat=LENGTH))
        for steps in lives[part::of]:
            paddle_ngraph.disable()
            print(*steps, flush=True)
            live(Life(kind), steps, losses, predictions)
        print("lived", paddle_ngraph.stats()["engine_runs"])


if __name__ == "__main__":
    paddle.enable_static()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
