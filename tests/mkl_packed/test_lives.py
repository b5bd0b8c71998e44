"""What happens to a layer besides its runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_FORKS = """
import os, signal, threading, time
import numpy as np
import paddle
from paddle_ngraph import flags, mkl_packed

flags.set("mkl_packed_provider", PROVIDER)
net = mkl_packed.LSTM(16, 16, 2, dropout=0.5)
inputs = [paddle.randn([batch, 3, 16]) for batch in (1, 8, 20)]

def outputs():
    net.eval()
    with paddle.no_grad():
        return [net(x)[0].numpy() for x in inputs]

expected = outputs()
is_over = False

def work(number):
    "Ever new sizes: most of the time something is looked up, or made."
    paddle.disable_static()
    random = np.random.default_rng(number)
    other = mkl_packed.LSTM(16, 16, 2, dropout=0.5)
    while not is_over:
        batch, steps = (int(size) for size in random.integers(2, 22, 2))
        other(paddle.zeros([batch, steps, 16]))[0].sum().backward()
        mkl_packed.clear_cache()

threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
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
    if os.waitpid(child, 0)[1] != 0:
        failed = 1
        break
is_over = True
for thread in threads:
    thread.join()
assert mkl_packed.pack_count() > 60
os._exit(failed)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_waits_for_no_thread_that_it_has_not(provider):
    script = f"PROVIDER = {provider!r}\n{_FORKS}"
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]
