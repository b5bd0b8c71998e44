"""Flags: one definition, four methods to set them."""

from __future__ import annotations

import os
import re

import paddle
import pytest

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.settings import PolicySettings


@pytest.mark.slow("compiles many or large functions")
def test_every_flag_is_known_to_paddle():
    for flag in flags.FLAGS.values():
        expected = type(flag.default)(os.environ.get(flag.key, flag.default))
        assert paddle.get_flags([flag.key])[flag.key] == expected


def test_every_flag_sets_a_field_of_the_settings():
    defaults = {flag.setting: flag.default for flag in flags.FLAGS.values() if not flag.is_path}
    assert defaults.items() <= vars(PolicySettings()).items()
    flags.set("ngraph_cache_size", 17)
    try:
        assert flags.settings().cache_size == 17
    finally:
        flags.set("ngraph_cache_size", flags.FLAGS["ngraph_cache_size"].default)


def test_every_setting_has_a_sentence():
    documented = re.findall(r"^        (\w+): [A-Z`]", PolicySettings.__doc__, re.MULTILINE)
    assert documented == list(vars(PolicySettings()))


def test_set_flags_switches():
    paddle.set_flags({"FLAGS_use_ngraph": True})
    assert paddle_ngraph.is_enabled()
    paddle.set_flags({"FLAGS_use_ngraph": False})
    assert not paddle_ngraph.is_enabled()


def test_an_unknown_flag_falls_back_own_error():
    with pytest.raises(ValueError, match="ngraph_no_such_flag"):
        paddle.set_flags({"FLAGS_ngraph_no_such_flag": 1})


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("0", False), ("", False)]
)
def test_the_environment_sets_a_switch(monkeypatch, text, value):
    monkeypatch.setenv("FLAGS_use_ngraph", text)
    flags.read_environment()
    assert flags.get("use_ngraph") is value


def test_the_environment_sets_a_number(monkeypatch):
    monkeypatch.setenv("FLAGS_ngraph_cache_size", "17")
    flags.read_environment()
    assert flags.get("ngraph_cache_size") == 17
    flags.set("ngraph_cache_size", flags.FLAGS["ngraph_cache_size"].default)


def test_the_environment_sets_a_string(monkeypatch):
    monkeypatch.setenv("FLAGS_mkl_packed_provider", "onednn")
    flags.read_environment()
    assert flags.get("mkl_packed_provider") == "onednn"
    flags.set("mkl_packed_provider", flags.FLAGS["mkl_packed_provider"].default)


def test_the_environment_sets_a_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/Somebody")
    monkeypatch.setenv("FLAGS_ngraph_cache_dir", "~/Functions")
    flags.read_environment()
    assert flags.get("ngraph_cache_dir") == "/home/Somebody/Functions"
    flags.set("ngraph_cache_dir", "")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "/home/u"}, "/home/u/.cache/paddle_ngraph"),
        ({"HOME": "/home/u", "XDG_CACHE_HOME": "/fast"}, "/fast/paddle_ngraph"),
        ({"HOME": "/home/u", "XDG_CACHE_HOME": "relative"}, "/home/u/.cache/paddle_ngraph"),
    ],
)
def test_functions_are_kept_in_the_users_cache_directory(monkeypatch, environment, folder):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert flags.cache_directory() == folder


@pytest.mark.parametrize("name", ["FLAGS_use_ngraph", "FLAGS_ngraph_cache_size"])
def test_nonsense_in_the_environment_is_rejected(monkeypatch, name):
    monkeypatch.setenv(name, "many")
    with pytest.raises(NgraphError, match=f"{name}='many' in the environment"):
        flags.read_environment()


def test_contexts_nest_and_restore():
    with paddle_ngraph.use_ngraph(True):
        with paddle_ngraph.use_ngraph(False):
            assert not paddle_ngraph.is_enabled()
        assert paddle_ngraph.is_enabled()
    assert not paddle_ngraph.is_enabled()


def test_a_context_restores_after_an_error():
    with pytest.raises(KeyError), paddle_ngraph.use_ngraph(True):
        raise KeyError
    assert not paddle_ngraph.is_enabled()
