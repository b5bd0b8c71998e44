"""Training one network with one engine, timing it, and comparing two such runs.

The two engines are called ``native`` (Paddle's own CPU kernels) and ``ngraph``.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from demos.networks import Network

NATIVE = "native"
NGRAPH = "ngraph"
COUNTERS = ("engine_runs", "functions_built", "functions_reused", "ops_converted", "ops_native")
Batch = tuple[NDArray[Any], NDArray[Any]]
Weights = Mapping[str, NDArray[np.float32]]


class DemoError(RuntimeError):
    """The run shows that something is wrong; the message is one sentence for the user."""


def load_engine() -> ModuleType:
    """The ``paddle_ngraph`` module, found able to run."""
    try:
        import paddle_ngraph

        with warnings.catch_warnings():
            warnings.simplefilter("error", paddle_ngraph.NgraphWarning)
            with paddle_ngraph.use_ngraph(True):
                pass
    except (ImportError, RuntimeError, UserWarning) as error:
        raise DemoError(
            f"the engine is not there ({error}): install paddle_ngraph as README.md says, or run "
            "Paddle alone with --engine native"
        ) from error
    return paddle_ngraph


def switched_to(engine: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which ``Executor.run`` uses ``engine``."""
    if engine == NATIVE and "paddle_ngraph" not in sys.modules:
        return contextlib.nullcontext()
    import paddle_ngraph

    return paddle_ngraph.use_ngraph(engine == NGRAPH)


def initial_weights(network: Network, seed: int) -> Weights:
    """Parameters as the startup program draws them, by name."""
    paddle.seed(seed)
    scope = paddle.static.Scope()
    with switched_to(NATIVE):
        paddle.static.Executor(paddle.CPUPlace()).run(network.startup, scope=scope)
    return _read_parameters(network, scope)


def _read_parameters(network: Network, scope: Any) -> Weights:
    return {name: np.array(scope.find_var(name).get_tensor()) for name in network.parameters}


class Trainer:
    """One network trained by one engine in a scope of its own, from the weights given.

    ``step_seconds`` holds the time of every training step but the first at each batch shape; those,
    which may include compilation, are in ``first_step_seconds``.
    """

    def __init__(self, network: Network, engine: str, weights: Weights) -> None:
        self.network = network
        self.engine = engine
        self.scope = paddle.static.Scope()
        self.losses: list[float] = []
        self.step_seconds: list[float] = []
        self.first_step_seconds: list[float] = []
        self._shapes_seen: set[tuple[int, ...]] = set()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        with switched_to(NATIVE):
            self._executor.run(network.startup, scope=self.scope)
        self.set_parameters(weights)

    def train_step(self, batch: Batch) -> float:
        """Updates the parameters with one batch and returns the loss before the update."""
        inputs, target = batch
        feed = {self.network.input_name: inputs, self.network.target_name: target}
        with switched_to(self.engine):
            start = time.perf_counter()
            (loss,) = self._executor.run(
                self.network.train, feed=feed, fetch_list=[self.network.loss], scope=self.scope
            )
            seconds = time.perf_counter() - start
        is_first = inputs.shape not in self._shapes_seen
        self._shapes_seen.add(inputs.shape)
        (self.first_step_seconds if is_first else self.step_seconds).append(seconds)
        self.losses.append(float(loss))
        return self.losses[-1]

    def predict(self, inputs: NDArray[Any]) -> NDArray[np.float32]:
        """The network's output for one batch of inputs."""
        with switched_to(self.engine):
            (output,) = self._executor.run(
                self.network.test,
                feed={self.network.input_name: inputs},
                fetch_list=[self.network.output],
                scope=self.scope,
            )
        return np.asarray(output)

    def parameters(self) -> Weights:
        """A copy of the parameters as they are now, by name."""
        return _read_parameters(self.network, self.scope)

    def set_parameters(self, weights: Weights) -> None:
        """Replaces the parameters named in ``weights``."""
        for name, value in weights.items():
            self.scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())

    def save(self, path: str) -> None:
        """Writes ``PATH.pdparams`` and ``.pdopt`` to train on from, and ``PATH.json`` to serve."""
        with paddle.static.scope_guard(self.scope), switched_to(NATIVE):
            paddle.static.save(self.network.train, path)
            paddle.static.save_inference_model(
                path,
                [self.network.test_input],
                [self.network.output],
                self._executor,
                program=self.network.test,
            )

    @property
    def median_step_ms(self) -> float:
        """Median time of a step in milliseconds, first steps left out where there are others."""
        return 1e3 * statistics.median(self.step_seconds or self.first_step_seconds)


@contextlib.contextmanager
def engine_must_run(engine: str) -> Iterator[None]:
    """Where ``engine`` is ngraph: raises DemoError unless it was there and ran in this block."""
    if engine == NATIVE:
        yield
        return
    ngraph = load_engine()
    ngraph.reset_stats()
    yield
    stats = ngraph.stats()
    counts = ", ".join(f"{name.replace('_', ' ')}: {stats[name]}" for name in COUNTERS)
    print(f"[{engine}] {counts}")
    if stats["engine_runs"] == 0:
        commonest = Counter(stats["native_by_type"]).most_common(5)
        raise DemoError(
            "the engine was switched on but ran nothing: Paddle's own kernels ran every op, most "
            f"of them {', '.join(name for name, _ in commonest) or 'unknown'}; "
            "paddle_ngraph.explain(program) says why"
        )


# Two runs that round differently do not stay equal: a difference in the last bit grows slowly at
# first, and jumps by orders of magnitude where it makes one ReLU, or one maximum, choose otherwise.
# The bounds below were set from native runs against native runs whose initial weights were changed
# by 2**-22 of their value; what these parted by is said beside each.
@dataclass(frozen=True)
class Tolerance:
    """How far two runs may part before something other than float32 rounding must be the cause.

    Losses: by ``loss`` of the first loss for each step done. Each parameter: by ``parameters`` of
    the distance that it has gone in training for each step done, up to a tenth of that distance;
    None leaves the parameters unchecked.
    """

    loss: float
    parameters: float | None

    def of_losses(self, first_loss: float, steps: int) -> NDArray[np.float64]:
        """The largest tolerated difference at each step, float64 [steps]."""
        return np.arange(1, steps + 1) * np.float64(self.loss * abs(first_loss))

    def of_parameters(self, steps: int) -> float:
        """The largest tolerated difference after ``steps``, as a fraction of the distance gone."""
        return min(0.1, 1e-3 + self.parameters * steps) if self.parameters else np.inf


STEADY = Tolerance(loss=1e-5, parameters=2e-4)
"""For layers and ReLUs. The digits network: losses a third of this, parameters 3 % in 300 steps."""

SWITCHING = Tolerance(loss=1e-3, parameters=None)
"""For maxima over time under Adagrad, where a word whose turn comes in one run only moves by the
whole learning rate. The reviews network: losses a third of this, parameters 40 % in 150 steps."""


@dataclass(frozen=True)
class Agreement:
    """How far two runs parted; ``worst_*`` are fractions of what is tolerated."""

    worst_loss: float
    worst_loss_step: int
    worst_parameter: float
    worst_parameter_name: str

    def check(self) -> None:
        """Raises DemoError where the runs differ by more than rounding explains."""
        # Negated, so that NaN fails too.
        if not self.worst_loss <= 1:
            raise DemoError(
                f"the losses of the two engines part by {self.worst_loss:.3g} times what float32 "
                f"rounding explains, at step {self.worst_loss_step}: the engine computes this "
                "network wrongly, please report it"
            )
        if not self.worst_parameter <= 1:
            raise DemoError(
                f"after training, {self.worst_parameter_name} differs between the two engines by "
                f"{self.worst_parameter:.3g} times what float32 rounding explains: the engine "
                "computes this network wrongly, please report it"
            )


def compare(
    reference: Trainer, other: Trainer, weights: Weights, tolerance: Tolerance
) -> Agreement:
    """Compares two runs of the same steps from the same initial ``weights``."""
    steps = len(reference.losses)
    apart = np.abs(np.subtract(other.losses, reference.losses))
    shares = apart / tolerance.of_losses(reference.losses[0], steps)
    step = int(np.argmax(shares))
    ours, theirs = other.parameters(), reference.parameters()
    tiny = np.finfo(np.float32).tiny
    drift = {
        name: _distance(ours[name], theirs[name]) / max(_distance(theirs[name], start), tiny)
        for name, start in weights.items()
    }
    name = list(drift)[int(np.argmax(list(drift.values())))]
    worst_parameter = drift[name] / tolerance.of_parameters(steps)
    return Agreement(float(shares[step]), step, worst_parameter, name)


def report_agreement(
    reference: Trainer, other: Trainer, weights: Weights, tolerance: Tolerance
) -> None:
    """Prints how well the runs agree and raises DemoError where that is not well enough."""
    agreement = compare(reference, other, weights, tolerance)
    checked = [f"losses {agreement.worst_loss:.2g} (step {agreement.worst_loss_step})"]
    if tolerance.parameters:
        name = agreement.worst_parameter_name
        checked.append(f"parameters {agreement.worst_parameter:.2g} ({name})")
    print(f"largest difference, as a share of what rounding explains: {', '.join(checked)}")
    agreement.check()


def _distance(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(np.subtract(a, b, dtype=np.float64)))


def side_by_side(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a plain-text table with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)


def results_table(trainers: Sequence[Trainer], metric: str, values: Sequence[float]) -> str:
    """One column an engine: the test ``values``, times, and with two engines the speed-up."""
    rows = [
        ["", *(trainer.engine for trainer in trainers)],
        [metric, *(f"{value:.4f}" for value in values)],
        ["last loss", *(f"{trainer.losses[-1]:.6f}" for trainer in trainers)],
        ["median step (ms)", *(f"{trainer.median_step_ms:.2f}" for trainer in trainers)],
        ["first steps (s)", *(f"{sum(trainer.first_step_seconds):.2f}" for trainer in trainers)],
    ]
    if len(trainers) == 2:
        native, ngraph = (trainer.median_step_ms for trainer in trainers)
        rows.append(["speed-up", "", f"{native / ngraph:.2f}x"])
    return side_by_side(rows)
