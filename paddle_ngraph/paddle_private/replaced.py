"""Patch targets in Paddle and their signatures. The hooks of the frontends define the patches."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from typing import Any

from paddle_ngraph.paddle_private import releases
from paddle_ngraph.paddle_private.place import PatchTarget, resolve

_LIBRARY = "paddle.base.libpaddle"


def _targets(owner: str, **signatures: str | None) -> tuple[PatchTarget, ...]:
    return tuple(PatchTarget(owner, name, signature) for name, signature in signatures.items())


# -- flags ---------------------------------------------------------------------------------------

(SET_FLAG,) = _targets(
    f"{_LIBRARY}:GlobalVarGetterSetterRegistry", __setitem__="(self, arg0, arg1) -> None"
)

# -- programs that Executor runs -----------------------------------------------------------------

CREATE_EXECUTOR, RUN_EXECUTOR = _targets(
    "paddle.base.executor:_StandaloneExecutor",
    _create_new_executor="(self)",
    run="(self, feed_names, return_numpy=..., enable_job_schedule_profiler=...)",
)
RUN_PIR, RUN_LEGACY = _targets(
    "paddle.base.executor:Executor",
    _run_pir_impl="(self, program, feed, fetch_list, feed_var_name, fetch_var_name, scope, "
    "return_numpy)",
    _run_impl="(self, program, feed, fetch_list, feed_var_name, fetch_var_name, scope, "
    "return_numpy, use_program_cache, use_prune)",
)
(CREATE_PLAN,) = _targets(
    "paddle.base.executor:_ExecutorCache",
    get_program_and_executor="(self, program, feed, fetch_list, feed_var_name, fetch_var_name, "
    "place, scope)",
)
ADD_FETCHES, ADD_FETCH, KEY_OF_CALL = _targets(
    "paddle.base.executor",
    _add_pir_fetch_ops="(program, fetch_list, fetch_var_name)",
    _add_single_pir_fetch_op="(program, fetch_value, fetch_name, fetch_col)",
    _get_strong_program_cache_key_for_new_exe="(program, scope, feed, fetch_list)",
)

# -- programs of dynamic mode --------------------------------------------------------------------

RUN_STATIC, GET_SCOPE = _targets(
    "paddle.jit.dy2static.pir_partial_program:PartialProgramLayer",
    call_run_impl_with_hook="(self, inputs, parameters, attrs)",
    _get_scope="(self, cache_key=..., use_scope_cache=...)",
)

# The key under which Paddle stores the parameters of a program while it traces a function.
(KEY_OF_TRACE,) = _targets(releases.CURRENT.traces, _program_hash="(program)")
# Unwraps the function that Paddle makes static, and the functions that it calls.
UNWRAP, UNWRAP_CALLED = (
    PatchTarget(owner, "unwrap_decorators", "(func)")
    for owner in ("paddle.jit.api", "paddle.jit.dy2static.convert_call_func")
)
# Names the arguments of a ``forward`` function, with ``self``.
(EXTRACT_ARGS,) = _targets("paddle.hapi.model", extract_args="(func)")
# The functions that ``Tensor.backward`` and ``paddle.grad`` call.
RUN_BACKWARD, RUN_PARTIAL_GRAD = _targets(
    f"{_LIBRARY}:eager", run_backward=None, run_partial_grad=None
)
# Sets each thread's mode of Paddle; new threads start with the mode that was set last.
(SET_MODE,) = _targets("paddle.base.framework:GlobalThreadLocal", __setattr__="(self, name, val)")
# Creates the gradient of an operator in a program.
(CREATE_GRADIENT,) = _targets(_LIBRARY, call_vjp="(arg0, arg1, arg2, arg3, arg4) -> list")
# The default programs of the process.
DEFAULT_PROGRAMS = _targets(
    "paddle.pir.core",
    default_main_program="()",
    default_startup_program="()",
    switch_main_program="(program, insertion_point=...)",
    switch_startup_program="(program)",
)
(SET_PRECISION,) = _targets(
    "paddle.amp",
    auto_cast="(enable=..., custom_white_list=..., custom_black_list=..., level=..., dtype=..., "
    "use_promote=...)",
)
# Functions that return references into the storage of a block.
ARGUMENTS, KEYWORD_ARGUMENTS = _targets(
    f"{_LIBRARY}:pir.Block", args="(self) -> list[Value]", kwargs="(self) -> dict[str, Value]"
)
# The device of a value; the gradients of programs read it, though values of programs have none.
(PLACE_OF_VALUE,) = _targets(f"{_LIBRARY}:pir.Value", place=None)
(CREATE_TENSOR,) = _targets(f"{_LIBRARY}:eager.Tensor", __init__="(self, *args, **kwargs)")
(CALL_LAYER,) = _targets("paddle.nn:Layer", __call__="(self, *inputs, **kwargs)")
# Sends the parameters of a layer to all ranks.
(SEND_PARAMETERS,) = _targets(
    "paddle.distributed.parallel",
    sync_params_buffers="(model, comm_group=..., src_rank=..., is_model_parallel=..., "
    "fuse_params=..., is_moe_sharding_parallel=...)",
)

# -- predictors ----------------------------------------------------------------------------------

CREATE_CONFIG, ENABLE_PASSES, SET_THREADS, SET_MODEL_BUFFER, MODEL_FROM_MEMORY = _targets(
    f"{_LIBRARY}:AnalysisConfig",
    __init__="(self) -> None or (self, arg0) -> None or (self, arg0, arg1) -> None",
    enable_custom_passes="(self, passes=..., custom_pass_only=...) -> None",
    set_cpu_math_library_num_threads="(self, arg0) -> None",
    set_model_buffer="(self, arg0, arg1, arg2, arg3) -> None",
    model_from_memory="(self) -> bool",
)
# Settings of a configuration that cannot be read: they have no getter and are not in the summary,
# and a copy of the configuration does not list the passes of bfloat16 once oneDNN is off. The same
# holds for passes of the user, and for the number of threads, whose default is an explicit 1, too.
# Not here: ``enable_ipu`` and ``enable_low_precision_io``, which raise in builds for CPUs.
CONFIG_SETTERS = _targets(
    f"{_LIBRARY}:AnalysisConfig",
    enable_onednn_bfloat16="(self) -> None",
    enable_mkldnn_bfloat16="(self) -> None",
    enable_custom_device="(self, device_type, device_id=..., precision=...) -> None",
)
INIT_PREDICTOR, RUN_PREDICTOR, CLONE_PREDICTOR = _targets(
    f"{_LIBRARY}:PaddleInferPredictor",
    __init__="(self, arg0) -> None",
    run="(self, inputs) -> list[Tensor] or (self) -> None",
    clone="(self) -> PaddleInferPredictor",
)
FREE_MEMORY = _targets(
    f"{_LIBRARY}:PaddleInferPredictor",
    clear_intermediate_tensor="(self) -> None",
    try_shrink_memory="(self) -> int",
)
HOOK_OPERATORS = _targets(
    f"{_LIBRARY}:PaddleInferPredictor",
    register_input_hook="(self, arg0) -> None",
    register_output_hook="(self, arg0) -> None",
)
GET_HANDLES = _targets(
    f"{_LIBRARY}:PaddleInferPredictor",
    get_input_handle="(self, arg0) -> Tensor",
    get_output_handle="(self, arg0) -> Tensor",
)
COPY_RESULT, SET_LOD = _targets(
    f"{_LIBRARY}:PaddleInferTensor",
    copy_to_cpu="(self) -> ndarray",
    set_lod="(self, arg0) -> None",
)
(CREATE_PREDICTOR,) = _targets(
    "paddle.base.core", create_predictor="(arg0) -> PaddleInferPredictor"
)
(CREATE_POOL,) = _targets("paddle.base.core:PredictorPool", __new__=None)

# -- files of models -----------------------------------------------------------------------------

OPEN_PROGRAM, LOAD_COMBINED = _targets(
    "paddle.base.core",
    deserialize_pir_program="(file_path, program, pir_version=...) -> bool",
    load_combine_func="(arg0, arg1, arg2, arg3, arg4) -> None",
)
(LOAD_VARIABLES,) = _targets(
    "paddle.static.io",
    load_vars="(executor, dirname, main_program=..., vars=..., predicate=..., filename=...)",
)

# -- variables -----------------------------------------------------------------------------------

# Functions that erase variables or end scopes.
ERASE_VARIABLES = _targets(
    f"{_LIBRARY}:_Scope",
    erase="(self, names) -> None",
    drop_kids="(self) -> None",
    _remove_from_pool="(self) -> None",
)
(GET_TENSOR,) = _targets(f"{_LIBRARY}:Variable", get_tensor="(self) -> DenseTensor")
# Functions that return the tensor of a variable, or tensors that may share its memory.
EXPOSE_TENSORS = (
    *_targets(
        _LIBRARY,
        get_fetch_variable="(arg0, arg1, arg2) -> object",
        get_variable_tensor="(arg0, arg1) -> DenseTensor",
    ),
    *_targets(
        f"{_LIBRARY}:pir.Program", _state_dict="(self, arg0, arg1) -> dict[str, DenseTensor]"
    ),
    *_targets(
        f"{_LIBRARY}:DenseTensorArray",
        __getitem__="(self, arg0) -> DenseTensor",
        _move_to_list="(self) -> list",
    ),
    *_targets(f"{_LIBRARY}:DistTensor", get_tensor="(self) -> DenseTensor"),
    *_targets(f"{_LIBRARY}:eager.Tensor", get_tensor=None),
    *_targets(f"{_LIBRARY}:FetchList", _move_to_list="(self) -> list"),
    *_targets(f"{_LIBRARY}:FetchUnmergedList", _move_to_list="(self) -> list"),
    *_targets(f"{_LIBRARY}:SelectedRows", get_tensor="(self) -> DenseTensor"),
    GET_TENSOR,
)
# Functions that return the address of a tensor's memory.
EXPOSE_ADDRESSES = (
    *_targets(
        f"{_LIBRARY}:DenseTensor",
        _mutable_data="(self, arg0, arg1) -> int",
        _ptr="(self) -> int",
    ),
    *_targets(f"{_LIBRARY}:eager.Tensor", data_ptr=None),
)
# Methods that give a tensor the memory of another one.
SHARE_WITH_TENSOR = _targets(
    f"{_LIBRARY}:DenseTensor",
    _share_data_nocheck_with="(self, arg0) -> DenseTensor",
    _share_data_with="(self, arg0) -> DenseTensor",
)
# Methods that share the memory of a tensor with a holder that may be outside of Paddle.
SHARE_MEMORY = _targets(
    f"{_LIBRARY}:DenseTensor",
    _slice="(self, arg0, arg1) -> DenseTensor",
    **releases.CURRENT.dlpack,
)
# Methods that make an inference tensor use the memory of an argument by address, without a
# reference to the argument.
RETAIN_ADDRESSES = _targets(
    f"{_LIBRARY}:PaddleInferTensor",
    _share_external_data_bind="(self, arg0) -> None",
    _share_external_data_paddle_tensor_bind="(self, arg0) -> None",
)
# Functions that run programs on a scope, or write variables of a scope otherwise.
RUN_PROGRAMS = (
    *_targets(
        _LIBRARY,
        _create_loaded_parameter="(arg0, arg1, arg2) -> None",
        set_variable="(arg0, arg1, arg2) -> None",
    ),
    *_targets(f"{_LIBRARY}:pir", create_loaded_parameter="(arg0, arg1, arg2) -> None"),
    *_targets(f"{_LIBRARY}:pir.PassManager", run="(self, arg0) -> None"),
    *_targets(
        f"{_LIBRARY}:pir.Program",
        set_state_dict="(self, state_dict, scope, copy_tensor=...) -> None",
    ),
    *_targets(
        f"{_LIBRARY}:AnalysisPredictor",
        init="(self, arg0, arg1) -> bool",
        run="(self, arg0) -> list[PaddleTensor]",
        zero_copy_run="(self, switch_stream=...) -> bool",
    ),
    *_targets(
        f"{_LIBRARY}:Executor",
        create_variables="(self, arg0, arg1, arg2) -> None",
        init_for_dataset="(self, arg0, arg1, arg2, arg3) -> TrainerBase",
        run="(self, arg0, arg1, arg2, arg3, arg4, arg5) -> None",
        run_prepared_ctx="(self, arg0, arg1, arg2, arg3, arg4, arg5, arg6, arg7) -> None or "
        "(self, arg0, arg1, arg2, arg3, arg4) -> None",
    ),
    *_targets(
        f"{_LIBRARY}:Fleet",
        init_model="(self, arg0, arg1, arg2) -> None",
        load_from_paddle_model="(self, arg0, arg1, arg2, arg3, arg4, arg5, arg6) -> None",
        pull_dense="(self, arg0, arg1, arg2) -> None",
        push_dense="(self, arg0, arg1, arg2) -> None",
        shrink_dense_table="(self, arg0, arg1, arg2, arg3, arg4) -> None",
    ),
    *_targets(
        f"{_LIBRARY}:NativePaddlePredictor",
        init="(self, arg0) -> bool",
        run="(self, arg0) -> list[PaddleTensor]",
        zero_copy_run="(self, switch_stream=...) -> bool",
    ),
    *_targets(f"{_LIBRARY}:Operator", run="(self, arg0, arg1) -> None"),
    *_targets(f"{_LIBRARY}:Pass", apply="(self, arg0) -> None"),
    *_targets(
        f"{_LIBRARY}:StandaloneExecutor",
        run="(self, arg0, arg1) -> object",
        run_profile="(self, arg0) -> object",
    ),
)
# Trainers write in their own threads, from the call of START_TRAINER to one of END_TRAINER.
START_TRAINER = _targets(f"{_LIBRARY}:Executor", run_from_dataset="(self, arg0) -> None")
END_TRAINER = (
    *_targets(f"{_LIBRARY}:Executor", release_trainer="(self, arg0) -> None"),
    *_targets(f"{_LIBRARY}:TrainerBase", finalize="(self) -> None"),
)

# -- eager tensors -------------------------------------------------------------------------------

# Calls of C functions are intercepted in place (core/paddle/call_interception.h), without patches.
# All functions of these modules except those that only read.
_EAGER_MODULES = (
    f"{_LIBRARY}:eager",
    f"{_LIBRARY}:eager.ops",
    f"{_LIBRARY}:eager.ops.legacy",
    f"{_LIBRARY}:pir.ops",
    "paddle._C_ops",
    "paddle._legacy_C_ops",
)
RUN_PROGRAM = "run_program"
# Functions that write gradients, which are not among their arguments.
RUNNING_BACKWARD = frozenset({"run_backward", "run_partial_grad"})
_READING_FUNCTIONS = frozenset(
    {
        "_add_backward_final_hook",
        "_add_docstr",
        "_stop_capture_backward_viz_subgraph",
        "_stop_capture_backward_vlog_subgraph",
    }
)
# All methods except those that only read, or return tensors whose writes are detected by their
# memory.
_EAGER_TENSOR = f"{_LIBRARY}:eager.Tensor"
_READING_METHOD_NAMES = (
    "numpy clone cols contiguous crows data_ptr dense_dim detach element_size get_map_tensor "
    "get_selected_rows get_strides get_tensor indices is_coalesced is_contiguous is_dense is_dist "
    "is_same_shape is_selected_rows is_sparse is_sparse_coo is_sparse_csr nnz retain_grads rows "
    "sparse_dim stride to_sparse_csr _copy_to _getitem_dygraph _getitem_from_offset "
    "_get_tensor_from_selected_rows _grad_ivar _grad_name _grad_value _holder_size "
    "_inplace_version _is_dense_tensor_hold_allocation _is_initialized _is_shared_buffer_with "
    "_is_shared_underline_tensor_with _local_value _offset _register_backward_hook "
    "_register_grad_hook _remove_grad_hook _tensor_use_gpudnn _apply_backward_hook "
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __div__ __truediv__ __rdiv__ __rtruediv__ "
    "__floordiv__ __rfloordiv__ __pow__ __rpow__ __mod__ __rmod__ __matmul__ __rmatmul__ __gt__ "
    "__ge__ __lt__ __le__ __eq__ __ne__"
)
_READING_METHODS = frozenset(_READING_METHOD_NAMES.split())
# Collectives on eager tensors. On a CPU that is Gloo, which has written the tensors when a call
# returns, even with ``sync_op=False``. The reducer of gradients (``paddle.DataParallel``) retains
# the parameters, and writes gradients in backward passes only.
_COLLECTIVES = (f"{_LIBRARY}:ProcessGroup", f"{_LIBRARY}:EagerReducer")


def _unwrapped(found: Any) -> Any:
    """The function inside the wrappers of Paddle's Python code and of hooks."""
    return inspect.unwrap(found) if callable(found) else found


def _functions_of_modules() -> Iterator[tuple[str, Any]]:
    for module in _EAGER_MODULES:
        for name, found in vars(resolve(module)).items():
            function = _unwrapped(found)
            if isinstance(function, types.BuiltinFunctionType) and name not in _READING_FUNCTIONS:
                yield name, function


# Operators of dynamic mode that optimizers call, and for which the core has kernels.
OPTIMIZER_FUNCTIONS = (
    "sgd_",
    "momentum_",
    "adam_",
    "adamw_",
    "squared_l2_norm",
    "multiply",
    "multiply_",
)


def eager_functions() -> Iterator[tuple[str, Any]]:
    """(name, function) of all C functions that may write eager tensors among their arguments."""
    yield from _functions_of_modules()
    yield from writing_methods()


def writing_methods() -> Iterator[tuple[str, Any]]:
    """(name, method) of all C methods of eager tensors that may write them."""
    for name, method in vars(resolve(_EAGER_TENSOR)).items():
        if isinstance(method, types.MethodDescriptorType) and name not in _READING_METHODS:
            yield name, method


def functions_of_tensors() -> Iterator[tuple[str, Any]]:
    """(name, function) of all C functions with eager tensors as arguments.

    Legacy functions have the prefix ``legacy.``, since their arguments differ from those of the
    functions of equal names.
    """
    for name, function in _functions_of_modules():
        is_legacy = function.__module__.endswith(".legacy")
        yield f"legacy.{name}" if is_legacy else name, function
    yield "PyLayer.apply", resolve(f"{_LIBRARY}:eager.PyLayer").apply


def other_functions_of_tensors() -> Iterator[tuple[str, Any]]:
    """(name, function) of other C functions that access eager tensors, or random generators."""
    for owner in (*_COLLECTIVES, f"{_LIBRARY}:Generator"):
        for name, method in vars(resolve(owner)).items():
            function = getattr(method, "__func__", None)
            if isinstance(function, types.BuiltinFunctionType):
                yield f"{owner.rpartition(':')[2]}.{name}", method
    for name in ("reshard", "dtensor_to_local", "dtensor_from_local"):
        function = getattr(resolve(_LIBRARY), name, None)
        if isinstance(function, types.BuiltinFunctionType):
            yield name, function


def setting_functions() -> Iterator[tuple[str, Any]]:
    """(name, function) of the C function that sets flags of Paddle's core."""
    flags = type(resolve(_LIBRARY).globals())
    yield "set_flags", _unwrapped(vars(flags)["__setitem__"])


def methods_of_tensors() -> Iterator[tuple[str, Any]]:
    """(name, method) of all C methods of eager tensors."""
    for name, found in vars(resolve(_EAGER_TENSOR)).items():
        method = _unwrapped(found)
        if isinstance(method, types.MethodDescriptorType):
            yield name, method


def other_functions() -> Iterator[tuple[str, Any]]:
    """(name, function) of all other C functions, few of which have eager tensors as arguments."""
    seen = {id(function) for _, function in other_functions_of_tensors()}
    library = resolve(_LIBRARY)
    for module in (library, library.pir):
        for name, found in vars(module).items():
            function = _unwrapped(found)
            if isinstance(function, types.BuiltinFunctionType) and id(function) not in seen:
                yield name, function
            elif isinstance(function, type):
                yield from _methods_of(function, seen)


# Functions that add operators to programs, or set the insertion point, which threads share.
_BUILDING_PATTERN = re.compile("append_|build_|cf_|(re)?set_|get_current_")
_GRADIENT_BUILDERS = ("call_decomp_rule", "call_decomp_vjp", "call_vjp", "sinking_decomp")


def functions_of_building() -> Iterator[tuple[str, Any]]:
    """(name, function) of other C functions that use the insertion point of operators."""
    library = resolve(_LIBRARY)
    found = {n: each for n, each in vars(library.pir).items() if _BUILDING_PATTERN.match(n)}
    found |= {n: getattr(library, n, None) for n in _GRADIENT_BUILDERS}
    found |= {f"Block.{n}": getattr(library.pir.Block, n) for n in ("__enter__", "__exit__")}
    for name, each in found.items():
        function = _unwrapped(each)
        if isinstance(getattr(function, "__func__", function), types.BuiltinFunctionType):
            yield name, function


def _methods_of(owner: type, seen: set[int]) -> Iterator[tuple[str, Any]]:
    for name, found in vars(owner).items():
        method = _unwrapped(found)
        function = getattr(method, "__func__", None)
        if isinstance(function, types.BuiltinFunctionType) and id(method) not in seen:
            yield f"{owner.__name__}.{name}", method


def attributes_of_tensors() -> Iterator[tuple[str, Any]]:
    """(name, descriptor) of all properties of eager tensors that C code implements; no methods."""
    for name, attribute in vars(resolve(_EAGER_TENSOR)).items():
        if isinstance(attribute, types.GetSetDescriptorType) and name != "__dict__":
            yield name, attribute


def collective_functions() -> Iterator[Any]:
    """All methods of collectives on eager tensors."""
    for owner in _COLLECTIVES:
        for method in vars(resolve(owner)).values():
            function = getattr(method, "__func__", None)
            if isinstance(function, types.BuiltinFunctionType):
                yield method


def patch_targets() -> list[PatchTarget]:
    """All patch targets of this module."""
    found: dict[PatchTarget, None] = {}
    for value in globals().values():
        for each in value if type(value) is tuple else (value,):
            if isinstance(each, PatchTarget):
                found[each] = None
    return list(found)
