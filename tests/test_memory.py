"""Caches are bounded, and clear_cache releases them."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import caches, flags
from paddle_ngraph.partitioning import background_compile
from tests import leaks
from tests.programs import Program, at_once, floats

_MB = 1 << 20


def _output_of(script: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "FLAGS_ngraph_cache_dir": "", **environment},
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout


_IMPORT = """
import os
import numpy as np
import openvino  # which starts a thread of its own
import paddle

def resident():
    status = open("/proc/self/status").read().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) >> 10

def threads():
    return len(os.listdir("/proc/self/task"))

names = [f"FLAGS_{name}" for name in (
    "enable_pir_api", "enable_pir_in_executor", "enable_pir_in_executor_trace_run",
    "new_executor_sequential_run", "paddle_num_threads", "check_nan_inf")]
environment, settings, running = dict(os.environ), paddle.get_flags(names), threads()
import paddle_ngraph
assert dict(os.environ) == environment
assert paddle.get_flags(names) == settings
assert threads() <= running
before = resident()
arrays = [np.ones(10_000_000, np.float32) for _ in range(5)]
assert resident() > before + 150
del arrays
assert resident() < before + 20
"""


@pytest.mark.slow("starts a process")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells of memory")
def test_an_import_changes_nothing_in_the_process() -> None:
    _output_of(_IMPORT, FLAGS_use_ngraph="")


def doubled() -> Any:
    return [paddle.static.data("x", [-1, 1024], "float32") * 2.0]


_KERNELS = (
    _IMPORT
    + """
import ctypes

import openvino as ov
from openvino import opset13 as op

from paddle_ngraph.conversion.openvino_core import core

def say(text):
    print(text, flush=True)

before = dict(os.environ)
core()
library = ctypes.CDLL(None)
library.getenv.restype = ctypes.c_char_p
assert library.getenv(b"ONEDNN_PRIMITIVE_CACHE_CAPACITY") == (%(variable)r or None)
assert dict(os.environ) == before
capacity = ctypes.c_int()
paddles = ctypes.CDLL(os.path.join(os.path.dirname(paddle.__file__), "libs", "libdnnl.so.3"))
paddles.dnnl_get_primitive_cache_capacity(ctypes.byref(capacity))
say(f"Paddle's {capacity.value}")

def compile_softmax(size):
    say(f"softmax {size}")
    x = op.parameter([1, size], np.float32)
    core().compile_model(ov.Model([op.softmax(x, 1)], [x]), "CPU", {"NUM_STREAMS": "0"})

for size in [*range(100, 140), 139, 100]:
    compile_softmax(size)
"""
)


def _created(variable: str = "") -> dict[str, list[str]]:
    """Whether the plugin's oneDNN had a cached primitive, by the last use of each size."""
    capacity = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": variable} if variable else {}
    script = _KERNELS % {"variable": variable.encode()}
    output = _output_of(script, ONEDNN_VERBOSE="2", **capacity)
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output.splitlines():
        if line.startswith(("softmax", "Paddle's")):
            found[line] = lines = []
        elif "create:" in line:
            lines.append("hit" if "create:cache_hit" in line else "miss")
    return found


def test_the_plugin_retains_few_primitives() -> None:
    created = _created()
    # Paddle's oneDNN has its own capacity, that of the release.
    assert "Paddle's 1024" in created
    assert created["softmax 139"] == ["hit"]
    assert created["softmax 100"] == ["miss"]


@pytest.mark.slow("starts a process")
def test_capacity_of_the_user_stays() -> None:
    created = _created("1000")
    assert "Paddle's 1000" in created
    assert created["softmax 100"] == ["hit"]


def test_results_reuse_released_memory() -> None:
    program = Program(doubled)
    feed = floats(512, 1024)  # 2 MB
    addresses = {program.run(x=feed)[0].__array_interface__["data"][0] for _ in range(30)}
    assert paddle_ngraph.stats()["engine_runs"] == 30
    assert len(addresses) < 6
    before = paddle_ngraph.stats()["pool_bytes_live"]
    kept = [program.run(x=feed)[0] for _ in range(5)]
    assert paddle_ngraph.stats()["pool_bytes_live"] == before + 5 * feed.nbytes
    assert paddle_ngraph.stats()["pool_bytes_idle"] == caches.sizes()["freed_bytes"]
    assert len({array.__array_interface__["data"][0] for array in kept}) == 5
    for array in kept:
        np.testing.assert_array_equal(array, feed * 2)


@pytest.fixture
def few_megabytes() -> Any:
    before = flags.get("ngraph_memory_mb")
    flags.set("ngraph_memory_mb", 8)
    paddle_ngraph.clear_cache()
    yield 8 * _MB
    flags.set("ngraph_memory_mb", before)


@pytest.mark.slow("compiles many or large functions")
def test_freed_memory_is_bounded_and_released(few_megabytes: int) -> None:
    program = Program(doubled)
    results = []
    for rows in range(300, 700, 20):
        results += program.run(x=floats(rows, 1024))
        assert caches.sizes()["freed_bytes"] <= few_megabytes
    results.clear()
    kept = caches.sizes()["freed_bytes"]
    assert few_megabytes / 2 < kept <= few_megabytes
    paddle_ngraph.clear_cache()
    assert caches.sizes()["freed_bytes"] == 0
    flags.set("ngraph_memory_mb", 0)
    program.run(x=floats(600, 1024))
    assert caches.sizes()["freed_bytes"] == 0
    assert paddle_ngraph.stats()["engine_runs"] == 21


@pytest.mark.slow("runs several threads for a while")
def test_threads_never_share_freed_memory(few_megabytes: int) -> None:
    programs = [Program(doubled) for _ in range(4)]

    def work(number: int) -> None:
        kept: list[Any] = []
        for index in range(120):
            feed = np.full([300 + index % 7, 1024], number * 1000 + index, "float32")
            (found,) = programs[number].executor.run(
                programs[number].main,
                feed={"x": feed},
                fetch_list=programs[number].fetches,
                scope=programs[number].scope,
            )
            kept.append((found, feed[0, 0] * 2))
            for array, value in kept:
                assert (array == value).all()
            if len(kept) > 3:
                del kept[index % 3]

    with paddle_ngraph.use_ngraph():
        at_once(work, len(programs))
    assert paddle_ngraph.stats()["engine_runs"] == 480


_MANY = """
import gc
import json
import numpy as np
import paddle
import paddle_ngraph
from paddle_ngraph import caches

def rss():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) >> 10

def run(number, rows):
    main, scope = paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main):
        x = paddle.static.data("x", [-1, 256], "float32")
        weight = paddle.full([256, 256], 0.5 + number)
        result = paddle.nn.functional.relu(paddle.matmul(x, weight) + number)
    executor = paddle.static.Executor(paddle.CPUPlace())
    feed = {"x": np.ones([rows, 256], "float32")}
    executor.run(main, feed=feed, fetch_list=[result], scope=scope)
    scope._remove_from_pool()

paddle.enable_static()
paddle_ngraph.enable()
for number in range(20):
    run(number, 600)
gc.collect()
paddle_ngraph.clear_cache()
before = rss()
most = {}
for number in range(300):
    run(number, 600 + number % 40)
    for name, size in caches.sizes().items():
        most[name] = max(most.get(name, 0), size)
runs = paddle_ngraph.stats()["engine_runs"]
gc.collect()
paddle_ngraph.clear_cache()
left = caches.sizes()
print(json.dumps(dict(before=before, after=rss(), runs=runs, most=most, left=left)))
"""


@pytest.mark.slow("makes hundreds of programs")
def test_tables_are_bounded_over_many_programs() -> None:
    found = json.loads(_output_of(_MANY).splitlines()[-1])
    most, left = found["most"], found["left"]
    assert found["runs"] == 320
    assert 100 < most["functions"] <= 256
    assert most["engines"] <= 256 + 50  # those of executors that were not collected yet
    assert most["program_digests"] <= 256
    assert most["call_hashes"] <= 1024
    assert most["freed_bytes"] <= 512 * _MB
    assert not any(left.values()), left
    assert found["after"] < found["before"] + 150


def test_an_engine_is_released_with_its_functions() -> None:
    paddle_ngraph.clear_cache()
    background_compile.wait()  # a build of another test has its engine until the thread ends
    gc.collect()
    before = caches.sizes()
    program = Program(lambda: [paddle.static.data("x", [-1, 3], "float32") * 1.625])
    for rows in (2, 5):
        program.run(x=floats(rows, 3))
    sizes = caches.sizes()
    assert sizes["engines"] == before["engines"] + 1
    paddle_ngraph.clear_cache()
    assert caches.sizes()["functions"] == 0
    assert caches.sizes()["engines"] == before["engines"] + 1  # the executor's
    np.testing.assert_array_equal(program.run(x=floats(4, 3))[0], floats(4, 3) * 1.625)
    del program
    background_compile.wait()
    gc.collect()
    paddle_ngraph.clear_cache()
    assert caches.sizes()["engines"] == before["engines"]
    assert paddle_ngraph.stats()["engine_runs"] == 3


@pytest.mark.slow("starts a process")
def test_dropped_objects_leave_nothing() -> None:
    """Covers programs, predictors and layers of all types; Paddle itself leaves some of each."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.leaks"],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    for kind, (native, engine) in json.loads(found.stdout.splitlines()[-1]).items():
        assert engine.pop("runs") >= leaks.COUNTED, kind
        # Paddle names the programs of captured graphs, and retains the names.
        assert engine.pop("objects") <= native["objects"] + 12 * leaks.COUNTED, kind
        assert all(size <= 0 for size in engine.values()), (kind, engine)
