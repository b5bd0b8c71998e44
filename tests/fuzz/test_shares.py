"""The record of shares, and its sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.shares import SIZES, Share, State, revision

pytestmark = pytest.mark.pure

SIZE = SIZES["lives"]


def test_passed_shares_add_up_over_runs(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "state.json"
    state = State.read(path)
    assert state.wanted("lives", 3 * SIZE, 1) == [("lives", 1), ("lives", 2), ("lives", 3)]
    state.add(Share("lives", 2, SIZE, "old"))
    state.add(Share("lives", 1, SIZE, revision()))
    again = State.read(path)
    assert again.wanted("lives", 3 * SIZE, 1) == [("lives", 3)]
    assert again.wanted("lives", 2 * SIZE + 1, 7) == [("lives", 7), ("lives", 8), ("lives", 9)]
    assert again.passed("lives") == 2 * SIZE and again.passed("lives", revision()) == SIZE
    assert again.passed("programs") == 0
    assert f"{2 * SIZE} lives passed, {SIZE} of them with these sources" in str(again)


def test_failed_shares_run_first_until_they_pass(tmp_path: Path) -> None:
    state = State.read(tmp_path / "state.json")
    state.add(Share("lives", 5, 3, "old", "Mismatch: wrong\nscript"))
    assert state.wanted("lives", 0, 1) == [("lives", 5)]
    assert state.wanted("lives", SIZE, 1) == [("lives", 5), ("lives", 1)]
    assert state.passed("lives") == 0, "a share with a failure counts for nothing"
    assert "lives 5: Mismatch: wrong" in str(state)
    state.add(Share("lives", 5, SIZE, "new"))
    assert State.read(tmp_path / "state.json").failed() == []


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text('{"format": 99, "shares": []}')
    with pytest.raises(ValueError, match="not a state of the fuzzers"):
        State.read(path)
