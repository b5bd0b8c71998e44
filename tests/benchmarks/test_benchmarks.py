"""The benchmarks measure, check results, and write the measurements."""

from __future__ import annotations

import json
import os
from itertools import chain

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import comparison, ocr_widths, profile, report, revisions, serving, to_static, works
from benchmarks.comparison import Column, Row
from benchmarks.peers import Results
from benchmarks.worker import PeerError, Worker
from paddle_ngraph.conversion import processor


def run(tmp_path, *arguments: str) -> dict:
    assert command.main([*arguments, "--quick", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob(f"{arguments[0]}_*.json")
    return json.loads(path.read_text())


@pytest.mark.slow("measures in processes of its own")
def test_training(tmp_path):
    data = run(tmp_path, "training", "--models", "lenet", "--peers", "engine", "paddle", "function")
    (row,) = data["rows"]
    assert row["model"] == "lenet"
    engine, paddle = row["columns"]["engine"], row["columns"]["paddle"]
    assert engine["notes"]["engine_runs"] > 0
    assert 0 < engine["error"] < 1
    assert paddle["ratio"] == pytest.approx(paddle["median_ms"] / engine["median_ms"])
    assert row["columns"]["function"]["median_ms"] > 0
    page = (tmp_path / "training.md").read_text()
    assert "| LeNet-5, 28 x 28, batch 64, momentum |" in page
    assert f"- cores: {len(os.sched_getaffinity(0))}" in page


@pytest.mark.slow("measures in processes of its own")
def test_inference(tmp_path):
    names = ("engine", "function", "predictor-onednn")
    data = run(tmp_path, "inference", "--models", "mobilenet_v2", "--peers", *names)
    (row,) = data["rows"]
    assert row["columns"].keys() == set(names)
    assert all(column["error"] < 1 for column in row["columns"].values())
    assert row["columns"]["function"]["error"] > 0  # it computed the outputs itself
    assert row["columns"]["engine"]["notes"]["engine_runs"] > 0


@pytest.mark.slow("measures in processes of its own")
def test_precision(tmp_path):
    data = run(tmp_path, "precision", "--models", "cls")
    (found,) = data["precision"]
    assert found["f32_ms"] > 0 and found["bf16_ms"] > 0
    has_units = processor.has_bfloat16()
    assert (0 < found["mean_off"] < 0.1) if has_units else found["most_off"] == 0
    assert found["mean_off"] <= found["most_off"]
    assert "| PP-OCR orientation" in (tmp_path / "precision.md").read_text()


@pytest.mark.slow("measures in processes of its own")
def test_int8(tmp_path):
    (found,) = run(tmp_path, "int8", "--models", "rec")["models"]
    assert all(min(samples) > 0 for samples in found["turns_ms"].values())
    assert 0.9 < found["agreement"]["engine, int8"] <= 1
    assert min(found["right"].values()) > 0.5
    assert "| PP-OCRv4 recognition, 48 x 320 |" in (tmp_path / "int8.md").read_text()


@pytest.mark.slow("measures in processes of its own")
def test_int8_of_a_network_that_learns(tmp_path):
    (found,) = run(tmp_path, "int8", "--models", "mobilenet_v2")["models"]
    assert all(min(samples) > 0 for samples in found["turns_ms"].values())
    assert found["right"].keys() == found["turns_ms"].keys()


@pytest.mark.slow("measures in processes of its own")
def test_mixed_precision(tmp_path):
    data = run(tmp_path, "mixed_precision", "--models", "lenet")
    (found,) = data["works"]
    ways = ("bfloat16", "paddle.amp", "float32")
    samples = [found["turns_ms"][f"engine, {name}"] for name in ways]
    assert all(len(each) == 1 and each[0] > 0 for each in samples)
    assert (0 < found["loss_off"] < 0.05) == processor.has_bfloat16()
    assert "| LeNet-5, 28 x 28, batch 64" in (tmp_path / "mixed_precision.md").read_text()


@pytest.mark.slow("measures in processes of its own")
def test_convergence(tmp_path):
    data = run(tmp_path, "convergence")
    (found,) = data["tasks"]
    exact, ours = (found["accuracies"][name] for name in ("f32", "bf16"))
    assert len(exact) == len(ours) == 1
    assert exact[0] > 50, "five times the accuracy of guessing"
    assert abs(exact[0] - ours[0]) < 5
    assert "| MNIST" in (tmp_path / "convergence.md").read_text()


@pytest.mark.slow("measures in processes of its own")
def test_plan(tmp_path):
    everything = run(tmp_path, "plan")["plan"]
    for name, last in (("two_towers", "plan"), ("towers_trained_in_slices", "2 slices")):
        found = everything[name]
        assert found.keys() == {"native", "one function", last}
        assert all(way["ms"] > 0 and way["ratio"] > 0 for way in found.values())
        assert found["one function"]["ratio"] == 1 and found[last]["peak_mb"] > 1
    page = (tmp_path / "plan.md").read_text()
    assert "| two towers, batch 16 |" in page and "| two towers, batch 256, a step" in page


@pytest.mark.slow("measures in processes of its own")
def test_memory(tmp_path):
    found = run(tmp_path, "memory")["memory"]["training"]["rnn"]
    assert len(found) == 6
    assert all(item["peak_mb"] > 10 and item["ms"] > 0 for item in found.values())
    assert len({item["value"] for way, item in found.items() if way.startswith("native")}) == 1
    assert found["native"]["ratio"] == found["engine"]["ratio"] == 1
    assert (
        "| RNN of 256, unrolled over 64 steps, batch 32 |" in (tmp_path / "memory.md").read_text()
    )


@pytest.mark.slow("measures in processes of its own")
def test_rows_of_other_models_are_kept(tmp_path):
    peers = ("--peers", "engine", "paddle")
    run(tmp_path, "training", "--models", "mlp", *peers)
    data = run(tmp_path, "training", "--models", "lenet", *peers)
    assert [row["model"] for row in data["rows"]] == ["mlp", "lenet"]


ZEN_4 = {
    "processor": "AMD EPYC (family 25, model 17)",
    "vector units": "avx2, avx512f, avx512_bf16",
}
XEON = {
    "processor": "Intel(R) Xeon(R) Processor (family 6, model 167)",
    "vector units": "avx2, avx512f, avx512_bf16, amx_tile",
}


@pytest.mark.parametrize(
    "processor, units, name",
    [
        (*ZEN_4.values(), "Zen 4"),
        (*XEON.values(), "Xeon AMX"),
        ("AMD EPYC (family 25, model 1)", "avx2", "Zen 3"),
        ("AMD EPYC (family 26, model 2)", "avx2, avx512f", "Zen 5"),
        ("AMD EPYC (family 99, model 2)", "avx2, avx512f", "AMD 99 AVX-512"),
        ("AMD EPYC", "avx2", "AMD EPYC AVX2"),
        ("Intel(R) Core(TM) i7-1185G7 (family 6, model 140)", "avx2", "Core AVX2"),
        ("Neoverse-N1", "unknown", "Neoverse-N1"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_short_names_of_processors(processor, units, name):
    assert report.short_name({"processor": processor, "vector units": units}) == name


def written(folder, monkeypatch, machine, ratio, about="How fast it is.") -> str:
    """The page after a run on a processor, which draws a picture too."""
    monkeypatch.setattr(report, "environment", lambda: machine)
    rows = [["a network", "1.0", ratio]]
    header = ["", "ms", "ratio"]
    report.picture(folder, "speed").write_text("a picture")
    sections = [about, "## Numbers", report.table(header, rows)]
    beside = report.column(header, rows, "ratio")
    report.write(folder, "speed", "Speed", sections, {"rows": rows}, beside)
    return (folder / "speed.md").read_text()


def test_processors_stand_side_by_side(tmp_path, monkeypatch):
    alone = written(tmp_path, monkeypatch, ZEN_4, "4.00")
    assert "Side by side" not in alone and "## Zen 4" in alone
    (tmp_path / "speed_profile.json").write_text("{}")  # not of this topic
    both = written(tmp_path, monkeypatch, XEON, "8.00")
    assert "| ratio | Xeon AMX | Zen 4 |" in both and "| a network | 8.00 | 4.00 |" in both
    assert both.count("How fast it is.") == 1
    for name, machine in (("Zen 4", ZEN_4), ("Xeon AMX", XEON)):
        section = both.partition(f"## {name}\n\n### Numbers")[2]
        picture = f"speed_{name.lower().replace(' ', '_')}.png"
        assert f"]({picture})" in section and (tmp_path / picture).exists()
        assert f"- processor: {machine['processor']}" in section and "- date: 20" in section


def test_a_run_replaces_the_results_of_its_own_processor(tmp_path, monkeypatch):
    for machine, ratio in ((ZEN_4, "4.00"), (XEON, "8.00"), (ZEN_4, "5.00")):
        page = written(tmp_path, monkeypatch, machine, ratio, f"Measured to be {ratio}.")
    assert "| a network | 8.00 | 5.00 |" in page and "4.00" not in page
    assert page.count("Measured to be ") == 2  # each with its own
    assert report.earlier(tmp_path, "speed")["rows"] == [["a network", "1.0", "5.00"]]
    monkeypatch.setattr(report, "environment", lambda: {**ZEN_4, "cores": "64"})
    assert report.earlier(tmp_path, "speed") == {}


def test_pages_are_of_the_results_beside_them(tmp_path):
    """Nobody edits them by hand."""
    for page in report.FOLDER.glob("*.md"):
        for path in report.FOLDER.glob(f"{page.stem}_*"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
        report.render(tmp_path, page.stem)
        assert (tmp_path / page.name).read_text() == page.read_text()


# The other networks take long, or amplify rounding by their normalizations over small batches.
TRAINED = sorted({*works.TRAINING} - {"transformer", "bert-tuning", "resnet18", "mobilenet_v2"})


@pytest.mark.parametrize("model", TRAINED)
def test_pytorch_trains_the_same_network(model, tmp_path):
    pytest.importorskip("torch")
    work = works.TRAINING[model]
    (row,) = comparison.compare([work], ["torch"], comparison.Pace(1, 0.0), lambda text: None)
    assert row.columns["torch"].failed is None
    assert row.columns["torch"].error < 1


@pytest.mark.parametrize("model", ["resnet50", "mobilenet_v2"])
def test_pytorch_infers_the_same_network(model, tmp_path):
    pytest.importorskip("torch")
    work = works.inference(model, 1)
    (row,) = comparison.compare([work], ["torch"], comparison.Pace(1, 0.0), lambda text: None)
    assert row.columns["torch"].failed is None
    assert 0 < row.columns["torch"].error < 1


@pytest.mark.slow("measures in processes of its own")
def test_unsupported_workloads_of_a_peer_are_reported():
    work = works.TRAINING["mlp"]
    pace = comparison.Pace(1, 0.0)
    (row,) = comparison.compare([work], ["engine", "predictor"], pace, lambda text: None)
    assert row.columns["predictor"].failed == "PeerError: it does not train"
    assert row.ratio("predictor") is None
    assert row.ratio("engine") == 1


@pytest.mark.slow("measures in processes of its own")
def test_a_killed_peer_is_reported_and_the_others_are_measured(monkeypatch):
    asked = []

    class Ended(Worker):
        def ask(self, method, *arguments):
            asked.append(method)
            if asked.count("measure") == 4:  # the second one of the second peer
                self._process.kill()
            return super().ask(method, *arguments)

    monkeypatch.setattr(comparison, "Worker", Ended)
    work, pace = works.TRAINING["mlp"], comparison.Pace(3, 0.0)
    (row,) = comparison.compare([work], ["engine", "paddle"], pace, lambda text: None)
    assert len(row.columns["engine"].turns_ms) == 3
    assert "its process ended" in row.columns["paddle"].failed
    assert row.ratio("paddle") is None


def results(*values: float, change: float = 1.0) -> Results:
    return Results([np.array(v) for v in values], {"w": np.full(3, change)}, 0.0, {})


def test_difference_of_training():
    work = works.TRAINING["mlp"]
    expected = results(2.0, 1.0)
    assert comparison.difference(work, expected, expected) == 0
    off = 2.0 * work.tolerance
    assert comparison.difference(work, expected, results(2.0, 1.0 + off)) == pytest.approx(1)
    moved = results(2.0, 1.0, change=1 + 2 * work.drift)
    assert comparison.difference(work, expected, moved) == pytest.approx(2)
    assert not comparison.difference(work, expected, results(2.0, float("nan"))) <= 1


def test_difference_of_inference():
    work = works.inference("cls", 1)
    expected = Results([np.array([4.0, 0.0])], {}, 0.0, {})
    found = Results([np.array([4.0, 8 * work.tolerance])], {}, 0.0, {})
    assert comparison.difference(work, expected, found) == pytest.approx(2)
    other = Results([np.array([4.0])], {}, 0.0, {})
    assert comparison.difference(work, expected, other) == float("inf")


def test_ratios_are_medians_over_samples():
    columns = {"engine": Column([1.0, 10.0, 2.0]), "paddle": Column([4.0, 30.0, 4.0])}
    row = Row("m", "m", "a model", 1, {**columns, "torch": Column(failed="absent")})
    assert row.ratio("paddle") == 3
    assert row.best_ratio(["paddle", "torch"]) == 3
    assert row.best_ratio(["torch"]) is None
    assert Row.from_json(json.loads(json.dumps(row.to_json()))) == row


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.slow("measures in processes of its own")
def test_worker_has_its_settings_and_survives_errors(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with Worker({"FLAGS_paddle_num_threads": "3"}) as worker:
        assert worker.call(os.getenv, "OMP_NUM_THREADS") is None
        assert worker.call(os.getenv, "FLAGS_paddle_num_threads") == "3"
        with pytest.raises(PeerError, match="TypeError"):
            worker.call(add, 1)
        assert worker.call(add, 1, 2) == 3


def test_a_worker_that_ends_is_reported():
    with Worker({}) as worker, pytest.raises(PeerError, match="its process ended"):
        worker.call(os._exit, 3)


@pytest.mark.slow("measures in processes of its own")
def test_first_run(tmp_path):
    data = run(tmp_path, "first_run", "--models", "mobilenet_v2")
    times = data["first_run"]["mobilenet_v2"]
    assert times["warm"] < times["cold"]
    assert "| MobileNetV2, 224 x 224 |" in (tmp_path / "first_run.md").read_text()


@pytest.mark.slow("measures in processes of its own")
def test_requests(tmp_path):
    data = run(tmp_path, "requests")
    for ways in data["known"].values():
        times = [t for way in ways.values() for rounds in way.values() for t in chain(*rounds)]
        assert len(times) == 8 and all(min(each) > 0 for each in times)
    assert {len(each) for each in data["memory_mb"].values()} == {2}
    page = (tmp_path / "requests.md").read_text()
    assert "| MobileNetV2, 224 x 224: a predictor |" in page and "4 models in turn" in page


def test_widths():
    widths = ocr_widths.widths(500)
    assert widths == ocr_widths.widths(500)
    assert len(set(widths)) > 250
    assert min(widths) >= 48
    assert max(widths) <= 960


@pytest.mark.slow("measures in processes of its own")
def test_profile(capsys):
    assert profile.main(["--train", "lenet", "--top", "3"]) == 0
    page = capsys.readouterr().out
    assert "measured peak" in page and "conv2d" in page
    assert "Convolution" in page


def test_help_names_topics_and_models(capsys):
    with pytest.raises(SystemExit) as exit_info:
        command.main(["--help"])
    assert exit_info.value.code == 0
    page = capsys.readouterr().out
    for word in (*command.TOPICS, *works.TRAINING, "torch-compile", "--quick"):
        assert word in page


def test_unknown_topic(capsys):
    with pytest.raises(SystemExit):
        command.main(["infrence"])
    assert "unknown topic infrence: take inference" in capsys.readouterr().err


@pytest.mark.slow("measures in processes of its own")
def test_to_static(tmp_path):
    data = run(tmp_path, "to_static", "--models", "transformer")
    (row,) = data["training"]
    assert row["turns_ms"].keys() == {
        "dynamic",
        "to_static",
        "compile(), engine",
        'enable(dynamic="training"), engine',
        "to_static, engine",
        "program, engine",
    }
    (layer,) = data["layers"]
    layers = layer["turns_ms"]
    assert layers.keys() == {"dynamic", "compile(), engine", "enable(dynamic=True), engine"}
    loaded = data["inference"]["turns_ms"]
    assert loaded.keys() == {
        "jit.load",
        "jit.load, engine",
        "predictor, engine",
        "Executor, engine",
    }
    found = (row["turns_ms"], layers, loaded)
    times = [ms for by_variant in found for samples in by_variant.values() for ms in samples]
    assert len(times) == 13 and min(times) > 0
    assert "| Transformer, 4 layers of 256, 16 x 128 |" in (tmp_path / "to_static.md").read_text()


@pytest.mark.slow("measures in processes of its own")
def test_optimizers(tmp_path):
    rows = run(tmp_path, "optimizers")["rows"]
    assert len(rows) == 3
    for row in rows:
        assert row["turns_ms"].keys() - {"PyTorch"} == {"Paddle", "engine"}
        assert all(len(samples) == 1 and samples[0] > 0 for samples in row["turns_ms"].values())


def test_results_of_to_static_are_checked():
    row, expected = to_static.Row("a", "", 0.1), [np.array([4.0, 0.0])] * 2
    right, later = np.array([4.0, 0.001]), np.array([4.0, 0.2])
    to_static._check(row, "b", [right, later], expected)
    for wrong in ([later, right], [right, 3 * later], [right, right * float("nan")]):
        with pytest.raises(PeerError, match="a, b: off by"):
            to_static._check(row, "b", wrong, expected)


def test_ratios_of_to_static_are_medians_over_samples():
    row = to_static.Row(
        "m", "a model", turns_ms={"slow": [4.0, 30.0, 4.0], "fast": [1.0, 10.0, 2.0]}
    )
    assert row.ratio("slow", "fast") == 3
    assert row.milliseconds("slow") == 4


@pytest.mark.slow("measures in processes of its own")
def test_intervals(tmp_path):
    data = run(tmp_path, "intervals")
    assert [cell["chain"]["depth"] for cell in data["cells"]] == [1, 2]
    assert all(cell["engine"][0] > 0 and cell["onednn"][0] > 0 for cell in data["cells"])
    assert "| copysign | 8 x 14 x 14 | 1 |" in (tmp_path / "intervals.md").read_text()


@pytest.mark.slow("measures in processes of its own")
def test_decoder(tmp_path):
    ways = run(tmp_path, "decoder")["ms"]["1"]
    assert len(ways) == 5 and all(min(times) > 0 for times in ways.values())
    assert "| batch 8, engine, ids[:, i] = word |" in (tmp_path / "decoder.md").read_text()


@pytest.mark.slow("measures in processes of its own")
def test_generation(tmp_path):
    found = run(tmp_path, "generation")["ms"]
    assert list(found) == ["4 layers of 256", "8 layers of 512"]
    assert all(min(times) > 0 for way in found.values() for times in way.values())


@pytest.mark.slow("measures in processes of its own")
def test_ocr_decoders(tmp_path):
    found = run(tmp_path, "ocr_decoders")["ms"]
    assert list(found) == [
        f"{name}, 1" for name in ("NRTR", "LaTeX-OCR", "UniMERNet", "PP-FormulaNet")
    ]
    assert all(min(times) > 0 for way in found.values() for times in way.values())


def test_a_missing_paddleocr_is_reported_in_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command.paddleocr_pages, "is_installed", lambda: False)
    assert command.main(["paddleocr", "--output", str(tmp_path)]) == 1
    assert "PaddleOCR is not installed: `make paddleocr`" in capsys.readouterr().err


def test_the_throughput_of_the_engine_is_by_the_fastest_native_mode():
    loads = {"engine": serving.Load([6.0, 9.0, 4.0]), "plain": serving.Load([2.0, 3.0, 2.0])}
    loads |= {"oneDNN": serving.Load([3.0, 2.0, 1.0]), "other": serving.Load(failed="crashes")}
    assert serving._ratio(loads) == 2
    assert serving._ratio({**loads, "engine": serving.Load(failed="crashes")}) is None


@pytest.mark.parametrize(("count", "lower", "upper"), [(2, 1, 2), (6, 1, 6), (15, 4, 12)])
def test_the_interval_of_a_median_follows_from_ranks(count, lower, upper):
    assert revisions.interval_of_median([*range(count, 0, -1)]) == (lower, upper)
