"""docs/reference/patches.md: it is current, and names what a new process patches, and when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paddle_ngraph.paddle_private import patch_table, replaced
from paddle_ngraph.paddle_private.patch_table import PATCHES, InstallationPhase
from tools import patches

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "patches.md"


@pytest.mark.pure
def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == patches.markdown(), f"{PAGE} is out of date: run `make docs`"


@pytest.mark.pure
def test_every_patch_target_is_in_one_group() -> None:
    listed = [target for group in PATCHES for target in group.targets]
    assert sorted(listed) == sorted(replaced.patch_targets())
    assert list(patches._PHASES) == list(InstallationPhase)


@pytest.mark.pure
def test_every_reason_is_one_sentence() -> None:
    for group in PATCHES:
        assert group.reason.endswith(".") and ". " not in group.reason, group.reason


OBJECTS = """
import ctypes
import functools
import json
import sys
import types
from importlib import import_module
from operator import attrgetter

import paddle
import paddle.inference

names = [tuple(each) for each in json.load(sys.stdin)]

def resolve(owner):
    module, _, inside = owner.partition(":")
    holder = import_module(module)
    return attrgetter(inside)(holder) if inside else holder

def objects():
    found = {}
    for owner, name in names:
        holder = resolve(owner)
        classes = getattr(holder, "__mro__", [holder])
        found[owner, name] = next((vars(c)[name] for c in classes if name in vars(c)), None)
    return found

class Definition(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p)]

class Function(ctypes.Structure):
    _fields_ = [("object", ctypes.c_void_p * 2), ("definition", ctypes.POINTER(Definition))]

class Method(ctypes.Structure):
    _fields_ = [("object", ctypes.c_void_p * 5), ("definition", ctypes.POINTER(Definition))]

def c_function(found):
    found = getattr(found, "__func__", found)
    layouts = {types.BuiltinFunctionType: Function, types.MethodDescriptorType: Method}
    layout = layouts.get(type(found))
    return layout and layout.from_address(id(found)).definition.contents.function
"""

# Compares the names with Paddle's objects, and the C functions beneath them, independent of the
# package's own records.
SCRIPT = """
def contents():
    return {name: (found, c_function(found)) for name, found in objects().items()}

originals = contents()
patched = []

def record():
    patched.append([name for name, found in contents().items() if found != originals[name]])

import paddle_ngraph
record()
paddle_ngraph.disable()
paddle.set_flags({"FLAGS_use_ngraph": False, "FLAGS_ngraph_min_interval_us": 1})
assert not paddle_ngraph.is_enabled()
record()
paddle.inference.Config()
record()
paddle.set_flags({"FLAGS_use_ngraph": True})
record()
paddle_ngraph.enable(dynamic=True)
paddle_ngraph.compile(lambda x: x + 1)(paddle.ones([2]))
record()
paddle_ngraph.distributed.init(dynamic=True)
record()
print(json.dumps(patched))
"""


# References that user code may take before the package is imported, and whether calls of each lead
# to a function of the package afterwards.
REFERENCES = """
def references():
    for (owner, name), found in objects().items():
        holder = resolve(owner)
        if c_function(found) is None:
            yield owner, name, "in Python", None
            continue
        # Users have a reference to the class, not to its ``__new__``.
        reference = holder if name == "__new__" else getattr(holder, name)
        yield owner, name, "imported", reference
        if reference is holder or not isinstance(holder, type):
            yield owner, name, "partial", functools.partial(reference, None)
        else:
            instance = paddle.ones([1]) if holder is paddle.Tensor else holder.__new__(holder)
            bound = getattr(instance, name)
            yield owner, name, "bound", bound
            yield owner, name, "partial of bound", functools.partial(bound)
            yield owner, name, "partial of unbound", functools.partial(reference, instance)

class Reached(Exception):
    pass

def stop(frame, event, argument):
    if event == "call" and "paddle_ngraph" in frame.f_code.co_filename:
        raise Reached

def is_replaced(reference, first):
    return any(reaches(reference, *[first, *[None] * 8][:count]) for count in range(9))

def reaches(reference, *arguments):
    sys.setprofile(stop)
    try:
        reference(*arguments)
    except Reached:
        return True
    except TypeError:
        pass
    finally:
        sys.setprofile(None)
    return False

taken = list(references())
import paddle_ngraph
paddle_ngraph.enable(dynamic=True)
paddle_ngraph.compile(lambda x: x + 1)(paddle.ones([2]))
missed = []
tensor = paddle.ones([1])
for owner, name, kind, reference in taken:
    first = tensor if kind == "imported" and owner.endswith("eager.Tensor") else None
    if reference is not None and not is_replaced(reference, first):
        missed.append((owner, name, kind))
in_python = [name for _, name, kind, _ in taken if kind == "in Python"]
print(json.dumps([missed, len(taken), in_python]))
"""


@pytest.mark.slow("starts a process")
def test_references_that_were_taken_before_lead_to_the_replacements() -> None:
    targets = [(target.owner, target.name) for target in replaced.patch_targets()]
    missed, count, in_python = run(REFERENCES, targets)
    assert missed == []
    assert count > 3 * (len(targets) - len(in_python))
    # Functions and classes in Python, which Paddle itself finds by the names of their owners.
    assert len(in_python) == 25


def run(script: str, targets: list[tuple[str, str]]) -> Any:
    """The last line that a script prints, for these targets."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OBJECTS + script],
        input=json.dumps(targets),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "FLAGS_use_ngraph": "0", "GLOG_minloglevel": "2"},
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow("starts a process")
def test_a_new_process_patches_the_names_of_each_moment() -> None:
    targets = [(target.owner, target.name) for target in replaced.patch_targets()]
    patched = run(SCRIPT, targets)
    phases = (
        InstallationPhase.IMPORT,
        InstallationPhase.IMPORT,
        InstallationPhase.CONFIGURATION,
        InstallationPhase.FIRST_USE,
        InstallationPhase.DYNAMIC,
        InstallationPhase.JOB,
    )
    for names, phase in zip(patched, phases):
        expected = {(t.owner, t.name) for t in patch_table.targets_until(phase)}
        assert set(map(tuple, names)) == expected, phase
