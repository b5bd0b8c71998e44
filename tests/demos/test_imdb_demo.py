"""The demo of movie reviews: reading, batching, and training through the engine."""

from __future__ import annotations

import random
import re
import tarfile
from pathlib import Path

import numpy as np
import paddle
import pytest

import paddle_ngraph
from demos import running
from demos.imdb_demo import reviews, train

EXAMPLES = [("a good film", 1), ("a bad film", 0), ("good", 1), ("so very bad a film ?", 0)]


@pytest.fixture
def imdb(tmp_path) -> Path:
    """A folder with aclImdb: 96 training and 32 test reviews; one word tells the feeling."""
    generator = random.Random(0)
    fillers = [f"word{number}" for number in range(30)]
    for side, count in (("train", 48), ("test", 16)):
        for feeling, word in (("pos", "Wonderful"), ("neg", "Dreadful")):
            folder = tmp_path / "aclImdb" / side / feeling
            folder.mkdir(parents=True)
            for number in range(count):
                words = [*generator.choices(fillers, k=generator.randint(4, 39)), word]
                generator.shuffle(words)
                (folder / f"{number}_9.txt").write_text("<br />".join(words))
    return tmp_path


def test_normalize():
    assert (
        reviews.normalize("It's <br />GREAT | fun!\nÉlan, 10/10") == "it's great fun ! élan 10 10"
    )


def test_text_and_label_lines(tmp_path):
    path = tmp_path / "train.txt"
    reviews.write_examples(path, EXAMPLES)
    assert path.read_text().splitlines()[1] == "a bad film|0"
    assert reviews.read_examples(path) == EXAMPLES


@pytest.mark.parametrize("line", ["no label", "text|2", "|1"])
def test_a_line_that_is_not_text_and_label(tmp_path, line):
    (tmp_path / "train.txt").write_text(f"good|1\n{line}\n")
    with pytest.raises(running.DemoError, match=r"line 2 of .* is not text\|label"):
        reviews.read_examples(tmp_path / "train.txt")


def test_the_dictionary_has_the_frequent_words_first():
    dictionary = reviews.build_dictionary(EXAMPLES, min_count=2, max_words=10)
    assert list(dictionary.items()) == [
        *(("<pad>", 0), ("<unk>", 1), ("a", 2), ("film", 3), ("bad", 4), ("good", 5))
    ]
    assert len(reviews.build_dictionary(EXAMPLES, min_count=1, max_words=4)) == 4


def test_encoding_pads_cuts_and_knows_the_bucket():
    dictionary = reviews.build_dictionary(EXAMPLES, min_count=2, max_words=10)
    data = reviews.encode(EXAMPLES, dictionary, (3, 5))
    assert data.words.tolist() == [
        [2, 5, 3, 0, 0],
        [2, 4, 3, 0, 0],
        [5, 0, 0, 0, 0],
        [1, 1, 4, 2, 3],
    ]
    assert data.bucket.tolist() == [0, 0, 0, 1]
    assert data.label.tolist() == [[1], [0], [1], [0]]


def many(count: int) -> reviews.Bucketed:
    generator = np.random.default_rng(0)
    texts = [("x " * int(length)).strip() for length in generator.integers(1, 21, count)]
    lengths = reviews.bucket_lengths([(text, 0) for text in texts], max_length=400)
    assert lengths == (5, 10, 20)
    return reviews.encode([(text, 0) for text in texts], {"x": 2}, lengths)


def test_training_batches_are_full_and_leave_out_less_than_one():
    data = many(150)
    batches = data.training_batches(32, seed=0)
    assert sorted(words.shape[0] for words, _ in batches) == [32] * 4
    assert {words.shape[1] for words, _ in batches} <= set(data.lengths)
    assert all((words[:, 0] != 0).all() for words, _ in batches)
    other = data.training_batches(32, seed=1)
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(batches, other))


def test_test_batches_hold_every_text_once():
    data = many(150)
    seen = []
    for rows, words in data.test_batches(32):
        assert words.shape[0] == 32
        np.testing.assert_array_equal(words[: len(rows)], data.words[rows, : words.shape[1]])
        seen += rows.tolist()
    assert sorted(seen) == list(range(150))


def test_the_archive_and_the_folder_hold_the_same(imdb):
    from_folder = reviews.read_imdb(imdb)
    assert [len(side) for side in from_folder] == [96, 32]
    assert reviews.read_imdb(imdb / "aclImdb") == from_folder
    with tarfile.open(imdb / "aclImdb_v1.tar.gz", "w:gz") as tar:
        tar.add(imdb / "aclImdb", "aclImdb")
    (imdb / "aclImdb").rename(imdb / "elsewhere")
    from_archive = reviews.read_imdb(imdb)
    assert [sorted(side) for side in from_archive] == [sorted(side) for side in from_folder]


def test_a_damaged_archive(tmp_path):
    (tmp_path / "aclImdb_v1.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(running.DemoError, match="is damaged"):
        reviews.read_imdb(tmp_path)


def test_a_folder_without_the_data(tmp_path, capsys):
    work = str(tmp_path / "work")
    assert train.main(["--engine", "native", "--data", str(tmp_path), "--work-dir", work]) == 1
    assert "holds neither aclImdb nor aclImdb_v1.tar.gz" in capsys.readouterr().err


@pytest.mark.slow("runs a demo")
def test_no_snippet_lies_on_both_sides():
    training, test = reviews.read_snippets()
    assert (len(training), len(test)) == (9510, 1056)
    assert not {text for text, _ in training} & {text for text, _ in test}


def small_run(imdb: Path, *more: str) -> list[str]:
    size = ["--batch-size", "16", "--embedding", "8", "--epochs", "6", "--lr", "0.1"]
    return ["--data", str(imdb), "--work-dir", str(imdb / "work"), *size, *more]


@pytest.mark.slow("runs a demo")
@pytest.mark.parametrize("net", ["bow", "cnn"])
def test_both_engines_learn_alike(net, imdb, capsys):
    assert train.main(small_run(imdb, "--net", net, "--engine", "both")) == 0, capsys.readouterr()
    output = capsys.readouterr().out
    assert paddle_ngraph.stats()["engine_runs"] > 0
    for engine in ("native", "ngraph"):
        average = re.findall(rf"\[{engine}\] epoch: (\d); average loss: ([\d.]+)", output)
        assert [number for number, _ in average] == ["1", "2", "3", "4", "5", "6"]
        assert float(average[-1][1]) < 0.5 * float(average[0][1])
    (accuracies,) = re.findall(r"test accuracy +([\d.]+) +([\d.]+)", output)
    assert all(float(accuracy) > 0.9 for accuracy in accuracies)


@pytest.mark.slow("runs a demo")
def test_the_saved_model_is_the_trained_one(imdb, capsys):
    assert train.main(small_run(imdb, "--net", "bow")) == 0, capsys.readouterr()
    assert "[ngraph] epoch: 6; average loss:" in capsys.readouterr().out
    work = imdb / "work"
    names = ["model.json", "model.pdiparams", "model.pdopt", "model.pdparams"]
    for epoch in range(1, 7):
        folder = work / "models" / f"epoch_{epoch}"
        assert sorted(path.name for path in folder.iterdir()) == names
    dictionary = (work / "dictionary.txt").read_text().splitlines()
    assert dictionary[:2] == ["<pad>", "<unk>"]
    words = np.array([[dictionary.index("wonderful")] * 4, [dictionary.index("dreadful")] * 4])
    with paddle.static.scope_guard(paddle.static.Scope()):
        executor = paddle.static.Executor(paddle.CPUPlace())
        program, feeds, fetches = paddle.static.load_inference_model(
            str(work / "models" / "epoch_6" / "model"), executor
        )
        (logits,) = executor.run(program, feed={feeds[0]: words}, fetch_list=fetches)
    assert logits.argmax(axis=1).tolist() == [1, 0]
