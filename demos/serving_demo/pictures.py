"""The pictures in the bodies of requests, which anybody may have made."""

from __future__ import annotations

import io

from PIL import Image

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Formats that are decoded. For another one, PostScript, Pillow starts a program on the file."""
MOST_PIXELS = 64 * 10**6
"""Pixels of the largest picture. A file of some kilobytes can have so many that memory ends."""


def decoded(body: bytes) -> Image.Image:
    """Returns the picture in a file of one of ``FORMATS``.

    Raises:
        ValueError: The body is no such file, or a damaged one, or has more than ``MOST_PIXELS``.
    """
    try:
        with Image.open(io.BytesIO(body), formats=FORMATS) as file:
            has_room = file.width * file.height <= MOST_PIXELS
            picture = file.convert("RGB") if has_room else None
    except Exception as error:  # of any type, since the decoders do not check all that they read
        raise ValueError("the body is no picture") from error
    if picture is None:
        raise ValueError(f"the picture has more than {MOST_PIXELS} pixels")
    return picture
