"""Transformers and recurrent networks: inference, training, and texts of every length."""

from __future__ import annotations

import pytest

from tests.models import zoo
from tests.models.checking import check

STEPS = 20


@pytest.mark.parametrize("make", zoo.OF_WORDS.values(), ids=zoo.OF_WORDS)
def test_inference(make):
    check(make())


@pytest.mark.slow("runs whole networks")
@pytest.mark.parametrize("make", zoo.OF_WORDS.values(), ids=zoo.OF_WORDS)
def test_training(make):
    check(make(steps=STEPS))


@pytest.mark.slow("runs whole networks")
@pytest.mark.parametrize("make", zoo.OF_WORDS.values(), ids=zoo.OF_WORDS)
def test_inference_of_any_number_of_texts_of_any_length(make):
    check(make(dynamic="batch and length"))


@pytest.mark.slow("runs whole networks")
@pytest.mark.parametrize("name", ["BERT", "LSTM"])
def test_training_with_any_number_of_texts(name):
    check(zoo.OF_WORDS[name](steps=4, dynamic="batch"))
