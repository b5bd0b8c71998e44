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
TABLE = "SLANet_plus"
"""PaddleX's name of a network that says which cells a table has."""


def arguments(version: str) -> dict[str, Any]:
    """The arguments of ``PaddleOCR`` for the networks of a version, from local files."""
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


def table_arguments() -> dict[str, Any]:
    """The arguments of ``TableStructureRecognition`` that find cells, from local files."""
    return {"model_name": TABLE, "model_dir": _folder(TABLE, TABLE, _TABLE_STEPS, _CELLS)}


def table_pipeline(version: str) -> dict[str, Any]:
    """The settings of a ``table_recognition`` pipeline of PaddleX: cells, and the text in them.

    The picture is the table: no package has the networks that find tables on a page.
    """
    reading, table = arguments(version), table_arguments()
    steps = {"detection": "Detection", "recognition": "Recognition"}
    return {
        "pipeline_name": "table_recognition",
        "use_doc_preprocessor": False,
        "use_layout_detection": False,
        "use_ocr_model": True,
        "SubModules": {
            "TableStructureRecognition": {"module_name": "table_structure_recognition", **table}
        },
        "SubPipelines": {
            "GeneralOCR": {
                "pipeline_name": "OCR",
                "text_type": "general",
                "use_doc_preprocessor": False,
                "use_textline_orientation": False,
                "SubModules": {
                    f"Text{name}": {
                        "module_name": f"text_{step}",
                        "model_name": reading[f"text_{step}_model_name"],
                        "model_dir": reading[f"text_{step}_model_dir"],
                    }
                    for step, name in steps.items()
                },
            }
        },
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


_TABLE_SIDE = 488
_TABLE_STEPS = [
    {"DecodeImage": {"channel_first": False, "img_mode": "BGR"}},
    {"TableLabelEncode": {"merge_no_span_structure": True}},
    {"ResizeTableImage": {"max_len": _TABLE_SIDE}},
    _scaled([0.485, 0.456, 0.406], [0.229, 0.224, 0.225], order="hwc"),
    {"PaddingTableImage": {"size": [_TABLE_SIDE, _TABLE_SIDE]}},
    {"ToCHWImage": None},
]
_CELLS = {
    "name": "TableLabelDecode",
    "character_dict": [
        *("<thead>", "</thead>", "<tbody>", "</tbody>", "<tr>", "</tr>", "<td", ">", "</td>"),
        *(f' colspan="{count}"' for count in range(2, 21)),
        *(f' rowspan="{count}"' for count in range(2, 21)),
        "<td></td>",
    ],
}


def _characters(version: str) -> dict[str, Any]:
    # The gap and the blank, first and last here, PaddleX adds itself.
    return {"name": "CTCLabelDecode", "character_dict": files.characters(version)[1:-1]}
