"""One process of a job with a parameter server and two trainers, of which the second fails.

First an error of the user ends it, then it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import paddle

import paddle_ngraph
from paddle_ngraph import distributed
from tests.server_networks import Network, batches


def serve_or_train(network: Network, kills: bool) -> str:
    """Returns the final message."""
    try:
        if distributed.rank() == 0:
            distributed.serve(network.executor, network.form, network.scope)
        else:
            with distributed.trainer(network.executor, network.form, network.scope) as trainer:
                for number, feed in enumerate(batches("dense")):
                    if distributed.rank() == 2 and number == 3:
                        if kills:
                            os.kill(os.getpid(), signal.SIGKILL)
                        trainer.share({"x": feed["x"][:5]})
                    trainer.run(trainer.share(feed))
    except paddle_ngraph.NgraphError as error:
        return str(error)
    return "nothing happened"


def main(folder: Path) -> None:
    paddle.enable_static()
    distributed.init()
    rank = distributed.rank()
    network = Network("dense")
    found = [serve_or_train(network, kills=False)]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    found.append(serve_or_train(network, kills=True))
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
