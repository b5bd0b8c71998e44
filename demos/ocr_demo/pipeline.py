"""Detection, orientation and recognition of text, the three steps of PP-OCR."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import paddle
from numpy.typing import NDArray
from PIL import Image

from demos.ocr_demo import files
from demos.ocr_demo.boxes import Points, find_boxes

STEPS = ("detection", "orientation", "recognition")
LONGEST_SIDE = 960
TEXT_HEIGHT = 48
TEXT_WIDTHS = 160
"""Lines are padded to a multiple of this: the fewer widths there are, the fewer are compiled."""
UPSIDE_DOWN = 0.9
SMALLEST_SCORE = 0.5


PIXELS = {"v4": ([0.5] * 3, [0.5] * 3), "v5": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])}
"""Mean and deviation with which the pixels were scaled when the detection was trained."""


@dataclass(frozen=True)
class Line:
    """One line of text: what it says, how sure that is, and where it stands."""

    text: str
    score: float
    corners: Points


@dataclass
class Page:
    """The text of a picture; ``seconds`` in each network, ``outputs`` of each of its runs."""

    lines: list[Line] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STEPS, 0.0))
    outputs: dict[str, list[NDArray[np.float32]]] = field(
        default_factory=lambda: {step: [] for step in STEPS}
    )

    @property
    def text(self) -> list[str]:
        return [line.text for line in self.lines]


class Network:
    """A saved network, in the form of PIR or of ProgramDesc, with its weights in a scope."""

    def __init__(self, program: Path) -> None:
        old_form = program.suffix == ".pdmodel"
        self._form = paddle.pir_utils.OldIrGuard if old_form else contextlib.nullcontext
        self.scope = paddle.static.Scope()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        with self._in_use():
            self.program, self._inputs, self._outputs = paddle.static.load_inference_model(
                str(program.with_suffix("")), self._executor
            )

    def __call__(self, pictures: NDArray[np.float32]) -> NDArray[np.float32]:
        """The only output for the only input, [batch, 3, height, width]."""
        with self._in_use():
            (output,) = self._executor.run(
                self.program, feed={self._inputs[0]: pictures}, fetch_list=self._outputs
            )
        return np.asarray(output)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._form(), paddle.static.scope_guard(self.scope):
            yield


class Reader:
    """Finds and reads the text in pictures.

    Args:
        version: Of PP-OCR: v4, saved as ProgramDesc, or v5, saved as PIR.
    """

    def __init__(self, version: str = "v4") -> None:
        files.fetch_all(version)
        self.networks = {
            "detection": Network(files.network(f"PP-OCR{version}_det")),
            "orientation": Network(files.network("PP-OCRv2_cls")),
            "recognition": Network(files.network(f"PP-OCR{version}_rec")),
        }
        self._characters = files.characters(version)
        self._mean, self._deviation = np.array(PIXELS[version], "float32")

    def read(self, picture: Image.Image) -> Page:
        """The lines of text in ``picture``."""
        page = Page()
        picture = picture.convert("RGB")
        for corners in self._detect(picture, page):
            line = self._upright(cut_out(picture, corners), page)
            text, score = self._recognize(line, page)
            if text and score >= SMALLEST_SCORE:
                page.lines.append(Line(text, score, corners))
        return page

    def _detect(self, picture: Image.Image, page: Page) -> list[Points]:
        size = detection_size(picture.size)
        pixels = _pixels(picture.resize(size, Image.Resampling.BILINEAR))
        pixels = (pixels - self._mean) / self._deviation
        probability = self._run("detection", pixels, page)[0, 0]
        scale = np.array(picture.size) / size
        return [corners * scale for corners in find_boxes(probability)]

    def _upright(self, line: Image.Image, page: Page) -> Image.Image:
        # The network looks at the beginning of the line.
        pixels = _text_pixels(line, 192)[:, :192]
        probability = self._run("orientation", pixels, page)[0, 1]
        turned = probability > UPSIDE_DOWN
        return line.transpose(Image.Transpose.ROTATE_180) if turned else line

    def _recognize(self, line: Image.Image, page: Page) -> tuple[str, float]:
        output = self._run("recognition", _text_pixels(line, TEXT_WIDTHS), page)
        return decode(output[0], self._characters)

    def _run(self, step: str, pixels: NDArray[np.float32], page: Page) -> NDArray[np.float32]:
        batch = np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], "float32")
        start = time.perf_counter()
        output = self.networks[step](batch)
        page.seconds[step] += time.perf_counter() - start
        page.outputs[step].append(output)
        return output


def detection_size(size: tuple[int, int]) -> tuple[int, int]:
    """Width and height that the detection network sees: multiples of 32."""
    scale = LONGEST_SIDE / max(size)
    width, height = (max(32, round(side * scale / 32) * 32) for side in size)
    return width, height


def cut_out(picture: Image.Image, corners: Points) -> Image.Image:
    """The rectangle between ``corners``, turned upright."""
    top_left, top_right, bottom_right, bottom_left = corners
    width = max(1, round(float(np.linalg.norm(top_right - top_left))))
    height = max(1, round(float(np.linalg.norm(bottom_left - top_left))))
    data = [float(value) for value in (*top_left, *bottom_left, *bottom_right, *top_right)]
    return picture.transform((width, height), Image.Transform.QUAD, data, Image.Resampling.BICUBIC)


def decode(scores: NDArray[np.float32], characters: list[str]) -> tuple[str, float]:
    """The text of a line and how sure it is, from the scores of characters [place, character].

    A character goes on over several places; number 0 says that nothing new begins (CTC).
    """
    numbers = scores.argmax(axis=1)
    begins = _begins(numbers)
    score = float(scores.max(axis=1)[begins].mean()) if begins.any() else 0.0
    return text_of(numbers, characters), score


def text_of(numbers: NDArray[np.int64], characters: list[str]) -> str:
    """The text of the likeliest character at each position; see :func:`decode`."""
    return "".join(characters[number] for number in numbers[_begins(numbers)]).strip()


def _begins(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.append(True, numbers[1:] != numbers[:-1]) & (numbers != 0)


def _text_pixels(line: Image.Image, step: int) -> NDArray[np.float32]:
    """A line of text [48, width, 3], from -1 to 1, padded with 0 to a multiple of ``step``."""
    width = max(1, round(line.width * TEXT_HEIGHT / line.height))
    scaled = line.resize((width, TEXT_HEIGHT), Image.Resampling.BILINEAR)
    return np.pad((_pixels(scaled) - 0.5) / 0.5, ((0, 0), (0, -width % step), (0, 0)))


def _pixels(picture: Image.Image) -> NDArray[np.float32]:
    """Blue, green, red, as PP-OCR was trained, from 0 to 1 [height, width, 3]."""
    return np.asarray(picture, "float32")[:, :, ::-1] / np.float32(255)
