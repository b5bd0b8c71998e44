"""The application of ray_service.yaml: the model that the image has saved with its functions."""

from __future__ import annotations

import paddle_ngraph.ray

app = paddle_ngraph.ray.application(
    "served/model",
    shapes=[{"x": [1, 256]}, {"x": [8, 256]}, {"x": [32, 256]}],
    max_batch_size=32,
    num_cpus=2,
    num_replicas=4,
)
