"""Paddle's oneDNN or the engine, where a rule prefers oneDNN: measured by the runs of predictors.

The rule (``cost_model.is_faster_than_onednn``) counts operators. Runs by both in turn correct it,
for each bucket of sizes of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paddle_ngraph.partitioning.choice_files import choice_file
from paddle_ngraph.utils.lru_cache import LRUCache, cache_of_each
from paddle_ngraph.utils.measured_choice import MeasuredChoice, Policy, Record, RecordFile

POLICY = Policy()
_CHOICES = cache_of_each(
    "model of predictors",
    __name__,
    "onednn_choices",
    "times of runs by oneDNN and by the engine, and the choice",
    key="sizes of the inputs, rounded up to powers of two",
    bound=RecordFile.MAX_RECORDS,
)


class OneDnnChoices:
    """The choices of one model, by the sizes of its inputs.

    Args:
        model: Describes the contents of the model.
        threads: The number of threads that the configuration asks for.
    """

    def __init__(self, model: str, threads: int) -> None:
        self._file = choice_file(model, str(threads))
        self._choices: LRUCache[str, MeasuredChoice] = LRUCache(_CHOICES.bound)

    def of(self, shapes: Iterable[Sequence[int]]) -> MeasuredChoice:
        """The choice for inputs of these shapes."""
        key = _bucket(shapes)
        return self._choices.get_or_create(key, lambda: self._create(key))

    def needs_engine(self) -> bool:
        """Whether some sizes run by the engine, or are still being measured."""
        records = [choice.record for choice in self._choices.values()]
        return any(record is None or record.uses_challenger for record in records)

    def _create(self, key: str) -> MeasuredChoice:
        return MeasuredChoice(
            POLICY, self._file.read().get(key), lambda record: self._file.write(key, record)
        )

    def report(self) -> tuple[str, bool]:
        """The stored measurements in words, and whether the engine runs all of these sizes."""
        records = self._file.read()
        found = ", ".join(f"{_in_words(record)} for {key}" for key, record in records.items())
        chosen = [record.uses_challenger for record in records.values()]
        return found, bool(chosen) and all(chosen)


def _in_words(record: Record) -> str:
    if record.ratio == 0:
        return "undecided"
    return f"the engine takes {record.ratio:.2f} of oneDNN's time"


def _bucket(shapes: Iterable[Sequence[int]]) -> str:
    """The sizes of inputs, rounded up to powers of two: equal for inputs of similar cost."""
    return ", ".join("x".join(str(_rounded_up(size)) for size in shape) for shape in shapes)


def _rounded_up(size: int) -> int:
    return 1 << (size - 1).bit_length() if size > 0 else size
