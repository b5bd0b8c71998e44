"""The networks of PP-OCR as folders that PaddleOCR takes: program, weights, ``inference.yml``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from demos.ocr_demo import files
from demos.ocr_demo.pipeline import PIXELS

DETECTION = {"v5": "PP-OCRv5_mobile_det", "v4": "PP-OCRv4_mobile_det"}
RECOGNITION = {"v5": "PP-OCRv5_mobile_rec", "v4": "PP-OCRv4_mobile_rec"}
ORIENTATION = "PP-LCNet_x0_25_textline_ori"
"""PaddleX's name of a network that says whether a line stands on its head."""


def arguments(version: str) -> dict[str, Any]:
    """What ``PaddleOCR(...)`` is given to read with the networks of a version, from local files."""
    files.fetch_all(version)
    detection, recognition = DETECTION[version], RECOGNITION[version]
    return {
        "text_detection_model_name": detection,
        "text_detection_model_dir": _folder(
            f"PP-OCR{version}_det", detection, _detection_steps(version), _BOXES
        ),
        "textline_orientation_model_name": ORIENTATION,
        "textline_orientation_model_dir": _folder(
            "PP-OCRv2_cls", ORIENTATION, _ORIENTATION_STEPS, _DIRECTIONS
        ),
        "text_recognition_model_name": recognition,
        "text_recognition_model_dir": _folder(
            f"PP-OCR{version}_rec", recognition, _RECOGNITION_STEPS, _characters(version)
        ),
        "use_textline_orientation": True,
        "use_doc_orientation_classify": False,
        "use_doc_unwarping": False,
    }


def _folder(network: str, name: str, before: list[Any], after: dict[str, Any]) -> str:
    """The folder of a network, with its settings beside it: JSON, which is YAML."""
    folder: Path = files.network(network).parent
    settings = {
        "Global": {"model_name": name},
        "PreProcess": {"transform_ops": before},
        "PostProcess": after,
    }
    (folder / "inference.yml").write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)


def _detection_steps(version: str) -> list[Any]:
    mean, deviation = PIXELS[version]
    return [
        {"DecodeImage": {"channel_first": False, "img_mode": "BGR"}},
        {"DetResizeForTest": {"resize_long": 960}},
        _scaled(mean, deviation, order="hwc"),
        {"ToCHWImage": None},
    ]


def _scaled(mean: list[float], deviation: list[float], order: str) -> dict[str, Any]:
    return {"NormalizeImage": {"mean": mean, "std": deviation, "scale": 1 / 255, "order": order}}


_BOXES = {"name": "DBPostProcess", "thresh": 0.3, "box_thresh": 0.6, "unclip_ratio": 1.5}
_ORIENTATION_STEPS = [
    {"ResizeImage": {"size": [192, 48]}},
    _scaled([0.5] * 3, [0.5] * 3, order=""),
    {"ToCHWImage": None},
]
_DIRECTIONS = {"Topk": {"topk": 1, "label_list": ["0_degree", "180_degree"]}}
_RECOGNITION_STEPS = [
    {"DecodeImage": {"channel_first": False, "img_mode": "BGR"}},
    {"RecResizeImg": {"image_shape": [3, 48, 320]}},
]


def _characters(version: str) -> dict[str, Any]:
    # The gap and the blank, first and last here, PaddleX adds itself.
    return {"name": "CTCLabelDecode", "character_dict": files.characters(version)[1:-1]}
