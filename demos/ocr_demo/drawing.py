"""The picture that shows what was read: boxes on the left, text on the right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from demos.ocr_demo.pipeline import Line, Page

WIDTH = 800
COLOR = (0, 110, 200)


def draw(picture: Image.Image, page: Page, path: Path) -> None:
    """Writes the picture with a box around each line, and the lines where they stand beside it."""
    scale = WIDTH / picture.width
    height = round(picture.height * scale)
    left = picture.convert("RGB").resize((WIDTH, height))
    right = Image.new("RGB", (WIDTH, height), "white")
    on_left, on_right = ImageDraw.Draw(left), ImageDraw.Draw(right)
    for line in page.lines:
        corners = [(float(x), float(y)) for x, y in line.corners * scale]
        on_left.polygon(corners, outline=COLOR, width=2)
        on_right.text(
            (max(corners[0][0], 0), corners[0][1]), line.text, "black", _font(line, scale)
        )
    both = Image.new("RGB", (2 * WIDTH, height))
    both.paste(left, (0, 0))
    both.paste(right, (WIDTH, 0))
    path.parent.mkdir(parents=True, exist_ok=True)
    both.save(path)


def _font(line: Line, scale: float) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    """Of the size at which the text is as wide as its box."""
    width = scale * float(np.linalg.norm(line.corners[1] - line.corners[0]))
    font = ImageFont.load_default(size=20.0)
    return ImageFont.load_default(size=20 * width / max(1.0, font.getlength(line.text)))
