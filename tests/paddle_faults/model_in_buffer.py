"""A PIR program that a predictor gets in a buffer ends the process."""

import tempfile
from pathlib import Path

from endings import ending
from paddle import inference
from saved_program import saved


def create() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = saved(folder)
        program = Path(f"{path}.json").read_text()
        parameters = Path(f"{path}.pdiparams").read_bytes()
    config = inference.Config()
    config.set_model_buffer(program, len(program), parameters, len(parameters))
    inference.create_predictor(config)


def fault() -> str:
    return ending(create)


if __name__ == "__main__":
    found = fault()
    print(f"FAULT: {found}" if found else "OK")
