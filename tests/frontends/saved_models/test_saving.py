"""Saved engine programs: opened by another process, with and without their compiled functions."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import inference

import paddle_ngraph
from paddle_ngraph import _core, flags
from paddle_ngraph.__main__ import main as command_line
from paddle_ngraph.conversion import disk_cache
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.partitioning import program_pass
from tests.frontends.predictor.test_hook import (
    SIZE,
    assert_equal,
    config_of,
    convnet,
    images,
    loop,
    pairs,
    perceptron,
    predict,
    rows,
)
from tests.programs import with_untranslatable_noise
from tests.stored_functions import StoredFile

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def small_intervals_pay(tmp_path):
    before = paddle.get_flags(["FLAGS_ngraph_min_interval_us", "FLAGS_ngraph_cache_dir"])
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})
    yield
    paddle.set_flags(before)
    paddle_ngraph.clear_cache()
    shutil.rmtree(tmp_path)  # else equal models find its functions


# -- models --------------------------------------------------------------------------------------


def two_intervals():
    """Nothing converts ``erfinv``."""
    x = paddle.static.data("x", [-1, 6], "float32")
    hidden = paddle.erfinv(paddle.tanh(paddle.nn.Linear(6, 11)(x)) * 0.9)
    return [x], [paddle.nn.Linear(11, 3)(hidden)]


def words():
    ids = paddle.static.data("ids", [-1, 7], "int64")
    hidden, _ = paddle.nn.LSTM(5, 9)(paddle.nn.Embedding(31, 5)(ids))
    return [ids], [paddle.nn.Linear(9, 3)(hidden)]


def reshaped():
    """The function depends on the contents of ``shape``."""
    x = paddle.static.data("x", [-1, 6], "float32")
    shape = paddle.static.data("shape", [2], "int32")
    return [x, shape], [paddle.exp(paddle.reshape(paddle.nn.Linear(6, 6)(x), shape))]


def numbers(batch=3, seed=0):
    return {"ids": np.random.default_rng(seed).integers(0, 31, [batch, 7])}


def rows_and_shape(batch=4, seed=0):
    return {**rows(batch, seed), "shape": np.array([2, 3 * batch], "int32")}


MODELS = {convnet: images, perceptron: pairs, loop: rows, two_intervals: rows, words: numbers}
FORMS = ("pir", "old")


class Built:
    """A program with parameters in a scope of its own, and its results in plain Paddle."""

    def __init__(self, build, form="pir"):
        self.old = form == "old"
        self.main, startup = paddle.static.Program(), paddle.static.Program()
        self.scope = paddle.static.Scope()
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        with self.inside():
            startup = paddle.static.Program()
            self.main = paddle.static.Program()
            with paddle.static.program_guard(self.main, startup), paddle.utils.unique_name.guard():
                self.inputs, self.outputs = build()
            with paddle_ngraph.use_ngraph(False):
                paddle.seed(5)
                self.executor.run(startup)

    @contextlib.contextmanager
    def inside(self):
        old = paddle.pir_utils.OldIrGuard() if self.old else contextlib.nullcontext()
        with old, paddle.static.scope_guard(self.scope):
            yield

    def run(self, feed):
        with self.inside(), paddle_ngraph.use_ngraph(False):
            return self.executor.run(self.main, feed=feed, fetch_list=self.outputs)

    def save(self, prefix, **options):
        with self.inside():
            return paddle_ngraph.save_inference_model(
                str(prefix), self.inputs, self.outputs, self.executor, program=self.main, **options
            )


def shapes_of(feed):
    return {name: list(value.shape) for name, value in feed.items()}


def of_predictor(prefix, feed):
    files = (f"{prefix}.json", f"{prefix}.pdiparams")
    return predict(inference.create_predictor(config_of(files)), feed)


def of_executor(prefix, feed):
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        program, _, fetches = paddle.static.load_inference_model(str(prefix), executor)
        return executor.run(program, feed=feed, fetch_list=fetches)


def of_layer(prefix, feed):
    paddle.disable_static()
    try:
        layer = paddle.jit.load(str(prefix))
        results = layer(*map(paddle.to_tensor, feed.values()))
        return [each.numpy() for each in (results if isinstance(results, list) else [results])]
    finally:
        paddle.enable_static()


WAYS = {"predictor": of_predictor, "executor": of_executor, "layer": of_layer}


def start_anew():
    gc.collect()
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()


def functions(prefix):
    return sorted(Path(f"{prefix}.ngraph").glob("*.ngraph"))


# Paddle's own jit.load fails on an LSTM saved by save_inference_model.
EVERY = [(build, way) for build in MODELS for way in WAYS if (build, way) != (words, "layer")]


# -- in this process -----------------------------------------------------------------------------


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize(("build", "way"), EVERY)
def test_it_runs_with_the_switch_off_and_on(tmp_path, build, way, on):
    built, feed = Built(build), MODELS[build]()
    expected = built.run(feed)
    report = built.save(tmp_path / "model")
    assert report.ops_converted > 0
    assert set(os.listdir(tmp_path)) <= {"model.json", "model.pdiparams"}
    start_anew()
    paddle_ngraph.enable() if on else paddle_ngraph.disable()
    for _ in range(2):
        assert_equal(WAYS[way](tmp_path / "model", feed), expected)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] >= 2 * len(report.intervals)
    assert stats["ops_converted"] == 0, "it was rewritten twice"


def test_old_programs_become_pir(tmp_path):
    built, feed = Built(convnet, "old"), images()
    expected = built.run(feed)
    built.save(tmp_path / "model", input_shapes=shapes_of(feed))
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.ngraph", "model.pdiparams"]
    start_anew()
    for way in WAYS.values():
        assert_equal(way(tmp_path / "model", feed), expected)
    stats = paddle_ngraph.stats()
    assert (stats["engine_runs"], stats["functions_built"]) == (3, 0)


def test_the_default_program_and_the_way_paddle_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built, feed = Built(perceptron), pairs()
    with built.inside(), paddle.static.program_guard(built.main):
        paddle_ngraph.save_inference_model(
            "new/folder/model", built.inputs, built.outputs, built.executor, clip_extra=False
        )
    assert_equal(of_executor(tmp_path / "new/folder/model", feed), built.run(feed))
    assert paddle_ngraph.stats()["engine_runs"] == 1


@pytest.mark.parametrize("options", [{}, {"readable": True}])
def test_options_are_paddles(tmp_path, options):
    built, feed = Built(perceptron), pairs()
    built.save(tmp_path / "model", **options)
    text = (tmp_path / "model.json").read_text()
    assert json.loads(text)["base_code"]["trainable"] is True
    assert ("\n" in text.strip()) == ("readable" in options)
    assert_equal(of_executor(tmp_path / "model", feed), built.run(feed))


def test_models_that_crash_paddle_are_rejected(tmp_path):
    """Neither Executor nor predictors take such a model of Paddle's; the latter end the process."""
    with pytest.raises(paddle_ngraph.NgraphError, match="saved with trainable=False"):
        Built(perceptron).save(tmp_path / "model", trainable=False)
    with pytest.raises(paddle_ngraph.NgraphError, match="saved with trainable=False"):
        of_predictor(tmp_path / "model", pairs())


def test_a_loaded_program_prints_clones_and_saves(tmp_path):
    built, feed = Built(perceptron), pairs()
    expected = built.run(feed)
    built.save(tmp_path / "model")
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()):
        program, _, fetches = paddle.static.load_inference_model(str(tmp_path / "model"), executor)
        assert "ngraph_engine" in str(program)
        clone = program.clone()
        paddle.static.save(clone, str(tmp_path / "state"))
        for name in ("linear_0.w_0", "linear_1.b_0"):
            variable = paddle.static.global_scope().find_var(name).get_tensor()
            variable.set(np.zeros(variable.shape(), "float32"), paddle.CPUPlace())
        zeros = executor.run(program, feed=feed, fetch_list=fetches)
        assert np.abs(zeros[0] - expected[0]).max() > 1e-3, "weights are stale"
        paddle.static.load(clone, str(tmp_path / "state"), executor)
        assert_equal(executor.run(clone, feed=feed), expected)
    assert paddle_ngraph.stats()["engine_runs"] == 2


def test_explain_reports_a_saved_engine_program(tmp_path):
    built = Built(two_intervals)
    built.save(tmp_path / "model")
    files = (str(tmp_path / "model.json"), str(tmp_path / "model.pdiparams"))
    report = paddle_ngraph.explain(config_of(files))
    assert report.engines == 2
    assert "2 engine operators in it already" in str(report)


def test_missing_parameters_are_an_error(tmp_path):
    """Paddle reads uninitialized memory in their place."""
    Built(perceptron).save(tmp_path / "model")
    (tmp_path / "model.pdiparams").unlink()
    with pytest.raises(paddle_ngraph.NgraphError, match=r"parameters of .* are missing"):
        of_predictor(tmp_path / "model", pairs())


# -- in another process --------------------------------------------------------------------------

SCRIPT = textwrap.dedent(
    """
    import json, sys
    import numpy as np
    import paddle
    {imported}
    from paddle.inference import Config, create_predictor

    def predict(prefix, feed):
        config = Config(prefix + ".json", prefix + ".pdiparams")
        config.disable_glog_info()
        predictor = create_predictor(config)
        for name, value in feed.items():
            handle = predictor.get_input_handle(name)
            handle.reshape(list(value.shape))
            handle.copy_from_cpu(value)
        predictor.run()
        return [predictor.get_output_handle(n).copy_to_cpu() for n in predictor.get_output_names()]

    def execute(prefix, feed):
        paddle.enable_static()
        executor = paddle.static.Executor()
        program, _, fetches = paddle.static.load_inference_model(prefix, executor)
        return executor.run(program, feed=feed, fetch_list=fetches)

    prefix, feed = sys.argv[1], dict(np.load(sys.argv[2]))
    answers = {{}}
    for run in (predict, execute):
        try:
            answers[run.__name__] = [each.tolist() for each in run(prefix, feed)]
        except Exception as error:
            answers[run.__name__] = type(error).__name__ + ": " + str(error)
    if "paddle_ngraph" in sys.modules:
        import paddle_ngraph
        answers["stats"] = paddle_ngraph.stats()
    print("answers" + json.dumps(answers))
    """
)


# As many threads as the tests have, if more than there are cores are asked for: see conftest.py.
IMPORT = "import paddle_ngraph; paddle_ngraph._core.allow_more_threads_than_cores(True)"


def answers(folder, feed, imported=True, **environment):
    np.savez(folder / "feed.npz", **feed)
    script = SCRIPT.format(imported=IMPORT if imported else "")
    settings = {"FLAGS_ngraph_cache_dir": "", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, folder / "model", folder / "feed.npz"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("answers")[2])


def assert_answers(found, expected):
    for way in ("predict", "execute"):
        assert isinstance(found[way], list), found[way]
        for result, right in zip(found[way], expected):
            np.testing.assert_allclose(result, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("on", ["0", "1"])
@pytest.mark.parametrize("build", [convnet, words])
def test_another_process_runs_it_with_its_functions(tmp_path, build, on):
    built, feed = Built(build), MODELS[build]()
    report = built.save(tmp_path / "model", input_shapes=shapes_of(feed))
    found = answers(tmp_path, feed, FLAGS_use_ngraph=on)
    assert_answers(found, built.run(feed))
    stats = found["stats"]
    assert stats["engine_runs"] == 2 * len(report.intervals)
    assert stats["functions_built"] == 0, "the functions beside the model were not found"
    assert stats["functions_loaded"] >= 1
    assert stats["ops_converted"] == 0


@pytest.mark.slow("starts a process")
def test_other_threads_compile_anew(tmp_path):
    built, feed = Built(convnet), images()
    built.save(tmp_path / "model", input_shapes=shapes_of(feed))
    found = answers(tmp_path, feed, FLAGS_ngraph_num_threads="5")
    assert_answers(found, built.run(feed))
    assert found["stats"]["functions_loaded"] == 0
    assert found["stats"]["engine_runs"] == 2


@pytest.mark.slow("starts a process")
def test_without_the_import_paddle_raises_the_documented_error(tmp_path):
    built, feed = Built(convnet), images()
    built.save(tmp_path / "model")
    found = answers(tmp_path, feed, imported=False)
    message = "kernel output args (0) defs should equal op outputs"
    for way in ("predict", "execute"):
        assert message in found[way]
    assert message in (ROOT / "docs" / "guides" / "saved_models.md").read_text()


# -- functions beside it -------------------------------------------------------------------------


def opened(prefix, feed, expected):
    """Opens a model as a new process would. Returns how many functions it built and loaded."""
    start_anew()
    assert_equal(of_predictor(prefix, feed), expected)
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] > 0, "the engine did not run"
    return stats["functions_built"], stats["functions_loaded"]


def saved_with_functions(folder, build=convnet, feeds=None):
    built = Built(build)
    feeds = [images()] if feeds is None else feeds
    built.save(folder / "model", input_shapes=[shapes_of(feed) for feed in feeds])
    return built, folder / "model"


@pytest.mark.slow("compiles many or large functions")
def test_each_shape_has_a_function(tmp_path):
    feeds = [images(batch, seed=batch) for batch in (1, 3, 5, 9)]
    built, prefix = saved_with_functions(tmp_path, feeds=feeds[:3])
    assert len(functions(prefix)) == 3  # the third of them serves others, too
    for feed in feeds[:3]:
        assert opened(prefix, feed, built.run(feed)) == (0, 1)
    assert_equal(of_predictor(prefix, feeds[3]), built.run(feeds[3]))
    assert paddle_ngraph.stats()["functions_built"] == 0


def test_arrays_stand_for_their_contents(tmp_path):
    built, feed = Built(reshaped), rows_and_shape()
    built.save(tmp_path / "model", input_shapes={"x": [4, 6], "shape": feed["shape"]})
    assert opened(tmp_path / "model", feed, built.run(feed)) == (0, 1)


def test_functions_are_read_as_the_model_is(tmp_path):
    _, prefix = saved_with_functions(tmp_path)
    modes = {path.stat().st_mode & 0o777 for path in functions(prefix)}
    assert modes == {(tmp_path / "model.json").stat().st_mode & 0o644}


ENVIRONMENTS = {
    "another processor": ("_processor", "another one"),
    "another release of Paddle or OpenVINO": ("versions", ["openvino 1999.1"]),
    "other sources": ("_sources", "of another release"),
}


@pytest.mark.parametrize("what", ENVIRONMENTS)
def test_functions_built_elsewhere_are_ignored(tmp_path, monkeypatch, what):
    name, value = ENVIRONMENTS[what]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(disk_cache, name, lambda: value)
        disk_cache._fixed_environment.cache_clear()
        built, prefix = saved_with_functions(tmp_path)
    disk_cache._fixed_environment.cache_clear()
    before = [path.read_bytes() for path in functions(prefix)]
    assert opened(prefix, images(), built.run(images())) == (1, 0)
    assert [path.read_bytes() for path in functions(prefix)] == before


def test_the_package_may_be_installed_later(tmp_path, monkeypatch):
    """Functions are valid for the package's contents, not its timestamps."""
    copies = [tmp_path / name for name in ("here", "there")]
    digests = []
    for number, copy in enumerate(copies):
        copy.mkdir()
        for name in ("flags.py", Path(_core.__file__).name):
            shutil.copyfile(disk_cache._PACKAGE / name, copy / name)
            os.utime(copy / name, (number, number))
        monkeypatch.setattr(disk_cache, "_PACKAGE", copy)
        digests.append(disk_cache._sources())
    assert digests[0] == digests[1]
    (copies[1] / "flags.py").write_bytes((copies[1] / "flags.py").read_bytes() + b"#")
    assert disk_cache._sources() != digests[0]


@pytest.mark.parametrize("how", ["empty", "truncated", "flipped", "foreign", "renamed", "a link"])
def test_damaged_functions_are_ignored(tmp_path, how):
    built, prefix = saved_with_functions(tmp_path)
    (path,) = functions(prefix)
    data = path.read_bytes()
    middle = len(data) // 3
    if how == "renamed":
        path.rename(path.with_name("0" * 32 + "-" + "1" * 32 + ".ngraph"))
    elif how == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        changed = {"empty": b"", "truncated": data[:-1], "flipped": flipped, "foreign": b"x" * 999}
        path.write_bytes(changed[how])
    assert opened(prefix, images(), built.run(images())) == (1, 0)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_functions_that_others_could_have_written_are_ignored(tmp_path, what):
    built, prefix = saved_with_functions(tmp_path)
    path = functions(prefix)[0] if what == "file" else Path(f"{prefix}.ngraph")
    path.chmod(path.stat().st_mode | 0o022)
    assert opened(prefix, images(), built.run(images())) == (1, 0)
    path.chmod(path.stat().st_mode & ~0o022)
    assert opened(prefix, images(), built.run(images())) == (0, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_functions_of_another_owner_than_the_models_are_ignored(tmp_path):
    built, prefix = saved_with_functions(tmp_path)
    os.chown(f"{prefix}.json", 12345, -1)
    with trusted(tmp_path):
        assert opened(prefix, images(), built.run(images())) == (1, 0)


@contextlib.contextmanager
def trusted(folder):
    flags.set("ngraph_trusted_dir", str(folder))
    try:
        yield
    finally:
        flags.set("ngraph_trusted_dir", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", (1, 0)), ("elsewhere", (1, 0)), ("mod", (1, 0)), (".", (0, 1)), ("link", (0, 1))],
)
def test_functions_of_another_user_are_used_from_a_trusted_folder(tmp_path, folder, expected):
    """A model that one user has saved and another serves compiles nothing."""
    model = tmp_path / "model"
    model.mkdir()
    for name in ("elsewhere", "mod"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(model)
    built, prefix = saved_with_functions(model)
    for path in (model, *model.rglob("*")):
        os.chown(path, 12345, -1)
    with trusted(folder and tmp_path / folder):
        assert opened(prefix, images(), built.run(images())) == expected


def claimed_by(prefix, files):
    """Writes functions into the folder of a model, authenticated as its own."""
    paths = (f"{prefix}.json", f"{prefix}.pdiparams")
    secret = saved_model.identity_of(*paths).digest
    folder = Path(f"{prefix}.ngraph")
    folder.mkdir(mode=0o755, exist_ok=True)
    for file in files:
        path = folder / f"model-{file.name}"
        path.write_bytes(file.contents(secret))
        path.chmod(0o644)


def test_functions_that_a_model_claims_are_its_own(tmp_path):
    """The functions in the test below are well-formed: those of the model itself are used."""
    built, prefix = saved_with_functions(tmp_path)
    files = [StoredFile.of(path.read_bytes()) for path in functions(prefix)]
    before = [path.read_bytes() for path in functions(prefix)]
    claimed_by(prefix, files)
    assert [path.read_bytes() for path in functions(prefix)] == before
    assert opened(prefix, images(), built.run(images())) == (0, 1)


@pytest.mark.parametrize("other", [perceptron, convnet])
def test_functions_beside_another_model_are_not_used(tmp_path, other):
    """A model of another graph, or of the same graph with other weights, is opened before."""
    built, prefix = saved_with_functions(tmp_path)
    files = [StoredFile.of(path.read_bytes()) for path in functions(prefix)]
    shutil.rmtree(f"{prefix}.ngraph")
    built_other = Built(other)
    with built_other.inside():
        weight = built_other.scope.find_var("linear_0.w_0").get_tensor()
        weight.set(np.array(weight) * 2.5, paddle.CPUPlace())
    built_other.save(tmp_path / "other")
    claimed_by(tmp_path / "other", files)
    start_anew()
    of_predictor(tmp_path / "other", images() if other is convnet else pairs())
    before = paddle_ngraph.stats()
    assert before["functions_loaded"] == 0
    assert_equal(of_predictor(prefix, images()), built.run(images()))
    after = paddle_ngraph.stats()
    assert after["functions_loaded"] == 0
    assert after["functions_built"] == before["functions_built"] + 1


def test_functions_of_a_changed_model_are_ignored(tmp_path):
    """Functions are bound to the files of the model."""
    built, prefix = saved_with_functions(tmp_path)
    text = Path(f"{prefix}.json").read_text()
    Path(f"{prefix}.json").write_text(text + " ")
    assert opened(prefix, images(), built.run(images())) == (1, 0)
    Path(f"{prefix}.json").write_text(text)
    assert opened(prefix, images(), built.run(images())) == (0, 1)


def test_a_copied_model_has_its_functions(tmp_path):
    built, _ = saved_with_functions(tmp_path)
    (tmp_path / "there").mkdir()
    for path in sorted(tmp_path.glob("model.*")):
        path.rename(tmp_path / "there" / path.name)
    assert opened(tmp_path / "there" / "model", images(), built.run(images())) == (0, 1)


def test_functions_of_other_weights_are_ignored(tmp_path):
    built, prefix = saved_with_functions(tmp_path)
    with built.inside():
        weight = built.scope.find_var("linear_0.w_0").get_tensor()
        weight.set(np.array(weight) * 2.5, paddle.CPUPlace())
        kept = functions(prefix)[0].read_bytes()
        paddle.static.save_inference_model(
            str(tmp_path / "other"), built.inputs, built.outputs, built.executor, program=built.main
        )
    shutil.copyfile(tmp_path / "other.pdiparams", f"{prefix}.pdiparams")
    assert opened(prefix, images(), built.run(images())) == (1, 0)
    assert functions(prefix)[0].read_bytes() == kept


def test_saving_again_leaves_no_functions_of_the_model_before(tmp_path):
    _, prefix = saved_with_functions(tmp_path)
    before = functions(prefix)
    saved_with_functions(tmp_path, perceptron, [pairs()])
    assert not set(before) & set(functions(prefix))
    assert len(functions(prefix)) == 1
    Built(perceptron).save(prefix)
    assert not Path(f"{prefix}.ngraph").exists()
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.pdiparams"]


def test_the_cache_of_the_user_is_left_alone_and_asked_first(tmp_path):
    flags.set("ngraph_cache_dir", str(tmp_path / "cache"))
    flags.set("ngraph_cache_min_ms", 0)
    try:
        built, prefix = saved_with_functions(tmp_path)
        assert not (tmp_path / "cache").exists()
        assert opened(prefix, images(), built.run(images())) == (0, 1)
        assert opened(prefix, images(7), built.run(images(7))) == (1, 0)
        assert len(list((tmp_path / "cache").iterdir())) == 1
        assert len(functions(prefix)) == 1
    finally:
        flags.set("ngraph_cache_min_ms", flags.FLAGS["ngraph_cache_min_ms"].default)


# -- rejected input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": [2, 6]}, "the inputs of the model are x, y"),
        ({"x": [2, 6], "z": [2, 6]}, "the inputs of the model are x, y"),
        ({"x": [2, 7], "y": [2, 6]}, r"x has the shape \[-1, 6\]"),
        ({"x": [2, 6], "y": [2, 6, 1]}, r"y has the shape \[-1, 6\]"),
        ({"x": [0, 6], "y": [2, 6]}, "does not match"),
        ({"x": [2, 6], "y": [3, 6]}, r"the model does not run with x of shape \[2, 6\]"),
        ({"x": np.zeros((2, 9)), "y": [2, 6]}, "does not match"),
    ],
)
def test_shapes_that_do_not_fit(tmp_path, shapes, message):
    built = Built(perceptron)
    with pytest.raises(paddle_ngraph.NgraphError, match=message):
        built.save(tmp_path / "model", input_shapes=shapes)
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.pdiparams"]
    files = (str(tmp_path / "model.json"), str(tmp_path / "model.pdiparams"))
    assert paddle_ngraph.explain(config_of(files)).engines == 0  # as Paddle saved it
    assert_equal(of_executor(tmp_path / "model", pairs()), built.run(pairs()))


@pytest.mark.parametrize(
    "wrong", ["feeds of another type", "no such folder to make", "a folder in the way", "no prefix"]
)
def test_errors_are_paddles(tmp_path, wrong):
    built = Built(perceptron)
    (tmp_path / "taken.json").mkdir()
    (tmp_path / "file").write_text("")
    prefix = {"a folder in the way": "taken", "no such folder to make": "file/model"}
    arguments = [str(tmp_path / prefix.get(wrong, "model")), built.inputs, built.outputs]
    if wrong == "feeds of another type":
        arguments[1] = ["x"]
    if wrong == "no prefix":
        arguments[0] = 7
    errors = []
    for save in (paddle.static.save_inference_model, paddle_ngraph.save_inference_model):
        with built.inside(), pytest.raises(Exception) as raised:
            save(*arguments, built.executor, program=built.main)
        errors.append((raised.type, str(raised.value)))
    assert errors[0] == errors[1]


def test_separate_parameters_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(paddle_ngraph.NgraphError, match="separate_parameters"):
        Built(perceptron).save(tmp_path / "model", separate_parameters=True)
    assert not os.listdir(tmp_path)


def test_untranslatable_programs_are_saved_as_paddle_does(tmp_path):
    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        return [x], [with_untranslatable_noise(paddle.static.nn.fc(x, 3))]

    with pytest.raises(paddle_ngraph.NgraphError, match="the translation loses diag_num"):
        Built(build, "old").save(tmp_path / "model")
    assert sorted(os.listdir(tmp_path)) == ["model.pdiparams", "model.pdmodel"]


def test_a_subgraph_that_is_not_reached_is_reported(tmp_path):
    def build():
        x = paddle.static.data("x", [-1, 6], "float32")
        found = paddle.masked_select(x, x > 0.5)
        return [x], [paddle.exp(paddle.erfinv(paddle.tanh(found)) * 0.1)]

    built = Built(build)
    with pytest.warns(UserWarning, match="not reached"):
        built.save(tmp_path / "model", input_shapes={"x": [4, 6]})


def test_a_function_that_cannot_be_stored_is_an_error(tmp_path):
    from paddle_ngraph import _core

    _core.fail_at("store")
    try:
        with pytest.raises(paddle_ngraph.NgraphError, match="cannot be stored"):
            saved_with_functions(tmp_path)
    finally:
        _core.fail_at("")


# -- the command line ----------------------------------------------------------------------------


def test_the_command(tmp_path, capsys):
    built, feed = Built(convnet, "old"), images()
    with built.inside():
        paddle.static.save_inference_model(
            str(tmp_path / "given"), built.inputs, built.outputs, built.executor, program=built.main
        )
    before = (tmp_path / "given.pdmodel").read_bytes()
    size = "x".join(map(str, feed["x"].shape))
    output = tmp_path / "made" / "model"
    assert command_line(["save", str(tmp_path), str(output), "--shapes", f"x={size}"]) == 0
    assert "1 compiled functions" in capsys.readouterr().out
    assert (tmp_path / "given.pdmodel").read_bytes() == before
    assert opened(output, feed, built.run(feed)) == (0, 1)
    # Once more, in its place: for a machine with another processor, say.
    again = f"x=4x3x{SIZE}x{SIZE}"
    assert command_line(["save", str(output), str(output), "--shapes", again]) == 0
    assert opened(output, images(4), built.run(images(4))) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "there is no model"),
        (["."], "there are several models"),
        (["one", "--shapes", "x"], "give NAME=SIZExSIZE"),
        (["one", "--shapes", "x=2x"], "give NAME=SIZExSIZE"),
        (["one", "--shapes", "x=2x4", "x=3x4"], "--shapes gives x twice"),
        (["one", "--shapes", "x=2x6", "y=2"], "does not match"),
    ],
)
def test_wrong_commands_are_one_sentence(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        Built(perceptron).save(tmp_path / name)
    assert command_line(["save", arguments[0], "made", *arguments[1:]]) == 2
    assert message in capsys.readouterr().err
    assert not Path("made.json").exists()


def test_help_helps(capsys):
    with pytest.raises(SystemExit):
        command_line(["save", "--help"])
    text = capsys.readouterr().out
    assert all(word in text for word in ("--shapes", "example:", "OUTPUT", "import"))


def test_unfinished_files_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(program_pass, "apply", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Built(perceptron).save(tmp_path / "model")
    assert sorted(os.listdir(tmp_path)) == ["model.json", "model.pdiparams"]
    assert saved_model.SavedModel.at(tmp_path / "model.json").has_engines is False
