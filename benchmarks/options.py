"""Command line and progress bar of the topics."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import peers, report, works


def parser(description: str | None, topics: Iterable[str]) -> argparse.ArgumentParser:
    """Returns the parser of ``python -m benchmarks``."""
    models = sorted({*works.INFERENCE_MODELS, *works.CHAINS, *works.TRAINING})
    options = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"models: {', '.join(models)}\npeers: {', '.join(peers.PEERS)}",
    )
    options.add_argument(
        "topics", nargs="*", metavar="TOPIC", help=f"of {', '.join(topics)} (default: all)"
    )
    options.add_argument(
        "--models",
        nargs="+",
        choices=models,
        metavar="MODEL",
        help="only these models, of topics that have some",
    )
    options.add_argument(
        "--peers",
        nargs="+",
        choices=tuple(peers.PEERS),
        default=tuple(peers.PEERS),
        metavar="PEER",
        help="only these peers (default: all that are installed)",
    )
    options.add_argument(
        "--rounds", type=_positive, default=3, help="samples of each peer (default: %(default)s)"
    )
    options.add_argument(
        "--threads",
        nargs="+",
        type=_positive,
        metavar="COUNT",
        help="threads: how many (default: 1, 2, 4, ... and more than there are cores)",
    )
    options.add_argument(
        "--kinds", nargs="+", metavar="KIND", help="sizes: only these, of texts, audio, pages"
    )
    size = options.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="short samples, small batches: a try")
    size.add_argument("--full", action="store_true", help="scaling: up to the largest sizes")
    options.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="revisions: another checkout of this repository, its core built in place",
    )
    report.add_output(options)
    return options


def chosen(options: argparse.Namespace, known: Iterable[str]) -> list[str]:
    """Returns the selected models of a topic."""
    return [name for name in known if not options.models or name in options.models]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


class Progress:
    """A progress bar, if tqdm is installed and the output is a terminal, and a line per result."""

    def __init__(self, title: str, total: int) -> None:
        try:
            from tqdm import tqdm
        except ImportError:
            self._bar: Any = None
        else:
            self._bar = tqdm(total=total, desc=title, leave=False, disable=None)

    def say(self, text: str) -> None:
        """Shows the current step."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)

    def done(self, text: str) -> None:
        """Prints a result, and advances the bar."""
        if self._bar is None:
            print(text, flush=True)
            return
        self._bar.write(text)
        self._bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
