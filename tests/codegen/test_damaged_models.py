"""Model directories of generated projects with other contents: an error, or a run.

The contents are drawn: numbers, texts and lists of the manifest, and headers of variables, are
replaced by others, and the sizes of files in the manifest follow. The functions themselves
(``functions/*.xml``) are OpenVINO's, and trusted: see docs/operations/security.md.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from tests.codegen import native_project
from tests.codegen.native_project import Project
from tests.programs import Program, floats

pytestmark = pytest.mark.slow("builds C++ projects")

SECONDS = 60
INTEGERS = (
    -(2**63),
    -(2**40),
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    255,
    2**20,
    2**31,
    2**62,
    2**62 + 1,
    2**63 - 1,
)
TEXTS = ("", "x", "float32", "int64", "bool", "..", "../../../etc/passwd", "/etc/passwd", "a\0b")
# Parts without which a run ends at once.
FIXED = ("files", "program", "format")


def dropping():
    """Trains with Adam, samples, and has two results."""
    x = paddle.static.data("x", [3, 4], "float32")
    hidden = F.dropout(nn.Linear(4, 8)(x), 0.4) * paddle.uniform([8])
    loss = paddle.mean(nn.Linear(8, 1)(hidden) ** 2)
    paddle.optimizer.Adam(0.05).minimize(loss)
    return [loss, hidden]


def branching():
    """Has a loop with operators outside of functions, inputs of any size, and integers."""
    x = paddle.static.data("x", [-1, 4], "float32")
    count, limit = paddle.full([1], 0, "int64"), paddle.full([1], 3, "int64")
    weight = paddle.static.create_parameter([4, 4], "float32")
    _, total = paddle.static.nn.while_loop(
        lambda i, y: i < limit,
        lambda i, y: [i + 1, paddle.tanh(paddle.matmul(y, weight))],
        [count, x],
    )
    return [total, paddle.argmax(total, 1)]


@pytest.fixture(scope="session")
def libraries(request):
    return native_project.libraries(request.config.cache)


@pytest.fixture(scope="session", params=[dropping, branching])
def made(request, libraries, tmp_path_factory):
    paddle.enable_static()
    folder = tmp_path_factory.mktemp(request.param.__name__)
    return Project(Program(request.param), folder / "project", libraries).build()


def nodes(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON document but the root."""
    members = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in members:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from nodes(value, (*path, key))


def fields_of(document: Any) -> dict[str, list[tuple[Any, ...]]]:
    """The paths of values by the innermost name in them: rare fields are as likely as others."""
    fields = defaultdict(list)
    for path in nodes(document):
        if path[0] not in FIXED:
            fields[next(key for key in reversed(path) if isinstance(key, str))].append(path)
    return fields


def replaced(value: Any, draw: random.Random) -> Any:
    """Another value, mostly of the type of ``value``."""
    kind = draw.randrange(8)
    if kind == 0:
        return draw.choice([None, True, "", 0, -1.5, 1e300, [], {}, [[0]]])
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return draw.choice([*INTEGERS, value + 1, value - 1])
    if isinstance(value, str):
        return draw.choice([*TEXTS, value + "x", value[:-1]])
    if isinstance(value, list):
        changed = list(value)
        for _ in range(draw.choice([1, 1, 2, 12])):
            if changed and draw.randrange(2):
                del changed[draw.randrange(len(changed))]
            else:
                changed.append(draw.choice(changed or [draw.choice(INTEGERS)]))
        return changed
    changed = dict(value)
    if changed:
        del changed[draw.choice(list(changed))]
    return changed


def damage_manifest(model: Path, draw: random.Random) -> str:
    """Changes one to three values; returns the changes."""
    path = model / "manifest.json"
    document = json.loads(path.read_text())
    changes = []
    for _ in range(draw.choice([1, 1, 2, 3])):
        fields = fields_of(document)
        *parents, last = draw.choice(fields[draw.choice(sorted(fields))])
        holder = document
        for key in parents:
            holder = holder[key]
        new = replaced(holder[last], draw)
        changes.append(f"{[*parents, last]}: {holder[last]!r} -> {new!r}")
        holder[last] = new
    path.write_text(json.dumps(document))
    return "; ".join(changes)


def damage_variable(model: Path, draw: random.Random) -> str:
    """Changes the header, the data or the length of a variable, if there is one."""
    files = sorted((model / "variables").iterdir())
    if not files:
        return damage_manifest(model, draw)
    path = draw.choice(files)
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + length].decode()
    kind = draw.randrange(5)
    if kind == 0:
        sizes = ", ".join(str(draw.choice(INTEGERS)) for _ in range(draw.choice([1, 2, 3, 40])))
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({sizes},), }}"
    elif kind == 1:
        descr = draw.choice(["<f8", "|b1", "<i8", "<c16", ">f4", "", "<f4'", "|O"])
        header = header.replace("<f4", descr)
    elif kind == 2:
        data[6 + draw.randrange(4)] = draw.randrange(256)
    elif kind == 3:
        at = draw.randrange(len(data))
        data[at] ^= 1 << draw.randrange(8)
    else:
        del data[draw.randrange(len(data)) :]
    if kind < 2:
        text = header.encode().ljust(length)
        data[8:10] = len(text).to_bytes(2, "little")
        data[10 : 10 + length] = text
    path.write_bytes(data)
    write_manifest(model, json.loads((model / "manifest.json").read_text()))
    return f"{path.name}: {kind}"


def write_manifest(model: Path, document: Any) -> None:
    """Writes a manifest with the sizes of the files that are there."""
    for file in document["files"]:
        file["bytes"] = (model / file["path"]).stat().st_size
    (model / "manifest.json").write_text(json.dumps(document))


def other_tensor(model: Path, draw: random.Random) -> str:
    """Gives a variable another number of elements or dtype, in the manifest and in its file."""
    document = json.loads((model / "manifest.json").read_text())
    variable = draw.choice(document["variables"])
    array = np.load(model / variable["file"])
    shape = draw.choice(
        [[], [1], [*array.shape, 1], [1, *array.shape], [size + 1 for size in array.shape]]
    )
    dtype = draw.choice(["float32", "int64", "uint8", "float64"])
    if dtype == "float32" and np.prod(shape) == array.size:
        dtype = "bool"
    np.save(model / variable["file"], np.ones(shape, dtype))
    variable.update(shape=shape, dtype=dtype)
    for function in document["functions"]:
        at = [n for n, name in enumerate(function["inputs"]) if name == file_name(variable)]
        for variant in function["variants"]:
            for number in at:
                variant["shapes"][number] = shape
    write_manifest(model, document)
    return f"{variable}"


def file_name(variable: Any) -> str:
    """The name of a variable in C++, by which a function lists its inputs."""
    return re.sub(r"\W", "_", variable["name"])


def statuses(made: Project, damage: Any, seed: int, folder: Path, copies: int = 40) -> list[int]:
    """Runs damaged copies of a model; returns the exit statuses: 0, or 2 and a sentence."""
    draw = random.Random(seed)
    np.save(folder / "x.npy", floats(3, 4))
    command = [made.folder / "build" / "main", folder / "model"]
    command += ["--input", f"x={folder / 'x.npy'}", "--repeat", "2", "--threads", "1"]
    ended = []
    for _ in range(copies):
        shutil.rmtree(folder / "model", ignore_errors=True)
        shutil.copytree(made.folder / "model", folder / "model")
        change = damage(folder / "model", draw)
        run = subprocess.run(
            [str(word) for word in command],
            capture_output=True, text=True, errors="replace", timeout=SECONDS,
        )  # fmt: skip
        assert run.returncode in (0, 2), f"{change}: {run.returncode} {run.stderr[-2000:]}"
        if run.returncode == 2:
            assert run.stderr.count("\n") == 1, f"{change}: {run.stderr}"
        ended.append(run.returncode)
    return ended


@pytest.mark.parametrize("damage", [damage_manifest, damage_variable])
@pytest.mark.parametrize("seed", range(4))
def test_other_contents_are_an_error_or_compute(made, damage, seed, tmp_path):
    assert 2 in statuses(made, damage, seed, tmp_path)


@pytest.mark.parametrize("made", [dropping], indirect=True)
@pytest.mark.parametrize(
    "change",
    [
        {"draws": [{"distribution": 1, "a": 0, "b": 1, "seed": 0, "shape": [2**62 + 1]}] * 2},
        {"states": 23},
        {"states": 0},
        {"outputs": 6},
        {"outputs": 0},
        {"updates": []},
        {"parameters": [0]},
        {"parameters": list(range(15))},
    ],
)
def test_descriptions_of_another_function_are_an_error(made, change, tmp_path):
    """Each of these once read or wrote memory out of bounds, or memory that nobody had set."""

    def described(model: Path, draw: random.Random) -> str:
        document = json.loads((model / "manifest.json").read_text())
        document["functions"][0]["variants"][0].update(change)
        write_manifest(model, document)
        return str(change)

    assert statuses(made, described, 0, tmp_path, copies=1) == [2]


@pytest.mark.parametrize("made", [dropping], indirect=True)
@pytest.mark.parametrize("seed", range(2))
def test_tensors_that_no_function_takes_are_an_error(made, seed, tmp_path):
    """Manifest and file agree about a variable, and the function takes another tensor."""
    assert set(statuses(made, other_tensor, seed, tmp_path)) == {2}
