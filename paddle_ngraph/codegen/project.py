"""Generates a project: checks the program first, then writes the files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import paddle

from paddle_ngraph.codegen import functions, kernels_cc, main_cc, statements, toolchain
from paddle_ngraph.codegen.functions import Constants, Shapes, Variant
from paddle_ngraph.codegen.statements import CppProgram, CppVariable
from paddle_ngraph.conversion import kernel_calls, processor
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.paddle_private.protocols import Program, Scope
from paddle_ngraph.partitioning import packed_layers
from paddle_ngraph.partitioning.analysis import integer_ranges
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.utils import signals
from paddle_ngraph.version import __version__

_TEMPLATE = Path(__file__).parent / "project"
_PACKAGE = Path(__file__).parents[1]
FORMAT = 3
MANIFEST = "model/manifest.json"
# Files of the core that are copied into the runtime of a generated project, with all files that
# these include.
_CORE = (
    "core/ov/**/*.cc",
    "core/ov/trim_memory.h",
    "core/common/affinity.cc",
    "core/common/caches.cc",
    "core/common/fork_safe_mutex.cc",
    "core/common/openvino_use.cc",
    "core/common/resting_threads.cc",
    "core/common/tbb_fork_state.cc",
    "core/common/random_numbers.cc",
    "core/engine/size_guards.cc",
)
_INCLUDE = re.compile(r'#include "(core/[^"]+)"')
_BUILD_FOLDER = "native"
_SEED_LIMIT = 2**63


def generate(
    program: Any,
    directory: str | os.PathLike[str],
    fetches: Sequence[Any] | Mapping[str, Any] = (),
    scope: Scope | None = None,
    shapes: Shapes | Sequence[Shapes] | None = None,
    processor_name: str = "any",
    seed: int = 0,
    train: bool | None = None,
    wide_integers: bool = False,
    force: bool = False,
) -> Report:
    """Generates a C++ project: the body of :func:`paddle_ngraph.transpiler.generate_native`."""
    # Symbolic links are resolved: a link to a folder is retained, and the folder itself replaced.
    target = Path(os.path.realpath(directory))
    _check_directory(target, force)
    target_processor = _processor(processor_name)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _SEED_LIMIT:
        raise NgraphError(f"the seed {seed!r} is not between 0 and {_SEED_LIMIT - 1}")
    names, wanted = _named(fetches)
    given = ngraph_transpiler.static_program(program, "generate_native")
    copy, fetching = ngraph_transpiler.copied(given, wanted)
    integer_checks = integer_ranges.without_overflow_checks() if wide_integers else nullcontext()
    # Recurrent layers stay Paddle's operators: packed operators would need Paddle in each run. So
    # would kernel calls; the project calls these kernels itself.
    with packed_layers.disabled(), kernel_calls.disabled(), integer_checks:
        report = ngraph_transpiler.rewrite(copy, open_size=None)
    values = ngraph_transpiler.remove_fetches(copy, fetching)
    scheduled = program.lr_name if getattr(program, "lr_scheduler", None) is not None else ""
    cpp_program = _cpp_program(copy, list(zip(names, values)), scheduled, report)
    if train is not None and train != cpp_program.changes:
        raise NgraphError(
            "the program writes none of its variables: it does not train"
            if train
            else "the program trains: give --train (train=True), or save it without its optimizer"
        )
    read = _reader(scope if scope is not None else paddle.static.global_scope())
    variables = {each.name: read(each.name) for each in cpp_program.persistent}
    _require_files(cpp_program)
    # The generated program declares the shapes that variables have in the scope: these may differ
    # from the shapes declared in the program.
    for each in cpp_program.persistent:
        each.target.shape = variables[each.name].shape
    with processor.target(target_processor):
        variants = functions.variants_of(cpp_program, _shape_sets(cpp_program, shapes), read)
    with _staging_folder(target, force) as folder:
        _write(folder, cpp_program, variants, variables, target_processor, seed)
    return report


# -- decisions -------------------------------------------------------------------------------------


def _check_directory(target: Path, force: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir() or any(target.iterdir()):
        if not force:
            raise NgraphError(f"{target} is there already: give --force (force=True) to replace it")
        if not (target / MANIFEST).is_file():
            raise NgraphError(f"{target} is no generated project: it is not replaced")


def _processor(name: str) -> str:
    if name == _BUILD_FOLDER:
        return "avx512" if processor.has_avx512() else "avx2"
    if name not in processor.TARGETS:
        known = ", ".join((*processor.TARGETS, _BUILD_FOLDER))
        raise NgraphError(f"there is no processor {name!r}: give one of {known}")
    return name


def _named(fetches: Sequence[Any] | Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    if isinstance(fetches, Mapping):
        if odd := [name for name in fetches if not isinstance(name, str)]:
            raise NgraphError(f"a result is called {odd[0]!r}: give it a name of letters")
        return list(fetches), list(fetches.values())
    given = list(fetches) if isinstance(fetches, (list, tuple)) else [fetches]
    names = [each if isinstance(each, str) else f"result_{i}" for i, each in enumerate(given)]
    return names, given


def _cpp_program(
    program: Program, fetches: Sequence[tuple[str, Any]], scheduled: str, report: Report
) -> CppProgram:
    try:
        cpp_program = statements.cpp_program_of(program, fetches, scheduled)
    except NgraphError as error:
        raise NgraphError(f"the program cannot become C++. {error}\n{report}") from error
    if not cpp_program.results:
        raise NgraphError("the program has no results: name them (fetch_list)")
    return cpp_program


def _reader(scope: Scope) -> Callable[[str], np.ndarray]:
    def read(name: str) -> np.ndarray:
        variable = scope.find_var(name)
        with signals.own_errors():
            try:
                if variable is not None:
                    return np.array(variable.get_tensor())
            except Exception as error:
                # Catches all exceptions, since Paddle raises errors of many types.
                raise NgraphError(f"the variable {name} cannot be read: {error}") from error
        raise NgraphError(f"there is no variable {name}: run the startup program first")

    return read


def _require_files(cpp_program: CppProgram) -> None:
    for each in cpp_program.persistent:
        if each.target.dtype == "bfloat16":
            raise NgraphError(
                f"the variable {each.name} is bfloat16, which .npy files do not support: "
                "declare it float32, and cast it where it is read"
            )


def _shape_sets(
    cpp_program: CppProgram, shapes: Shapes | Sequence[Shapes] | None
) -> list[Shapes] | None:
    if not shapes:
        return None
    given = [shapes] if isinstance(shapes, Mapping) else shapes
    declared = {feed.name: feed.target.shape for feed in cpp_program.feeds}
    return [_checked(each, declared) for each in given]


def _checked(given: Shapes, declared: Mapping[str, Sequence[int]]) -> Shapes:
    odd = sorted(given.keys() - declared.keys())
    if odd:
        raise NgraphError(f"the program has no input {odd[0]!r}, but {', '.join(declared)}")
    checked = {name: list(given.get(name, shape)) for name, shape in declared.items()}
    for name, shape in declared.items():
        sizes = checked[name]
        fits = all(size > 0 or size == -1 for size in sizes) and len(sizes) == len(shape)
        if not fits or any(known not in (-1, size) for known, size in zip(shape, sizes)):
            raise NgraphError(f"{name} has the shape {list(shape)} in the program, not {sizes}")
    return checked


# -- files -----------------------------------------------------------------------------------------


@contextmanager
def _staging_folder(target: Path, force: bool) -> Iterator[Path]:
    """A folder next to the target, which replaces the target once all files are written."""
    with signals.recognized_signals():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".", suffix=".unfinished", dir=target.parent))
        except OSError as error:
            signals.raise_if_from_outside(error)
            raise NgraphError(f"{error.filename or target}: {error.strerror}") from error
        try:
            yield folder
            folder.chmod(0o755)
            _check_directory(target, force)
            _replace(target, folder)
        except OSError as error:
            signals.raise_if_from_outside(error)
            raise NgraphError(f"{error.filename or target}: {error.strerror}") from error
        finally:
            with signals.own_errors():
                shutil.rmtree(folder, ignore_errors=True)


def _replace(target: Path, folder: Path) -> None:
    """Moves ``folder`` to ``target``; the existing target is deleted once that has succeeded."""
    if not target.exists():
        folder.rename(target)
        return
    replaced = folder.with_name(f"{folder.name}.replaced")
    target.rename(replaced)
    try:
        folder.rename(target)
    except OSError:
        replaced.rename(target)
        raise
    with signals.own_errors():
        shutil.rmtree(replaced, ignore_errors=True)


def _write(
    folder: Path,
    cpp_program: CppProgram,
    variants: Sequence[Sequence[Variant]],
    variables: Mapping[str, np.ndarray],
    target: str,
    seed: int,
) -> None:
    _copy_sources(folder, bool(cpp_program.kernel_calls))
    model = folder / "model"
    described = _write_functions(model, cpp_program, variants)
    (model / "variables").mkdir()
    for name, array in variables.items():
        np.save(model / _file_of(name), array, allow_pickle=False)
    manifest = {
        "format": FORMAT,
        "release": __version__,
        "processor": target,
        "seed": seed,
        "writes_variables": cpp_program.changes,
        "inputs": [_declared(feed.name, feed.target) for feed in cpp_program.feeds],
        "results": [_declared(each.name, each.value) for each in cpp_program.results],
        "variables": [
            {**_declared(each.name, each.target), "file": _file_of(each.name)}
            for each in cpp_program.persistent
        ],
        "functions": described,
        "files": [
            {"path": str(path.relative_to(model)), "bytes": path.stat().st_size}
            for path in sorted(model.rglob("*.*"))
        ],
    }
    identity = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
    text = json.dumps({"program": identity, **manifest}, indent=1)
    (folder / MANIFEST).write_text(text + "\n")
    (folder / "main.cc").write_text(main_cc.text_of(cpp_program, identity))
    if cpp_program.kernel_calls:
        (folder / toolchain.KERNELS).write_text(kernels_cc.source_of(cpp_program.kernel_calls))
        (folder / "kernels.h").write_text(kernels_cc.header_of(cpp_program.kernel_calls))


def _copy_sources(folder: Path, with_kernels: bool) -> None:
    """Copies the files that all projects share; not the permissions of an installed package.

    The folder ``phi``, with the code that calls Paddle's kernels, is for programs with such calls.
    """
    shared = [path.relative_to(_TEMPLATE) for path in _TEMPLATE.rglob("*") if path.is_file()]
    copies = {_TEMPLATE / name: folder / name for name in shared}
    copies |= {_PACKAGE / name: folder / "ngraph_ops" / name for name in core_files()}
    for source, destination in copies.items():
        if with_kernels or destination.parent != folder / "phi":
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, destination)


def core_files() -> list[str]:
    """The C++ files of the core that projects contain, as paths relative to the package."""
    pending = [
        str(path.relative_to(_PACKAGE)) for pattern in _CORE for path in _PACKAGE.glob(pattern)
    ]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += _INCLUDE.findall((_PACKAGE / name).read_text())
    return sorted(found)


def _write_functions(
    model: Path, cpp_program: CppProgram, variants: Sequence[Sequence[Variant]]
) -> list[dict[str, Any]]:
    folder = model / "functions"
    folder.mkdir(parents=True)
    constants = Constants(folder / "constants.bin")
    constants.path.touch()
    described = []
    for interval, of_interval in zip(cpp_program.intervals, variants):
        rows = []
        for number, variant in enumerate(of_interval):
            name = f"interval_{interval.number}_{number}.xml"
            constants.add(variant.model, folder / name)
            rows.append(
                {
                    "model": f"functions/{name}",
                    "constants": "functions/constants.bin",
                    "shapes": variant.shapes,
                    "guards": [int(word) for word in variant.guards],
                    "parameters": variant.parameters,
                    "draws": [draw._asdict() for draw in variant.draws],
                    "outputs": len(interval.outputs),
                    "states": len(interval.states),
                    "updates": [update._asdict() for update in variant.updates],
                }
            )
        description = f"interval {interval.number} ({interval.description})"
        described.append(
            {
                "name": description,
                "inputs": [each.name for each in (*interval.inputs, *interval.states)],
                "variants": rows,
            }
        )
    return described


def _declared(name: str, variable: CppVariable) -> dict[str, Any]:
    return {"name": name, "dtype": variable.dtype, "shape": list(variable.shape)}


def _file_of(variable: str) -> str:
    """The path of a variable's file in the model folder; the C++ runtime names files equally."""
    return f"variables/{quote(variable, safe='').replace('~', '%7E')}.npy"
