"""The first use of the engine: whatever leads to it, and whatever the process did before."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.frontends.executor import calls_in_flight
from paddle_ngraph.frontends.to_static import hook as to_static_hook
from paddle_ngraph.paddle_private import names
from paddle_ngraph.paddle_private.place import PatchTarget
from paddle_ngraph.utils import first_use

ROOT = Path(__file__).parents[2]

MODEL = """
import ctypes
import functools
import sys

import numpy as np
import paddle
import paddle_ngraph
from paddle.base import core
from paddle_ngraph.utils import first_use

folder = sys.argv[1]
paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})
assert not first_use._has_begun
X = np.ones((2, 4), "float32")
paddle.enable_static()
main, start = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, start):
    x = paddle.static.data("x", [2, 4])
    layer = paddle.nn.Linear(4, 3)
    y = paddle.nn.functional.relu(layer(x) + 1.0)
executor = paddle.static.Executor()
executor.run(start)
executors_of_start = paddle_ngraph._core.live_objects(core.StandaloneExecutor)


def run(program=main, fetch=y):
    return executor.run(program, feed={"x": X}, fetch_list=[fetch])[0]


def engine_runs():
    return paddle_ngraph.stats()["engine_runs"]


expected = run()
assert engine_runs() == 0 and not first_use._has_begun
"""

WAYS = {
    "set_flags": """
paddle.set_flags({"FLAGS_use_ngraph": True})
found = run()
""",
    "enable": """
paddle_ngraph.enable()
found = run()
""",
    "transpile": """
program, [fetch] = paddle_ngraph.transpile(main, fetch_list=[y])
found = run(program, fetch)
""",
    "saved model": """
if folder.endswith("made"):
    paddle.static.save_inference_model(folder + "/m", [x], [y], executor, program=main)
    paddle_ngraph.save_inference_model(folder + "/e", [x], [y], executor, program=main)
    np.save(folder + "/expected.npy", expected)
    found, first_use._has_begun = expected, True
else:
    program, feeds, fetches = paddle.static.load_inference_model(folder + "/made/e", executor)
    expected = np.load(folder + "/made/expected.npy")
    found = executor.run(program, feed={feeds[0]: X}, fetch_list=fetches)[0]
""",
    "predictor of a saved model": """
expected = np.load(folder + "/made/expected.npy")
config = paddle.inference.Config(folder + "/made/e.json", folder + "/made/e.pdiparams")
paddle.disable_static()
found = paddle.inference.create_predictor(config).run([paddle.to_tensor(X)])[0].numpy()
""",
    "pass by name": """
expected = np.load(folder + "/made/expected.npy")
config = paddle.inference.Config(folder + "/made/m.json", folder + "/made/m.pdiparams")
config.enable_custom_passes(["ngraph_pass"])
config.disable_onednn()
paddle.disable_static()
found = paddle.inference.create_predictor(config).run([paddle.to_tensor(X)])[0].numpy()
""",
    "compile": """
paddle.disable_static()
function = paddle_ngraph.compile(lambda x: paddle.nn.functional.relu(x * 2.0) + 1.0)
results = [function(paddle.to_tensor(X)).numpy() for _ in range(3)]
expected, found = np.full((2, 4), 3.0, "float32"), results[-1]
""",
}

CHECK = """
np.testing.assert_allclose(found, expected, rtol=1e-5)
assert first_use._has_begun
print("engine runs", engine_runs())
"""


def run(script: str, *arguments: Any, **extra: str) -> str:
    environment = {**os.environ, "FLAGS_use_ngraph": "0", "GLOG_minloglevel": "2", **extra}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow("starts a process for each way")
def test_every_way_to_the_engine_installs_the_patches(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    run(MODEL + WAYS["saved model"] + CHECK, made)
    for way, steps in WAYS.items():
        assert int(run(MODEL + steps + CHECK, tmp_path).split()[-1]) > 0, way


@pytest.mark.slow("starts a process")
def test_the_flag_in_the_environment_installs_the_patches() -> None:
    script = "import paddle_ngraph\nfrom paddle_ngraph.utils import first_use\n"
    assert run(script + "print(first_use._has_begun)", FLAGS_use_ngraph="1").split() == ["True"]


# Weights whose memory the user got before the first use, and that change after it.
EXPOSED = """
paddle.disable_static()
before = sys.argv[1]
paddle.seed(1)
network = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 3))
weight = network[0].weight
optimizer = paddle.optimizer.SGD(0.1, parameters=network.parameters())
for _ in range(3):  # trained and read by Paddle
    network(paddle.to_tensor(X)).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
weight.numpy()
if before == "address":
    address = weight.data_ptr()
    view = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (4, 8))
elif before == "address of a DenseTensor":
    address = weight.get_tensor()._ptr()
    view = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (4, 8))
elif before == "capsule":
    view = np.from_dlpack(weight.detach())
elif before == "method":
    get_tensor = weight.get_tensor
elif before == "function":
    get_tensor = functools.partial(type(weight).get_tensor, weight)
network.eval()
static = paddle.jit.to_static(network, full_graph=True)


def call():
    with paddle.no_grad():
        return static(paddle.to_tensor(X)).numpy()


call()
paddle_ngraph.enable()
for _ in range(20):
    first = call()
if before == "nothing":
    stats = paddle_ngraph.stats()
    assert stats["functions_with_weights"] + stats["functions_with_weights_in_place"] > 0, stats
    weight.set_value(weight.numpy() * 2 + 1)
elif before in ("method", "function"):
    get_tensor().set(weight.numpy() * 2 + 1, paddle.CPUPlace())
else:
    view[:] = view * 2 + 1
found = call()
paddle_ngraph.disable()
np.testing.assert_allclose(found, call(), rtol=1e-5, atol=1e-5)
assert np.abs(found - first).max() > 0.01
"""


EXPOSURES = ["address", "address of a DenseTensor", "capsule", "method", "function"]


@pytest.mark.slow("starts a process for each case")
@pytest.mark.parametrize("before", [*EXPOSURES, "nothing"])
def test_weights_exposed_before_the_first_use_may_be_written_later(before: str) -> None:
    run(MODEL + EXPOSED, before)


# Writes of a static program's weight through references that were taken before the first use.
WRITTEN = """
way = sys.argv[1]
scope, place = paddle.static.global_scope(), paddle.CPUPlace()
name = layer.weight.name
variable = scope.find_var(name)
first = np.array(variable.get_tensor())


def recreate(erase):
    erase([name])
    scope.var(name).get_tensor().set(second, place)


second = first * 2 + 1
other = paddle.base.core.DenseTensor()
other.set(second, place)
references = {
    "bound": (variable.get_tensor, lambda get: get().set(second, place)),
    "partial": (functools.partial(type(variable).get_tensor, variable),
                lambda get: get().set(second, place)),
    "function": (core.get_variable_tensor, lambda get: get(scope, name).set(second, place)),
    "object": (variable.get_tensor(), lambda tensor: tensor.set(second, place)),
    "slice": (variable.get_tensor()._slice(0, 2), lambda part: part.set(second[:2], place)),
    "shared": (core.DenseTensor()._share_data_with,
               lambda share: share(scope.find_var(name).get_tensor()).set(second, place)),
    "set_variable": (core.set_variable, lambda set: set(scope, other, name)),
    "set_state_dict": (main.set_state_dict, lambda set: set({name: other}, scope)),
    "erase": (scope.erase, lambda erase: recreate(erase)),
    "run": (executors_of_start[0].run, lambda run: run([], False)),
    "earlier erase": (None, None),
    "nothing": (None, lambda _: None),
}
reference, write = references[way]
if way == "run":
    variable.get_tensor().set(second, place)
if way == "earlier erase":
    scope.erase([name])
    scope.var(name).get_tensor().set(second, place)
    write = lambda _: scope.find_var(name).get_tensor().set(first, place)
del references, variable
paddle_ngraph.enable()
for _ in range(20):
    before = run()
assert engine_runs() > 0
write(reference)
found = run()
weight = np.array(scope.find_var(name).get_tensor())
paddle_ngraph.disable()
np.testing.assert_allclose(found, run(), rtol=1e-5, atol=1e-5)
assert way == "nothing" or np.abs(found - before).max() > 0.01
np.testing.assert_allclose(found, np.maximum(X @ weight + 1.0, 0), rtol=1e-4, atol=1e-5)
"""

WRITES = ["bound", "partial", "function", "object", "slice", "shared", "nothing"]
WRITES += ["set_variable", "set_state_dict", "erase", "run"]


@pytest.mark.slow("starts a process for each case")
@pytest.mark.parametrize("way", [*WRITES, "earlier erase"])
def test_weights_are_written_through_references_of_before_the_first_use(way: str) -> None:
    run(MODEL + WRITTEN, way)


# Predictors and references of before the first use, which follow the flag.
PREDICTORS = """
paddle.static.save_inference_model(folder + "/m", [x], [y], executor, program=main)
paddle.disable_static()
create_predictor, Pool = paddle.inference.create_predictor, paddle.inference.PredictorPool
set_threads = paddle.inference.Config.set_cpu_math_library_num_threads


def config():
    made = paddle.inference.Config(folder + "/m.json", folder + "/m.pdiparams")
    made.disable_onednn()
    set_threads(made, 1)
    return made


first = create_predictor(config())
predictors = [first, first.clone(), paddle.inference.Predictor(config())]
pool = Pool(config(), 2)
calls = [predictor.run for predictor in (*predictors, pool.retrieve(1))]
tensor = paddle.to_tensor(X)
for call in calls:
    np.testing.assert_allclose(call([tensor])[0].numpy(), expected, rtol=1e-5)
assert not first_use._has_begun
paddle_ngraph.enable()
for call in calls:
    call([tensor])
    paddle_ngraph.wait_for_compiles()
    before = engine_runs()
    np.testing.assert_allclose(call([tensor])[0].numpy(), expected, rtol=1e-5)
    assert engine_runs() > before
"""


@pytest.mark.slow("starts a process")
def test_predictors_of_before_the_first_use_follow_the_flag(tmp_path: Path) -> None:
    run(MODEL + PREDICTORS, tmp_path)


def test_values_of_earlier_traces_are_dropped_unless_one_is_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = names._parameters_of_traces
    monkeypatch.setitem(table.params_dict, 1, set())
    monkeypatch.setitem(table.tensor2value, 1, {})
    with monkeypatch.context() as tracing:
        tracing.setattr(to_static_hook, "is_tracing", lambda frame: True)
        to_static_hook._clear_earlier_traces()
    assert 1 in table.params_dict
    to_static_hook._clear_earlier_traces()
    assert 1 not in table.params_dict and 1 not in table.tensor2value
    monkeypatch.setitem(table.params_dict, 1, set())  # which the end of the test removes
    monkeypatch.setitem(table.tensor2value, 1, {})


def test_references_to_methods_that_run_programs_are_found() -> None:
    owner = paddle.base.core.StandaloneExecutor
    assert not _core.is_method_referenced(owner, "run")
    executor = owner.__new__(owner)
    bound = executor.run
    assert _core.is_method_referenced(owner, "run")
    del bound
    held = owner.run
    assert _core.is_method_referenced(owner, "run")
    del held
    assert not _core.is_method_referenced(owner, "run")


@pytest.mark.parametrize("is_referenced", [False, True])
def test_a_pool_of_threads_may_be_in_a_call_while_a_method_is_referenced(
    is_referenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.clear()
    monkeypatch.setattr(_core, "ProgramRun", Recorder)
    owner, lock = paddle.base.core.StandaloneExecutor, threading.Lock()
    lock.acquire()
    bound = owner.__new__(owner).run if is_referenced else None
    thread = threading.Thread(target=lock.acquire)  # called from Python's library
    thread.start()
    calls_in_flight.treat_as_writers()
    assert [run.is_active for run in runs] == [True] * is_referenced
    del bound
    for each in runs:
        assert each.ended.wait(10)
    lock.release()
    thread.join()


def test_a_callback_of_a_run_does_not_hide_the_run() -> None:
    """The core called Python, which waits: the user's outermost frame may be in a call."""
    is_reached, may_end = threading.Event(), threading.Event()

    def callback(*_: Any) -> None:
        is_reached.set()
        may_end.wait()

    def user() -> None:
        functools.reduce(callback, [1, 2])  # any C function that calls Python

    thread = threading.Thread(target=user)
    thread.start()
    is_reached.wait()
    found = calls_in_flight._frame_by_reference(sys._current_frames()[thread.ident or 0], False)
    may_end.set()
    thread.join()
    assert found is not None and found.f_code is user.__code__


def test_a_thread_that_waits_for_work_is_in_no_call() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        (thread,) = pool._threads
        while not calls_in_flight._is_waiting(sys._current_frames()[thread.ident or 0]):
            pass
        frame = sys._current_frames()[thread.ident or 0]
        assert calls_in_flight._frame_by_reference(frame, False) is None


ERASED = """
import gc
import numpy as np
import paddle
import paddle_ngraph
from paddle.base import core


class Config(paddle.inference.Config):
    pass


config = Config()
assert any(found is config for found in paddle_ngraph._core.live_objects(paddle.inference.Config))
scope, parent = paddle.static.global_scope(), paddle.static.Scope()
tensors = []
for i in range(50):
    for variable in (scope.var(f"v{i}"), parent.new_scope().var("w")):
        tensors.append(variable.get_tensor())
        tensors[-1].set(np.ones((4, 4), "float32"), paddle.CPUPlace())
scope.erase([f"v{i}" for i in range(50)])
parent.drop_kids()
# Other memory at the addresses of the tensors.
arrays = [np.full(n // 8, 0x4141414141414141) for n in range(64, 1024, 8) for _ in range(30)]
paddle_ngraph.enable()
print("enabled")
"""


@pytest.mark.slow("starts a process")
def test_tensors_whose_variables_were_erased_before_the_first_use() -> None:
    assert run(ERASED).endswith("enabled\n")


def test_a_signal_does_not_interrupt_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise functions of Paddle would stay without their patches."""
    installed = []

    def install() -> None:
        signal.raise_signal(signal.SIGINT)
        installed.append(True)

    monkeypatch.setattr(first_use, "_installers", [install, install])
    monkeypatch.setattr(first_use, "_has_begun", False)
    with pytest.raises(KeyboardInterrupt):
        first_use.begin()
    assert installed == [True, True] and first_use._has_begun


class Home:
    """A class with a method to patch."""

    def method(self) -> int:
        return 1


def test_a_signal_does_not_part_a_patch_from_its_record() -> None:
    """Otherwise a second try would patch the patch, or be rejected."""
    target = PatchTarget(f"{__name__}:Home", "method")

    def create(original: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return lambda self: original(self) + 1

    with pytest.raises(KeyboardInterrupt):
        target.replace(create)
    target.replace(create)
    assert Home().method() == 2


class Recorder:
    """A run in the place of ``_core.ProgramRun``."""

    def __init__(self, may_write: bool, is_of_thread: bool) -> None:
        assert may_write and not is_of_thread
        self.is_active, self.ended = False, threading.Event()
        runs.append(self)

    def __enter__(self) -> None:
        self.is_active = True

    def __exit__(self, *args: Any) -> None:
        self.is_active = False
        self.ended.set()


runs: list[Recorder] = []


class Core:
    """A core that is running a program: the call blocks in C."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.run = self.lock.acquire
        self.copy_ = self._setitem_dygraph = self.lock.acquire  # methods of tensors
        self.wait = self.lock.acquire


@pytest.mark.parametrize("name", ["run", "copy_", "_setitem_dygraph", "wait"])
def test_calls_of_the_core_in_other_threads_are_writers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.clear()
    monkeypatch.setattr(_core, "ProgramRun", Recorder)
    core, is_started = Core(), threading.Event()
    script = f"def call(core, is_started):\n    is_started.set()\n    core.{name}()"
    namespace: dict[str, Any] = {}
    exec(script, namespace)
    thread = threading.Thread(target=namespace["call"], args=(core, is_started))
    thread.start()
    is_started.wait()
    while not is_blocked(thread):
        pass
    calls_in_flight.treat_as_writers()
    found = [run.is_active for run in runs]
    core.lock.release()
    thread.join()
    assert found == [True] * (name != "wait")
    for each in runs:
        assert each.ended.wait(10)


def is_blocked(thread: threading.Thread) -> bool:
    """Whether the thread has reached its last call."""
    frame = sys._current_frames()[thread.ident or 0]
    return frame.f_code.co_name == "call"


def test_names_that_are_imported_later_are_listed() -> None:
    assert set(paddle_ngraph.__all__) <= set(dir(paddle_ngraph))
