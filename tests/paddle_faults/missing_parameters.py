"""A predictor of a PIR program without its parameter file computes with unwritten memory."""

import os
import tempfile

import numpy as np
from paddle import inference
from saved_program import saved


def fault() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = saved(folder)
        os.remove(f"{path}.pdiparams")
        try:
            config = inference.Config(f"{path}.json", f"{path}.pdiparams")
            predictor = inference.create_predictor(config)
            predictor.get_input_handle("x").copy_from_cpu(np.ones([2, 3], "float32"))
            predictor.run()
        except (RuntimeError, ValueError, OSError):
            return ""
    return "it runs, without an error"


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
