"""Shared parts of demos that read a picture: command line, engines, comparison."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from PIL import Image

from demos import command_line, running
from demos.ocr_demo import drawing, files
from demos.ocr_demo.pipeline import Page
from demos.running import DemoError


class Reading(Protocol):
    """The result of one engine."""

    @property
    def engine(self) -> str: ...
    @property
    def page(self) -> Page: ...


Read = TypeVar("Read", bound=Reading)


def parser(description: str | None, output: str) -> argparse.ArgumentParser:
    """The command line.

    Args:
        description: The docstring of the demo.
        output: The name of the picture that it draws.
    """
    options = argparse.ArgumentParser(
        description=str(description).partition("\n\n    ")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "--version",
        choices=files.VERSIONS,
        default="v5",
        help="of PP-OCR: v5, saved in the form of PIR, or v4, saved as ProgramDesc "
        "(default: %(default)s)",
    )
    options.add_argument(
        "--image",
        default="page",
        metavar="NAME|FILE",
        help=f"a picture file, or one of the photographs {' and '.join(files.PHOTOGRAPHS)} "
        "(default: %(default)s)",
    )
    command_line.add_engine_option(options, default="both")
    options.add_argument(
        "--repeat",
        type=command_line.positive,
        default=5,
        help="readings whose median time is printed, after a first one (default: %(default)s)",
    )
    options.add_argument(
        "--output",
        type=Path,
        default=Path(output),
        metavar="FILE",
        help="where the picture with boxes and text goes (default: %(default)s)",
    )
    return options


def with_each_engine(
    options: argparse.Namespace, read: Callable[[str, Image.Image], Read]
) -> list[Read]:
    """Returns ``read(engine, picture)`` for each of the selected engines.

    Prints the lines of text, and draws those of the last engine.
    """
    engines = command_line.engines(options.engine)
    if running.NGRAPH in engines:
        running.load_engine()
    picture = files.open_picture(options.image)
    readings = []
    for engine in engines:
        with running.engine_must_run(engine):
            readings.append(read(engine, picture))
        for line in readings[-1].page.lines:
            print(f"[{engine}] {line.score:.3f} {line.text}")
    drawing.draw(picture, readings[-1].page, options.output)
    print(f"drawn into {options.output}")
    return readings


def table(
    readings: Sequence[Reading], rows: Sequence[Sequence[str]], milliseconds: Sequence[float]
) -> str:
    """One column an engine, and with two engines the speed-up by their ``milliseconds``."""
    body = [["", *(reading.engine for reading in readings)], *rows]
    if len(readings) == 2:
        body.append(["speed-up", "", f"{milliseconds[0] / milliseconds[1]:.2f}x"])
    return running.side_by_side(body)


def require_same_text(native: Page, ngraph: Page) -> None:
    """Raises DemoError at the first line that the engines read differently."""
    if native.text == ngraph.text:
        return
    pairs = zip([*native.text, "nothing"], [*ngraph.text, "nothing"])
    one, other = next((a, b) for a, b in pairs if a != b)
    raise DemoError(
        f"natively the picture reads {one!r} where the engine reads {other!r}: the engine "
        "computes these networks wrongly, please report it"
    )


def require_rounding(apart: float, most: float, what: str) -> None:
    """Raises DemoError where ``what`` is further ``apart`` than ``most``, or a NaN."""
    if not apart <= most:
        raise DemoError(
            f"{what} differ by more than float32 rounding explains: the engine computes these "
            "networks wrongly, please report it"
        )
