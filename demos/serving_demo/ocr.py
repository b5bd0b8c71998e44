"""A server of PaddleOCR: the lines of text on a page, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import paddle
from paddleocr import PaddleOCR
from PIL import Image

from demos.serving_demo import application, models
from demos.serving_demo.application import Answer, Model
from demos.serving_demo.settings import NATIVE, Settings


def load(settings: Settings) -> Model:
    read = reader(settings)
    return lambda picture: read([picture])[0]


def reader(settings: Settings) -> Callable[[Sequence[Image.Image]], list[Answer]]:
    """Returns a function that reads pages, after the functions of all networks are loaded."""
    cv2.setNumThreads(settings.threads)
    # By default PaddleOCR uses Paddle's oneDNN, with which Paddle 3.3 cannot run PP-OCRv5.
    mode = {"enable_mkldnn": False} if settings.engine == NATIVE else {}
    arguments = models.ocr_arguments(settings.models, settings.engine)
    with _created_predictors() as predictors:
        pipeline = PaddleOCR(**arguments, cpu_threads=settings.threads, **mode)
    for network, predictor in predictors.items():
        application.warm(settings, network, predictor)

    def read(pictures: Sequence[Image.Image]) -> list[Answer]:
        pixels = [np.ascontiguousarray(np.asarray(each)[:, :, ::-1]) for each in pictures]
        return [
            {"texts": page["rec_texts"], "scores": list(map(float, page["rec_scores"]))}
            for page in pipeline.predict(pixels)
        ]

    return read


@contextmanager
def _created_predictors() -> Iterator[dict[str, Any]]:
    """Collects the predictors that are created in this context, by the folder of their network."""
    original, created = paddle.inference.create_predictor, {}

    def create_predictor(config: Any) -> Any:
        found = created[Path(config.prog_file()).parent.name] = original(config)
        return found

    with mock.patch.object(paddle.inference, "create_predictor", create_predictor):
        yield created


app = application.create(load)
