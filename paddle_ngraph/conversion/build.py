"""A build: from a graph string to the model that is compiled.

The bridge builds a model, operator by operator, and passes rewrite it. Each pass has its place in
:data:`PASSES`, and a reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import openvino as ov

from paddle_ngraph.conversion import accelerators, constants, denylist, dynamic_shapes, processor
from paddle_ngraph.conversion.bridge import element_type
from paddle_ngraph.conversion.draft import Draft, Update
from paddle_ngraph.conversion.dynamic_shapes import Contents, SymbolicDims
from paddle_ngraph.conversion.errors import ConversionError
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.gradient_pinning import pin_gradients
from paddle_ngraph.conversion.integer_checks import RangeCheck
from paddle_ngraph.conversion.model_inputs import Draw
from paddle_ngraph.conversion.optimizer_updates import update_in_place
from paddle_ngraph.conversion.passes import (
    algebra,
    batch_split,
    fusion,
    int8,
    matmuls,
    mixed_precision,
    plugin_workarounds,
)
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import CPU, Graph, device_of
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.utils.once import once

# The signature of a function: the nGraph element type name and the shape of every input.
Signature = Sequence["tuple[str, tuple[int, ...]]"]


class BuildPass(NamedTuple):
    """One pass of a build.

    Attributes:
        name: The name of the pass.
        reason: The reason for the pass and for its place.
        run: The function of the pass.
        is_cpu_only: Whether other devices, which have neither the core's operators nor the plugin
            that the pass is for, skip it.
    """

    name: str
    reason: str
    run: Callable[[Draft], None]
    is_cpu_only: bool = False


def _split_batch(draft: Draft) -> None:
    if draft.splits_batch and not draft.builder.has_placeholders():
        draft.parts = batch_split.split_batch(draft.model, draft.settings.threads, draft.bridge)


def _use_bfloat16_matmuls(draft: Draft) -> None:
    if draft.settings.precision == "bf16" and not draft.builder.graph.infers:
        mixed_precision.use_bfloat16_matmuls(draft.model, draft.bridge.extension)
    elif draft.builder.graph.has_bfloat16():
        mixed_precision.use_bfloat16_matmuls_of_bfloat16(draft.model, draft.bridge.extension)


def _use_onednn_matmuls(draft: Draft) -> None:
    # Not in inference with bfloat16, where the plugin's own matmuls round their operands.
    if draft.settings.precision == "f32" or not draft.builder.graph.infers:
        matmuls.use_onednn_matmuls(draft.model, draft.bridge.extension)


def _preserve_branch_results(draft: Draft) -> None:
    for model in draft.models():
        plugin_workarounds.preserve_branch_results(model, draft.bridge.extension)


def _update_in_place(draft: Draft) -> None:
    inputs, outputs = draft.builder.boundary_sizes()
    update_in_place(draft, inputs, outputs)


def _on_models(change: Callable[[ov.Model], None]) -> Callable[[Draft], None]:
    def run(draft: Draft) -> None:
        for model in draft.models():
            change(model)

    return run


PASSES = (
    BuildPass(
        "part the batch",
        "a request for each part keeps its activations in a core's caches; it has rules for what "
        "converters make, whose sizes the bridge knows as long as none is open, and decides how "
        "large the products are",
        _split_batch,
        is_cpu_only=True,
    ),
    BuildPass(
        "open dimensions",
        "a model built at one signature becomes valid for all shapes that its guards allow",
        lambda draft: draft.builder.make_dynamic(draft.model),
    ),
    BuildPass(
        "keep what branches make",
        "the plugin loses what an If has made where memory has to grow, that is, for open sizes",
        _preserve_branch_results,
        is_cpu_only=True,
    ),
    BuildPass(
        "fuse rectifiers",
        "saves a pass over the data; recognizes comparisons only as converters write them",
        lambda draft: fusion.fuse_relus(draft.model, draft.bridge.extension),
        is_cpu_only=True,
    ),
    BuildPass(
        "reduce without ones",
        "the plugin loses count of axes of one element; before means are looked at, of which this "
        "makes some",
        _on_models(plugin_workarounds.reduce_without_ones),
    ),
    BuildPass(
        "divide sums over samples",
        "the plugin's means over samples are wrong from the second run on; before divisions are "
        "looked at, as this makes some",
        _on_models(plugin_workarounds.divide_sums_over_samples),
    ),
    BuildPass(
        "divide exactly",
        "the plugin multiplies by a rounded reciprocal",
        _on_models(plugin_workarounds.divide_exactly),
    ),
    BuildPass(
        "squeeze to scalars",
        "the plugin crashes on some scalars that a Reshape makes",
        _on_models(plugin_workarounds.squeeze_to_scalars),
    ),
    BuildPass(
        "keep what Abs reads",
        "the plugin overwrites what other nodes read too",
        _on_models(plugin_workarounds.separate_abs_input),
    ),
    BuildPass(
        "compare from below",
        "with AVX-512 the plugin treats NaN as greater than every number",
        _on_models(plugin_workarounds.compare_by_less),
    ),
    BuildPass(
        "use int8",
        "the plugin has int8 kernels for what a program quantizes; products that get one stay with "
        "the plugin, and weights on a grid must not be computed beforehand",
        lambda draft: int8.use_int8(draft.model),
        is_cpu_only=True,
    ),
    BuildPass(
        "multiply in bfloat16",
        "a function that trains needs float32 elsewhere, which the plugin's own bfloat16 would not "
        "keep; products of whole numbers stay as they are",
        _use_bfloat16_matmuls,
        is_cpu_only=True,
    ),
    BuildPass(
        "products by oneDNN",
        "its kernels are faster for some large products",
        _use_onednn_matmuls,
        is_cpu_only=True,
    ),
    BuildPass(
        "compute constants",
        "the plugin computes some nodes of constants alone at the first run, then overwrites them",
        _on_models(constants.compute_constants),
    ),
    BuildPass(
        "keep sums before constants",
        "the plugin sums constants up, and loses what is small beside them; only from here on they "
        "are constants",
        _on_models(algebra.round_sums_before_constants),
    ),
    BuildPass(
        "keep products before constants",
        "the plugin multiplies constants with each other, and with weights, beyond float32",
        _on_models(algebra.round_products_before_constants),
    ),
    BuildPass(
        "keep products before large terms",
        "the plugin computes a product and a sum in one step, in which nothing overflows",
        _on_models(algebra.preserve_overflow_before_large_terms),
    ),
    BuildPass(
        "keep positive zeros",
        "the plugin leaves sums with 0 out; constants tell which they are",
        _on_models(algebra.keep_positive_zeros),
    ),
    BuildPass(
        "keep rectifiers of negatives",
        "the plugin makes one node of two, and NaN of 0",
        _on_models(algebra.separate_relus_of_negatives),
    ),
    BuildPass(
        "compute small erf",
        "the plugin has few digits of it",
        _on_models(algebra.compute_small_erf),
    ),
    BuildPass(
        "part packed weights",
        "the plugin confuses weights that are packed in two ways; only from here on they are "
        "constants",
        _on_models(constants.separate_packed_weights),
    ),
    BuildPass(
        "keep loops apart",
        "the plugin crashes on some loops that it fuses; the final nodes show which",
        lambda draft: plugin_workarounds.disable_loop_fusion(
            draft.model, draft.builder.inner_models()
        ),
        is_cpu_only=True,
    ),
    BuildPass(
        "update in place",
        "parameters and states of optimizers are there once, and written where they are; the model "
        "is final then, so that nothing can come to read them",
        _update_in_place,
    ),
)


class BuiltModel(NamedTuple):
    """The result of a build for the C++ engine, which reads it by these names.

    Attributes:
        model: The model as an object of OpenVINO's bindings, without its Python wrapper.
        parameter_inputs: See :attr:`Draft.positions`.
        draws: The random numbers to sample before a run.
        open_sizes: If there are symbols, the index of the symbol, or -1, for each dimension of each
            input, then for each element of inputs that are read by value.
        guards: Guards on the symbols, as :func:`symbolic_sizes.to_words` encodes them.
        parts: The number of chunks of the batch: the model computes one chunk.
        updates: See :attr:`Draft.updates`.
        checks: Range checks that a run does before the device reads its inputs.
        device: OpenVINO's name of a device; empty for the CPU.
    """

    model: Any
    parameter_inputs: list[int]
    draws: Sequence[Draw] = ()
    open_sizes: Sequence[int] = ()
    guards: Sequence[int] = ()
    parts: int = 1
    updates: Sequence[Update] = ()
    checks: Sequence[RangeCheck] = ()
    device: str = ""


def build_model(
    text: str,
    signature: Signature,
    values: dict[int, bytes],
    weights: dict[int, memoryview],
    precision: str,
    threads: int,
) -> BuiltModel:
    """Called by the C++ engine on a cache miss: builds the model of a graph string.

    Args:
        text: The graph string.
        signature: The nGraph element type name and the shape of every input.
        values: Raw contents of the inputs that are read by value.
        weights: Views of the inputs that become constants; their contents stay valid as long as the
            function exists.
        precision, threads: See :class:`RunSettings`.
    """
    settings = RunSettings(precision, threads, device=device_of(text))
    if settings.precision == "bf16":
        _warn_without_bfloat16()
    on_cpu = settings.device == CPU
    device = "" if on_cpu else accelerators.device_for(settings.device, precision)
    signature = tuple(signature)
    contents = dynamic_shapes.contents_of(signature, values)
    found = _build_dynamic_model(text, signature, contents, weights, settings) if on_cpu else None
    if found is not None:
        return BuiltModel(
            _unwrapped_model(found.draft.model),
            found.draft.positions,
            open_sizes=found.sizes,
            guards=found.guards,
            parts=found.draft.parts,
            updates=found.draft.updates,
        )
    try:
        builder = _converted.pop((text, signature))
        if builder is None:
            builder = FunctionBuilder(Graph.from_string(text), signature, contents)
        draft = make_model(builder, weights, settings, splits_batch=True, in_place=True)
    except ConversionError as error:
        denylist.record_provisional_failure(text, error.without_traceback())
        raise
    except ValueError as error:
        # ValueError: the dtype of an input is not the one that the program declares.
        denylist.record_provisional_failure(text, NgraphError(str(error)))
        raise
    pin_gradients(draft)
    if draft.parts > 1:
        dynamic_shapes.remember(text, signature, values, draft.parts)
    return BuiltModel(
        _unwrapped_model(draft.model),
        draft.positions,
        builder.inputs.draws,
        parts=draft.parts,
        updates=draft.updates,
        checks=builder.bridge.integers.checks,
        device=device,
    )


def make_model(
    builder: FunctionBuilder,
    weights: Mapping[int, Any] | None = None,
    settings: RunSettings = RunSettings(),  # noqa: B008 - it is frozen
    splits_batch: bool = False,
    in_place: bool = False,
) -> Draft:
    """The model of a graph after all passes.

    Args:
        builder: The builder of the graph's model, at a signature.
        weights: The contents of inputs that become constants, by input index: buffers in C order.
        settings: The settings of the build.
        splits_batch: Whether the batch may be computed in chunks.
        in_place: Whether the constants are these buffers, not copies.

    Raises:
        ConversionError: Names the operator that could not be converted, and why.
    """
    model, positions = builder.build(weights, in_place)
    bridge = builder.bridge
    draft = Draft(model, positions, builder, settings, splits_batch)
    for step in PASSES:
        if bridge.on_cpu or not step.is_cpu_only:
            step.run(draft)
    if not bridge.on_cpu and model.is_dynamic():
        raise NgraphError(f"{bridge.device} is not given what only a run knows the shape of")
    return draft


def _unwrapped_model(model: ov.Model) -> Any:
    """The model without its Python wrapper."""
    return model._Model__model


_converted: LRUCache[tuple[str, tuple[Any, ...]], FunctionBuilder] = process_cache(
    __name__,
    "converted_graphs",
    "builders that have converted a graph of static shapes before its first run",
    key="graph string, and signature",
    bound=4,
)


def conversion_error(graph: Graph, text: str) -> ConversionError | None:
    """The error that a converter raises, known before a run if every shape is static.

    The builder of a successful conversion is cached for the run.

    Args:
        graph: The subgraph.
        text: The graph string of the subgraph.
    """
    border = [*graph.inputs, *graph.states]
    if graph.value_inputs or any(-1 in spec.shape for spec in border):
        return None
    signature = [(str(element_type(s.dtype).get_type_name()), s.shape) for s in border]
    builder = FunctionBuilder(graph, signature)
    try:
        builder.bridge.convert()
    except ConversionError as error:
        return error.without_traceback()
    _converted.put((text, tuple(signature)), builder)
    return None


@once
def _warn_without_bfloat16() -> None:
    """Warns if the processor has no units for bfloat16."""
    if not processor.has_bfloat16():
        warnings.warn(
            "FLAGS_ngraph_precision=bf16: this processor has no units for bfloat16 (AVX512_BF16, "
            "AMX); float32 is used",
            stacklevel=2,
        )


def _build_dynamic_model(
    text: str,
    signature: tuple[tuple[str, tuple[int, ...]], ...],
    contents: Contents,
    weights: dict[int, memoryview],
    settings: RunSettings,
) -> dynamic_shapes.DynamicModel[Draft] | None:
    """See :func:`dynamic_shapes.build_dynamic_model`."""

    def build(symbolic_dims: SymbolicDims) -> Draft:
        return model_with(
            symbolic_dims,
            text,
            signature,
            weights,
            settings,
            contents,
            splits_batch=True,
            in_place=True,
        )

    return dynamic_shapes.build_dynamic_model(text, signature, contents, build)


def model_with(
    symbolic_dims: SymbolicDims,
    text: str,
    signature: Signature,
    weights: Mapping[int, Any],
    settings: RunSettings,
    contents: Contents = MappingProxyType({}),
    splits_batch: bool = False,
    in_place: bool = False,
) -> Draft:
    """The model of a graph with dynamic dimensions, as :func:`make_model` returns it.

    Raises:
        ConversionError: As in :func:`make_model`.
        NgraphError: The graph has a stochastic operator.
    """
    # The dimensions of weights are fixed, because a weight becomes a constant, which has a static
    # shape.
    for position in weights:
        symbolic_dims.fix(position)
    builder = FunctionBuilder(Graph.from_string(text), signature, contents, symbolic_dims)
    builder.bridge.convert()
    if builder.inputs.draws:
        raise NgraphError("how many numbers are drawn depends on sizes")
    # A batch whose contents are symbolic is not computed in chunks: contents become parameters, and
    # these are not split into samples.
    splits_batch = splits_batch and not symbolic_dims.has_symbolic_contents()
    return make_model(builder, weights, settings, splits_batch, in_place)
