"""Tensors of complex64, complex128, float64 and wide int64 between kernel calls of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import _C_ops as operators

from paddle_ngraph.partitioning import program_pass
from tests.kernel_call_programs import (
    assert_same,
    calls_in,
    floats,
    kernels_called,
    quantity,
    single,
)
from tests.programs import Program, counts_of_two_processes

Step = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with kernels_called():
        yield


def spd(x: Any) -> Any:
    """A matrix that is symmetric and positive definite, of batches of [4, 4]."""
    return paddle.matmul(x, x, transpose_y=True) + 4.0 * paddle.eye(4, dtype=x.dtype)


# By dtype: from float32 [2, 4, 4] to the dtype, from the dtype to it, and from it to float32.
STARTS: dict[str, list[Step]] = {
    "float64": [lambda x: paddle.cast(x, "float64")],
    "complex64": [
        lambda x: operators.fft_r2c(x, [2], "backward", True, False),
        lambda x: paddle.complex(x, x * 2.0),
        lambda x: paddle.cast(x, "complex64"),
    ],
    "complex128": [lambda x: paddle.cast(paddle.cast(x, "float64"), "complex128")],
}
ELEMENTWISE: list[Step] = [
    lambda x: x + x,
    lambda x: x * x,
    lambda x: x - x * x,
    lambda x: paddle.tanh(x),
    lambda x: paddle.transpose(x, [1, 0, 2]).transpose([1, 0, 2]),
    lambda x: paddle.concat([x[..., 1:], x[..., :1]], -1),
    lambda x: paddle.stack([x, x])[1],
    lambda x: paddle.reshape(x, [8, 4]).reshape([2, 4, 4]),
    lambda x: paddle.roll(x, 1, 2),
    lambda x: paddle.flip(x, [1]),
    lambda x: paddle.where(paddle.ones([2, 4, 4], "bool"), x, x * x),
    lambda x: paddle.exp(x * 0.125),
]
MIDDLES: dict[str, list[Step]] = {
    "float64": [
        *ELEMENTWISE,
        lambda x: paddle.cumsum(x, -1),
        lambda x: paddle.sort(x, -1),
        lambda x: paddle.linalg.cholesky(spd(x)),
        lambda x: paddle.linalg.inv(spd(x)),
        lambda x: paddle.linalg.solve(spd(x), x),
        lambda x: paddle.linalg.svd(x)[0],
        lambda x: paddle.linalg.qr(x)[1],
        lambda x: paddle.linalg.eigh(spd(x))[1],
        lambda x: paddle.nn.functional.softmax(x, -1),
        lambda x: x / (x.abs() + 1.0),
    ],
    "complex64": [
        *ELEMENTWISE,
        lambda x: operators.fft_c2c(x, [1], "ortho", True),
        lambda x: paddle.conj(x),
        lambda x: paddle.matmul(x, x),
        lambda x: paddle.as_complex(paddle.as_real(x)),
    ],
}
MIDDLES["complex128"] = MIDDLES["complex64"]
ENDS: dict[str, list[Step]] = {
    "float64": [lambda x: paddle.cast(x, "float32"), lambda x: x],
    "complex64": [paddle.real, paddle.imag, paddle.abs, lambda x: paddle.as_real(x), lambda x: x],
    "complex128": [lambda x: paddle.cast(paddle.real(x), "float32"), lambda x: x],
}


def random_program(number: int) -> tuple[str, Program]:
    """A random program of operators of a dtype, between operators with converters."""
    generator = np.random.default_rng(number)
    dtype = list(STARTS)[number % len(STARTS)]

    def any_of(steps: list[Step]) -> Step:
        return steps[generator.integers(len(steps))]

    def build(x: Any) -> Any:
        x = any_of(STARTS[dtype])(x)
        others = [x]
        for _ in range(4):
            x = any_of(MIDDLES[dtype])(x) * 0.5
            others.append(x)
        return [any_of(ENDS[dtype])(x) for x in (others[generator.integers(5)], x)]

    return dtype, single(build, {"x": floats(2, 4, 4)})


@pytest.mark.parametrize("number", range(12))
def test_random_operators(number):
    _, program = random_program(number)
    feed = {"x": floats(2, 4, 4)}
    calls = calls_in(program)
    natively = program.run(False, **feed)
    before = quantity("kernel_calls"), quantity("native_runs")
    for _ in range(2):
        assert_same(natively, program.run(**feed))
    # The build computes those of constants.
    assert quantity("kernel_calls") >= before[0] + 2 * (len(calls) - calls.count("eye"))
    assert quantity("native_runs") == before[1]


def random_shape(x: Any, generator: np.random.Generator) -> Any:
    """A tensor in another shape."""
    sizes = [size for size in x.shape if size != 1]
    whole = int(np.prod(sizes))
    divisor = int(generator.choice([d for d in range(1, whole + 1) if whole % d == 0]))
    axis = int(generator.integers(x.ndim))
    steps: list[Step] = [
        lambda x: paddle.reshape(x, [divisor, -1]),
        lambda x: paddle.reshape(x, [0] * axis + [-1]),
        lambda x: paddle.unsqueeze(x, [axis, -1]),
        lambda x: paddle.squeeze(paddle.unsqueeze(x, axis), axis - x.ndim - 1),
        lambda x: paddle.squeeze(paddle.unsqueeze(x, [0, -1])),
    ]
    if "complex" not in str(x.dtype):  # for which Paddle has no kernel of flatten
        steps.append(lambda x: paddle.flatten(x, axis))
    return steps[generator.integers(len(steps))](x)


@pytest.mark.parametrize("number", range(12))
def test_no_kernel_runs_for_another_shape_of_bytes(number):
    """At the borders of the function, between kernels, and of constants."""
    generator = np.random.default_rng(number)
    dtype = list(STARTS)[number % len(STARTS)]

    def build(x: Any, z: Any) -> list[Any]:
        x = STARTS[dtype][0](x)
        constant = paddle.full([2, 3], 0.1, dtype) if dtype == "float64" else z
        found = []
        for y in (x, z, constant):
            for _ in range(3):
                y = random_shape(y, generator)
                y = paddle.tanh(y) if generator.integers(2) else y
            found.append(random_shape(y, generator))
        return found

    z = generator.normal(0, 1, (3, 1, 4)) * (1 + 2.0**-40)
    feed = {"x": floats(2, 4, 4), "z": z.astype(dtype) * (1 if dtype == "float64" else 1 + 1j)}
    program = single(build, feed)
    assert not {"reshape", "flatten", "squeeze", "unsqueeze"}.intersection(calls_in(program))
    before = quantity("native_runs")
    natively = program.run(False, **feed)
    for _ in range(2):
        assert_same(natively, program.run(**feed))
    assert quantity("native_runs") == before


def test_no_kernel_runs_for_another_shape_of_bytes_of_any_batch_and_for_gradients():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 4, 6], "float32")
        x.stop_gradient = False
        y = paddle.nn.Linear(6, 6)(x)
        spectrum = paddle.fft.rfft(y, axis=1)
        size = paddle.abs(spectrum.reshape([-1, 9, 2]) * 2.0)
        y = paddle.exp(paddle.flatten(paddle.cast(size, "float64"), 1))
        loss = paddle.cast(y.mean(), "float32")
        paddle.optimizer.SGD(0.1).minimize(loss)
        return [loss]

    natively, program = Program(build), Program(build)
    calls = calls_in(program)
    assert {"fft_r2c_grad", "exp_grad"} <= set(calls)
    views = {"reshape", "flatten", "reshape_grad", "flatten_grad"}
    assert not views.intersection(calls)
    assert views <= {op.name().removeprefix("pd_op.") for op in program.main.global_block().ops}
    before = quantity("native_runs")
    for batch in (2, 5, 3, 2, 7):
        feed = {"x": floats(batch, 4, 6)}
        (expected,), (found,) = natively.run(False, **feed), program.run(**feed)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert quantity("native_runs") == before


def test_a_kernel_runs_where_the_size_of_bytes_depends_on_data():
    def build(x: Any) -> list[Any]:
        z = paddle.masked_select(paddle.cast(x, "float64"), x > 0.5)
        return [paddle.reshape(z, [-1, 1]) * 2.0]

    program = single(build, {"x": floats(4, 4)})
    assert "reshape" in calls_in(program)
    before = quantity("native_runs")
    for shift in (0.0, 1.0, -9.0):
        feed = {"x": floats(4, 4) + np.float32(shift)}
        assert_same(program.run(False, **feed), program.run(**feed))
    assert quantity("native_runs") == before


def test_integers_of_64_bits():
    """Only kernels read them: nothing needs 32 bits, and nothing is copied."""
    program = single(
        lambda x, wide: [
            *operators.mode(operators.kthvalue(wide, 2, 1, False)[0], -1, False),
            operators.mode(wide, 1, False)[0],
            x * 2.0,
        ],
        {"x": floats(3), "wide": (wide := np.arange(24).reshape(1, 4, 3, 2) + 2**40)},
    )
    assert "kthvalue" in calls_in(program)
    before = quantity("kernel_calls"), quantity("kernel_results_copied")
    feed = {"x": floats(3), "wide": wide}
    assert_same(program.run(False, **feed), program.run(**feed))
    assert quantity("kernel_calls") > before[0]
    assert quantity("kernel_results_copied") == before[1]


def test_integers_that_a_converter_reads_are_checked():
    program = single(
        lambda x, wide: [x + paddle.cast(operators.mode(wide, 0, False)[0], "float32")],
        {"x": floats(3), "wide": (small := np.arange(12).reshape(4, 3))},
    )
    feed = {"x": floats(3), "wide": small}
    assert_same(program.run(False, **feed), program.run(**feed))
    paddle.set_flags({"FLAGS_ngraph_strict": False})
    before = quantity("native_runs")
    feed["wide"] = small + 2**40
    assert_same(program.run(False, **feed), program.run(**feed))
    assert quantity("native_runs") > before


def test_inputs_and_parameters_of_the_function():
    def build(x: Any, z: Any, d: Any) -> list[Any]:
        return [paddle.real(z * z) * x, paddle.cast(d * d, "float32") + x, z + z, d - 1.0]

    feed = {
        "x": floats(2, 3),
        "z": (floats(2, 3) + 1j * floats(2, 3)).astype("complex64"),
        "d": floats(2, 3).astype("float64") * (1 + 2.0**-40),
    }
    program = single(build, feed)
    assert len(calls_in(program)) == 6
    assert_same(program.run(False, **feed), program.run(**feed))


def spectra(trains: bool) -> Program:
    """A network with a loss of spectra, as vocoders have; see also paddle.signal.stft."""

    def build() -> Any:
        x = paddle.static.data("x", [2, 96], "float32")
        y = paddle.nn.Linear(96, 96)(x)
        loss = 0.0
        for size in (16, 32):
            made, real = (paddle.signal.stft(w, size, size // 4).abs() for w in (y, x))
            loss = loss + ((made - real) ** 2).mean()
        if trains:
            paddle.optimizer.Adam(0.01).minimize(loss)
        return [loss]

    return Program(build)


@pytest.mark.parametrize("trains", [False, True])
def test_a_loss_of_spectra(trains):
    natively, program = spectra(trains), spectra(trains)
    report = program_pass.dry_run(program.main)
    assert (len(report.intervals), report.native) == (1, [])
    before = quantity("native_runs")
    for step in range(3):
        feed = {"x": np.random.default_rng(step).normal(0, 1, (2, 96)).astype("float32")}
        (expected,), (found,) = natively.run(False, **feed), program.run(**feed)
        np.testing.assert_allclose(found, expected, rtol=2e-4)
    assert quantity("native_runs") == before


def once_on_disk() -> None:
    paddle.set_flags({"FLAGS_ngraph_kernel_calls": True})
    feed = {"x": floats(2, 4), "d": floats(2, 4).astype("float64") * (1 + 2.0**-40)}
    program = single(lambda x, d: [x * 2.0, paddle.cumsum(d * d, -1)], feed)
    assert_same(program.run(False, **feed), program.run(**feed))
    print("counts", quantity("functions_built"), quantity("functions_loaded"))


@pytest.mark.slow("two new processes")
def test_functions_on_disk(tmp_path):
    assert counts_of_two_processes(__name__, tmp_path) == [[1, 0], [0, 1]]
