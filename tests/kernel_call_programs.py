"""Programs with operators whose kernels of Paddle functions call, for several test modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle

import paddle_ngraph
from paddle_ngraph.conversion import denylist
from paddle_ngraph.partitioning import program_pass
from tests.programs import Program


@contextmanager
def kernels_called() -> Iterator[None]:
    """Calls kernels in functions, and compiles each function before its first run."""
    wanted = {
        "FLAGS_ngraph_kernel_calls": True,
        "FLAGS_ngraph_background_compile": "0",
        "FLAGS_ngraph_min_interval_us": 0,
        "FLAGS_ngraph_strict": True,
    }
    before = paddle.get_flags(list(wanted))
    paddle.set_flags(wanted)
    try:
        yield
    finally:
        paddle.set_flags(before)
        denylist.clear()


def assert_same(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
    assert len(expected) == len(found)
    for one, other in zip(expected, found):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)


def calls_in(program: Program) -> list[str]:
    """The kernel calls in the only subgraph of a program, all of whose operators are in it."""
    report = program_pass.dry_run(program.main)
    assert (len(report.intervals), report.native) == (1, [])
    return [name.removeprefix("pd_op.") for name in report.intervals[0].kernel_calls]


def predicted(predictor: Any, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    for name in predictor.get_input_names():
        predictor.get_input_handle(name).copy_from_cpu(feed[name])
    predictor.run()
    return [
        predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()
    ]


def quantity(name: str) -> int:
    return int(paddle_ngraph.stats()[name])


def single(build: Callable[..., Any], feed: Mapping[str, np.ndarray]) -> Program:
    """A program of an operator between operators with converters."""

    def whole() -> list[Any]:
        given = {
            name: paddle.static.data(name, array.shape, str(array.dtype))
            for name, array in feed.items()
        }
        x = given.pop("x")
        made = build(paddle.nn.functional.relu(x), **given)
        return list(made) if isinstance(made, (list, tuple)) else [made]

    return Program(whole)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(1, 1, shape).astype("float32")


def boxes(count: int) -> np.ndarray:
    found = np.random.default_rng(1).uniform(0, 32, (count, 4)).astype("float32")
    found[:, 2:] += found[:, :2] + 1
    return found
