"""Training on several processes: each computes a share of the batch, all have the same parameters.

::

    from paddle_ngraph import distributed

    distributed.init(seed=7)
    ...  # the program, as for one process
    distributed.distributed_optimizer(optimizer).minimize(loss)
    executor.run(startup_program)
    distributed.prepare(executor, main_program, feed=distributed.share(feed), fetch_list=[loss])
    executor.run(main_program, feed=distributed.share(feed), fetch_list=[loss])

It is started by ``python -m paddle.distributed.launch --nproc_per_node 2 script.py``. Each function
loads what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paddle_ngraph import library

if TYPE_CHECKING:
    from paddle_ngraph.distributed.job import Job
    from paddle_ngraph.distributed.server import Trainer
    from paddle_ngraph.transpiler.server_transpiler import ServerForm

__all__ = [
    "barrier",
    "distributed_optimizer",
    "init",
    "prepare",
    "rank",
    "ranks",
    "serve",
    "share",
    "trainer",
]


def init(seed: int | None = None, *, pin_cores: bool = True) -> None:
    """Joins the job that ``paddle.distributed.launch`` has started this process for.

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
    import paddle

    from paddle_ngraph.distributed import first_run

    joined = _job()
    first_run.agree(joined, program, feed)
    scope = paddle.static.global_scope() if scope is None else scope
    first_run.compile_alone(executor, program, feed, fetch_list, scope)
    joined.barrier()


def distributed_optimizer(optimizer: Any, *, bucket_mb: float = 25.0) -> Any:
    """An optimizer whose ``minimize`` also makes the program that of one rank.

    It has everything that ``optimizer`` has. The startup program gives all ranks the variables of
    rank 0. Gradients are averaged over the ranks before they are clipped.

    Args:
        optimizer: Any optimizer of Paddle.
        bucket_mb: The size in MB of the flat buckets in which gradients are averaged, at most.

    Raises:
        NgraphError: :func:`init` has not been called.
    """
    from paddle_ngraph.distributed.optimizer import DistributedOptimizer
    from paddle_ngraph.transpiler.distribution_transpiler import Options

    return DistributedOptimizer(optimizer, ranks(), Options(bucket_mb=bucket_mb))


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
    import paddle

    joined = _job()
    from paddle_ngraph.distributed.server import Server

    scope = paddle.static.global_scope() if scope is None else scope
    return Server(executor, form, scope, joined, synchronous, after_update).run()


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
    import paddle

    joined = _job()
    from paddle_ngraph.distributed.server import Trainer

    scope = paddle.static.global_scope() if scope is None else scope
    return Trainer(executor, form, scope, joined)


def _job() -> Job:
    library.load()
    from paddle_ngraph.distributed import job

    return job.current()
