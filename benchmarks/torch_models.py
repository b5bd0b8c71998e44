"""The benchmarked networks in PyTorch, run eagerly, for the column that sets Paddle in relation."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from demos.running import Batch


class TextCnn(nn.Module):
    """As demos.networks.text_cnn: words int64 [batch, length] to logits float32 [batch, 2]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 128, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(128, 64, window) for window in (3, 4))
        self.output = nn.Linear(128, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        channels = self.embedding(words).transpose(1, 2)
        strongest = [F.relu(layer(channels)).amax(dim=2) for layer in self.convolutions]
        return self.output(torch.cat(strongest, dim=1))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def _lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class TorchTrainer:
    """A network of PyTorch with the interface that the benchmark needs of a Trainer."""

    engine = "torch"

    def __init__(self, name: str, vocabulary: int) -> None:
        # import paddle sets OMP_NUM_THREADS=1, which PyTorch would keep to.
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        network, _, optimizer = name.partition("-")
        self._model = {"mlp": _mlp, "lenet": _lenet, "cnn": lambda: TextCnn(vocabulary)}[network]()
        self._optimizer = self._make_optimizer(optimizer)
        self.step_seconds: list[float] = []

    def _make_optimizer(self, name: str) -> torch.optim.Optimizer:
        parameters = self._model.parameters()
        if name == "adagrad":
            return torch.optim.Adagrad(parameters, 0.02)
        if name == "adam":
            return torch.optim.Adam(parameters, 1e-3)
        return torch.optim.SGD(parameters, 0.01, momentum=0.9)

    def train_step(self, batch: Batch) -> float:
        """Updates the parameters with one batch and returns the loss before the update."""
        start = time.perf_counter()
        inputs, label = (torch.from_numpy(np.asarray(array)) for array in batch)
        loss: Any = F.cross_entropy(self._model(inputs), label[:, 0])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        value = loss.item()
        self.step_seconds.append(time.perf_counter() - start)
        return value
