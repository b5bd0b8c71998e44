"""A driver of Ray that classifies a folder of pictures into Parquet files, and resumes."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import ray
import ray.data

import paddle_ngraph
import paddle_ngraph.ray

SIDE, BATCH = 16, 4


class LoggingPredictor(paddle_ngraph.ray.Predictor):
    """Appends the pictures of each batch, and the counters of the actor, to a file."""

    def __init__(self, model: str, log: str) -> None:
        super().__init__(model, inputs={"image": "x"}, outputs=None)
        self._log = log

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = super().__call__(batch)
        paddle_ngraph.wait_for_compiles()
        line = {"paths": list(map(str, batch["path"])), "engine": 0, "pid": os.getpid()}
        line["engine"] = paddle_ngraph.stats()["engine_runs"]
        with open(self._log, "a") as file:
            file.write(json.dumps(line) + "\n")
        return found


def normalized(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    pixels = batch["image"].astype("float32").transpose(0, 3, 1, 2) / 255
    return {"path": batch["path"], "image": np.ascontiguousarray(pixels)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    ray.init()
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = ray.data.checkpoint.CheckpointConfig(
        "path", str(folder / "done"), delete_checkpoint_on_success=False
    )
    pictures = ray.data.read_images(
        str(folder / "pictures"),
        size=(SIDE, SIDE),
        include_paths=True,
        override_num_blocks=len(list((folder / "pictures").iterdir())) // BATCH,
    )
    pictures.map_batches(normalized, batch_size=BATCH).map_batches(
        LoggingPredictor,
        fn_constructor_args=[str(folder / "model"), str(folder / "log.jsonl")],
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=1,
        batch_size=BATCH,
    ).write_parquet(str(folder / "results"))


if __name__ == "__main__":
    main()
