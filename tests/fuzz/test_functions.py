"""A few hundred damaged files of functions in every run of the tests; ``make fuzz`` checks many.

``FUNCTIONS`` and ``SEED`` in the environment set another number and another seed.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.fuzz import functions
from tests.fuzz.functions import NUMBER, SCHEMA, StoredFile

COUNT = int(os.environ.get("FUNCTIONS", "300"))
SEED = int(os.environ.get("SEED", "1"))


def loads(case: functions.Case, file: StoredFile) -> bool:
    """Whether the function of a file with the right code is used; it has to run."""
    with functions.storing():
        functions.write(case, file.contents(functions.secret_path().read_bytes()))
        function, io = case.load()
        if function is not None:
            function.run(io)
    return function is not None


def changed(case: functions.Case, index: int, value: object) -> StoredFile:
    """The file with another value of an item of the schema."""
    tree = functions.parsed(case.file.words)
    tree[index] = value
    return case.file.with_words(functions.flattened(tree))


def test_damaged_files_are_missing_or_can_run():
    used = functions.check_many(COUNT, SEED)
    assert COUNT / 50 < used < COUNT / 3, "both kinds are drawn"


def test_files_as_stored_are_used():
    for case in functions.cases():
        assert loads(case, case.file)
        assert functions.flattened(functions.parsed(case.file.words)) == case.file.words


def test_the_functions_have_all_records():
    trees = [functions.parsed(case.file.words) for case in functions.cases()]
    assert any(tree[9] for tree in trees), "pinned values"
    assert any(tree[4] > 1 for tree in trees), "batches in chunks"
    for index in (11, 12, 13, 14, 17):
        assert any(tree[index] for tree in trees)


@pytest.mark.parametrize("value", [-1, 3, 1 << 31, 1 << 40, -(1 << 63)])
def test_no_setting_of_another_function_is_used(value):
    case = functions.cases()[0]
    for index in (i for i, item in enumerate(SCHEMA[:10]) if item == NUMBER and i not in (3, 7)):
        assert not loads(case, changed(case, index, value)), index


def test_indices_beyond_the_inputs_are_not_used():
    case = functions.cases()[0]
    inputs = functions.parsed(case.file.words)[11]
    for wrong in (case.engine.num_inputs, 1 << 40, -1):
        assert not loads(case, changed(case, 11, [wrong, *inputs[1:]]))
    assert not loads(case, changed(case, 11, inputs[:-1]))
    assert not loads(case, changed(case, 11, [*inputs, 0]))


def test_lists_longer_than_the_file_are_not_used():
    case = functions.cases()[0]
    for at in range(len(case.file.words)):
        for length in (len(case.file.words), 1 << 40, -1):
            words = (*case.file.words[:at], length, *case.file.words[at + 1 :])
            loads(case, case.file.with_words(words))


def test_blobs_of_other_calls_are_not_used():
    """A model of dynamic shapes, or for a chunk of a batch, may be for other calls, too."""
    whole = [case for case in functions.cases() if functions.parsed(case.file.words)[4] == 1]
    for case in whole:
        for other in whole:
            if case.file.blob == other.file.blob or functions.is_symbolic(other):
                continue
            file = StoredFile(other.file.blob, case.file.words, case.file.key)
            assert not loads(case, file)


def test_equal_seeds_damage_equally():
    file = functions.cases()[0].file
    one, other = (functions.damaged_sections(random.Random(3), file) for _ in range(2))
    assert one == other
