"""Makes the networks of the zoo, with weights that hide nothing, and inputs for them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import nn

from tests.zoo.families import Input, Make, NetworkFamily

Array = NDArray[Any]
Tensor = Any

_NORMALIZATIONS = (nn.BatchNorm, nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm)
PAIR, MORE_BATCHES = 2, 4
_DETECTORS = Path(__file__).with_name("detectors.yml")


class Flat(nn.Layer):  # type: ignore[misc]
    """A network whose results are a flat list of tensors.

    Args:
        network: What computes.
        names: The keys of its inputs, if it takes a dictionary.
    """

    def __init__(self, network: nn.Layer, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network = network
        self._names = names

    def forward(self, first: Tensor, second: Tensor = None, third: Tensor = None) -> list[Tensor]:
        """Maps the inputs of the network to the tensors among its results."""
        inputs = [value for value in (first, second, third) if value is not None]
        if self._names:
            return leaves(self.network(dict(zip(self._names, inputs))))
        return leaves(self.network(*inputs))


def leaves(results: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        return [tensor for result in results for tensor in leaves(result)]
    return [] if results is None or isinstance(results, (int, float, str)) else [results]


def make(call: Any) -> Any:
    """The result of a call, and of the calls in its arguments; other values are returned."""
    if not isinstance(call, Make):
        return call
    module, _, attribute = call.of.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    arguments = {name: make(value) for name, value in call.arguments.items()}
    return function(*(make(value) for value in call.positional), **arguments)


_states: dict[str, dict[str, Array]] = {}
_fewest: dict[str, int] = {}


def network(family: NetworkFamily) -> Flat:
    """A new network of a family, always with the same weights, in evaluation mode."""
    paddle.seed(0)
    np.random.seed(0)
    names = tuple(spec.name for spec in family.inputs)
    with paddle.utils.unique_name.guard():  # some packages name weights, once for each process
        made = Flat(make(family.make), names if all(names) else ())
    made.eval()
    if family.id not in _states:
        vary(made)
        _fewest[family.id] = calibrate(made, family)
        _states[family.id] = {name: np.array(t) for name, t in made.state_dict().items()}
    for name, tensor in made.state_dict().items():
        tensor.set_value(_states[family.id][name])
    return made


def vary(made: nn.Layer) -> None:
    """Changes the tensors of equal elements: a scale of 0 would hide all that comes before it."""
    draw = np.random.default_rng(1)
    for tensor in made.state_dict().values():
        value = tensor.numpy()
        if value.dtype != np.float32 or value.size < 2 or np.ptp(value):
            continue
        if value.flat[0]:
            value = value * draw.uniform(0.8, 1.2, value.shape)
        else:
            value = draw.normal(0, 0.05, value.shape)
        tensor.set_value(value.astype("float32"))


def calibrate(made: nn.Layer, family: NetworkFamily) -> int:
    """Gives batch normalizations the statistics of the inputs, as training would.

    Without, numbers grow from layer to layer, in some networks beyond float32.

    Returns:
        Of how few numbers one of them takes a mean; 0 if there is none.
    """
    layers = [layer for layer in made.sublayers() if isinstance(layer, _NORMALIZATIONS)]
    if not layers:
        return 0
    momenta = [layer._momentum for layer in layers]
    counts: list[int] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: counts.append(_count(inputs[0])))
        for layer in layers
    ]
    for layer in layers:
        layer.training, layer._momentum = True, 0.0
    with paddle.set_grad_enabled(family.differentiates):
        made(*map(paddle.to_tensor, arrays(family)))
    for layer, momentum, hook in zip(layers, momenta, hooks):
        layer.training, layer._momentum = False, momentum
        hook.remove()
        variance = layer._variance.numpy()
        layer._variance.set_value(np.where(variance < 1e-3, 1, variance).astype("float32"))
    return min(counts, default=0)


def _count(value: Tensor) -> int:
    """The number of elements of a channel."""
    return int(value.size) // int(value.shape[1])


def without_dropout(made: nn.Layer) -> None:
    """Leaves no random numbers in training."""
    for layer in made.sublayers():
        for name in ("p", "drop_prob", "dropout_prob"):
            if "Drop" in type(layer).__name__ and isinstance(getattr(layer, name, None), float):
                setattr(layer, name, 0.0)


def arrays(family: NetworkFamily, seed: int = 0, batches: int = 1) -> list[Array]:
    """Inputs of a family; ``batches``: as many as so many batches have, where they have one."""
    draw = np.random.default_rng(seed)
    return [_array(spec, draw, batches if spec.batched else 1) for spec in family.inputs]


def training_arrays(family: NetworkFamily) -> list[Array]:
    """Inputs for training: more where a batch normalization has two numbers of each channel.

    Two numbers become 1 and -1 whatever they are, so that the gradients of all layers before are
    rounding errors.
    """
    return arrays(family, batches=MORE_BATCHES if _fewest[family.id] == PAIR else 1)


def _array(spec: Input, draw: np.random.Generator, batches: int) -> Array:
    shape = (batches * spec.shape[0], *spec.shape[1:]) if batches > 1 else spec.shape
    if spec.value is not None:
        return np.full(shape, spec.value, spec.dtype)
    if spec.high:
        return draw.integers(spec.low, spec.high, shape).astype(spec.dtype)
    return draw.normal(0, 1, shape).astype(spec.dtype)


def specs(family: NetworkFamily, any_batch: bool = True) -> list[paddle.static.InputSpec]:
    """The inputs for ``paddle.jit.save``; ``any_batch``: the first dimension is dynamic."""
    return [
        paddle.static.InputSpec(
            [None, *spec.shape[1:]] if any_batch and spec.batched else spec.shape,
            spec.dtype,
            spec.name or f"input{index}",
        )
        for index, spec in enumerate(family.inputs)
    ]


_defaults: dict[str, Any] = {}


def detector(name: str) -> nn.Layer:
    """A network of PaddleDetection, by its configuration in ``detectors.yml``."""
    import yaml
    from ppdet.core import workspace

    importlib.import_module("ppdet.modeling")
    if not _defaults:
        _defaults.update(_copied(workspace.global_config))
    workspace.global_config.clear()  # making a network changes them
    workspace.global_config.update(_copied(_defaults))
    config: Mapping[str, Any] = yaml.safe_load(_DETECTORS.read_text())[name]
    workspace.merge_config(dict(config))
    made: nn.Layer = workspace.create(config["architecture"])
    return made


def _copied(config: Mapping[str, Any]) -> dict[str, Any]:
    copies = {name: copy(entry) for name, entry in config.items()}
    for entry in copies.values():
        for key, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, (list, dict)):
                entry[key] = deepcopy(value)
    return copies


def pruned(ratio: float) -> nn.Layer:
    """MobileNetV1 without a share of the filters of its pointwise convolutions, by PaddleSlim."""
    from paddleslim.dygraph import L1NormFilterPruner

    with paddle.pir_utils.OldIrGuard():  # whose programs it analyzes
        paddle.disable_static()
        made = paddle.vision.models.mobilenet_v1(scale=0.5, num_classes=10)
        pruner = L1NormFilterPruner(made, [1, 3, 64, 64])
        names = [p.name for p in made.parameters() if p.ndim == 4 and p.shape[2] == 1]
        pruner.prune_vars(dict.fromkeys(names[:4], ratio), 0)
    paddle.disable_static()
    return made
