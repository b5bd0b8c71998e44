"""Learns whether a movie review is positive, on several processes, of which one may be killed.

Each has a share of every batch. The launcher starts all of them again from the last checkpoint.

    python -m paddle_ngraph launch --nproc 2 --max-restarts 1 --checkpoint checkpoints \\
        demos/distributed_demo/train.py --kill
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle

# Run as a script, only the folder of this file is searched for modules.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from demos import command_line, networks, running
from demos.imdb_demo import reviews
from demos.imdb_demo.train import accuracy

MIN_COUNT, MAX_WORDS, MAX_LENGTH = 2, 30000, 400


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


def batches_of(data: reviews.Bucketed, options: argparse.Namespace) -> list[running.Batch]:
    """All batches of all epochs, in the order that the seed says: a step is one of them."""
    epochs = range(1, options.epochs + 1)
    return [
        batch
        for epoch in epochs
        for batch in data.training_batches(options.batch_size, options.seed + epoch)
    ]


def prepare(network: networks.Network, scope: object, batches: Sequence[running.Batch]) -> None:
    """Compiles for each length of texts, before any rank waits for another one."""
    from paddle_ngraph import distributed

    executor = paddle.static.Executor(paddle.CPUPlace())
    names = network.input_name, network.target_name
    for batch in {batch[0].shape: batch for batch in batches}.values():
        feed = distributed.share(dict(zip(names, batch)))
        distributed.prepare(executor, network.train, feed, [network.loss], scope)


def train(
    trainer: running.Trainer, batches: Sequence[running.Batch], options: argparse.Namespace
) -> None:
    """Trains from the last checkpoint to the end, with a checkpoint after so many steps."""
    from paddle_ngraph import distributed

    program, rank = trainer.network.train, distributed.rank()
    begun = distributed.resume(program, scope=trainer.scope)
    print(f"[rank {rank}] begins after step {begun} of {len(batches)}", flush=True)
    # Only in the first start, and when there is a checkpoint to start from again.
    last_step = max(len(batches) // 2, options.every) if options.kill and begun == 0 else None
    start = time.perf_counter()
    for step, (words, label) in enumerate(batches[begun:], begun + 1):
        share = distributed.share({"words": words, "label": label})
        trainer.train_step((share["words"], share["label"]))
        if step % options.every == 0 or step == len(batches):
            distributed.checkpoint(program, step, scope=trainer.scope)
            loss = np.mean(trainer.losses[-options.every :])
            print(
                f"[rank {rank}] step: {step} of {len(batches)}; average loss of its share: "
                f"{loss:.6f}; seconds: {time.perf_counter() - start:.1f}",
                flush=True,
            )
        if step == last_step and rank == distributed.ranks() - 1:
            print(f"[rank {rank}] kills itself after step {step}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def run(options: argparse.Namespace) -> None:
    """One process of the job."""
    engine = running.load_engine()
    from paddle_ngraph import distributed

    distributed.init(options.seed)
    train_data, test_data, words = read(options)
    batches = batches_of(train_data, options)
    if not batches:
        raise running.DemoError(
            f"there are fewer than {options.batch_size} training texts: lower --batch-size"
        )
    network = networks.build_network(
        networks.text_cnn(words),
        networks.cross_entropy,
        networks.text_inputs(),
        lambda: distributed.distributed_optimizer(networks.adagrad(options.lr)),
    )
    trainer = running.Trainer(network, running.NGRAPH, {})  # from what rank 0 draws
    with running.engine_must_run(running.NGRAPH):
        with engine.use_ngraph():
            prepare(network, trainer.scope, batches)
        train(trainer, batches, options)
        if distributed.rank() == 0:
            right = accuracy(trainer, test_data, options.batch_size)
            print(f"[rank 0] test accuracy: {right:.4f}", flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=str(__doc__).partition("\n\n    ")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    whole = command_line.positive
    parser.add_argument(
        "--kill", action="store_true", help="the last rank kills itself in the middle, once"
    )
    parser.add_argument(
        "--every", type=whole, default=20, metavar="STEPS", help="steps between checkpoints"
    )
    reviews.add_options(parser, ", of all ranks together")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.exit_status(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())
