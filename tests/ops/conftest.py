"""Runs the cases of a file's merged tests together, when the first of these tests is called."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.ops import merging

_CASES = pytest.StashKey[merging.MergedCases]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Generator[None, None, None]:
    if not _is_merged(item):
        return (yield)
    with merging.comparing(item, _cases_of_file(item)):
        return (yield)


def _cases_of_file(item: pytest.Function) -> merging.MergedCases:
    """The outcomes of a file's merged tests, limited to the selected ones."""
    stash = item.getparent(pytest.Module).stash
    if _CASES not in stash:
        cases = stash[_CASES] = merging.MergedCases()
        others = [other for other in item.session.items if other.path == item.path]
        cases.record([other for other in others if _is_merged(other)])
        cases.run()
    return stash[_CASES]


def _is_merged(item: pytest.Item) -> bool:
    return item.get_closest_marker("merged") is not None
