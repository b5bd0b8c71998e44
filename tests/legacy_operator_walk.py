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
from functools import cache, partial
from itertools import islice, product
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
from paddle_ngraph.partitioning import fallback, program_pass
from paddle_ngraph.partitioning.analysis.operator_kinds import is_legacy_operator
from tests import legacy_operator_reasons as reasons

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "legacy_operators.json"
_SECONDS, _CRASHES, _SEED = 60, 8, 7
NOT_RUN = "not run: "
# How many other inputs are tried with an attribute of which the inputs allow no other value.
_OTHER_INPUTS = 15
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
# Operators and attributes with which results are not to be compared.
UNDEFINED_WITH = {
    ("coalesce_tensor", "dtype"): "its result is memory that nothing writes",
    ("coalesce_tensor", "use_align"): "its result is memory that nothing writes",
    ("share_buffer", ""): "its result is the memory of its input",
    ("empty", ""): "its result is memory that nothing writes",
    ("empty", "shape"): "its result is memory that nothing writes",
    ("empty", "dtype"): "its result is memory that nothing writes",
    ("coalesce_tensor", "copy_data"): "its result is memory that nothing writes",
    ("reduce_amax", "reduce_all"): "Paddle writes a part of the result",
    ("reduce_amin", "reduce_all"): "Paddle writes a part of the result",
    ("class_center_sample", "fix_seed"): "its results are random",
    ("fft_c2r", "axes"): "Paddle reads beyond the input",
    ("interp_antialias", "interp_method"): "Paddle writes no result",
    ("sparse_momentum", "axis"): "Paddle writes beyond the parameter",
    **{
        (f"index_elementwise_{each}", name): "Paddle computes addresses from it alone"
        for each in ("get", "put", "put_with_tensor")
        for name in (
            *("index_dims", "index_stride", "index_strides", "input_dims", "input_strides"),
            "slice_offset",
        )
    },
}
# Outputs that a program never fetches: PIR lacks them, or does not write them, or a kernel writes
# a part of their memory (OutScales).
_NOT_FETCHED = frozenset({"InnerCache", "MeanGradOut", "OutScales", "XShape"})
# Operators of which an output has to be an input, beside those that only may have such an output.
_IN_PLACE = frozenset(
    {
        *("depend", "dequantize_linear", "fused_adam", "merged_adam", "merged_momentum"),
        "quantize_linear",
    }
)
# Inputs that operators write in place of outputs of other names.
_SOURCES = {
    "LossScaling": "PrevLossScaling",
    "OutBadSteps": "InBadSteps",
    "OutGoodSteps": "InGoodSteps",
    "OutAccum": "InAccum",
    "OutScale": "InScale",
    "OutState": "InState",
}
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
            number = _count(proto, output, inputs, attributes)
            names = [f"{output.name}_{i}_out" for i in range(number)]
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
    if proto.type == "depend":
        return "X"
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


def _count(proto: Any, output: Any, inputs: Inputs, attributes: dict[str, Any]) -> int:
    if not output.duplicable:
        return 1
    if proto.type in ("split", "unstack", "unbind"):
        return int(attributes.get("num") or 2)
    if proto.type == "rnn":
        return len(inputs["PreState"])
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


def run_natively(each: Case, seed: int = _SEED) -> Tensors:
    """The results of the ProgramDesc operator; raises any error of Paddle."""
    scope = _run_in_scope(each, seed)
    return {name: _contents(scope.find_var(name).get_tensor()) for name in each.outputs}


def _run_in_scope(each: Case, seed: int = _SEED) -> Any:
    scope = _filled(each)
    paddle.seed(seed)
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
    paddle.seed(_SEED)
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
        program, _ = translation.translate_fetching(each.program, each.outputs, may_chain=True)
    except NotTranslatable as reason:
        return f"refused: {reason}"
    program_pass.canonicalize(program)
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


@cache
def _known_inputs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "legacy_operator_inputs.json").read_text())
    return found


def candidates(proto: Any) -> Iterator[tuple[Inputs, dict[str, Any]]]:
    """Inputs and attributes that the operator may accept, the likeliest first."""
    if (known := _known_inputs().get(proto.type)) is not None:
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


def why_not_run(proto: Any) -> str:
    """The reason why Paddle ran an operator on none of the inputs, as far as Paddle shows it."""
    try:
        run_natively(case(proto, *next(candidates(proto))))
    except Exception as error:
        return f"{reasons.RAISES}{reasons.name_of_error(error)}"
    return reasons.RANDOM


def walk(proto: Any, skipped: Sequence[str], record: Callable[[str, str, str], None]) -> None:
    """Records the verdict on an operator (``""``), and on each attribute off its default.

    Under ``LOD``, how it uses a LoD. The same, without LoD, for its gradient, if it has one.
    """
    reason = reasons.known_reason(proto)
    # Some operators run though the registries have no kernel of theirs.
    is_tried = reason in ("", reasons.NO_KERNEL, reasons.ONEDNN)
    found = accepted(proto) if is_tried else None
    if found is None:
        record(proto.type, "", f"{NOT_RUN}{reason or why_not_run(proto)}")
        return
    defaults = case(proto, *found)
    for type, extended in ((proto.type, False), (_gradient_of(defaults), True)):
        for name in ["", *attributes_of(proto)] if type else []:
            if (type, name) not in skipped:
                judge = _Judge(proto, found, name, extended, partial(record, type, name))
                record(type, name, judge.verdict())
    if (proto.type, LOD) not in skipped:
        record(proto.type, LOD, f"{NOT_RUN}{reasons.CRASHES}")
        record(proto.type, LOD, _use_of_lod(case(proto, *found)))


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


def attributes_of(proto: Any) -> list[str]:
    """The names of the attributes of an operator that have an effect on its results."""
    ignored = old_operators.IRRELEVANT_ATTRIBUTES
    return [each.name for each in proto.attrs if each.name not in ignored and not each.generated]


class _Judge:
    """Judges an operator, or an attribute of it off its default.

    Args:
        proto: The operator.
        found: Inputs and attributes that Paddle accepts.
        name: The name of the attribute; empty: all have their defaults.
        is_gradient: Whether the gradient is judged.
        record: Called with what a crash from now on would mean.
    """

    def __init__(
        self,
        proto: Any,
        found: tuple[Inputs, dict[str, Any]],
        name: str,
        is_gradient: bool,
        record: Callable[[str], None],
    ) -> None:
        self._proto, self._found, self._name = proto, found, name
        self._is_gradient, self._record = is_gradient, record
        self._errors: list[BaseException] = []
        self._is_random = False

    def verdict(self) -> str:
        """The verdict, or the reason why there is none."""
        if why := UNDEFINED_WITH.get((self._proto.type, self._name)):
            return f"{NOT_RUN}{why}"
        self._record(f"{NOT_RUN}{reasons.CRASHES}")
        for each in self._cases():
            try:
                each = with_gradient(each) if self._is_gradient else each
                expected = run_natively(each)
                if self._is_gradient and differs(expected, run_natively(each)):
                    self._is_random = True
                    continue
            except Exception as error:
                self._errors.append(error)
                continue
            self._record("DIFFERENT: its translation crashes")
            return verdict(each, expected)
        return f"{NOT_RUN}{self._why_none()}"

    def _cases(self) -> Iterator[Case]:
        """Programs with each value of the attribute, on the inputs and on others."""
        for inputs, attributes in self._given():
            try:
                each = case(self._proto, inputs, attributes)
            except Exception as error:
                self._errors.append(error)
            else:
                yield each

    def _given(self) -> Iterator[tuple[Inputs, dict[str, Any]]]:
        inputs, attributes = self._found
        known = _known_inputs().get(self._proto.type, {}).get("off", {})
        if not self._name:
            yield self._found
        elif self._name in known:
            off = known[self._name]
            yield {**inputs, **off.get("inputs", {})}, {**attributes, **off["attributes"]}
        else:
            others = islice(candidates(self._proto), _OTHER_INPUTS)
            for (inputs, attributes), value in product([self._found, *others], self._values()):
                yield inputs, {**attributes, self._name: value}

    def _values(self) -> list[Any]:
        kinds = {each.name: each.type for each in self._proto.attrs}
        defaults = case(self._proto, *self._found)
        default = defaults.op.attr(self._name) if defaults.op.has_attr(self._name) else None
        return off_default(self._name, kinds[self._name], default)

    def _why_none(self) -> str:
        if self._is_random:
            return reasons.RANDOM
        name = reasons.name_of_error(self._errors[0]) if self._errors else ""
        if not self._name:
            return f"{reasons.RAISES}{name}"
        return f"Paddle raises {name} for every other value" if name else reasons.NO_OTHER


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
        if (status := os.waitpid(child, 0)[1]) == 0:
            break
        found = found or {(proto.type, ""): f"{NOT_RUN}{reasons.CRASHES}"}
        found = {key: _with_signal(text, status) for key, text in found.items()}
    rows: dict[str, dict[str, str]] = {proto.type: {}}
    for (type, name), text in found.items():
        rows.setdefault(type, {})[name] = text
    return rows


def _with_signal(text: str, status: int) -> str:
    """A text that ends with the signal that ended a process, if it says that Paddle crashes."""
    crashes = text.endswith(reasons.CRASHES) and os.WIFSIGNALED(status)
    return text + signal.Signals(os.WTERMSIG(status)).name if crashes else text


def _walk_in_child(proto: Any, skipped: list[tuple[str, str]], writing: int) -> None:
    def record(*found: str) -> None:
        os.write(writing, (json.dumps(found) + "\n").encode())

    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    paddle.disable_signal_handler()  # it would lock up after some crashes
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
        if not options.types or type in options.types:
            verdicts |= walk_apart(proto)
    rows = [f"  {json.dumps(type)}: {json.dumps(row)}" for type, row in sorted(verdicts.items())]
    options.output.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
