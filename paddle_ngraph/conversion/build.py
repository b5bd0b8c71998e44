"""A build: from a graph string to the model that is compiled.

The bridge builds a model, operator by operator, and passes rewrite it. Each pass has its place in
:data:`PASSES`, and a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import openvino as ov

from paddle_ngraph.conversion import accelerators, constants, denylist, dynamic_shapes, processor
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
    attention,
    batch_split,
    channels_last,
    fusion,
    int8,
    matmuls,
    mixed_precision,
    plugin_workarounds,
    weight_compression,
)
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import CPU, Graph, device_of
from paddle_ngraph.utils.dtypes import element_name
from paddle_ngraph.utils.lru_cache import LRUCache, process_cache
from paddle_ngraph.utils.once import once
from paddle_ngraph.warning_codes import WarningCode, warn

# The signature of a function: the nGraph element type name and the shape of every input.
Signature = Sequence["tuple[str, tuple[int, ...]]"]


class BuildPass(NamedTuple):
    """One pass of a build.

    Attributes:
        name: The name of the pass.
        reason: The reason for the pass and for its place.
        run: The function of the pass.
        is_cpu_only: Whether other devices, which have neither this package's operators nor the
            plugin that the pass is for, skip it.
    """

    name: str
    reason: str
    run: Callable[[Draft], None]
    is_cpu_only: bool = False


def _split_batch(draft: Draft) -> None:
    if draft.splits_batch and not draft.builder.has_placeholders():
        draft.chunks = batch_split.split_batch(draft.model, draft.settings.threads, draft.bridge)


def _use_bfloat16_matmuls(draft: Draft) -> None:
    if draft.settings.precision == "bf16" and not draft.builder.graph.infers:
        mixed_precision.use_bfloat16_matmuls(draft.model, draft.bridge.extension)
    elif draft.builder.graph.has_bfloat16():
        mixed_precision.use_bfloat16_matmuls_of_bfloat16(draft.model, draft.bridge.extension)


def _use_onednn_matmuls(draft: Draft) -> None:
    # In inference with bfloat16 the plugin's own matmuls round their operands; those stay as they
    # are, and so do those whose weights are compressed.
    if draft.settings.weight_format != "as given":
        return
    if draft.settings.precision == "f32" or not draft.builder.graph.infers:
        matmuls.use_onednn_matmuls(draft.model, draft.bridge.extension)


def _compress_weights(draft: Draft) -> None:
    if draft.settings.weight_format != "as given":
        for model in draft.models():
            weight_compression.compress_weights(model, draft.settings.weight_format)


def _move_channels(draft: Draft) -> None:
    if draft.settings.precision == "f32":
        for model in draft.models():
            channels_last.move_channels(model)


def _preserve_branch_results(draft: Draft) -> None:
    for model in draft.models():
        plugin_workarounds.preserve_branch_results(model, draft.bridge.extension)


def _fuse_attention(draft: Draft) -> None:
    for model in draft.models():
        attention.fuse_attention(model, draft.bridge.extension)


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
        "split batch",
        "a request for each chunk keeps its activations in a core's caches; first, since its rules "
        "are for nodes as converters build them, with static shapes that the bridge knows, and "
        "since it determines the sizes of the matmuls",
        _split_batch,
        is_cpu_only=True,
    ),
    BuildPass(
        "make dimensions dynamic",
        "a model built at one signature becomes valid for all shapes that its guards allow",
        lambda draft: draft.builder.make_dynamic(draft.model),
    ),
    BuildPass(
        "preserve branch results",
        "the plugin loses results of an If whose memory has to grow: those of dynamic shapes",
        _preserve_branch_results,
        is_cpu_only=True,
    ),
    BuildPass(
        "fuse ReLU",
        "saves a pass over the data; recognizes comparisons only as converters build them",
        lambda draft: fusion.fuse_relus(draft.model, draft.bridge.extension),
        is_cpu_only=True,
    ),
    BuildPass(
        "reduce without unit axes",
        "the plugin miscounts axes of one element; before the pass over means, since this one "
        "creates some",
        _on_models(plugin_workarounds.reduce_without_ones),
    ),
    BuildPass(
        "divide sums over samples",
        "the plugin's means over samples are wrong from the second run on; before the pass over "
        "divisions, since this one creates some",
        _on_models(plugin_workarounds.divide_sums_over_samples),
    ),
    BuildPass(
        "divide exactly",
        "the plugin multiplies by a rounded reciprocal",
        _on_models(plugin_workarounds.divide_exactly),
    ),
    BuildPass(
        "squeeze to scalars",
        "the plugin crashes on some scalars that a Reshape computes",
        _on_models(plugin_workarounds.squeeze_to_scalars),
    ),
    BuildPass(
        "separate input of Abs",
        "the plugin's kernel of Abs overwrites its input, which a fused node may still have to "
        "read",
        _on_models(plugin_workarounds.separate_abs_input),
    ),
    BuildPass(
        "compare by less",
        "with AVX-512 the plugin treats NaN as greater than every number",
        _on_models(plugin_workarounds.compare_by_less),
    ),
    BuildPass(
        "use int8",
        "the plugin has int8 kernels for values that a program quantizes; matmuls with such a "
        "kernel stay with the plugin, and quantized weights must not be folded before",
        lambda draft: int8.use_int8(draft.model),
        is_cpu_only=True,
    ),
    BuildPass(
        "matmul in bfloat16",
        "a function that trains needs float32 elsewhere, which the plugin's own bfloat16 would not "
        "preserve; matmuls of integers stay as they are",
        _use_bfloat16_matmuls,
        is_cpu_only=True,
    ),
    BuildPass(
        "fuse attention",
        "of one position to many: the plugin prepares each of its nodes anew for each new length",
        _fuse_attention,
        is_cpu_only=True,
    ),
    BuildPass(
        "narrow uniform matmuls",
        "all columns of a product by zeros are equal, and Paddle multiplies by zeros for second "
        "gradients; before the pass that looks for large matmuls",
        _on_models(matmuls.narrow_uniform_matmuls),
    ),
    BuildPass(
        "matmul by oneDNN",
        "oneDNN's kernels are faster for some large matmuls",
        _use_onednn_matmuls,
        is_cpu_only=True,
    ),
    BuildPass(
        "fold constants",
        "the plugin computes some nodes that read only constants at the first run, then overwrites "
        "their results",
        _on_models(constants.compute_constants),
    ),
    BuildPass(
        "round sums before constants",
        "the plugin adds up the constants of successive sums first, and rounds small terms away; "
        "after folding, which shows which operands are constants",
        _on_models(algebra.round_sums_before_constants),
    ),
    BuildPass(
        "round products before constants",
        "the plugin multiplies constants with each other, and with weights, beyond float32",
        _on_models(algebra.round_products_before_constants),
    ),
    BuildPass(
        "preserve overflow before large terms",
        "the plugin computes a product and a sum in one step, in which the product does not "
        "overflow",
        _on_models(algebra.preserve_overflow_before_large_terms),
    ),
    BuildPass(
        "keep positive zeros",
        "the plugin removes sums with 0; after folding, which shows which operands are 0",
        _on_models(algebra.keep_positive_zeros),
    ),
    BuildPass(
        "separate ReLU of negatives",
        "the plugin merges relu(x) - a * relu(-x) into a PRelu, which is NaN for NaN, unlike ReLU",
        _on_models(algebra.separate_relus_of_negatives),
    ),
    BuildPass(
        "compute small erf",
        "the plugin's erf has few correct digits near 0",
        _on_models(algebra.compute_small_erf),
    ),
    BuildPass(
        "separate packed weights",
        "the plugin confuses two packed layouts of one weight; after folding, which shows which "
        "weights are constants",
        _on_models(constants.separate_packed_weights),
    ),
    BuildPass(
        "compress weights",
        "matmuls of few rows take the time in which weights come from memory; after all passes "
        "that fold constants, which would compute the weights again",
        _compress_weights,
        is_cpu_only=True,
    ),
    BuildPass(
        "move channels",
        "the plugin moves channels from last to first slowly where planes share a set of the "
        "cache; late, since it is for the final readers of a value",
        _move_channels,
        is_cpu_only=True,
    ),
    BuildPass(
        "disable loop fusion",
        "the plugin crashes on some loops that it fuses; late, since the final nodes show which",
        lambda draft: plugin_workarounds.disable_loop_fusion(
            draft.model, draft.builder.inner_models()
        ),
        is_cpu_only=True,
    ),
    BuildPass(
        "update in place",
        "saves copies of parameters and optimizer states; last, since no later pass may add a "
        "reader of a state that a run overwrites",
        _update_in_place,
    ),
)


class BuiltModel(NamedTuple):
    """The result of a build for the C++ engine, which reads it by these names.

    Attributes:
        model: The model as an object of OpenVINO's bindings, without its Python wrapper.
        parameter_inputs: The index of the input that feeds each parameter of the model, as in
            :attr:`Draft.positions`.
        draws: The random numbers to sample before a run.
        open_sizes: If there are symbols, the index of the symbol, or -1, for each dimension of each
            input, then for each element of inputs that are read by value.
        guards: Guards on the symbols, as :func:`symbolic_sizes.to_words` encodes them.
        parts: The number of chunks of the batch: the model computes one chunk.
        updates: The optimizer updates that a run does after the model.
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
    weight_format: str,
    threads: int,
) -> BuiltModel:
    """Called by the C++ engine on a cache miss: builds the model of a graph string.

    Args:
        text: The graph string.
        signature: The nGraph element type name and the shape of every input.
        values: Raw contents of the inputs that are read by value.
        weights: Views of the inputs that become constants; their contents stay valid as long as the
            function exists.
        precision, weight_format, threads: See :class:`RunSettings`.
    """
    settings = RunSettings(precision, weight_format, threads, device=device_of(text))
    if settings.precision == "bf16":
        _warn_without_bfloat16()
    on_cpu = settings.device == CPU
    device = "" if on_cpu else accelerators.device_for(settings.device, precision)
    signature = tuple(signature)
    contents = dynamic_shapes.contents_of(signature, values)
    found = _build_dynamic_model(text, signature, contents, weights, settings) if on_cpu else None
    if found is not None:
        return BuiltModel(
            unwrapped_model(found.draft.model),
            found.draft.positions,
            open_sizes=found.sizes,
            guards=found.guards,
            parts=found.draft.chunks,
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
        # A ValueError shows that the dtype of an input is not the one that the program declares.
        denylist.record_provisional_failure(text, NgraphError(str(error)))
        raise
    pin_gradients(draft)
    if draft.chunks > 1:
        dynamic_shapes.remember(text, signature, values, draft.chunks)
    return BuiltModel(
        unwrapped_model(draft.model),
        draft.positions,
        builder.inputs.draws,
        parts=draft.chunks,
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
    builder.name_bytes(model)
    if not bridge.on_cpu and model.is_dynamic():
        raise NgraphError(f"{bridge.device} is not given what only a run knows the shape of")
    return draft


def unwrapped_model(model: ov.Model) -> Any:
    """The C++ binding object inside OpenVINO's Python wrapper of a model."""
    return model._Model__model


_converted: LRUCache[tuple[str, tuple[Any, ...]], FunctionBuilder] = process_cache(
    __name__,
    "converted_graphs",
    "builders that have converted a graph of static shapes before its first run",
    key="graph string, and signature",
    bound=4,
)


def conversion_error(graph: Graph, text: str) -> ConversionError | None:
    """The error that a converter raises for a graph, found before a run.

    ``None`` if there is no error; or if conversion needs a run, for dynamic shapes or contents of
    inputs. The builder of a successful conversion is cached for the run.

    Args:
        graph: The subgraph.
        text: The graph string of the subgraph.
    """
    border = [*graph.inputs, *graph.states]
    if graph.value_inputs or any(-1 in spec.shape for spec in border):
        return None
    signature = [(str(element_name(s.dtype)), s.shape) for s in border]
    builder = FunctionBuilder(graph, signature)
    try:
        builder.bridge.convert()
    except ConversionError as error:
        return error.without_traceback()
    _converted.put((text, tuple(signature)), builder)
    return None


@once
def _warn_without_bfloat16() -> None:
    """Warns that the bf16 precision is slow if the processor has no units for bfloat16."""
    if not processor.has_bfloat16():
        warn(
            WarningCode.NO_BFLOAT16,
            "FLAGS_ngraph_precision=bf16: this processor has no units for bfloat16 (AVX512_BF16, "
            "AMX); float32 is used",
        )


def _build_dynamic_model(
    text: str,
    signature: tuple[tuple[str, tuple[int, ...]], ...],
    contents: Contents,
    weights: dict[int, memoryview],
    settings: RunSettings,
) -> dynamic_shapes.DynamicModel[Draft] | None:
    """Builds a model with dynamic shapes; see :func:`dynamic_shapes.build_dynamic_model`."""

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
    # Sizes of weights become static, because a weight becomes a constant.
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
