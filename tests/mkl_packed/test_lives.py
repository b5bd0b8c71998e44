"""Packed layers under threads, forks, changed flags and released graphs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_ngraph import _core, flags, mkl_packed
from paddle_ngraph.conversion import processor
from tests.programs import at_once

from .comparing import MODES, Packs, Shape, assert_close, data, layer, pair, run


def train(kind, net, given):
    """Runs forward and backward with separate weights, in memory that follows that of ``net``.

    Paddle adds up gradients without a lock, and ``paddle.grad`` supports one thread only.
    """
    own = kind(net.input_size, net.hidden_size, net.num_layers)
    for mine, shared in zip(own.parameters(), net.parameters()):
        shared._share_buffer_to(mine)
    return run(own, given)


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_threads_run_while_packed_weights_are_dropped(name):
    shapes = [Shape(12, 32, batch, steps, 2) for batch, steps in [(1, 5), (4, 3), (33, 2), (64, 4)]]
    native, packed = pair(name, shapes[0])
    native.eval(), packed.eval()
    kinds = getattr(nn, name), getattr(mkl_packed, name)
    trained = [data(name, shape) for shape in shapes]
    inferred = [paddle.to_tensor(given.x) for given in trained]
    expected = [train(kinds[0], native, given) for given in trained]
    outputs = [native(x)[0].numpy() for x in inferred]

    def work(number: int) -> None:
        which = number % len(shapes)
        for _ in range(4):
            if number < len(shapes):
                assert_close(expected[which], train(kinds[1], packed, trained[which]))
            else:
                with paddle.no_grad():
                    found = packed(inferred[which])[0]
                np.testing.assert_allclose(found, outputs[which], atol=1e-6)
            mkl_packed.clear_cache()

    with Packs() as packs:
        at_once(work, 2 * len(shapes))
    assert packs.count >= 4 * len(shapes) * 2 * shapes[0].cells


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.skipif(not processor.has_bfloat16(), reason="the processor has no units for bfloat16")
def test_a_precision_set_during_a_run_applies_to_later_runs(provider):
    """A weight that is packed concurrently is cached under its own precision."""
    if provider != "onednn":
        pytest.skip("bfloat16 has a provider of its own")
    net = layer("RNN_TANH", Shape(8, 1024, 2, 3), packed=True)
    net.eval()
    x = paddle.randn([2, 3, 8])
    expected = net(x)[0].numpy()
    random = np.random.default_rng(0)

    def keep_running() -> None:
        paddle.disable_static()
        while not is_over.is_set():
            mkl_packed.clear_cache()
            with paddle.no_grad():
                net(x)

    try:
        for _ in range(40):
            is_over = threading.Event()
            thread = threading.Thread(target=keep_running)
            thread.start()
            for _ in range(15):
                for precision in ("bf16", "f32"):
                    flags.set("ngraph_precision", precision)
                    time.sleep(random.uniform(0, 0.001))
            is_over.set()
            thread.join()
            np.testing.assert_allclose(net(x)[0], expected, atol=1e-5)
    finally:
        is_over.set()
        flags.set("ngraph_precision", "f32")


@pytest.mark.parametrize("mode", MODES)
def test_flags_set_between_forward_and_backward(mode, provider):
    """Operands of the gradient that a forward pass saves depend on no flag."""
    shape = Shape(24, 48, 48, 3, layers=2, direction="bidirect")
    native, packed = pair(mode, shape)
    given = data(mode, shape)
    others = {"ngraph_num_threads": 3, "use_mkl_packed": False, "mkl_packed_provider": "auto"}
    before = {name: flags.get(name) for name in others}
    x = [paddle.to_tensor(given.x, stop_gradient=False) for _ in range(2)]
    losses = [(net(value)[0] ** 2).sum() for net, value in zip((native, packed), x)]
    try:
        for name, value in others.items():
            flags.set(name, value)
        for loss in losses:
            loss.backward()
    finally:
        for name, value in before.items():
            flags.set(name, value)
    found = [
        {"x": value.grad.numpy(), **{n: p.grad.numpy() for n, p in net.named_parameters()}}
        for net, value in zip((native, packed), x)
    ]
    assert_close(*found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_given", [False, True])
def test_a_gradient_has_no_gradient(mode, is_given):
    """A gradient of a gradient is an error, as in Paddle; ``create_graph`` itself is allowed."""
    net = layer(mode, Shape(6, 16, 4, 5), packed=True)
    x = paddle.randn([4, 5, 6])
    x.stop_gradient = False

    def gradient(create_graph: bool):
        out, _ = net(x, None, paddle.to_tensor([5, 1, 0, 3]))
        start = [paddle.ones_like(out)] if is_given else None
        return paddle.grad(out, [x], start, create_graph=create_graph)[0]

    found = gradient(create_graph=True)
    np.testing.assert_array_equal(found, gradient(create_graph=False))
    with pytest.raises(RuntimeError, match="has no gradient"):
        (found**2).sum().backward()


def test_a_second_backward_pass_through_one_graph():
    net = layer("GRU", Shape(6, 16, 4, 5), packed=True, time_major=True)
    out, _ = net(paddle.randn([5, 4, 6]))
    (2 * out).sum().backward(retain_graph=True)
    (2 * out).sum().backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        (2 * out).sum().backward()


_FORKS = """
import os, signal, threading, time
import numpy as np
import paddle
from paddle_ngraph import _core, flags, mkl_packed

flags.set("mkl_packed_provider", PROVIDER)
net = mkl_packed.LSTM(16, 16, 2, dropout=0.5)
inputs = [paddle.randn([batch, 3, 16]) for batch in (1, 8, 20)]

def outputs():
    net.eval()
    with paddle.no_grad():
        return [net(x)[0].numpy() for x in inputs]

expected = outputs()
is_over = False
passes = [0] * 3

def work(number):
    "Ever new sizes: most of the time something is looked up, or made."
    paddle.disable_static()
    random = np.random.default_rng(number)
    other = mkl_packed.LSTM(16, 16, 2, dropout=0.5)
    while not is_over:
        batch, steps = (int(size) for size in random.integers(2, 22, 2))
        other(paddle.zeros([batch, steps, 16]))[0].sum().backward()
        mkl_packed.clear_cache()
        passes[number] += 1

threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
while min(passes) < 3:  # see below
    time.sleep(0.001)
failed = 0
for _ in range(60):
    time.sleep(0.002)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        found = outputs()
        net.train()
        net(inputs[2])[0].sum().backward()
        os._exit(not all(np.allclose(a, b, atol=1e-6) for a, b in zip(found, expected)))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        print("a child ended with", status, flush=True)
        failed = 1
        break
is_over = True
for thread in threads:
    thread.join()
assert mkl_packed.pack_count() > 60
os._exit(failed)
"""


@pytest.mark.slow("forks processes while others compute")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_does_not_deadlock(provider):
    """Covers locks that are taken in every pass.

    Locks that Paddle takes when a thread allocates, or runs a line of its code, for the first time
    are not covered: its memory statistics, logging lines, one-time objects of Eigen. With plain
    layers, too, about one child in a hundred waits for these where threads have just started. Nor
    is the lock of the linker: the second pass, which adds to the gradients of the first, makes
    Paddle load MKL.
    """
    script = f"PROVIDER = {provider!r}\n{_FORKS}"
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]


# Code that oneDNN compiles when a matmul first needs it, without an object of its own: sgemm.
_COMPILED = r"""
import collections, pathlib, re
import numpy as np
import paddle
from paddle_ngraph import _core, flags, mkl_packed

flags.set("mkl_packed_provider", "onednn")
flags.set("ngraph_precision", PRECISION)

def compiled():
    names = [path.name.split(".")[0] for path in pathlib.Path().glob("dnnl_dump*")]
    return collections.Counter(
        name for name in names if re.search("gemv|sgemm|gemm_f32|smalln|f32_copy_", name)
    )

_core.mkl_packed.provider()
first = compiled()
random = np.random.default_rng(3)
for size in [1, 2, 8, 16, 17, 33, 64, 200, 300]:
    for batch in [1, 2, 5, 8, 16, 20, 64, 300]:
        hidden, steps = (int(random.choice([1, 2, 3, 8, 17, 33])) for _ in range(2))
        net = mkl_packed.LSTM(size, hidden)
        net(paddle.zeros([batch, steps, size]))[0].sum().backward()
        net.eval()
        with paddle.no_grad():
            net(paddle.zeros([batch, steps, size]))
print(dict(first), dict(compiled() - first))
assert len(first) > 2 and compiled() == first and mkl_packed.pack_count() > 100
"""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("processor_of", ["", "AVX2"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_matmuls_compile_no_code_outside_fork_safe_locks(
    provider, precision, processor_of, tmp_path
):
    """oneDNN holds a lock during compilation, so code is compiled earlier, before any fork."""
    if provider != "onednn":
        pytest.skip("it is not oneDNN that multiplies")
    environment = {**os.environ, "DNNL_JIT_DUMP": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    if processor_of:
        environment["ONEDNN_MAX_CPU_ISA"] = processor_of
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"PRECISION = {precision!r}\n{_COMPILED}"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment,
    )
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_steps_computed_alone_are_equal(mode, batch):
    """Results equal those where threads were late, from one step on or from the first one."""
    shape = Shape(40, 320, batch, 6, 1)
    native, packed = pair(mode, shape)
    given = data(mode, shape)
    expected = run(native, given)
    for seconds in (0, 600, 0):
        _core.mkl_packed.run_single_threaded_for(seconds)
        assert _core.mkl_packed.is_straggling() == (seconds > 0)
        assert_close(expected, run(packed, given))


LATE = """
import sys
import numpy as np, paddle
from paddle_ngraph import _core, flags, mkl_packed

_core.allow_more_threads_than_cores(True)
flags.set("ngraph_num_threads", 2)
flags.set("mkl_packed_provider", "onednn")
paddle.seed(0)
packed = mkl_packed.LSTM(256, 256)
native = paddle.nn.LSTM(256, 256)
native.set_state_dict(packed.state_dict())
x = paddle.to_tensor(np.random.default_rng(0).normal(size=(1, 50, 256)).astype("float32"))
with paddle.no_grad():
    expected = native(x)[0].numpy()
    print("runs", flush=True)
    while not _core.mkl_packed.is_straggling():
        np.testing.assert_allclose(packed(x)[0], expected, atol=1e-5)
    np.testing.assert_allclose(packed(x)[0], expected, atol=1e-5)
print("late", flush=True)
"""


@pytest.mark.slow("starts a process")
def test_late_threads_are_detected(provider):
    """As if other processes ran on each core; here the whole process stops within a step."""
    if provider == "mkl":  # one thread takes a row
        pytest.skip("no threads meet")
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", LATE], stdout=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    try:
        assert job.stdout.readline() == "runs\n"
        for _ in range(500):
            if select.select([job.stdout], [], [], 0.1)[0]:
                break
            job.send_signal(signal.SIGSTOP)
            time.sleep(0.2)  # for twice as long it runs alone
            job.send_signal(signal.SIGCONT)
        else:
            raise AssertionError("nobody has noticed")
        assert job.stdout.readline() == "late\n" and job.wait(60) == 0
    finally:
        job.kill()
        job.wait()
