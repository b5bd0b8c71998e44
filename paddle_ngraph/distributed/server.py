"""The parameter server, and its trainers.

Rank 0 is the server, the others are trainers. In a step, a trainer gets all parameters, and of the
tables the rows that its batch looks up; computes the gradients; and pushes them to the server. A
synchronous server waits for the gradients of all trainers and updates once with their average, as
one process would for the whole batch. An asynchronous one updates with the gradients of each.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import paddle

from paddle_ngraph.distributed import first_run
from paddle_ngraph.distributed.job import DistributedJob, RankPlacement, share_of
from paddle_ngraph.distributed.link import Message, MessageKind, ProcessLink, failure, sentence_of
from paddle_ngraph.distributed.server_messages import Arrays, MessageSpecs
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models.saved_model import last_line
from paddle_ngraph.paddle_private.protocols import Scope
from paddle_ngraph.transpiler.scope_copies import variables_of
from paddle_ngraph.transpiler.server_transpiler import GRADIENTS, PARAMETERS, ServerForm, Table
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock

# The number of rows that is sent is padded to a power of two times this number: each number of rows
# is a shape to compile for.
_MIN_ROWS = 16
_CPU = paddle.CPUPlace()


def _check_same_program(job: DistributedJob, form: ServerForm, serves: bool) -> None:
    """Raises NgraphError if some rank has created ``form`` from another program."""
    placement = job.placement
    if placement.ranks < 2 or serves != (placement.rank == 0):
        raise NgraphError(
            f"this is rank {placement.rank} of {placement.ranks}: with a parameter server rank 0 "
            "calls serve(), and the others, at least one, call trainer()"
        )
    first_run.agree(job, [form.server], {})


def _kept_arrays(form: ServerForm, scope: Scope) -> list[np.ndarray]:
    """The variables of which trainers have copies, with the values of this process."""
    found = variables_of(form.trainer, scope)
    return [np.array(found[name].get_tensor()) for name in form.kept]


def _specs_of(form: ServerForm, scope: Scope) -> MessageSpecs:
    return MessageSpecs(form, [array.nbytes for array in _kept_arrays(form, scope)])


# -- the server ----------------------------------------------------------------------------------


class Server:
    """Serves the trainers of a job.

    Args:
        executor: The executor of the programs.
        form: The programs.
        scope: The scope of the parameters.
        job: The job, of which this process is rank 0.
        is_synchronous: Whether an update waits for the gradients of all trainers.
        after_update: Called after each update with the number of updates so far.
    """

    def __init__(
        self,
        executor: Any,
        form: ServerForm,
        scope: Scope,
        job: DistributedJob,
        is_synchronous: bool,
        after_update: Callable[[int], None] | None,
    ) -> None:
        self._executor = executor
        self._form = form
        self._scope = scope
        self._is_synchronous = is_synchronous
        self._after_update = after_update
        self._job = job
        self._trainers = set(range(1, job.placement.ranks))
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._outboxes: dict[int, queue.SimpleQueue[Message]] = {
            trainer: queue.SimpleQueue() for trainer in self._trainers
        }
        # The lock held while the link to a trainer is created, since the store serves one thread at
        # a time.
        self._linking = new_lock()
        self._pushed: dict[int, Arrays] = {}
        # All parameters as the one array that the server sends; ``None`` after an update, until
        # they are read again.
        self._parameters: np.ndarray | None = None
        self._updates = 0

    def run(self) -> int:
        """Serves until every trainer is done. Returns the number of updates.

        Raises:
            NgraphError: A trainer is lost, or has failed.
        """
        for program in (self._form.server, self._form.trainer):
            variables_of(program, self._scope)
        _check_same_program(self._job, self._form, serves=True)
        threads = [
            threading.Thread(
                target=self._exchange, args=(trainer, self._job.link_number(trainer)), daemon=True
            )
            for trainer in self._trainers
        ]
        for thread in threads:
            thread.start()
        try:
            while self._trainers:
                self._answer(*self._inbox.get())
        except BaseException as error:
            for trainer in self._trainers:
                self._outboxes[trainer].put(failure(f"the parameter server has failed: {error}"))
            raise
        finally:
            for thread in threads:
                thread.join(10)
        return self._updates

    @cached_property
    def _specs(self) -> MessageSpecs:
        return _specs_of(self._form, self._scope)

    def _exchange(self, trainer: int, number: int) -> None:
        """Exchanges messages over link ``number``, in a thread for each trainer."""
        with signals.own_errors():
            try:
                with self._linking:
                    link = ProcessLink.between(self._job, trainer, number, self._specs.max_bytes())
                with closing(link):
                    kind = MessageKind.GET
                    while kind not in (MessageKind.DONE, MessageKind.FAILURE):
                        message = link.receive()
                        self._inbox.put((trainer, message))
                        kind = message.kind
                        if kind != MessageKind.FAILURE:
                            sent = link.send_next(self._outboxes[trainer]).kind
                            kind = sent if sent == MessageKind.FAILURE else kind
            except Exception as error:
                # Catches all types, since Paddle's own errors of the store have many.
                self._inbox.put((trainer, failure(f"it has gone ({last_line(error)})")))

    def _answer(self, trainer: int, message: Message) -> None:
        if message.kind == MessageKind.FAILURE:
            self._trainers.discard(trainer)
            raise NgraphError(f"trainer {trainer} has failed: {sentence_of(message)}")
        self._check(trainer, message)
        if message.kind == MessageKind.START:
            self._outboxes[trainer].put(Message(MessageKind.ANSWER, self._kept()))
            return
        if message.kind == MessageKind.GET:
            self._outboxes[trainer].put(Message(MessageKind.ANSWER, self._read(message.arrays)))
            return
        if message.kind == MessageKind.DONE:
            self._trainers.discard(trainer)
            self._outboxes[trainer].put(Message(MessageKind.ANSWER))
        else:
            self._pushed[trainer] = message.arrays
        if self._pushed and (not self._is_synchronous or set(self._pushed) == self._trainers):
            self._update(list(self._pushed.values()))
            for each in self._pushed:
                self._outboxes[each].put(Message(MessageKind.ANSWER))
            self._pushed = {}

    def _check(self, trainer: int, message: Message) -> None:
        """Raises NgraphError for a message that no trainer of this program sends."""
        checks: dict[MessageKind, Callable[[Arrays], None]] = {
            MessageKind.START: self._specs.check_empty,
            MessageKind.GET: self._specs.check_row_ids,
            MessageKind.PUSH: self._specs.check_gradients,
            MessageKind.DONE: self._specs.check_empty,
        }
        try:
            if message.kind not in checks:
                raise NgraphError("an unknown request")
            checks[message.kind](message.arrays)
        except NgraphError as error:
            raise NgraphError(
                f"trainer {trainer} has sent a message ({message.kind.name}) that is not of this "
                f"program: {error}"
            ) from error

    def _kept(self) -> list[np.ndarray]:
        """The variables of which trainers have copies, as bytes."""
        arrays = _kept_arrays(self._form, self._scope)
        return [np.frombuffer(array.tobytes(), "uint8") for array in arrays]

    def _read(self, row_ids: Arrays) -> list[np.ndarray]:
        """Reads the dense parameters, and of each table the rows with these ids."""
        found = []
        send, sent = self._form.send
        if sent:
            if self._parameters is None:
                (parameters,) = self._run(send, {}, sent)
                # A copy, since later runs reuse the memory of the array.
                self._parameters = np.array(parameters)
            found.append(self._parameters)
        if self._form.tables:
            lookup, rows = self._form.lookup
            feed = {table.numbers: each for table, each in zip(self._form.tables, row_ids)}
            found += [np.array(each) for each in self._run(lookup, feed, rows)]
        return found

    def _update(self, pushed: Sequence[Arrays]) -> None:
        """Runs the update with the gradients in ``pushed``, averaged over the trainers."""
        feed = {}
        parts = [iter(arrays) for arrays in pushed]
        if self._specs.has_gradients:
            feed[GRADIENTS] = sum(map(next, parts)) / np.float32(len(parts))
        for table in self._form.tables:
            pairs = [(next(part), next(part)) for part in parts]
            feed[table.numbers], gradients = _added(pairs)
            feed[table.gradients] = gradients / np.float32(len(parts))
        self._run(self._form.server, feed, [])
        self._parameters = None
        self._updates += 1
        if self._after_update is not None:
            self._after_update(self._updates)

    def _run(self, program: Any, feed: dict[str, Any], fetches: Sequence[Any]) -> list[np.ndarray]:
        # A learning rate schedule sets its variable in the scope of scope_guard, whatever ``scope``
        # a run gets.
        with paddle.static.scope_guard(self._scope):
            found: list[np.ndarray] = self._executor.run(
                program, feed=feed, fetch_list=list(fetches)
            )
        return found


def _added(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Adds gradients of equal rows; returns the indices of the rows, and the sums."""
    row_ids = np.concatenate([each for each, _ in pairs])
    gradients = np.concatenate([each for _, each in pairs])
    rows, inverse = np.unique(row_ids, return_inverse=True)
    sums = np.zeros((len(rows), gradients.shape[1]), gradients.dtype)
    np.add.at(sums, inverse, gradients)
    return rows, sums


# -- a trainer -----------------------------------------------------------------------------------


class Trainer:
    """A process that computes gradients for a parameter server. To be used in a ``with`` block.

    Args:
        executor: The executor of the program.
        form: The programs.
        scope: The scope of parameters, and of statistics of batch normalizations.
        job: The job, of which this process is not rank 0.
    """

    def __init__(self, executor: Any, form: ServerForm, scope: Scope, job: DistributedJob) -> None:
        self._executor = executor
        self._form = form
        self._scope = scope
        self._job = job
        self._requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._is_open = True
        variables_of(form.trainer, scope)
        _check_same_program(job, form, serves=False)
        number = job.link_number(job.placement.rank)
        self._thread = threading.Thread(target=self._exchange, args=(number,), daemon=True)
        self._thread.start()
        self._start()

    @cached_property
    def _specs(self) -> MessageSpecs:
        return _specs_of(self._form, self._scope)

    def _start(self) -> None:
        """Receives the initial values of variables from the server, and stores them."""
        variables = variables_of(self._form.trainer, self._scope)
        answer = self._ask(Message(MessageKind.START))
        with _mismatch_error("run the startup program of the same program on both sides"):
            self._specs.check_kept(answer)
        for name, own, sent in zip(self._form.kept, _kept_arrays(self._form, self._scope), answer):
            new = np.frombuffer(sent.tobytes(), own.dtype).reshape(own.shape)
            variables[name].get_tensor().set(new, _CPU)

    def share(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The share of a batch that this trainer computes.

        Args:
            feed: The arrays of the whole batch by name, ``[batch, ...]`` each.

        Returns:
            Arrays of ``[batch / trainers, ...]`` by name.

        Raises:
            NgraphError: The batch is not divisible.
        """
        placement = self._job.placement
        among = RankPlacement(placement.rank - 1, placement.ranks - 1)
        return {name: share_of(name, batch, among) for name, batch in feed.items()}

    def run(self, feed: Mapping[str, Any]) -> list[np.ndarray]:
        """Runs a step: gets the parameters, computes the gradients, pushes them.

        Args:
            feed: This trainer's share of a batch.

        Returns:
            The values of the ``fetch_list``.

        Raises:
            NgraphError: The server is lost or has failed; the index of a row is out of range.
        """
        row_ids = [_row_ids(table, feed) for table in self._form.tables]
        answer = list(self._ask(Message(MessageKind.GET, row_ids)))
        with _mismatch_error("build the same program on both sides"):
            self._specs.check_parameters(answer, row_ids)
        given = dict(feed)
        if self._form.send[1]:
            given[PARAMETERS] = answer.pop(0)
        for table, of_rows, rows in zip(self._form.tables, row_ids, answer):
            given[table.rows] = _padded(rows)
            for name, positions in table.lookups.items():
                given[positions] = _row_positions(np.asarray(feed[name]), of_rows)
        wanted = [*self._form.fetches, *self._form.gradients]
        with paddle.static.scope_guard(self._scope):
            found = self._executor.run(self._form.trainer, feed=given, fetch_list=wanted)
        count = len(self._form.fetches)
        pushed = list(found[count : len(found) - len(row_ids)])
        for of_rows, gradients in zip(row_ids, found[len(found) - len(row_ids) :]):
            pushed += [of_rows, gradients[: len(of_rows)]]
        self._ask(Message(MessageKind.PUSH, pushed))
        return list(found[:count])

    def close(self) -> None:
        """Notifies the server that this trainer sends no more requests, and ends its thread."""
        if self._is_open:
            self._ask(Message(MessageKind.DONE))
            self._is_open = False
            self._thread.join(10)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, error_type: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        elif self._is_open:
            self._is_open = False
            self._requests.put(failure(f"{type(error).__name__}: {error}"))
            self._thread.join(10)

    def _ask(self, message: Message) -> Arrays:
        if not self._is_open:
            raise NgraphError("this trainer is closed: create another one, with a server")
        self._requests.put(message)
        answer = self._answers.get()
        if answer.kind != MessageKind.ANSWER:
            self._is_open = False
            raise NgraphError(
                sentence_of(answer)
                if answer.kind == MessageKind.FAILURE
                else f"the parameter server, rank 0, has sent a request ({answer.kind.name})"
            )
        return answer.arrays

    def _exchange(self, number: int) -> None:
        """Exchanges messages over link ``number``, in a thread."""
        with signals.own_errors():
            try:
                with closing(
                    ProcessLink.between(self._job, 0, number, self._specs.max_bytes())
                ) as link:
                    kind = MessageKind.GET
                    while kind not in (MessageKind.DONE, MessageKind.FAILURE):
                        kind = link.send_next(self._requests).kind
                        if kind != MessageKind.FAILURE:
                            self._answers.put(link.receive())
            except Exception as error:
                # Catches all types, since Paddle's own errors of the store have many.
                self._answers.put(
                    failure(f"the parameter server, rank 0, has gone ({last_line(error)})")
                )


@contextmanager
def _mismatch_error(remedy: str) -> Iterator[None]:
    try:
        yield
    except NgraphError as error:
        raise NgraphError(
            f"the answer of the parameter server is not of this program: {error}: {remedy}"
        ) from error


def _row_ids(table: Table, feed: Mapping[str, Any]) -> np.ndarray:
    """The indices of the rows that a batch looks up; padding rows first."""
    for name in table.lookups:
        if name not in feed:
            raise NgraphError(f"{name!r} is not fed, with which the table {table.name!r} is read")
    looked_up = [np.asarray(feed[name]).ravel() for name in table.lookups]
    found = np.unique(np.concatenate(looked_up)).astype("int64")
    if len(found) and not 0 <= found[0] <= found[-1] < table.length:
        raise NgraphError(
            f"rows {found[0]} to {found[-1]} of the table {table.name!r} are looked up, which "
            f"has {table.length} rows"
        )
    rest = found[~np.isin(found, table.paddings)]
    return np.concatenate([np.array(table.paddings, "int64"), rest])


def _row_positions(looked_up: np.ndarray, row_ids: np.ndarray) -> np.ndarray:
    """The positions of looked-up rows among the rows that were sent, by the indices of rows."""
    order = np.argsort(row_ids)
    return order[np.searchsorted(row_ids, looked_up, sorter=order)].astype(looked_up.dtype)


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows, padded with zeros to a power of two times a minimum, for fewer different shapes."""
    count = _MIN_ROWS
    while count < len(rows):
        count *= 2
    return np.concatenate([rows, np.zeros((count - len(rows), rows.shape[1]), rows.dtype)])
