"""Public functions of the package. Each imports its implementation when it is called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from paddle_ngraph import installation, library
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.run_counters import Stats, none_counted
from paddle_ngraph.utils.once import once
from paddle_ngraph.warning_codes import WarningCode, warn

if TYPE_CHECKING:
    from paddle_ngraph.frontends.saved_models.saving import Inputs
    from paddle_ngraph.frontends.warm_up import WarmUp
    from paddle_ngraph.partitioning.report import Report
    from paddle_ngraph.plan.automatic import AutomaticPlan
    from paddle_ngraph.plan.data_parallel import DataParallel
    from paddle_ngraph.plan.execution_plan import ExecutionPlan
    from paddle_ngraph.profiling.profile import TimeProfile
    from paddle_ngraph.statistics import CacheInfo, Event
    from paddle_ngraph.transpiler.distribution_transpiler import Distributed
    from paddle_ngraph.transpiler.memory_transpiler import MemoryReport
    from paddle_ngraph.transpiler.pipeline_transpiler import Pipeline
    from paddle_ngraph.transpiler.server_transpiler import ServerForm
    from paddle_ngraph.verification.checks import Log

T = TypeVar("T", bound=Callable[..., Any])


def enable(dynamic: bool | Literal["training"] = False) -> None:
    """Runs static programs on the CPU through nGraph, from the next run on.

    These are the programs of ``Executor.run``, of Paddle Inference predictors, and those that
    Paddle creates in dynamic mode: ``paddle.jit.to_static``, ``paddle.jit.load``, ``paddle.Model``.
    Updates of optimizers of dynamic mode use all threads.

    Args:
        dynamic: Whether plain layers of dynamic mode are compiled for inference, too (under
            ``paddle.no_grad``), if that is faster: an outermost layer, together with the layers
            that it calls. Its first calls are timed to find out. ``"training"``: for training, too.

    Where the engine is unavailable, since there is none for the machine or the installed Paddle, or
    it was compiled against another release of OpenVINO, all programs run natively, with one warning
    that names the reason and the remedy.

    Raises:
        NgraphError: ``dynamic`` has another value.
    """
    if dynamic not in (False, True, "training"):
        raise NgraphError(f'dynamic is False, True or "training", not {dynamic!r}')
    if _runs_natively():
        return
    _switch(True)
    from paddle_ngraph.frontends.dynamic import hook as dynamic_hook

    dynamic_hook.switch(bool(dynamic), trains=dynamic == "training")


def disable() -> None:
    """Has Paddle run all programs without the engine, from the next run on."""
    if installation.why_unavailable() is None:
        _switch(False)


def is_enabled() -> bool:
    """Returns whether nGraph is on: by :func:`enable`, :func:`use_ngraph` or ``FLAGS_use_ngraph``.

    ``False`` where the engine is unavailable.
    """
    if installation.why_unavailable() is not None:
        return False
    library.load()
    from paddle_ngraph import flags

    return bool(flags.get("use_ngraph"))


@contextmanager
def use_ngraph(on: bool = True) -> Iterator[None]:
    """Switches nGraph on or off for the runs inside the ``with`` block.

    Raises:
        NgraphError: As :func:`enable`, when ``on``.
    """
    before = is_enabled()
    try:
        _set_enabled(on)
        yield
    finally:
        try:
            _set_enabled(before)
        except BaseException:  # a handler of a signal has raised, perhaps before the flag was set
            _set_enabled(before)
            raise


def _set_enabled(on: bool) -> None:
    if on and not _runs_natively():
        _switch(True)
    else:
        disable()


@overload
def compile(*, full_graph: bool = False) -> Callable[[T], T]: ...
@overload
def compile(target: T, *, full_graph: bool = False) -> T: ...
def compile(target: Any = None, *, full_graph: bool = False) -> Any:
    """Compiles a layer or function, for training and inference, into one or several graphs.

    Python executes the function in each call, with all side effects. Operators of Paddle are
    deferred until their results are read, and are then computed as one graph through nGraph,
    independent of :func:`enable` and :func:`disable`. Of calls with equal shapes, dtypes, scalars
    and operators, the first is run by Paddle, the second compiles, the third is fast. A call that
    needs the data of a tensor, or cannot be deferred, is a graph break; ``explain`` lists the
    graphs and their breaks. Also a decorator: ``@compile``, ``@compile(full_graph=True)``.

    Results are those of Paddle, or an error is raised. Before ``paddle.grad(create_graph=True)``
    differentiates a graph, Paddle runs the operators of the call once more, one by one.

    Args:
        target: A layer, a function or a method. A layer is modified and returned: its ``forward``
            is replaced, all else is unchanged.
        full_graph: Raises an NgraphError with the reason after a call with a graph break. For
            control flow inside a graph there is ``paddle.jit.to_static``, after :func:`enable`.

    Returns:
        The layer, or a function that is called as ``target``.

    Raises:
        NgraphError: ``target`` is no layer or function.
    """
    if target is None:
        return lambda target: compile(target, full_graph=full_graph)
    if _runs_natively():
        return target
    library.load()
    from paddle_ngraph.frontends.dynamic import compiled_layer

    return compiled_layer.compile(target, full_graph)


def explain(program: Any, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Any:
    """Reports how a program is partitioned, without running or changing it.

    Args:
        program: A static program, PIR or ProgramDesc, a ``paddle.pir.Program``, the
            ``paddle.inference.Config`` of a predictor, or a function or layer from
            ``paddle.jit.to_static`` or ``paddle.jit.load`` that has been called before: its
            programs for training or for evaluation, depending on its mode. Or a result of
            :func:`compile`, or a layer that ``enable(dynamic=True)`` has compiled.
        input_shapes: The shapes of some or all feeds of a static program, or inputs of a predictor,
            by name. The page of the report estimates the work for these, and assumes 64 for other
            dynamic dimensions.

    Returns:
        A ``Report``; its ``str()`` lists the subgraphs (``intervals``), the share of operators
        converted, and the reason of each operator that falls back to Paddle. For compiled layers
        and functions a ``CompiledReport``: the graphs, and the reasons of graph breaks.

    Raises:
        NgraphError: The engine is missing, ``program`` is of another type, or an input has no such
            shape, or no shape that is known before a call.
    """
    library.load()
    import paddle
    from paddle.inference import Config

    from paddle_ngraph.frontends import ngraph_transpiler, program_id
    from paddle_ngraph.frontends.predictor import explanation
    from paddle_ngraph.frontends.program_desc import translation
    from paddle_ngraph.frontends.program_desc.single_assignment import NotTranslatable
    from paddle_ngraph.partitioning import program_pass
    from paddle_ngraph.partitioning.analysis import static_types

    shapes = dict(input_shapes or {})
    if isinstance(program, Config):
        return explanation.explain(program, shapes)
    in_dynamic_mode = _explained_in_dynamic_mode(program)
    if in_dynamic_mode is not None:
        if shapes:
            raise NgraphError("input_shapes is for programs and predictors: call the layer instead")
        return in_dynamic_mode
    others = (
        ", the Config of a predictor, a result of paddle.jit.to_static or "
        "paddle_ngraph.compile, or a layer that enable(dynamic=True) has compiled"
    )
    given = ngraph_transpiler.static_program(program, "explain", others)
    is_pir = isinstance(given, paddle.pir.Program)
    try:
        translated = given if is_pir else translation.translate(given.desc)
        static_types.check(translated, shapes)
        report = program_pass.dry_run(translated, shapes=shapes)
    except NotTranslatable as reason:
        report = translation.native_report(given.desc, f"the program runs natively: {reason}")
    return replace(report, program=program_id.of([given if is_pir else given.desc]))


def _explained_in_dynamic_mode(target: Any) -> Any:
    """The report on a function or layer of dynamic mode; ``None`` for another object."""
    from paddle_ngraph.frontends.dynamic import compiled_layer
    from paddle_ngraph.frontends.dynamic import hook as dynamic_hook
    from paddle_ngraph.frontends.to_static import hook as to_static_hook

    if (found := compiled_layer.compiled_in(target)) is not None:
        return found.explain()
    if dynamic_hook.is_known(target):
        return dynamic_hook.explain(target)
    return to_static_hook.explain(target) if to_static_hook.is_static(target) else None


def profile(nodes: bool = True) -> TimeProfile:
    """Measures the code of a ``with`` block, by subgraph, node and operator::

        with paddle_ngraph.profile() as p:
            executor.run(main_program, feed=feed, fetch_list=[loss])
        print(p.table())
        p.plot("profile.svg")
        p.roofline("roofline.svg")
        p.to_chrome_trace("profile.json")  # opens in Perfetto

    Runs of the engine, by any frontend and in all threads, are those of its normal functions, as in
    :func:`events`; calls of Paddle's operators come from ``paddle.profiler``, and are missing
    while the process has another one. At the end, each subgraph gets a function that counts the
    time of each node: compiled for the inputs of its first run in the block, run a few times, and
    dropped. Nodes have the operators of Paddle that they compute, with the lines of user code: of
    static programs and ``paddle.jit.to_static`` where Paddle notes them, of deferred operators of
    dynamic mode if the block calls them.

    Args:
        nodes: Whether to compile these functions, which takes as long as the first runs did.

    Returns:
        A context manager, whose ``as`` is the ``TimeProfile``.

    Raises:
        NgraphError: The engine is missing; or, at ``with``, another profile is being measured.
    """
    library.load()
    from paddle_ngraph.profiling.profile import TimeProfile

    return TimeProfile(nodes)


@overload
def transpile(program: Any, fetch_list: None = None) -> Any: ...
@overload
def transpile(program: Any, fetch_list: Any) -> tuple[Any, list[Any]]: ...
def transpile(program: Any, fetch_list: Any = None) -> Any:
    """Creates a program with engine operators in place of subgraphs, by an explicit program pass.

    The new program is an ordinary PIR program, which prints, clones, saves, loads and runs like
    others, whether the engine is on or off. Its feeds, and the variables that it uses in the scope,
    are those of ``program``::

        program, [loss] = paddle_ngraph.transpile(main_program, fetch_list=[loss])
        executor.run(program, feed=feed, fetch_list=[loss])

    A subgraph runs as a whole, so an inference model saved from a transpiled training program would
    go on training: transpile the program without its optimizer for that. A program created from a
    ProgramDesc runs outside ``OldIrGuard``.

    Args:
        program: A static program, PIR or ProgramDesc, which is not modified.
        fetch_list: Variables that runs of the new program will fetch: variables of ``program``, or
            names of them if it is a ProgramDesc. Variables that are not in the list, and are only
            read inside a subgraph, are eliminated.

    Returns:
        The new program. With a ``fetch_list``, the new program, and its variables that correspond
        to those in the list, in order of the list.

    Raises:
        NgraphError: The engine is missing, ``program`` is no static program or cannot become a PIR
            program, or an item of ``fetch_list`` is no variable of it.
    """
    library.load()
    from paddle_ngraph.frontends import ngraph_transpiler

    made, fetches = ngraph_transpiler.transpile(program, _listed(fetch_list))
    return made if fetch_list is None else (made, fetches)


@overload
def optimize_memory(
    program: Any,
    fetch_list: None = None,
    *,
    recompute: float | None = ...,
    input_shapes: Mapping[str, Sequence[int]] | None = ...,
    open_size: int = ...,
) -> Any: ...
@overload
def optimize_memory(
    program: Any,
    fetch_list: Any,
    *,
    recompute: float | None = ...,
    input_shapes: Mapping[str, Sequence[int]] | None = ...,
    open_size: int = ...,
) -> tuple[Any, list[Any]]: ...
def optimize_memory(
    program: Any,
    fetch_list: Any = None,
    *,
    recompute: float | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    open_size: int = 64,
) -> Any:
    """Creates a program whose results take less memory: they are computed late, and freed early.

    The new program is an ordinary PIR program, which prints, clones, saves, loads and runs like
    others. Its feeds are those of ``program``, and its results by Paddle are bitwise equal::

        program, [loss] = paddle_ngraph.optimize_memory(main_program, fetch_list=[loss])
        executor.run(program, feed=feed, fetch_list=[loss])

    Its operators run one by one, in their new order and in one thread, wherever paddle_ngraph is
    imported: with the engine off, and with the engine on.

    Args:
        program: A static program, PIR or ProgramDesc, which is not modified.
        fetch_list: As in :func:`transpile`.
        recompute: Bound of the predicted memory of results of operators, in MB. To satisfy it,
            results are freed and recomputed before later uses: those that save most memory for
            their time; never matmuls, convolutions and random numbers. 0: as little memory as
            possible. ``None``: no recomputation.
        input_shapes: The shapes that will be fed, by names of feeds, for feeds with dynamic
            dimensions. Predicted sizes depend on them; results do not, and other shapes may be fed.
        open_size: Typical size of the dimensions that are still dynamic then.

    Returns:
        As :func:`transpile`.

    Raises:
        NgraphError: As :func:`transpile`; or ``open_size`` is no integer, 1 or more, ``recompute``
            no number, 0 or more, or ``input_shapes`` are not those of feeds.
    """
    made, fetches, _ = _optimized(program, fetch_list, recompute, input_shapes, open_size)
    return made if fetch_list is None else (made, fetches)


def explain_memory(
    program: Any,
    fetch_list: Any = None,
    *,
    recompute: float | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    open_size: int = 64,
) -> MemoryReport:
    """Reports the effect of :func:`optimize_memory` on a program, without changing it.

    Args:
        program, fetch_list, recompute, input_shapes, open_size: As in :func:`optimize_memory`.

    Returns:
        A ``MemoryReport``; its ``str()`` lists the changes of each block, and the peak memory of
        results of operators in bytes, before and after, as predicted from their shapes. Parameters,
        feeds and workspaces of operators take equal memory before and after, and are not counted.

    Raises:
        NgraphError: As :func:`optimize_memory`.
    """
    report: MemoryReport = _optimized(program, fetch_list, recompute, input_shapes, open_size)[2]
    return report


def _optimized(
    program: Any,
    fetch_list: Any,
    recompute: float | None,
    input_shapes: Mapping[str, Sequence[int]] | None,
    open_size: int,
) -> tuple[Any, list[Any], Any]:
    library.load()
    from paddle_ngraph.transpiler import memory_transpiler

    limits = memory_transpiler.Limits(open_size, recompute, input_shapes or {})
    return memory_transpiler.optimize(program, _listed(fetch_list), limits)


def _listed(fetches: Any) -> Sequence[Any]:
    """Returns a ``fetch_list`` of ``Executor.run`` (a list, an item, or ``None``) as a list."""
    if fetches is None:
        return []
    return fetches if isinstance(fetches, (list, tuple)) else [fetches]


def distribute(
    program: Any,
    ranks: int,
    fetch_list: Any = None,
    *,
    bucket_mb: float = 25.0,
    accumulate: int = 1,
    overlap: bool = False,
) -> Distributed:
    """Creates the program of each rank from a program that trains in one process.

    All ranks run the same program, each on its slice of a batch. Gradients are averaged over the
    ranks as soon as they are computed, in flat buckets; clipping, decay and updates follow. So
    updates are those of one process for the whole batch, if the loss is a mean over its samples.
    See docs/guides/distribution_transpiler.md, also for batch normalization and dropout::

        distributed.init()
        made = paddle_ngraph.distribute(main_program, 2, [loss])
        executor.run(startup_program)
        executor.run(made.startup)  # all ranks continue with the variables of rank 0
        executor.run(made.program, feed=feed, fetch_list=made.fetches)

    Args:
        program: A static program with an optimizer, PIR or ProgramDesc, which is not modified.
        ranks: The number of processes.
        fetch_list: Variables that runs of the new program will fetch, as for :func:`transpile`.
        bucket_mb: The maximum size of a bucket in MB. A larger gradient gets a separate bucket.
        accumulate: The number of runs whose gradients are summed before they are averaged over the
            ranks for an update: all but the last are runs of the program ``accumulating``.
        overlap: Whether a bucket is averaged while the backward pass computes the next one: choose
            ``bucket_mb`` such that there are several buckets.

    Returns:
        The program of a rank, one that gives all ranks the variables of rank 0, and the variables
        that correspond to those in the list; with ``accumulate``, the program that accumulates.

    Raises:
        NgraphError: The engine is missing; ``program`` is no static program, cannot become a PIR
            program, has no optimizer, or updates parameters by more than their gradients; an item
            of ``fetch_list`` is no variable of it; a number is out of range.
    """
    library.load()
    from paddle_ngraph.transpiler import distribution_transpiler

    options = distribution_transpiler.DistributionOptions(
        bucket_mb=bucket_mb, accumulate=accumulate, overlap=overlap
    )
    return distribution_transpiler.transpile(program, ranks, _listed(fetch_list), options)


def distribute_to_server(program: Any, fetch_list: Any = None) -> ServerForm:
    """Creates the programs of a parameter server and its trainers from a single-process program.

    Trainers compute gradients; the server clips and adds them to the parameters, and stores the
    states of the optimizer. Of the weight of an ``Embedding(sparse=True)``, a table, trainers get
    the rows that their batch looks up, and only these are updated: see
    docs/guides/parameter_server.md.

    Args:
        program: A static program with an optimizer, PIR or ProgramDesc, which is not modified.
        fetch_list: Variables that trainers will fetch, as for :func:`transpile`.

    Returns:
        Both programs, for ``distributed.serve`` and ``distributed.trainer``.

    Raises:
        NgraphError: As :func:`distribute`; a parameter is not of float32; an item of ``fetch_list``
            is computed with the updates; a table has readers other than lookups of fed indices, or
            weight decay.
    """
    library.load()
    from paddle_ngraph.transpiler import server_transpiler

    return server_transpiler.transpile(program, _listed(fetch_list))


def pipeline(
    program: Any,
    stages: int = 2,
    fetch_list: Any = None,
    *,
    micro_batches: int = 4,
    cuts: Sequence[Any] | None = None,
    startup_program: Any = None,
) -> Pipeline:
    """Cuts a training program into stages for several processes, each with its own parameters.

    A batch passes through the stages in micro-batches, whose gradients are summed: an update is
    that of the whole batch, if the loss is a mean over its samples. See docs/guides/pipelines.md.

    Args:
        program: A static program with an optimizer, PIR or ProgramDesc, which is not modified.
        stages: The number of stages, 1 or more.
        fetch_list: Variables that will be fetched, as for :func:`transpile`.
        micro_batches: The number of equal micro-batches of a batch.
        cuts: For each stage but the last one its outputs: a variable of the program, or a list of
            them. By default the stages are balanced, by an estimate of their time.
        startup_program: The startup program of ``program``: then each stage has a part of it, which
            creates the variables of this stage only.

    Returns:
        The programs of each stage, for ``distributed.pipeline``. ``str()`` lists their contents.

    Raises:
        NgraphError: As :func:`distribute`; the program cannot be cut into this number of stages, or
            at these variables, since a parameter would belong to two stages; an item of
            ``fetch_list`` is computed with the updates, or is no mean over samples; no feed has a
            dynamic first dimension.
    """
    library.load()
    from paddle_ngraph.transpiler import pipeline_transpiler
    from paddle_ngraph.transpiler.pipeline_transpiler import PipelineOptions

    options = PipelineOptions(stages, micro_batches, cuts)
    return pipeline_transpiler.transpile(program, _listed(fetch_list), options, startup_program)


def execution_plan(
    program: Any, default_devices: Sequence[str] | str | None = None, fetch_list: Any = None
) -> ExecutionPlan:
    """Creates an execution plan, which assigns the operators of a program to devices.

    Operators of one device form subgraphs; independent subgraphs run concurrently, each as soon as
    its inputs are computed::

        plan = paddle_ngraph.execution_plan(program, ["CPU:0", "CPU:1"], [loss])
        plan.place("linear_0.*", "CPU:1")
        print(plan)  # operators, intervals, devices, copies
        executor.run(plan.program, feed=feed, fetch_list=plan.fetches)

    Rules in order of precedence: ``place()`` of the plan; :func:`device` while the program was
    built; the default devices. The planned program is an ordinary program, like a result of
    :func:`transpile`; every convertible operator is in a subgraph, however small. See
    docs/guides/execution_plan.md.

    Args:
        program: A static program, PIR or ProgramDesc, which is not modified.
        default_devices: Devices of operators without a rule: independent branches are distributed
            over these devices. By default ``CPU``: all cores.
        fetch_list: Variables that runs of the planned program will fetch, as for :func:`transpile`.

    Returns:
        The plan: ``place()``, ``program``, ``fetches``, ``operators``, ``to_dot()``.

    Raises:
        NgraphError: As :func:`transpile`; or a device does not exist.
    """
    library.load()
    from paddle_ngraph.plan.execution_plan import ExecutionPlan

    return ExecutionPlan(program, default_devices, _listed(fetch_list))


def automatic_plan(
    program: Any, feed: Mapping[str, Any], fetch_list: Any = None, scope: Any = None
) -> AutomaticPlan:
    """Finds the fastest plan of a program on the cores of this process.

    Candidates are one function on all cores (``serial``); slices of the batch, each on an equal
    group of cores (:func:`data_parallel`); independent subgraphs on core groups of equal size
    (:func:`execution_plan`); and pipelines, whose stages, each on a core group, compute slices one
    after the other. The subgraphs of each candidate are timed, and its makespan is predicted from
    their dependencies. Candidates close to the best prediction are timed as a whole, and the
    fastest one is chosen::

        executor.run(startup_program)
        plan = paddle_ngraph.automatic_plan(main_program, feed, [loss])
        print(plan)  # what was chosen and why: predicted and measured times
        executor.run(plan.program, feed=feed, fetch_list=plan.fetches)

    Measurements run on copies of the variables, and the state of random generators is restored. A
    plan whose results differ from the serial ones by more than 1e-3 of the largest element is
    discarded. Building and timing the plans takes several times as long as a first run: seconds, or
    minutes for a large network.

    Args:
        program: A static program, PIR or ProgramDesc, which is not modified.
        feed: Arrays like those of later runs, by name: the fastest plan depends on their shapes.
        fetch_list: Variables that runs of the planned program will fetch, as for :func:`transpile`.
        scope: The scope with the variables, after the startup program; ``None``: the scope of
            ``scope_guard``.

    Returns:
        ``program``, ``fetches``, ``chosen`` and ``options``, with times in milliseconds.

    Raises:
        NgraphError: As :func:`execution_plan`; or a variable is missing.
    """
    library.load()
    import paddle

    from paddle_ngraph.plan import automatic

    found = paddle.static.global_scope() if scope is None else scope
    return automatic.automatic_plan(program, feed, _listed(fetch_list), found)


def data_parallel(program: Any, places: int, fetch_list: Any = None) -> DataParallel:
    """Creates a program that computes equal slices of a batch concurrently, in one process.

    Slices share the parameters. Each slice has an equal group of cores; gradients are averaged over
    the slices, and there is one update. So results are those of the whole batch, if the loss is a
    mean over its samples::

        made = paddle_ngraph.data_parallel(main_program, 2, [loss])
        executor.run(made.program, feed=feed, fetch_list=made.fetches)

    Feeds with a dynamic first dimension are split; all slices get the other feeds. Results with a
    dynamic first dimension are concatenated, others are means over the slices. Dropout samples
    differ from those of the whole batch. See docs/guides/data_parallel.md.

    Args:
        program: A static program, PIR or ProgramDesc, which is not modified; for inference, or with
            an optimizer. All operators that depend on feeds have to be convertible.
        places: The number of slices. A batch has to be a multiple of it.
        fetch_list: Variables that runs of the new program will fetch, as for :func:`transpile`.

    Returns:
        The new program, and its variables that correspond to those in the list.

    Raises:
        NgraphError: As :func:`transpile`; ``places`` is no integer, 1 or more; or the program
            cannot be computed in slices: no feed has a dynamic first dimension, an integer result
            is computed over the batch, or an operator that depends on feeds falls back to Paddle or
            updates variables (as batch normalization does in training).
    """
    library.load()
    from paddle_ngraph.plan import data_parallel as slicing

    return slicing.data_parallel(program, places, _listed(fetch_list))


def devices() -> list[str]:
    """Returns the devices that operators can be assigned to.

    Returns:
        ``CPU``, which is all cores that the process may use; each core, ``CPU:3``; GPUs and NPUs
        that OpenVINO finds, ``GPU.0``; and ``native``, Paddle's own kernels. Any set of cores is a
        group: ``CPU:0-3``, ``CPU:0,2``.
    """
    library.load()
    from paddle_ngraph.plan import devices as found

    return found.devices()


def device(name: str) -> AbstractContextManager[None]:
    """Assigns a device to operators that are added to the main program inside the ``with`` block.

    Their gradients and updates get the same device. An inner block takes precedence over outer
    ones. Devices take effect in :func:`execution_plan`, and in programs that the engine runs.

    Args:
        name: One of the :func:`devices`, or a group of cores.

    Raises:
        NgraphError: The device does not exist, or no static PIR program is being built.
    """
    library.load()
    from paddle_ngraph.plan import devices as found

    return found.device(name)


def copy(x: Any, device: str) -> Any:
    """Adds an operator to the main program that copies a variable to a device.

    Plans insert such operators where data changes device; explicit ones determine where. The result
    has equal elements. Between groups of cores no data is moved.

    Args:
        x: A variable of a static PIR program.
        device: One of the :func:`devices`, or a group of cores.

    Returns:
        The copy, a variable on the device.

    Raises:
        NgraphError: The device does not exist, or ``x`` is no variable of a static PIR program.
    """
    library.load()
    from paddle_ngraph.plan import devices as found

    return found.copy(x, device)


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
    """Saves a model with engine operators in place of subgraphs.

    The model has ordinary files, ``<path_prefix>.json`` and ``.pdiparams``. ``create_predictor``,
    ``load_inference_model`` and ``paddle.jit.load`` run it after ``import paddle_ngraph``, without
    :func:`enable`. Without the import Paddle cannot run it.

    Args:
        path_prefix, feed_vars, fetch_vars, executor, program: As in
            ``paddle.static.save_inference_model``.
        input_shapes: The shapes to compile functions for: a shape for each input by name, or
            several such dictionaries. The functions are stored next to the model in
            ``<path_prefix>.ngraph``. An array instead of a shape provides the elements, too. A
            process with the same versions, processor and number of threads uses these functions;
            other processes compile their own.
        kwargs: As in ``paddle.static.save_inference_model``, except ``separate_parameters``.

    Returns:
        The partitioning report of the program.

    Raises:
        NgraphError: The program cannot be rewritten, or cannot be run with ``input_shapes``. Then
            the model at ``path_prefix`` is as Paddle saves it.
    """
    library.load()
    from paddle_ngraph.frontends.saved_models import saving

    return saving.save_inference_model(
        path_prefix,
        feed_vars,
        fetch_vars,
        executor,
        program=program,
        input_shapes=input_shapes,
        **kwargs,
    )


def stats() -> Stats:
    """Returns the counters since the last :func:`reset_stats`; ``Stats`` describes each.

    They are zero where the engine is unavailable. A forked process continues those of its parent.
    Runs with ``FLAGS_use_ngraph`` off are not counted, and a run that needs no engine operator
    counts once, as a whole.
    """
    if _runs_natively():
        return none_counted()
    library.load()
    from paddle_ngraph import statistics

    return statistics.stats()


def events(limit: int = 65536) -> list[Event]:
    """Returns the last events, oldest first, of which the core keeps 65,536.

    There is one for each run of a subgraph, for each program, layer or trace that Paddle ran as a
    whole while the flag was on, and for each function that was built or loaded.

    Args:
        limit: The largest number of events to return.

    Returns:
        Events with the id of the subgraph, outcome, reason, start and duration; see
        :class:`statistics.Event`.
    """
    if _runs_natively():
        return []
    library.load()
    from paddle_ngraph import statistics

    return statistics.events(limit)


def reset_stats() -> None:
    """Sets the counters of :func:`stats` and :func:`cache_info` to zero, and forgets events."""
    if _runs_natively():
        return
    library.load()
    from paddle_ngraph import statistics

    statistics.reset_stats()


def num_threads() -> int:
    """Returns the number of threads with which a function runs.

    That is ``FLAGS_ngraph_num_threads``, but at most the number of cores that the process may use
    (also if the flag is 0): those of its affinity mask, limited by the CPU quotas of its control
    groups (cgroup v1 and v2, rounded). A build without the core returns ``os.cpu_count()``.

    Example: a server with one worker for each core, each with ``FLAGS_ngraph_num_threads=1``.
    """
    if _runs_natively():
        return os.cpu_count() or 1
    library.load()
    from paddle_ngraph import _core

    return _core.num_threads()


def cache_info() -> CacheInfo:
    """Returns hits, misses, capacity, current size and evictions of the function cache."""
    library.load()
    from paddle_ngraph import statistics

    return statistics.cache_info()


def clear_cache() -> None:
    """Drops every compiled function, and releases the memory that is cached for the next run.

    The denylist is cleared, too: its subgraphs get another attempt. Functions that are being
    compiled in the background are dropped once they are compiled.
    """
    if _runs_natively():
        return
    library.load()
    from paddle_ngraph import caches

    caches.clear()


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Waits for all compile jobs in the background: see ``FLAGS_ngraph_background_compile``.

    Example: before a measurement, run each shape once, then wait; later runs use the engine.

    Args:
        timeout: The most seconds to wait; ``None``: no limit.

    Returns:
        Whether all compile jobs are finished.
    """
    if _runs_natively():
        return True
    library.load()
    from paddle_ngraph.partitioning import background_compile

    return background_compile.wait(timeout)


def verify(target: Any, inputs: Any, fetch_list: Sequence[Any] | None = None) -> Log:
    """Uses a program, predictor, layer or function, and compares the engine with Paddle.

    Each subgraph that the engine runs is also run by Paddle, on copies of its inputs and with the
    same random numbers. A result that differs by more than rounding, judged in float64, is
    reported with the operator by which it becomes wrong. The use is real: a program that trains
    takes a step.

    Example::

        report = paddle_ngraph.verify(program, feed, fetch_list=[loss])
        print(report)
        for mismatch in report.mismatches:
            print(mismatch.save("wrong.npz"))

    Args:
        target: A static program, which runs once in the current scope; a predictor of Paddle
            Inference; a layer or function of dynamic mode, which is called three times, compiled
            if it is not.
        inputs: The feed of a program; the inputs of a predictor, by name or in their order; the
            arguments of a layer or function. Arrays become tensors.
        fetch_list: For a program, as in ``Executor.run``.

    Returns:
        A ``Log``: ``is_right``, the numbers of runs ``checked`` and ``wrong``, the reasons of
        ``unchecked`` ones, and the ``mismatches``, each of which can ``save`` a reproducer.

    Raises:
        NgraphError: The engine is missing, or the arguments do not belong together.
    """
    library.load()
    from paddle_ngraph.frontends import verified_use

    return verified_use.verify(target, inputs, fetch_list)


def warm_up(target: Any, inputs: Sequence[Any], fetch_list: Sequence[Any] | None = None) -> WarmUp:
    """Compiles the functions that a target needs for inputs of known shapes, before it is used.

    The target runs once for each of ``inputs``, for inference, with the engine on. With a disk
    cache (``FLAGS_ngraph_cache_dir``), later processes load the functions. On a terminal a bar
    shows the progress, if ``tqdm`` is installed. Random numbers continue as if nothing had run.
    Example: ``paddle_ngraph.warm_up("ocr/det", [{"x": [1, 3, size, size]} for size in sizes])``.

    Args:
        target: The path of a saved model; a predictor; a static program for inference, which runs
            in the current scope; a layer or function of dynamic mode, compiled if it is not.
        inputs: For each run the inputs: by name, as for a program, or in their order. Each is a
            shape (then zeros are used: of the declared dtype, for layers of float32) or an array.
        fetch_list: For a program, as in ``Executor.run``.

    Returns:
        A ``WarmUp``: the numbers of functions ``built``, ``loaded`` and ``reused``, and the
        ``seconds``.

    Raises:
        NgraphError: The engine is missing, the arguments do not belong together, Paddle cannot run
            the target with such inputs, or a run would change the variables of the program.
    """
    library.load()
    from paddle_ngraph.frontends import warm_up as implementation

    return implementation.warm_up(target, inputs, fetch_list)


def verified_runs() -> Log:
    """Returns the results of the runs that ``FLAGS_ngraph_verify`` has compared with Paddle.

    Judgements that pause are finished first.
    """
    library.load()
    from paddle_ngraph.verification import checks

    checks.finish()
    return checks.log


def _runs_natively() -> bool:
    """Returns whether the engine is unavailable, and warns of it once."""
    if installation.why_unavailable() is None:
        return False
    warn_unavailable()
    return True


@once
def warn_unavailable() -> None:
    """Warns that Paddle runs all programs, with the reason, once per process."""
    code = WarningCode.NO_CORE if installation.is_pure() else WarningCode.UNAVAILABLE
    warn(code, f"Paddle runs all programs: {installation.why_unavailable()}", stacklevel=4)


def _switch(on: bool) -> None:
    library.load()
    from paddle_ngraph import flags

    flags.set("use_ngraph", on)
