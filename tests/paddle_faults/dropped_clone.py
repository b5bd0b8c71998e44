"""Dropping a clone of a predictor of a ProgramDesc program frees the weights of the others."""

import gc
import tempfile
from typing import Any

import numpy as np
import paddle
from endings import ending
from paddle import inference
from paddle.pir_utils import OldIrGuard
from saved_program import saved


def result(predictor: Any) -> np.ndarray:
    predictor.get_input_handle("x").copy_from_cpu(np.ones([2, 3], "float32"))
    predictor.run()
    return predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()


def drop() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with OldIrGuard():
            path = saved(folder)
        config = inference.Config(f"{path}.pdmodel", f"{path}.pdiparams")
        predictor = inference.create_predictor(config)
    before = result(predictor)
    paddle.disable_static()
    others = []
    for _ in range(20):
        clone = predictor.clone()
        result(clone)
        del clone
        gc.collect()
        others.append([paddle.full([3, 4], 7.0) for _ in range(1000)])  # in the freed memory
        assert (result(predictor) == before).all(), "the results change"


def fault() -> str:
    return ending(drop, filled_with=165)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
