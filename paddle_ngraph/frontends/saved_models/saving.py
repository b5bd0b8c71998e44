"""Saved engine programs: ordinary Paddle models with engine operators in place of subgraphs.

Opening one requires ``import paddle_ngraph`` only, no flag. Functions that were compiled while the
model was saved are in a folder next to it, as files of the disk cache: functions that were built
under other conditions are not found there, and are built again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Union

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.frontends.saved_models.saved_model import SavedModel
from paddle_ngraph.paddle_private.names import convert_dtype, serialize_program
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.partitioning.analysis.block_view import nodes_of
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.utils import signals
from paddle_ngraph.warning_codes import WarningCode, warn

# The shape of each input by name; for an input whose contents are read when functions are built, an
# array with these contents.
Inputs = Mapping[str, Union[Sequence[int], np.ndarray]]


def save_inference_model(
    path_prefix: str,
    feed_vars: Any,
    fetch_vars: Any,
    executor: Any,
    *,
    program: Any = None,
    input_shapes: Inputs | Sequence[Inputs] | None = None,
    **kwargs: Any,
) -> Report:
    """Saves a model with engine operators: :func:`paddle_ngraph.save_inference_model`."""
    if kwargs.get("separate_parameters"):
        raise NgraphError(
            "separate_parameters=True: a program with engine operators has one file of parameters"
        )
    paddle.static.save_inference_model(
        path_prefix, feed_vars, fetch_vars, executor, program=program, **kwargs
    )
    prefix = os.path.abspath(path_prefix)
    ending = ".json" if paddle.framework.in_pir_mode() else ".pdmodel"
    model = SavedModel(prefix + ending, prefix + saved_model.PARAMETERS)
    written = (bool(kwargs.get("readable", False)), bool(kwargs.get("trainable", True)))
    report = convert(model, prefix, input_shapes, *written)
    if not model.is_pir:
        os.remove(model.program)
    return report


def convert(
    model: SavedModel,
    prefix: str,
    input_shapes: Inputs | Sequence[Inputs] | None = None,
    readable: bool = False,
    trainable: bool = True,
    prepare: Callable[[Program], None] | None = None,
) -> Report:
    """Saves an engine program for a saved model.

    Args:
        model: The model, which is not changed unless it is at ``prefix`` itself.
        prefix: Path of the new model, without an extension.
        input_shapes, readable, trainable: As in :func:`save_inference_model`.
        prepare: Changes the program before its subgraphs are replaced.

    Returns:
        A report on the converted operators.

    Raises:
        NgraphError: The model cannot be read, or cannot be run with such inputs. The files at
            ``prefix`` are then unchanged.
    """
    model.check()
    program = model.as_pir()
    model.check_parameters(program)
    translation.rename_as_pir(program)
    if prepare is not None:
        prepare(program)
    report = ngraph_transpiler.rewrite_before_run(program)
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    has_final_parameters = model.parameters == prefix + saved_model.PARAMETERS
    with _staging_folder(prefix) as folder:
        parameters = model.parameters if has_final_parameters else str(folder / "model.pdiparams")
        new = SavedModel(str(folder / "model.json"), parameters)
        serialize_program(program, new.program, True, readable, trainable)
        if not has_final_parameters:
            model.copy_parameters(parameters)
        compiled = folder / "functions"
        compiled.mkdir(mode=0o755)
        input_sets = [input_shapes] if isinstance(input_shapes, Mapping) else input_shapes
        if input_sets:
            _compile(new, compiled, input_sets)
        _publish(new, compiled, prefix)
    return report


@contextmanager
def _staging_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder next to the model, from which files are moved to their final paths."""
    folder = tempfile.mkdtemp(prefix=".", suffix=".unfinished", dir=os.path.dirname(prefix))
    try:
        yield Path(folder)
    finally:
        with signals.own_errors():
            shutil.rmtree(folder, ignore_errors=True)


def _publish(model: SavedModel, compiled: Path, prefix: str) -> None:
    """Deletes old functions, then moves a saved model's files to their paths, the program last."""
    functions = saved_model.functions_folder(prefix + ".json")
    for old in functions.glob(saved_model.FUNCTIONS_GLOB):
        old.unlink(missing_ok=True)
    new = list(compiled.glob(saved_model.FUNCTIONS_GLOB))
    if new:
        functions.mkdir(mode=0o755, exist_ok=True)
    elif functions.is_dir() and not any(functions.iterdir()):
        functions.rmdir()
    for file in new:
        os.replace(file, functions / file.name)
    # A model without this new file has its parameters at the final path already.
    if os.path.isfile(model.parameters):
        os.replace(model.parameters, prefix + saved_model.PARAMETERS)
    os.replace(model.program, prefix + ".json")


# -- functions of the model ----------------------------------------------------------------------


def _compile(model: SavedModel, folder: Path, input_sets: Sequence[Inputs]) -> None:
    """Compiles the functions that a model needs for sets of inputs, by running the saved model."""
    program = model.as_pir()
    sources = {op.attrs()["name"]: op.result(0) for op in _feeds_of(program)}
    feeds = [_feed(sources, inputs) for inputs in input_sets]
    scope = paddle.static.Scope()
    model.load_parameters(scope)
    fetches = paddle.static.pir_io.get_pir_feed_and_fetch(program)[1]
    executor: Any = paddle.static.Executor(paddle.CPUPlace())
    graphs = {node.graph for node in nodes_of(program) if node.is_engine}
    identity = saved_model.identity_of(model.program, model.parameters).digest
    with (
        background_compile.compile_synchronously(),
        _collecting_functions(graphs, folder, identity),
        paddle.pir_utils.IrGuard(),
    ):
        for inputs, feed in zip(input_sets, feeds):
            with signals.recognized_signals():
                try:
                    executor.run(program, feed=feed, fetch_list=fetches, scope=scope)
                except Exception as error:
                    signals.raise_if_from_outside(error)
                    # Catches all exceptions, since Paddle raises errors of many types.
                    reason = saved_model.last_line(error)
                    raise NgraphError(
                        f"the model does not run with {_description_of(inputs)}: {reason}"
                    ) from error
    count = sum(1 for _ in folder.glob(saved_model.FUNCTIONS_GLOB))
    if count < len(graphs):
        warn(
            WarningCode.NOT_REACHED,
            f"{len(graphs) - count} of {len(graphs)} intervals were not reached with zeros for "
            "inputs: give arrays as input_shapes",
            stacklevel=4,
        )


@contextmanager
def _collecting_functions(graphs: set[str], folder: Path, identity: bytes) -> Iterator[None]:
    """Stores the functions of these graphs that are used inside ``with`` in a folder.

    ``identity``: the digest of the model that they belong to.
    """
    engines: list[_core.NgraphEngine] = []
    failures: list[str] = []
    try:
        for graph in sorted(graphs):
            engine = _core.NgraphEngine(graph)
            engine.begin_collection(str(folder), identity)
            engines.append(engine)
        yield
    finally:
        failures = [failure for engine in engines if (failure := engine.end_collection())]
    if failures:
        raise NgraphError(f"the functions cannot be stored: {failures[0]}")


def _feeds_of(program: Program) -> Iterator[Operation]:
    return (op for op in program.global_block().ops if op.name() in ("pd_op.data", "pd_op.feed"))


def _feed(sources: Mapping[str, Value], inputs: Inputs) -> dict[str, np.ndarray]:
    """Creates an array for each input of a saved model, for the run that compiles its functions."""
    if set(inputs) != set(sources):
        raise NgraphError(
            f"input_shapes names {', '.join(sorted(inputs)) or 'nothing'}, and the inputs of the "
            f"model are {', '.join(sorted(sources))}"
        )
    return {name: _array(name, value, inputs[name]) for name, value in sources.items()}


def _array(name: str, value: Value, wanted: Sequence[int] | np.ndarray) -> np.ndarray:
    shape = list(wanted.shape if isinstance(wanted, np.ndarray) else wanted)
    declared = list(value.shape)
    is_shape = all(isinstance(size, (int, np.integer)) and size > 0 for size in shape)
    fits = len(shape) == len(declared) and all(d in (-1, s) for d, s in zip(declared, shape))
    if not (is_shape and fits):
        raise NgraphError(
            f"{name} has the shape {declared} in the model, which {shape} does not match"
        )
    if isinstance(wanted, np.ndarray):
        return wanted
    try:
        return np.zeros(shape, convert_dtype(value.dtype))
    except MemoryError as error:
        raise NgraphError(f"an input {name} of shape {shape} is too large: {error}") from error


def _description_of(inputs: Inputs) -> str:
    shapes = {
        name: list(wanted.shape if isinstance(wanted, np.ndarray) else wanted)
        for name, wanted in inputs.items()
    }
    return ", ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
