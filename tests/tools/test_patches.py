"""docs/patches.md: it is current, and names what a new process patches, and when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_ngraph.paddle_private import patch_table, replaced
from paddle_ngraph.paddle_private.patch_table import PATCHES, InstallationPhase
from tools import patches

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "patches.md"


@pytest.mark.pure
def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == patches.markdown(), "docs/patches.md is out of date: run `make docs`"


@pytest.mark.pure
def test_every_patch_target_is_in_one_group() -> None:
    listed = [target for group in PATCHES for target in group.targets]
    assert sorted(listed) == sorted(replaced.patch_targets())
    assert list(patches._PHASES) == list(InstallationPhase)


@pytest.mark.pure
def test_every_reason_is_one_sentence() -> None:
    for group in PATCHES:
        assert group.reason.endswith(".") and ". " not in group.reason, group.reason


# Compares the names with Paddle's objects, independent of the package's own records.
SCRIPT = """
import json
import sys
from importlib import import_module
from operator import attrgetter

import paddle
import paddle.inference

names = json.load(sys.stdin)

def objects():
    found = {}
    for owner, name in names:
        module, _, inside = owner.partition(":")
        holder = import_module(module)
        holder = attrgetter(inside)(holder) if inside else holder
        classes = getattr(holder, "__mro__", [holder])
        found[owner, name] = next((vars(c)[name] for c in classes if name in vars(c)), None)
    return found

originals = objects()
patched = []

def record():
    patched.append([name for name, found in objects().items() if found is not originals[name]])

import paddle_ngraph
record()
paddle_ngraph.disable()
paddle.set_flags({"FLAGS_use_ngraph": False, "FLAGS_ngraph_min_interval_us": 1})
assert not paddle_ngraph.is_enabled()
record()
paddle.set_flags({"FLAGS_use_ngraph": True})
record()
paddle_ngraph.enable(dynamic=True)
paddle_ngraph.compile(lambda x: x + 1)(paddle.ones([2]))
record()
print(json.dumps(patched))
"""


@pytest.mark.slow("starts a process")
def test_a_new_process_patches_the_names_of_each_moment() -> None:
    targets = [(target.owner, target.name) for target in replaced.patch_targets()]
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        input=json.dumps(targets),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "FLAGS_use_ngraph": "0", "GLOG_minloglevel": "2"},
    )
    patched = json.loads(found.stdout.splitlines()[-1])
    phases = (
        InstallationPhase.IMPORT,
        InstallationPhase.IMPORT,
        InstallationPhase.FIRST_USE,
        InstallationPhase.DYNAMIC,
    )
    for names, phase in zip(patched, phases):
        expected = {(t.owner, t.name) for t in patch_table.targets_until(phase)}
        assert set(map(tuple, names)) == expected, phase
