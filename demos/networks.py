"""The networks of the demos and benchmarks, as static-graph programs for training and prediction.

A *layout* maps an input variable to the network's output; ``build_network`` joins it with a loss
and an optimizer. The layouts here draw no random numbers (no dropout), so two runs from the same
weights on the same batches differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import paddle
import paddle.nn.functional as F
from paddle.optimizer import Optimizer
from paddle.static import InputSpec, Program

# A variable of a static program: paddle.pir.Value by default, paddle.static.Variable in the old IR.
Variable = Any
Layout = Callable[[Variable], Variable]
Loss = Callable[[Variable, Variable], Variable]

PADDING = 0
"""The word number that fills a text up to the length of its batch."""


@dataclass(frozen=True)
class Network:
    """The programs of one network.

    ``train`` is fed input and target, gives ``loss`` and updates the parameters; ``test`` is fed
    the input (``test_input``) alone, gives ``output`` and changes nothing. Both find the
    parameters under the same names.
    """

    startup: Program
    train: Program
    loss: Variable
    test: Program
    test_input: Variable
    output: Variable
    input_name: str
    target_name: str
    parameters: tuple[str, ...]


def build_network(
    layout: Layout,
    loss_function: Loss,
    inputs: tuple[InputSpec, InputSpec],
    make_optimizer: Callable[[], Optimizer],
) -> Network:
    """Builds the programs; ``inputs`` describes the input and the target that are fed."""
    spec, target_spec = inputs
    startup, train, test = Program(), Program(), Program()
    # A fresh name generator for each gives the parameters of both programs the same names.
    with paddle.static.program_guard(train, startup), paddle.utils.unique_name.guard():
        output = layout(_fed(spec))
        loss = loss_function(output, _fed(target_spec))
        make_optimizer().minimize(loss)
    with paddle.static.program_guard(test, Program()), paddle.utils.unique_name.guard():
        test_input = _fed(spec)
        output = layout(test_input)
    return Network(
        startup=startup,
        train=train,
        loss=loss,
        test=test,
        test_input=test_input,
        output=output,
        input_name=str(spec.name),
        target_name=str(target_spec.name),
        parameters=tuple(value.name for value in train.global_block().all_parameters()),
    )


def _fed(spec: InputSpec) -> Variable:
    return paddle.static.data(spec.name, spec.shape, spec.dtype)


cross_entropy: Loss = F.cross_entropy
mean_squared_error: Loss = F.mse_loss


def sgd(learning_rate: float) -> Optimizer:
    return paddle.optimizer.SGD(learning_rate)


def momentum(learning_rate: float) -> Optimizer:
    return paddle.optimizer.Momentum(learning_rate, momentum=0.9)


def adagrad(learning_rate: float) -> Optimizer:
    return paddle.optimizer.Adagrad(learning_rate)


def adam(learning_rate: float) -> Optimizer:
    return paddle.optimizer.Adam(learning_rate)


def linear_regression(features: Variable) -> Variable:
    """One linear layer: float32 [batch, n] to float32 [batch, 1]."""
    return paddle.nn.Linear(features.shape[1], 1)(features)


def mlp(image: Variable) -> Variable:
    """784-1024-1024-10 for digits: float32 [batch, 784] to logits, float32 [batch, 10]."""
    hidden = F.relu(paddle.nn.Linear(784, 1024)(image))
    hidden = F.relu(paddle.nn.Linear(1024, 1024)(hidden))
    return paddle.nn.Linear(1024, 10)(hidden)


def lenet(image: Variable) -> Variable:
    """LeNet-5 for digits: float32 [batch, 1, 28, 28] to logits, float32 [batch, 10]."""
    maps = F.max_pool2d(F.relu(paddle.nn.Conv2D(1, 6, 5, padding=2)(image)), 2)
    maps = F.max_pool2d(F.relu(paddle.nn.Conv2D(6, 16, 5)(maps)), 2)
    hidden = F.relu(paddle.nn.Linear(400, 120)(paddle.flatten(maps, 1)))
    hidden = F.relu(paddle.nn.Linear(120, 84)(hidden))
    return paddle.nn.Linear(84, 10)(hidden)


def bag_of_words(
    vocabulary: int, embedding: int = 128, hidden: int = 96, sparse: bool = False
) -> Layout:
    """A text's mean word vector, a tanh layer and a linear one; ``sparse`` is the embedding's.

    The layout maps words, int64 [batch, length] with PADDING after the end of each text, to
    logits, float32 [batch, 2].
    """

    def layout(words: Variable) -> Variable:
        vectors = paddle.nn.Embedding(vocabulary, embedding, sparse=sparse)(words)
        mask = paddle.cast(words != PADDING, "float32")
        # Every text has at least one word, so no count is 0.
        count = paddle.sum(mask, axis=1, keepdim=True)
        mean = paddle.sum(vectors * paddle.unsqueeze(mask, 2), axis=1) / count
        features = paddle.tanh(paddle.nn.Linear(embedding, hidden)(mean))
        return paddle.nn.Linear(hidden, 2)(features)

    return layout


def text_cnn(
    vocabulary: int, embedding: int = 128, filters: int = 64, windows: Sequence[int] = (3, 4)
) -> Layout:
    """Convolutions over windows of neighbouring words, the strongest answer of each, one layer.

    The layout maps words, int64 [batch, length] with PADDING after the end of each text and length
    at least the widest window, to logits, float32 [batch, 2].
    """

    def layout(words: Variable) -> Variable:
        vectors = paddle.nn.Embedding(vocabulary, embedding, padding_idx=PADDING)(words)
        channels = paddle.transpose(vectors, [0, 2, 1])
        strongest = [
            paddle.max(F.relu(paddle.nn.Conv1D(embedding, filters, window)(channels)), axis=2)
            for window in windows
        ]
        return paddle.nn.Linear(filters * len(windows), 2)(paddle.concat(strongest, axis=1))

    return layout


def regression_inputs(features: int) -> tuple[InputSpec, InputSpec]:
    """The feeds of ``linear_regression``: float32 [batch, features], prices [batch, 1]."""
    return (
        InputSpec([None, features], "float32", "features"),
        InputSpec([None, 1], "float32", "target"),
    )


def digit_inputs(*shape: int) -> tuple[InputSpec, InputSpec]:
    """The feeds of ``mlp`` (shape 784) and ``lenet`` (shape 1, 28, 28), and labels [batch, 1]."""
    return (
        InputSpec([None, *shape], "float32", "image"),
        InputSpec([None, 1], "int64", "label"),
    )


def text_inputs() -> tuple[InputSpec, InputSpec]:
    """The feeds of ``bag_of_words`` and ``text_cnn``: words [batch, length], labels [batch, 1]."""
    return InputSpec([None, None], "int64", "words"), InputSpec([None, 1], "int64", "label")
