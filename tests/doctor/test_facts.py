"""Facts of the installation and the machine, and the problems that they name."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys

from paddle_ngraph import _core, flags, installation
from paddle_ngraph.conversion import disk_cache
from paddle_ngraph.doctor.facts import facts


def problems() -> list[str]:
    return [fact.problem for fact in facts() if fact.problem]


def value_of(name: str) -> str:
    return next(fact.value for fact in facts() if fact.name == name)


def test_versions_are_those_that_are_installed():
    for name, installed, _ in installation.packages():
        assert value_of(name).startswith(str(installed))
    assert value_of("engine") == "ready"


def test_no_fact_names_the_user_or_the_host(tmp_path):
    flags.set("ngraph_cache_dir", str(tmp_path / "of_somebody"))
    text = repr(facts())
    assert "of_somebody" not in text
    assert os.path.expanduser("~") not in text
    assert socket.gethostname() not in text.split()
    assert getpass.getuser() not in text.split()


def test_without_a_cache_folder_the_remedy_is_named():
    flags.set("ngraph_cache_dir", "")
    assert any("FLAGS_ngraph_cache_dir is empty" in each for each in problems())


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path, monkeypatch):
    flags.set("ngraph_cache_dir", str(tmp_path))
    assert not any("cannot be written" in each for each in problems())
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert any("cannot be written" in each for each in problems())


def test_a_folder_of_another_user_is_a_problem(tmp_path, monkeypatch):
    flags.set("ngraph_cache_dir", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    monkeypatch.setattr(disk_cache, "files", lambda: [])
    assert any("belongs to another user" in each for each in problems())


def test_more_threads_than_cores_are_a_problem():
    flags.set("ngraph_num_threads", len(os.sched_getaffinity(0)) + 1)
    _core.allow_more_threads_than_cores(False)
    try:
        assert any("FLAGS_ngraph_num_threads" in each for each in problems())
    finally:
        _core.allow_more_threads_than_cores(True)


def test_withheld_instructions_are_a_problem(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert any("ONEDNN_MAX_CPU_ISA withholds" in each for each in problems())


def test_a_processor_without_avx2_is_a_problem(monkeypatch):
    monkeypatch.setattr("paddle_ngraph.utils.cpu_info.cpu_fields", lambda: {"flags": "sse4_2"})
    assert any("no AVX2" in each for each in problems())


def test_without_an_engine_the_reason_is_a_problem(monkeypatch):
    monkeypatch.setattr(installation, "why_unavailable", lambda: "the reason.")
    found = facts()
    assert "the reason." in [fact.problem for fact in found]
    assert not any(fact.section == "threads" for fact in found)


def test_the_report_needs_no_core():
    """The reason why there is no engine is what the report is for."""
    script = (
        "import sys, types\n"
        "sys.modules['paddle_ngraph._core'] = None\n"
        "sys.modules['paddle_ngraph._build_info'] = types.SimpleNamespace(PURE=True)\n"
        "from paddle_ngraph.__main__ import main\n"
        "sys.exit(main(['doctor']))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "not for this machine" in ended.stdout
