"""Small programs that several tests run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph.paddle_private.names import scope_remover
from paddle_ngraph.plan import data_dependency_engine, devices


@contextmanager
def strict_runs(strict: bool = True) -> Iterator[None]:
    """Runs that raise an error when the engine cannot run something."""
    before = paddle.get_flags("FLAGS_ngraph_strict")
    paddle.set_flags({"FLAGS_ngraph_strict": strict})
    try:
        yield
    finally:
        paddle.set_flags(before)


class Program:
    """A static program, its startup program and a separate scope.

    Args:
        build: Called inside the program; returns the variables to fetch.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        self.scope = paddle.static.Scope()
        with paddle.static.program_guard(self.main, self.startup), paddle.utils.unique_name.guard():
            fetches = build()
        self.fetches = list(fetches) if isinstance(fetches, (list, tuple)) else [fetches]
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(self.scope), paddle_ngraph.use_ngraph(False):
            paddle.seed(3)
            self.executor.run(self.startup)

    def run(self, engine: bool = True, **feed: np.ndarray) -> list[np.ndarray]:
        """Runs the program once, by the engine or by Paddle."""
        with paddle.static.scope_guard(self.scope), paddle_ngraph.use_ngraph(engine):
            return self.executor.run(self.main, feed=feed, fetch_list=self.fetches)

    def run_as_is(self, **feed: np.ndarray) -> list[np.ndarray]:
        """Runs the program once, with the flag unchanged."""
        # As an argument: `scope_guard` switches the scope of all threads.
        return self.executor.run(self.main, feed=feed, fetch_list=self.fetches, scope=self.scope)

    def both(self, **feed: np.ndarray) -> list[np.ndarray]:
        """Runs by Paddle and by the engine; asserts that the engine ran and the results agree."""
        native = self.run(engine=False, **feed)
        before = paddle_ngraph.stats()["engine_runs"]
        results = self.run(engine=True, **feed)
        assert paddle_ngraph.stats()["engine_runs"] > before, "the engine did not run"
        for expected, actual in zip(native, results):
            assert expected.dtype == actual.dtype
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
        return results

    def variable(self, name: str) -> np.ndarray:
        """The contents of a variable of the scope."""
        return np.array(self.scope.find_var(name).get_tensor())


def is_ended(scope: Any) -> bool:
    """Whether a scope was destroyed; afterwards it is."""
    try:
        scope_remover()(scope)
    except Exception as error:
        assert "nonexistent scope" in str(error)
        return True
    return False


@contextmanager
def cores_of_plans(count: int) -> Iterator[None]:
    """Sets the number of cores that plans find: a core is only a name to them."""
    with ExitStack() as stack:
        for module in (devices, data_dependency_engine):
            stack.enter_context(patch.object(module, "usable_cores", lambda: tuple(range(count))))
        yield


def at_once(work: Callable[[int], None], count: int = 4) -> None:
    """Runs ``work(thread)`` in threads that start together; raises an exception of one of them.

    Each is in the mode of the caller, static or dynamic, which is a setting of each thread.
    """
    gate, failures = threading.Barrier(count), []
    set_mode = paddle.disable_static if paddle.in_dynamic_mode() else paddle.enable_static

    def run(number: int) -> None:
        set_mode()
        gate.wait()
        try:
            work(number)
        except Exception as error:  # raised by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    if failures:
        raise failures[0]


def summary(error: BaseException) -> list[str]:
    """The message of Paddle's error, without call stack and operator lines."""
    text = str(error).partition("[operator")[0].rpartition("Error: ")[2]
    return re.sub(r"^\(\w+\) ", "", text).split()


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def parameter(*shape: int, seed: int = 0) -> Any:
    """A parameter of the program that is being built, with equal small values in each run."""
    return paddle.static.create_parameter(
        list(shape),
        "float32",
        default_initializer=paddle.nn.initializer.Assign(0.4 * floats(*shape, seed=seed)),
    )


def varied(*shape: int) -> np.ndarray:
    """A parameter with different values for each shape."""
    return floats(*shape, seed=sum(shape) + len(shape))


def chain() -> Any:
    """``exp(relu(x) * 2 + 1)`` for x [-1, 4]."""
    x = paddle.static.data("x", [-1, 4], "float32")
    return paddle.exp(paddle.nn.functional.relu(x) * 2.0 + 1.0)


def linear_regression() -> Any:
    """One training step of ``x @ w + b`` with SGD for x [-1, 4], y [-1, 1]; fetches the loss."""
    x = paddle.static.data("x", [-1, 4], "float32")
    y = paddle.static.data("y", [-1, 1], "float32")
    prediction = paddle.nn.Linear(4, 1)(x)
    loss = paddle.mean(paddle.nn.functional.square_error_cost(prediction, y))
    paddle.optimizer.SGD(0.1).minimize(loss)
    return loss


def counted(
    body: Callable, *start: Any, end: Any, first: int = 0, goes_on: Callable | None = None
) -> list[Any]:
    """A counting loop: ``body`` takes the counter first, and returns all but the counter."""

    def more(i: Any, *h: Any) -> Any:
        return i < end if goes_on is None else paddle.logical_and(i < end, goes_on(*h))

    found = paddle.static.nn.while_loop(
        more,
        lambda i, *h: [i + 1, *body(i, *h)],
        [paddle.full([1], first, "int64"), *start],
    )
    return list(found)


def fed_limit() -> Any:
    return paddle.static.data("limit", [1], "int64")


def with_a_block_as_attribute(x: Any) -> Any:
    """Appends ``relu`` as in a damaged file: an attribute is the block around it.

    No part of such a ProgramDesc program is translated.
    """
    out = paddle.nn.functional.relu(x)
    program = paddle.static.default_main_program()
    program.global_block().ops[-1].desc.set_block_attr("unknown", program.desc.block(0))
    return out


def with_untranslatable_noise(x: Any) -> Any:
    """Adds noise to a variable [n, 3] of a ProgramDesc program, by an operator that PIR lacks.

    Its samples follow those of other operators, so that the program cannot be translated at all.
    """
    block = paddle.static.default_main_program().global_block()
    noise = block.create_var(dtype="float32", shape=[1, 3])
    attributes = {"shape": [1, 3], "dtype": noise.dtype, "diag_num": 1, "diag_step": 1}
    block.append_op(type="uniform_random", outputs={"Out": noise}, attrs=attributes)
    return x + noise


def counts_of_two_processes(module: str, folder: Path, seconds: float = 120) -> list[list[int]]:
    """Returns how many functions ``once_on_disk`` of a module builds and loads, in two processes.

    Args:
        module: Its ``once_on_disk`` prints "counts" and the two numbers.
        folder: Where functions are stored.
        seconds: The time limit of each process.
    """
    settings = {
        "FLAGS_ngraph_cache_dir": str(folder),
        "FLAGS_ngraph_cache_min_ms": "0",
        "FLAGS_ngraph_min_interval_us": "0",
        "FLAGS_ngraph_background_compile": "0",
    }
    # The package reads the environment before tests set it.
    run = "import paddle, paddle_ngraph; paddle.enable_static()"
    run += f"; import {module}; {module}.once_on_disk()"
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", run],
            env={**os.environ, **settings},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, done.stderr
        counts.append(list(map(int, done.stdout.rpartition("counts")[2].split())))
    return counts
