"""Each test of the packed layers runs with both providers, by default in dynamic mode."""

from __future__ import annotations

from collections.abc import Iterator

import paddle
import pytest

from paddle_ngraph import _core, flags


@pytest.fixture(autouse=True, params=["onednn", "mkl"])
def provider(request: pytest.FixtureRequest, static_mode: None) -> Iterator[str]:
    name: str = request.param
    reason = _core.mkl_packed.why_unavailable(name)
    if reason:
        pytest.skip(reason)
    before = flags.get("mkl_packed_provider")
    flags.set("mkl_packed_provider", name)
    paddle.disable_static()
    yield name
    paddle.enable_static()
    flags.set("mkl_packed_provider", before)
