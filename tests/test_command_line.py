"""``python -m paddle_ngraph``."""

from __future__ import annotations

import errno
import json
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import NgraphError, flags
from paddle_ngraph.__main__ import main
from paddle_ngraph.errors import ErrorCode, printable
from paddle_ngraph.frontends.saved_models import saving
from tests.frontends.executor.test_hook import save_model

PROFILE = Path(__file__).parent / "simulation" / "profile.json"


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("run", "explain", "info"))


def test_a_missing_script_is_one_sentence(capsys):
    assert main(["run", "no_such_script.py"]) == 2
    assert "there is no script no_such_script.py" in capsys.readouterr().err


@pytest.mark.slow("starts a process")
def test_run_compiles_plain_layers_when_asked(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, paddle, paddle_ngraph\n"
        "paddle.disable_static()\n"
        "paddle.set_flags({'FLAGS_ngraph_min_interval_us': 0})\n"
        "layers = [paddle.nn.Linear(512, 512) for _ in range(3)]\n"
        "layer = paddle.nn.Sequential(*layers)\n"
        "with paddle.no_grad():\n"
        "    for _ in range(int(sys.argv[1])):\n"
        "        layer(paddle.ones([128, 512]))\n"
        "        if (runs := paddle_ngraph.stats()['engine_runs']) > 0:\n"
        "            break\n"
        "print('runs', runs)\n"
        "paddle.enable_static()\n"
    )
    few, enough = "20", "5000"  # until a trial costs little in comparison
    assert run_alone([str(script), few]) == 0
    assert run_alone(["--dynamic", str(script), enough]) > 0
    training = script.read_text().replace("with paddle.no_grad():", "if True:")
    training = training.replace("(paddle.ones([128, 512]))", "(paddle.ones([128, 512])).backward()")
    script.write_text(training)
    assert run_alone(["--dynamic", str(script), few]) == 0
    assert run_alone(["--dynamic-training", str(script), enough]) > 0


def run_alone(arguments: list[str]) -> int:
    """Returns the number of engine runs in a separate process."""
    command = [sys.executable, "-W", "ignore", "-m", "paddle_ngraph", "run", *arguments]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(text.rpartition("runs ")[2].split()[0])


def test_explain_reads_a_saved_model(tmp_path, capsys):
    prefix = save_model(tmp_path)
    assert main(["explain", prefix + ".json"]) == 0
    assert "run through nGraph, in 1 interval" in capsys.readouterr().out


def test_explain_reads_the_models_of_a_folder(tmp_path, capsys):
    prefix = save_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "of somebody else"}')
    assert main(["explain", str(tmp_path)]) == 0
    assert prefix not in capsys.readouterr().out
    (tmp_path / "other.json").write_bytes(Path(prefix + ".json").read_bytes())
    assert main(["explain", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"{prefix}.json:" in text
    assert text.count("in 1 interval") == 2


@pytest.mark.parametrize("seed", range(6))
def test_names_of_a_model_are_no_commands_of_the_terminal(tmp_path, capsys, seed):
    """Names of inputs, of parameters, and of the file, with control characters in any place."""
    draw = random.Random(seed)

    def odd(name: str) -> str:
        at = draw.randrange(len(name) + 1)
        command = draw.choice(["\x1b[2J", "\x1b]0;title\x07", "\r", "\x9b31m", "\u202e", "\x7f"])
        return name[:at] + command + name[at:]

    paddle.enable_static()
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        x = paddle.static.data(odd("input"), [-1, 4], "float32")
        weight = paddle.static.create_parameter([4, 3], "float32", odd("weight"))
        y = paddle.erfinv(paddle.tanh(paddle.matmul(x, weight)))
    executor = paddle.static.Executor()
    executor.run(paddle.static.default_startup_program())
    paddle.static.global_scope().var(weight.name).get_tensor().set(
        np.ones((4, 3), "float32"), paddle.CPUPlace()
    )
    prefix = str(tmp_path / odd("model"))
    paddle.static.save_inference_model(prefix, [x], [y], executor, program=program)
    capsys.readouterr()
    shapes = ["--shapes", f"{odd('other')}=2x4"]
    for arguments, status in (
        (["explain", prefix], 0),
        (["save", prefix, str(tmp_path / odd("saved")), *shapes], 2),
        (["transpile", prefix, "-o", str(tmp_path / odd("made"))], 0),
        (["codegen", prefix, "-o", str(tmp_path / odd("project")), *shapes], 2),
        (["explain", str(tmp_path / odd("none"))], 2),
    ):
        assert main(arguments) == status
        shown = "".join(capsys.readouterr())
        assert shown.replace("\n", "").isprintable(), repr(shown)


def test_printable_text_stays_as_it_is():
    text = "linear_0.w_0 [é, ж, 層, 🙂]\n\tof C:\\model"
    assert printable(text) == text
    assert str(NgraphError("a\x1bb", 3, code=ErrorCode.OUT_OF_BOUNDS)) == "('a\\\\x1bb', 3)"
    draw = random.Random(0)
    for _ in range(1000):
        text = "".join(chr(draw.randrange(draw.choice([256, 0x2100, 0x110000]))) for _ in range(9))
        shown = printable(text)
        assert shown == printable(shown) == printable(shown).encode().decode()
        assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in re.sub("[\n\t]", "", shown))


def test_explain_of_a_missing_model_is_one_sentence(tmp_path, capsys):
    assert main(["explain", str(tmp_path / "none")]) == 2
    assert "there is no model" in capsys.readouterr().err


def test_info_shows_versions(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "paddlepaddle" in text and "openvino" in text and "engine: ready" in text


def test_info_shows_the_policy(capsys):
    assert main(["info", "--settings"]) == 0
    text = capsys.readouterr().out
    assert "min_interval_us = " in text and "exclusive_retry_seconds = 1.0" in text


def test_commands_print_json_for_programs(tmp_path, capsys):
    def answer(*arguments: str) -> Any:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    info = answer("info", "--settings")
    assert info["why_unavailable"] is None and "min_interval_us" in info["settings"]
    versions = info["packages"]["openvino"]
    assert versions["installed"] == versions["compiled_against"]
    prefix = save_model(tmp_path)
    (report,) = answer("explain", prefix)
    assert report["model"] == f"{prefix}.json" and report["ops_native"] == 0
    (interval,) = report["blocks"][0]["intervals"]
    assert len(interval["types"]) == report["ops_converted"] > 0
    table = answer("operators")
    assert table["operators"]["relu"]["family"] == "activation"
    assert "float32" in table["operators"]["relu"]["dtypes"]
    assert table["without_converter"]
    assert answer("cache")["functions"] >= 0
    saved = answer("save", prefix, str(tmp_path / "saved"))
    assert saved["files"] == [str(tmp_path / "saved.json")] and Path(saved["files"][0]).is_file()
    assert saved["functions"] == 0 and saved["report"]["ops_native"] == 0
    made = answer("transpile", prefix, "-o", str(tmp_path / "made"), "--optimize-memory")
    assert made["files"] == [str(tmp_path / "made.json")] and made["report"]["ops_native"] == 0
    assert made["peak_bytes"]["before"] >= made["peak_bytes"]["after"] > 0
    simulated = answer("simulate", str(PROFILE), "--ranks", "2", "8")
    assert [row["ranks"] for row in simulated["predicted"]] == [2, 8]
    assert simulated["predicted"][0]["ms"]["ring"] > 0 and simulated["measured"]


def test_a_full_disk_is_named_by_the_file_that_does_not_fit(tmp_path, capsys, monkeypatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "source", None, "target")

    monkeypatch.setattr(saving, "convert", full)
    assert main(["save", save_model(tmp_path), str(tmp_path / "saved")]) == 2
    assert capsys.readouterr().err == "paddle_ngraph: target: No space left on device\n"


def test_an_output_that_does_not_fit_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["paddle-ngraph", "info"])
    with open("/dev/full", "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main() == 2
    assert capsys.readouterr().err == "paddle_ngraph: [Errno 28] No space left on device\n"


def test_run_writes_its_counters_as_json(tmp_path):
    script, written = tmp_path / "script.py", tmp_path / "stats.json"
    script.write_text("assert __name__ == '__main__'\n")
    try:
        assert main(["run", "--stats-json", str(written), str(script)]) == 0
        assert main(["run", "--stats-json", str(tmp_path / "no" / "x"), str(script)]) == 2
    finally:
        paddle_ngraph.disable()
    assert "engine_runs" in json.loads(written.read_text())


def test_the_entry_point_is_the_module(monkeypatch, capsys):
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'\npaddle-ngraph = "{main.__module__}:{main.__name__}"\n' in text
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/paddle-ngraph", "info"])
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "usage: paddle-ngraph" in capsys.readouterr().out


def test_functions_on_disk_are_counted_and_deleted(tmp_path, capsys):
    flags.set("ngraph_cache_dir", str(tmp_path))
    try:
        tmp_path.chmod(0o700)
        names = [f"{digit * 32}-{digit * 32}.ngraph" for digit in "1a"]
        for name, size in ((names[0], 2**20), (names[1], 2**19), ("other.ngraph", 9)):
            (tmp_path / name).write_bytes(b"x" * size)
        assert main(["cache"]) == 0
        assert f"{tmp_path}: 2 functions and programs, 1.5 MB" in capsys.readouterr().out
        assert main(["cache", "--clear"]) == 0
    finally:
        flags.set("ngraph_cache_dir", "")
    assert [path.name for path in tmp_path.iterdir()] == ["other.ngraph"]


def test_no_folder_for_functions_is_one_sentence(capsys):
    assert main(["cache"]) == 0
    assert "nothing is stored on disk" in capsys.readouterr().out
