"""Configurations of predictors: what the engine needs to know of them and what it cannot run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import AnalysisConfig
from paddle_ngraph.paddle_private.protocols import Config

_init_config = replaced.CREATE_CONFIG.original
enable_custom_passes = replaced.ENABLE_PASSES.original

# Getters of a configuration for settings that the engine does not support.
_UNSUPPORTED_GETTERS = {
    "use_gpu": "it runs on a GPU",
    "use_xpu": "it runs on an XPU",
    "tensorrt_engine_enabled": "it runs on TensorRT",
    "onnxruntime_enabled": "it runs on ONNX Runtime",
    "openvino_engine_enabled": "it runs on Paddle's own OpenVINO",
    "onednn_int8_enabled": "it computes in int8",
    "shape_range_info_collected": "it collects shapes",
}
# Options in the summary of a configuration that the engine does not support; these have no getter.
_UNSUPPORTED_OPTIONS = {
    "use_cinn_compiler": "it is compiled by CINN",
    "save_optimized_model": "it saves the program that Paddle has optimized",
    "use_optimized_model": "its program is one that Paddle has optimized",
}
# Setters of unsupported settings that cannot be read.
UNSUPPORTED_SETTERS = {
    "enable_onednn_bfloat16": "oneDNN computes in bfloat16",
    "enable_mkldnn_bfloat16": "oneDNN computes in bfloat16",
    "enable_custom_device": "it runs on a custom device",
}


@dataclass
class ConfigSettings:
    """Settings of a configuration that have no getter.

    Attributes:
        passes, only_passes: The arguments of ``enable_custom_passes``.
        folder: Contains the model, if it was passed in buffers.
        why_native: A reason from ``UNSUPPORTED_SETTERS``.
        threads: The argument of ``set_cpu_math_library_num_threads``; 0: not called.
    """

    passes: list[str] = field(default_factory=list)
    only_passes: bool = False
    folder: saved_model.TemporaryFolder | None = None
    why_native: str | None = None
    threads: int = 0


_settings: WeakKeyDictionary[Config, ConfigSettings] = WeakKeyDictionary()


def settings_of(config: Config) -> ConfigSettings:
    return _settings.setdefault(config, ConfigSettings())


@wraps(_init_config)
def init_config(self: Config, *args: Any) -> None:
    """Initializes a configuration; a copy has the settings of its original."""
    _init_config(self, *args)
    if args and isinstance(args[0], AnalysisConfig) and args[0] in _settings:
        _settings[self] = copy(_settings[args[0]])


@wraps(enable_custom_passes)
def recording_passes(
    self: Config, passes: Sequence[str] = (), custom_pass_only: bool = False
) -> None:
    enable_custom_passes(self, list(passes), custom_pass_only)
    settings = settings_of(self)
    settings.passes, settings.only_passes = list(passes), custom_pass_only


def recording_threads(original: Callable[[Config, int], None]) -> Callable[..., None]:
    @wraps(original)
    def set_cpu_math_library_num_threads(self: Config, threads: int) -> None:
        original(self, threads)
        settings_of(self).threads = max(threads, 0)

    return set_cpu_math_library_num_threads


def recording_buffers(original: Callable[..., None]) -> Callable[..., None]:
    """Replaces buffers by files in memory, since Paddle crashes on PIR in buffers."""

    @wraps(original)
    def set_model_buffer(
        self: Config, program: str | bytes, size: int, parameters: str | bytes, parameters_size: int
    ) -> None:
        folder = saved_model.TemporaryFolder()
        contents, weights = _bytes(program, size), _bytes(parameters, parameters_size)
        ending = ".json" if contents[:64].lstrip().startswith(b"{") else ".pdmodel"
        # A model without parameters has no file for them.
        path = folder.add_file("model.pdiparams", [weights]) if weights else ""
        self.set_model(folder.add_file("model" + ending, [contents]), path)
        settings_of(self).folder = folder

    return set_model_buffer


def model_from_memory(original: Callable[[Config], bool]) -> Callable[[Config], bool]:
    @wraps(original)
    def model_from_memory(self: Config) -> bool:
        return settings_of(self).folder is not None or original(self)

    return model_from_memory


def _bytes(buffer: str | bytes, size: int) -> bytes:
    contents = buffer.encode() if isinstance(buffer, str) else buffer
    return contents if size == len(contents) else contents[:size]


def recording_unsupported(original: Callable[..., Any], reason: str) -> Callable[..., Any]:
    @wraps(original)
    def set_option(self: Config, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        settings_of(self).why_native = reason
        return result

    return set_option


def why_native(config: Config) -> str | None:
    """The reason why a configuration falls back to Paddle, or ``None``."""
    for name, reason in _UNSUPPORTED_GETTERS.items():
        if getattr(config, name)():
            return reason
    options = _options_of(config)
    for name, reason in _UNSUPPORTED_OPTIONS.items():
        if options.get(name) == "true":
            return reason
    return settings_of(config).why_native


def _options_of(config: Config) -> dict[str, str]:
    """The options in the summary of a configuration, a table of two columns."""
    rows = (line.strip("|").split("|") for line in config.summary().splitlines())
    return {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
