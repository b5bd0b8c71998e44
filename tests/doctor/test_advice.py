"""The changes that would gain most, from observations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paddle_ngraph import flags
from paddle_ngraph.conversion import processor
from paddle_ngraph.doctor import advice
from paddle_ngraph.doctor.observation import NativeOperator, Observation

SCRIPT = Observation("script", {}, {}, 0, 0, 0.0, seconds=10.0)
MODEL = Observation("model", {}, {}, 0, 0, 0.0, native_run_ms=2.0, engine_run_ms=1.0)


@pytest.fixture(autouse=True)
def fixed_machine(monkeypatch):
    monkeypatch.setattr(processor, "has_bfloat16", lambda: False)
    monkeypatch.setattr(processor, "withheld", frozenset)
    flags.set("ngraph_num_threads", 0)


def sentences(observation: Observation) -> list[str]:
    return [change.sentence for change in advice.changes(observation)]


def test_nothing_is_advised_without_a_reason():
    assert sentences(SCRIPT) == []
    assert sentences(MODEL) == []


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("cost_rule", "FLAGS_ngraph_min_interval_us=0"),
        ("compiling", "Compile ahead"),
        ("overflow", "int32"),
    ],
)
def test_native_runs_of_a_script_have_a_remedy(reason, words):
    observed = replace(SCRIPT, runs={reason: 5}, ms={reason: 5000.0})
    assert any(words in each for each in sentences(observed))
    rare = replace(SCRIPT, runs={reason: 5}, ms={reason: 5.0})
    assert sentences(rare) == []


def test_changes_come_by_their_gain():
    native = [
        NativeOperator(name, 1, share, "no converter")
        for name, share in [("erfinv", 0.1), ("eigvalsh", 0.6), ("lgamma", 0.2), ("digamma", 0.05)]
    ]
    found = advice.changes(replace(MODEL, native=native))
    assert [change.sentence.split()[1] for change in found] == ["eigvalsh", "lgamma", "erfinv"]
    assert not any(change.can_be_tried for change in found)


def test_operators_below_the_cost_rule_are_tried():
    reason = "too little for the engine to pay"
    native = [
        NativeOperator(*each, reason, is_small=True)
        for each in [("matmul", 1, 0.4), ("add", 2, 0.1)]
    ]
    (change,) = advice.changes(replace(MODEL, native=native))
    assert "matmul, add" in change.sentence
    assert change.environment == {"FLAGS_ngraph_min_interval_us": "0"}


def test_many_functions_of_a_subgraph_call_for_dynamic_dimensions():
    observed = replace(SCRIPT, functions=40, functions_of_one_subgraph=40, build_ms=6000.0)
    assert "InputSpec" in sentences(observed)[0]
    few = replace(observed, functions_of_one_subgraph=2)
    assert "FLAGS_ngraph_cache_dir" in sentences(few)[0]  # tests have no disk cache
    flags.set("ngraph_cache_dir", "/tmp")
    assert sentences(few) == []


def test_plain_layers_of_dynamic_mode_can_be_compiled():
    (change,) = advice.changes(replace(SCRIPT, is_dynamic=True))
    assert change.dynamic == "training"
    busy = replace(SCRIPT, is_dynamic=True, runs={"engine": 1}, ms={"engine": 9000.0})
    assert sentences(busy) == []


def test_bfloat16_is_advised_where_the_processor_has_it(monkeypatch):
    monkeypatch.setattr(processor, "has_bfloat16", lambda: True)
    (change,) = advice.changes(replace(MODEL, converted=1.0))
    assert change.changes_numbers
    assert change.environment == {"FLAGS_ngraph_precision": "bf16"}


def test_withheld_instructions_are_given_back(monkeypatch):
    monkeypatch.setattr(processor, "withheld", lambda: frozenset({"avx512f"}))
    (change,) = advice.changes(MODEL)
    assert change.environment == {"ONEDNN_MAX_CPU_ISA": None}


def test_a_measurement_is_a_ratio_of_times():
    change = advice.Change("Do it.", 0.1).measured(4.0, 3.0)
    assert change.ratio == 0.75
    assert advice.time_of(MODEL) == 1.0
    assert advice.time_of(SCRIPT) == 10_000
