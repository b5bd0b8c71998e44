"""Models as Paddle 1 saved them: ``__model__``, parameters in one file or in many, LoD."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import paddle
import pytest
from paddle import inference

import paddle_ngraph
from paddle_ngraph.__main__ import main as command_line
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.frontends.saved_models import parameter_file
from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
from paddle_ngraph.partitioning import background_compile
from tests.frontends.predictor.test_hook import assert_equal, engine_runs, predict
from tests.frontends.saved_models.test_saving import Built, of_executor, of_predictor
from tests.programs import floats

SIZE = 11


pytestmark = pytest.mark.usefixtures("small_intervals_pay")


# -- models, of the operators that Paddle 1 had --------------------------------------------------


def append(kind, inputs, attributes=None, output="Out", others=(), **kinds):
    """Appends an operator of the program that is being built. Returns its output."""
    block = paddle.static.default_main_program().global_block()
    out = block.create_var(dtype=kinds.get("dtype", "float32"))
    outputs = {output: out, **{name: block.create_var(dtype="float32") for name in others}}
    block.append_op(type=kind, inputs=inputs, outputs=outputs, attrs=attributes or {})
    return out


def parameter(*shape):
    return paddle.static.create_parameter(list(shape), "float32")


def convolved(x, inside, outside, groups=1, stride=1):
    kind = "depthwise_conv2d" if groups > 1 else "conv2d"
    attributes = {"strides": [stride] * 2, "paddings": [1, 1], "dilations": [1, 1]}
    inputs = {"Input": x, "Filter": parameter(outside, inside // groups, 3, 3)}
    x = append(kind, inputs, {**attributes, "groups": groups}, "Output")
    return append("elementwise_add", {"X": x, "Y": parameter(outside)}, {"axis": 1})


def classifier():
    """A network for images, with the products and sums as Paddle 1 wrote them."""
    x = paddle.static.data("image", [-1, 3, SIZE, SIZE], "float32")
    x = append("relu", {"X": convolved(x, 3, 12, stride=2)})
    x = append("relu6", {"X": convolved(x, 12, 12, groups=12)}, {"threshold": 6.0})
    attributes = {"pooling_type": "avg", "ksize": [1, 1], "global_pooling": True}
    x = append("pool2d", {"X": x}, attributes)
    x = append("mul", {"X": x, "Y": parameter(12, 7)}, {"x_num_col_dims": 1, "y_num_col_dims": 1})
    x = append("elementwise_add", {"X": x, "Y": parameter(7)}, {"axis": 1})
    return [inputs_of_program()["image"]], [append("softmax", {"X": x}, {"axis": -1})]


def tagger():
    """A network for words, whose product is of rank 3 and whose sum is over everything."""
    ids = paddle.static.data("ids", [-1, 5], "int64")
    x = append("lookup_table_v2", {"Ids": ids, "W": parameter(23, 6)}, {"padding_idx": -1})
    x = append("mul", {"X": x, "Y": parameter(6, 4)}, {"x_num_col_dims": 2, "y_num_col_dims": 1})
    x = append("elementwise_add", {"X": x, "Y": parameter(4)}, {"axis": 2})
    x = append("tanh", {"X": x})
    score = append("reduce_sum", {"X": x}, {"dim": [0], "reduce_all": True, "keep_dim": False})
    return [ids], [append("softmax", {"X": x}, {"axis": -1}), score]


def normalized():
    """A network whose runs overwrite a parameter, as the hooks of weight norm do."""
    x = paddle.static.data("image", [-1, 3, SIZE, SIZE], "float32")
    direction, weight = parameter(SIZE, 5), parameter(SIZE, 5)
    length = {"axis": 0, "porder": 2.0, "keepdim": True, "epsilon": 1e-12}
    norm = append("p_norm", {"X": direction}, length)
    value = append("elementwise_div", {"X": direction, "Y": norm}, {"axis": -1})
    block = paddle.static.default_main_program().global_block()
    block.append_op(type="assign", inputs={"X": value}, outputs={"Out": weight})
    return [x], [append("matmul_v2", {"X": x, "Y": weight})]


def first_versions():
    """Operators of which Paddle's translator has later versions only."""
    x = paddle.static.data("image", [-1, 3, SIZE, SIZE], "float32")
    nearest = {"scale": 1.7, "align_corners": False, "interp_method": "nearest"}
    x = append("nearest_interp", {"X": x}, nearest)
    x = append("transpose", {"X": x}, {"axis": [0, 2, 3, 1]})
    x = append("flatten2", {"X": x}, {"axis": 1}, others=["XShape"])
    return [inputs_of_program()["image"]], [append("tanh", {"X": x})]


def without_parameters():
    x = paddle.static.data("image", [-1, 3, SIZE, SIZE], "float32")
    return [x], [append("relu", {"X": append("scale", {"X": x}, {"scale": 3.0, "bias": 0.5})})]


def inputs_of_program():
    block = paddle.static.default_main_program().global_block()
    return {"image": block.var("image")}


def pictures(batch=2, seed=0):
    return {"image": floats(batch, 3, SIZE, SIZE, seed=seed)}


def sentences(batch=2, seed=0):
    return {"ids": np.random.default_rng(seed).integers(0, 23, [batch, 5])}


MODELS = {
    classifier: pictures,
    tagger: sentences,
    normalized: pictures,
    first_versions: pictures,
    without_parameters: pictures,
}
LAYOUTS = ("separate", "one file", "names of one's own")


def save(built, folder, layout):
    """Saves a model as Paddle 1 did. Returns the arguments of a Config, and of the old loader."""
    arguments = (built.inputs, built.outputs, built.executor)
    with built.inside():
        prefix = str(folder / "saved" / "model")
        separate = layout == "separate"
        paddle.static.save_inference_model(
            prefix, *arguments, program=built.main, separate_parameters=separate
        )
    folder = folder / "saved"
    if separate:
        assert (folder / "__model__").is_file()
        return (str(folder),), {"model_filename": "__model__"}
    names = ("__model__", "__params__") if layout == "one file" else ("net", "weights")
    os.rename(f"{prefix}.pdmodel", folder / names[0])
    if not os.path.exists(f"{prefix}.pdiparams"):
        return (str(folder / names[0]), ""), {"model_filename": names[0]}
    os.rename(f"{prefix}.pdiparams", folder / names[1])
    files = tuple(str(folder / name) for name in names)
    return files, {"model_filename": names[0], "params_filename": names[1]}


def config_of(arguments):
    config = inference.Config(*arguments)
    config.disable_glog_info()
    return config


# -- the ways to run them ------------------------------------------------------------------------


@pytest.mark.parametrize("made_on", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("build", MODELS)
def test_predictors(tmp_path, build, layout, made_on):
    built, make = Built(build, "old"), MODELS[build]
    arguments, _ = save(built, tmp_path, layout)
    with paddle_ngraph.use_ngraph(made_on):
        predictor = inference.create_predictor(config_of(arguments))
    for seed, on in enumerate([made_on, not made_on, True, False, True]):
        feed = make(batch=2 + seed % 2, seed=seed)
        with paddle_ngraph.use_ngraph(on), engine_runs(on):
            assert_equal(predict(predictor, feed), built.run(feed))
    clone = predictor.clone()
    with paddle_ngraph.use_ngraph(), engine_runs():
        assert_equal(predict(clone, make()), built.run(make()))


def with_other_weights(built):
    """Changes the weights of a model that was built."""
    for variable in built.main.list_vars():
        if variable.persistable and (found := built.scope.find_var(variable.name)) is not None:
            tensor = found.get_tensor()
            if tensor._is_initialized():
                tensor.set(np.array(tensor) * np.float32(0.5), paddle.CPUPlace())


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("build", MODELS)
def test_known_programs_are_not_translated_again(tmp_path, build, layout, monkeypatch):
    """Programs with other weights, in one file or in many, are known, too."""
    paddle_ngraph.clear_cache()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    built, feed = Built(build, "old"), MODELS[build]()
    models, wanted = [], []
    for name in ("first", "second"):
        with paddle.utils.unique_name.guard():
            models.append(save(built, tmp_path / name, layout)[0])
        wanted.append(built.run(feed))
        with_other_weights(built)
    with paddle_ngraph.use_ngraph():
        first = inference.create_predictor(config_of(models[0]))
        with patch.object(translation, "translate", side_effect=AssertionError("again")):
            others = [inference.create_predictor(config_of(each)) for each in models]
            others.append(first.clone())
        # Something else may clean the folder of temporary files.
        (translated,) = tmp_path.glob("paddle_ngraph_*/model.json")
        translated.unlink()
        others.append(inference.create_predictor(config_of(models[1])))
        for predictor, number in zip([first, *others], (0, 0, 1, 0, 1)):
            with background_compile.compile_synchronously(), engine_runs():
                assert_equal(predict(predictor, feed), wanted[number])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("build", MODELS)
def test_executors(tmp_path, build, layout):
    built, make = Built(build, "old"), MODELS[build]
    _, names = save(built, tmp_path, layout)
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.pir_utils.OldIrGuard(), paddle.static.scope_guard(paddle.static.Scope()):
        program, _, fetches = paddle.static.load_inference_model(
            str(tmp_path / "saved"), executor, **names
        )
        for seed, on in enumerate([True, False, True]):
            feed = make(batch=2 + seed, seed=seed)
            with paddle_ngraph.use_ngraph(on), engine_runs(on):
                found = executor.run(program, feed=feed, fetch_list=fetches)
            assert_equal(found, built.run(feed))


def test_a_scale_applies_to_any_size_and_beside_given_sizes(tmp_path):
    def build():
        x = paddle.static.data("image", [-1, 3, SIZE, SIZE], "float32")
        resize = {"scale": 1.7, "align_corners": False, "align_mode": 0}
        values = {"shape": [2], "dtype": 2, "values": [5, 6]}
        size = append("assign_value", {}, values, dtype="int32")
        names = {"X": append("scale", {"X": x}, {"scale": 2.0})}, {"X": x, "OutSize": size}
        return [x], [append("bilinear_interp", each, resize) for each in names]

    arguments, _ = save(Built(build, "old"), tmp_path, "one file")
    made = []
    for on in (False, True):
        config = config_of(arguments)
        config.disable_onednn()  # so that the engine runs what it converts
        with paddle_ngraph.use_ngraph(on):
            made.append(inference.create_predictor(config))
    native, predictor = made
    for size in (SIZE, 8):
        feed = {"image": floats(2, 3, size, size)}
        with paddle_ngraph.use_ngraph(), engine_runs():
            results = predict(predictor, feed)
        with paddle_ngraph.use_ngraph(False):
            assert_equal(results, predict(native, feed))


@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("build", MODELS)
def test_explain_and_save(tmp_path, capsys, build, layout):
    built, make = Built(build, "old"), MODELS[build]
    arguments, _ = save(built, tmp_path, layout)
    report = paddle_ngraph.explain(config_of(arguments))
    assert (report.share, report.why_native) == (1.0, None)
    assert command_line(["explain", str(tmp_path / "saved")]) == 0
    assert "(100.0%) run through nGraph, in 1 interval" in capsys.readouterr().out
    assert command_line(["save", str(tmp_path / "saved"), str(tmp_path / "new")]) == 0
    for way in (of_predictor, of_executor):
        with engine_runs():
            assert_equal(way(tmp_path / "new", make()), built.run(make()))


def test_loading_one_as_pir_is_an_error(tmp_path):
    _, names = save(Built(classifier, "old"), tmp_path, "one file")
    executor = paddle.static.Executor(paddle.CPUPlace())
    with pytest.raises(paddle_ngraph.NgraphError, match="OldIrGuard"):
        paddle.static.load_inference_model(str(tmp_path / "saved"), executor, **names)


# -- files of parameters -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [[1], [3, 4], [2, 1, 5, 7], []])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8", "bool", "float64"])
def test_headers_are_read_as_paddle_writes_them(tmp_path, shape, dtype):
    tensor = paddle.base.core.DenseTensor()
    tensor.set(np.ones(shape, dtype), paddle.CPUPlace())
    path = str(tmp_path / "tensor")
    paddle.base.core.save_func(tensor, "tensor", path, True, False)
    assert list(parameter_file.tensors_in(path)) == [tuple(shape)]
    data = Path(path).read_bytes()
    for length in range(1, len(data)):
        Path(path).write_bytes(data[:length])
        with pytest.raises(paddle_ngraph.NgraphError, match=r"truncated|damaged"):
            list(parameter_file.tensors_in(path))


DAMAGES = {
    "missing": lambda path, other: path.unlink(),
    "empty": lambda path, other: path.write_bytes(b""),
    "cut off": lambda path, other: path.write_bytes(path.read_bytes()[:-3]),
    "longer": lambda path, other: path.write_bytes(path.read_bytes() + b"more"),
    "another one": lambda path, other: shutil.copyfile(other, path),
    "foreign": lambda path, other: path.write_bytes(b"hello world\n" * 20),
}


def outcome(run, *arguments):
    try:
        return None, run(*arguments)
    except Exception as error:  # Paddle's own have many types
        return type(error), str(error)


def predicted(arguments):
    return predict(inference.create_predictor(config_of(arguments)), pictures())


def executed(folder, names):
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.pir_utils.OldIrGuard(), paddle.static.scope_guard(paddle.static.Scope()):
        program, _, fetches = paddle.static.load_inference_model(str(folder), executor, **names)
        return executor.run(program, feed=pictures(), fetch_list=fetches)


@pytest.mark.parametrize("way", ["predictor", "executor"])
@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_files_are_an_error(tmp_path, how, way):
    """Paddle accepts truncated files, and ignores trailing data."""
    built = Built(classifier, "old")
    arguments, names = save(built, tmp_path, "separate")
    files = sorted(path for path in (tmp_path / "saved").iterdir() if path.name != "__model__")
    DAMAGES[how](files[0], files[1])
    call = (predicted, arguments) if way == "predictor" else (executed, tmp_path / "saved", names)
    with paddle_ngraph.use_ngraph(False):
        kind, native = outcome(*call)
    with paddle_ngraph.use_ngraph():
        assert outcome(*call)[0] == kind
    if kind is None:
        assert how == "longer"
        assert_equal(native, built.run(pictures()))
    if how == "cut off":
        assert (kind, "3 bytes are missing" in native) == (paddle_ngraph.NgraphError, True)


@pytest.mark.parametrize("how", ["longer", "another one"])
def test_a_mismatched_combined_file_is_rejected(tmp_path, how):
    arguments, _ = save(Built(classifier, "old"), tmp_path, "separate")
    files = sorted(path for path in (tmp_path / "saved").iterdir() if path.name != "__model__")
    DAMAGES[how](files[0], files[1])
    with pytest.raises(paddle_ngraph.NgraphError, match=re.escape(str(files[0]))):
        SavedModel.of(config_of(arguments)).configure(config_of(arguments))


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/tmp/outside", "..", "a/.."])
def test_a_parameter_outside_of_the_folder_is_not_read(tmp_path, name):
    """The name is the path of its file: it may lead to a folder in the folder, and no further."""
    built = Built(classifier, "old")
    arguments, _ = save(built, tmp_path, "separate")
    folder = tmp_path / "saved"
    file = min(path for path in folder.iterdir() if path.name != "__model__")
    shapes = {name: [1], "a/inside": next(iter(parameter_file.tensors_in(str(file))))}
    model = SavedModel.of(config_of(arguments))
    (folder / "a").mkdir()
    shutil.copyfile(file, folder / "a" / "inside")
    assert list(model._joined({"a/inside": shapes["a/inside"]})) == [file.read_bytes()]
    with pytest.raises(paddle_ngraph.NgraphError, match="would be outside of the model's folder"):
        list(model._joined(shapes))


def test_a_parameter_that_changes_on_disk_is_noticed(tmp_path):
    built = Built(classifier, "old")
    arguments, _ = save(built, tmp_path, "separate")
    model = SavedModel.of(config_of(arguments))
    before = model.file_stamp()
    path = next(path for path in (tmp_path / "saved").iterdir() if path.name != "__model__")
    path.write_bytes(path.read_bytes() + b"x")
    assert model.file_stamp() != before


# -- levels of detail ----------------------------------------------------------------------------


def pooled():
    x = paddle.static.data("x", [-1, 6], "float32", lod_level=1)
    hidden = paddle.static.nn.sequence_pool(paddle.static.nn.fc(x, 5), "max")
    return [x], [paddle.static.nn.fc(hidden, 3)]


def softmaxed():
    x = paddle.static.data("x", [-1, 1], "float32", lod_level=1)
    return [x], [paddle.static.nn.sequence_softmax(paddle.scale(x, 2.0))]


def carried():
    x = paddle.static.data("x", [-1, 6], "float32", lod_level=1)
    return [x], [paddle.static.nn.fc(x, 3)]


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("build", [pooled, softmaxed, carried])
def test_levels_of_detail_are_paddles(tmp_path, build, layout, on):
    built = Built(build, "old")
    arguments, names = save(built, tmp_path, layout)
    executor = paddle.static.Executor(paddle.CPUPlace())
    for lengths in ([3, 4], [1, 5, 2]):
        data = floats(sum(lengths), 1 if build is softmaxed else 6, seed=len(lengths))
        fed = paddle.base.create_lod_tensor(data, [lengths], paddle.CPUPlace())
        with built.inside(), paddle_ngraph.use_ngraph(False):
            (expected,) = built.executor.run(
                built.main, feed={"x": fed}, fetch_list=built.outputs, return_numpy=False
            )
        with paddle_ngraph.use_ngraph(on):
            predictor = inference.create_predictor(config_of(arguments))
            handle = predictor.get_input_handle("x")
            handle.copy_from_cpu(data)
            handle.set_lod(fed.lod())
            predictor.run()
            output = predictor.get_output_handle(predictor.get_output_names()[0])
            assert_equal([output.copy_to_cpu()], [np.array(expected)])
            assert output.lod() == expected.lod()
            scope = paddle.static.scope_guard(paddle.static.Scope())
            with paddle.pir_utils.OldIrGuard(), scope:
                program, _, fetches = paddle.static.load_inference_model(
                    str(tmp_path / "saved"), executor, **names
                )
                (found,) = executor.run(
                    program, feed={"x": fed}, fetch_list=fetches, return_numpy=False
                )
            assert_equal([np.array(found)], [np.array(expected)])
            assert found.lod() == expected.lod()
    if on:
        assert "LoD" in str(paddle_ngraph.explain(program))
        assert paddle_ngraph.stats()["native"]["lod_feed"] >= 2
