"""Results of saved models by Paddle's own predictor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import paddle

from paddle_ngraph import use_ngraph


def result(prefix: Path | str, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """The only output of a saved model."""
    config = paddle.inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
    config.disable_glog_info()
    with use_ngraph(False):
        predictor = paddle.inference.create_predictor(config)
        for name, array in inputs.items():
            handle = predictor.get_input_handle(name)
            handle.reshape(list(array.shape))
            handle.copy_from_cpu(np.ascontiguousarray(array))
        predictor.run()
        (name,) = predictor.get_output_names()
        return predictor.get_output_handle(name).copy_to_cpu()
