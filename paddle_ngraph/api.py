"""The public functions. Each loads what it needs when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from paddle_ngraph import installation, library
from paddle_ngraph.errors import NgraphError

if TYPE_CHECKING:
    from paddle_ngraph.frontends.saved_models.saving import Inputs
    from paddle_ngraph.partitioning.report import Report
    from paddle_ngraph.plan.automatic import AutomaticPlan
    from paddle_ngraph.plan.data_parallel import DataParallel
    from paddle_ngraph.plan.execution_plan import ExecutionPlan
    from paddle_ngraph.statistics import CacheInfo
    from paddle_ngraph.transpiler.distribution_transpiler import Distributed
    from paddle_ngraph.transpiler.memory_transpiler import MemoryReport
    from paddle_ngraph.transpiler.pipeline_transpiler import Pipeline
    from paddle_ngraph.transpiler.server_transpiler import ServerForm

T = TypeVar("T", bound=Callable[..., Any])


def enable(dynamic: bool | Literal["training"] = False) -> None:
    """Runs static programs on the CPU through nGraph, from the next run on.

    These are the programs of ``Executor.run``, of Paddle Inference predictors, and those that
    Paddle creates in dynamic mode: ``paddle.jit.to_static``, ``paddle.jit.load``, ``paddle.Model``.
    Optimizers of dynamic mode take their steps on all threads.

    Args:
        dynamic: Whether plain layers of dynamic mode are compiled, too, for inference (under
            ``paddle.no_grad``), as far as that makes them faster: a layer that is called, with all
            that it calls. Its first calls measure that. ``"training"``: for training, too. Layers
            that train so have no second derivative (``paddle.grad(create_graph=True)``): in a
            process that asks for one, layers train natively from then on; where one reaches a call
            that was compiled before, it is an error that names the way out.

    Raises:
        NgraphError: ``dynamic`` is none of these; or the engine is missing or was compiled against
            another release of Paddle or OpenVINO: the message says how to fix that.
    """
    if dynamic not in (False, True, "training"):
        raise NgraphError(f'dynamic is False, True or "training", not {dynamic!r}')
    _switch(True)
    from paddle_ngraph.frontends.dynamic import hook as dynamic_hook

    dynamic_hook.switch(bool(dynamic), trains=dynamic == "training")


def disable() -> None:
    """Runs every program natively again, from the next run on."""
    if installation.why_unavailable() is None:
        _switch(False)


def is_enabled() -> bool:
    """Whether the next run goes through nGraph."""
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
    _switch(True) if on else disable()
    try:
        yield
    finally:
        _switch(True) if before else disable()


@overload
def compile(*, full_graph: bool = False) -> Callable[[T], T]: ...
@overload
def compile(target: T, *, full_graph: bool = False) -> T: ...
def compile(target: Any = None, *, full_graph: bool = False) -> Any:
    """Compiles a layer or function, for training and inference: in one graph, or in pieces.

    Python runs it in each call, with all that it does besides computing. Operators of Paddle wait
    until somebody wants their results, and are then computed as one graph, through nGraph, whatever
    :func:`enable` and :func:`disable` say. The first call of a kind (shapes, dtypes, numbers, the
    operators that it comes to) is native, the second compiles, the third is fast. Where Python
    needs the value of a tensor, or calls what cannot wait, a graph ends; ``explain`` of it tells
    the graphs and where they end. Also a decorator: ``@compile``, ``@compile(full_graph=True)``.

    It computes what Python would, or raises. A graph has no second derivative:
    ``paddle.grad(create_graph=True)`` is an error where it reaches one.

    Args:
        target: A layer, a function or a method. A layer is changed and returned: it has another
            ``forward``, and is itself in all other respects.
        full_graph: Raises an NgraphError after a call that was not one graph, which says why. For
            control flow inside of a graph there is ``paddle.jit.to_static``, after :func:`enable`.

    Returns:
        The layer, or a function that is called as ``target``.

    Raises:
        NgraphError: The engine is missing, or ``target`` is no layer or function.
    """
    if target is None:
        return lambda target: compile(target, full_graph=full_graph)
    library.load()
    from paddle_ngraph.frontends.dynamic import compiled_layer

    return compiled_layer.compile(target, full_graph)


def explain(program: Any) -> Any:
    """What the program pass would do with a program, without running or changing it.

    Args:
        program: A static program, PIR or ProgramDesc, a ``paddle.pir.Program``, the
            ``paddle.inference.Config`` of a predictor, or a function or layer from
            ``paddle.jit.to_static`` or ``paddle.jit.load`` that has been called before: its
            programs for training or for evaluation, whichever mode it is in. Or what
            :func:`compile` returns, or a layer that ``enable(dynamic=True)`` has compiled.

    Returns:
        A ``Report``; its ``str()`` lists the intervals, the share of operators converted, and the
        reason for each operator left native. For what was compiled a ``CompiledReport``: the
        graphs, and why they end.

    Raises:
        NgraphError: The engine is missing, or ``program`` is none of these.
    """
    library.load()
    import paddle
    from paddle.inference import Config

    from paddle_ngraph.frontends import ngraph_transpiler
    from paddle_ngraph.frontends.dynamic import compiled_layer
    from paddle_ngraph.frontends.dynamic import hook as dynamic_hook
    from paddle_ngraph.frontends.predictor import hook as predictor_hook
    from paddle_ngraph.frontends.program_desc import translation
    from paddle_ngraph.frontends.program_desc.single_assignment import NotTranslatable
    from paddle_ngraph.frontends.to_static import hook as to_static_hook
    from paddle_ngraph.partitioning import program_pass

    if isinstance(program, Config):
        return predictor_hook.explain(program)
    if (found := compiled_layer.compiled_in(program)) is not None:
        return found.explain()
    if dynamic_hook.is_known(program):
        return dynamic_hook.explain(program)
    if to_static_hook.is_static(program):
        return to_static_hook.explain(program)
    others = (
        ", the Config of a predictor, what paddle.jit.to_static or paddle_ngraph.compile returns, "
        "or a layer that enable(dynamic=True) has compiled"
    )
    given = ngraph_transpiler.static_program(program, "explain", others)
    if isinstance(given, paddle.pir.Program):
        return program_pass.dry_run(given)
    try:
        return program_pass.dry_run(translation.translate(given.desc))
    except NotTranslatable as reason:
        return translation.native_report(given.desc, f"the program stays native: {reason}")


@overload
def transpile(program: Any, fetch_list: None = None) -> Any: ...
@overload
def transpile(program: Any, fetch_list: Any) -> tuple[Any, list[Any]]: ...
def transpile(program: Any, fetch_list: Any = None) -> Any:
    """Makes a program in which engine operators replace the intervals: the program pass as a step.

    The new program is an ordinary PIR program, which prints, clones, saves, loads and runs like
    others, whether the engine is on or off. It takes the same feeds, and works on the same
    variables of the scope::

        program, [loss] = paddle_ngraph.transpile(main_program, fetch_list=[loss])
        executor.run(program, feed=..., fetch_list=[loss])

    An interval runs as a whole, so an inference model of a program that trains would go on
    training: transpile the program without its optimizer for that. What is made of a ProgramDesc is
    run outside of ``OldIrGuard``.

    Args:
        program: A static program, PIR or ProgramDesc, which stays as it is.
        fetch_list: What runs of the new program will fetch: variables of ``program``, of a
            ProgramDesc also their names. What is not in the list, and only read inside of an
            interval, is not there any more.

    Returns:
        The new program. With a ``fetch_list``, the new program, and the variables in it that stand
        for those in the list, in the same order.

    Raises:
        NgraphError: The engine is missing, ``program`` is no static program or cannot become a PIR
            program, or something in ``fetch_list`` is no variable of it.
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
    """Makes a program whose results take less memory: they are computed late, and freed early.

    The new program is an ordinary PIR program, which prints, clones, saves, loads and runs like
    others. It takes the same feeds, and natively computes the same numbers, to the last bit::

        program, [loss] = paddle_ngraph.optimize_memory(main_program, fetch_list=[loss])
        executor.run(program, feed=..., fetch_list=[loss])

    Its operators run one by one, in their new order and in one thread, wherever paddle_ngraph is
    imported: natively, and with the engine on.

    Args:
        program: A static program, PIR or ProgramDesc, which stays as it is.
        fetch_list: As in :func:`transpile`.
        recompute: How many MB results of operators may take at once, as predicted. To get there,
            results are freed and computed again where they are wanted later: those that save most
            for the time that they take; never products, convolutions and random numbers. 0: as
            little as possible. ``None``: nothing is computed again.
        input_shapes: The shapes that will be fed, by the names of feeds, as far as the program
            leaves dimensions open. What is large and what is small may depend on them; results do
            not, and other shapes may be fed.
        open_size: About how large the dimensions will be that are still open then.

    Returns:
        As :func:`transpile`.

    Raises:
        NgraphError: As :func:`transpile`; or ``open_size`` is no whole number, 1 or more,
            ``recompute`` no number, 0 or more, or ``input_shapes`` are not those of feeds.
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
    """What :func:`optimize_memory` would do with a program, without changing it.

    Args:
        program, fetch_list, recompute, input_shapes, open_size: As in :func:`optimize_memory`.

    Returns:
        A ``MemoryReport``; its ``str()`` says what would change in each block, and how many bytes
        results of operators take at most, before and after, as predicted from their shapes.
        Parameters, feeds and what operators need inside take the same before and after, and are
        not counted.

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
    """What ``Executor.run`` takes for a ``fetch_list``, as a list."""
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
    """Makes the program of each of several processes of a program that trains in one.

    All ranks run the same program, each on its share of a batch. Gradients are averaged over the
    ranks as soon as they are there, in flat buckets; clipping, decay and updates come after that.
    So the ranks compute together what one process computes of the whole batch, if the loss is a
    mean over its samples. See docs/distributed.md, also for batch normalization and dropout::

        distributed.init()
        made = paddle_ngraph.distribute(main_program, 2, [loss])
        executor.run(startup_program)
        executor.run(made.startup)  # all ranks continue with the variables of rank 0
        executor.run(made.program, feed=..., fetch_list=made.fetches)

    Args:
        program: A static program with an optimizer, PIR or ProgramDesc, which stays as it is.
        ranks: The number of processes.
        fetch_list: What runs of the new program will fetch, as for :func:`transpile`.
        bucket_mb: The size of a bucket in MB, at most. A larger gradient has one of its own.
        accumulate: Over so many runs gradients are added up before they are averaged over the ranks
            and make an update: all but the last are runs of the program ``accumulating``.
        overlap: Whether a bucket is averaged while the backward pass computes the next one: give
            ``bucket_mb`` such that there are some buckets.

    Returns:
        The program of a rank, one that gives all ranks the variables of rank 0, and the variables
        that stand for those in the list; and the program that accumulates, if it was asked for.

    Raises:
        NgraphError: The engine is missing; ``program`` is no static program, cannot become a PIR
            program, has no optimizer, or updates parameters by more than their gradients; something
            in ``fetch_list`` is no variable of it; a number is out of range.
    """
    library.load()
    from paddle_ngraph.transpiler import distribution_transpiler

    options = distribution_transpiler.Options(
        bucket_mb=bucket_mb, accumulate=accumulate, overlap=overlap
    )
    return distribution_transpiler.transpile(program, ranks, _listed(fetch_list), options)


def distribute_to_server(program: Any, fetch_list: Any = None) -> ServerForm:
    """Makes the programs of a parameter server and its trainers of a program that trains alone.

    Trainers compute gradients; the server clips and adds them to the parameters, and keeps the
    states of the optimizer. Of the weight of an ``Embedding(sparse=True)``, a table, trainers get
    the rows that their batch looks up, and only these are updated. See docs/distributed.md.

    Args:
        program: A static program with an optimizer, PIR or ProgramDesc, which stays as it is.
        fetch_list: What trainers will fetch, as for :func:`transpile`.

    Returns:
        Both programs, for ``distributed.serve`` and ``distributed.trainer``.

    Raises:
        NgraphError: As :func:`distribute`; a parameter is not of float32; something in
            ``fetch_list`` is computed with the updates; a table is read by more than lookups of
            what is fed, or decays.
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
    """Cuts a program that trains alone into stages for several processes, each with its parameters.

    A batch goes through the stages in micro-batches, whose gradients are added up: a step is that
    of the whole batch, if the loss is a mean over its samples. See docs/distributed.md.

    Args:
        program: A static program with an optimizer, PIR or ProgramDesc, which stays as it is.
        stages: The number of stages, 1 or more.
        fetch_list: What will be fetched, as for :func:`transpile`.
        micro_batches: The number of parts of a batch, which are equal.
        cuts: For each stage but the last what it ends with: a variable of the program, or a list of
            them. By default the stages are balanced, by an estimate of their time.
        startup_program: The startup program of ``program``: then each stage has a part of it, which
            makes the variables of this stage alone.

    Returns:
        The programs of each stage, for ``distributed.pipeline``. Printed, it says what they have.

    Raises:
        NgraphError: As :func:`distribute`; the program cannot be cut into so many stages, or not
            there: a parameter would belong to two; something in ``fetch_list`` is computed with the
            updates, or is no mean over samples; no feed has an open first dimension.
    """
    library.load()
    from paddle_ngraph.transpiler import pipeline_transpiler

    options = pipeline_transpiler.Options(stages, micro_batches, cuts)
    return pipeline_transpiler.transpile(program, _listed(fetch_list), options, startup_program)


def execution_plan(
    program: Any, default_devices: Sequence[str] | str | None = None, fetch_list: Any = None
) -> ExecutionPlan:
    """Makes a plan that says which device runs which operators of a program.

    Operators of one device make up intervals; intervals that do not depend on each other run at the
    same time, each when its inputs are there::

        plan = paddle_ngraph.execution_plan(program, ["CPU:0", "CPU:1"], [loss])
        plan.place("linear_0.*", "CPU:1")
        print(plan)  # operators, intervals, devices, copies
        executor.run(plan.program, feed=..., fetch_list=plan.fetches)

    What holds is, first, ``place()`` of the plan; then :func:`device` while the program was built;
    then the default devices. The planned program is an ordinary program as :func:`transpile` makes
    one; intervals are made of whatever can be converted, however small. See docs/execution_plan.md.

    Args:
        program: A static program, PIR or ProgramDesc, which stays as it is.
        default_devices: Where operators go that no rule places: branches that do not depend on each
            other are spread over these devices. By default ``CPU``: all cores.
        fetch_list: What runs of the planned program will fetch, as for :func:`transpile`.

    Returns:
        The plan: ``place()``, ``program``, ``fetches``, ``operators``, ``to_dot()``.

    Raises:
        NgraphError: As :func:`transpile`; or there is no such device.
    """
    library.load()
    from paddle_ngraph.plan.execution_plan import ExecutionPlan

    return ExecutionPlan(program, default_devices, _listed(fetch_list))


def automatic_plan(
    program: Any, feed: Mapping[str, Any], fetch_list: Any = None, scope: Any = None
) -> AutomaticPlan:
    """Finds out how a program runs fastest on the cores of this process.

    There is one function on all cores (``serial``); slices of the batch, each on an equal part of
    the cores (:func:`data_parallel`); independent parts on core groups of equal size
    (:func:`execution_plan`); and pipelines, whose stages, each on a core group, compute slices one
    after the other. The intervals of each are timed, and a run is predicted from what has
    to wait for what. Those that come close to the best prediction are timed as a whole, and the
    fastest of them is taken::

        executor.run(startup_program)
        plan = paddle_ngraph.automatic_plan(main_program, feed, [loss])
        print(plan)  # what was chosen and why: predicted and measured times
        executor.run(plan.program, feed=feed, fetch_list=plan.fetches)

    Everything runs on copies of the variables, and random numbers go on where they were. A plan
    that does not compute what the serial one does, to 1e-3 of the largest number, is left out. To
    build and time the plans takes several times as long as a first run: seconds, or minutes for a
    large network.

    Args:
        program: A static program, PIR or ProgramDesc, which stays as it is.
        feed: Arrays like those of the runs to come, by name: shapes decide what is fastest.
        fetch_list: What runs of the planned program will fetch, as for :func:`transpile`.
        scope: Where the variables are, after the startup program; ``None``: in the scope of
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
    """Makes a program that computes equal slices of a batch at once, in one process.

    There is one copy of the parameters. Each slice has an equal part of the cores; gradients are
    averaged over the slices, and there is one update. So it computes what the program computes of
    the whole batch, if the loss is a mean over its samples::

        made = paddle_ngraph.data_parallel(main_program, 2, [loss])
        executor.run(made.program, feed=..., fetch_list=made.fetches)

    Feeds with an open first dimension are split; all slices get the others. Results with an open
    first dimension are put together, others are means over the slices. Dropout draws other numbers
    than for the whole batch. See docs/execution_plan.md.

    Args:
        program: A static program, PIR or ProgramDesc, which stays as it is; for inference, or with
            an optimizer. All that it computes of its data has to be convertible.
        places: The number of slices. A batch has to be a multiple of it.
        fetch_list: What runs of the new program will fetch, as for :func:`transpile`.

    Returns:
        The new program, and the variables that stand for those in the list.

    Raises:
        NgraphError: As :func:`transpile`; ``places`` is no whole number, 1 or more; or the program
            cannot be computed in slices: no feed has an open first dimension, something computed of
            the data stays native, is whole numbers for the whole batch, or updates variables
            (as batch normalization does in training).
    """
    library.load()
    from paddle_ngraph.plan import data_parallel as slicing

    return slicing.data_parallel(program, places, _listed(fetch_list))


def devices() -> list[str]:
    """The devices that operators can be placed on.

    Returns:
        ``CPU``, which is all cores that the process may use; each core, ``CPU:3``; GPUs and NPUs
        that OpenVINO finds, ``GPU.0``; and ``native``, Paddle's own kernels. Any of the cores make
        up a group: ``CPU:0-3``, ``CPU:0,2``.
    """
    library.load()
    from paddle_ngraph.plan import devices as found

    return found.devices()


def device(name: str) -> AbstractContextManager[None]:
    """Places the operators that are added to the main program inside the ``with`` block.

    Their gradients and updates go with them. An inner block takes precedence over those around it.
    It takes effect in :func:`execution_plan`, and in programs that the engine runs as they are.

    Args:
        name: One of the :func:`devices`, or a group of cores.

    Raises:
        NgraphError: There is no such device, or no static PIR program is being built.
    """
    library.load()
    from paddle_ngraph.plan import devices as found

    return found.device(name)


def copy(x: Any, device: str) -> Any:
    """Adds an operator to the main program that copies a variable to a device.

    Plans put such operators in where data changes device; by hand they say where. The result has
    the same numbers. Between groups of cores no data is moved.

    Args:
        x: A variable of a static PIR program.
        device: One of the :func:`devices`, or a group of cores.

    Returns:
        The variable there.

    Raises:
        NgraphError: There is no such device, or ``x`` is no such variable.
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
    """Saves a model in which engine operators already replace the intervals.

    It is an ordinary model, ``<path_prefix>.json`` and ``.pdiparams``: ``create_predictor``,
    ``load_inference_model`` and ``paddle.jit.load`` run it after ``import paddle_ngraph``, with
    nothing to switch on. Without the import Paddle cannot run it.

    Args:
        path_prefix, feed_vars, fetch_vars, executor, program: As in
            ``paddle.static.save_inference_model``.
        input_shapes: The shapes to compile functions for: a shape for each input by name, or
            several such dictionaries. The functions are stored beside the model in
            ``<path_prefix>.ngraph``. An array given instead of a shape provides contents too. A
            process with the same versions, processor and number of threads uses these functions;
            others compile their own.
        kwargs: As in ``paddle.static.save_inference_model``, except ``separate_parameters``.

    Returns:
        What was converted.

    Raises:
        NgraphError: The program cannot be rewritten, or cannot be run with ``input_shapes``. At
            ``path_prefix`` there is then the model as Paddle saves it.
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


def stats() -> dict[str, Any]:
    """Counters since the start or :func:`reset_stats`; see ``paddle_ngraph.statistics.stats``."""
    library.load()
    from paddle_ngraph import statistics

    return statistics.stats()


def reset_stats() -> None:
    """Sets the counters of :func:`stats` and :func:`cache_info` to zero."""
    library.load()
    from paddle_ngraph import statistics

    statistics.reset_stats()


def cache_info() -> CacheInfo:
    """Hits, misses, capacity, current size and evictions of the function cache."""
    library.load()
    from paddle_ngraph import statistics

    return statistics.cache_info()


def clear_cache() -> None:
    """Drops every compiled function, and releases the memory that is kept for the next run.

    Intervals that a run left to Paddle for good get another chance too. Functions that are being
    compiled in the background are dropped when that is over.
    """
    library.load()
    from paddle_ngraph import caches

    caches.clear()


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Waits until nothing is compiled in the background: see ``FLAGS_ngraph_background_compile``.

    Runs before a measurement, say: a first one of each kind, then this, and the next runs go
    through the engine.

    Args:
        timeout: How many seconds it waits at most; ``None``: as long as it takes.

    Returns:
        Whether nothing is compiled any more.
    """
    library.load()
    from paddle_ngraph.partitioning import background_compile

    return background_compile.wait(timeout)


def _switch(on: bool) -> None:
    library.load()
    from paddle_ngraph import flags

    flags.set("use_ngraph", on)
