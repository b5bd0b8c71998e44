"""Networks of ``paddle.vision.models``: inference and a training step of each family.

``python -m tests.models`` runs all of them, at their full size.
"""

from __future__ import annotations

import paddle
import pytest

from tests.models import zoo
from tests.models.checking import check


@pytest.mark.slow("runs whole networks")
@pytest.mark.parametrize("name", [*zoo.FAMILIES, "mobilenet_v3_large", "shufflenet_v2_swish"])
def test_inference(name):
    outcome = check(zoo.vision(name))
    assert outcome.report.share == 1


@pytest.mark.slow("runs whole networks")
@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_a_training_step(name):
    check(zoo.vision_training(name, short=True))


@pytest.mark.slow("runs whole networks")
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_the_number_and_size_of_pictures_may_change_from_run_to_run(name):
    check(zoo.vision(name, dynamic=True))


def test_the_constructors_are_all_of_them():
    assert {"resnet50", "mobilenet_v3_large", "LeNet", "inception_v3"} <= set(zoo.CONSTRUCTORS)
    assert len(zoo.CONSTRUCTORS) >= 39
    assert set(zoo.FAMILIES) <= set(zoo.CONSTRUCTORS)
    assert all(hasattr(paddle.vision.models, name) for name in zoo.CONSTRUCTORS)
