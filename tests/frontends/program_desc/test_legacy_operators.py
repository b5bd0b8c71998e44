"""Operators of ProgramDesc run as in Paddle, each with every attribute off its default."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.legacy_operator_walk import RESULTS

_KNOWN = json.loads(RESULTS.read_text())
_JUDGED = sorted(
    type
    for type, row in _KNOWN.items()
    if row[""].startswith(("translated", "as it is")) and not type.endswith("_grad")
)
# Each of these had a program fall back because of one attribute, or of a LoD, or crash.
_QUANTIZATION = "fake_quantize_dequantize_moving_average_abs_max"
_NAMED = [
    *("eig", "fill_constant", "ftrl", "leaky_relu", "memcpy", "multiclass_nms"),
    *("multiclass_nms3", "unique", _QUANTIZATION),
]
# Paddle's translator has only later versions of these.
_FIRST_VERSIONS = ["expand", "flatten2", "nearest_interp", "top_k", "transpose"]


def walked(path, types):
    """The verdicts of a new walk over operators of these types, and their gradients."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.legacy_operator_walk", "-o", str(path)]
    environment = {**os.environ, "FLAGS_call_stack_level": "0", "GLOG_minloglevel": "3"}
    subprocess.run([*command, *types], check=True, env=environment, stderr=subprocess.DEVNULL)
    return json.loads(path.read_text())


def require_equal(found):
    """Each verdict is as in the table; one that a crash prevents says nothing."""
    for type, row in found.items():
        for name, text in row.items():
            expected = _KNOWN[type][name]
            if not any(each.startswith("not run") for each in (text, expected)):
                assert text == expected, (type, name)


def test_a_sample_of_operators(tmp_path):
    types = sorted({*_NAMED, *_FIRST_VERSIONS, *_JUDGED[::90]})
    found = walked(tmp_path / "found.json", types)
    assert set(types) <= found.keys()
    require_equal(found)
    assert found["leaky_relu"]["alpha"] == "translated"
    assert found["leaky_relu_grad"]["alpha"] == "translated"
    assert found[f"{_QUANTIZATION}_grad"]["is_test"] == "translated"
    assert found["eig_grad"][""].startswith("refused")
    assert "LoD" in found["multiclass_nms"][""]
    assert {found[type][""] for type in _FIRST_VERSIONS} == {"translated"}
    assert found["nearest_interp"]["scale"] == "translated"


@pytest.mark.slow("walks all operators, for minutes")
@pytest.mark.parametrize("part", range(8))
def test_all_operators(tmp_path, part):
    require_equal(walked(tmp_path / "found.json", _JUDGED[part::8]))
