"""Models that the process has served before: their programs are not analyzed again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import paddle
import pytest
from paddle import inference, nn, static
from paddle.nn import functional as F

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.frontends.predictor import model as models
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.partitioning import background_compile, cost_model, program_pass
from tests.programs import floats

pytestmark = pytest.mark.usefixtures("small_intervals_pay")

WIDTH = 6


def _plain(x: Any) -> list[Any]:
    y = F.relu(nn.Linear(WIDTH, WIDTH)(x))
    return [F.softmax(y), y.sum(1), paddle.full([2], 3.0)]


def _loop(x: Any) -> list[Any]:
    layer, i = nn.Linear(WIDTH, WIDTH), paddle.full([1], 0, "int64")
    i, y = static.nn.while_loop(
        lambda i, y: i < 4, lambda i, y: [i + 1, paddle.tanh(layer(y) + y)], [i, x]
    )
    return [layer(y), i]


def _branch(x: Any) -> list[Any]:
    layer = nn.Linear(WIDTH, WIDTH)
    y = static.nn.cond(x.sum() > 0, lambda: layer(x), lambda: paddle.exp(-x))
    return [y * 2.0]


def _unrolled(x: Any) -> list[Any]:
    """Steps of which each computes again what the step before has computed."""
    layer, recurrent = nn.Linear(WIDTH, WIDTH), nn.LSTM(WIDTH, WIDTH)
    words, steps = [x], []
    for _ in range(4):
        hidden, _ = recurrent(paddle.stack(words, 1))
        steps.append(layer(hidden[:, -1]))
        words.append(paddle.tanh(steps[-1]))
    return [paddle.stack(steps, 1)]


def _native_amid(x: Any) -> list[Any]:
    y = paddle.tanh(nn.Linear(WIDTH, WIDTH)(x))
    return [paddle.unique(paddle.round(y)), nn.Linear(WIDTH, 2)(y)]


PROGRAMS = [_plain, _loop, _branch, _unrolled, _native_amid]


def _save(build: Callable[[Any], list[Any]], *prefixes: Path) -> None:
    """Saves a program once for each prefix, with other weights."""
    main, startup = static.Program(), static.Program()
    with (
        static.program_guard(main, startup),
        paddle.utils.unique_name.guard(),
        static.scope_guard(static.Scope()),
    ):
        x = static.data("x", [2, WIDTH], "float32")
        results, executor = build(x), static.Executor()
        for prefix in prefixes:
            executor.run(startup)
            static.save_inference_model(str(prefix), [x], results, executor, program=main)


def _predictor(prefix: Path, onednn: bool = False) -> Any:
    config = inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
    if onednn:
        config.enable_mkldnn()
    else:
        config.disable_mkldnn()
    config.disable_glog_info()
    return inference.create_predictor(config)


def _answers(predictor: Any, x: np.ndarray) -> list[np.ndarray]:
    predictor.get_input_handle("x").copy_from_cpu(x)
    predictor.run()
    return [
        predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()
    ]


@pytest.mark.parametrize("build", PROGRAMS)
def test_a_known_program_is_not_analyzed_again(
    build: Callable[[Any], list[Any]], tmp_path: Path
) -> None:
    files = [tmp_path / "1", tmp_path / "2"]
    _save(build, *files)
    with paddle_ngraph.use_ngraph(False):
        natively = [_predictor(each) for each in files]
        wanted = [_answers(each, floats(2, WIDTH)) for each in natively]
    with paddle_ngraph.use_ngraph(True), background_compile.compile_synchronously():
        first = _predictor(files[0])
        with patch.object(program_pass, "_applied", side_effect=AssertionError("analyzed again")):
            # The same files, other weights, and a clone.
            others = [*map(_predictor, files), first.clone()]
        for predictor, model in zip([first, *others], (0, 0, 1, 0)):
            runs = paddle_ngraph.stats()["engine_runs"]
            for found, expected in zip(_answers(predictor, floats(2, WIDTH)), wanted[model]):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            assert paddle_ngraph.stats()["engine_runs"] > runs


def test_no_engine_is_made_for_a_model_that_is_known_to_run_natively(tmp_path: Path) -> None:
    _save(lambda x: [paddle.unique(x)], tmp_path / "m")
    with paddle_ngraph.use_ngraph(True), background_compile.compile_synchronously():
        _predictor(tmp_path / "m")
        with patch.object(models.Model, "_engine_config", side_effect=AssertionError("made")):
            predictor = _predictor(tmp_path / "m")
        (found,) = _answers(predictor, floats(2, WIDTH))
        np.testing.assert_array_equal(found, np.unique(floats(2, WIDTH)))
        # Other files at the same place are another model.
        _save(lambda x: [paddle.exp(x), x.sum()], tmp_path / "m")
        runs = paddle_ngraph.stats()["engine_runs"]
        found = _answers(_predictor(tmp_path / "m"), floats(2, WIDTH))[0]
    np.testing.assert_allclose(found, np.exp(floats(2, WIDTH)), rtol=1e-5)
    assert paddle_ngraph.stats()["engine_runs"] > runs


# Settings of a configuration that choose Paddle's passes.
SETTINGS_OF_PASSES: dict[str, Callable[[Any], object]] = {
    "no optimization": lambda config: config.switch_ir_optim(False),
    "level 0": lambda config: config.set_optimization_level(0),
    "level 1": lambda config: config.set_optimization_level(1),
    "without the pass": lambda config: config.delete_pass("ngraph_pass"),
    "without fusion": lambda config: config.delete_pass("matmul_add_act_fuse_pass"),
    "plain": lambda _: None,
}


@pytest.mark.parametrize("first", SETTINGS_OF_PASSES)
def test_no_setting_of_one_predictor_has_others_run_natively(first: str, tmp_path: Path) -> None:
    _save(_plain, tmp_path / "m")
    wanted = None
    with paddle_ngraph.use_ngraph(True), background_compile.compile_synchronously():
        for name in (first, *SETTINGS_OF_PASSES):
            config = inference.Config(f"{tmp_path / 'm'}.json", f"{tmp_path / 'm'}.pdiparams")
            config.disable_mkldnn()
            config.disable_glog_info()
            SETTINGS_OF_PASSES[name](config)
            runs = paddle_ngraph.stats()["engine_runs"]
            found = _answers(inference.create_predictor(config), floats(2, WIDTH))
            wanted = wanted or found
            for ours, theirs in zip(found, wanted):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
            assert paddle_ngraph.stats()["engine_runs"] > runs, name


def test_an_engine_that_a_rule_leaves_to_onednn_is_made_by_a_run_that_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_model, "is_faster_than_onednn", lambda *_: False)
    _save(_plain, tmp_path / "m")
    x, created = floats(2, WIDTH), []
    engine_config = models.Model._engine_config

    def counting(model: models.Model) -> Any:
        created.append(model)
        return engine_config(model)

    monkeypatch.setattr(models.Model, "_engine_config", counting)
    with paddle_ngraph.use_ngraph(True), background_compile.compile_synchronously():
        for _ in range(3):  # the first one is analyzed
            predictor = _predictor(tmp_path / "m", onednn=True)
        assert len(created) == 1
        runs, first = paddle_ngraph.stats()["engine_runs"], _answers(predictor, x)
        for _ in range(3):
            for found, expected in zip(_answers(predictor, x), first):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert len(created) == 2
        assert paddle_ngraph.stats()["engine_runs"] > runs


def test_why_a_program_cannot_be_translated_is_known(tmp_path: Path) -> None:
    with paddle.pir_utils.OldIrGuard():
        _save(lambda x: [F.softmax(x)], tmp_path / "m")

    def predictor() -> Any:
        config = inference.Config(f"{tmp_path / 'm'}.pdmodel", "")
        config.disable_glog_info()
        return inference.create_predictor(config)

    error = translation.NotTranslatable("a reason of the test")
    with paddle_ngraph.use_ngraph(True):
        with patch.object(translation, "translate", side_effect=error) as translate:
            predictors = [predictor() for _ in range(3)]
        assert translate.call_count == 1
        for each in predictors:
            assert _answers(each, floats(2, WIDTH))[0].shape == (2, WIDTH)


@pytest.mark.parametrize("build", PROGRAMS)
def test_a_program_that_another_process_knew_is_not_analyzed_again(
    build: Callable[[Any], list[Any]], tmp_path: Path
) -> None:
    files = [tmp_path / "1", tmp_path / "2"]
    _save(build, *files)
    x = floats(2, WIDTH)
    with paddle_ngraph.use_ngraph(False):
        wanted = [_answers(_predictor(each), x) for each in files]
    paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path / "cache")})
    paddle.set_flags({"FLAGS_ngraph_cache_min_ms": 0})
    with paddle_ngraph.use_ngraph(True), background_compile.compile_synchronously():
        first = _predictor(files[0])
        paddle_ngraph.clear_cache()
        with patch.object(program_pass, "_applied", side_effect=AssertionError("analyzed again")):
            others = [*map(_predictor, files), first.clone()]
        for predictor, model in zip(others, (0, 1, 0)):
            runs = paddle_ngraph.stats()["engine_runs"]
            for found, expected in zip(_answers(predictor, x), wanted[model]):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            assert paddle_ngraph.stats()["engine_runs"] > runs


def test_stored_changes_are_those_of_the_same_program_and_settings(tmp_path: Path) -> None:
    """Also of programs whose texts are equal: Paddle prints six digits of a number."""
    paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path / "cache")})
    paddle.set_flags({"FLAGS_ngraph_cache_min_ms": 0})
    x, applied = floats(2, WIDTH), program_pass._applied
    with (
        paddle_ngraph.use_ngraph(True),
        background_compile.compile_synchronously(),
        patch.object(program_pass, "_applied", side_effect=applied) as analyses,
    ):
        for number, factor in enumerate([1.0, 1.0 + 1e-7 * 8, 1.0 + 1e-7 * 16]):
            _save(lambda x, f=factor: [paddle.scale(x * 1e6, f) - 1e6 * x], tmp_path / "m")
            paddle_ngraph.clear_cache()
            (found,) = _answers(_predictor(tmp_path / "m"), x)
            with paddle_ngraph.use_ngraph(False):
                (expected,) = _answers(_predictor(tmp_path / "m"), x)
            np.testing.assert_allclose(found, expected, rtol=0, atol=0.2)
            assert analyses.call_count == number + 1
        paddle.set_flags({"FLAGS_ngraph_min_interval_us": 1})
        paddle_ngraph.clear_cache()
        _predictor(tmp_path / "m")
        assert analyses.call_count == 4
        # A damaged file is as none.
        for each in (tmp_path / "cache").glob("*.ngraph"):
            each.write_bytes(each.read_bytes()[:-9])
        paddle_ngraph.clear_cache()
        _predictor(tmp_path / "m")
        assert analyses.call_count == 5


def test_a_program_is_analyzed_again_if_its_result_on_disk_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any part of a result may be missing, and the system may lack room for temporary files."""
    _save(_plain, tmp_path / "m")
    paddle.set_flags({"FLAGS_ngraph_cache_dir": str(tmp_path / "cache")})
    paddle.set_flags({"FLAGS_ngraph_cache_min_ms": 0})
    whole, find = [], _core.find_bytes
    monkeypatch.setattr(_core, "find_bytes", lambda key: whole.append(find(key)) or whole[-1])
    applied = patch.object(program_pass, "_applied", side_effect=program_pass._applied)
    with paddle_ngraph.use_ngraph(True), background_compile.compile_synchronously():
        wanted = _answers(_predictor(tmp_path / "m"), floats(2, WIDTH))
        paddle_ngraph.clear_cache()
        _predictor(tmp_path / "m")
        stored, no_room = whole[-1], OSError("no space left on device")
        ends = [0, 1, stored.index(b"\n"), stored.index(b"\n") + 2, len(stored) // 2]
        for damaged in [*(stored[:end] for end in ends), b"{}\n" + stored, stored]:
            monkeypatch.setattr(_core, "find_bytes", lambda _, found=damaged: found)
            if damaged == stored:
                monkeypatch.setattr(tempfile, "mkdtemp", Mock(side_effect=no_room))
            paddle_ngraph.clear_cache()
            with applied as analyses:
                predictor = _predictor(tmp_path / "m")
            assert analyses.call_count == 1
            runs = paddle_ngraph.stats()["engine_runs"]
            for found, expected in zip(_answers(predictor, floats(2, WIDTH)), wanted):
                np.testing.assert_array_equal(found, expected)
            assert paddle_ngraph.stats()["engine_runs"] > runs
