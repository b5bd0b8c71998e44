"""Training on several processes: each computes a share of the batch, all have the same parameters.

::

    from paddle_ngraph import distributed

    distributed.init(seed=7)
    ...  # the program, as for one process
    distributed.distributed_optimizer(optimizer).minimize(loss)
    executor.run(startup_program)
    distributed.prepare(executor, main_program, feed=distributed.share(feed), fetch_list=[loss])
    for step in range(distributed.resume(main_program), steps):
        executor.run(main_program, feed=distributed.share(feed), fetch_list=[loss])
        distributed.checkpoint(main_program, step + 1)

It is started by ``python -m paddle_ngraph launch --nproc 2 --checkpoint DIR script.py``; without
checkpoints ``python -m paddle.distributed.launch`` does as well. Each function loads what it needs
when it is called.
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
    from paddle_ngraph.distributed.job import Job
    from paddle_ngraph.distributed.server import Trainer
    from paddle_ngraph.distributed.stages import PipelineStage
    from paddle_ngraph.transpiler.pipeline_transpiler import Pipeline
    from paddle_ngraph.transpiler.server_transpiler import ServerForm

__all__ = [
    "barrier",
    "checkpoint",
    "distributed_optimizer",
    "init",
    "pipeline",
    "prepare",
    "rank",
    "ranks",
    "resume",
    "serve",
    "share",
    "trainer",
]


def init(seed: int | None = None, *, pin_cores: bool = True) -> None:
    """Joins the job that a launcher has started this process for.

    The launcher is ``python -m paddle_ngraph launch`` or ``python -m paddle.distributed.launch``.

    It opens Paddle's TCPStore, and the gloo context that collectives of static programs need; a
    process that nobody has launched is a job of one rank. A second call changes nothing but the
    seed. Where ``paddle.distributed.init_parallel_env`` is called, too, it has to come first.

    Args:
        seed: Seeds the random numbers of this rank with ``seed + rank``, so that each rank drops
            out other elements. Parameters are those of rank 0 anyway.
        pin_cores: Whether the ranks of one machine share out its cores, as ``launch`` does not.

    Raises:
        NgraphError: The engine is missing, the variables of the environment make no sense, or the
            port of the store is in use.
    """
    library.load()
    from paddle_ngraph.distributed import job

    job.start(seed, pin_cores)


def rank() -> int:
    """The number of this process, from 0. Raises NgraphError before :func:`init`."""
    return _job().place.rank


def ranks() -> int:
    """The number of processes. Raises NgraphError before :func:`init`."""
    return _job().place.ranks


def barrier() -> None:
    """Waits until every rank is here. Raises NgraphError before :func:`init`."""
    _job().barrier()


def share(feed: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a batch that this rank computes.

    Args:
        feed: The arrays of the whole batch by name, ``[batch, ...]`` each.

    Returns:
        The same of ``[batch / ranks, ...]`` each, those of rank 0 first.

    Raises:
        NgraphError: A batch does not divide, or :func:`init` has not been called.
    """
    from paddle_ngraph.distributed import job

    place = _job().place
    return {name: job.share_of(name, batch, place) for name, batch in feed.items()}


def prepare(
    executor: Any,
    program: Any,
    feed: Mapping[str, Any],
    fetch_list: Sequence[Any] = (),
    scope: Any = None,
) -> None:
    """To be called before the first step: checks that the ranks agree, and has each compile.

    A step runs on copies of the variables, so that nothing changes, and without the other ranks. A
    collective waits 30 seconds for the other ranks: here all wait for the one that compiles last.

    Args:
        executor: What will run the program.
        program: The program of a rank.
        feed: As in the first step: the contents do not matter.
        fetch_list: As in the first step.
        scope: Where the variables are; ``None``: in the scope of ``scope_guard``.

    Raises:
        NgraphError: The ranks differ in program, shapes or versions (on every rank, with the same
            sentence); a variable is missing; :func:`init` has not been called.
    """
    from paddle_ngraph.distributed import first_run

    joined = _job()
    first_run.agree(joined, [program], feed)
    first_run.compile_single_rank(executor, program, feed, fetch_list, _scope(scope))
    joined.barrier()


def checkpoint(
    program: Any, step: int, folder: str | os.PathLike[str] | None = None, scope: Any = None
) -> None:
    """Keeps all that a training needs to go on from here; called by all ranks.

    That is: all variables of the program (parameters, the states of the optimizer, running
    statistics, gradients that accumulate), the state of its learning rate schedule, and the random
    numbers of each rank (Paddle's, those of ``numpy.random`` and ``random``). The last three
    checkpoints are kept. One that was interrupted is not there at all.

    Args:
        program: The static PIR program that trains.
        step: So many steps are done; more than at the last checkpoint. A second call for the same
            step does nothing.
        folder: Where the checkpoints are, a folder that all ranks see; ``None``: what the launcher
            was given, ``python -m paddle_ngraph launch --checkpoint``.
        scope: Where the variables are; ``None``: in the scope of ``scope_guard``.

    Raises:
        NgraphError: On every rank, with the same sentence: it cannot be written, and the earlier
            ones are as they were; the ranks are not at the same step; another job uses the folder;
            the folder has a later checkpoint, which nobody has resumed from. :func:`init` has not
            been called.
    """
    _checkpoints(folder).save(_pir(program), _whole(step), _scope(scope))


def resume(program: Any, folder: str | os.PathLike[str] | None = None, scope: Any = None) -> int:
    """Continues from the newest complete checkpoint, if there is one; called by all ranks.

    To be called after the startup program and :func:`prepare`, right before the first step.

    Args:
        program: As for :func:`checkpoint`: the same as then.
        folder: As for :func:`checkpoint`.
        scope: As for :func:`checkpoint`.

    Returns:
        The number of steps that are done: 0 if there is no checkpoint.

    Raises:
        NgraphError: On every rank, with the same sentence, and nothing has changed: all checkpoints
            are damaged, or of another program or number of ranks; another job uses the folder.
            :func:`init` has not been called, or the startup program has not run.
    """
    return _checkpoints(folder).restore(_pir(program), _scope(scope))


def distributed_optimizer(optimizer: Any, *, bucket_mb: float = 25.0, overlap: bool = False) -> Any:
    """An optimizer whose ``minimize`` also makes the program that of one rank.

    It has everything that ``optimizer`` has. The startup program gives all ranks the variables of
    rank 0. Gradients are averaged over the ranks before they are clipped.

    Args:
        optimizer: Any optimizer of Paddle.
        bucket_mb: The size in MB of the flat buckets in which gradients are averaged, at most.
        overlap: Whether a bucket is averaged while the backward pass computes the next one.

    Raises:
        NgraphError: :func:`init` has not been called.
    """
    from paddle_ngraph.distributed.optimizer import DistributedOptimizer
    from paddle_ngraph.transpiler.distribution_transpiler import Options

    return DistributedOptimizer(optimizer, ranks(), Options(bucket_mb=bucket_mb, overlap=overlap))


def serve(
    executor: Any,
    form: ServerForm,
    scope: Any = None,
    *,
    synchronous: bool = True,
    after_update: Callable[[int], None] | None = None,
) -> int:
    """Serves parameters to the other ranks, until they are done. To be called by rank 0.

    Args:
        executor: What runs the server's program.
        form: What ``paddle_ngraph.distribute_to_server`` returns.
        scope: Where the parameters are, after the startup program; ``None``: in the scope of
            ``scope_guard``.
        synchronous: Whether an update waits for the gradients of all trainers, and takes their
            average. Otherwise the gradients of each make an update, in the order in which they
            come.
        after_update: Called after each update with the number of updates so far: to save, or to
            step a schedule of the learning rate.

    Returns:
        The number of updates.

    Raises:
        NgraphError: A trainer has gone or failed; the ranks made ``form`` of different programs;
            there is no other rank.
    """
    joined = _job()
    from paddle_ngraph.distributed.server import Server

    return Server(executor, form, _scope(scope), joined, synchronous, after_update).run()


def trainer(executor: Any, form: ServerForm, scope: Any = None) -> Trainer:
    """Connects to the server. To be called by all ranks but 0, and used in a ``with`` block.

    Args:
        executor: What runs the trainer's program.
        form: What ``paddle_ngraph.distribute_to_server`` returns.
        scope: As for :func:`serve`.

    Returns:
        An object whose ``run(feed)`` does a step, and whose ``share(feed)`` is the part of a batch
        that this trainer computes.

    Raises:
        NgraphError: As :func:`serve`.
    """
    joined = _job()
    from paddle_ngraph.distributed.server import Trainer

    return Trainer(executor, form, _scope(scope), joined)


def pipeline(executor: Any, form: Pipeline, scope: Any = None) -> PipelineStage:
    """Connects the stages of a network. To be called by all ranks, and used in a ``with`` block.

    Rank 0 has the first stage. Before it, each rank runs ``form.stages[rank()].startup``.

    Args:
        executor: What runs the programs of the stage.
        form: What ``paddle_ngraph.pipeline`` returns.
        scope: Where the variables of the stage are; ``None``: in the scope of ``scope_guard``.

    Returns:
        An object whose ``run(feed)`` does a step with a whole batch and returns its results on
        every rank, and whose ``bubble()`` says how much of its time this rank waits.

    Raises:
        NgraphError: There are not as many ranks as stages; they made ``form`` of different
            programs; a variable is missing; a rank has gone; :func:`init` has not been called.
    """
    joined = _job()
    from paddle_ngraph.distributed.stages import LinkedStage

    return LinkedStage(executor, form, _scope(scope), joined)


def _job() -> Job:
    library.load()
    from paddle_ngraph.distributed import job

    return job.current()


def _checkpoints(folder: str | os.PathLike[str] | None) -> Checkpoints:
    joined = _job()
    from paddle_ngraph.distributed import checkpoints

    return checkpoints.of_job(joined, folder)


def _pir(program: Any) -> Any:
    import paddle

    if not isinstance(program, paddle.pir.Program):
        raise NgraphError(
            "checkpoints are of static PIR programs: paddle_ngraph.distribute() makes one of an "
            "old-style program, and paddle.save() keeps the state of a dynamic layer"
        )
    return program


def _whole(step: Any) -> int:
    try:
        return operator.index(step)  # also what NumPy counts
    except TypeError as error:
        raise NgraphError(f"step={step!r}: give the number of steps that are done") from error


def _scope(given: Any) -> Any:
    import paddle

    return paddle.static.global_scope() if given is None else given
