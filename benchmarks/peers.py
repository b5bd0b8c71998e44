"""The peers: runners of a workload and their settings, each in a separate process.

A runner is created and called inside that process (``benchmarks.worker``).
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.worker import PeerError
from benchmarks.works import Array, Feed, Work

CORES = len(os.sched_getaffinity(0))
CHECKED_STEPS = 4


@dataclass(frozen=True)
class Assets:
    """Files and weights that the peers of one workload share.

    Attributes:
        folder: Folder of the saved models.
        weights: The initial weights, in the order in which Paddle's network creates them.
    """

    folder: Path
    weights: list[Array] = field(default_factory=list)


@dataclass(frozen=True)
class Results:
    """Results of a peer, for comparison.

    Attributes:
        values: Inference: the outputs. Training: the first losses.
        changes: Training by Paddle: the changes of the parameters in these steps, by name.
        first_seconds: Time of the first run, including compilation.
        notes: Further data for the report.
    """

    values: list[Array]
    changes: dict[str, Array]
    first_seconds: float
    notes: dict[str, Any]


class Runner(ABC):
    """Runs one workload with one peer."""

    def __init__(self, work: Work, assets: Assets) -> None:
        self.work = work
        self.feeds = work.feeds()
        self._count = 0

    @abstractmethod
    def run(self, feed: Feed) -> list[Array]:
        """Runs one inference or training step; returns its outputs, or its loss."""

    def in_use(self) -> AbstractContextManager[Any]:
        """Returns a context manager in which the runner can run."""
        return nullcontext()

    def changes(self) -> dict[str, Array]:
        """Returns the changes of the parameters since the start."""
        return {}

    def notes(self) -> dict[str, Any]:
        """Returns further data for the report. Raises PeerError if the run was not as intended."""
        return {}

    def results(self) -> Results:
        """Runs the first steps, and returns their results."""
        with self.in_use():
            start = time.perf_counter()
            values = self._step()
            first_seconds = time.perf_counter() - start
            values = [np.array(value) for value in values]
            for _ in range(CHECKED_STEPS - 1 if self.work.trains else 0):
                values += [np.array(value) for value in self._step()]
            return Results(values, self.changes(), first_seconds, self.notes())

    def measure(self, seconds: float) -> list[float]:
        """Returns the times of as many steps as fit into ``seconds``, at least one.

        A warm-up step first lets the threads of other processes go to sleep, and those of this one
        wake up; if a step is so long that this does not matter, its time counts.
        """
        with self.in_use():
            times = [self._timed_step()]
            if times[0] > seconds:
                return times
            while sum(times) < seconds or len(times) < 2:
                times.append(self._timed_step())
            return times[1:]

    def _timed_step(self) -> float:
        start = time.perf_counter()
        self._step()
        return time.perf_counter() - start

    def _step(self) -> list[Array]:
        feed = self.feeds[self._count % len(self.feeds)]
        self._count += 1
        return self.run(feed)


# -- Paddle ---------------------------------------------------------------------------------------


class PaddleRunner(Runner):
    """A program, run by ``Executor.run``."""

    scope: Any
    executor: Any
    program: Any
    fetches: list[Any]

    def run(self, feed: Feed) -> list[Array]:
        results: list[Array] = self.executor.run(
            self.program, feed=feed, fetch_list=self.fetches, scope=self.scope
        )
        return results


class PaddleInference(PaddleRunner):
    """A saved model."""

    def __init__(self, work: Work, assets: Assets) -> None:
        import paddle

        from benchmarks import paddle_models

        super().__init__(work, assets)
        paddle.enable_static()
        program = paddle_models.saved(work.model, assets.folder)
        self._is_old = program.suffix == ".pdmodel"
        self.scope = paddle.static.Scope()
        self.executor = paddle.static.Executor(paddle.CPUPlace())
        with self.in_use(), paddle.static.scope_guard(self.scope):
            self.program, _, self.fetches = paddle.static.load_inference_model(
                str(program.with_suffix("")), self.executor
            )

    def in_use(self) -> AbstractContextManager[Any]:
        import paddle

        guard: AbstractContextManager[Any] = (
            paddle.pir_utils.OldIrGuard() if self._is_old else nullcontext()
        )
        return guard


class PaddleTraining(PaddleRunner):
    """A training program."""

    def __init__(self, work: Work, assets: Assets) -> None:
        import paddle

        from benchmarks import paddle_models

        super().__init__(work, assets)
        paddle.enable_static()
        network = paddle_models.built(*self.parts(*paddle_models.trained(work.model)))
        self.scope, self.executor = paddle_models.started(network.startup)
        self.program, self.fetches = network.train, [network.loss]
        self._start = {name: self._parameter(name) for name in network.parameters}

    def parts(self, layout: Any, inputs: Any, make_optimizer: Any) -> tuple[Any, Any, Any]:
        """Returns layout, inputs and optimizer of the program, given those of the workload."""
        return layout, inputs, make_optimizer

    def changes(self) -> dict[str, Array]:
        # Returned once: nine processes with copies of a large network do not fit into memory.
        start, self._start = self._start, {}
        return {name: self._parameter(name) - array for name, array in start.items()}

    def _parameter(self, name: str) -> Array:
        return np.array(self.scope.find_var(name).get_tensor())


class _Accelerated(Runner):
    """Enables the engine in this process, and notes its counters."""

    def __init__(self, work: Work, assets: Assets) -> None:
        import paddle_ngraph

        paddle_ngraph.disable()
        super().__init__(work, assets)
        paddle_ngraph.enable()
        paddle_ngraph.reset_stats()

    def notes(self) -> dict[str, Any]:
        import paddle_ngraph

        stats = paddle_ngraph.stats()
        if stats["engine_runs"] + stats["runs_while_compiling"] == 0:
            commonest = sorted(stats["native_by_type"].items(), key=lambda item: -item[1])[:3]
            raise PeerError(f"the engine ran nothing; left native: {dict(commonest)}")
        names = (
            *("engine_runs", "runs_while_compiling", "functions_built"),
            *("ops_converted", "ops_native"),
        )
        counters: dict[str, Any] = {**stats}
        return {name: counters[name] for name in names}


class EngineInference(_Accelerated, PaddleInference):
    """A saved model, run by ``Executor.run`` through the engine."""


class EngineTraining(_Accelerated, PaddleTraining):
    """A training program, run by ``Executor.run`` through the engine."""


class Predictor(Runner):
    """A saved model, run by Paddle Inference without oneDNN."""

    onednn = False

    def __init__(self, work: Work, assets: Assets) -> None:
        import paddle

        from benchmarks import paddle_models

        super().__init__(work, assets)
        program = paddle_models.saved(work.model, assets.folder)
        config = paddle.inference.Config(str(program), str(program.with_suffix(".pdiparams")))
        config.disable_gpu()
        config.set_cpu_math_library_num_threads(CORES)
        if self.onednn:
            config.enable_mkldnn()
        else:
            config.disable_mkldnn()
        predictor = paddle.inference.create_predictor(config)
        self._predictor = predictor
        self._inputs = [predictor.get_input_handle(n) for n in predictor.get_input_names()]
        self._outputs = [predictor.get_output_handle(n) for n in predictor.get_output_names()]

    def run(self, feed: Feed) -> list[Array]:
        for handle, array in zip(self._inputs, feed.values()):
            handle.copy_from_cpu(array)
        self._predictor.run()
        return [handle.copy_to_cpu() for handle in self._outputs]


class OneDnnPredictor(Predictor):
    """A saved model, run by Paddle Inference with oneDNN."""

    onednn = True


class EnginePredictor(_Accelerated, OneDnnPredictor):
    """A saved model, run by Paddle Inference with oneDNN and the engine on."""

    def __init__(self, work: Work, assets: Assets) -> None:
        import paddle_ngraph

        paddle_ngraph.enable()
        OneDnnPredictor.__init__(self, work, assets)
        paddle_ngraph.reset_stats()


class _FunctionAlone(PaddleRunner):
    """The engine's only function of the program, called without Paddle.

    In inference, weights are its constants. In training, weights are inputs that do not change.
    """

    def __init__(self, work: Work, assets: Assets) -> None:
        import paddle_ngraph
        from benchmarks import functions

        super().__init__(work, assets)
        with self.in_use():
            function = functions.only_function(
                super().run, self.scope, self.feeds[0], constant_weights=not work.trains
            )
        self.scope = None  # frees the weights: the function has a copy
        self._start: dict[str, Array] = {}
        paddle_ngraph.clear_cache()
        self._request = function.request()
        self._fetched = function.fetched

    def run(self, feed: Feed) -> list[Array]:
        self._request.infer(share_outputs=True)
        return [self._request.get_output_tensor(i).data for i in self._fetched]


class InferenceFunction(_FunctionAlone, PaddleInference):
    """The function of a saved model, with its weights as constants."""


class TrainingFunction(_FunctionAlone, PaddleTraining):
    """The function of a training program. Parameters do not change, so results are unchecked."""

    def results(self) -> Results:
        done = super().results()
        return Results([], {}, done.first_seconds, done.notes)


# -- PyTorch --------------------------------------------------------------------------------------


class _Torch(Runner):
    """A network of ``torch_models`` with Paddle's initial weights."""

    channels_last = False
    compiled = False

    def __init__(self, work: Work, assets: Assets) -> None:
        try:
            import torch
        except ImportError as error:
            raise PeerError("PyTorch is not installed") from error
        from benchmarks import torch_models

        super().__init__(work, assets)
        if work.model not in torch_models.NETWORKS:
            raise PeerError("there is no such network for PyTorch")
        self.torch = torch
        self.network = torch_models.NETWORKS[work.model]()
        torch_models.load(self.network, assets.weights)
        self._is_picture = next(iter(self.feeds[0].values())).ndim == 4
        if self.channels_last and not self._is_picture:
            raise PeerError("channels last is for pictures")
        self.channels_last |= self.compiled and self._is_picture
        if self.channels_last:
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.train(work.trains)
        self.function: Callable[..., Any] = self.network
        if self.compiled:
            self.function = torch.compile(self.network, dynamic=False)

    def tensors(self, feed: Feed) -> list[Any]:
        """Returns the feed as tensors, without a copy except to reorder channels."""
        tensors = [self.torch.from_numpy(array) for array in feed.values()]
        if self.channels_last:
            tensors[0] = tensors[0].to(memory_format=self.torch.channels_last)
        return tensors


class TorchInference(_Torch):
    """Eager inference."""

    def run(self, feed: Feed) -> list[Array]:
        with self.torch.inference_mode():
            outputs = self.function(*self.tensors(feed))
        if not isinstance(outputs, tuple):
            outputs = (outputs,)
        return [output.numpy() for output in outputs]


class TorchTraining(_Torch):
    """An eager training step."""

    def __init__(self, work: Work, assets: Assets) -> None:
        from benchmarks import torch_models

        super().__init__(work, assets)
        self._optimizer = torch_models.optimizer(work.model, self.network.parameters())

    def run(self, feed: Feed) -> list[Array]:
        *inputs, label = self.tensors(feed)
        self._optimizer.zero_grad()
        output = self.function(*inputs)
        loss = self.torch.nn.functional.cross_entropy(output, label[:, 0])
        loss.backward()
        self._optimizer.step()
        return [np.array(loss.item())]


class ChannelsLastInference(TorchInference):
    """Eager inference with channels last."""

    channels_last = True


class ChannelsLastTraining(TorchTraining):
    """An eager training step with channels last."""

    channels_last = True


class CompiledInference(TorchInference):
    """Inference by ``torch.compile``; images with channels last."""

    compiled = True


class CompiledTraining(TorchTraining):
    """A training step with ``torch.compile``; images with channels last."""

    compiled = True


# -- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A column of the tables.

    Attributes:
        name: Name on the command line.
        title: Title in the tables.
        inference, training: Its runners, or ``None`` if not supported.
        settings: Environment variables of its process.
    """

    name: str
    title: str
    inference: Callable[[Work, Assets], Runner] | None
    training: Callable[[Work, Assets], Runner] | None
    settings: dict[str, str] = field(default_factory=dict)


_ALL_THREADS = {"FLAGS_paddle_num_threads": str(CORES)}
_ONEDNN = {**_ALL_THREADS, "FLAGS_use_onednn": "1"}
_TORCH = {"OMP_NUM_THREADS": str(CORES)}
REFERENCE = "paddle"
ENGINE = "engine"
PEERS = {
    peer.name: peer
    for peer in [
        Peer("engine", "engine", EngineInference, EngineTraining),
        Peer("paddle", "Paddle", PaddleInference, PaddleTraining),
        Peer("paddle-threads", "Paddle, all cores", PaddleInference, PaddleTraining, _ALL_THREADS),
        Peer("paddle-onednn", "Paddle, oneDNN", PaddleInference, PaddleTraining, _ONEDNN),
        Peer("predictor", "predictor", Predictor, None, _ALL_THREADS),
        Peer("predictor-onednn", "predictor, oneDNN", OneDnnPredictor, None, _ALL_THREADS),
        Peer("predictor-engine", "predictor, engine", EnginePredictor, None, _ALL_THREADS),
        Peer("function", "raw OpenVINO", InferenceFunction, TrainingFunction),
        Peer("torch", "PyTorch", TorchInference, TorchTraining, _TORCH),
        Peer(
            "torch-last",
            "PyTorch, channels last",
            ChannelsLastInference,
            ChannelsLastTraining,
            _TORCH,
        ),
        Peer("torch-compile", "torch.compile", CompiledInference, CompiledTraining, _TORCH),
    ]
}


def start(work: Work, assets: Assets, peer: str) -> Runner:
    """Returns the runner of ``peer`` for ``work``.

    Raises:
        PeerError: The peer has none.
    """
    make = PEERS[peer].training if work.trains else PEERS[peer].inference
    if make is None:
        raise PeerError("it does not train" if work.trains else "it does not infer")
    return make(work, assets)


def weights(work: Work) -> list[Array]:
    """Returns the initial weights of a workload, in the order in which Paddle creates them."""
    import paddle

    from benchmarks import paddle_models

    paddle.enable_static()
    return paddle_models.weights(work.model, work.trains)
