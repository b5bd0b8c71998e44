"""Prepares the packages of the zoo for Python 3.11, NumPy 2 and Paddle 3.3.

    python -m tests.zoo.packages

Replaces a few lines of the installed files, as ``PATCHES`` lists them. A line that is not there is
an error, since the release is then another one than ``requirements/zoo.txt`` pins.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any

# What the packages import for data sets, metrics and downloads, and no network needs.
ABSENT = frozenset(
    {
        *("aistudio_sdk", "braceexpand", "colorama", "datasets", "decorator", "faiss"),
        *("fastapi", "ffmpeg", "ffmpy", "flatten_dict", "huggingface_hub", "imageio"),
        *("inflect", "jieba", "jsonlines", "kaldiio", "lap", "librosa", "mendeleev", "meshio"),
        *("motmetrics", "paddlespeech_ctcdecoders", "pandas", "pathos", "pkg_resources"),
        *("pycocotools", "pyevtk", "pypinyin", "requests", "resampy", "sentencepiece"),
        *("seqeval", "shapely", "skopt", "sklearn", "soundfile", "textgrid", "timer"),
        *("visualdl", "wget", "zmq"),
    }
)


@dataclass(frozen=True)
class Patch:
    """A line of a package that does not run any more.

    Attributes:
        file: The file, relative to the folder of installed packages.
        before, after: The text, and what replaces all of its occurrences.
        why: What changed.
    """

    file: str
    before: str
    after: str
    why: str


_MOVED = "the abstract classes moved to collections.abc in Python 3.10"
_SCALARS = "an element of a tensor has no dimension any more"

PATCHES: tuple[Patch, ...] = (
    Patch(
        "paddlets/utils/backtest.py",
        "from collections import defaultdict, Iterable",
        "from collections import defaultdict; from collections.abc import Iterable",
        _MOVED,
    ),
    Patch(
        "ppsci/arch/unetex.py",
        "nn.util.weight_norm",
        "nn.utils.weight_norm",
        "the module is named so",
    ),
    Patch(
        "paddlespeech/s2t/modules/align.py",
        """stride, padding, dilation,
            groups, padding_mode, weight_attr, bias_attr, data_format)""",
        """stride=stride, padding=padding, dilation=dilation,
            groups=groups, padding_mode=padding_mode, weight_attr=weight_attr,
            bias_attr=bias_attr, data_format=data_format)""",
        "Paddle's layers take them by keyword only",
    ),
    Patch(
        "paddlespeech/s2t/modules/align.py",
        """normalized_shape, epsilon, weight_attr,
                                        bias_attr, name)""",
        """normalized_shape, epsilon=epsilon, weight_attr=weight_attr,
                                        bias_attr=bias_attr, name=name)""",
        "Paddle's layers take them by keyword only",
    ),
    Patch(
        "paddlespeech/s2t/modules/attention.py",
        "paddle.softmax(",
        "paddle.nn.functional.softmax(",
        "Paddle 3.3 has no such name",
    ),
    Patch(
        "ppdet/modeling/proposal_generator/rpn_head.py",
        "paddle.slice(paddle.shape(im_shape), [0], [0], [1])",
        "paddle.shape(im_shape)[0]",
        "NumPy 2 takes no array of one element as an integer",
    ),
    Patch(
        "ppdet/modeling/proposal_generator/rpn_head.py",
        "paddle.shape(topk_rois)[0])",
        "paddle.shape(topk_rois)[:1])",
        _SCALARS,
    ),
    Patch(
        "ppdet/modeling/layers.py",
        "paddle.full(paddle.shape(topk_ind), k, dtype='int64')",
        "paddle.full_like(topk_ind, k)",
        "Paddle 3.3 takes no tensor of one element as a shape here",
    ),
    Patch(
        "ppdet/modeling/post_process.py",
        "bbox_num_i = bbox_num[i]\n",
        "bbox_num_i = bbox_num[i:i + 1]\n",
        _SCALARS,
    ),
    Patch(
        "ppdet/modeling/heads/solov2_head.py",
        """h = paddle.cast(im_shape[0], 'int32')[0]
        w = paddle.cast(im_shape[1], 'int32')[0]""",
        """h = paddle.cast(im_shape[0], 'int32')
        w = paddle.cast(im_shape[1], 'int32')""",
        _SCALARS,
    ),
    Patch(
        "ppdet/modeling/heads/solov2_head.py",
        "paddle.cast(paddle.shape(kernel_preds)[0], 'int64')",
        "paddle.cast(paddle.shape(kernel_preds)[:1], 'int64')",
        _SCALARS,
    ),
    Patch(
        "ppdet/modeling/heads/solov2_head.py",
        "paddle.cast(paddle.shape(sum_masks)[0]",
        "paddle.cast(paddle.shape(sum_masks)[:1]",
        _SCALARS,
    ),
    Patch(
        "paddleslim/core/dygraph.py",
        "base._to_static_mode_guard_(",
        "base.to_static_mode_guard(",
        "Paddle 3 renamed it",
    ),
)


class _Unused:
    """An attribute of an absent module: a class, a decorator or a function."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused()


class _AbsentModule(types.ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Unused,), {})
        setattr(self, name, made)
        return made


class _AbsentModules(MetaPathFinder, Loader):
    """Finds the modules in ``ABSENT`` that are not installed, and all below them."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def allow_absent() -> None:
    """Lets the packages be imported without what no network needs."""
    sys.meta_path.append(_AbsentModules())


def apply(patch: Patch, folder: Path) -> bool:
    """Applies a patch, unless it is applied already; returns whether it did.

    Raises:
        ValueError: The text is not there: the package is of another release.
    """
    path = folder / patch.file
    text = path.read_text()
    if patch.after in text:
        return False
    if patch.before not in text:
        raise ValueError(f"{patch.file} has no '{patch.before}'")
    path.write_text(text.replace(patch.before, patch.after))
    return True


def _folder(patch: Patch) -> Path:
    found = importlib.util.find_spec(patch.file.partition("/")[0])
    assert found is not None and found.origin is not None, f"{patch.file} is not installed"
    return Path(found.origin).parents[1]


def main() -> None:
    """Applies all patches."""
    for patch in PATCHES:
        done = "patched" if apply(patch, _folder(patch)) else "was patched before"
        print(f"{patch.file}: {done}: {patch.why}")


if __name__ == "__main__":
    main()
