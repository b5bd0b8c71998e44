"""Lives of layers: networks of dynamic mode, and events, run by Paddle and with the engine.

A life is a list of steps, each of which both sides take: one whose networks the engine may compile,
and one that Paddle runs, with networks of its own. After each step results, gradients, parameters,
buffers, states of optimizers, random numbers and types of errors have to agree up to rounding. For
larger differences, Paddle takes the same steps with noise on parameters and inputs: that determines
how much of them rounding explains.

A step that does not apply does nothing, so that any steps can be removed from a life.
"""

from __future__ import annotations

import copy
import gc
import itertools
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle.base.unique_name import UniqueNameGenerator

import paddle_ngraph
from paddle_ngraph import _core
from paddle_ngraph.conversion import denylist
from paddle_ngraph.frontends.dynamic import autotuner, tuning_policy
from paddle_ngraph.frontends.dynamic import hook as dynamic_hook
from paddle_ngraph.frontends.dynamic.lazy import trace_graph
from paddle_ngraph.frontends.to_static import gradients
from paddle_ngraph.utils import clock
from tests.clocks import Clock
from tests.fuzz.check import NOISE, Mismatch, _differences
from tests.fuzz.lives import PERTURBED_RUNS, Outcome, Raised, _explained, call_of
from tests.fuzz.networks import CLASSES, Network, inputs, outputs_of
from tests.random_interrupts import Interruption, Probe, Stop, outside, set_exception, state

_BFLOAT16_NOISE = 2.0**-8
_MOST_NETWORKS = 4
_MOST_PENDING = 3  # losses whose backward pass is to come, of a network
_SECONDS = 120  # for builds in the background
_MOST_KEPT = 6  # results whose memory nothing may overwrite

LOSSES: tuple[Callable[[Any], Any], ...] = (
    lambda out: (out - 0.3).square().mean(),
    lambda out: F.cross_entropy(out, paddle.arange(out.shape[0]) % CLASSES),
    lambda out: F.tanh(out).sum(),
)
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda rate, **more: paddle.optimizer.SGD(rate, **more),
    "Momentum": lambda rate, **more: paddle.optimizer.Momentum(rate, 0.9, **more),
    "Nesterov": lambda rate, **more: paddle.optimizer.Momentum(
        rate, 0.9, use_nesterov=True, **more
    ),
    "Adam": lambda rate, **more: paddle.optimizer.Adam(rate, **more),
    "AdamW": lambda rate, **more: paddle.optimizer.AdamW(rate, **more),
    "RMSProp": lambda rate, **more: paddle.optimizer.RMSProp(rate, **more),
}
CLIPS: dict[str, Callable[[], Any]] = {
    "global": lambda: paddle.nn.ClipGradByGlobalNorm(0.5),
    "norm": lambda: paddle.nn.ClipGradByNorm(0.3),
    "value": lambda: paddle.nn.ClipGradByValue(0.1),
}
SCHEDULES: dict[str, Callable[[], Any]] = {
    "step": lambda: paddle.optimizer.lr.StepDecay(0.05, 2, 0.5),
    "cosine": lambda: paddle.optimizer.lr.CosineAnnealingDecay(0.05, 5),
    "warmup": lambda: paddle.optimizer.lr.LinearWarmup(0.05, 4, 0.0, 0.05),
}


@dataclass
class _Pending:
    """A loss whose backward pass is to come."""

    loss: Any
    x: Any


@dataclass
class _Member:
    """A network of a side, and all that belongs to it."""

    network: Any
    optimizer: Any = None
    pending: list[_Pending] = field(default_factory=list)
    hooks: list[Any] = field(default_factory=list)
    log: list[Any] = field(default_factory=list)  # filled by hooks
    aliases: list[Any] = field(default_factory=list)
    function: Any = None  # computes the loss, too


class Side:
    """One of the two: its networks and steps. By Paddle, if it is not an :class:`Engine`.

    Args:
        folder: Where it saves.
        noise: The source of relative errors on parameters and inputs; ``None``: no errors.
        amount: The size of these errors.
    """

    engine = False

    def __init__(
        self, folder: Path, noise: np.random.Generator | None = None, amount: float = NOISE
    ) -> None:
        self._folder = folder
        self._noise, self._amount = noise, amount
        self._members: list[_Member] = []
        self._names = UniqueNameGenerator()
        self._kept: list[tuple[Any, np.ndarray]] = []
        self._unread: list[Any] = []

    def taken(self, step: str, arguments: dict[str, Any], watched: bool) -> Outcome | Raised:
        """Takes a step; returns its results or the error, and all variables if watched."""
        found = self.take(step, arguments)
        variables = self.variables() if watched else {}
        if isinstance(found, Raised):
            return Raised(found.error, variables)
        return {**found, **variables}

    def take(self, step: str, arguments: dict[str, Any]) -> Outcome | Raised:
        """Takes a step; returns its results, or the error."""
        names = paddle.utils.unique_name
        before = names.switch(self._names)
        try:
            with self._switched():
                paddle.seed(5)
                found: Outcome = getattr(self, step)(**arguments)
                return {**found, "random": paddle.rand([2]).numpy()}
        except Exception as error:
            self._forget_gradients()
            return Raised(error, {})
        finally:
            names.switch(*before)

    def _forget_gradients(self) -> None:
        """Clears gradients: a backward pass that raised has added some, depending on its order."""
        for member in self._members:
            member.pending = []
            _clear(member.network)

    def _switched(self) -> Any:
        return paddle_ngraph.use_ngraph(False)

    # Networks.

    def build(self, family: str, parts: list[str], returns: str = "one", seed: int = 0) -> Outcome:
        """Builds a network."""
        if len(self._members) < _MOST_NETWORKS:
            paddle.seed(seed)
            network = Network(family, parts, returns)
            self._perturb(network.parameters())
            self._members.append(_Member(network))
        return {}

    def replace(self, net: int, part: int, name: str) -> Outcome:
        """Replaces a part of a network."""
        if (member := self._member(net)) is not None:
            member.network.replace(part, name)
            self._perturb(member.network.parts[part % len(member.network.parts)].parameters())
        return {}

    def copy(self, net: int) -> Outcome:
        """Adds a deep copy of a network."""
        member = self._member(net)
        if member is not None and len(self._members) < _MOST_NETWORKS:
            self._members.append(_Member(copy.deepcopy(member.network)))
        return {}

    def tie(self, net: int, other: int) -> Outcome:
        """Gives a network the last weight of another one."""
        one, two = self._member(net), self._member(other)
        if one is None or two is None:
            return {}
        if one.network.last.weight.shape == two.network.last.weight.shape:
            one.network.last.weight = two.network.last.weight
        return {}

    def train(self, net: int, on: bool) -> Outcome:
        """Switches between training and evaluation."""
        if (member := self._member(net)) is not None:
            member.network.train() if on else member.network.eval()
        return {}

    def gain(self, net: int, value: float) -> Outcome:
        """Changes a number that the forward pass reads."""
        if (member := self._member(net)) is not None:
            member.network.gain = value
        return {}

    def freeze(self, net: int, parameter: int, on: bool) -> Outcome:
        """Freezes a parameter, or ends that."""
        if (member := self._member(net)) is not None:
            self._parameter(member, parameter).stop_gradient = on
        return {}

    def convert(self, net: int, dtype: str) -> Outcome:
        """Converts the parameters and buffers of a network."""
        if (member := self._member(net)) is not None:
            member.pending = []  # their gradients would be of another dtype
            _clear(member.network)
            member.network.to(dtype=dtype)
        return {}

    def _member(self, net: int) -> _Member | None:
        return self._members[net % len(self._members)] if self._members else None

    def _parameter(self, member: _Member, number: int) -> Any:
        parameters = member.network.parameters()
        return parameters[number % len(parameters)]

    def _perturb(self, parameters: Iterable[Any]) -> None:
        if self._noise is not None:
            for each in parameters:
                each.set_value(self._noised(each.numpy()))

    def _noised(self, array: np.ndarray) -> np.ndarray:
        if self._noise is None or array.dtype.kind != "f":
            return array
        error = self._noise.uniform(-self._amount, self._amount, array.shape)
        return (array * (1 + error)).astype(array.dtype)

    # Calls.

    def forward(
        self,
        net: int,
        rows: int = 2,
        seed: int = 0,
        times: int = 1,
        grad: bool = True,
        amp: bool = False,
        thread: bool = False,
        wants: bool = False,
        reads: bool = True,
        loss: int = 0,
        whole: bool = False,
    ) -> Outcome:
        """Calls a network; with gradients, the last losses wait for their backward pass.

        Args:
            net: Its index.
            rows: Rows of the input.
            seed: For the input and the random numbers.
            times: How often, with different inputs.
            grad: Whether gradients are on.
            amp: Whether bfloat16 is used where Paddle supports that.
            thread: In a separate thread.
            wants: Whether the input gets a gradient.
            reads: Whether results are read at once; otherwise by :meth:`read`.
            loss: Which of :data:`LOSSES`.
            whole: Whether one function computes results and loss.
        """
        member = self._member(net)
        found: Outcome = {}
        for number in range(times if member is not None else 0):
            assert member is not None
            x = self._input(member, rows, seed + number, wants)

            def call(x: Any = x, number: int = number) -> tuple[list[Any], Any]:
                paddle.seed(seed + number)
                return self._called(member, x, loss, grad, amp, whole)

            out, total = _in_thread(call) if thread else call()
            if grad:
                member.pending = [*member.pending, _Pending(total, x)][-_MOST_PENDING:]
            results = {f"out {n} of {number}": each for n, each in enumerate([total, *out])}
            if reads:
                found.update({name: self._read(each) for name, each in results.items()})
            else:
                self._unread += results.values()
        return found

    def _input(self, member: _Member, rows: int, seed: int, wants: bool = False) -> Any:
        network = member.network
        array = self._noised(inputs(network.family, rows, seed))
        x = paddle.to_tensor(array)
        if array.dtype.kind == "f" and network.last.weight.dtype != x.dtype:
            x = x.astype(network.last.weight.dtype)
        x.stop_gradient = not wants or array.dtype.kind != "f"
        return x

    def _called(
        self, member: Any, x: Any, loss: int, grad: bool = True, amp: bool = False,
        whole: bool = False,
    ) -> tuple[list[Any], Any]:  # fmt: skip
        with ExitStack() as modes:
            if not grad:
                modes.enter_context(paddle.no_grad())
            if amp:
                modes.enter_context(paddle.amp.auto_cast(level="O1", dtype="bfloat16"))
            if whole:
                if member.function is None:
                    member.function = self._compiled(_WholeLoss(member.network))
                return member.function(x, loss)  # type: ignore[no-any-return]
            out = outputs_of(member.network(x))
            return out, LOSSES[loss](out[0].astype("float32") if amp else out[0])

    def _compiled(self, function: Any) -> Any:
        return function

    def _read(self, tensor: Any) -> np.ndarray:
        values = _values(tensor)
        self._kept = [*self._kept, (tensor, values.copy())][-_MOST_KEPT:]
        return values

    def read(self) -> Outcome:
        """Reads the results of earlier calls."""
        unread, self._unread = self._unread, []
        return {f"unread {n}": self._read(each) for n, each in enumerate(unread)}

    def backward(self, net: int, index: int = -1, retain: bool = False) -> Outcome:
        """Runs the backward pass of an earlier call."""
        member = self._member(net)
        if member is None or not member.pending:
            return {}
        retain = retain and not member.network.passes_once
        at = index % len(member.pending)
        pending = member.pending[at] if retain else member.pending.pop(at)
        pending.loss.backward(retain_graph=retain)
        return {**self._gradients(member), **_named("x grad", pending.x.grad)}

    def backward_sum(self, net: int) -> Outcome:
        """Runs one backward pass of the sum of all earlier losses."""
        member = self._member(net)
        if member is None or not member.pending:
            return {}
        pending, member.pending = member.pending, []
        sum(each.loss.astype("float32") for each in pending).backward()  # type: ignore[union-attr]
        return self._gradients(member)

    def accumulate(self, net: int, rows: int, seed: int, times: int, amp: bool = False) -> Outcome:
        """Adds up the gradients of several calls."""
        member = self._member(net)
        if member is None:
            return {}
        for number in range(times):
            paddle.seed(seed + number)
            x = self._input(member, rows, seed + number)
            _, total = self._called(member, x, number % 2, amp=amp)
            (total / times).backward()
        return self._gradients(member)

    def step_often(self, net: int, rows: int, seed: int, times: int) -> Outcome:
        """Takes several training steps."""
        member = self._member(net)
        if member is None or member.optimizer is None:
            return {}
        found: Outcome = {}
        for number in range(times):
            paddle.seed(seed + number)
            x = self._input(member, rows, seed + number)
            _, total = self._called(member, x, 0)
            total.backward()
            found.update(self._gradients(member) if number == 0 else {})
            self.step(net)
            member.optimizer.clear_grad()
        return found

    def grad(self, net: int, rows: int, seed: int, then: bool, wants: bool) -> Outcome:
        """Differentiates by ``paddle.grad``, which accumulates nothing; then also by a pass."""
        member = self._member(net)
        if member is None:
            return {}
        then = then and not member.network.passes_once
        paddle.seed(seed)
        x = self._input(member, rows, seed, wants)
        _, total = self._called(member, x, 0)
        # All of them: of a part of the parameters of a normalization Paddle has no gradient.
        to = [p for p in member.network.parameters() if not p.stop_gradient]
        to += [] if x.stop_gradient else [x]
        if not to:
            return {}
        found = paddle.grad(total, to, retain_graph=then, allow_unused=True)
        named: Outcome = {}
        for n, each in enumerate(found):
            named.update(_named(f"gradient {n}", each))
        if then:
            total.backward()
            named.update(self._gradients(member))
        return named

    def second(self, net: int, rows: int, seed: int) -> Outcome:
        """A penalty on the gradient of the input, or of the first weight."""
        member = self._member(net)
        if member is None:
            return {}
        paddle.seed(seed)
        x = self._input(member, rows, seed, wants=True)
        out, total = self._called(member, x, 0)
        to = member.network.parameters()[0] if x.stop_gradient else x
        (gradient,) = paddle.grad(out[0].sum(), [to], create_graph=True)
        (gradient.square().sum() + total).backward()
        return {**self._gradients(member), "gradient": _values(gradient)}

    def _gradients(self, member: _Member) -> Outcome:
        found: Outcome = {}
        for name, each in member.network.named_parameters():
            found.update(_named(f"grad {name}", each.grad))
        return found

    # Optimizers.

    def optimizer(
        self, net: int, type: str, clip: str = "", schedule: str = "", decay: float = 0.0
    ) -> Outcome:
        """Gives a network a new optimizer."""
        if (member := self._member(net)) is not None:
            rate = SCHEDULES[schedule]() if schedule else 0.05
            options: dict[str, Any] = {"weight_decay": decay} if decay else {}
            if clip:
                options["grad_clip"] = CLIPS[clip]()
            parameters = member.network.parameters()
            member.optimizer = OPTIMIZERS[type](rate, parameters=parameters, **options)
        return {}

    def step(self, net: int) -> Outcome:
        """Updates the parameters."""
        member = self._member(net)
        if member is None or member.optimizer is None:
            return {}
        if member.network.is_stale_after_step:
            member.pending = []
        member.optimizer.step()
        rate = member.optimizer._learning_rate
        if not isinstance(rate, float):
            rate.step()
        return {"rate": np.array(member.optimizer.get_lr(), "float64")}

    def clear(self, net: int, zeros: bool) -> Outcome:
        """Clears the gradients."""
        member = self._member(net)
        if member is not None and member.optimizer is not None:
            member.optimizer.clear_grad(set_to_zero=zeros)
        elif member is not None:
            member.network.clear_gradients(set_to_zero=zeros)
        return {}

    # Writers.

    def write(self, net: int, parameter: int, how: str, seed: int = 0) -> Outcome:
        """Writes to a parameter, by one of :data:`WRITERS`."""
        if (member := self._member(net)) is not None:
            target = self._parameter(member, parameter)
            rng = np.random.default_rng(seed)
            values = rng.uniform(-0.6, 0.6, target.shape).astype(target.numpy().dtype)
            with paddle.no_grad():
                WRITERS[how](target, self._noised(values))
        return {}

    def alias(self, net: int, parameter: int) -> Outcome:
        """Retains a tensor that shares the memory of a parameter."""
        if (member := self._member(net)) is not None:
            member.aliases = [self._parameter(member, parameter).detach()]
        return {}

    def write_alias(self, net: int, value: float) -> Outcome:
        """Writes to a parameter through the retained tensor."""
        if (member := self._member(net)) is not None:
            for each in member.aliases:
                each.scale_(value)
        return {}

    def buffer(self, net: int, buffer: int, value: float) -> Outcome:
        """Writes to a buffer, such as running statistics."""
        member = self._member(net)
        if member is not None and (buffers := member.network.buffers()):
            with paddle.no_grad():
                buffers[buffer % len(buffers)].scale_(value)
        return {}

    def save(self, net: int) -> Outcome:
        """Saves a network and its optimizer."""
        if (member := self._member(net)) is not None:
            saved = [member.network.state_dict()]
            saved += [] if member.optimizer is None else [member.optimizer.state_dict()]
            paddle.save(saved, str(self._folder / f"saved{self._members.index(member)}"))
        return {}

    def load(self, net: int) -> Outcome:
        """Loads what :meth:`save` has saved."""
        member = self._member(net)
        path = self._folder / f"saved{self._members.index(member)}" if member is not None else None
        if member is None or path is None or not path.exists():
            return {}
        saved = paddle.load(str(path))
        member.network.set_state_dict(saved[0])
        if member.optimizer is not None and len(saved) > 1:
            member.optimizer.set_state_dict(saved[1])
        return {}

    def export(self, net: int, rows: int, seed: int) -> Outcome:
        """Saves a network for inference, loads it, and calls it."""
        member = self._member(net)
        if member is None:
            return {}
        x = self._input(member, rows, seed)
        network, was_training = member.network, member.network.training
        network.eval()
        path = str(self._folder / "exported")
        spec = paddle.static.InputSpec([None, *x.shape[1:]], x.dtype)
        try:
            paddle.jit.save(network, path, input_spec=[spec])
        finally:
            network.train() if was_training else network.eval()
        loaded = paddle.jit.load(path)
        loaded.eval()
        with paddle.no_grad():
            found = [outputs_of(loaded(x)) for _ in range(3)][-1]
        return {f"exported {n}": _values(each) for n, each in enumerate(found)}

    # Hooks.

    def hook(self, net: int, kind: str, parameter: int = 0) -> Outcome:
        """Registers a hook of a layer or a parameter."""
        member = self._member(net)
        if member is None or len(member.hooks) > 2:
            return {}
        log, network = member.log, member.network
        if kind == "post":
            handle = network.register_forward_post_hook(lambda *_: log.append(np.zeros(1)))
        elif kind == "replace":
            handle = network.last.register_forward_post_hook(lambda _, given, out: out * 1.5)
        elif kind == "pre":
            handle = network.last.register_forward_pre_hook(lambda _, given: (given[0] + 0.1,))
        elif kind == "scale" and not self._parameter(member, parameter).stop_gradient:
            handle = self._parameter(member, parameter).register_hook(lambda grad: grad * 0.5)
        elif kind == "log" and not self._parameter(member, parameter).stop_gradient:

            def note(grad: Any) -> None:
                log.append(_values(grad.sum()))

            handle = self._parameter(member, parameter).register_hook(note)
        else:
            return {}
        member.hooks.append(handle)
        return {}

    def unhook(self, net: int) -> Outcome:
        """Removes the latest hook."""
        member = self._member(net)
        if member is not None and member.hooks:
            member.hooks.pop().remove()
        return {}

    def log(self, net: int) -> Outcome:
        """Returns what hooks have noted."""
        member = self._member(net)
        if member is None:
            return {}
        found = {f"log {n}": each for n, each in enumerate(member.log)}
        member.log.clear()
        return found

    # Threads and interruptions.

    def beside(self, net: int, other: int, rows: int, seed: int, grad: bool) -> Outcome:
        """Calls a network while another thread evaluates another one."""
        one, two = self._member(net), self._member(other)
        if one is None or two is None or one is two:
            return {}
        was_training = two.network.training
        two.network.eval()
        batches = [self._input(two, rows, seed + 50 + n) for n in range(4)]
        thread = _Thread(lambda: self._evaluated(two.network, batches))
        found: Outcome = {}
        try:
            thread.start()
            for number in range(3):
                paddle.seed(seed + number)
                x = self._input(one, rows, seed + number)
                out, total = self._called(one, x, 0, grad=grad)
                if grad:
                    total.backward()
                found[f"out {number}"] = _values(out[0])
        finally:
            thread.join()
            two.network.train() if was_training else two.network.eval()
        found.update({f"other {n}": each for n, each in enumerate(thread.result())})
        return found

    def _evaluated(self, network: Any, batches: list[Any]) -> list[np.ndarray]:
        with paddle.no_grad():
            return [_values(outputs_of(network(each))[0]) for each in batches]

    def interrupted(
        self, net: int, rows: int, seed: int, at: int, border: bool, kind: str, grad: bool
    ) -> Outcome:
        """Interrupts a call and its backward pass; then restores the state before.

        Args:
            net: The network.
            rows: Rows of the input.
            seed: For the input.
            at: The number of the event at which it is interrupted.
            border: Whether only events at borders between package and Paddle count.
            kind: One of :data:`INTERRUPTIONS`.
            grad: Whether gradients are on.
        """
        member = self._member(net)
        # While it searches for NaN, an exception in a handler ends the process, natively too.
        if member is None or paddle.get_flags(_SEARCH)[_SEARCH]:
            return {}
        before = {name: _values(each) for name, each in _tensors(member.network)}
        self._interrupt(member, rows, seed, at, border, kind, grad)
        paddle.seed(6)
        member.network.forget()
        member.log.clear()
        _clear(member.network)
        for name, each in _tensors(member.network):
            if not np.array_equal(_values(each), before[name], equal_nan=True):
                each.set_value(before[name])
        return {}

    def _interrupt(self, member: _Member, *given: Any) -> None:
        pass

    # Steps that affect the engine only, and those that concern the process.

    def enable(self, dynamic: Any) -> Outcome:
        """Switches the engine on."""
        return {}

    def disable(self) -> Outcome:
        """Switches the engine off."""
        return {}

    def compile(self, net: int, part: int = -1) -> Outcome:
        """Compiles a network, or a part of it, or the function that computes the loss (-2)."""
        return {}

    def flag(self, name: str, value: Any) -> Outcome:
        """Sets a flag of the package."""
        return {}

    def fail(self, at: str) -> Outcome:
        """Has the engine fail at a step of each run, until the next time."""
        return {}

    def forget(self, collect: bool) -> Outcome:
        """Clears the caches."""
        return {}

    def collect(self) -> Outcome:
        """Collects garbage."""
        gc.collect()
        return {}

    def observe(self, on: bool) -> Outcome:
        """Has Paddle search for NaN, which observes single operators."""
        paddle.set_flags({_SEARCH: on})
        return {}

    # Reading.

    def variables(self) -> Outcome:
        """Parameters, buffers, gradients, and states of optimizers."""
        found: Outcome = {}
        for number, member in enumerate(self._members):
            tensors = {name: _values(each) for name, each in _tensors(member.network)}
            tensors.update(self._gradients(member))
            if member.optimizer is not None:
                for name, each in member.optimizer.state_dict().items():
                    if isinstance(each, paddle.Tensor):
                        tensors[f"optimizer {name}"] = _values(each)
            found.update({f"net {number} {name}": each for name, each in tensors.items()})
        return found

    def overwritten(self) -> int:
        """Returns the number of changed results of earlier calls."""
        return sum(
            not np.array_equal(_values(now), then, equal_nan=True) for now, then in self._kept
        )


class Engine(Side):
    """The side whose networks the engine may compile."""

    engine = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._on = False
        self._compiles_functions = False

    def _switched(self) -> Any:
        return paddle_ngraph.use_ngraph(self._on)

    def enable(self, dynamic: Any) -> Outcome:
        paddle_ngraph.enable(dynamic=dynamic)
        self._on = True
        return {}

    def disable(self) -> Outcome:
        paddle_ngraph.disable()
        self._on = False
        return {}

    def compile(self, net: int, part: int = -1) -> Outcome:
        member = self._member(net)
        if member is None:
            return {}
        if part == -2:
            self._compiles_functions, member.function = True, None
        elif part == -1 or not len(member.network.parts):
            paddle_ngraph.compile(member.network)
        else:
            paddle_ngraph.compile(member.network.parts[part % len(member.network.parts)])
        return {}

    def _compiled(self, function: Any) -> Any:
        return paddle_ngraph.compile(function.loss) if self._compiles_functions else function

    def flag(self, name: str, value: Any) -> Outcome:
        paddle.set_flags({name: value})
        return {}

    def fail(self, at: str) -> Outcome:
        _core.fail_at(at)
        return {}

    def forget(self, collect: bool) -> Outcome:
        paddle_ngraph.clear_cache()
        if collect:
            gc.collect()
        return {}

    def _interrupt(self, member: _Member, *given: Any) -> None:
        rows, seed, at, border, kind, grad = given
        act, expected = INTERRUPTIONS[kind]
        struck: list[bool] = []

        def strike() -> None:
            struck.append(True)
            act()

        x = self._input(member, rows, seed)
        raised = []
        # Paddle's own switch of the mode may be interrupted in the middle, natively too.
        with _handlers(), paddle.set_grad_enabled(grad):
            try:
                sys.setprofile(Probe(at, border, strike))
                _, total = self._called(member, x, 0)
                if grad:
                    total.backward()
                sys.setprofile(None)
                outside()
            except _RAISED as error:
                raised.append(type(error))
            except OverflowError:  # of a part that raises
                pass
            finally:
                sys.setprofile(None)
            try:
                outside()
            except _RAISED as error:
                raised.append(type(error))
        if raised != [expected] * len(struck):
            raise Mismatch(f"interrupted by {kind}, it has raised {raised}")


class _WholeLoss:
    """The function of a network that computes results and loss."""

    def __init__(self, network: Any) -> None:
        self._network = network

    def loss(self, x: Any, loss: int) -> tuple[list[Any], Any]:
        out = outputs_of(self._network(x))
        return out, LOSSES[loss](out[0])

    __call__ = loss


# --- writers and interruptions -----------------------------------------------------------------


def _by_item(parameter: Any, values: np.ndarray) -> None:
    parameter[0] = paddle.to_tensor(values[0]) if values.ndim > 1 else float(values[0])


def _by_view(parameter: Any, values: np.ndarray) -> None:
    np.from_dlpack(parameter.detach())[...] = values


def _by_data(parameter: Any, values: np.ndarray) -> None:
    parameter.data = paddle.to_tensor(values)


WRITERS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "set": lambda parameter, values: parameter.set_value(values),
    "set tensor": lambda parameter, values: parameter.set_value(paddle.to_tensor(values)),
    "copy": lambda parameter, values: parameter.copy_(paddle.to_tensor(values), False),
    "item": _by_item,
    "view": _by_view,
    "data": _by_data,
    "scale": lambda parameter, values: parameter.scale_(0.5),
    "add": lambda parameter, values: parameter.add_(paddle.to_tensor(values)),
    "assign": lambda parameter, values: paddle.assign(paddle.to_tensor(values), parameter),
    "fill": lambda parameter, values: parameter.fill_(0.2),
    "memory": lambda parameter, values: parameter.get_tensor().set(values, paddle.CPUPlace()),
}


def _raise(error: type[BaseException]) -> Callable[..., None]:
    def handle(*_: object) -> None:
        raise error

    return handle


def _send(number: signal.Signals) -> Callable[[], None]:
    def act() -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, number)

    return act


_RAISED = (Interruption, Stop, KeyboardInterrupt)
INTERRUPTIONS: dict[str, tuple[Callable[[], None], type[BaseException]]] = {
    "ALRM": (_send(signal.SIGALRM), Interruption),
    "USR2": (_send(signal.SIGUSR2), Stop),
    "INT": (_send(signal.SIGINT), KeyboardInterrupt),
    "exception": (lambda: set_exception(Stop, threading.get_ident()), Stop),
}


@contextmanager
def _handlers() -> Iterator[None]:
    handlers = {
        signal.SIGALRM: _raise(Interruption),
        signal.SIGUSR2: _raise(Stop),
        signal.SIGINT: signal.default_int_handler,
    }
    before = {number: signal.signal(number, each) for number, each in handlers.items()}
    try:
        yield
    finally:
        for number, each in before.items():
            signal.signal(number, each)


# --- a life ------------------------------------------------------------------------------------


class LayerLife:
    """The two sides, step by step.

    Args:
        pays: Whether compiled calls of plain layers are found to be faster, after two calls by
            Paddle and three compiled ones.
        watched: Whether parameters, buffers and gradients are compared after every step; otherwise
            only at the end, and nothing reads them before.
    """

    def __init__(self, pays: bool = True, watched: bool = True) -> None:
        self.steps: list[tuple[str, dict[str, Any]]] = []
        self.judged = 0
        self._watched = watched
        self._folder = tempfile.TemporaryDirectory()
        self._modes = ExitStack()
        self._modes.enter_context(_isolated(pays))
        self._native = Side(self._subfolder("native"))
        self._engine = Engine(self._subfolder("engine"))
        self._references = _References(Path(self._folder.name))
        self._state = state()
        self._runs = 0
        self._has_diverged = False

    def _subfolder(self, name: str) -> Path:
        folder = Path(self._folder.name) / name
        folder.mkdir()
        return folder

    def do(self, step: str, **arguments: Any) -> bool:
        """Takes a step; returns whether it succeeded, or raised, equally on both sides.

        Raises:
            Mismatch: The two sides differ.
        """
        if self._has_diverged:
            return True
        self.steps.append((step, arguments))
        paddle_ngraph.reset_stats()
        engine = self._engine.taken(step, arguments, self._watched)
        self._runs += int(paddle_ngraph.stats()["engine_runs"])
        if self._engine.overwritten():
            raise Mismatch("a result of an earlier call was written to")
        native = self._native.taken(step, arguments, self._watched)
        self._compare(native, engine)
        if self._changes():
            # A build in the background has a shorter switch interval.
            paddle_ngraph.wait_for_compiles(_SECONDS)
            if changes := self._changes():
                raise Mismatch(f"modes or default programs before and after: {changes}")
        return not isinstance(engine, Raised)

    def _changes(self) -> list[tuple[Any, Any]]:
        return [pair for pair in zip(self._state, state()) if pair[0] != pair[1]]

    def end(self) -> int:
        """Ends the life; returns the number of engine runs. A life without any is no evidence.

        Raises:
            Mismatch: The two sides differ.
        """
        for step in ("read", "variables"):
            self.do(step)
        return self._runs

    def close(self) -> None:
        """Releases everything."""
        self._modes.close()
        self._folder.cleanup()

    def _compare(self, native: Outcome | Raised, engine: Outcome | Raised) -> None:
        place = f"step {len(self.steps) - 1}, {call_of(*self.steps[-1])}"
        if isinstance(native, Raised) or isinstance(engine, Raised):
            if isinstance(engine, Raised) and isinstance(engine.error, Mismatch):
                raise Mismatch(f"{place}: {engine.error}") from engine.error
            if isinstance(native, Raised) and any(e in str(native.error) for e in _NATIVE_ONLY):
                self._engine._forget_gradients()
                self._has_diverged = self.steps[-1][0] not in ("backward", "backward_sum")
                return
            if not issubclass(_kind(engine), _kind(native)):
                raise Mismatch(
                    f"{place}:\nnative {_described(native)}\nengine {_described(engine)}"
                )
        one, two = _results(native), _results(engine)
        if one.keys() != two.keys():
            raise Mismatch(f"{place}: {sorted(one.keys() ^ two.keys())} on one side only")
        try:
            suspects = {
                name: where for name in one if (where := _differences(one[name], two[name])).any()
            }
        except Mismatch as error:
            raise Mismatch(f"{place}: {error}") from error
        if suspects:
            self._judge(place, one, two, suspects)

    def _judge(self, place: str, native: Outcome, engine: Outcome, suspects: Outcome) -> None:
        self.judged += 1
        perturbed = self._references.results(self.steps, self._watched)
        for name, where in suspects.items():
            samples = [each[name] for each in perturbed if name in each]
            if any(each.shape != native[name].shape for each in samples) or not samples:
                continue  # a branch on a rounded value
            wrong = where & ~_explained(native[name], engine[name], samples)
            if wrong.any():
                at = tuple(int(n) for n in np.argwhere(wrong)[0])
                raise Mismatch(
                    f"{place}: {name} {engine[name].shape} differs in {int(wrong.sum())} of "
                    f"{wrong.size} elements, first at {at}: engine {engine[name][at]!r}, "
                    f"native {native[name][at]!r}"
                )


class _References:
    """Perturbed reference runs, which go on where they were when they were needed last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sides: list[Side] = []
        self._amount = NOISE
        self._taken = 0

    def results(self, steps: list[tuple[str, dict[str, Any]]], watched: bool) -> list[Outcome]:
        """Returns the results of the last step."""
        amount = _BFLOAT16_NOISE if any(a.get("amp") for _, a in steps) else NOISE
        if not self._sides or amount != self._amount:
            self._begin(amount)
        todo = steps[self._taken :]
        self._taken = len(steps)
        return [_results(self._last(side, todo, watched)) for side in self._sides]

    def _begin(self, amount: float) -> None:
        self._amount, self._taken, self._sides = amount, 0, []
        for seed in range(PERTURBED_RUNS):
            folder = self._folder / f"reference {seed}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            self._sides.append(Side(folder, np.random.default_rng(seed), amount))

    def _last(
        self, side: Side, steps: list[tuple[str, dict[str, Any]]], watched: bool
    ) -> Outcome | Raised:
        for step, arguments in steps[:-1]:
            side.take(step, arguments)
        return side.taken(*steps[-1], watched)


@contextmanager
def _isolated(pays: bool) -> Iterator[None]:
    """Dynamic mode, in which decisions depend on no clock and on no other life."""
    trace_graph._training_scope_ids = itertools.count(1)
    trace_graph._loop_scope_ids = itertools.count(1)
    trace_graph._exclusive_retry_at = 0.0
    autotuner._slot = autotuner._Slot()
    gradients._has_differentiated_twice = False
    before = tuning_policy.POLICY
    choice = replace(before.choice, pairs=2, burst=2, min_gain=0.0 if pays else float("inf"))
    flags = paddle.get_flags([*_FLAGS, _SEARCH])
    paddle.disable_static()
    try:
        tuning_policy.POLICY = replace(before, choice=choice)
        paddle.set_flags({"FLAGS_ngraph_tuning_ms": -1})
        with clock.overridden(Clock(tick=1.0)):
            yield
    finally:
        tuning_policy.POLICY = before
        paddle.set_flags(flags)
        _core.fail_at("")
        denylist.clear()
        paddle_ngraph.disable()
        dynamic_hook.switch(False)
        paddle.enable_static()


# Errors of Paddle alone. A graph has kept the former value of what was written, and its gradients
# are those of that one; and Paddle has no gradient of a recurrent layer of which a parameter is
# frozen, or that is evaluated.
_NATIVE_ONLY = ("modified by an inplace operation", "received nullptr", "holds no memory")
_SEARCH = "FLAGS_check_nan_inf"
_FLAGS = (
    "FLAGS_ngraph_num_threads",
    "FLAGS_ngraph_cache_size",
    "FLAGS_ngraph_background_compile",
    "FLAGS_ngraph_min_interval_us",
    "FLAGS_ngraph_tuning_ms",
)


def script(pays: bool, watched: bool, calls: Iterable[str]) -> str:
    """A script that takes these steps."""
    lines = "\n".join(f"life.do({call})" for call in calls)
    life = f"life = LayerLife(pays={pays}, watched={watched})"
    return f"{_SCRIPT}{life}\n{lines}\nprint(life.end(), 'engine runs')\nlife.close()\n"


_SCRIPT = '''"""A life of layers, to be run from the root of the repository."""
import tests  # the smallest interval is worth the engine
from tests.fuzz.layer_lives import LayerLife

'''


def _named(name: str, tensor: Any) -> Outcome:
    return {} if tensor is None else {name: _values(tensor)}


def _values(tensor: Any) -> np.ndarray:
    if tensor.dtype == paddle.bfloat16:
        tensor = tensor.detach().astype("float32")
    return tensor.numpy()  # type: ignore[no-any-return]


def _clear(network: Any) -> None:
    """Clears all gradients; ``clear_gradients`` would leave those of frozen parameters."""
    for each in network.parameters():
        each.clear_gradient(False)  # Paddle ignores the keyword


def _tensors(network: Any) -> Iterator[tuple[str, Any]]:
    yield from network.named_parameters()
    yield from network.named_buffers()


def _results(outcome: Outcome | Raised) -> Outcome:
    return outcome.variables if isinstance(outcome, Raised) else outcome


def _kind(outcome: Outcome | Raised) -> type:
    return type(outcome.error) if isinstance(outcome, Raised) else _Fine


class _Fine:
    """The type of no error."""


def _described(outcome: Outcome | Raised) -> str:
    if isinstance(outcome, Raised):
        return f"{type(outcome.error).__name__}: {str(outcome.error).strip()[-400:]}"
    return "is fine"


class _Thread(threading.Thread):
    """A thread with a result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call = call
        self._result: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:
            self._error = error

    def result(self) -> Any:
        """The result of the call, or its error."""
        if self._error is not None:
            raise self._error
        return self._result


def _in_thread(call: Callable[[], Any]) -> Any:
    thread = _Thread(call)
    thread.start()
    thread.join()
    return thread.result()
