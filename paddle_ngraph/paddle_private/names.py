"""Private names of Paddle that the package reads, under descriptive names.

Each name is bound once, before any patch is applied; a name that must be looked up later is a
function.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import CodeType, FrameType
from typing import Any, TypeVar

from paddle_ngraph.paddle_private import releases
from paddle_ngraph.paddle_private.place import ATTRIBUTE, PatchTarget, resolve
from paddle_ngraph.paddle_private.protocols import (
    LegacyBlock,
    LegacyOperator,
    LegacyProgramDesc,
    LegacyVariable,
    Operation,
    Program,
    Scope,
    StaticLayer,
    Store,
    Tensor,
    Value,
)

T = TypeVar("T")

READ_TARGETS: list[PatchTarget] = []

_CORE, _LIBRARY = "paddle.base.core", "paddle.base.libpaddle"
_core = resolve(_CORE)
_LAYER = "paddle.jit.dy2static.pir_partial_program:PartialProgramLayer"


def _read(owner: str, name: str, signature: str | None = None) -> Any:
    target = PatchTarget(owner, name, signature)
    READ_TARGETS.append(target)
    return target.current


def _attribute(owner: str, name: str) -> Callable[[Any], Any]:
    """A function that reads an attribute of the objects of a class."""
    READ_TARGETS.append(PatchTarget(owner, name, ATTRIBUTE))
    return attrgetter(name)


# -- classes -------------------------------------------------------------------------------------

StandaloneExecutor = _read(_CORE, "StandaloneExecutor")
PaddlePlan = _read(_CORE, "Plan")
PaddleJob = _read(_CORE, "Job")
DenseTensor = _read(_CORE, "DenseTensor")
TrainerBase = _read(_CORE, "TrainerBase")
PaddleDType = _read(_CORE, "PaddleDType")
ProgramDesc = _read(_CORE, "ProgramDesc")
# The message of a ProgramDesc operator, and the numbers of the types of its attributes.
OperatorMessage = _read("paddle.base.proto.framework_pb2", "OpDesc")

ProgramMessage = _read("paddle.base.proto.framework_pb2", "ProgramDesc")
# Runs the operators of a ProgramDesc block one by one, in a scope.
BlockExecutor = _read(_CORE, "Executor")
# A ProgramDesc operator that can run in a scope.
OperatorBase = _read(_CORE, "Operator")
VarType = _read(f"{_CORE}:VarDesc", "VarType")
AttrType = _read(_CORE, "AttrType")
Scalar = _read(_CORE, "Scalar")
AnalysisConfig = _read(_CORE, "AnalysisConfig")
# Objects of one of these exist wherever a predictor or a handle of one exists.
INFERENCE_CLASSES = (
    AnalysisConfig,
    *(_read(_CORE, n) for n in ("PaddleInferPredictor", "PaddleInferTensor", "PredictorPool")),
)
IrMapping = _read(f"{_LIBRARY}:pir", "IrMapping")
LegacyProgram = _read("paddle.base.framework", "Program")
StaticFunction = _read("paddle.jit.dy2static.program_translator", "StaticFunction")
ASTStaticFunction = _read("paddle.jit.dy2static.program_translator", "ASTStaticFunction")
PirTranslatedLayer = _read("paddle.jit.pir_translated_layer", "PirTranslatedLayer")
LegacyTranslatedLayer = _read("paddle.jit.translated_layer", "TranslatedLayer")
RNNBase: Any = _read("paddle.nn.layer.rnn", "RNNBase")
PartialProgramLayer: Any = resolve(_LAYER)
PyLayer: Any = resolve("paddle.autograd:PyLayer")

# -- distributed processes -----------------------------------------------------------------------
#
# # The store of this job; its server is rank 0, according to PADDLE_MASTER and PADDLE_TRAINER_ID.
global_store: Callable[[], Store] = _read(_CORE, "create_or_get_global_tcp_store", "() -> Store")
make_gloo_context: Callable[[Store, str, int, int], None] = _read(
    f"{_CORE}:CommContextManager",
    "create_gloo_comm_context",
    "(arg0, arg1, arg2, arg3) -> None",
)

# The name in a backward program of a gradient that the program does not compute.
NO_GRADIENT: str = _read("paddle.jit.dy2static.pir_partial_program", "FAKE_VALUE_NAME")

# -- functions -----------------------------------------------------------------------------------

new_scope: Callable[[], Scope] = _read(_CORE, "Scope", "() -> _Scope")
_REMOVE_SCOPE = PatchTarget(f"{_LIBRARY}:_Scope", "_remove_from_pool")


def scope_remover() -> Callable[[Scope], None]:
    """Paddle's original function that removes a scope, without the report of the patched one.

    It is a C function: no handler of a signal runs in it, whose exception a destructor would lose.
    """
    return _REMOVE_SCOPE.original


flag_values: Callable[[], dict[str, Any]] = _read(
    _CORE, "globals", "() -> GlobalVarGetterSetterRegistry"
)
kernel_name: Callable[[str], str] = _read(_CORE, "_get_phi_kernel_name", "(arg0) -> str")
# Registered kernels by kernel name, each "(CPU, layout, dtype)".
phi_kernels: Callable[[str], dict[str, list[str]]] = _read(
    _CORE, "_get_registered_phi_kernels", "(kernel_registered_type=...) -> dict[str, list[str]]"
)
serialize_program: Callable[..., None] = _read(
    _CORE,
    "serialize_pir_program",
    "(program, file_path, overwrite=..., readable=..., trainable=..., pir_version=...) -> None",
)
attribute_map: Callable[[dict[str, Any]], Any] = _read(_CORE, "construct_program_attribute_map")
copy_of_value: Callable[[Value], Value] = resolve(f"{_LIBRARY}:pir.Value")
_read(f"{_LIBRARY}:pir.Value", "__init__", "(self) -> None or (self, arg0) -> None")
clone_program: Callable[[Program], tuple[Program, Any]] = _read(
    f"{_LIBRARY}:pir",
    "clone_program",
    "(arg0) -> tuple[Program, tuple[list[Value], list[Value]]]",
)
translate: Callable[[LegacyProgramDesc], Program] = _read(
    f"{_LIBRARY}:pir", "translate_to_pir", "(arg0) -> Program"
)
translate_with_values: Callable[[LegacyProgramDesc], tuple[Program, dict[str, list[Value]]]] = (
    _read(
        f"{_LIBRARY}:pir",
        "translate_to_pir_with_param_map",
        "(arg0) -> tuple[Program, dict[str, list[Value]]]",
    )
)
tensor_of_array: Callable[..., Tensor] = _read(
    "paddle.base.executor", "_as_lodtensor", "(data, place, dtype=...)"
)
cache_key_of_names: Callable[..., str] = _read(
    "paddle.base.executor", "_get_program_cache_key", "(feed, fetch_list)"
)
promote_types: Callable[[Any], Any] = _read(
    "paddle.base.framework", "process_type_promotion", "(program)"
)
expected_place: Callable[[], Any] = _read("paddle.base.framework", "_current_expected_place", "()")
in_pir_mode: Callable[[], bool] = _read("paddle.base.framework", "in_pir_mode", "()")
in_dynamic_or_pir_mode: Callable[[], bool] = _read(
    "paddle.base.framework", "in_dynamic_or_pir_mode", "()"
)
convert_dtype: Callable[[Any], str] = _read("paddle.base.data_feeder", "convert_dtype", "(dtype)")
# A function per operator, which computes in dynamic mode and adds to a program in static mode.
operators: Any = resolve("paddle._C_ops")
legacy_operators: Any = resolve("paddle._legacy_C_ops")
# The tracer of this thread; ``None`` while the thread builds a program.
dynamic_tracer: Callable[[], Any] = _read("paddle.base.framework", "_dygraph_tracer", "()")
TRACER = "_dygraph_tracer_"  # the attribute in which Paddle stores the tracer
switch_tracer: Callable[[Any], None] = _read(_CORE, "_switch_tracer", "(arg0) -> None")
_Tracer: Callable[[], Any] = _read("paddle.base.dygraph.base", "Tracer")
has_gradients: Callable[[], bool] = _read(_CORE, "_has_grad", "() -> bool")
set_gradients: Callable[[bool], None] = _read(_CORE, "_set_has_grad", "(arg0) -> None")
_GRAD_NODE = f"{_LIBRARY}:GradNodeBase"
_leaking_grad_node_of = _attribute(f"{_LIBRARY}:eager.Tensor", "grad_fn")
# The nodes to which gradients go on from an autograd node, and its address.
next_grad_nodes = _attribute(_GRAD_NODE, "next_functions")
address_of_grad_node: Callable[[Any], int] = _read(_GRAD_NODE, "node_ptr", "(self) -> int")
# A decorator, under which a function builds programs instead of running operators.
in_static_mode: Callable[[T], T] = _read(
    "paddle.base.dygraph.base", "switch_to_static_graph", "(func)"
)
run_custom_operator: Callable[..., Any] = _read("paddle._C_ops", "_run_custom_op")

# -- methods, called with their object as the first argument -------------------------------------

_TENSOR = f"{_LIBRARY}:DenseTensor"
is_initialized: Callable[[Tensor], bool] = _read(_TENSOR, "_is_initialized", "(self) -> bool")
clear_tensor: Callable[[Tensor], None] = _read(_TENSOR, "_clear", "(self) -> None")
copy_of: Callable[[Tensor, Any], Tensor] = _read(_TENSOR, "_copy", "(self, arg0) -> DenseTensor")
dtype_of: Callable[[Tensor], Any] = _read(_TENSOR, "_dtype", "(self) -> VarType")
set_attribute: Callable[[LegacyOperator, str, Any], None] = _read(
    f"{_LIBRARY}:OpDesc", "_set_attr", "(self, arg0, arg1) -> None"
)
block_number: Callable[[LegacyOperator, str], int] = _read(
    f"{_LIBRARY}:OpDesc", "_block_attr_id", "(self, arg0) -> int"
)
insert_operator: Callable[[LegacyBlock, int], LegacyOperator] = _read(
    f"{_LIBRARY}:BlockDesc", "_insert_op", "(self, arg0) -> OpDesc"
)
_remove_operators: Callable[[LegacyBlock, int, int], None] = _read(
    f"{_LIBRARY}:BlockDesc", "_remove_op", "(self, arg0, arg1) -> None"
)
remove_variable: Callable[[LegacyBlock, bytes], None] = _read(
    f"{_LIBRARY}:BlockDesc", "_remove_var", "(self, arg0) -> None"
)
prepare_attributes: Callable[[StaticLayer, bool], tuple[Any, Any]] = _read(
    _LAYER, "_prepare_attributes", "(self, in_sot_mode=...)"
)
_set_variable_attribute: Callable[[LegacyOperator, str, LegacyVariable], None] = _read(
    f"{_LIBRARY}:OpDesc", "set_var_attr", "(self, arg0, arg1) -> None"
)
_set_variables_attribute: Callable[[LegacyOperator, str, list[LegacyVariable]], None] = _read(
    f"{_LIBRARY}:OpDesc", "set_vars_attr", "(self, arg0, arg1) -> None"
)
hook_of_runs: Callable[[StaticLayer], Any] = _attribute(_LAYER, "HOOKED_RUN_IMPL")
is_train_mode: Callable[[Any], bool] = _read(
    "paddle.jit.dy2static.program_translator:ASTStaticFunction", "_is_train_mode", "(self)"
)

# Sets the function that is called for each frame of a thread (SOT's); returns the previous one.
set_frame_callback: Callable[[Any], Any] = _read(_CORE, "set_eval_frame", "(callback) -> object")
# Sets the prefixes of files whose frames SOT skips; SOT reads the code of all other frames.
skip_frames_of: Callable[[tuple[str, ...]], None] = _read(
    _CORE, "eval_frame_skip_file_prefix", "(py_codes) -> object"
)
# Exempts codes from SOT's rule of skipping a frame and its callees after ten calls without a graph.
exempt_from_sot_fallback: Callable[[tuple[CodeType, ...]], None] = _read(
    _CORE, "sot_setup_codes_with_graph", "(py_codes) -> object"
)
# False when Python runs the call; True for SOT when it simulates the code instead.
is_sot_simulating: Callable[[], bool] = _read(
    "paddle.base.dygraph.base", "in_sot_simulation_mode", "()"
)

_GENERATOR_STATE = f"{_LIBRARY}:GeneratorState"
_default_cpu_generator = _read(_CORE, "default_cpu_generator")
_get_generator_state: Callable[[Any], tuple[Any, ...]] = _read(
    _GENERATOR_STATE, "__getstate__", "(self) -> tuple"
)
_set_generator_state: Callable[[Any, tuple[Any, ...]], None] = _read(
    _GENERATOR_STATE, "__setstate__", "(self, arg0) -> None"
)
_GeneratorState = _read(_CORE, "GeneratorState")

_TRACES = releases.CURRENT.traces
_parameters_of_traces = _read(_TRACES, "_global_parameter_recorder")
_overwritten_in_traces = _read(_TRACES, "_global_inplace_map")

# -- attributes of objects -----------------------------------------------------------------------

_STANDALONE_EXECUTOR = "paddle.base.executor:_StandaloneExecutor"
place_of = _attribute(_STANDALONE_EXECUTOR, "_place")
plan_of = _attribute(_STANDALONE_EXECUTOR, "_plan")
scope_of = _attribute(_STANDALONE_EXECUTOR, "_scope")
native_of = _attribute(_STANDALONE_EXECUTOR, "_new_exe")
is_closed = _attribute("paddle.base.executor:Executor", "_closed")
graph_of = _attribute("paddle.base.framework:Program", "_graph")
pipeline_of = _attribute("paddle.base.framework:Program", "_pipeline_opt")
heterogeneous_pipeline_of = _attribute("paddle.base.framework:Program", "_heter_pipeline_opt")
program_in = _attribute("paddle.static:CompiledProgram", "_program")
_hash_of_text = _read(f"{_CORE}:ProgramDesc", "cached_hash_str")
rate_name_of = _attribute("paddle.optimizer.lr:LRScheduler", "_var_name")
known_attributes_of = _attribute(_LAYER, "_prog_attrs_map_cache")
backend_of = _attribute(_LAYER, "_backend")
layers_of = _attribute(
    "paddle.jit.pir_translated_layer:PirTranslatedLayer", "_partial_program_layers"
)
layers_in = _attribute("paddle.jit.dy2static.program_translator:ProgramCache", "_caches")
outputs_of = _attribute(_LAYER, "_outputs")
weights_of = _attribute("paddle.nn.layer.rnn:RNNBase", "_all_weights")
# Names of Paddle that the package reads, and never replaces.
READ_TARGETS += [
    PatchTarget(f"{_LIBRARY}:_Scope", "_can_reused"),
    PatchTarget("paddle.base.executor:Executor", "plan", ATTRIBUTE),
    PatchTarget("paddle.base.executor:Executor", "place", ATTRIBUTE),
    PatchTarget("paddle.base.executor:Executor", "enable_job_schedule_profiler", ATTRIBUTE),
    PatchTarget(
        "paddle.base.executor:Executor",
        "_feed_data",
        "(self, program, feed, feed_var_name, scope)",
    ),
    PatchTarget(
        "paddle.base.executor:Executor",
        "_pir_feed_data",
        "(self, program, feed, scope, data_op_infos)",
    ),
    PatchTarget("paddle.jit.dy2static.program_translator:StaticFunction", "program_cache"),
    PatchTarget(f"{_TRACES}:ParametersRecorder", "params_dict", ATTRIBUTE),
    PatchTarget(f"{_TRACES}:ParametersRecorder", "tensor2value", ATTRIBUTE),
    PatchTarget(f"{_TRACES}:InplaceMap", "params_dict", ATTRIBUTE),
    # A method of Paddle's RNNs that packed layers override.
    PatchTarget(
        "paddle.nn.layer.rnn:RNNBase",
        "_cudnn_impl",
        "(self, inputs, initial_states, sequence_length)",
    ),
]


def attribute_variables(op: LegacyOperator) -> dict[str, list[str]]:
    """The names of the variables that a ProgramDesc operator reads in place of attributes.

    The names are read from the serialized operator: Paddle's own getter of such an attribute gives
    away variables that the program frees.

    Returns:
        The names of variables by that of the attribute: one, or a list of numbers with one each.
    """
    if len(op.attr_names(True)) == len(op.attr_names()):
        return {}
    attributes = OperatorMessage.FromString(op.serialize_to_string()).attrs
    found = {each.name: [each.var_name] for each in attributes if each.type == AttrType.VAR}
    lists = {each.name: list(each.vars_name) for each in attributes if each.type == AttrType.VARS}
    return {**found, **lists}


def remove_operators(block: LegacyBlock) -> None:
    """Removes all operators of a ProgramDesc block."""
    _remove_operators(block, 0, block.op_size())


def set_attribute_variables(
    op: LegacyOperator, name: str, variables: Sequence[LegacyVariable]
) -> None:
    """Sets the variables in place of an attribute, as many as there are."""
    if op.attr_type(name, True) == AttrType.VAR:
        _set_variable_attribute(op, name, variables[0])
    else:
        _set_variables_attribute(op, name, list(variables))


@contextmanager
def operators_compute() -> Iterator[None]:
    """Allows this thread to call operators of dynamic mode inside ``with``, in any mode.

    Paddle's own functions for that mode switch default programs and names in all threads.
    """
    if dynamic_tracer() is not None:
        yield
        return
    switch_tracer(_Tracer())
    try:
        yield
    finally:
        switch_tracer(None)


def text_hash_of(program: Any) -> str:
    """A hash of the contents of a ProgramDesc program, by which Paddle finds its executors."""
    found: str = _hash_of_text(program.desc)
    return found


def variables_of_programs() -> dict[str, Any]:
    """All names of Paddle's module of default programs, as a new dict."""
    return dict(vars(resolve("paddle.pir.core")))


def is_sot_tracing() -> bool:
    """Whether SOT reads the code of the frames that this thread enters."""
    callback = set_frame_callback(None)
    if callback is not None:
        set_frame_callback(callback)
    return callback is not None


def exchange_native(executor: Any, native: Any) -> None:
    """Makes Paddle's ``_StandaloneExecutor`` run ``native``."""
    executor._new_exe = native


def set_training(layer: StaticLayer, on: bool) -> None:
    """Makes a ``PartialProgramLayer`` return its programs for training or for evaluation."""
    layer.training = on


def set_stop_gradient(tensor: Any, stop: bool) -> None:
    """Sets ``stop_gradient`` of a tensor of dynamic mode."""
    tensor.stop_gradient = stop


def is_reusable(scope: Any) -> bool:
    """Whether a scope is marked as one that a ``PartialProgramLayer`` may run in again."""
    return bool(scope._can_reused)


def set_reusable(scope: Any, on: bool) -> None:
    """Marks a scope as one that a ``PartialProgramLayer`` may run in again, or removes the mark."""
    scope._can_reused = on


def clear_trace(key: int) -> None:
    """Drops Paddle's entries for the trace of a function, by the hash of its program."""
    _parameters_of_traces.params_dict.pop(key, None)
    _parameters_of_traces.tensor2value.pop(key, None)
    _overwritten_in_traces.params_dict.pop(key, None)


def keys_of_traces() -> list[int]:
    """The keys of the traces of which Paddle has entries."""
    tables = (_parameters_of_traces.params_dict, _overwritten_in_traces.params_dict)
    return [key for table in tables for key in list(table)]


_TRACING_CODE = os.path.join("paddle", "jit", "dy2static") + os.sep


def is_tracing(innermost: FrameType) -> bool:
    """Whether a thread with this innermost frame may be tracing a function."""
    frame: FrameType | None = innermost
    while frame is not None and _TRACING_CODE not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def make_persistable(value: Value) -> None:
    """Makes the variable of a value outlive a run."""
    # All results, or the operator's attributes cannot be read.
    for result in producer_of(value).results():
        is_this = result.initialized() and result.id == value.id
        result.persistable = is_this or (result.initialized() and result.persistable)


_PARAMETER = "is_parameter"  # the attribute of Paddle's operators for parameters


def make_parameter(value: Value) -> None:
    """Makes an input variable of a program one of its parameters."""
    make_persistable(value)
    producer_of(value).set_bool_attr(_PARAMETER, True)


def is_parameter(op: Operation) -> bool:
    """Whether an operator names a parameter."""
    return op.name() == "builtin.parameter" or op.attrs().get(_PARAMETER) is True


def make_temporary(value: Value) -> None:
    """Ends the lifetime of a value's variable with the run, or after its last reader."""
    value.persistable = False


def set_random_seed(program: Program, seed: int) -> None:
    """Sets the seed of operators that will be added to a program."""
    program.random_seed = seed


def set_random_states(states: Sequence[Any]) -> None:
    """Restores the result of ``paddle.get_rng_state("cpu")``.

    ``paddle.set_rng_state(states, "cpu")`` of Paddle 3.2 raises an AttributeError.
    """
    (state,) = states
    _default_cpu_generator().set_state(state)


def stream_to_plain(stream: Any) -> list[Any]:
    """A state of random generators (``paddle.get_rng_state``) as numbers and a text."""
    *numbers, text = _get_generator_state(stream)
    return [*numbers, bytes(text).decode("ascii")]


def stream_from_plain(plain: list[Any]) -> Any:
    """Restores a random stream from the result of :func:`stream_to_plain`."""
    *numbers, text = plain
    stream = _GeneratorState.__new__(_GeneratorState)
    _set_generator_state(stream, (*numbers, list(text.encode("ascii"))))
    return stream


def set_scheduler(program: Any, scheduler: Any) -> None:
    """Makes Executor get the learning rate from a scheduler before each run of a PIR program."""
    program.lr_scheduler = scheduler
    program.lr_name = rate_name_of(scheduler)
    program.lr_var = program.get_parameter_value_by_name(program.lr_name)


def drop_scheduler(program: Any) -> None:
    """Removes the scheduler of a program that does not use the learning rate."""
    if hasattr(program, "lr_scheduler"):
        del program.lr_scheduler


def change_class(target: Any, new_class: type) -> None:
    """Changes the class of a Paddle object to a class derived from its own."""
    target.__class__ = new_class


def attached_to(target: Any, name: str, create: Callable[[], T]) -> T:
    """A value that the package attaches to a Paddle object for the object's lifetime."""
    try:
        attached: T = target.__dict__[name]
    except KeyError:
        attached = target.__dict__.setdefault(name, create())
    return attached


def free_scope(scope: Any) -> None:
    """Frees a scope, which Paddle would otherwise retain permanently."""
    scope._remove_from_pool()


def attributes_of(target: Any) -> dict[str, Any]:
    """Instance attributes; for a layer including its tables of parameters, sub-layers and hooks."""
    attributes: dict[str, Any] = getattr(target, "__dict__", {})
    return attributes


_release_reference = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))
_has_leak: list[bool] = []


def grad_node_of(tensor: Any) -> Any:
    """Returns the autograd node of a tensor.

    Paddle 3.3.1 never releases one of the references to the node, so that the graph, with all that
    it saves, would stay in memory.
    """
    node = _leaking_grad_node_of(tensor)
    if node is None:
        return None
    if not _has_leak:
        before = sys.getrefcount(node)
        _leaking_grad_node_of(tensor)
        _has_leak.append(sys.getrefcount(node) > before)
        if _has_leak[0]:
            _release_reference(node)
    if _has_leak[0]:
        _release_reference(node)
    return node


def set_forward(layer: Any, forward: Callable[..., Any]) -> None:
    """Replaces the ``forward`` of one layer object, not of its class."""
    layer.forward = forward


def producer_of(value: Value) -> Operation:
    """The operation that defines a value, which must exist."""
    operation = value.get_defining_op()
    assert operation is not None
    return operation


# -- patched functions, looked up at each call ---------------------------------------------------


def values_of(fetched: Any) -> list[Any]:
    """The fetched results of a run."""
    values: list[Any] = fetched._move_to_list()
    return values


def variable_tensor(scope: Scope, name: str) -> Tensor:
    """The tensor of a variable; its exposure is tracked."""
    tensor: Tensor = _core.get_variable_tensor(scope, name)
    return tensor
