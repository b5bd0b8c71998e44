"""PaddleOCR by Ray Serve: replicas on the machines of a cluster.

    serve run demos.serving_demo.on_ray:app models=FOLDER cores=1

The folder is that of ``serve.py --models``, with functions for as many threads as cores; each
machine has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import paddle_ngraph
import paddle_ngraph.ray
from demos.serving_demo import ocr, pictures
from demos.serving_demo.settings import NGRAPH, Settings
from paddle_ngraph.ray import Answer


class PagePipeline:
    """Requests with a picture of a page each: the lines of text, and their scores.

    Args:
        models: The folder of the models.
    """

    def __init__(self, models: Path) -> None:
        # A replica has set the number of threads to that of its cores.
        self._read = ocr.reader(Settings(models, NGRAPH, paddle_ngraph.num_threads()))

    def __call__(self, bodies: Sequence[bytes]) -> list[Answer]:
        """Reads the pages of a batch together; what is no picture gets status 400."""
        answers, pages = {}, {}
        for number, body in enumerate(bodies):
            try:
                pages[number] = pictures.decoded(body)
            except ValueError as error:
                answers[number] = Answer({"error": str(error)}, 400)
        for number, text in zip(pages, self._read(list(pages.values()))):
            answers[number] = Answer(text)
        return [answers[number] for number in range(len(bodies))]


def app(arguments: Mapping[str, str]) -> Any:
    """The application of a folder of models, with a replica of one page at a time."""
    folder, cores = Path(arguments["models"]).resolve(), int(arguments.get("cores", 1))
    return paddle_ngraph.ray.application(lambda: PagePipeline(folder), num_cpus=cores)
