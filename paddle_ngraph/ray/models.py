"""A saved model in an actor of Ray: for batch inference and for servers.

Actors share nothing but the compiled functions, on disk. An actor computes with as many threads as
Ray has reserved cores for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.inference import create_predictor

import paddle_ngraph
from paddle_ngraph import flags
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends.saved_models import saved_model
from paddle_ngraph.ray.installed import ray_module

Arrays = Mapping[str, np.ndarray]


class ActorModel:
    """A predictor of Paddle Inference that runs through the engine.

    Args:
        path: A saved model: a folder, a file, or its path without the extension; on every machine.
        shapes: The shapes of the inputs by name, for each run that loads or compiles functions
            before the first request: see :func:`paddle_ngraph.warm_up`.

    Attributes:
        inputs: The names of the inputs.
        outputs: The names of the outputs.

    Raises:
        NgraphError: There is no model, or Paddle cannot run it with such inputs.
    """

    def __init__(self, path: str, shapes: Sequence[Mapping[str, Sequence[int]]] = ()) -> None:
        paddle_ngraph.enable()
        threads = use_reserved_cores()
        config: Any = saved_model.SavedModel.at(saved_model.find_only(path)).config()
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(threads)
        self._predictor = create_predictor(config)
        self.inputs: list[str] = list(self._predictor.get_input_names())
        self.outputs: list[str] = list(self._predictor.get_output_names())
        if shapes:
            paddle_ngraph.warm_up(self._predictor, list(shapes))

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs by name.

        Args:
            inputs: An array for each input, of its dtype.

        Raises:
            NgraphError: An input is missing.
        """
        for name in self.inputs:
            if name not in inputs:
                raise NgraphError(f"the input {name} is missing: give {', '.join(self.inputs)}")
            array = np.ascontiguousarray(inputs[name])
            handle = self._predictor.get_input_handle(name)
            handle.reshape(list(array.shape))
            handle.copy_from_cpu(array)
        self._predictor.run()
        handles = [self._predictor.get_output_handle(name) for name in self.outputs]
        return {name: handle.copy_to_cpu() for name, handle in zip(self.outputs, handles)}


def use_reserved_cores() -> int:
    """Has this actor compute with as many threads as Ray has reserved cores for it.

    Returns:
        The number of threads: at least 1.
    """
    # Ray ends actors by SIGTERM, at which Paddle would print a stack.
    paddle.disable_signal_handler()
    reserved = ray_module("ray").get_runtime_context().get_assigned_resources()
    threads = max(1, int(reserved.get("CPU", 1)))
    if flags.get("ngraph_num_threads") == 0:
        flags.set("ngraph_num_threads", threads)
    return threads
