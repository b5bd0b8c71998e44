"""The part that servers of all models share: one worker's requests, health and metrics."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import paddle
from fastapi import FastAPI, HTTPException, Request, Response
from PIL import Image

import paddle_ngraph
from demos.serving_demo import metrics, models, pictures
from demos.serving_demo.settings import NGRAPH, Settings

Answer = dict[str, Any]
Model = Callable[[Image.Image], Answer]


def create(load: Callable[[Settings], Model]) -> FastAPI:
    """Returns an application that answers pictures by a model.

    Importing it runs nothing in Paddle, so that gunicorn may fork after the import. Each worker
    loads the model before it accepts the first request.
    """

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[None]:
        application.state.model = load(Settings.from_environment())
        metrics.update()
        yield

    application = FastAPI(lifespan=lifespan)

    @application.post("/predict")
    async def predict(request: Request, response: Response) -> Answer:
        body = await request.body()
        response.headers["x-worker"] = str(os.getpid())
        # In the thread of the event loop, on purpose: a worker that computes accepts no further
        # connection, so the next one goes to a worker that is idle.
        with metrics.measured():
            try:
                picture = pictures.decoded(body)
            except ValueError as error:
                raise HTTPException(400, str(error)) from error
            answer: Answer = application.state.model(picture)
        return answer

    @application.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ready"}

    @application.get("/metrics")
    async def all_metrics() -> Response:
        return Response(metrics.exposition(), media_type=metrics.CONTENT_TYPE)

    return application


def predictor(settings: Settings, network: str) -> Any:
    """Returns a predictor of a network, with Paddle's default settings except for the threads."""
    program = models.program(settings.models, settings.engine, network)
    config = paddle.inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_glog_info()
    config.set_cpu_math_library_num_threads(settings.threads)
    return paddle.inference.create_predictor(config)


def run(network: Any, data: np.ndarray) -> np.ndarray:
    """Runs a predictor of one input and one output."""
    handle = network.get_input_handle(models.INPUT)
    handle.reshape(list(data.shape))
    handle.copy_from_cpu(data)
    network.run()
    output: np.ndarray = network.get_output_handle(network.get_output_names()[0]).copy_to_cpu()
    return output


def warm(settings: Settings, network: str, predictor: Any) -> None:
    """Loads the functions that were saved with a network, by a run for each of their shapes.

    In the order in which they were saved, in which each is found that was built then.
    """
    if settings.engine == NGRAPH:
        for shape in models.SHAPES[network]:
            run(predictor, np.zeros(shape, "float32"))
        paddle_ngraph.wait_for_compiles()
