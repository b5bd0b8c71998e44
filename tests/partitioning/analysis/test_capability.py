"""Candidates for conversion, of which some are rejected."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from paddle_ngraph.partitioning.analysis.capability import Candidates


def test_a_rejection_keeps_all_other_facts() -> None:
    facts: dict[str, Any] = {each.name: frozenset({each.name}) for each in fields(Candidates)}
    facts.update(ops={}, converters={}, reasons={})
    before = Candidates(**facts)
    assert before.without({}) == before
