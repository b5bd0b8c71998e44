"""Choices by the times of real calls, with times and dates that the tests set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddle_ngraph.utils import clock
from paddle_ngraph.utils.measured_choice import MeasuredChoice, Policy, Record, RecordFile

pytestmark = pytest.mark.pure
DAY = 24 * 3600.0


class _Date:
    seconds = 1000.0


@pytest.fixture
def date() -> Iterator[_Date]:
    found = _Date()
    with clock.overridden_date(lambda: found.seconds):
        yield found


def _measure(choice: MeasuredChoice, incumbent: float, challenger: float, calls: int = 40) -> str:
    """Runs calls of these times; the sides of the timed ones in sequence."""
    sides = ""
    for _ in range(calls):
        call = choice.next_call()
        if call.is_timed:
            sides += "IC"[call.is_challenger]
        choice.end_call(call, challenger if call.is_challenger else incumbent)
    return sides


def test_pairs_alternate_and_the_median_decides(date: _Date) -> None:
    stored: list[Record] = []
    choice = MeasuredChoice(Policy(), store=stored.append)
    assert _measure(choice, 1.0, 0.5) == "I" + "CC" + "C" + "CI" + "IC" + "CI" + "IC"
    assert stored == [Record(True, 0.5, 5, 1000.0, 0.5)]
    assert choice.next_call() == (True, False)


@pytest.mark.parametrize("challenger", [0.95, 1.0, 1.5])
def test_the_rule_decides_without_a_clear_gain(date: _Date, challenger: float) -> None:
    choice = MeasuredChoice(Policy())
    _measure(choice, 1.0, challenger)
    assert choice.record is not None
    assert not choice.record.uses_challenger
    assert choice.next_call() == (False, False)


def test_a_slow_challenger_is_tried_once(date: _Date) -> None:
    choice = MeasuredChoice(Policy(warmup_calls=0))
    assert _measure(choice, 1.0, 2.1) == "IC"
    assert choice.record == Record(False, 0.0, 1, 1000.0)


def test_a_busy_machine_leaves_it_to_the_rule(date: _Date) -> None:
    choice = MeasuredChoice(Policy(max_slowdown=100))
    times = iter([1.0, 0.2, 2.0, 0.1, 1.0] * 20)
    while choice.record is None:
        call = choice.next_call()
        choice.end_call(call, next(times) if call.is_challenger else 1.0)
    assert (choice.record.uses_challenger, choice.record.ratio) == (False, 0.0)


def test_a_decision_stays_within_the_hysteresis(date: _Date) -> None:
    choice = MeasuredChoice(Policy())
    _measure(choice, 1.0, 0.5)
    for ratio, stays in ((1.05, True), (1.2, False), (0.95, False), (0.8, True)):
        date.seconds += DAY
        _measure(choice, 1.0, ratio)
        assert choice.record is not None
        assert choice.record.uses_challenger == stays, ratio


def test_old_records_are_measured_again(date: _Date) -> None:
    record = Record(True, 0.5, 5, 1000.0)
    assert MeasuredChoice(Policy(), record).next_call() == (True, False)
    date.seconds += DAY
    assert MeasuredChoice(Policy(), record).next_call().is_timed
    date.seconds = 0.0  # a clock that was set back
    assert MeasuredChoice(Policy(), record).next_call().is_timed
    date.seconds = 1000.0
    choice = MeasuredChoice(Policy(recheck_calls=3), record)
    assert [choice.next_call().is_timed for _ in range(4)] == [False, False, False, True]


BURSTS = Policy(pairs=4, burst=4, warmup_calls=1, max_slowdown=float("inf"), min_gain=1.05,
                first_recheck_calls=500)  # fmt: skip


def test_bursts_follow_each_other(date: _Date) -> None:
    choice = MeasuredChoice(BURSTS)
    assert _measure(choice, 1.0, 0.5, 30) == "I" * 5 + "C" * 5
    assert choice.record == Record(True, 0.5, 4, 1000.0, 0.5)
    assert choice.incumbent_seconds == 1.0


@pytest.mark.parametrize("late", range(12))
def test_a_single_delayed_call_does_not_decide(date: _Date, late: int) -> None:
    choice = MeasuredChoice(BURSTS)
    for number in range(12):
        call = choice.next_call()
        choice.end_call(call, 100.0 if number == late else (0.8 if call.is_challenger else 1.0))
    assert choice.record is not None
    assert choice.record.uses_challenger


def test_a_record_is_measured_again_at_growing_intervals(date: _Date) -> None:
    choice, timed = MeasuredChoice(BURSTS), []
    for number in range(40_000):
        call = choice.next_call()
        choice.end_call(call, 1.0)
        timed += [number] if call.is_timed else []
    firsts = [each for each in timed if each - 1 not in timed]
    gaps = [after - before for before, after in zip(firsts, firsts[1:])]
    assert gaps[0] < 520 and 2000 < gaps[1] < 2020 and max(gaps) > 8000
    assert len(timed) < 400


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_a_drift_has_a_record_measured_again(date: _Date, factor: float) -> None:
    choice = MeasuredChoice(Policy(pairs=2, warmup_calls=0, first_recheck_calls=600))
    _measure(choice, 1.0, 3.0, 700)
    _measure(choice, 1.0, 0.1, 300)
    assert choice.record is not None
    assert not choice.record.uses_challenger
    _measure(choice, factor, 0.1 * factor, 400)
    assert choice.record.uses_challenger == (factor != 1.0)


def test_a_choice_that_swings_rests_on_the_incumbent(date: _Date) -> None:
    choice, sides = MeasuredChoice(Policy(recheck_seconds=10.0)), []
    for number in range(8):
        _measure(choice, 1.0, 0.5 if number % 2 == 0 else 1.5)
        assert choice.record is not None
        sides.append(choice.record.uses_challenger)
        date.seconds += 11
    assert sides == [True, False, True] + 5 * [False]
    date.seconds += 3600
    _measure(choice, 1.0, 0.5)
    assert choice.record.uses_challenger


def test_calls_that_overlap_a_timed_one_are_not_timed(date: _Date) -> None:
    choice = MeasuredChoice(Policy())
    first = choice.next_call()
    assert first == (False, True)
    assert choice.next_call() == (False, False)
    choice.end_call(first, None)  # no measure of its side: tried again
    assert choice.next_call() == (False, True)


def test_an_impossible_challenger_is_never_called(date: _Date) -> None:
    choice = MeasuredChoice(Policy(), Record(True, 0.5, 5, 1000.0))
    choice.give_up()
    assert choice.next_call() == (False, False)


def test_records_are_stored(tmp_path) -> None:
    path = str(tmp_path / "choices" / "model.json")
    first, second = Record(True, 0.5, 5, 1000.0), Record(False, 1.5, 5, 2000.0)
    RecordFile(path).write("a", first)
    RecordFile(path).write("b", second)
    assert RecordFile(path).read() == {"a": first, "b": second}
    assert RecordFile(None).read() == {}


def _stored(**changes: str) -> str:
    """A file with one record, some of whose attributes have these texts."""
    fields = {"uses_challenger": "true", "ratio": "0.5", "pairs": "5", "date": "1"} | changes
    return '{"a": {' + ", ".join(f'"{name}": {text}' for name, text in fields.items()) + "}}"


# What may be in the place of a file, by whether a record can be stored nevertheless.
PLACES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "nothing": (lambda _: None, True),
    "a file": (Path.touch, True),
    "a directory": (Path.mkdir, False),
    "a full directory": (lambda path: (path / "a").mkdir(parents=True), False),
    "a pipe": (os.mkfifo, True),
    "a link to a file": (lambda path: path.symlink_to(__file__), True),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), True),
    "a link to itself": (lambda path: path.symlink_to(path), True),
}


@pytest.mark.parametrize("name", PLACES)
def test_whatever_is_in_the_place_of_a_file_leaves_no_other_file(name: str, tmp_path: Path) -> None:
    make, is_storable = PLACES[name]
    make(path := tmp_path / "model.json")
    contents = Path(__file__).read_bytes()
    file, record = RecordFile(str(path)), Record(True, 0.5, 5, 1.0, 0.25)
    assert file.read() == {}
    assert file.write("a", record) is is_storable
    assert file.read() == ({"a": record} if is_storable else {})
    assert [each.name for each in tmp_path.iterdir()] == ["model.json"]
    assert Path(__file__).read_bytes() == contents


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "[" * 100_000, '{"a": 1}', '{"a": {"uses_challenger": 1}}', "\xff"),
        # Numbers that no float can be compared with, or turned into.
        *(_stored(date=text) for text in ("1" + "0" * 400, "NaN", "-1", "Infinity", "null")),
        *(_stored(ratio=text) for text in ("1" + "0" * 400, "NaN", "-1", "Infinity", "null")),
    ],
)
def test_damaged_records_are_ignored(tmp_path, text: str) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(text.encode("latin-1"))
    assert RecordFile(str(path)).read() == {}
