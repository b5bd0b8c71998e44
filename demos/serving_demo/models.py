"""The served models: the originals, and the same saved with compiled functions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from demos.paddleocr_demo import models as paddleocr_models
from demos.serving_demo.settings import NATIVE, NGRAPH

CLASSIFIER = "classifier"
SIDE = 224
"""Height and width of the classifier's pictures."""
OCR = {
    "detection": "text_detection_model_dir",
    "orientation": "textline_orientation_model_dir",
    "recognition": "text_recognition_model_dir",
}
"""The networks of PaddleOCR, and its arguments for their folders."""
NETWORKS = {"classifier": (CLASSIFIER,), "ocr": tuple(OCR)}
"""The networks of each application."""
INPUT = "x"
"""The name of the input of each network."""


SHAPES: dict[str, list[tuple[int, ...]]] = {
    CLASSIFIER: [(1, 3, SIDE, SIDE)],
    # Of the same ranks, the third gets the function for all sizes (docs/how_it_works/shapes.md).
    "detection": [(1, 3, 192, 384), (1, 3, 384, 768), (1, 3, 576, 384)],
    "orientation": [(1, 3, 48, 192)],
    "recognition": [(1, 3, 48, 320), (1, 3, 48, 480), (1, 3, 48, 640)],
}
"""Shapes of the input of each network for which functions are compiled."""


def program(folder: Path, engine: str, network: str) -> Path:
    """Returns the program of a network; its weights are beside it."""
    candidates = [
        folder / engine / network / f"inference{suffix}" for suffix in (".json", ".pdmodel")
    ]
    return next(file for file in candidates if file.is_file())


def ocr_arguments(folder: Path, engine: str) -> dict[str, Any]:
    """Returns the arguments of ``PaddleOCR`` for the networks that an engine serves."""
    return {
        **paddleocr_models.arguments("v5"),
        **{argument: str(folder / engine / network) for network, argument in OCR.items()},
        # Line by line: a batch pads each to its longest, and one thread gains nothing by it.
        "textline_orientation_batch_size": 1,
        "text_recognition_batch_size": 1,
    }


def prepare(application: str, folder: Path, threads: int) -> None:
    """Writes the models of an application; those that exist remain.

    Functions are valid for one number of threads: for another one they are compiled again.
    """
    if application == CLASSIFIER:
        _write_classifier(folder / NATIVE / CLASSIFIER)
    else:
        arguments = paddleocr_models.arguments("v5")
        for network, argument in OCR.items():
            shutil.copytree(arguments[argument], folder / NATIVE / network, dirs_exist_ok=True)
    for network in NETWORKS[application]:
        saved, done = folder / NGRAPH / network, str(threads)
        marker = saved / "threads"
        if marker.is_file() and marker.read_text() == done:
            continue
        shutil.rmtree(saved, ignore_errors=True)
        saved.mkdir(parents=True)
        original = program(folder, NATIVE, network)
        _save(original, saved / "inference", SHAPES[network], threads)
        if (settings := original.parent / "inference.yml").is_file():
            shutil.copy(settings, saved)
        marker.write_text(done)


def _save(original: Path, prefix: Path, shapes: list[tuple[int, ...]], threads: int) -> None:
    """Saves a model with its functions, as a deployment would: from the command line."""
    command = [sys.executable, "-m", "paddle_ngraph", "save", str(original), str(prefix)]
    for shape in shapes:
        command += ["--shapes", f"{INPUT}={'x'.join(map(str, shape))}"]
    environment = {**os.environ, "FLAGS_ngraph_num_threads": str(threads)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def _write_classifier(folder: Path) -> None:
    """Saves MobileNetV2 with random weights, unless it exists: no package has trained ones."""
    import paddle

    if (folder / "inference.pdiparams").is_file():
        return
    paddle.disable_static()
    paddle.seed(0)
    network = paddle.vision.models.mobilenet_v2(num_classes=100)
    generator = np.random.default_rng(0)
    for layer in network.sublayers():
        # With the initial statistics all pictures would have nearly equal scores.
        if isinstance(layer, paddle.nn.BatchNorm2D):
            size = layer._mean.shape
            layer._mean.set_value(generator.normal(0, 0.1, size).astype("float32"))
            layer._variance.set_value(generator.uniform(0.02, 0.1, size).astype("float32"))
    whole = paddle.nn.Sequential(network, paddle.nn.Softmax())
    whole.eval()
    folder.mkdir(parents=True, exist_ok=True)
    spec = paddle.static.InputSpec([None, 3, SIDE, SIDE], "float32", name=INPUT)
    paddle.jit.save(whole, str(folder / "inference"), input_spec=[spec])
