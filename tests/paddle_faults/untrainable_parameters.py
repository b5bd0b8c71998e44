"""A model that was saved with ``trainable=False`` ends the process of a predictor."""

import tempfile

from endings import ending
from paddle import inference
from saved_program import saved


def create() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = saved(folder, trainable=False)
        inference.create_predictor(inference.Config(f"{path}.json", f"{path}.pdiparams"))


def fault() -> str:
    return ending(create)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
