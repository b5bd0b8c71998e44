"""Damaged models, and shapes that a model cannot have: one sentence by every command."""

from __future__ import annotations

import random
from pathlib import Path

import paddle
import pytest
from paddle import nn

from paddle_ngraph.__main__ import main
from tests.dynamic import dynamic_mode

SHAPES = ["--shapes", "x=1x3x8x8"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "whole"
    spec = paddle.static.InputSpec([None, 3, None, None], "float32", "x")
    with dynamic_mode():
        layers = nn.Sequential(nn.Conv2D(3, 4, 3), nn.ReLU())
        paddle.jit.save(layers, str(path), input_spec=[spec])
    return path


def commands(model: Path, output: Path, shapes: list[str]) -> dict[str, list[str]]:
    """The arguments of each command that runs a model, by its name."""
    return {
        "doctor": ["doctor", *shapes, str(model)],
        "warm-up": ["warm-up", str(model), *shapes],
        "save": ["save", str(model), str(output), *shapes],
        "verify": ["verify", str(model), *shapes],
    }


NAMES = list(commands(Path(), Path(), []))


def sentence_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    (line,) = shown.splitlines()
    assert line.startswith("paddle_ngraph: ")
    return line


def damaged(contents: bytes, draw: random.Random) -> bytes:
    kind = draw.randrange(4)
    if kind == 0:
        return contents[: draw.randrange(len(contents))]
    if kind == 1:
        return draw.randbytes(draw.randrange(1, 400))
    return (b"{}", b"[1, 2]")[kind - 2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_program_is_one_sentence(name, seed, model, tmp_path, capsys):
    draw = random.Random(seed)
    broken = tmp_path / "broken.json"
    broken.write_bytes(damaged(model.with_suffix(".json").read_bytes(), draw))
    parameters = model.with_suffix(".pdiparams").read_bytes()
    broken.with_suffix(".pdiparams").write_bytes(parameters)
    line = sentence_of(commands(broken, tmp_path / "out", SHAPES)[name], capsys)
    assert "broken.json cannot be read" in line


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", NAMES)
def test_damaged_parameters_are_one_sentence(name, seed, model, tmp_path, capsys):
    draw = random.Random(seed)
    broken = tmp_path / "broken.json"
    broken.write_bytes(model.with_suffix(".json").read_bytes())
    parameters = model.with_suffix(".pdiparams").read_bytes()
    broken.with_suffix(".pdiparams").write_bytes(parameters[: draw.randrange(len(parameters))])
    assert "broken" in sentence_of(commands(broken, tmp_path / "out", SHAPES)[name], capsys)


@pytest.mark.parametrize(
    "shapes",
    ["x=1x4x8x8", "x=1x3x8", "y=1x3x8x8", "x=99999999x3x9999x9999", "x", "x=", "=3"],
)
@pytest.mark.parametrize("name", NAMES)
def test_impossible_shapes_are_one_sentence(name, shapes, model, tmp_path, capsys):
    arguments = commands(model, tmp_path / "out", ["--shapes", shapes])[name]
    assert "x" in sentence_of(arguments, capsys).replace("--shapes", "x")
    assert not list(tmp_path.iterdir())
