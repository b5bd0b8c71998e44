"""Writes to weights take effect in the next run: no function keeps a stale constant."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.base import core

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.frontends.executor import weight_writes
from paddle_ngraph.paddle_private import replaced
from tests.programs import Program, floats

SIZE = 160
WEIGHT = "linear_0.w_0"
X = floats(3, SIZE)
CPU = paddle.CPUPlace()


class Model:
    """A program whose function keeps its weights as constants, run often enough to be in steady
    state.
    """

    def __init__(self, name: str) -> None:
        # Records about weights are kept by graph: each test has its own.
        self.shift = float(zlib.crc32(name.encode()) % 1000)
        self.program = Program(self.build)
        self.scope = self.program.scope
        self.kept: list[Any] = []
        self.has_native = True
        self.run()
        self.run()
        stats = paddle_ngraph.stats()
        assert (stats["functions_built"], stats["functions_with_weights"]) == (1, 1)

    def build(self) -> Any:
        x = paddle.static.data("x", [-1, SIZE], "float32")
        return paddle.nn.Linear(SIZE, SIZE)(x) + self.shift

    def run(self) -> np.ndarray:
        """A run of the engine, then a native one, which is equal."""
        before = paddle_ngraph.stats()["engine_runs"]
        (result,) = self.program.run(x=X)
        assert paddle_ngraph.stats()["engine_runs"] == before + 1, "the engine did not run"
        native = self.expected()
        np.testing.assert_allclose(result, native, rtol=1e-4, atol=1e-4)
        return result

    def expected(self) -> np.ndarray:
        if self.has_native:
            return self.program.run(engine=False, x=X)[0]
        return (
            X @ self.program.variable(WEIGHT) + self.program.variable("linear_0.b_0") + self.shift
        )

    def tensor(self) -> Any:
        return self.scope.find_var(WEIGHT).get_tensor()


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.node.name)


def others() -> np.ndarray:
    return floats(SIZE, SIZE, seed=7)


def numbers_at(address: int) -> np.ndarray:
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (SIZE, SIZE))


def unnoticed(method: Any, tensor: Any) -> np.ndarray:
    """The address of a tensor, by a method that would record the exposure."""
    return numbers_at(_core.original_of(method)(tensor))


def eager(write: Callable[[Any], Any], tensor: Any) -> Any:
    """An eager tensor of the same memory, after ``write`` was called on it."""
    paddle.disable_static()
    try:
        shared = paddle.Tensor(tensor)
        write(shared)
        return shared
    finally:
        paddle.enable_static()


# -- everything that writes once ----------------------------------------------------------------


def by_set(model: Model, _: Path) -> None:
    model.tensor().set(others(), CPU)


def by_set_without_a_copy(model: Model, _: Path) -> None:
    model.tensor().set(others(), CPU, True)


def by_the_last_element(model: Model, _: Path) -> None:
    model.tensor()._set_float_element(SIZE * SIZE - 1, 1000.0)


def by_copy_from(model: Model, _: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    model.tensor()._copy_from(source, CPU)


def by_new_memory(model: Model, _: Path) -> None:
    tensor = model.tensor()
    tensor._clear()
    tensor.set(others(), CPU)


def by_sharing_memory(model: Model, _: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    model.tensor()._share_data_with(source)


def by_sharing_memory_unchecked(model: Model, _: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    model.tensor()._share_data_nocheck_with(source)


def by_a_slice(model: Model, _: Path) -> None:
    model.tensor()._slice(SIZE - 1, SIZE).set(floats(1, SIZE, seed=5), CPU)


def by_its_address(model: Model, _: Path) -> None:
    numbers_at(model.tensor()._ptr())[-1, -1] += 1000.0


def by_mutable_data(model: Model, _: Path) -> None:
    address = model.tensor()._mutable_data(CPU, core.VarDesc.VarType.FP32)
    numbers_at(address)[-1, -1] += 1000.0


def by_shared_memory_of_processes(model: Model, _: Path) -> None:
    names = model.tensor()._share_filename(False)
    model.kept.append(core.DenseTensor._new_shared_filename(names))
    model.kept[0].set(others(), CPU)


def by_an_eager_operator(model: Model, _: Path) -> None:
    eager(lambda shared: shared.scale_(0.5), model.tensor())


def by_an_eager_item(model: Model, _: Path) -> None:
    def write(shared: Any) -> None:
        shared[-1, -1] = 1000.0

    eager(write, model.tensor())


def by_an_eager_output(model: Model, _: Path) -> None:
    eager(lambda shared: paddle.assign(shared * 2.0, output=shared), model.tensor())


def by_an_eager_address(model: Model, _: Path) -> None:
    address = eager(lambda shared: None, model.tensor()).data_ptr()
    numbers_at(address)[-1, -1] += 1000.0


def by_dlpack(model: Model, _: Path) -> None:
    paddle.disable_static()
    try:
        paddle.utils.dlpack.from_dlpack(model.tensor()._to_dlpack()).zero_()
    finally:
        paddle.enable_static()


def by_get_variable_tensor(model: Model, _: Path) -> None:
    core.get_variable_tensor(model.scope, WEIGHT).set(others(), CPU)


def by_set_variable(model: Model, _: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    core.set_variable(model.scope, source, WEIGHT)


def by_a_feed_of_its_name(model: Model, _: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    core.set_feed_variable(model.scope, source, WEIGHT, 0)


def by_set_program_state(model: Model, _: Path) -> None:
    paddle.static.set_program_state(model.program.main, {WEIGHT: others()})


def by_set_state_dict(model: Model, _: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    model.program.main.set_state_dict({WEIGHT: source}, model.scope)


def by_a_copied_state_dict(model: Model, _: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    model.program.main.set_state_dict({WEIGHT: source}, model.scope, copy_tensor=True)


def by_load(model: Model, folder: Path) -> None:
    path = str(folder / "model")
    before = np.array(model.tensor())
    model.tensor().set(others(), CPU)
    paddle.static.save(model.program.main, path)
    model.tensor().set(before, CPU)
    model.run()
    paddle.static.load(model.program.main, path, model.program.executor)


def by_load_dense_tensor(model: Model, folder: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    core.save_dense_tensor(source, str(folder / "tensor"))
    core.load_dense_tensor(model.tensor(), str(folder / "tensor"))


def by_load_func(model: Model, folder: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    core.save_func(source, WEIGHT, str(folder / "tensor"), True, False)
    core.load_func(str(folder / "tensor"), -1, [], False, model.tensor(), CPU)


def by_load_combine(model: Model, folder: Path) -> None:
    source = core.DenseTensor()
    source.set(others(), CPU)
    path = str(folder / "tensors")
    core.save_combine_func([source], [WEIGHT], path, True, False, False)
    core.load_combine_func(path, [WEIGHT], [model.tensor()], False, CPU)


def by_the_startup_program(model: Model, _: Path) -> None:
    paddle.seed(11)
    model.program.executor.run(model.program.startup)


def by_another_executor(model: Model, _: Path) -> None:
    paddle.seed(12)
    paddle.static.Executor(CPU).run(model.program.startup)


def by_another_thread(model: Model, folder: Path) -> None:
    def write() -> None:
        paddle.enable_static()
        model.tensor().set(others(), CPU)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def trainer(model: Model) -> Program:
    """A program that trains the weights of the model."""

    def build() -> Any:
        x = paddle.static.data("x", [-1, SIZE], "float32")
        loss = paddle.mean(paddle.nn.Linear(SIZE, SIZE)(x) ** 2)
        paddle.optimizer.SGD(10.0).minimize(loss)
        return loss

    training = Program(build)
    for name in training.scope.local_var_names():
        if model.scope.find_var(name) is None:
            source = training.scope.find_var(name).get_tensor()
            if source._is_initialized():
                model.scope.var(name).get_tensor().set(np.array(source), CPU)
    training.scope = model.scope
    return training


def by_training_natively(model: Model, _: Path) -> None:
    trainer(model).run(engine=False, x=X)


def by_training_in_the_engine(model: Model, _: Path) -> None:
    before = paddle_ngraph.stats()["engine_runs"]
    training = trainer(model)
    for _ in range(3):
        training.run(x=X)
    assert paddle_ngraph.stats()["engine_runs"] == before + 3


def by_training_from_a_dataset(model: Model, folder: Path) -> None:
    """The trainer of Paddle's C++, in threads of its own."""
    with paddle.pir_utils.OldIrGuard():
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            x = paddle.static.data("x", [-1, 2], "float32")
            table = paddle.static.create_parameter([SIZE, SIZE], "float32", name=WEIGHT)
            loss = paddle.mean(x) * paddle.mean(table * table)
            paddle.optimizer.SGD(1000.0).minimize(loss)
        (folder / "data").write_text("2 1.0 1.0\n" * 4)
        dataset = paddle.distributed.QueueDataset()
        dataset.init(batch_size=2, thread_num=1, pipe_command="cat", use_var=[x])
        dataset.set_filelist([str(folder / "data")])
        rate = next(n for n in startup.global_block().vars if n.startswith("learning_rate"))
        model.scope.var(rate).get_tensor().set(np.array([1000.0], "float32"), CPU)
        model.has_native = False  # it drops the scopes that native executors of the scope work in
        model.program.executor.train_from_dataset(main, dataset)


def by_the_state_of_a_program(model: Model, _: Path) -> None:
    model.program.main.state_dict("all", model.scope)[WEIGHT].set(others(), CPU)


def by_a_fetched_parameter(model: Model, _: Path) -> None:
    """A fetch that shared the parameter's memory would be a way to write it."""
    parameter = next(p for p in model.program.main.global_block().all_parameters())
    run = model.program.executor.run
    with paddle_ngraph.use_ngraph(False):
        (fetched,) = run(model.program.main, {"x": X}, [parameter], return_numpy=False)
    fetched.set(others(), CPU)
    if not np.array_equal(np.array(model.tensor()), others()):
        by_set(model, _)


WRITERS = [writer for name, writer in sorted(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("write", WRITERS, ids=lambda writer: writer.__name__)
def test_the_next_run_sees_a_write(write, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # trainers write their description into the current folder
    before = model.run()
    with paddle.static.scope_guard(model.scope):
        write(model, tmp_path)
    after = model.run()
    assert np.abs(after - before).max() > 0.01, "nothing was written"


# -- long-lived references that may write ---------------------------------------------------------


def array_kept(model: Model) -> np.ndarray:
    array = others()
    model.tensor().set(array, CPU, True)
    return array


def eager_tensor_kept(model: Model) -> np.ndarray:
    model.kept.append(eager(lambda shared: None, model.tensor()))
    return unnoticed(core.eager.Tensor.data_ptr, model.kept[-1])


def object_kept(model: Model) -> np.ndarray:
    model.kept.append(model.tensor())
    return unnoticed(core.DenseTensor._ptr, model.kept[-1])


def address_kept(model: Model) -> np.ndarray:
    return numbers_at(model.tensor()._ptr())


def capsule_kept(model: Model) -> np.ndarray:
    paddle.disable_static()
    try:
        model.kept.append(paddle.utils.dlpack.from_dlpack(model.tensor()._to_dlpack()))
        return unnoticed(core.eager.Tensor.data_ptr, model.kept[-1])
    finally:
        paddle.enable_static()


def other_variable_kept(model: Model) -> np.ndarray:
    model.kept.append(paddle.static.Scope())
    other = model.kept[-1].var("other").get_tensor()
    other._share_data_with(model.tensor())
    return unnoticed(core.DenseTensor._ptr, other)


VIEWS = [
    array_kept,
    eager_tensor_kept,
    object_kept,
    address_kept,
    capsule_kept,
    other_variable_kept,
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_each_run_sees_writes_through_a_view(view, model):
    numbers = view(model)
    results = [model.run()]
    for step in range(60):  # long enough for the weights to be constants again, and again
        if step % 20 == 7:
            numbers[-1, -1] += 100.0
            results.append(model.run())
            assert np.abs(results[-1] - results[-2]).max() > 1.0
        else:
            np.testing.assert_allclose(model.run(), results[-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_writes_of_a_deleted_view_are_seen(view, model):
    numbers = view(model)
    before = model.run()
    numbers[-1, -1] += 100.0
    del numbers
    model.kept.clear()
    after = model.run()
    assert np.abs(after - before).max() > 1.0


@pytest.mark.parametrize("view", VIEWS[1:], ids=lambda view: view.__name__)
def test_a_view_follows_the_training(view, model):
    """As in Paddle: exposed memory of a parameter stays its memory."""
    training = trainer(model)
    numbers = view(model)
    before = paddle_ngraph.stats()["engine_runs"]
    for step in range(20):
        old = numbers.copy()
        training.run(x=floats(3, SIZE, seed=step))
        np.testing.assert_array_equal(numbers, np.array(model.tensor()))
        assert not np.array_equal(numbers, old)
    assert paddle_ngraph.stats()["engine_runs"] == before + 20
    model.run()


@pytest.mark.parametrize("through", ["variable", "own_tensor", "own_slice", "eager", "capsule"])
def test_an_input_that_shares_a_parameter_follows_the_training(through, model, tmp_path):
    """A predictor's handle keeps the address of the shared tensor, without a reference."""

    def doubled() -> Any:
        return paddle.static.data("shared", [SIZE, SIZE], "float32") * 2.0

    program = Program(doubled)
    feed = program.main.global_block().ops[0].result(0)
    path = str(tmp_path / "doubled")
    with paddle.static.scope_guard(program.scope):
        paddle.static.save_inference_model(
            path, [feed], program.fetches, program.executor, program=program.main
        )
    predictor = paddle.inference.create_predictor(paddle.inference.Config(f"{path}.json", ""))
    training = trainer(model)
    predictor.get_input_handle("shared").share_external_data(sharing(model.tensor(), through))
    before = paddle_ngraph.stats()["engine_runs"]
    for step in range(4):
        training.run(x=floats(3, SIZE, seed=step))
        predictor.run()
        found = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
        np.testing.assert_allclose(found, np.array(model.tensor()) * 2.0)
    assert paddle_ngraph.stats()["engine_runs"] == before + 4


def sharing(tensor: Any, through: str) -> Any:
    """The memory of a variable's tensor through an object that the caller is about to drop."""
    if through == "variable":
        return tensor
    if through == "own_slice":
        return tensor._slice(0, SIZE)
    if through == "own_tensor":
        own = core.DenseTensor()
        own._share_data_with(tensor)
        return own
    if through == "eager":
        return eager(lambda shared: None, tensor)
    paddle.disable_static()
    try:
        return paddle.utils.dlpack.from_dlpack(tensor._to_dlpack())
    finally:
        paddle.enable_static()


# -- weights that are not written stay constants --------------------------------------------------


def test_reading_a_weight_costs_no_function(model):
    for _ in range(5):
        np.array(model.tensor())
        model.run()
    assert paddle_ngraph.stats()["functions_built"] == 1


def is_read_in_each_run(model: Model) -> bool:
    """Checked by a write that is not recorded, and reverted at once."""
    numbers = unnoticed(core.DenseTensor._ptr, model.tensor())
    model.run()  # the object of the tensor is gone
    held, before = float(numbers[-1, -1]), model.program.run(x=X)[0]
    numbers[-1, -1] = held + 100.0
    after = model.program.run(x=X)[0]
    numbers[-1, -1] = held
    return bool(np.abs(after - before).max() > 1.0)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("kind", ["eager", "variables", "foreign"])
def test_addresses_of_other_memory_say_nothing_of_a_weight(kind, model):
    """However many addresses a process asks for in a long life."""
    array, kept = np.zeros(70_000, "float32"), []
    paddle.disable_static()
    try:
        for number in range(array.size):
            if kind == "eager":
                kept.append(paddle.empty([4]))
                assert kept[-1].data_ptr() > 0
            else:
                kept.append(core.DenseTensor())
                kept[-1].set(array[number : number + 1], CPU, kind == "foreign")
                assert kept[-1]._ptr() > 0
    finally:
        paddle.enable_static()
    assert not is_read_in_each_run(model)
    address_kept(model)
    assert is_read_in_each_run(model)
    by_new_memory(model, Path())
    for _ in range(40):  # weights that changed become constants again after a while
        model.run()
    assert not is_read_in_each_run(model)


class Writer:
    """A writer of weights, as long as it exists."""


def a_tensor() -> tuple[Any, dict[int, Any]]:
    return core.Scope().var("a tensor that Python has").get_tensor(), weight_writes._live_tensors


def a_writer() -> tuple[Any, dict[int, Any]]:
    writer = Writer()
    weight_writes.may_write_during_lifetime(writer)
    return writer, weight_writes._writers


@pytest.mark.parametrize("make", [a_tensor, a_writer])
def test_no_python_code_runs_when_a_watched_object_is_destroyed(make):
    """A signal handler could run in it, and its exception could not be caught there."""
    thing, table = make()
    key = id(thing)
    assert key in table
    called: list[str] = []
    sys.setprofile(lambda frame, event, arg: called.append(f"{event} {frame.f_code.co_name}"))
    del thing
    sys.setprofile(None)
    assert not [each for each in called if each.startswith("call")]
    assert key not in table


@pytest.mark.slow("compiles many or large functions")
def test_weights_stay_in_place_when_their_writers_are_gone(model):
    """The watcher keeps no writer alive."""
    in_place = []
    for lives in (True, False):
        writer, _ = a_writer() if lives else (None, {})
        paddle_ngraph.clear_cache()
        before = paddle_ngraph.stats()["functions_with_weights_in_place"]
        model.run()
        in_place.append(paddle_ngraph.stats()["functions_with_weights_in_place"] - before)
        del writer
    assert in_place == [0, 1]


def test_a_sparse_tensor_has_no_address():
    paddle.disable_static()
    try:
        tensor = paddle.sparse.sparse_coo_tensor([[0, 2]], [1.0, 2.0], [3])
        assert tensor.data_ptr() is None
    finally:
        paddle.enable_static()


# -- all that Paddle's core offers ---------------------------------------------------------------

# Functions that take or return a variable, its tensor or a scope, and need no watch, by the reason.
TENSORS_OF_THEIR_OWN = {  # made for the caller; where they share memory, that shows
    "DenseTensor": "__getitem__ __getstate__ __setstate__ _as_type _copy _new_shared_filename "
    "_slice",
    "DenseTensorArray": "__setitem__ append",
    "DenseTensorBlockingQueue": "push",
    "FetchList": "append",
    "IterableDatasetWrapper": "_next",
    "MultiDeviceFeedReader": "read_next read_next_list",
    "OrderedMultiDeviceDenseTensorBlockingQueue": "push",
    "OrderedMultiDeviceFeedReader": "read_next read_next_list",
    "SparseCooTensor": "indices",
    "": "_array_to_share_memory_tensor from_dlpack",
}
WRITING_THE_TENSOR_GIVEN = {  # whose exposure was recorded
    "DenseTensor": "_alloc_double _alloc_float _alloc_int _clear _copy_from "
    "_set_complex128_element _set_complex64_element _set_dims _set_double_element "
    "_set_float_element _set_layout "
    "_share_data_nocheck_with _share_data_with _share_filename set set_lod "
    "set_recursive_sequence_lengths _shared_decref _shared_incref _to_dlpack _to_dlpack_versioned",
    "": "load_combine_func load_dense_tensor load_dense_tensor_from_memory load_func",
}
GIVING_OTHER_MEMORY = {  # to a variable, or taking it away
    "": "set_feed_variable",
    "_Scope": "_remove_from_pool drop_kids erase",
}
READING = {
    "DenseTensor": "__array__ __init__ __str__ _dtype _get_complex128_element "
    "_get_complex64_element _get_dims _get_double_element _get_float_element _is_initialized "
    "_layout _numel _place lod "
    "shape",
    "": "diff_tensor_shape save_combine_func save_dense_tensor save_dense_tensor_to_memory "
    "save_func",
}
OTHER_KINDS_OF_VARIABLES = {
    "": "init_dense_tensor_blocking_queue create_py_reader",
    "Variable": "__init__ get_bytes get_dense_tensor_array get_fetch_list get_float get_int "
    "get_map_tensor get_reader get_scope get_selected_rows get_string_tensor is_float is_int "
    "set_float set_int set_scope set_string_list set_vocab",
}
SCOPES = {  # and what holds them, without running anything
    "": "Scope",
    "AnalysisPredictor": "create_feed_fetch_var scope",
    "CompiledProgram": "__init__ local_scopes",
    "Executor": "__init__ close get_place prepare",
    "Graph": "set_not_owned",
    "NativePaddlePredictor": "scope",
    "Pass": "set set_not_owned",
    "StandaloneExecutor": "__init__",
    "TrainerBase": "ResetDataset __init__ get_worker_scope",
    "_Scope": "__init__ _can_reused _kids find_var local_var_names new_scope raw_address size var",
}
HARMLESS = (
    TENSORS_OF_THEIR_OWN,
    WRITING_THE_TENSOR_GIVEN,
    GIVING_OTHER_MEMORY,
    READING,
    OTHER_KINDS_OF_VARIABLES,
    SCOPES,
)
WATCHED = {
    (place.owner.partition(":")[2], place.name)
    for places in (
        replaced.EXPOSE_TENSORS,
        replaced.EXPOSE_ADDRESSES,
        replaced.RETAIN_ADDRESSES,
        replaced.RUN_PROGRAMS,
        replaced.START_TRAINER,
        replaced.END_TRAINER,
    )
    for place in places
}
# Types in a signature that give access to variables.
WITHIN_REACH = re.compile(
    r"\b(DenseTensor|TensorArray|_?Scope|framework::Variable|libpaddle\.Variable|TrainerBase)\b"
    r"|variant<phi"
)
ALWAYS_SORTED = (
    "DenseTensor",
    "Variable",
    "_Scope",
    "Executor",
    "StandaloneExecutor",
    "TrainerBase",
)


def signatures(function: Any) -> str:
    lines = (getattr(function, "__doc__", None) or "").splitlines()
    return " ".join(line for line in lines if "->" in line)


def offered() -> set[tuple[str, str]]:
    """(class, name) of all functions of Paddle's core that give access to variables."""
    found = set()
    for path in ("", "pir"):
        module = getattr(core.libpaddle, path) if path else core.libpaddle
        for name, member in vars(module).items():
            if isinstance(member, type) and member.__name__ == name:
                owner = f"{path}.{name}" if path else name
                found |= {(owner, each) for each in methods(member)}
            elif callable(member) and WITHIN_REACH.search(signatures(member)):
                found.add((path, name))
    return found


def methods(owner: type) -> set[str]:
    dull = {"__doc__", "__module__", "__hash__", "_pybind11_conduit_v1_"}
    own = re.compile(rf"self: paddle\.base\.libpaddle\.{owner.__name__}\b")
    return {
        name
        for name, member in vars(owner).items()
        if name not in dull
        and (
            owner.__name__ in ALWAYS_SORTED
            or WITHIN_REACH.search(own.sub("", signatures(member)).replace(f"{name}(", "(", 1))
        )
    }


def test_all_that_paddle_offers_is_sorted():
    sorted_ones = {
        (owner, name)
        for table in HARMLESS
        for owner, names in table.items()
        for name in names.split()
    }
    assert not sorted_ones & WATCHED
    assert offered() - sorted_ones - WATCHED == set()


# The public methods of the Executor in Python, by the watched functions through which they write.
EXECUTOR = {
    "run": {"StandaloneExecutor.run", "StandaloneExecutor.run_profile", "Executor.run"},
    "train_from_dataset": {"Executor.run_from_dataset", "Executor.init_for_dataset"},
    "infer_from_dataset": {"Executor.run_from_dataset", "Executor.init_for_dataset"},
    "start_heter_trainer": {"Executor.run_from_dataset", "Executor.init_for_dataset"},
    "close": set(),  # notifies servers, and drops cached executors
    "flush": {"Executor.release_trainer"},
    "split_program_by_device": set(),  # writes descriptions
}


def test_all_that_executor_offers_is_sorted():
    assert {name for name in dir(paddle.static.Executor) if name[0] != "_"} == set(EXECUTOR)
    assert set().union(*EXECUTOR.values()) <= {f"{owner}.{name}" for owner, name in WATCHED}


def test_watched_functions_exist():
    for owner, name in WATCHED:
        place = core.libpaddle
        for part in filter(None, owner.split(".")):
            place = getattr(place, part)
        with pytest.raises(paddle_ngraph.NgraphError, match="is replaced already"):
            _core.replace_calls(getattr(place, name), print)
