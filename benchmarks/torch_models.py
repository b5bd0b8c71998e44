"""The measured networks in PyTorch, with weights in the order of Paddle's networks.

So :func:`load` can copy Paddle's initial weights, and the results can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.works import (
    BERT,
    BERT_POSITIONS,
    BERT_SEGMENTS,
    CLASSES,
    ENCODER,
    TOWER,
    VOCABULARY,
    Array,
    EncoderSize,
)


class PackedLinear(nn.Linear):
    """Several linear layers of one input, fused into one, as for query, key and value."""

    def __init__(self, inputs: int, outputs: int, parts: int) -> None:
        super().__init__(inputs, outputs * parts)
        self.parts = parts


class EncoderLayer(nn.Module):
    """Attention and two linear layers, each added to its input and normalized."""

    def __init__(self, size: EncoderSize, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        width, hidden = size.width, size.hidden
        self.heads = size.heads
        self.projections = PackedLinear(width, width, 3)
        self.attended = nn.Linear(width, width)
        self.wide = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.projections(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(query, key, value)
        x = self.norm1(x + self.attended(attention.transpose(1, 2).reshape(x.shape)))
        return self.norm2(x + self.narrow(self.activation(self.wide(x))))


def _layers(size: EncoderSize, activation: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(*(EncoderLayer(size, activation) for _ in range(size.layers)))


class Bert(nn.Module):
    """The network of benchmarks.paddle_models.Bert."""

    def __init__(self) -> None:
        super().__init__()
        width = BERT.width
        self.words = nn.Embedding(BERT.vocabulary, width)
        self.positions = nn.Embedding(BERT_POSITIONS, width)
        self.segments = nn.Embedding(BERT_SEGMENTS, width)
        self.norm = nn.LayerNorm(width)
        self.encoder = _layers(BERT, F.gelu)
        self.pooler = nn.Linear(width, width)

    def forward(self, words: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(words.shape[1])[None]
        embedded = self.words(words) + self.positions(positions) + self.segments(segments)
        sequence = self.encoder(self.norm(embedded))
        return sequence, torch.tanh(self.pooler(sequence[:, 0]))


class BertClasses(nn.Module):
    """The network of benchmarks.paddle_models.bert_classes."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = Bert()
        self.output = nn.Linear(BERT.width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.output(self.bert(words, torch.zeros_like(words))[1])


class Encoder(nn.Module):
    """An embedding, a Transformer encoder, the mean over the text, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ENCODER.vocabulary, ENCODER.width)
        self.encoder = _layers(ENCODER, F.relu)
        self.output = nn.Linear(ENCODER.width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.output(self.encoder(self.words(words)).mean(dim=1))


class TextCnn(nn.Module):
    """The network of demos.networks.text_cnn: int64 [batch, length] to float32 [batch, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 128, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(128, 64, window) for window in (3, 4))
        self.output = nn.Linear(128, 2)

    def forward(self, words: Tensor) -> Tensor:
        channels = self.embedding(words).transpose(1, 2)
        strongest = [F.relu(layer(channels)).amax(dim=2) for layer in self.convolutions]
        return self.output(torch.cat(strongest, dim=1))


class Lstm(nn.Module):
    """Two LSTM layers over a sequence, and a classifier of the last time step."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, CLASSES)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.output(self.cells(sequence)[0][:, -1])


def _normalized(
    inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(
        inputs, outputs, size, stride, (size - 1) // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(outputs)]


class ResidualBlock(nn.Module):
    """Convolutions with a skip connection, which has a projection where shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        fits = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity() if fits else nn.Sequential(*_normalized(inputs, outputs, 1, stride))
        )
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


def _basic(inputs: int, width: int, stride: int) -> tuple[int, list[nn.Module]]:
    first, last = _normalized(inputs, width, 3, stride), _normalized(width, width, 3)
    return width, [*first, nn.ReLU(inplace=True), *last]


def _bottleneck(inputs: int, width: int, stride: int) -> tuple[int, list[nn.Module]]:
    layers = [*_normalized(inputs, width, 1), nn.ReLU(inplace=True)]
    layers += [*_normalized(width, width, 3, stride), nn.ReLU(inplace=True)]
    return 4 * width, [*layers, *_normalized(width, 4 * width, 1)]


def _resnet(block: Callable[..., tuple[int, list[nn.Module]]], depths: Sequence[int]) -> nn.Module:
    layers = [*_normalized(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, depth in enumerate(depths):
        for number in range(depth):
            stride = 2 if stage > 0 and number == 0 else 1
            outputs, inner = block(channels, 64 * 2**stage, stride)
            layers.append(ResidualBlock(channels, outputs, stride, inner))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; with a skip connection if shapes are equal."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers += [*_normalized(inputs, wide, 1), nn.ReLU6(inplace=True)]
        layers += [*_normalized(wide, wide, 3, stride, groups=wide), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers, *_normalized(wide, outputs, 1))
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.is_residual else self.layers(x)


# Expansion, channels, blocks, stride of the first.
_MOBILENET_V2 = [
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
]


def _mobilenet_v2() -> nn.Module:
    layers = [*_normalized(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    channels = 32
    for expansion, outputs, blocks, stride in _MOBILENET_V2:
        for number in range(blocks):
            first = stride if number == 0 else 1
            layers.append(InvertedResidual(channels, outputs, first, expansion))
            channels = outputs
    layers += [*_normalized(channels, 1280, 1), nn.ReLU6(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def _tower() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(TOWER, TOWER[1:]):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(TOWER[-1], CLASSES))


def _lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": _mlp,
    "tower": _tower,
    "transformer": Encoder,
    "resnet18": lambda: _resnet(_basic, (2, 2, 2, 2)),
    "resnet50": lambda: _resnet(_bottleneck, (3, 4, 6, 3)),
    "mobilenet_v2": _mobilenet_v2,
    "lenet": _lenet,
    "cnn-adagrad": TextCnn,
    "cnn-adam": TextCnn,
    "lstm": Lstm,
    "bert": Bert,
    "bert-tuning": BertClasses,
}


def optimizer(model: str, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns the optimizer of ``paddle_models``, in PyTorch's fastest variant."""
    if model == "cnn-adagrad":
        return torch.optim.Adagrad(parameters, 0.02, eps=1e-6, fused=True)
    adam = {"cnn-adam": 1e-3, "lstm": 1e-3, "transformer": 1e-4, "bert-tuning": 1e-5}
    if model in adam:
        return torch.optim.Adam(parameters, adam[model], fused=True)
    rate = 0.01 if model in ("mlp", "tower", "lenet") else 1e-3
    return torch.optim.SGD(parameters, rate, momentum=0.9, fused=True)


@torch.no_grad()
def load(network: nn.Module, weights: Sequence[Array]) -> None:
    """Copies ``weights``, in the order in which Paddle's network created them.

    Raises:
        ValueError: A shape differs, so the networks do.
    """
    arrays = iter(weights)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            parts = [(next(arrays), next(arrays)) for _ in range(getattr(module, "parts", 1))]
            _copy(module.weight, torch.cat([torch.from_numpy(weight.T) for weight, _ in parts]))
            _copy(module.bias, torch.cat([torch.from_numpy(bias) for _, bias in parts]))
        elif not any(module.children()):
            for tensor in _tensors(module):
                _copy(tensor, torch.from_numpy(next(arrays)))
            if isinstance(module, nn.LSTM):
                # Paddle also has all of these weights as one tensor, and a state of its dropout.
                next(arrays), next(arrays)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
        yield from (module.running_mean, module.running_var)  # type: ignore[misc]


def _copy(target: Tensor, source: Tensor) -> None:
    if target.shape != source.shape:
        raise ValueError(f"Paddle's weight is {list(source.shape)}, PyTorch's {list(target.shape)}")
    target.copy_(source)


def tensors(feed: dict[str, Array]) -> list[Any]:
    """Returns the tensors of a feed in its order, sharing its memory."""
    return [torch.from_numpy(array) for array in feed.values()]
