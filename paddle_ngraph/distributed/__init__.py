"""Training on several processes: data parallelism, pipelines and a parameter server.

With data parallelism, each process computes a share of the batch, all with equal parameters::

    from paddle_ngraph import distributed

    distributed.init(seed=7)
    ...  # the program, as for one process
    distributed.distributed_optimizer(optimizer).minimize(loss)
    executor.run(startup_program)
    distributed.prepare(executor, main_program, feed=distributed.share(feed), fetch_list=[loss])
    for step in range(distributed.resume(main_program), steps):
        executor.run(main_program, feed=distributed.share(feed), fetch_list=[loss])
        distributed.checkpoint(main_program, step + 1)

Start a script by ``python -m paddle_ngraph launch --nproc 2 --checkpoint DIR script.py``; without
checkpoints, ``python -m paddle.distributed.launch`` works, too. Each function imports its
implementation when called.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paddle_ngraph import library
from paddle_ngraph.errors import NgraphError

if TYPE_CHECKING:
    from paddle_ngraph.distributed.checkpoints import Checkpoints
    from paddle_ngraph.distributed.job import DistributedJob
    from paddle_ngraph.distributed.server import Trainer
    from paddle_ngraph.distributed.stages import PipelineStage
    from paddle_ngraph.distributed.training_state import TrainingState
    from paddle_ngraph.transpiler.pipeline_transpiler import Pipeline
    from paddle_ngraph.transpiler.server_transpiler import ServerForm

__all__ = [
    "barrier",
    "checkpoint",
    "distributed_optimizer",
    "init",
    "pipeline",
    "prepare",
    "prepare_layers",
    "rank",
    "ranks",
    "resume",
    "serve",
    "share",
    "trainer",
]


def init(seed: int | None = None, *, pin_cores: bool = True, dynamic: bool = False) -> None:
    """Joins the job of the launcher that started this process.

    The launcher is ``python -m paddle_ngraph launch`` or ``python -m paddle.distributed.launch``.

    Opens the store of the job, and the gloo context for collectives of static programs; a process
    without a launcher is a job of one rank. A second call only sets the seed.

    A script may also call ``paddle.distributed.init_parallel_env`` itself, before this function:
    then the store is Paddle's, which listens at all addresses and asks for no secret.

    Args:
        seed: Seeds random numbers of this rank with ``seed + rank``, so that dropout masks differ
            between ranks. Parameters are those of rank 0 in any case.
        pin_cores: Whether the ranks of one machine divide its cores, which ``launch`` does not do.
        dynamic: Whether to call ``paddle.distributed.init_parallel_env``, for
            ``paddle.DataParallel``, ``fleet`` and collectives of dynamic mode.

    Raises:
        NgraphError: The engine is missing, the environment variables are invalid, the port of
            the store is in use, a stranger has connected as a rank, or ``dynamic`` is given in
            static mode.
    """
    from paddle_ngraph.distributed import reports

    reports.connect(os.environ)  # so that a launcher hears why the engine is missing
    library.load()
    from paddle_ngraph.distributed import job

    job.start(seed, pin_cores, initializes_paddle=dynamic)


def rank() -> int:
    """The rank of this process, from 0. Raises NgraphError before :func:`init`."""
    return _job().placement.rank


def ranks() -> int:
    """The number of processes. Raises NgraphError before :func:`init`."""
    return _job().placement.ranks


def barrier() -> None:
    """Waits until every rank has called this function. Raises NgraphError before :func:`init`."""
    _job().barrier()


def share(feed: Mapping[str, Any]) -> dict[str, Any]:
    """The share of a batch that this rank computes.

    Args:
        feed: The arrays of the whole batch by name, ``[batch, ...]`` each.

    Returns:
        Arrays of ``[batch / ranks, ...]`` by name; the first samples belong to rank 0.

    Raises:
        NgraphError: A batch is not divisible, or :func:`init` has not been called.
    """
    from paddle_ngraph.distributed import job

    placement = _job().placement
    return {name: job.share_of(name, batch, placement) for name, batch in feed.items()}


def prepare(
    executor: Any,
    program: Any,
    feed: Mapping[str, Any],
    fetch_list: Sequence[Any] = (),
    scope: Any = None,
    *,
    all_reduce: str = "ring",
) -> None:
    """Checks that all ranks agree, and compiles on each; to be called before the first step.

    Runs a step on copies of the variables, without side effects and without communication. A
    collective times out after 30 seconds: here all ranks wait for the last one to compile.

    Args:
        executor: The executor of the program.
        program: The program of a rank.
        feed: As in the first step; only dtypes and shapes matter.
        fetch_list: As in the first step.
        scope: The scope of the variables; ``None``: the scope of ``scope_guard``.
        all_reduce: How gradients are summed: ``"ring"``, through all ranks; ``"two levels"``,
            inside each machine and then between machines, which have to have equally many ranks,
            two or more; ``"measured"``: whichever of the two takes less time for the sizes of the
            program. The order of additions differs, so losses differ in their last bits.

    Raises:
        NgraphError: The ranks differ in program, shapes or versions (on every rank, with one
            message); a variable is missing; ``all_reduce`` is none of these; :func:`init` has not
            been called.
    """
    from paddle_ngraph.distributed import all_reduces, first_run

    joined = _job()
    first_run.agree(joined, [program], feed)
    all_reduces.choose(joined, program, all_reduce)
    first_run.compile_single_rank(executor, program, feed, fetch_list, _scope(scope))
    joined.barrier()


def prepare_layers(state: Mapping[str, Any], passes: Callable[[], Any]) -> None:
    """Compiles dynamic layers; to be called by all ranks before :func:`resume`.

    In a job, functions of ``paddle_ngraph.compile`` are compiled here only, for the calls that
    ``passes`` makes. Other calls of them run natively: their first call in a process always does,
    and after a restart that would be another step, with other rounding, than in an undisturbed job.
    Layers of ``paddle.jit.to_static`` need no such call.

    Args:
        state: Dynamic layers and optimizers by any names, as for :func:`checkpoint`.
        passes: Runs the forward and backward passes of a step, without an update. Called several
            times; afterwards parameters and buffers of the layers in ``state``, and the random
            states, are as before, and gradients are cleared.

    Raises:
        NgraphError: A rank is lost, or :func:`init` has not been called.
    """
    joined = _job()
    from paddle_ngraph.distributed import layers

    layers.prepare(joined, state, passes)


def checkpoint(
    program: Any, step: int, folder: str | os.PathLike[str] | None = None, scope: Any = None
) -> None:
    """Writes the complete state of a training to a checkpoint; called by all ranks.

    The state consists of all variables of the program (parameters, the states of the optimizer,
    running statistics, accumulated gradients), the state of its learning rate schedule, and the
    random states of each rank (those of Paddle, ``numpy.random`` and ``random``). The last three
    checkpoints are retained. An interrupted checkpoint leaves no trace.

    Args:
        program: The static PIR training program, or a dict of dynamic layers and optimizers.
        step: The number of completed steps, more than at the last checkpoint. A second call for
            one step has no effect.
        folder: The folder of the checkpoints, visible to all ranks; ``None``: that of the
            launcher, ``python -m paddle_ngraph launch --checkpoint``.
        scope: The scope of the variables; ``None``: the scope of ``scope_guard``.

    Raises:
        NgraphError: On every rank, with one message: the checkpoint cannot be written, and earlier
            ones are unchanged; the ranks are at different steps; another job uses the folder; the
            folder has a later checkpoint, and the job did not resume from it. :func:`init` has not
            been called.
    """
    _checkpoints(folder).save(_state(program, scope), _integer(step))


def resume(program: Any, folder: str | os.PathLike[str] | None = None, scope: Any = None) -> int:
    """Continues from the newest complete checkpoint, if there is one; called by all ranks.

    To be called after the startup program and :func:`prepare`, right before the first step.

    Args:
        program: The program of the checkpoint; see :func:`checkpoint`.
        folder: As for :func:`checkpoint`.
        scope: As for :func:`checkpoint`.

    Returns:
        The number of completed steps: 0 if there is no checkpoint.

    Raises:
        NgraphError: On every rank, with one message and without side effects: all checkpoints are
            damaged, or of another program or number of ranks; another job uses the folder.
            :func:`init` has not been called, or the startup program has not run.
    """
    return _checkpoints(folder).restore(_state(program, scope))


def distributed_optimizer(optimizer: Any, *, bucket_mb: float = 25.0, overlap: bool = False) -> Any:
    """An optimizer whose ``minimize`` also transforms the program into that of one rank.

    Other attributes are those of ``optimizer``. The startup program broadcasts the variables of
    rank 0. Gradients are averaged over the ranks before they are clipped.

    Args:
        optimizer: Any optimizer of Paddle.
        bucket_mb: The maximal size in MB of the flat buckets in which gradients are averaged.
        overlap: Whether a bucket is averaged while the backward pass computes the next one.

    Raises:
        NgraphError: :func:`init` has not been called.
    """
    from paddle_ngraph.distributed.optimizer import DistributedOptimizer
    from paddle_ngraph.transpiler.distribution_transpiler import DistributionOptions

    return DistributedOptimizer(
        optimizer, ranks(), DistributionOptions(bucket_mb=bucket_mb, overlap=overlap)
    )


def serve(
    executor: Any,
    form: ServerForm,
    scope: Any = None,
    *,
    synchronous: bool = True,
    after_update: Callable[[int], None] | None = None,
) -> int:
    """Serves parameters to the other ranks, until all are done. To be called by rank 0.

    Args:
        executor: The executor of the server's program.
        form: The result of ``paddle_ngraph.distribute_to_server``.
        scope: The scope of the parameters, after the startup program; ``None``: the scope of
            ``scope_guard``.
        synchronous: Whether an update waits for the gradients of all trainers, and uses their
            average. Otherwise the gradients of each trainer cause an update, in order of arrival.
        after_update: Called after each update with the number of updates so far: to save, or to
            step a learning rate schedule.

    Returns:
        The number of updates.

    Raises:
        NgraphError: A trainer is lost or has failed; the ranks created ``form`` from different
            programs; there is no other rank.
    """
    joined = _job()
    from paddle_ngraph.distributed.server import Server

    return Server(executor, form, _scope(scope), joined, synchronous, after_update).run()


def trainer(executor: Any, form: ServerForm, scope: Any = None) -> Trainer:
    """Connects to the server. To be called by all ranks but 0, and used in a ``with`` block.

    Args:
        executor: The executor of the trainer's program.
        form: The result of ``paddle_ngraph.distribute_to_server``.
        scope: As for :func:`serve`.

    Returns:
        An object whose ``run(feed)`` runs a step, and whose ``share(feed)`` returns the share of a
        batch of this trainer.

    Raises:
        NgraphError: As :func:`serve`.
    """
    joined = _job()
    from paddle_ngraph.distributed.server import Trainer

    return Trainer(executor, form, _scope(scope), joined)


def pipeline(executor: Any, form: Pipeline, scope: Any = None) -> PipelineStage:
    """Connects the stages of a pipeline. To be called by all ranks, and used in a ``with`` block.

    Rank 0 has the first stage. Each rank has to run ``form.stages[rank()].startup`` first.

    Args:
        executor: The executor of the programs of the stage.
        form: The result of ``paddle_ngraph.pipeline``.
        scope: The scope of the variables of the stage; ``None``: the scope of ``scope_guard``.

    Returns:
        An object whose ``run(feed)`` runs a step with a whole batch and returns its results on
        every rank, and whose ``bubble()`` reports the idle time of this rank.

    Raises:
        NgraphError: The number of ranks differs from that of stages; the ranks created ``form``
            from different programs; a variable is missing; a rank is lost; :func:`init` has not
            been called.
    """
    joined = _job()
    from paddle_ngraph.distributed.stages import LinkedStage

    return LinkedStage(executor, form, _scope(scope), joined)


def _job() -> DistributedJob:
    library.load()
    from paddle_ngraph.distributed import job

    return job.current()


def _checkpoints(folder: str | os.PathLike[str] | None) -> Checkpoints:
    joined = _job()
    from paddle_ngraph.distributed import checkpoints

    return checkpoints.of_job(joined, folder)


def _state(program: Any, scope: Any) -> TrainingState:
    from paddle_ngraph.distributed import training_state

    return training_state.of(program, scope)


def _integer(step: Any) -> int:
    try:
        # operator.index() accepts every integer type, such as NumPy's, and no float.
        return operator.index(step)
    except TypeError as error:
        raise NgraphError(f"step={step!r}: give the number of completed steps") from error


def _scope(given: Any) -> Any:
    import paddle

    return paddle.static.global_scope() if given is None else given
