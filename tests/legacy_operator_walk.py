"""All operators of ProgramDesc and their gradients, each attribute off its default, against Paddle.

``python -m tests.legacy_operator_walk`` walks all of them and writes legacy_operators.json, from
which `make docs` writes a page of docs/reference. An operator runs in a program of its own, on
inputs that are drawn until Paddle accepts them; legacy_operator_inputs.json has inputs for
operators that accept few: shape, dtype, and where it matters LoD and values. Each operator has a
process of its own, since some kernels crash on wrong inputs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.base import core
from paddle.base.proto import framework_pb2

from paddle_ngraph.frontends.program_desc import old_operators, translation
from paddle_ngraph.frontends.program_desc.single_assignment import (
    IN_PLACE,
    NotTranslatable,
    operators,
)
from paddle_ngraph.paddle_private.names import (
    OperatorBase,
    PaddleJob,
    PaddlePlan,
    ProgramDesc,
    StandaloneExecutor,
    VarType,
    new_scope,
    values_of,
)
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.partitioning.analysis.operator_kinds import is_legacy_operator

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "legacy_operators.json"
_SECONDS, _CRASHES = 30, 4
_CPU = paddle.CPUPlace()
_TYPES = {
    "float32": VarType.FP32,
    "float64": VarType.FP64,
    "complex64": VarType.COMPLEX64,
    "int8": VarType.INT8,
    "int32": VarType.INT32,
    "int64": VarType.INT64,
    "bool": VarType.BOOL,
}
_SHAPES = [[2, 3], [2, 4, 3], [2, 4, 6, 6], [4], [1], [2, 1], [4, 4], [2, 4, 4, 6, 6], [], [6, 4]]
_FIRST = [
    [[2, 3], "float32"],
    [[2, 4, 6, 6], "float32"],
    [[2, 3], "int64"],
    [[2, 3], "int32"],
    [[2, 3], "bool"],
    [[4, 4], "float32"],
    [[2, 4, 6], "float32"],
    [[4], "float32"],
    [[1], "float32"],
    [[2, 3], "float64"],
    [[2, 4, 6, 6, 6], "float32"],
]
_GRADIENT = "@GRAD"
# The key of how an operator uses LoD, among those of its attributes.
LOD = "@LOD"
# Operators that this walk cannot compare: their results are random, memory that they do not write
# or that they share, or depend on other operators.
UNDEFINED = frozenset(
    {
        "affine_channel",
        "coalesce_tensor",
        "dequantize_linear",
        "dpsgd",
        "empty",
        "gather_tree",
        "lars_momentum",
        "quantize_linear",
        "seed",
        "self_dp_attention",
        "share_buffer",
        "shuffle_channel",
    }
)
_UNDEFINED_WITH = {
    ("reduce_amax", "reduce_all"): "Paddle writes a part of the result",
    ("reduce_amin", "reduce_all"): "Paddle writes a part of the result",
    ("split", "num"): "it has another number of outputs",
    ("auc", "num_thresholds"): "its statistics have another size",
    ("auc", "slide_steps"): "its statistics have another size",
    ("class_center_sample", "fix_seed"): "its results are random",
    ("fft_c2r", "axes"): "Paddle reads beyond the input",
    ("interp_antialias", "interp_method"): "Paddle writes no result",
    ("sparse_momentum", "axis"): "Paddle writes beyond the parameter",
}
# Outputs that a program never fetches: PIR lacks them, or does not write them.
_NOT_FETCHED = frozenset({"InnerCache", "MeanGradOut", "XShape"})
# Operators of which an output has to be an input, beside those that only may have such an output.
_IN_PLACE = frozenset({"fused_adam", "merged_adam", "merged_momentum"})
# Inputs that operators write in place of outputs of other names.
_SOURCES = {
    "LossScaling": "PrevLossScaling",
    "OutBadSteps": "InBadSteps",
    "OutGoodSteps": "InGoodSteps",
}
# Operators that read or write files, or start processes of their own.
OUTSIDE = frozenset({"load", "load_combine", "read_file", "save", "save_combine", "decode_jpeg"})
_KINDS = framework_pb2.AttrType
_STRINGS = [
    ["NCHW", "NHWC"],
    ["NCDHW", "NDHWC"],
    ["EXPLICIT", "SAME", "VALID"],
    ["upscale_in_train", "downgrade_in_infer"],
    ["none", "mean", "sum"],
    ["constant", "reflect", "replicate", "edge", "circular"],
    ["max", "avg", "SUM", "AVERAGE", "MAX"],
    ["bilinear", "nearest"],
    ["zeros", "border"],
    ["LSTM", "GRU"],
    ["tanh", "sigmoid", "relu", "identity"],
    ["encode_center_size", "decode_center_size"],
    ["all", "channel", "element"],
]

Inputs = dict[str, list[Any]]
Tensors = dict[str, tuple[Any, list[list[int]]]]


def prototypes() -> dict[str, Any]:
    """Paddle's descriptions of its ProgramDesc operators, by type."""
    found = map(framework_pb2.OpProto.FromString, core.get_all_op_protos())
    return {
        each.type: each for each in found if not each.type.startswith(("ngraph_", "mkl_packed_"))
    }


class Case(NamedTuple):
    """An operator in a program of its own, or an operator and its gradient.

    Attributes:
        program: The program.
        op: The operator; of a gradient, the last operator.
        tensors: The contents of the inputs of the program, by name.
        outputs: The names of the outputs of ``op`` that are compared.
    """

    program: Any
    op: Any
    tensors: Tensors
    outputs: list[str]


def case(proto: Any, inputs: Inputs, attributes: dict[str, Any]) -> Case:
    """Builds the program of an operator; raises any error of Paddle."""
    program = ProgramDesc()
    block = program.block(0)
    op = block.append_op()
    op.set_type(proto.type)
    draw = np.random.RandomState(zlib.crc32(proto.type.encode()))
    tensors: Tensors = {}
    for slot, specs in inputs.items():
        names = [f"{slot}_{index}" for index in range(len(specs))]
        for name, (shape, dtype, *more) in zip(names, specs):
            given = more[0] if more else {}
            _declare(block, name, _TYPES[dtype], shape, len(given.get("lod", ())))
            contents = _sampled(draw, shape, dtype)
            if "values" in given:
                contents = np.asarray(given["values"]).astype(dtype).reshape(shape)
            tensors[name] = contents, given.get("lod", [])
        op.set_input(slot, names)
    for absent in {slot.name for slot in proto.inputs} - inputs.keys():
        op.set_input(absent, [])
    outputs = []
    for output in proto.outputs:
        source = _source(proto, output)
        is_lost = output.name.startswith("MasterParam") or (source and source not in inputs)
        if output.dispensable and is_lost:
            op.set_output(output.name, [])
            continue
        if source in inputs:
            names = op.input(source)
        else:
            names = [f"{output.name}_{i}_out" for i in range(_count(proto, output, inputs))]
            for name in names:
                _declare(block, name, VarType.FP32, None)
        op.set_output(output.name, names)
        if not (output.intermediate or output.extra or output.name in _NOT_FETCHED):
            outputs += names
    setters = _setters(op)
    kinds = {attribute.name: attribute.type for attribute in proto.attrs}
    for name, value in attributes.items():
        setters.get(kinds.get(name), op._set_attr)(name, value)
    op.check_attrs()
    op.infer_var_type(block)
    op.infer_shape(block)
    for name in tensors:
        block.find_var(name.encode()).set_persistable(True)
    return Case(program, op, tensors, outputs)


def with_gradient(each: Case) -> Case | None:
    """The program of an operator and its gradient; ``None`` if Paddle has no gradient of it.

    The gradients of results are inputs of the program.
    """
    if (described := _described_gradient(each)) is None:
        return None
    scope = _run_in_scope(each)
    program = ProgramDesc(each.program)
    block = program.block(0)
    op = block.append_op()
    op.copy_from(described)
    tensors = dict(each.tensors)
    draw = np.random.RandomState(zlib.crc32(op.type().encode()))
    for name in op.input_arg_names():
        if name in tensors or not name.endswith(_GRADIENT):
            continue
        value = np.array(scope.find_var(name.removesuffix(_GRADIENT)).get_tensor())
        _declare(block, name, _TYPES[str(value.dtype)], list(value.shape))
        tensors[name] = _sampled(draw, list(value.shape), str(value.dtype)), []
        block.find_var(name.encode()).set_persistable(True)
    outputs = [name for name in op.output_arg_names() if name != "@EMPTY@"]
    for name in outputs:
        _declare(block, name, VarType.FP32, None)
    op.infer_var_type(block)
    op.infer_shape(block)
    return Case(program, op, tensors, outputs)


def _described_gradient(each: Case) -> Any:
    integers = {
        f"{name}{_GRADIENT}" for name, (a, _) in each.tensors.items() if a.dtype.kind not in "fc"
    }
    described = core.get_grad_op_desc(each.op, integers, [])[0]
    is_one = len(described) == 1 and described[0].type().endswith("_grad")
    return described[0] if is_one else None


def _source(proto: Any, output: Any) -> str:
    """The input that an operator writes in place, of which this output is the new value, or none.

    Operators of which that is not part of the name write no input in place.
    """
    if proto.type not in IN_PLACE | _IN_PLACE:
        return ""
    if output.name in _SOURCES:
        return _SOURCES[output.name]
    name = output.name.removesuffix("Out") if output.name.endswith("Out") else ""
    names = {name, f"{name}ulator", output.name.replace("out_", "in_", 1)}
    found = names & {slot.name for slot in proto.inputs}
    return found.pop() if found else name


def _declare(
    block: Any, name: str, dtype: Any, shape: list[int] | None, lod_level: int = 0
) -> None:
    variable = block.var(name.encode())
    variable.set_type(VarType.DENSE_TENSOR)
    variable.set_dtype(dtype)
    if lod_level:
        variable.set_lod_level(lod_level)
    if shape is not None:
        variable.set_shape(shape)


def _count(proto: Any, output: Any, inputs: Inputs) -> int:
    if not output.duplicable:
        return 1
    if proto.type in ("split", "unstack", "unbind"):
        return 2
    return 3 if proto.type == "distribute_fpn_proposals" else len(next(iter(inputs.values()), "."))


def _sampled(draw: Any, shape: list[int], dtype: str) -> np.ndarray:
    if dtype.startswith("complex"):
        return _sampled(draw, [*shape, 2], "float32").view(dtype)[..., 0]
    if dtype.startswith("float"):
        return np.asarray(draw.uniform(0.1, 0.9, shape)).astype(dtype)
    return np.asarray(draw.randint(0, 2, shape)).astype(dtype)


def _setters(op: Any) -> dict[int, Callable[[str, Any], None]]:
    return {
        _KINDS.Value("INT"): op._set_int32_attr,
        _KINDS.Value("LONG"): op._set_int64_attr,
        _KINDS.Value("FLOAT"): op._set_float32_attr,
        _KINDS.Value("FLOAT64"): op._set_float64_attr,
        _KINDS.Value("STRING"): op._set_str_attr,
        _KINDS.Value("BOOLEAN"): op._set_bool_attr,
        _KINDS.Value("INTS"): op._set_int32s_attr,
        _KINDS.Value("LONGS"): op._set_int64s_attr,
        _KINDS.Value("FLOATS"): op._set_float32s_attr,
        _KINDS.Value("FLOAT64S"): op._set_float64s_attr,
        _KINDS.Value("BOOLEANS"): op._set_bools_attr,
        _KINDS.Value("STRINGS"): op._set_strs_attr,
        _KINDS.Value("SCALAR"): lambda name, value: op._set_scalar_attr(name, _scalar(value)),
        _KINDS.Value("SCALARS"): lambda name, values: op._set_scalars_attr(
            name, [_scalar(value) for value in values]
        ),
    }


def _scalar(value: Any) -> Any:
    return core.Scalar(float(value))


def off_default(name: str, kind: int, default: Any) -> list[Any]:
    """Values of an attribute other than its default, of which Paddle may accept some."""
    label = _KINDS.Name(kind)
    if label == "BOOLEAN":
        found: list[Any] = [not default]
    elif label in ("INT", "LONG") and "dtype" in name:
        found = [int(VarType.FP64), int(VarType.INT32), int(VarType.INT64)]
    elif label in ("INT", "LONG"):
        found = [(default or 0) + 1, (default or 0) - 1, 2, 1, 0, 3]
    elif label in ("FLOAT", "FLOAT64"):
        found = [(default or 0.0) * 0.5 + 0.25, 0.3, 2.0, 5e-4]
    elif label == "STRING":
        found = [value for row in _STRINGS if default in row for value in row]
        found = found or ["0.5", "none", "sum", "relu"]
    elif label in ("INTS", "LONGS"):
        near = [[x + 1 for x in default], [2] * len(default)] if default else []
        found = [*near, [0], [1], [0, 1], [2, 2], [1, 1, 1, 1]]
    elif label in ("FLOATS", "FLOAT64S"):
        found = [[x * 0.5 + 0.25 for x in default]] if default else [[0.5], [0.5, 0.5]]
    else:
        found = {"BOOLEANS": [[True]], "STRINGS": [["a"]], "SCALAR": [0.3]}.get(label, [])
    return [value for value in found if value != default]


# -- runs ------------------------------------------------------------------------------------------


def run_natively(each: Case) -> Tensors:
    """The results of the ProgramDesc operator; raises any error of Paddle."""
    scope = _run_in_scope(each)
    return {name: _contents(scope.find_var(name).get_tensor()) for name in each.outputs}


def _run_in_scope(each: Case) -> Any:
    scope = _filled(each)
    paddle.seed(7)
    for op in operators(each.program.block(0)):
        for name in op.output_arg_names():
            scope.var(name).get_tensor()
        OperatorBase.create(op.serialize_to_string()).run(scope, _CPU)
    return scope


def run_translated(each: Case, program: Any) -> Tensors:
    """The results of its translation, by Paddle's interpreter."""
    scope = _filled(each)
    with fallback._PIR_IN_EXECUTOR, fallback._WITHOUT_INPLACE_PASS:
        plan = PaddlePlan([PaddleJob("default")], {"default": program})
        executor = StandaloneExecutor(_CPU, plan, scope)
    paddle.seed(7)
    with fallback._PIR_IN_EXECUTOR, fallback._TRACE_RUN:
        return dict(zip(each.outputs, map(_contents, values_of(executor.run([], False)))))


def _filled(each: Case) -> Any:
    scope = new_scope()
    for name, (contents, levels) in each.tensors.items():
        tensor = scope.var(name).get_tensor()
        tensor.set(contents, _CPU)
        if levels:
            tensor.set_lod(levels)
    return scope


def _contents(tensor: Any) -> tuple[Any, list[list[int]]]:
    return (np.array(tensor).copy() if tensor._is_initialized() else None), tensor.lod()


def differs(expected: Tensors, found: Tensors) -> list[str]:
    """The names of results that are not equal, or have another LoD."""
    return [
        name
        for name, (contents, levels) in found.items()
        if levels != expected[name][1] or not _are_equal(expected[name][0], contents)
    ]


def _are_equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is None  # results that Paddle does not write are not compared
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return np.array_equal(a, b)
    return np.allclose(a, b, 1e-5, 1e-6, equal_nan=True)


def verdict(each: Case, expected: Tensors) -> str:
    """``translated``, ``as it is: REASON``, ``refused: REASON``, or ``DIFFERENT: NAMES``."""
    try:
        program, _ = translation.translate_fetching(each.program, each.outputs)
    except NotTranslatable as reason:
        return f"refused: {reason}"
    kept = next((op for op in program.global_block().ops if _is_kept(op, each.op.type())), None)
    try:
        found = run_translated(each, program)
    except Exception as error:
        return f"DIFFERENT: {_last_line(error)}"
    if names := differs(expected, found):
        return f"DIFFERENT: {', '.join(names)}"
    return "translated" if kept is None else f"as it is: {kept.attrs()['reason']}"


def _is_kept(op: Any, type: str) -> bool:
    return is_legacy_operator(op.name()) and op.attrs()["type"] == type


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[-1][:100]


# -- the walk --------------------------------------------------------------------------------------


def candidates(proto: Any) -> Iterator[tuple[Inputs, dict[str, Any]]]:
    """Inputs and attributes that the operator may accept, the likeliest first."""
    known = json.loads((FOLDER / "legacy_operator_inputs.json").read_text()).get(proto.type)
    if known is not None:
        yield known["inputs"], known["attributes"]
    slots = [slot for slot in proto.inputs if not slot.dispensable]
    for spec in _FIRST:
        yield {slot.name: [spec] * (1 + slot.duplicable) for slot in slots}, {}
    draw = random.Random(zlib.crc32(proto.type.encode()))
    for _ in range(50):
        dtypes = [*["float32"] * 5, "int64", "int64", "int32", "bool"]
        yield {slot.name: [[draw.choice(_SHAPES), draw.choice(dtypes)]] for slot in slots}, {}


def accepted(proto: Any) -> tuple[Inputs, dict[str, Any]] | None:
    """The first candidate that Paddle runs twice with the same results."""
    for inputs, attributes in candidates(proto):
        try:
            each = case(proto, inputs, attributes)
            if not differs(run_natively(each), run_natively(each)):
                return inputs, attributes
        except Exception:
            continue
    return None


_COMMUNICATES = (
    *("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "c_", "fetch_barrier"),
    *("global_", "mp_allreduce", "p_recv", "p_send", "partial_", "recv_v2", "reduce_scatter"),
    *("send_v2", "comm_init", "dist_concat"),
)
_NO_INPUT = "Paddle runs it on no input that was tried"
# Operators of which an input or output is a list, rows, strings, or a variable of the caller.
_OTHER_VARIABLES = frozenset(
    {
        *("beam_search_decode", "data", "faster_tokenizer", "feed", "fetch", "fetch_v2"),
        *("get_tensor_from_selected_rows", "merge_selected_rows", "shadow_output"),
    }
)


def why_not_run(proto: Any) -> str:
    """The reason why Paddle ran an operator on none of the inputs, as far as Paddle shows it."""
    if reason := _why_not_here(proto.type):
        return reason
    names = {proto.type, core._get_phi_kernel_name(proto.type)}
    kernels = [core._get_all_register_op_kernels(library) for library in ("phi", "fluid")]
    found = [kernel for every in kernels for name in names for kernel in every.get(name, ())]
    found = [kernel for kernel in found if "place(cpu)" in kernel.lower()]
    if not found or "no kernels which are registered" in (raised := _raised(proto)):
        return "it has no kernel for CPUs"
    if all("ONEDNN" in kernel for kernel in found):
        return "its kernels for CPUs are oneDNN's alone"
    if any(text in raised for text in ("(Unavailable)", "(Unimplemented)", "_gpu_place", "GPU")):
        return "its kernel for CPUs raises an error"
    return _NO_INPUT


def _why_not_here(type: str) -> str:
    """The reason why no program of dense tensors alone runs an operator; empty if one may."""
    if type.startswith(_COMMUNICATES) or type == "reduce":
        return "it communicates"
    if type.startswith("sparse_") and type != "sparse_momentum":
        return "it reads or writes sparse tensors, which a ProgramDesc program does not have"
    if type in _OTHER_VARIABLES:
        return "it reads or writes other variables than dense tensors"
    return ""


def _raised(proto: Any) -> str:
    """The error of Paddle with the first candidate."""
    try:
        run_natively(case(proto, *next(candidates(proto))))
    except Exception as error:
        return str(error)
    return ""


def walk(proto: Any, skipped: Sequence[str], record: Callable[[str, str, str], None]) -> None:
    """Records the verdict on an operator (``""``), and on each attribute off its default.

    Under ``LOD``, how it uses a LoD. The same, without LoD, for its gradient, if it has one.
    """
    found = accepted(proto)
    if found is None:
        record(proto.type, "", f"not run: {why_not_run(proto)}")
        return
    inputs, attributes = found
    defaults = case(proto, inputs, attributes)
    for type, extended in ((proto.type, False), (_gradient_of(defaults), True)):
        for name in ["", *_attributes(proto)] if type else []:
            if (type, name) not in skipped:
                record(type, name, "not run: it crashes")
                judged = _verdict_on(proto, inputs, attributes, name, defaults, extended)
                record(type, name, judged)
    if (proto.type, LOD) not in skipped:
        record(proto.type, LOD, "not run: it crashes")
        record(proto.type, LOD, _use_of_lod(case(proto, inputs, attributes)))


def _gradient_of(each: Case) -> str:
    """The type of the gradient of an operator; empty if it has none of its own."""
    try:
        described = _described_gradient(each)
    except Exception:
        return ""
    return described.type() if described else ""


def _use_of_lod(each: Case) -> str:
    """Whether an operator writes a LoD: ``from none``, ``from inputs`` or ``never``."""
    if any(levels for _, levels in run_natively(each).values()):
        return "from inputs" if any(levels for _, levels in each.tensors.values()) else "from none"
    for name, (contents, _) in each.tensors.items():
        if contents.ndim == 0 or len(contents) < 2:
            continue
        given = {**each.tensors, name: (contents, [[0, 1, len(contents)]])}
        try:
            found = run_natively(each._replace(tensors=given))
        except Exception:
            continue
        if any(levels for _, levels in found.values()):
            return "from inputs"
    return "never"


def _attributes(proto: Any) -> list[str]:
    ignored = old_operators.IRRELEVANT_ATTRIBUTES
    return [each.name for each in proto.attrs if each.name not in ignored and not each.generated]


def _verdict_on(
    proto: Any,
    inputs: Inputs,
    attributes: dict[str, Any],
    name: str,
    defaults: Case,
    with_its_gradient: bool,
) -> str:
    kinds = {each.name: each.type for each in proto.attrs}
    values: list[Any] = [None]
    if (proto.type, name) in _UNDEFINED_WITH:
        return f"not run: {_UNDEFINED_WITH[proto.type, name]}"
    if name:
        default = defaults.op.attr(name) if defaults.op.has_attr(name) else None
        values = off_default(name, kinds[name], default)
    for value in values:
        try:
            each = case(proto, inputs, {**attributes, name: value} if name else attributes)
            each = with_gradient(each) if with_its_gradient else each
            expected = run_natively(each)
            if with_its_gradient and differs(expected, run_natively(each)):
                continue
        except Exception:
            continue
        return verdict(each, expected)
    return f"not run: {'no drawn value is accepted' if name else _NO_INPUT}"


def walk_apart(proto: Any) -> dict[str, dict[str, str]]:
    """:func:`walk` in processes of its own, by operator: a crash skips an attribute."""
    found: dict[tuple[str, str], str] = {}
    for _ in range(_CRASHES):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            _walk_in_child(proto, [*found], writing)
        os.close(writing)
        with os.fdopen(reading) as lines:
            for type, name, text in map(json.loads, lines):
                found[type, name] = text
        if os.waitpid(child, 0)[1] == 0:
            break
        why = _why_not_here(proto.type) or "it crashes"
        found = found or {(proto.type, ""): f"not run: {why}"}
    rows: dict[str, dict[str, str]] = {proto.type: {}}
    for (type, name), text in found.items():
        rows.setdefault(type, {})[name] = text
    return rows


def _walk_in_child(proto: Any, skipped: list[tuple[str, str]], writing: int) -> None:
    def record(*found: str) -> None:
        os.write(writing, (json.dumps(found) + "\n").encode())

    signal.alarm(_SECONDS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        walk(proto, skipped, record)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Walks all operators, and writes the verdicts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    parser.add_argument("types", nargs="*")
    options = parser.parse_args(arguments)
    verdicts: dict[str, dict[str, str]] = {}
    for type, proto in sorted(prototypes().items()):
        if type not in OUTSIDE and (not options.types or type in options.types):
            verdicts |= walk_apart(proto)
    rows = [f"  {json.dumps(type)}: {json.dumps(row)}" for type, row in sorted(verdicts.items())]
    options.output.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
