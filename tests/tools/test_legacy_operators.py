"""docs/reference/program_desc.md is current, and judges every operator of ProgramDesc."""

from __future__ import annotations

import json
import re
from pathlib import Path

from paddle_ngraph.frontends.program_desc import lod
from tests import legacy_operator_reasons as reasons
from tests.legacy_operator_walk import (
    LOD,
    NOT_RUN,
    RESULTS,
    UNDEFINED_WITH,
    attributes_of,
    prototypes,
)
from tools import legacy_operators

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    page = (ROOT / "docs" / "reference" / "program_desc.md").read_text()
    assert page == legacy_operators.markdown(), (
        "docs/reference/program_desc.md is out of date: run `make docs`"
    )


def test_every_operator_has_a_verdict():
    found = json.loads(RESULTS.read_text())
    judged = {type for type in found if not type.endswith("_grad")}
    assert judged == prototypes().keys()
    assert {f"{type}_grad" for type in ("relu", "matmul_v2", "batch_norm")} <= found.keys()


def test_every_attribute_has_a_verdict():
    found = json.loads(RESULTS.read_text())
    for type, proto in prototypes().items():
        rows = {type: {*attributes_of(proto), "", LOD}, f"{type}_grad": {*attributes_of(proto), ""}}
        for name, judged in rows.items():
            if name in found and not found[type][""].startswith(NOT_RUN):
                assert found[name].keys() == judged, name


def test_every_verdict_is_a_result_or_a_reason():
    """A walk finds the verdicts again that an error or a crash of Paddle is the reason of."""
    known = [*UNDEFINED_WITH.values(), *map(reasons.known_reason, prototypes().values())]
    error = r"\w+"
    texts = [
        *("translated", "as it is: .+", "refused: .+", "from none", "from inputs", "never"),
        *(f"{NOT_RUN}{re.escape(each)}" for each in set(known) if each),
        f"{NOT_RUN}{reasons.RAISES}{error}",
        f"{NOT_RUN}{reasons.RANDOM}",
        f"{NOT_RUN}{reasons.CRASHES}SIG(SEGV|ABRT|FPE|BUS)",
        f"{NOT_RUN}Paddle raises {error} for every other value",
        f"{NOT_RUN}{reasons.NO_OTHER}",
    ]
    pattern = re.compile("|".join(texts))
    rows = json.loads(RESULTS.read_text())
    wrong = {
        (type, name): text
        for type, row in rows.items()
        for name, text in row.items()
        if not pattern.fullmatch(text)
    }
    assert not wrong


def test_reasons_are_those_of_the_registries_of_paddle():
    found = json.loads(RESULTS.read_text())
    for type, proto in prototypes().items():
        reason = reasons.known_reason(proto)
        if reason and found[type][""].startswith(NOT_RUN):
            assert found[type] == {"": f"{NOT_RUN}{reason}"}


def test_the_operators_that_write_a_lod_are_known():
    uses = {type: row[LOD] for type, row in json.loads(RESULTS.read_text()).items() if LOD in row}
    assert all(lod.produces_lod(type) for type, use in uses.items() if use == "from none")
    assert {uses[type] for type in lod.DROPS & uses.keys()} == {"never"}
    assert lod.DROPS - uses.keys() <= {"roi_pool"}
