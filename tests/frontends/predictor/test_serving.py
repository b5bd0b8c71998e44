"""Under load: clones in threads, and processes, answer 10,000 requests of mixed shapes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import serving
from tests.frontends.predictor.test_hook import convnet, save

# Together 10,000.
REQUESTS = {"threads": 4000, "spawned": 3000, "forked": 3000}
MOST_GROWTH_MB = 16


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize("way", REQUESTS)
def test_every_answer_is_right_and_memory_flat(tmp_path, way):
    root = Path(serving.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, serving.__file__, way, *save(tmp_path, convnet), str(REQUESTS[way])],
        env={**os.environ, "FLAGS_ngraph_min_interval_us": "0", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    found = re.search(r"runs=(\d+) parts=(\d+) wrong=(\d+) grown=(\S+)", done.stdout)
    assert found, done.stderr
    runs, parts, wrong = map(int, found.groups()[:3])
    assert (runs, wrong) == (REQUESTS[way], 0)
    assert parts == 2 * (serving.CLONES if way == "threads" else serving.PROCESSES)
    assert float(found[4]) < MOST_GROWTH_MB
