"""The networks of PaddleX's document pipelines: natively and through the engine.

    python -m benchmarks.paddlex_networks --only UVDoc

Definitions are those of PaddleX 3.7 (its engine ``paddle_dynamic``), with random weights: model
hubs have the trained ones. It needs the environment of ``make serve-test``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import report

RESULTS = Path(__file__).with_name("results")
PACKAGE = "paddlex.inference.models"
TOPIC = "paddlex_networks"
THREADS = 1  # processor time would count threads that wait for each other
ROUNDS, MAX_ROUNDS, SECONDS = 3, 15, 5.0  # more rounds than the first number until so long
NUDGES = 2
EXPLANATION = f"""\
The networks of PaddleX 3.7's document pipelines, as PaddleX itself defines them, with random
weights (model hubs have the trained ones) and inputs of the published sizes. Most are exported by
`paddle.jit.to_static` and run by Paddle Inference on one thread: *plain* without oneDNN,
*oneDNN* with it, *engine* after `paddle_ngraph.enable()`. Decoders whose loops read values in
Python cannot be exported, and exports of the detectors fail in Paddle's kernel for `transpose`
([`transpose_of_first_axes`](../../docs/development/paddle_faults.md)). These run in dynamic mode,
natively and after `enable(dynamic=True)`, with `FLAGS_ngraph_tuning_ms=-1`: by default such a
network is compiled once that takes a tenth of the time that it has run.
Processor time of a run, the median of {ROUNDS} to {MAX_ROUNDS} after two others, the modes in turn.
*Apart* is the largest difference from plain, as a share of the largest value; *rounding* is that of
plain runs themselves, from inputs that differ in their last bit."""


@dataclass(frozen=True)
class Network:
    """A network of PaddleX.

    Attributes:
        pipeline: The steps of pipelines that use it.
        definition: Its class, by module and name.
        configuration: The class of its settings, by module and name.
        inputs: Shapes of its inputs; for a detector, the image is the second one.
        settings: Settings other than the defaults.
        exports: Whether it runs in Paddle Inference; otherwise in dynamic mode.
        remark: A remark on what is measured.
    """

    pipeline: str
    definition: str
    configuration: str
    inputs: Sequence[tuple[int, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    exports: bool = True
    remark: str = ""


def _detector(pipeline: str, module: str, name: str, settings: str, size: int) -> Network:
    inputs = [(1, 2), (1, 3, size, size), (1, 2)]
    folder = "object_detection.modeling"
    settings = f"{folder}._config_{settings}"
    return Network(pipeline, f"{folder}.{module}.{name}", settings, inputs, exports=False)


_CLASSES, _TEXT = "image_classification.modeling", "text_detection.modeling"
_TABLES, _FORMULAS = "table_structure_recognition.modeling", "formula_recognition.modeling"
NETWORKS = {
    "PP-LCNet_x1_0": Network(
        "orientation of pages, classes of tables",
        f"{_CLASSES}.pplcnet.PPLCNet",
        f"{_CLASSES}._config.PPLCNetConfig",
        [(1, 3, 224, 224)],
    ),
    "PP-LCNet_x0_25": Network(
        "orientation of lines",
        f"{_CLASSES}.pplcnet.PPLCNet",
        f"{_CLASSES}._config.PPLCNetConfig",
        [(1, 3, 80, 160)],
        {"scale": 0.25},
    ),
    "PP-OCRv5_mobile_det": Network(
        "text, and seals by mobile networks",
        f"{_TEXT}.pp_ocrv5_mobile_det.PPOCRV5MobileDet",
        f"{_TEXT}._config_pp_ocrv5_mobile.PPOCRV5MobileDetConfig",
        [(1, 3, 640, 640)],
    ),
    "SLANet": Network(
        "structure of tables",
        f"{_TABLES}.slanet.SLANet",
        f"{_TABLES}._config_slanet.SLANetConfig",
        [(1, 3, 488, 488)],
        {"max_text_length": 50},
        exports=False,
        remark="51 steps of the decoder",
    ),
    "UVDoc": Network(
        "unwarping of pages",
        "image_unwarping.modeling.uvdoc.UVDocNet",
        "image_unwarping.modeling._config.UVDocConfig",
        [(1, 3, 712, 488)],
    ),
    "PP-OCRv5_server_det": Network(
        "text, and seals by server networks",
        f"{_TEXT}.pp_ocrv5_server_det.PPOCRV5ServerDet",
        f"{_TEXT}._config_pp_ocrv5_server.PPOCRV5ServerDetConfig",
        [(1, 3, 640, 640)],
    ),
    "RT-DETR-L": _detector(
        "cells of tables, layout", "rt_detr", "RTDETR", "rt_detr.RTDETRConfig", 640
    ),
    "PP-DocLayoutV3": _detector(
        "layout", "pp_doclayout_v3", "PPDocLayoutV3", "pp_doclayout_v3.PPDocLayoutV3Config", 800
    ),
    "PP-FormulaNet": Network(
        "formulas",
        f"{_FORMULAS}.pp_formulanet.PPFormulaNet",
        f"{_FORMULAS}._config_pp_formulanet.PPFormulaNetConfig",
        [(1, 3, 512, 512)],
        {"text_config": {"max_position_embeddings": 17}},
        exports=False,
        remark="16 steps of the decoder",
    ),
}


@dataclass
class Measured:
    """The runs of one mode.

    Attributes:
        milliseconds: Processor time of each run.
        apart: The largest difference from the plain mode.
        failed: The error that ended it, if any.
    """

    milliseconds: list[float] = field(default_factory=list)
    apart: float = 0.0
    failed: str = ""


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"{PACKAGE}.{module}"), name)


def build(network: Network) -> Any:
    """Returns the layer, with random weights, for inference."""
    import paddle

    paddle.seed(0)
    layer = _class(network.definition)(_class(network.configuration)(**network.settings))
    layer.eval()
    return layer


def calibrate(layer: Any, inputs: Sequence[np.ndarray]) -> None:
    """Sets the statistics of batch normalizations to those of the inputs, as training does.

    Without that, values vanish on their way through layers with random weights.
    """
    import paddle

    def set_statistics(norm: Any, given: Any) -> Any:
        (x,) = given
        axes = [axis for axis in range(x.ndim) if axis != 1]
        state = norm.state_dict()
        state["_mean"].set_value(x.mean(axes))
        state["_variance"].set_value(x.var(axes) + 1e-3)

    kinds = (paddle.nn.BatchNorm1D, paddle.nn.BatchNorm2D, paddle.nn.BatchNorm)
    norms = [each for each in layer.sublayers() if isinstance(each, kinds)]
    hooks = [norm.register_forward_pre_hook(set_statistics) for norm in norms]
    with paddle.no_grad():
        layer(inputs)
    for hook in hooks:
        hook.remove()


def arrays(network: Network) -> list[np.ndarray]:
    """Returns inputs: pictures, and for a detector the size and the scale of one."""
    generator = np.random.default_rng(0)
    if len(network.inputs) == 1:
        return [generator.standard_normal(network.inputs[0], dtype="float32")]
    image = generator.standard_normal(network.inputs[1], dtype="float32")
    size = np.array([network.inputs[1][2:]], "float32")
    return [size, image, np.ones_like(size)]


def export(layer: Any, inputs: Sequence[np.ndarray], prefix: str) -> None:
    """Saves a layer of PaddleX, whose ``forward`` converts arrays to tensors and back."""
    import paddle

    class Exported(paddle.nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, tensors: Any) -> Any:
            return self.layer.forward(tensors)

    specs = [
        paddle.static.InputSpec(array.shape, "float32", f"x{i}") for i, array in enumerate(inputs)
    ]
    exported = Exported()
    exported.eval()

    def unchanged(self: Any) -> Any:
        return self

    value = paddle.pir.Value
    with (
        mock.patch.object(value, "numpy", unchanged, create=True),
        mock.patch.object(value, "cpu", unchanged, create=True),
    ):
        paddle.jit.save(exported, prefix, input_spec=[specs])


def predictor(prefix: str, onednn: bool) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Returns a function that runs a saved model by Paddle Inference."""
    from paddle.inference import Config, create_predictor

    config = Config(f"{prefix}.json", f"{prefix}.pdiparams")
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(THREADS)
    config.enable_onednn() if onednn else config.disable_onednn()
    created = create_predictor(config)

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        for name in created.get_input_names():
            created.get_input_handle(name).copy_from_cpu(inputs[int(name[1:])])
        created.run()
        names = created.get_output_names()
        return [created.get_output_handle(name).copy_to_cpu() for name in names]

    return run


def measure(network: Network) -> dict[str, Any]:
    """Measures a network in all modes."""
    import paddle

    import paddle_ngraph

    paddle.disable_static()
    paddle.set_flags({"FLAGS_ngraph_num_threads": THREADS, "FLAGS_ngraph_tuning_ms": -1})
    layer, inputs, result = build(network), arrays(network), {}
    calibrate(layer, inputs)
    runs: dict[str, Callable[[Sequence[np.ndarray]], list[np.ndarray]]] = {}
    # The files are needed until the first run by the engine, which reads them again.
    with tempfile.TemporaryDirectory() as folder:
        if network.exports:
            prefix = f"{folder}/network"
            export(layer, inputs, prefix)
            config = paddle.inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
            config.disable_onednn()
            found = paddle_ngraph.explain(config)
            reasons = Counter((op.type, op.reason) for op in found.native)
            result = {
                "share": found.share,
                "subgraphs": len(found.intervals),
                "native": [[*key, count] for key, count in reasons.most_common()],
            }
            runs = {mode: predictor(prefix, mode == "oneDNN") for mode in ("plain", "oneDNN")}
            runs["engine"] = predictor(prefix, False)
        else:

            def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
                with paddle.no_grad():
                    return [np.asarray(output) for output in layer(inputs)]

            runs = {"plain": run, "engine": run}
        paddle_ngraph.disable()
        rounding = _rounding(runs["plain"], inputs)
        before = paddle_ngraph.stats()["engine_runs"]
        measured = _alternately(runs, inputs, not network.exports)
        engine_runs = paddle_ngraph.stats()["engine_runs"] - before
    if engine_runs == 0:
        raise SystemExit("the engine has not run")
    return {
        **result,
        "rounding": rounding,
        "engine runs": engine_runs,
        "modes": {mode: vars(each) for mode, each in measured.items()},
    }


def _rounding(run: Callable[[Sequence[np.ndarray]], list[np.ndarray]], inputs: Any) -> float:
    """Returns how far results part if inputs change by a unit in the last place."""
    generator = np.random.default_rng(1)
    try:
        expected = [output.copy() for output in run(inputs)]
    except Exception:  # the measurement reports it
        return float("nan")
    found = 0.0
    for _ in range(NUDGES):
        sides = [generator.choice([-np.inf, np.inf], a.shape).astype(a.dtype) for a in inputs]
        found = max(found, _apart(expected, run(list(map(np.nextafter, inputs, sides)))))
    return found


def _alternately(
    runs: Mapping[str, Callable[[Sequence[np.ndarray]], list[np.ndarray]]],
    inputs: Sequence[np.ndarray],
    dynamic: bool,
) -> dict[str, Measured]:
    import paddle_ngraph

    measured = {mode: Measured() for mode in runs}
    expected: list[np.ndarray] | None = None
    # In dynamic mode the engine's first calls decide whether layers are compiled.
    first, end = 8 if dynamic else 2, 0.0
    for number in range(first + MAX_ROUNDS):
        if number == first:
            end = time.perf_counter() + SECONDS
        if number >= first + ROUNDS and time.perf_counter() > end:
            break
        for mode, run in runs.items():
            each = measured[mode]
            if each.failed or (number < first and number > 1 and mode != "engine"):
                continue
            (paddle_ngraph.enable if mode == "engine" else paddle_ngraph.disable)(
                **({"dynamic": True} if dynamic and mode == "engine" else {})
            )
            try:
                start = time.process_time()
                outputs = run(inputs)
                milliseconds = 1e3 * (time.process_time() - start)
            except Exception as error:
                each.failed = f"{type(error).__name__}: {str(error).strip()[-200:]}"
                continue
            finally:
                paddle_ngraph.wait_for_compiles()
                paddle_ngraph.disable()
            expected = expected or outputs
            each.apart = float(np.maximum(each.apart, _apart(expected, outputs)))  # NaN stays
            if number >= first:
                each.milliseconds.append(milliseconds)
    return measured


def _apart(expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> float:
    if [array.shape for array in expected] != [array.shape for array in found]:
        return float("inf")
    scales = [max(float(np.abs(array).max(initial=0)), 1e-30) for array in expected]
    return max(
        float(np.abs(a.astype("float64") - b).max(initial=0)) / scale
        for a, b, scale in zip(expected, found, scales)
    )


def _write(found: Mapping[str, Any], output: Path) -> None:
    header = ["", "used for", "plain (ms)", "oneDNN (ms)", "engine (ms)", "plain by engine"]
    header += ["apart", "rounding", "operators in the engine"]
    rows, reasons = [], []
    for name, data in found.items():
        network = NETWORKS[name]
        modes = {mode: Measured(**values) for mode, values in data["modes"].items()}
        medians = {
            mode: statistics.median(each.milliseconds)
            for mode, each in modes.items()
            if each.milliseconds
        }
        cells = [
            f"{medians[mode]:.0f}" if mode in medians else ("fails" if mode in modes else "-")
            for mode in ("plain", "oneDNN", "engine")
        ]
        both = "plain" in medians and "engine" in medians
        ratio = f"{medians['plain'] / medians['engine']:.1f}x" if both else "-"
        share = (
            f"{data['share']:.1%}, {data['subgraphs']} subgraphs" if "share" in data else "dynamic"
        )
        title = f"{name}, {network.remark}" if network.remark else name
        apart, rounding = modes["engine"].apart, data.get("rounding", float("nan"))
        numbers = [ratio, f"{apart:.0e}", "-" if np.isnan(rounding) else f"{rounding:.0e}"]
        rows.append([title, network.pipeline, *cells, *numbers, share])
        if network.exports:
            reasons += [f"- {name}: {n} x `{kind}`: {why}" for kind, why, n in data["native"]]
        reasons += [
            f"- {name}, {mode}: {each.failed}" for mode, each in modes.items() if each.failed
        ]
    sections = [EXPLANATION, report.table(header, rows), "## What stays native, and why"]
    sections.append("\n".join(reasons) or "Nothing.")
    command = f"python -m benchmarks.{TOPIC}"
    title = "Networks of PaddleX's pipelines"
    report.write(output, TOPIC, title, sections, {"networks": dict(found)}, None, command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NETWORKS, help="keeps other results")
    parser.add_argument("--output", type=Path, default=RESULTS, help="(default: %(default)s)")
    options = parser.parse_args()
    for name in options.only or NETWORKS:
        values = measure(NETWORKS[name])
        print(name, json.dumps(values)[:600], flush=True)
        found = report.earlier(options.output, TOPIC).get("networks", {})
        found[name] = values
        _write({key: found[key] for key in NETWORKS if key in found}, options.output)


if __name__ == "__main__":
    main()
