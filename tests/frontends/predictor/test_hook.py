"""Predictors of Paddle Inference through the engine: all ways to create and to run one."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import inference

import paddle_ngraph
from paddle_ngraph import _core, flags
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.frontends.predictor import configuration, fast_path, switch
from paddle_ngraph.frontends.predictor import hook as predictor_hook
from paddle_ngraph.frontends.predictor.model import PASS, Model
from paddle_ngraph.frontends.predictor.switch import PredictorSwitch
from paddle_ngraph.frontends.saved_models import saving
from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
from paddle_ngraph.partitioning import cost_model, fallback, program_pass
from paddle_ngraph.utils import clock
from tests.conversion.test_denylist import broken_converter
from tests.dynamic import dynamic_mode
from tests.programs import at_once, floats, strict_runs

FORMS = ("json", "pdmodel")
SIZE = 13


pytestmark = pytest.mark.usefixtures("small_intervals_pay")


# -- models, saved in both forms -----------------------------------------------------------------


def convnet():
    x = paddle.static.data("x", [-1, 3, SIZE, SIZE], "float32")
    if paddle.framework.in_pir_mode():
        hidden = paddle.nn.functional.relu(paddle.nn.Conv2D(3, 20, 3, padding=1)(x))
        hidden = paddle.nn.functional.relu(paddle.nn.Conv2D(20, 7, 3, stride=2)(hidden))
        logits = paddle.nn.Linear(7, 5)(paddle.mean(hidden, axis=[2, 3]))
    else:
        hidden = paddle.static.nn.conv2d(x, 20, 3, padding=1, act="relu")
        hidden = paddle.static.nn.conv2d(hidden, 7, 3, stride=2, act="relu")
        logits = paddle.static.nn.fc(paddle.mean(hidden, axis=[2, 3]), 5)
    return [x], [logits, paddle.cast(logits > 0.0, "int32")]


def perceptron():
    x = paddle.static.data("x", [-1, 6], "float32")
    y = paddle.static.data("y", [-1, 6], "float32")
    hidden = paddle.nn.functional.relu(paddle.nn.Linear(6, 11)(x - y))
    return [x, y], [paddle.nn.Linear(11, 3)(hidden), paddle.mean(hidden)]


def loop():
    x = paddle.static.data("x", [-1, 6], "float32")
    count = paddle.full([1], 0, "int64")

    def body(count, value):
        return count + 1, paddle.tanh(value * 1.5 + 0.25)

    _, value = paddle.static.nn.while_loop(lambda n, _: n < 7, body, [count, x])
    return [x], [paddle.nn.functional.softmax(value * 3.0)]


def partly_native():
    """Nothing converts ``erfinv``."""
    x = paddle.static.data("x", [-1, 6], "float32")
    hidden = paddle.tanh(x * 2.0) * 0.9
    return [x], [paddle.exp(paddle.erfinv(hidden) + 1.0) * 0.5]


def noisy(also=lambda x: x):
    """A sample of ``uniform`` between operators with converters, of any batch."""
    x = paddle.static.data("x", [-1, 6], "float32")
    noise = paddle.uniform([paddle.shape(x)[0], 6], min=-1.0, max=1.0)
    return [x], [paddle.exp(also(paddle.tanh(x * 2.0) + noise)) * 0.5]


def twice_noisy():
    """The one samples in a subgraph, the other is Paddle's."""
    return noisy(lambda x: paddle.erfinv(x * 0.1) + paddle.poisson(paddle.abs(x)))


def plus_parameter():
    x = paddle.static.data("x", [-1, 6], "float32")
    start = paddle.ParamAttr(initializer=paddle.nn.initializer.Constant(0.0))
    return [x], [paddle.exp(x) + paddle.static.create_parameter([1], "float32", attr=start)]


def count_runs(files):
    """Has a saved ``plus_parameter`` increment its parameter first; saving would drop that."""
    program = SavedModel(*files).as_pir()
    operators = {op.name(): op for op in program.global_block().ops}
    with paddle.static.program_guard(program):
        paddle.pir.set_insertion_point(operators["pd_op.add"])
        count = paddle.increment(operators["builtin.parameter"].result(0))
    operators["pd_op.add"].operand(1).set_source(count)
    paddle.base.core.serialize_pir_program(program, files[0])


def images(batch=2, seed=0):
    return {"x": floats(batch, 3, SIZE, SIZE, seed=seed)}


def rows(batch=4, seed=0):
    return {"x": floats(batch, 6, seed=seed)}


def pairs(batch=4, seed=0):
    return {"x": floats(batch, 6, seed=seed), "y": floats(batch, 6, seed=seed + 1)}


MODELS = {convnet: images, perceptron: pairs, loop: rows, partly_native: rows}
# Most functions of Paddle make no old-style operators any more.
SAVED = [(build, "json") for build in MODELS] + [(convnet, "pdmodel")]


def save(folder, build, form="json", name="model", seed=5, **options):
    """Saves a model natively, with random weights. Returns the paths of program and parameters."""
    old = paddle.pir_utils.OldIrGuard() if form == "pdmodel" else contextlib.nullcontext()
    prefix = folder / name
    with old, paddle_ngraph.use_ngraph(False):
        main, startup, scope = (
            paddle.static.Program(),
            paddle.static.Program(),
            paddle.static.Scope(),
        )
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            inputs, outputs = build()
        executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle.static.scope_guard(scope):
            paddle.seed(seed)
            executor.run(startup)
            options["program"] = main
            paddle.static.save_inference_model(str(prefix), inputs, outputs, executor, **options)
    return f"{prefix}.{form}", f"{prefix}.pdiparams"


def config_of(files, in_memory=False):
    if in_memory:
        config = inference.Config()
        program = Path(files[0]).read_bytes()
        parameters = Path(files[1]).read_bytes() if Path(files[1]).exists() else b""
        config.set_model_buffer(program, len(program), parameters, len(parameters))
    else:
        config = inference.Config(*files)
    config.disable_glog_info()
    return config


def replace_runs(monkeypatch, run):
    """Has ``run(predictor, *args)`` take the place of Paddle's runs of predictors."""
    for module in (switch, fast_path):
        monkeypatch.setattr(module, "_run", run)


def predict(predictor, feed):
    for name, value in feed.items():
        handle = predictor.get_input_handle(name)
        handle.reshape(list(value.shape))
        handle.copy_from_cpu(value)
    predictor.run()
    return [predictor.get_output_handle(n).copy_to_cpu() for n in predictor.get_output_names()]


def native(files, feed):
    with paddle_ngraph.use_ngraph(False):
        return predict(inference.create_predictor(config_of(files)), feed)


@contextlib.contextmanager
def engine_runs(expected=True):
    before = paddle_ngraph.stats()["engine_runs"]
    yield
    ran = paddle_ngraph.stats()["engine_runs"] > before
    assert ran == expected, "the engine ran" if ran else "the engine did not run"


def assert_equal(results, expected):
    assert len(results) == len(expected)
    for result, right in zip(results, expected):
        assert result.dtype == right.dtype
        np.testing.assert_allclose(result, right, rtol=2e-5, atol=2e-5)


# -- ways to make one ----------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize(("build", "form"), SAVED)
def test_every_model(tmp_path, build, form, in_memory):
    files = save(tmp_path, build, form)
    feed = MODELS[build]()
    expected = native(files, feed)
    paddle_ngraph.enable()
    config = config_of(files, in_memory)
    config.disable_onednn()  # so that every profitable subgraph is converted
    predictor = inference.create_predictor(config)
    with engine_runs():
        assert_equal(predict(predictor, feed), expected)
    with engine_runs():
        assert_equal(predict(predictor, MODELS[build](7, 3)), native(files, MODELS[build](7, 3)))


@pytest.mark.parametrize("build", [convnet, perceptron, partly_native])
def test_models_of_known_contents_are_not_partitioned_again(tmp_path, build, monkeypatch):
    files = save(tmp_path, build)
    others = files[0], save(tmp_path, build, name="other", seed=6)[1]
    feed = MODELS[build]()
    expected = [native(each, feed) for each in (files, others)]
    paddle_ngraph.enable()
    configs = [config_of(each) for each in (files, others)]
    for config in configs:
        config.disable_onednn()
    first = inference.create_predictor(configs[0])
    before = paddle_ngraph.stats()["ops_converted"]
    monkeypatch.setattr(program_pass, "_partition_block", None)
    predictors = [first, *map(inference.create_predictor, configs)]
    for predictor, right in zip(predictors, [expected[0], *expected]):
        with engine_runs():
            assert_equal(predict(predictor, feed), right)
    assert paddle_ngraph.stats()["ops_converted"] == 3 * before


def of_class(config):
    return inference.Predictor(config)


def of_subclass(config):
    class Own(inference.Predictor):
        pass

    return Own(config)


def of_pool(config):
    of_pool.pool = inference.PredictorPool(config, 3)  # has to outlive its predictors
    return of_pool.pool.retrieve(2)


def of_core(config):
    return paddle.base.core.create_predictor(config)


def of_libpaddle(config):
    return paddle.base.libpaddle.create_predictor(config)


def of_clone(config):
    return inference.create_predictor(config).clone()


def of_clone_of_clone(config):
    return inference.Predictor(config).clone().clone()


MAKERS = [of_class, of_subclass, of_pool, of_core, of_libpaddle, of_clone, of_clone_of_clone]


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("enabled_first", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", MAKERS)
def test_every_way_to_make_one_can_be_switched(tmp_path, make, form, enabled_first):
    files = save(tmp_path, convnet, form)
    expected = native(files, images())
    with paddle_ngraph.use_ngraph(enabled_first):
        predictor = make(config_of(files))
    assert isinstance(predictor, inference.Predictor)
    for seed, on in enumerate([enabled_first, not enabled_first, True, False, True]):
        feed = images(batch=2 + seed % 2, seed=seed)
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            assert_equal(predict(predictor, feed), native(files, feed))
    with paddle_ngraph.use_ngraph(), engine_runs():
        assert_equal(predict(predictor, images()), expected)


SCRIPT = """
from paddle.inference import Config, create_predictor
import sys
import numpy as np
{extra}
config = Config(*sys.argv[1:])
config.disable_glog_info()
predictor = create_predictor(config)
handle = predictor.get_input_handle("x")
handle.copy_from_cpu(np.ones([2, 3, 13, 13], "float32"))
predictor.run()
import paddle_ngraph
print("engine runs:", paddle_ngraph.stats()["engine_runs"])
"""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("way", ["command", "environment", "call"])
def test_a_script_that_imported_the_name_first(tmp_path, way):
    extra = {"command": "", "environment": "import paddle_ngraph"}.get(
        way, "import paddle_ngraph; paddle_ngraph.enable()"
    )
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT.format(extra=extra))
    start = ["-m", "paddle_ngraph", "run"] if way == "command" else []
    environment = {**os.environ, "FLAGS_ngraph_min_interval_us": "0", "FLAGS_ngraph_cache_dir": ""}
    environment["PYTHONPATH"] = str(Path(paddle_ngraph.__file__).parents[1])
    if way == "environment":
        environment["FLAGS_use_ngraph"] = "1"
    done = subprocess.run(
        [sys.executable, *start, str(script), *save(tmp_path, convnet)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "engine runs: 1" in done.stdout, done.stderr


def test_a_pool_is_like_paddles(tmp_path):
    files = save(tmp_path, perceptron)
    paddle_ngraph.enable()
    with pytest.raises(ValueError, match="at least one"):
        inference.PredictorPool(config_of(files), 0)
    pool = inference.PredictorPool(config_of(files), 2)
    assert pool.retrieve(0) is pool.retrieve(0)
    with pytest.raises(ValueError, match="2 predictors"):
        pool.retrieve(2)


# -- ways to run one -----------------------------------------------------------------------------


@pytest.mark.parametrize("made_on", [False, True])
def test_handles_stay_the_same_over_switches(tmp_path, made_on):
    files = save(tmp_path, convnet)
    feed = images()
    expected = native(files, feed)
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(config_of(files))
    source = predictor.get_input_handle("x")
    targets = [predictor.get_output_handle(name) for name in predictor.get_output_names()]
    assert isinstance(source, inference.Tensor)
    source.reshape(feed["x"].shape)
    source.copy_from_cpu(feed["x"])
    for on in (True, False, True, True, False):
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            predictor.run()
        assert_equal([target.copy_to_cpu() for target in targets], expected)
        assert [target.shape() for target in targets] == [list(each.shape) for each in expected]


@pytest.mark.parametrize("made_on", [False, True])
def test_tensors_in_tensors_out(tmp_path, made_on):
    files = save(tmp_path, perceptron)
    feed = pairs()
    expected = native(files, feed)
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(config_of(files))
    paddle.disable_static()
    tensors = [paddle.to_tensor(value) for value in feed.values()]
    for on in (made_on, not made_on, made_on):
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            results = predictor.run(tensors)
        assert_equal([result.numpy() for result in results], expected)


@pytest.mark.parametrize("made_on", [False, True])
def test_outputs_of_every_dtype(tmp_path, made_on):
    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        hidden = paddle.tanh(x) * 100.0
        kinds = ("float32", "float16", "int32", "int64", "int8", "uint8", "bool")
        return [x], [paddle.cast(hidden, kind) for kind in kinds[:-3]] + [
            paddle.cast(paddle.abs(hidden), kind) for kind in kinds[-3:]
        ]

    files = save(tmp_path, build)
    with paddle_ngraph.use_ngraph(made_on):
        config = config_of(files)
        config.disable_onednn()  # half of it runs natively
        predictor = inference.create_predictor(config)
    for seed, on in enumerate([made_on, not made_on, made_on]):
        feed = rows(batch=2 + seed, seed=seed)
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            results = predict(predictor, feed)
        for result, expected in zip(results, native(files, feed)):
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, expected, rtol=2e-3)
        assert np.array_equal(predictor.get_input_handle("x").copy_to_cpu(), feed["x"])


def test_memory_can_be_shared(tmp_path):
    files = save(tmp_path, convnet)
    feed = images(seed=9)
    expected = native(files, feed)
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    tensor = paddle.base.core.DenseTensor()
    tensor.set(feed["x"], paddle.CPUPlace())
    predictor.get_input_handle("x").share_external_data(tensor)
    for on in (True, False):
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            predictor.run()
        names = predictor.get_output_names()
        assert_equal([predictor.get_output_handle(n).copy_to_cpu() for n in names], expected)


@pytest.mark.slow("runs several threads for a while")
def test_clones_run_in_threads(tmp_path):
    files = save(tmp_path, convnet)
    feeds = [images(batch=1 + i % 3, seed=i) for i in range(12)]
    expected = [native(files, feed) for feed in feeds]
    paddle_ngraph.enable()
    first = inference.create_predictor(config_of(files))
    failures = []

    def serve(predictor, number):
        try:
            for i in range(number, number + len(feeds)):
                assert_equal(predict(predictor, feeds[i % 12]), expected[i % 12])
        except BaseException as error:  # the thread has no caller to raise it to
            failures.append(error)

    threads = [threading.Thread(target=serve, args=(first.clone(), i)) for i in range(4)]
    with engine_runs():
        for thread in threads:
            thread.start()
        paddle_ngraph.disable()  # while they run
        paddle_ngraph.enable()
        for thread in threads:
            thread.join()
    assert not failures


def test_threads_clone_one_predictor(tmp_path):
    """Paddle's lock of clones and Python's lock do not deadlock."""
    files = save(tmp_path, convnet)
    feed = images(batch=2)
    expected = native(files, feed)
    paddle_ngraph.enable()
    first = inference.create_predictor(config_of(files))

    def serve(_: int) -> None:
        for _ in range(6):
            assert_equal(predict(first.clone(), feed), expected)

    with engine_runs():
        at_once(serve)


def test_a_clone_outlives_its_original(tmp_path):
    files = save(tmp_path, convnet)
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    clone = predictor.clone()
    del predictor
    gc.collect()
    for on in (True, False):
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            assert_equal(predict(clone, images()), native(files, images()))


def test_predictors_are_freed(tmp_path):
    files = save(tmp_path, perceptron)
    paddle_ngraph.enable()
    predictors = [inference.create_predictor(config_of(files)) for _ in range(3)]
    before = len(predictor_hook._switches)
    del predictors
    gc.collect()
    assert len(predictor_hook._switches) <= before - 3


def wide():
    """A network with 36 MB of parameters."""
    x = paddle.static.data("x", [-1, 6], "float32")
    if paddle.framework.in_pir_mode():
        return [x], [
            paddle.nn.Linear(3000, 6)(
                paddle.nn.functional.relu(
                    paddle.nn.Linear(3000, 3000)(paddle.nn.Linear(6, 3000)(x))
                )
            )
        ]
    hidden = paddle.static.nn.fc(paddle.static.nn.fc(x, 3000), 3000, activation="relu")
    return [x], [paddle.static.nn.fc(hidden, 6)]


CLONES = """
import sys
import numpy as np
from pathlib import Path
import paddle_ngraph
from paddle.inference import Config, create_predictor

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

def run(predictor, seed):
    x = np.random.default_rng(seed).standard_normal((4, 6), dtype="float32")
    predictor.get_input_handle("x").copy_from_cpu(x)
    predictor.run()
    return predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()

def predictor():
    config = Config(*sys.argv[1:3])
    config.disable_glog_info()
    return create_predictor(config)

native = predictor()
expected = [run(native, seed) for seed in range(9)]
paddle_ngraph.enable()
first = predictor()
run(first, 0)
clones = [first.clone()]
run(clones[0], 0)
before = megabytes()
for _ in range(7):
    clones.append(clones[-1].clone())
    run(clones[-1], 0)
print("grown:", megabytes() - before)
del first, native
for _ in range(3):
    for seed, clone in enumerate(clones):
        np.testing.assert_allclose(run(clone, seed), expected[seed], rtol=2e-5, atol=2e-5)
stats = paddle_ngraph.stats()
print("runs:", stats["engine_runs"], "functions:", stats["functions_built"])
"""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("form", FORMS)
def test_clones_have_their_parameters_once(tmp_path, form):
    """Seven more clones of a model of 36 MB take less memory than one more copy of it."""
    environment = {**os.environ, "FLAGS_ngraph_min_interval_us": "0", "FLAGS_ngraph_cache_dir": ""}
    environment["PYTHONPATH"] = str(Path(paddle_ngraph.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", CLONES, *save(tmp_path, wide, form)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "runs: 33 functions: 1" in done.stdout, done.stderr
    assert float(done.stdout.split()[1]) < 30


def test_clones_of_a_model_whose_files_changed_share_nothing(tmp_path):
    """Parameters are shared by contents, not by names."""
    parameters = _core.SharedParameters()
    tensors = []
    for value in (1.5, 1.5, 2.5):
        tensors.append(paddle.base.core.DenseTensor())
        tensors[-1].set(np.full((3, 5), value, "float32"), paddle.CPUPlace())
        parameters.share("weight", tensors[-1])
    addresses = [tensor._ptr() for tensor in tensors]
    assert addresses[0] == addresses[1] != addresses[2]
    assert [float(np.array(tensor)[0, 0]) for tensor in tensors] == [1.5, 1.5, 2.5]


def test_the_hook_costs_next_to_nothing(tmp_path, monkeypatch):
    """The overhead of a run over Paddle's own, as a number of calls, independent of the
    machine's load.
    """
    predictor = inference.create_predictor(config_of(save(tmp_path, perceptron)))
    replace_runs(monkeypatch, lambda predictor: None)
    predictor.run()
    calls = []
    sys.setprofile(lambda frame, event, what: calls.append(event))
    try:
        predictor.run()
    finally:
        sys.setprofile(None)
    assert 0 < sum(event.endswith("call") for event in calls) <= 100


# -- configurations ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("ir_optim", [False, True])
@pytest.mark.parametrize("memory_optim", [False, True])
def test_settings(tmp_path, form, onednn, ir_optim, memory_optim):
    files = save(tmp_path, convnet, form)
    paddle_ngraph.enable()
    config = config_of(files)
    config.enable_onednn() if onednn else config.disable_onednn()
    config.switch_ir_optim(ir_optim)
    if memory_optim:
        config.enable_memory_optim()
    predictor = inference.create_predictor(config)
    assert config.onednn_enabled() == onednn
    assert config.ir_optim() == ir_optim
    with engine_runs():
        assert_equal(predict(predictor, images()), native(files, images()))


@pytest.mark.parametrize("only", [False, True])
def test_passes_of_the_user_are_kept(tmp_path, only, capfd):
    files = save(tmp_path, convnet)
    paddle_ngraph.enable()
    config = config_of(files)
    config.enable_custom_passes(["identity_op_clean_pass"], only)
    copy = inference.Config(inference.Config(config))
    assert configuration.settings_of(copy).passes == ["identity_op_clean_pass"]
    model = Model(copy)
    settings = configuration.settings_of(model._config)
    assert (settings.passes, settings.only_passes) == (["identity_op_clean_pass"], only)
    predictor = inference.create_predictor(copy)
    with engine_runs():
        assert_equal(predict(predictor, images()), native(files, images()))


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda config: config.enable_onednn_int8(), "int8"),
        (lambda config: config.enable_onednn_bfloat16(), "bfloat16"),
        (lambda config: config.enable_mkldnn_bfloat16(), "bfloat16"),
        (lambda config: config.enable_custom_device("npu", 0), "custom device"),
        (lambda config: config.enable_save_optim_model(True), "saves"),
        (lambda config: config.use_optimized_model(True), "has optimized"),
    ],
)
def test_configurations_that_are_not_patched(tmp_path, ask, reason):
    config = config_of(save(tmp_path, convnet))
    ask(config)
    paddle_ngraph.enable()
    assert reason in (configuration.why_native(inference.Config(config)) or "")
    assert reason in str(paddle_ngraph.explain(config))


def test_asking_for_less_is_no_reason(tmp_path):
    config = config_of(save(tmp_path, convnet))
    config.use_optimized_model(True)
    config.use_optimized_model(False)
    assert configuration.why_native(config) is None
    config.enable_custom_device("npu", 0)
    config.use_optimized_model(False)
    assert "custom device" in (configuration.why_native(config) or "")


@pytest.mark.parametrize("name", configuration._UNSUPPORTED_OPTIONS)
def test_the_summary_of_a_configuration_has_the_option(name):
    assert configuration._options_of(inference.Config())[name] == "false"


def test_settings_that_no_cpu_build_has_raise():
    config = inference.Config()
    for refused in (config.enable_ipu, lambda: config.enable_low_precision_io(True)):
        with pytest.raises((RuntimeError, ValueError)):
            refused()


def test_states_stay_with_the_native_predictor(tmp_path):
    files = save(tmp_path, plus_parameter)
    count_runs(files)
    reference = inference.create_predictor(config_of(files))
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    for on in (True, False, True):
        with paddle_ngraph.use_ngraph(on), engine_runs(False):
            assert_equal(predict(predictor, rows()), predict(reference, rows()))
    assert "changes its parameters" in str(paddle_ngraph.explain(config_of(files)))


def test_a_model_that_samples_once_has_the_numbers_of_paddle(tmp_path):
    files = save(tmp_path, noisy)

    def answers(predictor):
        paddle.seed(7)
        return [predict(predictor, rows(batch)) for batch in (4, 2, 4, 5)]

    with paddle_ngraph.use_ngraph(False):
        expected = answers(inference.create_predictor(config_of(files)))
    assert np.abs(expected[0][0] - expected[2][0]).max() > 0.01
    paddle_ngraph.enable()
    config = config_of(files)
    config.disable_onednn()
    predictor = inference.create_predictor(config)
    with engine_runs():
        for found, right in zip(answers(predictor), expected):
            assert_equal(found, right)
    with engine_runs():
        assert_equal(answers(predictor.clone())[0], expected[0])


def test_a_model_whose_samples_may_change_places_falls_back(tmp_path):
    files = save(tmp_path, twice_noisy)
    expected = []
    for engine in (False, True):
        with paddle_ngraph.use_ngraph(engine):
            predictor = inference.create_predictor(config_of(files))
        paddle.seed(7)
        with engine_runs(False):
            expected.append(predict(predictor, rows()))
    assert_equal(*expected)
    assert "several of its operators sample" in str(paddle_ngraph.explain(config_of(files)))


def two_names_of_a_memory():
    x = paddle.static.data("x", [-1, 6], "float32")
    variable = paddle.tanh(x)
    other = paddle._C_ops.add_(paddle._C_ops.share_data(variable), x)
    return [x], [variable * 2.0, other * 3.0]


def test_writes_under_another_name_stay_with_the_native_predictor(tmp_path):
    files = save(tmp_path, two_names_of_a_memory)
    paddle_ngraph.enable()
    assert "memory that several variables share" in str(paddle_ngraph.explain(config_of(files)))
    predictor = inference.create_predictor(config_of(files))
    with engine_runs(False):
        predict(predictor, rows())


def test_hooks_of_operators_see_paddles(tmp_path):
    files = save(tmp_path, convnet)
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    seen = []
    predictor.register_output_hook(lambda op, name, tensor: seen.append(op))
    with engine_runs(False):
        assert_equal(predict(predictor, images()), native(files, images()))
    assert seen


# -- inputs that one way can take, and the other -------------------------------------------------


def cast():
    x = paddle.static.data("x", [-1, 6], "float32")
    return [x], [paddle.cast(paddle.exp(x), "float64")]


def cast_from_bfloat16():
    x = paddle.static.data("x", [-1, 6], "bfloat16")
    return [x], [paddle.cast(x, "float32") * 1.5]


def share(handle, array):
    tensor = paddle.base.core.DenseTensor()
    tensor.set(array, paddle.CPUPlace())
    handle.share_external_data(tensor)
    return tensor


def nothing(predictor):
    """No input is given."""


def more_than_there_is(predictor):
    predictor.get_input_handle("x").reshape([700, 6])


def bfloat16(predictor):
    return share(predictor.get_input_handle("x"), (rows()["x"].view("uint32") >> 16).astype("u2"))


def tensors(predictor):
    paddle.disable_static()
    try:
        predictor.run([paddle.to_tensor(rows(seed=8)["x"])])
    finally:
        paddle.enable_static()


def other_rows(predictor):
    predictor.get_input_handle("x").copy_from_cpu(rows(seed=9)["x"])


def outcome(predictor, build, give):
    """The result or the error of a second run, on inputs from ``give``."""
    if build is cast and give is not nothing:
        predict(predictor, rows())
    kept = give(predictor)
    try:
        predictor.run()
    except Exception as error:
        return type(error)
    (name,) = predictor.get_output_names()
    result = predictor.get_output_handle(name).copy_to_cpu()
    del kept
    return result


@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize(
    ("build", "give"),
    [
        *[(cast, give) for give in (nothing, more_than_there_is, tensors, other_rows)],
        (cast_from_bfloat16, bfloat16),
    ],
)
def test_a_run_computes_on_the_latest_inputs(tmp_path, build, give, made_on, on):
    """Whichever API gave the inputs last, and never the inputs of an earlier run."""
    files = save(tmp_path, build)
    with paddle_ngraph.use_ngraph(False):
        expected = outcome(inference.create_predictor(without_onednn(files)), build, give)
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(without_onednn(files))
    before = paddle_ngraph.stats()["engine_runs"]
    with paddle_ngraph.use_ngraph(on):
        result = outcome(predictor, build, give)
    if isinstance(expected, type):
        assert result is expected
    else:
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)
    if give in (tensors, other_rows, bfloat16):
        runs = 1 if give is bfloat16 else 2
        assert (paddle_ngraph.stats()["engine_runs"] >= before + runs) == on


# -- parameters that handles write ---------------------------------------------------------------


def weight_of(files):
    """The name of the first filter of a ``convnet``."""
    program = SavedModel(*files).as_pir()
    operators = program.global_block().ops
    names = (op.attrs()["parameter_name"] for op in operators if op.name() == "builtin.parameter")
    return min(name for name in names if ".w_" in name)


def by_copy(handle, value):
    handle.copy_from_cpu(value)


def by_sharing(handle, value):
    tensor = paddle.base.core.DenseTensor()
    tensor.set(value, paddle.CPUPlace())
    handle.share_external_data(tensor)
    return tensor


def write_filter(predictor, name, write, getter="get_input_handle"):
    """Returns what the write needs alive."""
    handle = getattr(predictor, getter)(name)
    value = handle.copy_to_cpu()
    return handle, write(handle, np.full_like(value, 0.37))


def without_onednn(files):
    config = config_of(files)
    config.disable_onednn()  # which keeps the weights of a first run, natively too
    return config


def lives_of_clones(files, write, getter, flags):
    """Results of three clones before and after the second one's filter is written.

    ``flags``: whether the engine is on when they are created, run, written, and run again.
    """
    made, run, written, again = flags
    name = weight_of(files)
    with paddle_ngraph.use_ngraph(made):
        first = inference.create_predictor(without_onednn(files))
        clones = [first, first.clone()]
        clones.append(clones[-1].clone())
    with paddle_ngraph.use_ngraph(run), engine_runs(run):
        results = [predict(clone, images()) for clone in clones]
    with paddle_ngraph.use_ngraph(written):
        kept = write_filter(clones[1], name, write, getter)
    with paddle_ngraph.use_ngraph(again):
        results += [predict(clone, images()) for clone in (*clones, clones[1].clone())]
    with paddle_ngraph.use_ngraph(not again):
        results += [predict(clone, images()) for clone in clones]
    del kept
    return results


@pytest.mark.parametrize(
    ("write", "getter"),
    [
        (by_copy, "get_input_handle"),  # those of outputs are read-only
        (by_sharing, "get_input_handle"),
        (by_sharing, "get_output_handle"),
    ],
)
@pytest.mark.parametrize(
    "flags", [(1, 1, 1, 1), (0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 0, 0)], ids=str
)
def test_a_handle_of_a_parameter_writes_as_in_paddle(tmp_path, flags, write, getter):
    """The predictor's own parameter, whichever way it runs, and none of a clone's."""
    files = save(tmp_path, convnet)
    found = lives_of_clones(files, write, getter, [bool(flag) for flag in flags])
    with monkeypatched_native():
        expected = lives_of_clones(files, write, getter, [False] * 4)
    for results, right in zip(found, expected):
        np.testing.assert_allclose(results[0], right[0], rtol=1e-4, atol=1e-4)
    assert abs(found[4][0] - found[1][0]).max() > 0.05, "nothing was written"


@contextlib.contextmanager
def monkeypatched_native():
    """The engine stays off inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paddle_ngraph, "use_ngraph", lambda on=True: contextlib.nullcontext())
        paddle_ngraph.disable()
        yield


def returns_a_parameter():
    x = paddle.static.data("x", [-1, 6], "float32")
    weight = paddle.static.create_parameter([6], "float32", name="returned")
    return [x], [(x + weight) * 2.0, weight, paddle.mean(x)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("write", [by_copy, by_sharing])
@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize("on", [False, True])
def test_the_handle_of_a_result_that_is_a_parameter_writes_it(tmp_path, form, write, made_on, on):
    """In that predictor, and in none of its clones."""
    files = save(tmp_path, returns_a_parameter, form)
    outcomes = []
    for made, runs in ((False, False), (made_on, on)):
        with paddle_ngraph.use_ngraph(made):
            first = inference.create_predictor(without_onednn(files))
            clones = [first, first.clone()]

        def run(clones=clones):
            found = []
            for clone in clones:
                clone.get_input_handle("x").copy_from_cpu(rows()["x"])
                clone.run()
                clone.run()
                found.append(clone.get_output_handle(clone.get_output_names()[0]).copy_to_cpu())
            return found

        with paddle_ngraph.use_ngraph(runs):
            with engine_runs(runs):
                found = run()
            kept = write_filter(clones[1], "returned", write)
            found += [*run(), *run()]
            found += [clone.get_output_handle("returned").copy_to_cpu() for clone in clones]
        outcomes.append(found)
        del kept
    assert_equal(outcomes[1], outcomes[0])
    assert abs(outcomes[0][3] - outcomes[0][1]).max() > 0.05, "nothing was written"


@pytest.mark.parametrize("write", [by_copy, by_sharing])
@pytest.mark.parametrize("kind", ["saved", "by name"])
def test_a_handle_of_a_parameter_where_the_engine_is_all_there_is(tmp_path, kind, write):
    """The weights are constants, which change in that predictor alone."""
    files = save(tmp_path, convnet)
    name, config = weight_of(files), config_of(files)
    if kind == "saved":
        saving.convert(SavedModel(*files), str(tmp_path / "engine"))
        config = config_of([str(tmp_path / "engine.json"), str(tmp_path / "engine.pdiparams")])
    else:
        config.enable_custom_passes([PASS])
        config.enable_new_ir(True)
        config.enable_new_executor(True)
    config.disable_onednn()
    predictors = [inference.create_predictor(config)]
    predictors += [predictors[0].clone() for _ in range(3)]
    expected = native(files, images())
    with engine_runs():
        for predictor in predictors * 2:
            assert_equal(predict(predictor, images()), expected)
    reference = inference.create_predictor(without_onednn(files))
    kept = [write_filter(each, name, write) for each in (predictors[2], reference)]
    changed = predict(reference, images())
    assert abs(changed[0] - expected[0]).max() > 0.05, "nothing was written"
    with engine_runs():
        for _ in range(2):
            for number, predictor in enumerate(predictors):
                right = changed if number == 2 else expected
                result = predict(predictor, images())
                np.testing.assert_allclose(result[0], right[0], rtol=1e-4, atol=1e-4)
        for handle, _ in kept:  # which writes as long as it exists
            handle.copy_from_cpu(np.full_like(handle.copy_to_cpu(), -0.21))
        result, right = predict(predictors[2], images()), predict(reference, images())
    np.testing.assert_allclose(result[0], right[0], rtol=1e-4, atol=1e-4)
    assert abs(right[0] - changed[0]).max() > 0.05


def test_a_wrong_name_does_not_disable_the_engine(tmp_path):
    files = save(tmp_path, convnet)
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    with pytest.raises(RuntimeError):
        predictor.get_input_handle("no such input")
    with engine_runs():
        assert_equal(predict(predictor, images()), native(files, images()))


# -- native where that is better -----------------------------------------------------------------


def shaken(pieces, depth):
    """Chains of ``depth`` operators, with ``erfinv`` between them, which falls back."""

    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        hidden = x
        for _ in range(pieces):
            for _ in range(depth):
                hidden = paddle.tanh(hidden)
            hidden = paddle.erfinv(hidden)
        return [x], [hidden]

    return build


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize(("pieces", "depth"), [(1, 2), (5, 2), (5, 7), (30, 3)])
def test_operators_without_onednn_kernel_do_not_disable_the_engine(tmp_path, pieces, depth):
    files = save(tmp_path, shaken(pieces, depth))
    paddle_ngraph.enable()
    with engine_runs():
        assert_equal(
            predict(inference.create_predictor(config_of(files)), rows()), native(files, rows())
        )


@pytest.mark.parametrize("kind", ["pd_op.sigmoid", "pd_op.add"])
@pytest.mark.parametrize(("depth", "pays"), [(7, False), (40, True)])
def test_onednn_kernels_count_in_the_cost_model(tmp_path, leave_native, kind, depth, pays):
    leave_native(kind)

    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        hidden = x
        for _ in range(3):
            for _ in range(depth):
                hidden = paddle.tanh(hidden)
            is_sum = kind == "pd_op.add"
            hidden = hidden + x if is_sum else paddle.nn.functional.sigmoid(hidden)
        return [x], [hidden]

    files = save(tmp_path, build)
    paddle_ngraph.enable()
    with engine_runs(pays):
        assert_equal(
            predict(inference.create_predictor(config_of(files)), rows()), native(files, rows())
        )


@pytest.mark.slow("compiles many or large functions")
def test_intervals_of_one_operator_are_left_to_onednn(tmp_path):
    files = save(tmp_path, shaken(pieces=5, depth=1))
    paddle_ngraph.enable()
    assert "oneDNN" in str(paddle_ngraph.explain(config_of(files)))
    for make in (inference.create_predictor, inference.Predictor):
        with engine_runs(False):
            assert_equal(predict(make(config_of(files)), rows()), native(files, rows()))
    config = config_of(files)
    config.disable_onednn()
    with engine_runs():
        assert_equal(predict(inference.create_predictor(config), rows()), native(files, rows()))


class _Costs:
    """A clock by which runs of the engine and of oneDNN take given times."""

    def __init__(self, engine, onednn):
        self.now, self._costs = 0.0, {True: engine, False: onednn}

    def __call__(self):
        return self.now

    def patch(self, monkeypatch):
        run = PredictorSwitch._run

        def timed(switch, engine, *args):
            self.now += self._costs[engine]
            return run(switch, engine, *args)

        monkeypatch.setattr(PredictorSwitch, "_run", timed)


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(("engine", "chosen"), [(0.5, True), (1.0, False), (3.0, False)])
def test_runs_correct_the_rule_about_onednn(tmp_path, monkeypatch, engine, chosen, tensors):
    monkeypatch.setattr(cost_model, "is_faster_than_onednn", lambda *_: False)
    paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path / "cache")})
    paddle.set_flags({"FLAGS_ngraph_background_compile": "0"})
    files = save(tmp_path, convnet)
    expected = native(files, images())
    paddle_ngraph.enable()

    def config(has_onednn=True):
        made = config_of(files)
        made.enable_onednn() if has_onednn else made.disable_onednn()
        return made

    assert "measured: nothing yet" in str(paddle_ngraph.explain(config()))
    costs = _Costs(engine, 1.0)
    costs.patch(monkeypatch)

    def run(predictor):
        if not tensors:
            return predict(predictor, images())
        paddle.disable_static()
        try:
            inputs = [paddle.to_tensor(value) for value in images().values()]
            return [result.numpy() for result in predictor.run(inputs)]
        finally:
            paddle.enable_static()

    predictor = inference.create_predictor(config())
    with clock.overridden(costs):
        for _ in range(14):
            assert_equal(run(predictor), expected)
        monkeypatch.setattr(PredictorSwitch, "_run_timed", pytest.fail)
        with engine_runs(chosen):
            assert_equal(run(predictor), expected)
        # A new predictor, as of another process, begins with the result on disk.
        with engine_runs(chosen):
            assert_equal(run(inference.create_predictor(config())), expected)
    text = str(paddle_ngraph.explain(config()))
    assert ("takes 0.50 of oneDNN's time" in text) == chosen
    assert ("Runs natively" in text) != chosen
    # A user without oneDNN has the engine, whatever was measured.
    with engine_runs():
        assert_equal(run(inference.create_predictor(config(has_onednn=False))), expected)


def test_every_clone_drops_the_engine_that_does_not_pay(tmp_path, monkeypatch):
    monkeypatch.setattr(cost_model, "is_faster_than_onednn", lambda *_: False)
    paddle.set_flags({"FLAGS_ngraph_background_compile": "0"})
    files = save(tmp_path, convnet)
    paddle_ngraph.enable()
    config = config_of(files)
    config.enable_onednn()
    first = inference.create_predictor(config)
    predictors = [first, first.clone(), first.clone()]
    costs = _Costs(1.0, 1.0)
    costs.patch(monkeypatch)
    switches = [predictor_hook._switches[each] for each in predictors]
    most = 0
    with clock.overridden(costs):
        for _ in range(7):
            for predictor in predictors:
                predict(predictor, images())
            most = max(most, sum(each.other is not None for each in switches))
    assert most == len(predictors)  # each had an engine while the runs were measured
    assert [each.other for each in switches] == [None] * len(predictors)


def test_a_measurement_needs_no_files(tmp_path, monkeypatch, recwarn):
    """A user who deletes the files of a model, and switches nothing, is not warned."""
    monkeypatch.setattr(cost_model, "is_faster_than_onednn", lambda *_: False)
    paddle.set_flags({"FLAGS_ngraph_background_compile": "0"})
    files = save(tmp_path, convnet)
    expected = native(files, images())
    paddle_ngraph.enable()
    config = config_of(files)
    config.enable_onednn()
    predictor = inference.create_predictor(config)
    clone = predictor.clone()
    for file in tmp_path.iterdir():
        file.unlink()
    recwarn.clear()
    with engine_runs():
        for _ in range(4):
            assert_equal(predict(predictor, images()), expected)
    for _ in range(2):  # the engine cannot be cloned
        assert_equal(predict(clone, images()), expected)
    assert not [each for each in recwarn if "files" in str(each.message)]


@pytest.mark.parametrize("made_on", [False, True])
def test_a_model_that_nothing_pays_in_stays_native(tmp_path, made_on):
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 10**9})
    files = save(tmp_path, convnet)
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(config_of(files))
    paddle_ngraph.enable()
    with engine_runs(False):
        assert_equal(predict(predictor, images()), native(files, images()))


def test_an_engine_that_fails_hands_over_in_the_same_run(tmp_path, monkeypatch):
    files = save(tmp_path, convnet)
    expected = native(files, images())
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    run = switch._run
    failing = [predictor]

    def fail(target, *args):
        if target in failing:
            raise RuntimeError("no such instruction")
        return run(target, *args)

    replace_runs(monkeypatch, fail)
    with pytest.warns(UserWarning, match="no such instruction"):
        assert_equal(predict(predictor, images()), expected)
    assert "no such instruction" in predictor_hook._switches[predictor].model.why_native
    assert_equal(predict(predictor, images()), expected)


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("made_on", [True, False])
@pytest.mark.parametrize("step", ["data", "compile", "run"])
def test_strict_mode_raises_errors_of_the_engine(step, made_on, tmp_path):
    files = save(tmp_path, convnet)
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(config_of(files))
    paddle_ngraph.enable()
    paddle_ngraph.clear_cache()  # another test may have built the function
    _core.fail_at(step)
    try:
        for _ in range(2):
            with strict_runs(), pytest.raises(Exception, match="injected"):
                predict(predictor, images())
    finally:
        _core.fail_at("")
    with engine_runs():
        assert_equal(predict(predictor, images()), native(files, images()))


# -- layouts of oneDNN ---------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3])
def test_blocked_tensors_are_reordered(tmp_path, batch, leave_native):
    """Native convolutions of oneDNN between intervals, in a configuration of the user's own."""
    leave_native("pd_op.conv2d")

    def build():
        x = paddle.static.data("x", [-1, 3, SIZE, SIZE], "float32")
        hidden = x
        for channels in (16, 20, 32):
            convolution = paddle.nn.Conv2D(hidden.shape[1], channels, 3, padding=1, bias_attr=False)
            hidden = paddle.tanh(paddle.cumsum(convolution(hidden), axis=1))
        return [x], [hidden]

    files = save(tmp_path, build)
    expected = native(files, images(batch))
    config = config_of(files)
    config.enable_onednn()
    config.enable_custom_passes(["ngraph_pass"])
    predictor = inference.create_predictor(config)
    with engine_runs():
        assert_equal(predict(predictor, images(batch)), expected)


# -- old-style programs --------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
def test_reductions_over_everything_keep_their_axes(tmp_path, in_memory):
    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        hidden = paddle.static.nn.fc(x, 7, activation="relu")
        return [x], [hidden - paddle.mean(hidden), hidden * paddle.mean(x)]

    files = save(tmp_path, build, "pdmodel")
    expected = native(files, rows())
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files, in_memory))
    with engine_runs():
        assert_equal(predict(predictor, rows()), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unread", ["first", "last", "by a result that nothing reads"])
def test_an_input_that_nothing_reads_has_a_handle(tmp_path, form, unread):
    def build():
        inputs, outputs = convnet()
        extra = paddle.static.data("y", [-1, 6], "float32")
        if unread.startswith("by"):
            extra + 1.0
        return ([extra, *inputs] if unread == "first" else [*inputs, extra]), outputs

    files = save(tmp_path, build, form, skip_prune_program=True)
    feed = {**images(), "y": floats(3, 6)}
    expected = native(files, feed)
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    with paddle_ngraph.use_ngraph(False):
        names = inference.create_predictor(config_of(files)).get_input_names()
    assert predictor.get_input_names() == names
    with engine_runs():
        assert_equal(predict(predictor, feed), expected)
    assert predictor.get_input_handle("y").shape() == [3, 6]
    with engine_runs(), dynamic_mode():
        results = predictor.run([paddle.to_tensor(feed[name]) for name in names])
        assert_equal([result.numpy() for result in results], expected)


# -- operators that a run denies -----------------------------------------------------------------


@pytest.mark.parametrize("created_on", [True, False])
@pytest.mark.parametrize("by_tensors", [False, True])
def test_a_predictor_is_partitioned_again_without_a_denied_operator(
    tmp_path, created_on, by_tensors
):
    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        hidden = paddle.nn.functional.relu(paddle.nn.Linear(6, 11)(x))
        return [x], [paddle.tanh(paddle.nn.Linear(11, 3)(paddle.exp(hidden * 0.1)))]

    def results_of(predictor, feed):
        if not by_tensors:
            return predict(predictor, feed)
        with dynamic_mode():
            return [t.numpy() for t in predictor.run([paddle.to_tensor(feed["x"])])]

    files = save(tmp_path, build)
    feed, other = rows(), rows(7, seed=3)
    expected = [native(files, each) for each in (feed, other)]
    with broken_converter("pd_op.exp"):
        with paddle_ngraph.use_ngraph(created_on):
            predictor = inference.create_predictor(without_onednn(files))
        clone = predictor.clone()
        output = predictor.get_output_handle(predictor.get_output_names()[0])
        paddle_ngraph.enable()
        assert_equal(results_of(predictor, feed), expected[0])  # a run that denies the operator
        for each in (predictor, clone, predictor.clone()):
            for given, right in zip((other, feed), reversed(expected)):
                with engine_runs():
                    assert_equal(results_of(each, given), right)
        assert_equal([output.copy_to_cpu()], expected[0])
        with paddle_ngraph.use_ngraph(False), engine_runs(False):
            assert_equal(results_of(predictor, other), expected[1])
        with engine_runs():
            assert_equal(results_of(predictor, feed), expected[0])


def test_a_predictor_of_which_nothing_is_left_runs_natively(tmp_path):
    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        return [x], [paddle.exp(x)]

    files = save(tmp_path, build)
    expected = native(files, rows())
    paddle_ngraph.enable()
    with broken_converter("pd_op.exp"):
        predictor = inference.create_predictor(without_onednn(files))
        for _ in range(3):
            with engine_runs(False):
                assert_equal(predict(predictor, rows()), expected)
        assert paddle_ngraph.explain(without_onednn(files)).why_native


def test_a_predictor_whose_files_are_gone_retains_its_partition(tmp_path):
    files = save(tmp_path, perceptron)
    expected = native(files, pairs())
    paddle_ngraph.enable()
    with broken_converter("pd_op.relu"):
        predictor = inference.create_predictor(without_onednn(files))
        for file in files:
            Path(file).unlink()
        for _ in range(3):
            assert_equal(predict(predictor, pairs()), expected)


# -- bad input -----------------------------------------------------------------------------------


def cut(path, share):
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(len(content) * share)])


def removed(path, _):
    Path(path).unlink()


def replaced(path, _):
    Path(path).write_bytes(b"hello world\n" * 99)


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", [0, 1], ids=["program", "parameters"])
@pytest.mark.parametrize(
    ("damage", "share"), [(removed, 0), (replaced, 0), (cut, 0), (cut, 0.01), (cut, 0.6)]
)
def test_a_damaged_model_is_an_error(tmp_path, form, which, damage, share, on):
    files = save(tmp_path, convnet, form)
    damage(files[which], share)
    good = save(tmp_path, convnet, form, name="good")
    paddle_ngraph.enable() if on else paddle_ngraph.disable()
    with pytest.raises((RuntimeError, ValueError, IndexError, OSError)):
        inference.create_predictor(config_of(files))
    with engine_runs(on):
        assert_equal(
            predict(inference.create_predictor(config_of(good)), images()), native(good, images())
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "x",
    [
        floats(2, 4, SIZE, SIZE),
        floats(2, SIZE),
        np.ones((2, 3, SIZE, SIZE), "int32"),
        np.ones((2, 3, SIZE, SIZE), "float64"),
    ],
    ids=["channels", "rank", "int32", "float64"],
)
def test_a_wrong_input_is_paddles_error(tmp_path, form, x):
    files = save(tmp_path, convnet, form)
    with pytest.raises(Exception) as expected:
        native(files, {"x": x})
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    with pytest.raises(type(expected.value)):
        predict(predictor, {"x": x})
    with engine_runs():
        assert_equal(predict(predictor, images()), native(files, images()))


def test_a_wrong_name_is_paddles_error(tmp_path):
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(save(tmp_path, convnet)))
    with pytest.raises(RuntimeError):
        predictor.get_input_handle("no such input")


def test_a_model_that_changed_on_disk_is_not_mixed_up(tmp_path):
    files = save(tmp_path, convnet)
    expected = native(files, images())
    paddle_ngraph.enable()
    predictor = inference.create_predictor(config_of(files))
    cut(files[1], 0.5)
    paddle_ngraph.disable()
    with pytest.warns(UserWarning, match="have changed since"):
        assert_equal(predict(predictor, images()), expected)
    with pytest.raises(paddle_ngraph.NgraphError, match="have changed since"):
        predictor.clone()


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_deleted_once_its_predictor_exists(tmp_path, form, enabled):
    """As by servers that decrypt a model to a temporary folder."""
    files = save(tmp_path, convnet, form)
    expected = native(files, images())
    with paddle_ngraph.use_ngraph(enabled):
        predictor = inference.create_predictor(config_of(files))
        for file in files:
            Path(file).unlink()
        before = paddle_ngraph.stats()["engine_runs"]
        assert_equal(predict(predictor, images()), expected)
        assert (paddle_ngraph.stats()["engine_runs"] > before) == enabled
        if form == "pdmodel" and not enabled:  # of other programs Paddle reads the files again
            assert_equal(predict(predictor.clone(), images()), expected)


# -- explain -------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_explain(tmp_path, form, in_memory):
    report = paddle_ngraph.explain(config_of(save(tmp_path, convnet, form), in_memory))
    assert report.why_native is None
    assert report.share == 1.0
    assert len(report.intervals) == 1


@pytest.mark.parametrize("form", FORMS)
def test_explain_reports_unreadable_files(tmp_path, form):
    files = save(tmp_path, convnet, form)
    cut(files[0], 0.5)
    report = paddle_ngraph.explain(config_of(files))
    assert "cannot be read" in report.why_native and not report.intervals
    assert str(report).startswith("Runs natively")


# -- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(("asked", "granted"), [(None, 3), (0, 3), (1, 1), (2, 2), (64, 3)])
def test_threads_that_are_asked_for(monkeypatch, tmp_path, asked, granted, copied):
    """``set_cpu_math_library_num_threads`` applies to clones and copies as well."""
    files = save(tmp_path, perceptron)
    expected = native(files, MODELS[perceptron]())
    config = config_of(files)
    config.disable_onednn()
    if asked is not None:
        config.set_cpu_math_library_num_threads(asked)
    if copied:
        config = inference.Config(config)
    graphs: list[str] = []

    monkeypatch.setattr(fallback, "record_graph", graphs.append)
    before = flags.get("ngraph_num_threads")
    paddle_ngraph.enable()
    try:
        flags.set("ngraph_num_threads", 3)
        predictor = inference.create_predictor(config)
        clone = predictor.clone()
        for each in (predictor, clone):
            with engine_runs():
                assert_equal(predict(each, MODELS[perceptron]()), expected)
        assert len(graphs) == 2
        assert [RunSettings.of(graph).threads for graph in graphs] == [granted] * 2
    finally:
        flags.set("ngraph_num_threads", before)


# -- without Paddle's interpreter ----------------------------------------------------------------


@pytest.fixture
def of_paddle(monkeypatch):
    """The predictors of the runs that Paddle's interpreter does."""
    runs = []

    def run(predictor, *args):
        runs.append(predictor)
        return original(predictor, *args)

    original = switch._run
    replace_runs(monkeypatch, run)
    return runs


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("make", [of_class, of_core, of_clone, of_clone_of_clone])
@pytest.mark.parametrize(
    ("build", "form"), [each for each in SAVED if each[0] is not partly_native]
)
def test_one_engine_operator_needs_no_interpreter(tmp_path, of_paddle, build, form, make):
    """From the second run on, for all sizes, and also after runs by Paddle."""
    files = save(tmp_path, build, form)
    feeds = [MODELS[build](batch=1 + i % 3, seed=i) for i in range(6)]
    expected = [native(files, feed) for feed in feeds]
    paddle_ngraph.enable()
    predictor = make(without_onednn(files))
    predict(predictor, feeds[0])
    of_paddle.clear()
    for on in (True, False, True):
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            for feed, right in zip(feeds, expected):
                assert_equal(predict(predictor, feed), right)
        assert len(of_paddle) == (0 if on else len(feeds))
        of_paddle.clear()


def test_several_operators_need_it(tmp_path, of_paddle):
    files = save(tmp_path, partly_native)
    expected = native(files, rows())
    of_paddle.clear()
    paddle_ngraph.enable()
    predictor = inference.create_predictor(without_onednn(files))
    for count in range(1, 4):
        with engine_runs():
            assert_equal(predict(predictor, rows()), expected)
        assert len(of_paddle) == count


@pytest.mark.parametrize(("passes", "count"), [([], 1), (["identity_op_clean_pass"], 3)])
def test_a_pass_of_the_user_may_change_the_program(tmp_path, of_paddle, passes, count):
    files = save(tmp_path, convnet)
    expected = native(files, images())
    of_paddle.clear()
    paddle_ngraph.enable()
    config = without_onednn(files)
    config.enable_custom_passes([PASS, *passes])
    predictor = inference.create_predictor(config)
    for _ in range(3):
        with engine_runs():
            assert_equal(predict(predictor, images()), expected)
    assert len(of_paddle) == count


def levels_of_detail(predictor):
    predictor.get_input_handle("x").set_lod([[0, 1, 2]])


def freed_memory(predictor):
    predictor.clear_intermediate_tensor()
    predictor.try_shrink_memory()


def another_dtype(predictor):
    predictor.get_input_handle("x").copy_from_cpu(np.ones((2, 3, SIZE, SIZE), "int32"))


def another_rank(predictor):
    predictor.get_input_handle("x").reshape([2, 3, SIZE * SIZE])


def no_rows(predictor):
    predictor.get_input_handle("x").reshape([0, 3, SIZE, SIZE])


def too_many_rows(predictor):
    predictor.get_input_handle("x").reshape([700, 3, SIZE, SIZE])


def result_or_error(predictor):
    try:
        predictor.run()
    except Exception as error:
        return type(error)
    return [predictor.get_output_handle(n).copy_to_cpu() for n in predictor.get_output_names()]


@pytest.mark.parametrize(
    "change",
    [levels_of_detail, freed_memory, another_dtype, another_rank, no_rows, too_many_rows],
)
def test_undeclared_inputs_run_in_the_interpreter(tmp_path, change):
    """Undeclared inputs have Paddle's result, or Paddle's error."""
    files = save(tmp_path, convnet)
    outcomes = []
    for on in (False, True):
        with paddle_ngraph.use_ngraph(on):
            predictor = inference.create_predictor(without_onednn(files))
            for _ in range(2):
                predict(predictor, images())
            change(predictor)
            outcomes += [result_or_error(predictor), predict(predictor, images(seed=3))]
    before, after = outcomes[0::2], outcomes[1::2]
    if isinstance(before[0], type):
        assert before[0] is before[1]
    else:
        assert_equal(before[1], before[0])
    assert_equal(after[1], after[0])


def test_nan_check_needs_every_operator(tmp_path, of_paddle):
    paddle_ngraph.enable()
    predictor = inference.create_predictor(without_onednn(save(tmp_path, convnet)))
    expected = predict(predictor, images())
    of_paddle.clear()
    paddle.set_flags({"FLAGS_check_nan_inf": True})
    try:
        assert_equal(predict(predictor, images()), expected)
    finally:
        paddle.set_flags({"FLAGS_check_nan_inf": False})
    assert len(of_paddle) == 1


def test_results_are_kept_until_the_next_run(tmp_path):
    """Each run allocates memory for its results: tensors that share the memory of an earlier one
    keep it.
    """
    paddle_ngraph.enable()
    predictor = inference.create_predictor(without_onednn(save(tmp_path, convnet)))
    clone = predictor.clone()
    mine = predict(predictor, images(seed=1)), predict(predictor, images(seed=1))
    other = predict(clone, images(seed=2)), predict(clone, images(seed=2))
    for name, result, others in zip(predictor.get_output_names(), mine[1], other[1]):
        np.testing.assert_array_equal(predictor.get_output_handle(name).copy_to_cpu(), result)
        np.testing.assert_array_equal(clone.get_output_handle(name).copy_to_cpu(), others)


class Pair:
    """A predictor and a plain Paddle one, with equal calls."""

    def __init__(self, build, files):
        self.build = build
        self.is_pir = files[0].endswith("json")
        with paddle_ngraph.use_ngraph(False):
            right = inference.create_predictor(without_onednn(files))
        self.both = [(inference.create_predictor(without_onednn(files)), right)]

    def run(self, generator, give):
        place = generator.integers(len(self.both))
        feed = MODELS[self.build](int(generator.integers(1, 5)), int(generator.integers(100)))
        on = flags.get("use_ngraph")
        found = give(self.both[place][0], feed)
        with paddle_ngraph.use_ngraph(False):
            expected = give(self.both[place][1], feed)
        assert flags.get("use_ngraph") == on
        if isinstance(expected, type):
            assert found is expected
        else:
            assert_equal(found, expected)

    def clone(self, generator):
        mine, right = self.both[generator.integers(len(self.both))]
        mine = mine.clone()
        with paddle_ngraph.use_ngraph(False):
            self.both.append((mine, right.clone()))

    def lose(self, generator):
        # Old-style predictors of Paddle's fail without those that share their parameters.
        if len(self.both) > 1 and self.is_pir:
            self.both.pop(int(generator.integers(len(self.both))))

    def free(self, generator):
        for each in self.both[generator.integers(len(self.both))]:
            freed_memory(each)


def by_tensors(predictor, feed):
    paddle.disable_static()
    try:
        given = [paddle.to_tensor(feed[name]) for name in predictor.get_input_names()]
        return [np.array(each) for each in predictor.run(given)]
    finally:
        paddle.enable_static()


def by_shared_memory(predictor, feed, kept=[]):  # noqa: B006
    """The memory has no other owner, and may be reused when other contents are given."""
    kept.extend(share(predictor.get_input_handle(name), value) for name, value in feed.items())
    return result_or_error(predictor)


def twice(predictor, feed):
    first = predict(predictor, feed)
    assert_equal(result_or_error(predictor), first)
    return first


@pytest.mark.parametrize("seed", range(12))
def test_lives_of_predictors(tmp_path, seed):
    generator = np.random.default_rng(seed)
    build, form = SAVED[generator.integers(len(SAVED))]
    files = save(tmp_path, build, form)
    paddle_ngraph.enable()
    pair = Pair(build, files)
    before = paddle_ngraph.stats()["engine_runs"]
    pair.run(generator, predict)
    gives = [predict, predict, twice, by_tensors, by_shared_memory]
    actions = [
        *[lambda give=give: pair.run(generator, give) for give in gives],
        *[lambda act=act: act(generator) for act in (pair.clone, pair.lose, pair.free)],
        paddle_ngraph.enable,
        paddle_ngraph.disable,
        paddle_ngraph.clear_cache,
        lambda: flags.set("ngraph_num_threads", int(generator.integers(4))),
    ]
    values = paddle.get_flags(["FLAGS_ngraph_num_threads"])
    try:
        for _ in range(60):
            actions[generator.integers(len(actions))]()
    finally:
        paddle.set_flags(values)
    assert paddle_ngraph.stats()["engine_runs"] > before


# -- runs that are given tensors ------------------------------------------------------------------


@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize("on", [False, True])
def test_run_takes_and_returns_tensors_as_paddles_does(tmp_path, made_on, on):
    files = save(tmp_path, perceptron)
    feed = pairs()
    expected = native(files, feed)
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(without_onednn(files))
    with paddle_ngraph.use_ngraph(on), dynamic_mode():
        tensors = [paddle.to_tensor(value) for value in feed.values()]
        for _ in range(3):  # the second one needs no interpreter
            with engine_runs(on):
                assert_equal([each.numpy() for each in predictor.run(inputs=tensors)], expected)
            with engine_runs(on):
                assert predictor.run() is None
        for wrong in ({"tensors": tensors}, {"inputs": tensors, "others": tensors}):
            with pytest.raises(TypeError):
                predictor.run(**wrong)
        with pytest.raises(TypeError):
            predictor.run(tensors, inputs=tensors)


def transposed(generator, value):
    return paddle.to_tensor(np.ascontiguousarray(value.T)).t()


def every_second_row(generator, value):
    return paddle.to_tensor(np.repeat(value, 2, axis=0))[::2]


def some_columns(generator, value):
    first = int(generator.integers(4))
    wide = np.pad(value, [(0, 0), (first, int(generator.integers(1, 4)))], constant_values=1)
    return paddle.to_tensor(wide)[:, first : first + value.shape[1]]


def one_row_many_times(generator, value):
    value[:] = value[:1]
    return paddle.expand(paddle.to_tensor(value[:1].copy()), value.shape)


VIEWS = [transposed, every_second_row, some_columns, one_row_many_times]


def of_many_dtypes():
    """One input of each dtype, whose elements change their places."""
    kinds = ("float32", "float64", "int32", "int64", "bool", "uint8", "int8", "float16")
    inputs = [paddle.static.data(f"x_{kind}", [-1, 6], kind) for kind in kinds]
    results = [paddle.cast(each, "float32") * 0.5 for each in inputs]
    return inputs, [paddle.concat(results, axis=1), paddle.sum(paddle.stack(results), axis=0)]


def of_each_dtype(batch, seed):
    generator = np.random.default_rng(seed)
    kinds = ("float32", "float64", "int32", "int64", "bool", "uint8", "int8", "float16")
    return {f"x_{kind}": generator.integers(0, 9, [batch, 6]).astype(kind) for kind in kinds}


@pytest.mark.slow("compiles many or large functions")
@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_views_are_read_in_the_order_of_their_elements(tmp_path, made_on, seed):
    """In a run that is given them, and in those that compute on them again."""
    generator = np.random.default_rng(seed)
    files = save(tmp_path, of_many_dtypes)
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(without_onednn(files))
    for repetition in range(4):
        feed = of_each_dtype(int(generator.integers(2, 5)), seed=10 * seed + repetition)
        with paddle_ngraph.use_ngraph(), dynamic_mode():
            views = [VIEWS[generator.integers(4)](generator, value) for value in feed.values()]
            expected = native(files, feed)  # after views have changed it
            with engine_runs():
                results = predictor.run(views)
            assert_equal([each.numpy() for each in results], expected)
            with engine_runs():
                assert_equal(result_or_error(predictor), expected)
            with engine_runs():
                assert_equal(result_or_error(predictor), expected)


@pytest.mark.parametrize("mode", [dynamic_mode, contextlib.nullcontext])
def test_views_switch_nothing_that_other_threads_find(tmp_path, mode, monkeypatch):
    """Paddle's way into dynamic mode does: steps of an optimizer would find no learning rate."""
    files = save(tmp_path, perceptron)
    feed = pairs()
    expected = native(files, feed)
    with paddle_ngraph.use_ngraph(), dynamic_mode():
        predictor = inference.create_predictor(config_of(files))
        views = [transposed(None, value) for value in feed.values()]
    framework, names = paddle.base.framework, paddle.base.unique_name
    switched = []
    with paddle_ngraph.use_ngraph(), mode(), monkeypatch.context() as patch:
        for owner, name in ((framework, "switch_main_program"), (names, "switch")):
            patch.setattr(owner, name, switched.append)
        with engine_runs():
            results = predictor.run(views)
    with dynamic_mode():
        assert_equal([each.numpy() for each in results], expected)
    assert not switched


def differences(count):
    """Inputs of different weight, whose order shows."""

    def build():
        inputs = [paddle.static.data(f"in_{(7 * i) % 5}", [-1, 6], "float32") for i in range(count)]
        total = inputs[0] * 0.5 + paddle.static.create_parameter([6], "float32")
        for number, each in enumerate(inputs[1:], 2):
            total = total - each * float(number)
        return inputs, [paddle.mean(total), total * 0.1]

    return build


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", ["as it is", "saved"])
def test_inputs_and_outputs_come_in_the_order_of_the_model(tmp_path, form, count, kind):
    files = save(tmp_path, differences(count), form)
    feeds = [floats(3, 6, seed=i) for i in range(count)]
    with paddle_ngraph.use_ngraph(False), dynamic_mode():
        right = inference.create_predictor(without_onednn(files))
        expected = right.run([paddle.to_tensor(feed) for feed in feeds])
    if kind == "saved":
        saving.convert(SavedModel(*files), str(tmp_path / "engine"))
        files = [str(tmp_path / f"engine.{ending}") for ending in ("json", "pdiparams")]
    with paddle_ngraph.use_ngraph():
        predictor = inference.create_predictor(without_onednn(files))
        clone = predictor.clone()
    for each in (predictor, clone):
        assert each.get_input_names() == right.get_input_names()
        if kind != "saved":
            assert each.get_output_names() == right.get_output_names()
        with paddle_ngraph.use_ngraph(), dynamic_mode(), engine_runs():
            results = each.run([paddle.to_tensor(feed) for feed in feeds])
        assert_equal([r.numpy() for r in results], [r.numpy() for r in expected])


def life_of_shared_memory(files, feeds, made_on, on):
    """The contents of memory that a caller shares with a predictor, and the results on it."""
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(without_onednn(files))
    first, second, third = feeds
    seen = []
    with paddle_ngraph.use_ngraph(on), dynamic_mode():
        shared = {name: paddle.to_tensor(value) for name, value in first.items()}
        given = {name: paddle.to_tensor(value) for name, value in second.items()}

        def look():
            handles = [predictor.get_input_handle(name) for name in predictor.get_input_names()]
            seen.extend(each.numpy().copy() for each in (*shared.values(), *given.values()))
            seen.extend(handle.copy_to_cpu() for handle in handles)
            seen.extend(result_or_error(predictor))

        for name, tensor in shared.items():
            predictor.get_input_handle(name).share_external_data(tensor)
        look()
        predictor.run([given[name] for name in predictor.get_input_names()])
        look()
        for name, tensor in given.items():  # which its user goes on to write
            tensor.copy_(paddle.to_tensor(third[name]), True)
        look()
        for name, tensor in shared.items():
            predictor.get_input_handle(name).share_external_data(tensor)
            tensor.copy_(paddle.to_tensor(third[name]), True)
        look()
    return seen


@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("build", [of_many_dtypes, perceptron])
def test_memory_that_is_shared_is_only_read(tmp_path, build, made_on, on):
    """Paddle and the engine compute on the caller's memory, and write nothing there."""
    files = save(tmp_path, build)
    draw = of_each_dtype if build is of_many_dtypes else MODELS[build]
    feeds = [draw(3, seed) for seed in range(3)]
    expected = life_of_shared_memory(files, feeds, False, False)
    with engine_runs(on):
        found = life_of_shared_memory(files, feeds, made_on, on)
    assert_equal(found, expected)


def on_tensors(predictor, feed, is_dynamic, view=transposed):
    """A run on views, in dynamic or in static mode. Returns its results."""
    with dynamic_mode():
        given = [view(np.random, feed[name]) for name in predictor.get_input_names()]
        if is_dynamic:
            return predictor.run(given)
    return predictor.run(given)


@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("build", [of_many_dtypes, perceptron])
def test_results_that_are_held_outlive_switches(tmp_path, build, made_on, is_dynamic):
    """Results have memory of their own, independent of the handles before and after."""
    files = save(tmp_path, build)
    draw = of_each_dtype if build is of_many_dtypes else MODELS[build]
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(without_onednn(files))
    for repetition in range(4):
        feeds = [draw(3, 3 * repetition + i) for i in range(3)]
        with paddle_ngraph.use_ngraph(not made_on), engine_runs(not made_on):
            on_tensors(predictor, feeds[0], is_dynamic)
        with paddle_ngraph.use_ngraph(made_on), engine_runs(made_on):
            held = on_tensors(predictor, feeds[1], is_dynamic, lambda _, x: paddle.to_tensor(x))
        with paddle_ngraph.use_ngraph(not made_on):
            on_tensors(predictor, feeds[2], is_dynamic)
        others = [np.full(size, 77, "uint8") for size in (16, 64, 200, 600, 1400) * 20]
        assert_equal([np.array(each) for each in held], native(files, feeds[1]))
        del others


@pytest.mark.parametrize("made_on", [False, True])
def test_inputs_are_those_of_the_last_run_even_if_it_failed(tmp_path, made_on):
    files = save(tmp_path, perceptron)
    outcomes = []
    for made, on in ((False, False), (made_on, False), (made_on, True)):
        with paddle_ngraph.use_ngraph(made):
            predictor = inference.create_predictor(without_onednn(files))
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            predict(predictor, pairs(batch=3))
            with dynamic_mode(), pytest.raises(Exception):  # noqa: B017
                predictor.run([paddle.ones([3, 6]), paddle.ones([2, 5])])
            shapes = [predictor.get_input_handle(name).shape() for name in ("x", "y")]
            with dynamic_mode(), pytest.raises(Exception):  # noqa: B017
                predictor.run([paddle.ones([3, 6])])
            outcomes.append((shapes, result_or_error(predictor)))
            predict(predictor, pairs(batch=3))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def branches():
    x = paddle.static.data("x", [-1, 6], "float32")
    is_first = paddle.static.data("is_first", [1], "bool")
    bytes_ = paddle.static.data("bytes", [-1], "uint8")
    branch = paddle.static.nn.cond(is_first, lambda: paddle.tanh(x), lambda: x * 2.0 + 1.0)
    return [x, is_first, bytes_], [branch, paddle.cast(bytes_, "float32") * 2.0]


@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize("on", [False, True])
def test_empty_inputs_end_no_process(tmp_path, made_on, on):
    """Paddle reads a condition where a longer one was before."""
    files = save(tmp_path, branches)
    outcomes = []
    for made, runs in ((False, False), (made_on, on)):
        with paddle_ngraph.use_ngraph(made):
            predictor = inference.create_predictor(without_onednn(files))
        feed = {**rows(), "is_first": np.zeros(1, "bool"), "bytes": np.arange(5, dtype="uint8")}
        with paddle_ngraph.use_ngraph(runs), engine_runs(runs):
            outcomes.append([predict(predictor, feed)])
            for name in ("is_first", "bytes"):
                predictor.get_input_handle(name).reshape([0])
                outcomes[-1].append(result_or_error(predictor))
            outcomes[-1].append(predict(predictor, feed))
    for found, expected in zip(outcomes[1], outcomes[0]):
        assert_equal(found, expected)


def levels_of(predictor):
    return [predictor.get_output_handle(name).lod() for name in predictor.get_output_names()]


@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize(("build", "form"), SAVED)
def test_levels_of_detail_reach_the_results(tmp_path, build, form, made_on):
    """As far as Paddle's operators hand them on, and none is left when there are none."""
    files = save(tmp_path, build, form)

    def life(made_on, on):
        with paddle_ngraph.use_ngraph(made_on):
            predictor = inference.create_predictor(without_onednn(files))
        found = []
        for levels in ([], [[0, 1, 4]], [[0, 4]]):
            with paddle_ngraph.use_ngraph(on):
                for name in predictor.get_input_names():
                    predictor.get_input_handle(name).set_lod(levels)
                predict(predictor, MODELS[build](batch=4))
                found.append(levels_of(predictor))
        return predictor, found

    _, expected = life(False, False)
    with engine_runs():  # before there are any
        predictor, found = life(made_on, True)
    assert found == expected
    for name in predictor.get_input_names():
        predictor.get_input_handle(name).set_lod([])
    for _ in range(2):
        with paddle_ngraph.use_ngraph():
            predict(predictor, MODELS[build](batch=4))
        if build is not partly_native:  # Paddle's own operators of PIR keep the last ones
            assert not any(levels_of(predictor))


# -- large results -------------------------------------------------------------------------------


def with_large_result():
    """A result of more than a megabyte for each row."""
    x = paddle.static.data("x", [-1, 6], "float32")
    hidden = paddle.nn.Linear(6, 1 << 18)(x)
    return [x], [paddle.exp(hidden), hidden > 0.0, paddle.mean(hidden)]


def test_a_large_result_is_its_users_own(tmp_path):
    files = save(tmp_path, with_large_result)
    with paddle_ngraph.use_ngraph(False):
        native = inference.create_predictor(config_of(files))
        expected = [predict(native, rows(seed=seed)) for seed in range(3)]
    with paddle_ngraph.use_ngraph():
        predictor = inference.create_predictor(config_of(files))
        found = [predict(predictor, rows(seed=seed)) for seed in range(3)]
        handle = predictor.get_output_handle(predictor.get_output_names()[0])
        large, again = handle.copy_to_cpu(), handle.copy_to_cpu()
    assert not large.flags.owndata, "it is not in memory of the engine"
    assert large.flags.writeable and large.flags.c_contiguous and large.flags.aligned
    large[:] = -1.0
    with paddle_ngraph.use_ngraph():
        later = handle.copy_to_cpu()
    for array in (again, later):
        np.testing.assert_array_equal(array, found[-1][0])
    # Later runs, and writes by the caller, do not change earlier results.
    for arrays, wanted in zip(found, expected):
        for array, other in zip(arrays, wanted):
            assert array.dtype == other.dtype and array.shape == other.shape
            np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)


def test_a_large_result_outlives_its_predictor(tmp_path):
    files = save(tmp_path, with_large_result)
    with paddle_ngraph.use_ngraph():
        predictor = inference.create_predictor(config_of(files))
        found = predict(predictor, rows())[0]
        expected = found.copy()
        del predictor
        gc.collect()
        paddle_ngraph.clear_cache()
        predict(inference.create_predictor(config_of(files)), rows(seed=5))
    np.testing.assert_array_equal(found, expected)


def test_an_empty_handle_raises_as_in_paddle(tmp_path):
    files = save(tmp_path, with_large_result)

    def message():
        predictor = inference.create_predictor(config_of(files))
        handle = predictor.get_output_handle(predictor.get_output_names()[0])
        with pytest.raises(Exception) as raised:
            handle.copy_to_cpu()
        return type(raised.value)

    with paddle_ngraph.use_ngraph(False):
        expected = message()
    with paddle_ngraph.use_ngraph():
        assert message() is expected
