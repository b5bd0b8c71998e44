"""The servers of demos/serving_demo, without a server: the cores, and the bodies of requests."""

from __future__ import annotations

import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from demos.serving_demo import pictures
from demos.serving_demo.settings import Settings, workers_and_threads


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [(1, None, (1, 1)), (8, None, (8, 1)), (8, 2, (2, 4)), (8, 3, (3, 2)), (2, 5, (2, 1))],
)
def test_workers_and_threads_use_no_more_than_the_cores(cores, workers, expected):
    assert workers_and_threads(cores, workers) == expected


def test_settings_reach_the_workers(monkeypatch, tmp_path):
    settings = Settings(tmp_path, "ngraph", 3)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.from_environment() == settings
    assert settings.environment()["FLAGS_ngraph_num_threads"] == "3"


def encoded(format_name: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3))
    Image.fromarray(pixels.astype("uint8")).save(file, format_name)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore")  # Pillow warns of some damage
@pytest.mark.parametrize("name", pictures.FORMATS)
def test_a_damaged_picture_is_an_error_of_the_request(name):
    body, generator = encoded(name), random.Random(0)
    assert pictures.decoded(body).size == (32, 32)
    for _ in range(50):
        damaged = bytearray(body)
        for _ in range(generator.choice([1, 8])):
            damaged[generator.randrange(100)] = generator.randrange(256)
        try:
            pictures.decoded(bytes(damaged))
        except ValueError:
            continue


def test_other_files_are_not_decoded():
    for body in (b"", b"{}", encoded("EPS"), encoded("PPM")):
        with pytest.raises(ValueError, match="no picture"):
            pictures.decoded(body)


@pytest.mark.parametrize("side", [9000, 20000])
def test_a_small_file_of_many_pixels_is_not_decoded(side):
    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    body = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(ValueError, match=r"pixels|no picture"):
        pictures.decoded(body)
