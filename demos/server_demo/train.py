"""Learns whether a movie review is positive, with a parameter server and its trainers.

Rank 0 serves. Word vectors stay with it: trainers get those of the words in their batch.

    python -m paddle.distributed.launch --nproc_per_node 3 demos/server_demo/train.py
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, networks, running
from demos.imdb_demo import reviews

MIN_COUNT, MAX_WORDS, MAX_LENGTH = 2, 30000, 400
BETWEEN_REPORTS = 50


def read(options: argparse.Namespace) -> tuple[reviews.Bucketed, reviews.Bucketed, int]:
    """Training and test data and the size of the dictionary: the same on every rank."""
    train, test = reviews.read_imdb(options.data) if options.data else reviews.read_snippets()
    dictionary = reviews.build_dictionary(train, MIN_COUNT, MAX_WORDS)
    lengths = reviews.bucket_lengths(train, MAX_LENGTH)
    return (
        reviews.encode(train, dictionary, lengths),
        reviews.encode(test, dictionary, lengths),
        len(dictionary),
    )


def serve(
    network: running.Trainer, form: Any, test: reviews.Bucketed, options: argparse.Namespace
) -> None:
    """Rank 0: serves until the trainers are done, then tests what they have learned."""
    from paddle_ngraph import distributed

    start = time.perf_counter()

    def report(updates: int) -> None:
        if updates % BETWEEN_REPORTS == 0:
            seconds = time.perf_counter() - start
            print(f"[server] updates: {updates}; seconds: {seconds:.1f}", flush=True)

    executor = paddle.static.Executor(paddle.CPUPlace())
    updates = distributed.serve(
        executor,
        form,
        network.scope,
        synchronous=not options.asynchronous,
        after_update=report,
    )
    right = sum(
        int(np.sum(network.predict(words)[: len(rows)].argmax(axis=1) == test.label[rows, 0]))
        for rows, words in test.test_batches(options.batch_size)
    )
    print(f"[server] updates: {updates}; test accuracy: {right / len(test.words):.4f}", flush=True)


def train(
    network: running.Trainer, form: Any, data: reviews.Bucketed, options: argparse.Namespace
) -> None:
    """Every other rank: trains on its part of each batch."""
    from paddle_ngraph import distributed

    executor = paddle.static.Executor(paddle.CPUPlace())
    names = network.network.input_name, network.network.target_name
    with distributed.trainer(executor, form, network.scope) as trainer:
        for epoch in range(1, options.epochs + 1):
            losses = []
            for batch in data.training_batches(options.batch_size, options.seed + epoch):
                (loss,) = trainer.run(trainer.share(dict(zip(names, batch))))
                losses.append(float(loss))
            print(
                f"[trainer {distributed.rank()}] epoch: {epoch}; "
                f"average loss: {np.mean(losses):.6f}",
                flush=True,
            )


def run(options: argparse.Namespace) -> None:
    """One process of the job."""
    engine = running.load_engine()
    from paddle_ngraph import distributed

    distributed.init()
    train_data, test_data, words = read(options)
    network = networks.build_network(
        networks.bag_of_words(words, sparse=True),
        networks.cross_entropy,
        networks.text_inputs(),
        lambda: networks.adagrad(options.lr),
    )
    form = engine.distribute_to_server(network.train, [network.loss])
    weights = running.initial_weights(network, options.seed)
    try:
        with running.engine_must_run(running.NGRAPH), engine.use_ngraph():
            mine = running.Trainer(network, running.NGRAPH, weights)
            if distributed.rank() == 0:
                serve(mine, form, test_data, options)
            else:
                train(mine, form, train_data, options)
    except engine.NgraphError as error:
        raise running.DemoError(str(error)) from error


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n\n    ")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--asynchronous",
        action="store_true",
        help="the server takes gradients as they come, without waiting for all trainers",
    )
    reviews.add_options(parser, ", of all trainers together")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.exit_status(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
