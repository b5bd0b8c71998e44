"""Real images: crops of photographs, and of text lines of a printed page."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from benchmarks.works import Array
from demos import datasets
from demos.datasets import DataFile
from demos.ocr_demo import files
from demos.ocr_demo.pipeline import Reader, cut_out, text_of

_PHOTOGRAPHS = {
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
    "chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "coins.png": "f8d773fc9cfa6f4d8e5942dc34d0a0788fcaed2a4fefbbed0aef5398d7ef4cba",
    "hubble_deep_field.jpg": "3a19c5dd8a927a9334bb1229a6d63711b1c0c767fb27e2286e7c84a3e2c2f5f4",
    "ihc.png": "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef",
    "motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
}
PHOTOGRAPHS = [
    DataFile(files.SCIKIT_IMAGE, (f"skimage/data/{name}",), sha256)
    for name, sha256 in _PHOTOGRAPHS.items()
]
SIDE = 224
"""Pixels of the pictures that networks for ImageNet read."""
_LEAST = 96  # pixels of the smallest crops
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet

_LINE = 320, 48  # width and height of a piece of a line
_PAGE = (
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "unambiguously as either object or background. Here,",
    "the markers are found at the two extreme parts of the",
    "histogram of grey values:",
    ">>> markers = np.zeros_like(coins)",
)


class Crops:
    """Square crops of photographs, preprocessed as for ImageNet.

    Crops differ in position, size, brightness, contrast, and mirroring.
    """

    def __init__(self) -> None:
        self._pictures = [_opened(path) for path in datasets.fetch(PHOTOGRAPHS)]

    def batch(
        self, generator: np.random.Generator, count: int, side: int = SIDE
    ) -> tuple[Array, list[int]]:
        """Returns images, float32 [count, 3, side, side], and the indices of their photographs."""
        numbers = generator.integers(len(self._pictures), size=count).tolist()
        crops = [self._crop(generator, number, side) for number in numbers]
        return np.stack(crops).astype("float32"), numbers

    def _crop(self, generator: np.random.Generator, number: int, side: int) -> Array:
        picture = self._pictures[number]
        length = int(generator.integers(_LEAST, min(picture.size) + 1))
        part = _cut(generator, picture, length, length)
        part = part.resize((side, side), Image.Resampling.BILINEAR)
        if generator.random() < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.asarray(_lit(generator, part), "float32") / 255
        return ((pixels - _MEAN) / _DEVIATION).transpose(2, 0, 1)


class Lines:
    """Crops of the lines that PP-OCR detects on a photographed page, preprocessed as in PP-OCR.

    Crops differ in position, in the accuracy of the box, in brightness and contrast.
    """

    def __init__(self) -> None:
        self._page = files.open_picture("page")
        lines = Reader("v4").read(self._page).lines
        if len(lines) != len(_PAGE):
            raise ValueError(f"{len(lines)} lines of the page were found, not {len(_PAGE)}")
        self._corners = [line.corners for line in lines]

    def batch(self, generator: np.random.Generator, count: int) -> tuple[Array, list[str]]:
        """Returns images, float32 [count, 3, 48, 320], and the texts of their lines."""
        numbers = generator.integers(len(_PAGE), size=count)
        pieces = [self._piece(generator, number) for number in numbers]
        return np.stack(pieces).astype("float32"), [_PAGE[number] for number in numbers]

    def _piece(self, generator: np.random.Generator, number: int) -> Array:
        corners = self._corners[number]
        line = cut_out(self._page, corners + generator.uniform(-1, 1, corners.shape))
        width = round(line.height * _LINE[0] / _LINE[1])
        part = _cut(generator, line, min(width, line.width), line.height)
        part = part.resize(_LINE, Image.Resampling.BILINEAR)
        pixels = np.asarray(_lit(generator, part), "float32")[:, :, ::-1] / 255
        return (2 * pixels - 1).transpose(2, 0, 1)


def reads_as(numbers: Array, line: str) -> bool:
    """Returns whether a crop of ``line`` was read right, given the character of each time step.

    The network omits spaces. The characters at both ends may be cut.
    """
    text = text_of(numbers, files.characters("v4")).replace(" ", "")[1:-1]
    return bool(text) and text in line.replace(" ", "")


def _opened(path: Any) -> Image.Image:
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _cut(
    generator: np.random.Generator, picture: Image.Image, width: int, height: int
) -> Image.Image:
    """Returns a crop of an image at a random position."""
    left = int(generator.integers(picture.width - width + 1))
    top = int(generator.integers(picture.height - height + 1))
    return picture.crop((left, top, left + width, top + height))


def _lit(generator: np.random.Generator, picture: Image.Image) -> Image.Image:
    """Returns an image with slightly changed brightness and contrast."""
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast):
        picture = change(picture).enhance(float(generator.uniform(0.8, 1.2)))
    return picture
