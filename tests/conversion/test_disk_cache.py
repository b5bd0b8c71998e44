"""Compiled functions on disk: found by the next process, and never used where they do not fit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import disk_cache
from paddle_ngraph.conversion.registry import converter, unregister
from tests.forgeries import forged
from tests.programs import Program, chain, floats, linear_regression
from tests.stored_functions import StoredFile, secret_path

ROOT = Path(__file__).parents[2]
X = floats(3, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate cache for each test, in which every function is worth a file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings = {"ngraph_cache_dir": str(tmp_path / "cache"), "ngraph_cache_min_ms": 0}
    before = {name: flags.get(name) for name in settings}
    for name, value in settings.items():
        flags.set(name, value)
    paddle_ngraph.clear_cache()
    yield tmp_path / "cache"
    for name, value in before.items():
        flags.set(name, value)
    paddle_ngraph.clear_cache()


def built_and_loaded() -> tuple[int, int]:
    stats = paddle_ngraph.stats()
    return stats["functions_built"], stats["functions_loaded"]


def start_anew() -> None:
    """Leaves the state of a new process: only the files remain."""
    paddle_ngraph.clear_cache()
    paddle_ngraph.reset_stats()


def run_twice(build: Any, **feed: np.ndarray) -> list[list[np.ndarray]]:
    """Runs a program that is built, then loaded; asserts that and returns both results."""
    results = []
    for expected in ((1, 0), (0, 1)):
        start_anew()
        program = Program(build)
        paddle.seed(5)
        results.append([program.run(**feed) for _ in range(3)][-1])
        assert paddle_ngraph.stats()["engine_runs"] == 3, "the engine did not run"
        assert built_and_loaded() == expected
    for first, second in zip(*results):
        np.testing.assert_array_equal(first, second)
    return results


def stored(folder: Path) -> Path:
    (path,) = folder.glob("*.ngraph")
    return path


# -- reuse ---------------------------------------------------------------------------------------


def test_a_loaded_function_gives_equal_results():
    run_twice(chain, x=X)


def test_a_function_with_constant_weights_is_loaded():
    def build() -> Any:
        return paddle.nn.Linear(4, 8)(paddle.static.data("x", [-1, 4], "float32"))

    run_twice(build, x=X)
    assert paddle_ngraph.stats()["functions_with_weights"] == 1


def test_training_continues_from_its_states():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 4], "float32")
        loss = paddle.mean(paddle.nn.Linear(4, 8)(x) ** 2)
        paddle.optimizer.Adam(0.1).minimize(loss)
        return loss

    run_twice(build, x=X)


def test_random_numbers_are_those_of_the_stream():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 4], "float32")
        return paddle.nn.functional.dropout(paddle.exp(x), 0.5) + 1.0

    results = run_twice(build, x=X)
    dropped = results[0][0] == 1.0
    assert dropped.any()
    assert not dropped.all()


def test_operators_of_the_core_are_loaded():
    def build() -> Any:
        image = paddle.static.data("image", [-1, 8, 9, 9], "float32")
        x = paddle.nn.functional.relu(paddle.nn.BatchNorm2D(16)(paddle.nn.Conv2D(8, 16, 3)(image)))
        x = paddle.nn.functional.max_pool2d(x, 2, 2)
        loss = paddle.mean(paddle.nn.LayerNorm(3)(x) ** 2)
        paddle.optimizer.Momentum(0.1).minimize(loss)
        return loss

    run_twice(build, image=floats(4, 8, 9, 9))


def test_loaded_functions_check_indices():
    def build() -> Any:
        ids = paddle.static.data("ids", [-1, 3], "int64")
        return paddle.nn.Embedding(10, 4)(ids) * 2.0

    run_twice(build, ids=np.array([[1, 2, 9]]))
    with pytest.raises(ValueError, match=r"(?s)embedding.* 10\b"):
        Program(build).run(ids=np.array([[1, 2, 10]]))
    assert built_and_loaded() == (0, 1)


def test_shapes_read_by_value_are_part_of_the_key():
    def build() -> Any:
        x = paddle.static.data("x", [-1, 4], "float32")
        shape = paddle.static.data("shape", [2], "int32")
        return paddle.reshape(paddle.exp(x), shape)

    feed = {"x": X, "shape": np.array([4, 3], "int32")}
    run_twice(build, **feed)
    (result,) = Program(build).run(x=X, shape=np.array([2, 6], "int32"))
    assert result.shape == (2, 6)
    assert built_and_loaded() == (1, 1)


def test_one_function_for_many_shapes_is_loaded():
    batches = (3, 5, 9, 6, 12)
    for expected in ((3, 0), (0, 3)):
        start_anew()
        program = Program(chain)
        for batch in batches:
            program.both(x=floats(batch, 4, seed=batch))
        assert built_and_loaded() == expected


@pytest.mark.slow("compiles many or large functions")
def test_a_function_from_disk_serves_sizes_within_its_guards():
    def head() -> Any:
        return paddle.static.data("x", [2, -1], "float32")[:, :47] * 2.0

    for expected in ((4, 0), (0, 4)):
        start_anew()
        program = Program(head)
        for length in (20, 30, 40, 46, 101, 33, 90):  # the last two found their functions before
            program.both(x=floats(2, length, seed=length))
        assert built_and_loaded() == expected


def test_shapes_found_on_disk_count():
    for batch in (3, 5):
        Program(chain).run(x=floats(batch, 4))
    start_anew()
    program = Program(chain)
    for batch in (3, 5, 9, 6):
        program.both(x=floats(batch, 4))
    assert built_and_loaded() == (1, 2)


def test_a_program_of_static_shapes_is_not_converted_again(monkeypatch):
    def build() -> Any:
        return paddle.exp(paddle.static.data("x", [3, 4], "float32")) * 3.0

    run_twice(build, x=X)
    from paddle_ngraph.conversion import bridge

    monkeypatch.setattr(bridge.NgraphBridge, "convert", lambda self: pytest.fail("converted"))
    start_anew()
    Program(build).run(x=X)
    assert built_and_loaded() == (0, 1)


# -- rejected files ------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    middle = len(data) // 4
    changed = {
        "empty": b"",
        "truncated": data[:-1],
        "cut": data[:middle],
        "longer": data + b"x",
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "foreign": b"something else" * 100,
    }[how]
    path.write_bytes(changed)


@pytest.mark.parametrize("how", ["empty", "truncated", "cut", "longer", "flipped", "foreign"])
def test_a_damaged_file_is_ignored_and_replaced(folder, how):
    run_twice(chain, x=X)
    damage(stored(folder), how)
    start_anew()
    Program(chain).both(x=X)
    assert built_and_loaded() == (1, 0)
    start_anew()
    Program(chain).both(x=X)
    assert built_and_loaded() == (0, 1)


@pytest.mark.slow("compiles many or large functions")
def test_a_file_under_another_key_is_ignored(folder):
    run_twice(chain, x=X)
    of_chain = stored(folder).read_bytes()
    run_twice(linear_regression, x=X, y=X[:, :1])
    for path in folder.glob("*.ngraph"):
        path.write_bytes(of_chain)
    start_anew()
    Program(linear_regression).run(x=X, y=X[:, :1])
    assert built_and_loaded() == (1, 0)


def test_functions_of_another_version_are_ignored(monkeypatch):
    run_twice(chain, x=X)
    monkeypatch.setattr(disk_cache, "_fixed_environment", lambda: ["paddle-ngraph 99"])
    start_anew()
    Program(chain).both(x=X)
    assert built_and_loaded() == (1, 0)


def test_functions_for_another_number_of_threads_are_ignored():
    run_twice(chain, x=X)
    start_anew()
    before = flags.get("ngraph_num_threads")
    flags.set("ngraph_num_threads", _core.num_threads() + 1)
    try:
        Program(chain).both(x=X)
    finally:
        flags.set("ngraph_num_threads", before)
    assert built_and_loaded() == (1, 0)


def test_other_weights_have_a_separate_function():
    def build() -> Any:
        return paddle.nn.Linear(4, 8)(paddle.static.data("x", [-1, 4], "float32")) * 5.0

    run_twice(build, x=X)
    start_anew()
    program = Program(build)
    weight = program.scope.find_var("linear_0.w_0").get_tensor()
    weight.set(floats(4, 8, seed=9), paddle.CPUPlace())
    program.both(x=X)
    assert built_and_loaded() == (1, 0)


@pytest.mark.parametrize("position", [0, 1])
def test_weights_of_equal_content_hashes_have_a_file_each(position):
    def build() -> Any:
        return paddle.nn.Linear(4, 8)(paddle.static.data("x", [-1, 4], "float32")) * 6.0

    run_twice(build, x=X)
    start_anew()
    program = Program(build)
    weights = forged(program.variable("linear_0.w_0"), position)
    program.scope.find_var("linear_0.w_0").get_tensor().set(weights, paddle.CPUPlace())
    program.both(x=X)
    assert built_and_loaded() == (1, 0)


def test_functions_with_user_converters_are_not_stored(folder):
    from paddle_ngraph.conversion.registry import find_converter

    ours = find_converter("pd_op.exp")
    unregister("pd_op.exp")
    try:

        @converter("pd_op.exp")
        def exp(bridge: Any, op: Any) -> None:
            ours.function(bridge, op)

        Program(chain).both(x=X)
    finally:
        unregister("pd_op.exp")
        converter("pd_op.exp")(ours.function)
    assert built_and_loaded() == (1, 0)
    assert not folder.exists()


def test_files_writable_by_others_are_ignored(folder):
    run_twice(chain, x=X)
    for path in (stored(folder), folder):
        path.chmod(path.stat().st_mode | 0o022)
        start_anew()
        Program(chain).both(x=X)
        assert built_and_loaded() == (1, 0)
        path.chmod(path.stat().st_mode & ~0o022)


def test_only_the_user_can_read_it(folder):
    Program(chain).run(x=X)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert stored(folder).stat().st_mode & 0o777 == 0o600


# -- the secret ----------------------------------------------------------------------------------


def loads_chain() -> bool:
    """Whether a new process finds the function of ``chain``."""
    start_anew()
    Program(chain).both(x=X)
    return built_and_loaded() == (0, 1)


def test_the_secret_is_the_users_alone():
    run_twice(chain, x=X)
    assert secret_path().stat().st_mode & 0o777 == 0o600
    assert secret_path().parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(secret_path().parent) == ["secret"]
    assert len(secret_path().read_bytes()) == 32


@pytest.mark.parametrize("secret", [bytes(32), b"", None])
def test_functions_that_the_user_did_not_store_are_ignored(folder, secret):
    run_twice(chain, x=X)
    if secret is None:  # the file is from another machine, or another user
        secret_path().unlink()
    else:
        stored(folder).write_bytes(StoredFile.of(stored(folder).read_bytes()).contents(secret))
    assert not loads_chain()
    assert loads_chain()


def test_files_authenticated_by_the_secret_are_used(folder):
    run_twice(chain, x=X)
    file = StoredFile.of(stored(folder).read_bytes())
    assert file.name == stored(folder).name
    assert file.contents(secret_path().read_bytes()) == stored(folder).read_bytes()


@pytest.mark.parametrize("how", ["readable by others", "short", "a link", "empty"])
def test_an_unusable_secret_is_replaced(tmp_path, how):
    run_twice(chain, x=X)
    path, secret = secret_path(), secret_path().read_bytes()
    if how == "readable by others":
        path.chmod(0o640)
    elif how == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_bytes(secret[:31] if how == "short" else b"")
    assert not loads_chain()
    assert loads_chain()
    assert len(path.read_bytes()) == 32
    assert path.read_bytes() != secret
    assert path.lstat().st_mode & 0o177777 == 0o100600


def test_without_a_state_directory_the_secret_is_in_the_folder(folder, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    run_twice(chain, x=X)
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600


def test_the_secret_of_a_trusted_folder_is_in_it(folder, monkeypatch, tmp_path):
    """Such a folder serves machines with different home directories."""
    flags.set("ngraph_trusted_dir", str(tmp_path))
    try:
        run_twice(chain, x=X)
        assert (folder / "secret").is_file()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another machine"))
        assert loads_chain()
    finally:
        flags.set("ngraph_trusted_dir", "")
    assert not loads_chain()


# -- functions that are not stored ---------------------------------------------------------------


def test_without_a_folder_nothing_is_stored(folder):
    flags.set("ngraph_cache_dir", "")
    Program(chain).both(x=X)
    assert not folder.exists()
    assert built_and_loaded() == (1, 0)


def test_functions_built_quickly_are_not_stored(folder):
    flags.set("ngraph_cache_min_ms", 1_000_000)
    Program(chain).both(x=X)
    assert not folder.exists()


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null", "/dev/null/below"])
def test_an_unwritable_folder_is_tolerated(place):
    flags.set("ngraph_cache_dir", place)
    for _ in range(2):
        start_anew()
        Program(chain).both(x=X)
        assert built_and_loaded() == (1, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_read(folder):
    run_twice(chain, x=X)
    folder.chmod(0o500)
    start_anew()
    Program(chain).both(x=X)
    Program(linear_regression).run(x=X, y=X[:, :1])
    assert built_and_loaded() == (1, 1)
    folder.chmod(0o700)


# -- limits of size ------------------------------------------------------------------------------


def scaled(factor: float) -> Any:
    """A function of about 1 MB."""
    x = paddle.static.data("x", [-1, 4], "float32")
    return paddle.nn.Linear(4, 1 << 16)(x).mean() * factor


def test_the_least_recently_used_functions_are_deleted(folder):
    flags.set("ngraph_cache_disk_mb", 3)
    try:
        for factor in (1.0, 2.0):
            Program(lambda factor=factor: scaled(factor)).run(x=X)
        first, second = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        start_anew()
        Program(lambda: scaled(1.0)).run(x=X)  # now the second one is the older one
        assert built_and_loaded() == (0, 1)
        Program(lambda: scaled(3.0)).run(x=X)
    finally:
        flags.set("ngraph_cache_disk_mb", flags.FLAGS["ngraph_cache_disk_mb"].default)
    assert first.exists()
    assert not second.exists()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 << 20


def test_a_function_larger_than_the_bound_is_not_stored(folder):
    flags.set("ngraph_cache_disk_mb", 1)
    try:
        Program(lambda: scaled(4.0)).run(x=X)
    finally:
        flags.set("ngraph_cache_disk_mb", flags.FLAGS["ngraph_cache_disk_mb"].default)
    assert not list(folder.iterdir())


def test_files_of_a_dead_process_are_deleted(folder):
    folder.mkdir(mode=0o700)
    old, new = folder / "abcdef.unfinished", folder / "ghijkl.unfinished"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    Program(chain).run(x=X)
    assert not old.exists()
    assert new.exists()


def test_other_files_are_not_deleted(folder):
    """The flag may name another folder by mistake, such as one with models."""
    name = "0" * 32 + "-" + "1" * 32 + ".ngraph"
    (folder / "detector.ngraph").mkdir(parents=True)
    (folder / name.replace("0", "2")).mkdir()
    folder.chmod(0o700)
    others = [
        folder / "mine.ngraph",
        folder / f"model-{name}",
        folder / name.replace("0", "g"),
        folder / f"{name}.bak",
        folder / "detector.ngraph" / f"model-{name}",
        folder / "results.unfinished",
        folder / ".hidden.unfinished",
    ]
    for path in others:
        path.write_bytes(b"x" * (2 << 20))
        os.utime(path, (0, 0))
    (folder / name.replace("1", "3")).symlink_to(folder / "mine.ngraph")
    old = folder / name
    old.write_bytes(b"x" * (2 << 20))
    before = set(folder.rglob("*"))
    flags.set("ngraph_cache_disk_mb", 2)
    try:
        Program(lambda: scaled(5.0)).run(x=X)
    finally:
        flags.set("ngraph_cache_disk_mb", flags.FLAGS["ngraph_cache_disk_mb"].default)
    assert before - set(folder.rglob("*")) == {old}
    assert len(disk_cache.files()) == 1
    disk_cache.files()[0].unlink()
    assert set(folder.rglob("*")) == before - {old}


# -- several processes ---------------------------------------------------------------------------

SCRIPT = textwrap.dedent(
    """
    import sys
    import numpy as np
    import paddle
    import paddle_ngraph
    from tests.programs import Program, floats

    def build():
        image = paddle.static.data("image", [-1, 3, 16, 16], "float32")
        return paddle.nn.Conv2D(3, 8, 3)(image).mean([2, 3])

    paddle.enable_static()
    (result,) = Program(build).run(image=floats(2, 3, 16, 16))
    stats = paddle_ngraph.stats()
    assert stats["engine_runs"] == 1
    print(stats["functions_built"], stats["functions_loaded"], *result.ravel().tolist())
    """
)


def start(folder: Path) -> subprocess.Popen[str]:
    settings = {"FLAGS_ngraph_cache_dir": str(folder), "FLAGS_ngraph_cache_min_ms": "0"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        env={**os.environ, **settings},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> tuple[list[str], list[str]]:
    """Returns the counts of functions built and loaded, and the results."""
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    words = output.split()
    return words[:2], words[2:]


def test_the_next_process_loads_functions_of_this_one(folder):
    counts, first = answer(start(folder))
    assert counts == ["1", "0"]
    counts, second = answer(start(folder))
    assert counts == ["0", "1"]
    assert first == second
    assert len(first) == 16


@pytest.mark.slow("starts a process")
def test_concurrent_processes_share_a_folder(folder):
    processes = [start(folder) for _ in range(3)]
    numbers = {tuple(answer(process)[1]) for process in processes}
    assert len(numbers) == 1
    assert len(list(folder.iterdir())) == 1
    assert answer(start(folder))[0] == ["0", "1"]
