"""Models from other frameworks: a detector exported by X2Paddle, in a client's own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph.frontends.predictor import hook as predictor_hook
from tests.frontends.predictor.test_hook import config_of
from tests.x2paddle_export import CLASSES, export

ROOT = Path(__file__).parents[3]
SIZE = 96

CLIENT = textwrap.dedent(
    """
    import json, sys
    import numpy as np
    import paddle
    from paddle.inference import Config, create_predictor
    {line}

    def letterbox(picture, size):
        height, width = picture.shape[:2]
        scale = size / max(height, width)
        rows = (np.arange(int(height * scale)) / scale).astype(int)
        columns = (np.arange(int(width * scale)) / scale).astype(int)
        canvas = np.full([size, size, 3], 114, "uint8")
        canvas[: len(rows), : len(columns)] = picture[rows][:, columns]
        return np.ascontiguousarray(canvas.transpose(2, 0, 1)[None].astype("float32") / 255), scale

    class Detector:
        def __init__(self, prefix, size):
            config = Config(prefix + ".json", prefix + ".pdiparams")
            config.disable_glog_info()
            {settings}
            self.predictor, self.size = create_predictor(config), size
            self.input = self.predictor.get_input_handle(self.predictor.get_input_names()[0])
            self.output = self.predictor.get_output_handle(self.predictor.get_output_names()[0])

        def __call__(self, picture):
            image, scale = letterbox(picture, self.size)
            self.input.copy_from_cpu(image)
            self.predictor.run()
            raw = self.output.copy_to_cpu()
            rows = raw[0].T
            center, extent, scores = rows[:, :2], rows[:, 2:4], rows[:, 4:]
            boxes = np.concatenate([center - extent / 2, center + extent / 2], 1) / scale
            best, labels = scores.max(1), scores.argmax(1)
            likely = best > np.quantile(best, 0.6)
            kept = paddle.vision.ops.nms(
                paddle.to_tensor(boxes[likely]), 0.85, paddle.to_tensor(best[likely]),
                paddle.to_tensor(labels[likely]), list(range(scores.shape[1])), top_k=20,
            ).numpy()
            found = [boxes[likely][kept], best[likely][kept], labels[likely][kept]]
            return raw.tolist(), [each.tolist() for each in found]

    paddle.disable_static()
    detector = Detector(sys.argv[1], int(sys.argv[2]))
    pictures = [np.load(path) for path in sys.argv[3:]]
    answers = [detector(picture) for picture in pictures]
    stats = sys.modules["paddle_ngraph"].stats() if "paddle_ngraph" in sys.modules else None
    print("answers" + json.dumps([answers, stats]))
    """
)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Exported by a process of its own, as X2Paddle is one."""
    folder = tmp_path_factory.mktemp("x2paddle")
    code = f"import pathlib, tests.x2paddle_export as x; x.export(pathlib.Path({str(folder)!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, check=True, timeout=300
    )
    return str(folder / "inference_model" / "model")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    paths = []
    for number, (height, width) in enumerate([(96, 96), (61, 130), (203, 87)]):
        random = np.random.default_rng(number)
        coarse = random.integers(0, 256, [height // 20 + 1, width // 20 + 1, 3], "uint8")
        picture = coarse.repeat(20, 0).repeat(20, 1)[:height, :width]
        np.save(folder / f"{number}.npy", picture)
        paths.append(str(folder / f"{number}.npy"))
    return paths


def serve(prefix, pictures, line="", settings="pass", **environment):
    """Runs the client. Returns its answers and the engine's counters."""
    script = CLIENT.format(line=line, settings=settings)
    settings = {"FLAGS_ngraph_cache_dir": "", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, prefix, str(SIZE), *pictures],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("answers")[2])


LINE = "import paddle_ngraph; paddle_ngraph.enable()"


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize(
    ("line", "environment"),
    [
        (LINE, {}),
        (LINE, {"FLAGS_ngraph_num_threads": "3"}),
        ("import paddle_ngraph", {"FLAGS_use_ngraph": "1"}),
    ],
)
def test_the_clients_own_code_with_the_line_added(prefix, pictures, line, environment):
    expected, _ = serve(prefix, pictures, settings="config.disable_onednn()")
    found, stats = serve(prefix, pictures, line, **environment)
    assert stats["engine_runs"] == len(pictures), "the engine did not run"
    for (raw, detections), (right, wanted) in zip(found, expected):
        assert np.shape(raw) == (1, 4 + CLASSES, 189)
        np.testing.assert_allclose(raw, right, rtol=1e-4, atol=1e-4)
        boxes, scores, labels = detections
        assert labels == wanted[2]
        assert len(labels) >= 5
        np.testing.assert_allclose(scores, wanted[1], rtol=1e-4)
        np.testing.assert_allclose(boxes, wanted[0], rtol=1e-4, atol=1e-2)


@pytest.mark.slow("starts a process")
def test_without_the_line_paddle_cannot_run_it_as_it_comes(prefix, pictures):
    """Which is why its users had to stay below Paddle 3.3."""
    script = CLIENT.format(line="", settings="pass")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, prefix, str(SIZE), *pictures],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    assert "ConvertPirAttribute2RuntimeAttribute not support" in done.stderr


def test_all_of_it_is_one_interval(prefix):
    report = paddle_ngraph.explain(config_of((f"{prefix}.json", f"{prefix}.pdiparams")))
    assert (report.share, len(report.intervals), report.why_native) == (1.0, 1, None)


@pytest.mark.slow("compiles many or large functions")
def test_the_written_layer_and_the_exported_model_agree(tmp_path):
    """Checks the export: the layer computes equal results in dynamic mode."""
    from tests import x2paddle_export

    paddle.disable_static()
    try:
        prefix = export(tmp_path / "again", size=64, width=4)
        layer = x2paddle_export._layer(tmp_path / "again")
        layer.set_dict(paddle.load(str(tmp_path / "again" / "model.pdparams")))
        layer.eval()
        image = np.random.default_rng(4).random([1, 3, 64, 64], "float32")
        expected = layer(paddle.to_tensor(image)).numpy()
    finally:
        paddle.enable_static()
    paddle_ngraph.enable()
    predictor = predictor_hook.create_predictor(
        config_of((f"{prefix}.json", f"{prefix}.pdiparams"))
    )
    predictor.get_input_handle("x0").copy_from_cpu(image)
    predictor.run()
    found = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
    assert paddle_ngraph.stats()["engine_runs"] == 1
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
