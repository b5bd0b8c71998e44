"""A forked process finds every lock free that another thread held at the fork."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paddle_ngraph

_FORKING = """
import gc, os, signal, sys, threading
import numpy as np, paddle, paddle_ngraph
from paddle_ngraph import caches
from paddle_ngraph.utils import fork_safe_locks

paddle.enable_static()
paddle_ngraph.enable()
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})

def program(trains):
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [-1, 300], "float32")
        loss = paddle.mean(paddle.nn.Linear(300, 300)(x) ** 2)
        if trains:
            paddle.optimizer.SGD(1e-3).minimize(loss)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    feed = {"x": np.ones([3, 300], "float32")}
    return main, scope, lambda: executor.run(main, feed=feed, fetch_list=[loss], scope=scope)

leave = os._exit

def in_a_child(work, codes=(0,)):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            work()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        leave(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in codes, f"the child ended with {code}"
    return code

def meet_the_engine(main, scope):
    for name in scope.local_var_names():
        tensor = scope.find_var(name).get_tensor()
        if tensor._is_initialized():
            np.array(tensor), tensor._ptr()
    assert paddle_ngraph.explain(main).ops_converted > 0
    caches.sizes(), paddle_ngraph.stats()
    paddle_ngraph.disable()
    gc.collect()
"""

_LOCKED = """
main, scope, run = program(True)
run()
mine, taken, done = fork_safe_locks.new_lock(), threading.Event(), threading.Event()

def take_all():
    held = [lock for lock in fork_safe_locks._locks if lock is not mine]
    assert len(held) > 10
    for lock in held:
        lock.acquire()
    taken.set()
    done.wait()
    for lock in held:
        lock.release()

other = threading.Thread(target=take_all)
other.start()
taken.wait()

def work():
    meet_the_engine(main, scope)
    mine.release()  # the thread that forked has it in the child too

with mine:
    in_a_child(work)
done.set()
other.join()
run()
assert paddle_ngraph.stats()["engine_runs"] == 2
"""

_RUNNING = """
programs = [program(True), program(False)]
for _, _, run in programs:
    run(), run()
is_over, runs = threading.Event(), [0, 0]

def keep_running(number):
    paddle.enable_static()
    while not is_over.is_set():
        programs[number][2]()
        runs[number] += 1

threads = [threading.Thread(target=keep_running, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
# In its first runs a thread takes locks of Paddle's that no fork waits for.
while min(runs) < 5 and all(thread.is_alive() for thread in threads):
    is_over.wait(0.001)
try:
    for number in range(40):
        in_a_child(lambda: meet_the_engine(*programs[number % 2][:2]))
finally:
    is_over.set()
    for thread in threads:
        thread.join()
assert paddle_ngraph.stats()["engine_runs"] > 40
"""


_SWITCHED = """
from paddle_ngraph import _core

NAMES = [
    "enable_pir_in_executor",
    "enable_pir_in_executor_trace_run",
    "new_executor_sequential_run",
    "pir_apply_inplace_pass",
]
flags = ["FLAGS_" + name for name in NAMES]
before = paddle.get_flags(flags)
taken, done = threading.Barrier(3), threading.Event()

def hold(uses, waits=()):
    for use in uses:
        use.__enter__()
    taken.wait()
    for use in waits:  # the other threads and the fork do not go on before it waits, most likely
        use.__enter__()
        use.__exit__(None, None, None)
    done.wait()
    for use in uses:
        use.__exit__(None, None, None)

switched = [_core.FlagOverride(name) for name in NAMES]
as_set = [_core.FlagOverride(name, user_value=True) for name in NAMES]
threads = [
    threading.Thread(target=hold, args=([switched[0], switched[2]],), daemon=True),
    threading.Thread(target=hold, args=([switched[0], as_set[3]], [as_set[2]]), daemon=True),
]
for thread in threads:
    thread.start()
taken.wait()

def work():
    here = {flags[1]: not before[flags[1]]}
    assert paddle.get_flags(flags) == {**before, **here}, paddle.get_flags(flags)
    switched[1].__exit__(None, None, None)
    for flag, one, other in zip(flags, switched, as_set):
        with one:
            assert paddle.get_flags(flag)[flag] == (flag != "FLAGS_pir_apply_inplace_pass")
        with other:
            assert paddle.get_flags(flags) == before
    meet_the_engine(*program(True)[:2])

with switched[1]:
    in_a_child(work)
done.set()
for thread in threads:
    thread.join()
assert paddle.get_flags(flags) == before
_, _, run = program(True)
run()
assert paddle_ngraph.stats()["engine_runs"] == 1
"""

# Children of a process of which another thread reads the weights of a program, for seconds if they
# are large, run that program; its function exists.
_READING = """
paddle.set_flags({"FLAGS_ngraph_background_compile": "0"})

def large():
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [-1, 4096], "float32")
        result = paddle.tanh(paddle.nn.Linear(4096, 8192)(x))
    executor = paddle.static.Executor(paddle.CPUPlace())
    paddle.seed(1)
    executor.run(startup, scope=scope)
    feed = {"x": np.ones([1, 4096], "float32")}
    return lambda: executor.run(main, feed=feed, fetch_list=[result], scope=scope)[0]

def is_in_core(thread):
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code.co_filename.endswith("whole_program.py")

right = [large()() for _ in range(2)][0]  # the second function has copies of the weights

def work():
    assert np.allclose(run(), right, atol=1e-5)
    assert paddle_ngraph.stats()["functions_built"] == 2

for _ in range(3):
    run = large()
    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not is_in_core(thread):
        thread.join(0.0005)
    in_a_child(work)
    thread.join()
"""

# Children of a process of which another thread builds functions, or runs one, run programs.
_USING_OPENVINO = """
import random, time, warnings
paddle.set_flags({"FLAGS_ngraph_background_compile": "0"})

def network(width, depth):
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    with paddle.static.program_guard(main, startup):
        result = paddle.static.data("x", [64, width], "float32")
        for _ in range(depth):
            result = paddle.tanh(paddle.nn.Linear(width, width)(result))
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup, scope=scope)
    feed = {"x": np.ones([64, width], "float32")}
    return lambda: executor.run(main, feed=feed, fetch_list=[result], scope=scope)[0]

runs = [network(16, 2), network(*SIZE)]
right = [[run() for _ in range(3)][0] for run in runs]
is_over, count, lost = threading.Event(), 0, 0

def use_openvino():
    global count
    paddle.enable_static()
    while not is_over.is_set():
        if BUILDS:
            paddle_ngraph.clear_cache()
        runs[1]()
        count += 1

def work():
    paddle_ngraph.reset_stats()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for run, expected in zip(runs, right):
            np.testing.assert_allclose(run(), expected, rtol=1e-4, atol=1e-5)
    stats = paddle_ngraph.stats()
    is_lost = _core.is_openvino_lost()
    forked = stats["native"].get("forked", 0)
    assert stats["engine_runs"] + forked == 2, stats
    assert (forked > 0) == is_lost, stats
    assert [str(each.message)[-7:] for each in found] == ["[NG205]"] * is_lost, found

def exit_in_children():
    for _ in range(2):
        in_a_child(lambda: None)

from paddle_ngraph import _core
thread = threading.Thread(target=use_openvino)
thread.start()
while count < 3:
    time.sleep(0.01)
try:
    for _ in range(20):
        time.sleep(random.random() / 50)
        in_a_child(work)
finally:
    is_over.set()
    thread.join()
assert not _core.is_openvino_lost()
leave = os._exit  # Paddle's interpreters fail to end in a child where their thread has ended before
in_a_child(work)
work()
"""
_OTHERS_RUN = "SIZE, BUILDS = (512, 8), False" + _USING_OPENVINO
_OTHERS_BUILD = "SIZE, BUILDS = (64, 20), True" + _USING_OPENVINO
# The children only destroy static objects, OpenVINO's core among them. Of 18 that are forked
# while another thread builds, 2 waited for a thread of OpenVINO.
_EXITING = "leave = sys.exit\n" + _OTHERS_BUILD.replace("in_a_child(work)", "exit_in_children()", 1)

# Children need a function after one was destroyed, here or in the parent.
_DESTROYED = """
paddle.set_flags({"FLAGS_ngraph_background_compile": "0"})
from paddle_ngraph import _core

main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
with paddle.static.program_guard(main, startup):
    result = paddle.static.data("x", [64, 64], "float32")
    for _ in range(20):
        result = paddle.tanh(paddle.nn.Linear(64, 64)(result))
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(startup, scope=scope)

def run():
    feed = {"x": np.ones([64, 64], "float32")}
    return executor.run(main, feed=feed, fetch_list=[result], scope=scope)[0]

right = run()

IS_LOST = 3

def work(clears):
    paddle_ngraph.reset_stats()
    if clears:
        paddle_ngraph.clear_cache()
    for _ in range(2):
        np.testing.assert_allclose(run(), right, rtol=1e-4, atol=1e-5)
    stats, is_lost = paddle_ngraph.stats(), _core.is_openvino_lost()
    assert stats["native"] == ({"forked": 2} if is_lost else {}), stats
    assert stats["engine_runs"] == (0 if is_lost else 2), stats
    if is_lost:
        leave(IS_LOST)

# Until the threads of OpenVINO have rested at a fork, which a load may delay.
def in_children(clears):
    while in_a_child(lambda: work(clears), (0, IS_LOST)) == IS_LOST:
        pass

in_children(False)
in_children(True)
paddle_ngraph.clear_cache()
in_a_child(lambda: work(False), (0, IS_LOST))  # on one core, OpenVINO has no such thread
run()
in_children(False)
in_a_child(lambda: work(True), (0, IS_LOST))
assert not _core.is_openvino_lost()
"""


@pytest.mark.slow("starts a process")
@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork here")
@pytest.mark.parametrize(
    "script",
    [_LOCKED, _RUNNING, _SWITCHED, _READING, _OTHERS_RUN, _OTHERS_BUILD, _EXITING, _DESTROYED],
    ids=[
        *("all_are_held", "others_run", "flags_are_used", "weights_are_read"),
        *(
            "others_run_functions",
            "others_build_functions",
            "children_exit",
            "functions_are_destroyed",
        ),
    ],
)
def test_a_child_does_not_deadlock(script: str) -> None:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORKING + script],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]


def test_every_lock_is_fork_safe() -> None:
    package = Path(paddle_ngraph.__file__).parent
    made = {
        path.name
        for path in package.rglob("*.py")
        if re.search(r"(?<!asyncio\.)\b(R?Lock|Condition|Semaphore)\(", path.read_text())
    }
    assert made == {"fork_safe_locks.py"}
