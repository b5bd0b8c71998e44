"""Batch inference by Ray Data: a saved model for ``map_batches``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paddle_ngraph.ray.models import ActorModel, Arrays


class BatchPredictor:
    """A saved model that Ray Data runs in actors.

    ::

        dataset.map_batches(
            paddle_ngraph.ray.Predictor,
            fn_constructor_args=["model"],
            fn_constructor_kwargs={"inputs": {"image": "x"}},
            compute=ray.data.ActorPoolStrategy(size=4),
            num_cpus=1,
            batch_size=32,
        )

    Args:
        model: See :class:`paddle_ngraph.ray.models.ActorModel`.
        inputs: The inputs of the model by column of the batch; ``None``: columns and inputs have
            equal names.
        outputs: The columns of the result by output of the model; ``None``: equal names.
        shapes: See :class:`paddle_ngraph.ray.models.ActorModel`.

    Raises:
        NgraphError: Ray or the model is missing, or Paddle cannot run it with such inputs.
    """

    def __init__(
        self,
        model: str,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        shapes: Sequence[Mapping[str, Sequence[int]]] = (),
    ) -> None:
        self._model = ActorModel(model, shapes)
        self._inputs = inputs or {name: name for name in self._model.inputs}
        self._outputs = outputs or {name: name for name in self._model.outputs}

    def __call__(self, batch: Arrays) -> dict[str, np.ndarray]:
        """The outputs for a batch, beside the columns that are no inputs.

        Args:
            batch: A column for each input, of its dtype.

        Raises:
            NgraphError: A column is missing.
        """
        found = self._model.run({self._inputs.get(name, name): batch[name] for name in batch})
        rest = {name: column for name, column in batch.items() if name not in self._inputs}
        return {**rest, **{column: found[name] for name, column in self._outputs.items()}}
