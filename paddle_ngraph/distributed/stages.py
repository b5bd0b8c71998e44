"""Pipeline parallelism: each rank runs a stage of the network on micro-batches.

The schedule is one forward, one backward (Narayanan et al., PipeDream, SOSP 2019; with a flush for
each batch, as in Megatron-LM, SC 2021): a stage begins with as many forward passes as there are
stages after it, then alternates, which limits the number of micro-batches in flight. Each stage is
idle for about ``(stages - 1) / (micro_batches + stages - 1)`` of a step, the bubble.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import paddle

from paddle_ngraph.distributed import first_run
from paddle_ngraph.distributed.job import DistributedJob, slice_of
from paddle_ngraph.distributed.link import Message, MessageKind, ProcessLink, failure, sentence_of
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models.saved_model import last_line
from paddle_ngraph.paddle_private.protocols import Scope
from paddle_ngraph.transpiler.pipeline_transpiler import Pipeline, StageProgram, StagePrograms
from paddle_ngraph.transpiler.scope_copies import variables_of
from paddle_ngraph.utils import signals

_ENDS = (MessageKind.DONE, MessageKind.FAILURE)
_END_TIMEOUT_SECONDS = 10.0

Inbox = queue.SimpleQueue[tuple[int, Message]]


class Outbox(Protocol):
    """Interface of the queue of the messages to one other stage."""

    def put(self, message: Message) -> None: ...


@dataclass(frozen=True)
class Bubble:
    """The idle time of a stage.

    Attributes:
        stage: The stage.
        stages: The number of stages.
        micro_batches: The number of micro-batches per batch.
        steps: The number of measured steps: all but the first, which compiles.
        seconds: The time of these steps.
        waiting: The time in which this stage waited for others.
    """

    stage: int
    stages: int
    micro_batches: int
    steps: int
    seconds: float
    waiting: float

    @property
    def ideal(self) -> float:
        """The idle share of a stage, for stages of equal time and messages without latency."""
        return (self.stages - 1) / (self.micro_batches + self.stages - 1)

    @property
    def measured(self) -> float:
        """The measured share of time in which the stage was idle."""
        return self.waiting / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"stage {self.stage} of {self.stages}, {self.micro_batches} micro-batches, "
            f"{self.steps} steps: waited {self.measured:.0%} of the time, {self.ideal:.0%} with "
            "equal stages and instant messages"
        )


class PipelineStage:
    """One stage of a pipeline. To be used in a ``with`` block.

    Args:
        executor: The executor of the programs.
        form: The programs of all stages.
        scope: The scope of the variables of this stage.
        number: The index of this stage.
        inbox: Messages of other stages, each with the index of its stage.
        outboxes: Queues to the previous and the next stage, by index.

    Attributes:
        number: The index of this stage.
    """

    def __init__(
        self,
        executor: Any,
        form: Pipeline,
        scope: Scope,
        number: int,
        inbox: Inbox,
        outboxes: Mapping[int, Outbox],
    ) -> None:
        self._executor = executor
        self._form = form
        self._stage: StagePrograms = form.stages[number]
        self._scope = scope
        self.number = number
        self._inbox = inbox
        self._outboxes = outboxes
        self._is_open = True
        # The message of the error that another stage has reported; empty without one.
        self._failed_stage = ""
        self._received: dict[int, deque[Sequence[np.ndarray]]] = defaultdict(deque)
        # For each step, its duration and the time spent waiting, in seconds.
        self._steps: list[tuple[float, float]] = []
        self._waiting = 0.0
        # State of the current batch, like all members below: the feeds of each micro-batch.
        self._feeds: list[dict[str, Any]] = []
        self._sizes = np.zeros(0, "int64")
        # For each micro-batch, the values of its forward pass that its backward pass reads, by
        # name.
        self._saved: dict[int, dict[str, np.ndarray]] = {}
        self._results: dict[int, list[np.ndarray]] = defaultdict(list)

    @property
    def _last(self) -> int:
        return len(self._form.stages) - 1

    def run(self, feed: Mapping[str, Any]) -> list[np.ndarray]:
        """Runs a step with one batch: all micro-batches, and the update. All ranks call it.

        Args:
            feed: The arrays of the whole batch by name, ``[batch, ...]`` each: at least those that
                this stage reads.

        Returns:
            The values of the ``fetch_list``, on every rank: results with a dynamic first dimension
            for the whole batch, other results as the mean over the micro-batches.

        Raises:
            NgraphError: The batch is not divisible; a feed is missing; the ranks are fed batches of
                different sizes; another rank is lost or has failed.
        """
        if not self._is_open:
            raise NgraphError("this pipeline is closed: create another one, on all ranks")
        begin, self._waiting = time.monotonic(), 0.0
        try:
            self._divide(feed)
            self._run_micro_batches()
            results = self._update()
        except BaseException as error:
            self._fail(error)
            raise
        self._steps.append((time.monotonic() - begin, self._waiting))
        return results

    def bubble(self) -> Bubble:
        """The measured idle time of this stage; the first step, which compiles, is left out."""
        counted = self._steps[1:]
        return Bubble(
            stage=self.number,
            stages=len(self._form.stages),
            micro_batches=self._form.micro_batches,
            steps=len(counted),
            seconds=sum(seconds for seconds, _ in counted),
            waiting=sum(waiting for _, waiting in counted),
        )

    def close(self) -> None:
        """Notifies the other stages that this stage has ended."""
        if self._is_open:
            self._end(Message(MessageKind.DONE))

    def __enter__(self) -> PipelineStage:
        return self

    def __exit__(self, error_type: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        else:
            self._fail(error)

    # -- a step ----------------------------------------------------------------------------------

    def _divide(self, feed: Mapping[str, Any]) -> None:
        """Splits the feeds of a batch into those of the micro-batches."""
        count, sliced = self._form.micro_batches, self._form.sliced
        read = sorted(
            {name for stage_program in self._stage.programs for name in stage_program.feeds}
        )
        for name in read:
            if name not in feed:
                raise NgraphError(f"{name!r} is not fed, which stage {self.number} reads")
        self._feeds = [
            {
                name: slice_of(name, feed[name], number, count, "micro-batches")
                if name in sliced
                else feed[name]
                for name in read
            }
            for number in range(count)
        ]
        sizes = [np.shape(feed[name])[0] if name in feed else -1 for name in sorted(sliced)]
        self._sizes = np.array(sizes, "int64")
        self._saved.clear()
        self._results.clear()

    def _run_micro_batches(self) -> None:
        """Runs all micro-batches of a step in the one-forward-one-backward schedule."""
        count = self._form.micro_batches
        ahead = min(self._last - self.number, count)
        for number in range(ahead):
            self._forward(number)
        for number in range(count):
            if number + ahead < count:
                self._forward(number + ahead)
            self._backward(number)

    def _forward(self, number: int) -> None:
        values: dict[str, np.ndarray] = {}
        if self.number > 0:
            names = self._form.stages[self.number - 1].activations
            sizes, *arrays = self._receive(self.number - 1, 1 + len(names))
            self._compare(sizes)
            values.update(zip(names, arrays))
        if self._stage.forward is not None:
            values.update(self._run(self._stage.forward, {**self._feeds[number], **values}))
            sent = [values[name] for name in self._stage.activations]
            self._send(self.number + 1, [self._sizes, *sent])
        self._saved[number] = {
            name: values[name] for name in self._stage.backward.takes if name in values
        }

    def _backward(self, number: int) -> None:
        values = self._saved.pop(number)
        if self.number < self._last:
            names = self._form.stages[self.number + 1].gradients
            values.update(zip(names, self._receive(self.number + 1, len(names))))
        values.update(self._run(self._stage.backward, {**self._feeds[number], **values}))
        if self.number > 0:
            self._send(self.number - 1, [values[name] for name in self._stage.gradients])

    def _compare(self, sizes: np.ndarray) -> None:
        """Raises NgraphError if an earlier stage was fed a batch of another size."""
        names = sorted(self._form.sliced)
        if sizes.dtype != self._sizes.dtype or sizes.shape != self._sizes.shape:
            raise NgraphError(f"stage {self.number - 1} has sent sizes of another program")
        for name, mine, other in zip(names, self._sizes, sizes):
            if mine != other and -1 not in (mine, other):
                raise NgraphError(
                    f"the batch of {name!r} has {mine} samples for stage {self.number} and "
                    f"{other} for a stage before it: feed all ranks the same batch"
                )
        self._sizes = np.maximum(self._sizes, sizes)

    def _update(self) -> list[np.ndarray]:
        """Exchanges norms and results with all stages, and runs the update; returns the results."""
        norms = {} if self._stage.norms is None else self._run(self._stage.norms, {})
        mine = [*norms.values(), *(self._merged(number) for number in self._stage.results)]
        everything = iter(self._gather(mine))
        shared: dict[str, np.ndarray] = {}
        results: dict[int, np.ndarray] = {}
        for stage in self._form.stages:
            shared.update(
                (name, next(everything)) for name in (stage.norms.gives if stage.norms else ())
            )
            results.update((number, next(everything)) for number in stage.results)
        self._run(self._stage.update, shared)
        return [results[number] for number in range(len(self._form.together))]

    def _merged(self, number: int) -> np.ndarray:
        """The result ``number`` of the whole batch, computed from those of the micro-batches."""
        found = self._results[number]
        if self._form.together[number]:
            return np.concatenate(found)
        return found[0] if len(found) == 1 else np.mean(found, 0, dtype=found[0].dtype)

    def _gather(self, mine: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Gathers arrays of all stages, in order: to the last stage, and back."""
        counts = [stage.num_shared for stage in self._form.stages]
        found = mine
        if self.number > 0:
            found = [*self._receive(self.number - 1, sum(counts[: self.number])), *mine]
        if self.number < self._last:
            self._send(self.number + 1, found)
            found = self._receive(self.number + 1, sum(counts))
        if self.number > 0:
            self._send(self.number - 1, found)
        return found

    def _run(self, stage_program: StageProgram, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs a program of this stage; returns the values that other programs read, by name."""
        feed = {name: given[name] for name in (*stage_program.feeds, *stage_program.takes)}
        # The scope_guard is for learning rate schedules: Executor.run sets their variable in the
        # current scope, and ignores its argument ``scope``.
        with paddle.static.scope_guard(self._scope):
            found = self._executor.run(
                stage_program.program, feed=feed, fetch_list=stage_program.fetches
            )
        count = len(stage_program.gives)
        for number, result in zip(stage_program.results, found[count:]):
            self._results[number].append(result)
        return dict(zip(stage_program.gives, found))

    # -- messages --------------------------------------------------------------------------------

    def _send(self, stage: int, arrays: Sequence[np.ndarray]) -> None:
        self._outboxes[stage].put(Message(MessageKind.VALUES, arrays))

    def _receive(self, stage: int, count: int) -> Sequence[np.ndarray]:
        """Waits for the next ``count`` values from another stage."""
        begin = time.monotonic()
        while not self._received[stage]:
            sender, message = self._inbox.get()
            if message.kind == MessageKind.FAILURE:
                self._failed_stage = sentence_of(message)
                raise NgraphError(self._failed_stage)
            if message.kind == MessageKind.DONE:
                raise NgraphError(
                    f"stage {sender} is done and stage {self.number} is not: call run() equally "
                    "often on all ranks"
                )
            self._received[sender].append(message.arrays)
        self._waiting += time.monotonic() - begin
        arrays = self._received[stage].popleft()
        if len(arrays) != count:
            raise NgraphError(
                f"stage {stage} has sent {len(arrays)} values, and stage {self.number} waits for "
                f"{count}: build the same program on all ranks"
            )
        return arrays

    def _fail(self, error: BaseException) -> None:
        """Reports an error of this stage to the other stages."""
        if self._is_open:
            own = f"stage {self.number} has failed: {type(error).__name__}: {error}"
            self._end(failure(self._failed_stage or own))

    def _end(self, message: Message) -> None:
        self._is_open = False
        for outbox in self._outboxes.values():
            outbox.put(message)


class LinkedStage(PipelineStage):
    """The stage of a rank, with links to the previous and the next rank.

    Args:
        executor: The executor of the programs.
        form: The programs of all stages.
        scope: The scope of the variables of this stage.
        job: The job.

    Raises:
        NgraphError: The job has another number of ranks; the ranks have created ``form`` from
            different programs; a variable is missing.
    """

    def __init__(self, executor: Any, form: Pipeline, scope: Scope, job: DistributedJob) -> None:
        rank, ranks = job.placement.rank, job.placement.ranks
        if ranks != len(form.stages):
            raise NgraphError(
                f"the job has {ranks} ranks and the pipeline {len(form.stages)} stages: start one "
                "rank for each stage"
            )
        for stage_program in form.stages[rank].programs:
            variables_of(stage_program.program, scope)
        first_run.agree(
            job,
            [stage_program.program for stage in form.stages for stage_program in stage.programs],
            {},
        )
        inbox: Inbox = queue.SimpleQueue()
        near = [other for other in (rank - 1, rank + 1) if 0 <= other < ranks]
        queues: dict[int, queue.SimpleQueue[Message]] = {o: queue.SimpleQueue() for o in near}
        super().__init__(executor, form, scope, rank, inbox, queues)
        self._job = job
        self._threads: list[threading.Thread] = []
        for other in near:
            # One link for each direction; both ranks create the two links in the same order.
            for is_upward in (True, False):
                self._start(other, is_upward, inbox, queues[other])

    def _start(
        self, other: int, is_upward: bool, inbox: Inbox, outbox: queue.SimpleQueue[Message]
    ) -> None:
        """Starts a thread that creates a link to another stage and exchanges messages over it."""
        started: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        sends = is_upward == (other > self.number)
        number = self._job.link_number(2 * min(other, self.number) + is_upward)

        def talk() -> None:
            with signals.own_errors():
                try:
                    with closing(ProcessLink.between(self._job, other, number)) as link:
                        started.put(None)
                        kind = MessageKind.WAIT
                        while kind not in _ENDS:
                            if sends:
                                kind = link.send_next(outbox).kind
                            else:
                                message = link.receive()
                                inbox.put((other, message))
                                kind = message.kind
                except Exception as error:
                    # Catches all types, since Paddle's own errors of the store have many.
                    started.put(error)
                    inbox.put((other, failure(f"stage {other} has gone ({last_line(error)})")))

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        self._threads.append(thread)
        if (error := started.get()) is not None:
            raise NgraphError(
                f"stage {self.number} cannot reach stage {other} ({last_line(error)})"
            ) from error

    def _end(self, message: Message) -> None:
        super()._end(message)
        end = time.monotonic() + _END_TIMEOUT_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
