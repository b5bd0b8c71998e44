"""Invalid input for models: an error in a sentence, never a crash, and the process continues.

Each case is run by Paddle in a separate process, since Paddle may end it, and then with the engine
in one process for all cases. Where Paddle computes the right values, so has the engine to; in every
other case there has to be an error, also where Paddle has none.
"""

from __future__ import annotations

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

from paddle_ngraph.ir.graph import FORMAT
from tests.frontends.predictor.test_hook import convnet, images, perceptron
from tests.frontends.saved_models.test_paddle1_models import classifier
from tests.frontends.saved_models.test_saving import Built

ROOT = Path(__file__).parents[1]
# Formats of a model: its builder, and its files.
FORMS = {
    "json": ("pir", "model.json", "model.pdiparams"),
    "engine": ("pir", "model.json", "model.pdiparams"),
    "pdmodel": ("old", "model.pdmodel", "model.pdiparams"),
    "one file": ("old", "__model__", "__params__"),
    "separate": ("old", "__model__", "conv2d_0.w_0"),
}
WAYS = {
    "json": ("predictor", "executor", "layer"),
    "engine": ("predictor", "executor", "layer"),
    "pdmodel": ("predictor", "executor"),
    "one file": ("predictor", "executor"),
    "separate": ("predictor", "executor"),
}

_HEADER = f"ngraph_engine {FORMAT} ".encode()


def save(form, folder):
    built = Built(convnet, FORMS[form][0])
    if form == "engine":
        built.save(folder / "model")
        return built
    with built.inside():
        paddle.static.save_inference_model(
            str(folder / "model"),
            built.inputs,
            built.outputs,
            built.executor,
            program=built.main,
            separate_parameters=form == "separate",
        )
    if form == "one file":
        os.rename(folder / "model.pdmodel", folder / "__model__")
        os.rename(folder / "model.pdiparams", folder / "__params__")
    return built


# -- damages -------------------------------------------------------------------------------------


def cut(share):
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def replaced(old, new):
    def act(path):
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new))

    return act


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "foreign": lambda path: path.write_bytes(b"hello world\n" * 99),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"xyz"),
    "without the last byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one byte": lambda path: path.write_bytes(path.read_bytes()[:1]),
    **{f"cut at {share}": cut(share) for share in (0, 0.003, 0.01, 0.09, 0.3, 0.6, 0.95)},
}
# Changes that another release may write.
NEWER = {
    "pir": {
        "a newer version": replaced(b'"version":4', b'"version":99'),
        "a version that is none": replaced(b'"version":4', b'"version":"5.0"'),
        "a huge version": replaced(b'"version":4', b'"version":' + b"9" * 30),
        "another magic": replaced(b'"pir"', b'"pir5"'),
        "a new type": replaced(b"0.t_f32", b"0.t_f9"),
        "a new kind of attribute": replaced(b"0.a_str", b"0.a_text"),
        "a new dialect": replaced(b'"1.data"', b'"9.data"'),
        "another name for what it holds": replaced(b'"program"', b'"module"'),
    },
    "old": {
        "a newer version": lambda path: path.write_bytes(path.read_bytes() + b"\x22\x02\x08\x7f"),
        "a new operator": replaced(b"relu", b"rela"),
        "a new input": replaced(b"Filter", b"Folder"),
    },
}
NEWER_OPERATOR = {
    "json": {"a new operator": replaced(b'"1.relu"', b'"1.rela"')},
    "engine": {"a graph of another release": replaced(_HEADER, b"ngraph_engine 0 ")},
}
# Feeds instead of {"x": [2, 3, 13, 13] of float32}.
FEEDS = {
    "no such name": {"nothing": np.ones((2, 3, 13, 13), "float32")},
    "nothing": {},
    "other channels": {"x": np.ones((2, 4, 13, 13), "float32")},
    "another rank": {"x": np.ones((2, 13), "float32")},
    "no axis": {"x": np.ones((), "float32")},
    "too small": {"x": np.ones((2, 3, 1, 1), "float32")},
    "int32": {"x": np.ones((2, 3, 13, 13), "int32")},
    "int64": {"x": np.ones((2, 3, 13, 13), "int64")},
    "float64": {"x": np.ones((2, 3, 13, 13), "float64")},
    "bool": {"x": np.ones((2, 3, 13, 13), "bool")},
}


def parameters_of_another(kind, folder):
    built = Built(classifier if kind == "old" else perceptron, kind)
    with built.inside():
        paddle.static.save_inference_model(
            str(folder / "another" / "model"),
            built.inputs,
            built.outputs,
            built.executor,
            program=built.main,
        )
    return lambda path: shutil.copyfile(folder / "another" / "model.pdiparams", path)


DRIVER = textwrap.dedent(
    """
    import contextlib, json, os, sys
    import numpy as np
    import paddle

    mode, form, folder = sys.argv[1:]
    is_old = form in ("pdmodel", "one file", "separate")

    def config_of(folder):
        from paddle.inference import Config
        files = {
            "one file": ("__model__", "__params__"), "pdmodel": ("model.pdmodel", "model.pdiparams")
        }.get(form, ("model.json", "model.pdiparams"))
        paths = [folder] if form == "separate" else [f"{folder}/{name}" for name in files]
        config = Config(*paths)
        config.disable_glog_info()
        return config

    def predictor(folder, feed):
        from paddle.inference import create_predictor
        made = create_predictor(config_of(folder))
        for name, value in feed.items():
            handle = made.get_input_handle(name)
            handle.reshape(list(value.shape))
            handle.copy_from_cpu(value)
        made.run()
        return [made.get_output_handle(name).copy_to_cpu() for name in made.get_output_names()]

    def executor(folder, feed):
        paddle.enable_static()
        old = paddle.pir_utils.OldIrGuard() if is_old else contextlib.nullcontext()
        names = {
            "one file": {"model_filename": "__model__", "params_filename": "__params__"},
            "separate": {"model_filename": "__model__"},
        }.get(form, {})
        path = folder if names else folder + "/model"
        try:
            with old, paddle.static.scope_guard(paddle.static.Scope()):
                made = paddle.static.Executor(paddle.CPUPlace())
                program, _, fetches = paddle.static.load_inference_model(path, made, **names)
                return made.run(program, feed=feed, fetch_list=fetches)
        finally:
            paddle.disable_static()

    def layer(folder, feed):
        made = paddle.jit.load(folder + "/model")
        return [each.numpy() for each in made(*map(paddle.to_tensor, feed.values()))]

    def outcome(case):
        way, folder, feed = case["way"], case["folder"], dict(np.load(case["feed"]))
        try:
            results = globals()[way](folder, feed)
            return ["ok", [np.asarray(each).astype("float64").tolist() for each in results]]
        except Exception as error:
            return [type(error).__name__, str(error)[-400:]]

    def outcome_in_a_process(case):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(json.dumps(outcome(case)))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return json.loads(text) if text else ["died", ""]

    cases = json.load(open(folder + "/cases.json"))
    if mode != "native" or form == "engine":
        import paddle_ngraph
    for case in cases:
        if mode == "native":
            found = outcome_in_a_process(case)
        else:
            before = paddle_ngraph.stats()["engine_runs"]
            with paddle_ngraph.use_ngraph(mode == "on"):
                found = outcome(case)
                case["ran"] = paddle_ngraph.stats()["engine_runs"] > before
        print("\\nanswer" + json.dumps([case, found]), flush=True)
    """
)


def cases_of(form, folder):
    """Writes the cases of a format: damaged copies of a model, and arrays to feed an intact one."""
    kind, program, parameters = FORMS[form]
    good = folder / "good"
    good.mkdir()
    built = save(form, good)
    right = images()
    np.savez(folder / "right.npz", **right)
    changes = [(program, name, act) for name, act in DAMAGES.items()]
    changes += [(parameters, name, act) for name, act in DAMAGES.items()]
    if form != "separate":
        changes.append((parameters, "of another model", parameters_of_another(kind, folder)))
    changes += [(program, name, act) for name, act in NEWER[kind].items() if form != "engine"]
    changes += [(program, name, act) for name, act in NEWER_OPERATOR.get(form, {}).items()]
    cases = []
    for number, (file, name, act) in enumerate(changes):
        copy = folder / f"damaged{number}"
        shutil.copytree(good, copy)
        act(copy / file)
        for way in WAYS[form]:
            what = f"{file}: {name}"
            cases.append({"what": what, "way": way, "folder": copy, "feed": folder / "right.npz"})
    for number, (name, feed) in enumerate(FEEDS.items()):
        np.savez(folder / f"feed{number}.npz", **feed)
        for way in WAYS[form]:
            path = folder / f"feed{number}.npz"
            cases.append({"what": f"fed {name}", "way": way, "folder": good, "feed": path})
    whole = {"what": "whole", "way": "predictor", "folder": good, "feed": folder / "right.npz"}
    (folder / "cases.json").write_text(json.dumps([*cases, whole], default=str))
    return built.run(right)


def outcomes(mode, form, folder):
    settings = {"FLAGS_ngraph_cache_dir": "", "FLAGS_ngraph_min_interval_us": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, mode, form, str(folder)],
        env={**os.environ, **settings, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("answer")]
    return [json.loads(line.removeprefix("answer")) for line in lines], done


def is_right(found, expected):
    if found[0] != "ok":
        return False
    return all(
        np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=2e-5, atol=2e-5, equal_nan=True)
        for a, b in zip(found[1], expected)
    )


pytestmark = pytest.mark.usefixtures("small_intervals_pay")


def fault(case, ours, theirs, expected):
    """Describes the fault of an outcome, or ``None``."""
    if case["what"].startswith("fed "):
        if theirs[0] not in (ours[0], "died"):
            return "another error"
        is_ok = theirs[0] != "ok" or is_right(ours, theirs[1])
        return None if is_ok else "other numbers"
    if is_right(theirs, expected):
        return None if is_right(ours, expected) else "it was right natively"
    return None if ours[0] != "ok" and ours[1].strip() else "no error"


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("form", FORMS)
def test_bad_input_is_an_error_and_the_process_continues(tmp_path, form):
    expected = cases_of(form, tmp_path)
    native, _ = outcomes("native", form, tmp_path)
    assert is_right(native[-1][1], expected)
    for mode in ("on", "off"):
        found, done = outcomes(mode, form, tmp_path)
        reached = found[-1][0] if found else None
        assert len(found) == len(native), f"died after {reached}: {done.stderr[-2000:]}"
        faults = [
            f"{case['what']}, by {case['way']}: {what}: {theirs} became {ours}"[:400]
            for (case, ours), (_, theirs) in zip(found, native)
            if (what := fault(case, ours, theirs, expected)) is not None
        ]
        assert not faults, "\n".join([f"switched {mode}", *faults])
        case, last = found[-1]
        assert is_right(last, expected)
        assert case["ran"] == (mode == "on" or form == "engine")
