"""Runs the cases of merged tests together, once for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ops import merging


@pytest.fixture(scope="module")
def merged_cases(request: pytest.FixtureRequest) -> merging.MergedCases:
    """The outcomes of this file's merged tests, as far as they were selected."""
    cases = merging.MergedCases()
    cases.record([i for i in request.session.items if i.path == request.path and _is_merged(i)])
    cases.run()
    return cases


@pytest.fixture(autouse=True)
def with_other_cases(request: pytest.FixtureRequest, static_mode: None) -> Iterator[None]:
    if not _is_merged(request.node):
        yield
        return
    with merging.comparing(request.node, request.getfixturevalue("merged_cases")):
        yield


def _is_merged(item: pytest.Item) -> bool:
    return item.get_closest_marker("merged") is not None
