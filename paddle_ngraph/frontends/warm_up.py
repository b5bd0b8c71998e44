"""Compiles the functions of a model, program or layer ahead, for shapes that are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.inference import create_predictor

from paddle_ngraph import flags, statistics
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import ngraph_transpiler, verified_use
from paddle_ngraph.frontends.program_desc import translation
from paddle_ngraph.frontends.program_desc.single_assignment import NotTranslatable
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.paddle_private.names import convert_dtype
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.partitioning.analysis.block_view import changes_parameters
from paddle_ngraph.utils import clock
from paddle_ngraph.utils.progress import shown


class WarmUp(NamedTuple):
    """The functions that a warm-up has made ready.

    Attributes:
        built: Functions that were compiled, and stored in the disk cache if there is one.
        loaded: Functions that were loaded from the disk cache.
        reused: Functions that the process had already.
        seconds: The duration.
    """

    built: int
    loaded: int
    reused: int
    seconds: float


def warm_up(target: Any, inputs: Sequence[Any], fetch_list: Sequence[Any] | None) -> WarmUp:
    """Compiles functions ahead: see :func:`paddle_ngraph.warm_up`."""
    begin, before = clock.now(), statistics.stats()
    with _engine_on(), background_compile.compile_synchronously(), _same_random_stream():
        if isinstance(target, (str, Path)):
            model = saved_model.SavedModel.at(saved_model.find_only(str(target)))
            target = create_predictor(model.config())  # type: ignore[arg-type]
        dtypes = _dtypes(target)
        with _in_evaluation(target):
            for each in shown(inputs, "warming up"):
                verified_use.use_of(target, _arrays(each, dtypes), fetch_list)()
    after = statistics.stats()
    return WarmUp(
        after["functions_built"] - before["functions_built"],
        after["functions_loaded"] - before["functions_loaded"],
        after["functions_reused"] - before["functions_reused"],
        clock.now() - begin,
    )


@contextmanager
def _engine_on() -> Iterator[None]:
    before = flags.get("use_ngraph")
    flags.set("use_ngraph", True)
    try:
        yield
    finally:
        flags.set("use_ngraph", before)


@contextmanager
def _same_random_stream() -> Iterator[None]:
    state = paddle.get_rng_state("cpu")
    try:
        yield
    finally:
        paddle.set_rng_state(state, "cpu")


@contextmanager
def _in_evaluation(target: Any) -> Iterator[None]:
    """Inside ``with`` layers are in evaluation mode, and nothing is differentiated."""
    if not (isinstance(target, paddle.nn.Layer) and target.training):
        with paddle.no_grad():
            yield
        return
    training = [layer for layer in target.sublayers(include_self=True) if layer.training]
    target.eval()
    try:
        with paddle.no_grad():
            yield
    finally:
        for layer in training:
            layer.training = True


def _dtypes(target: Any) -> dict[str, str]:
    """The dtypes of the inputs of a predictor or program by name; none of a layer or function.

    Raises:
        NgraphError: A run of the program would change its variables.
    """
    if isinstance(target, paddle.inference.Predictor):
        handles = {name: target.get_input_handle(name) for name in target.get_input_names()}
        return {name: str(handle.type().name).lower() for name, handle in handles.items()}
    if callable(target):
        return {}
    program = _only_reading(target)
    sources = verified_use.sources_of(program)
    return {name: convert_dtype(value.dtype) for name, value in sources.items()}


def _only_reading(target: Any) -> Any:
    """Returns a program as a PIR program, unless it changes variables: a run would be a step."""
    program = ngraph_transpiler.static_program(
        target, "warm_up", ", the path of a model, a predictor, a layer or a function"
    )
    if not isinstance(program, paddle.pir.Program):
        try:
            program = translation.translate(program.desc)
        except NotTranslatable as reason:
            raise NgraphError(f"the program runs natively: {reason}") from reason
    if changes_parameters(program):
        raise NgraphError(
            "warm_up() would take a step, since a run of this program changes its variables: the "
            "first step compiles"
        )
    return program


def _arrays(given: Any, dtypes: Mapping[str, str]) -> Any:
    """Inputs with arrays of zeros in place of shapes, by name or in their order."""
    if isinstance(given, Mapping):
        return {name: _array(value, dtypes.get(name, "float32")) for name, value in given.items()}
    if isinstance(given, (np.ndarray, paddle.Tensor)) or _is_shape(given):
        given = [given]
    in_order = [*dtypes.values(), *["float32"] * len(given)]
    return [_array(value, dtype) for value, dtype in zip(given, in_order)]


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(size, int) for size in value)


def _array(value: Any, dtype: str) -> Any:
    return np.zeros(value, dtype) if _is_shape(value) else value
