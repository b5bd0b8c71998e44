"""A server of MobileNetV2: the five likeliest classes of a picture, and their probabilities."""

from __future__ import annotations

import numpy as np
from PIL import Image

from demos.serving_demo import application
from demos.serving_demo.application import Answer, Model
from demos.serving_demo.models import CLASSIFIER, SIDE
from demos.serving_demo.settings import Settings

MEAN = np.array([0.485, 0.456, 0.406], "float32")
DEVIATION = np.array([0.229, 0.224, 0.225], "float32")
LIKELIEST = 5


def load(settings: Settings) -> Model:
    predictor = application.predictor(settings, CLASSIFIER)
    application.warm(settings, CLASSIFIER, predictor)

    def answer(picture: Image.Image) -> Answer:
        pixels = np.asarray(picture.resize((SIDE, SIDE)), "float32") / 255
        data = ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)[None]
        (scores,) = application.run(predictor, np.ascontiguousarray(data))
        likeliest = np.argsort(-scores)[:LIKELIEST]
        return {"classes": likeliest.tolist(), "probabilities": scores[likeliest].tolist()}

    return answer


app = application.create(load)
