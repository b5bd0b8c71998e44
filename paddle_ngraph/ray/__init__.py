"""Clusters of Ray: training, batch inference and servers.

Each worker of Ray Train is a rank of a job: a training loop for one process becomes one of a
cluster::

    from paddle_ngraph import distributed
    import paddle_ngraph.ray
    from ray import train

    def loop():
        ...  # the program, with distributed.distributed_optimizer
        for step in range(paddle_ngraph.ray.resume(program), steps):
            executor.run(program, feed=distributed.share(feed), fetch_list=[loss])
            with paddle_ngraph.ray.checkpoint(program, step + 1) as checkpoint:
                train.report({"step": step}, checkpoint=checkpoint)

    paddle_ngraph.ray.PaddleTrainer(
        loop, scaling_config=train.ScalingConfig(num_workers=8), seed=7
    ).fit()

:class:`Predictor` is a saved model for ``map_batches`` of ``ray.data``, and :func:`application` one
for Ray Serve. Needs ``pip install paddle-ngraph[ray]``; without Ray, this module can be imported,
and its functions name the extra.
"""

from __future__ import annotations

from paddle_ngraph.ray.batches import BatchPredictor as Predictor
from paddle_ngraph.ray.checkpoints import checkpoint, resume
from paddle_ngraph.ray.serving import Answer, application
from paddle_ngraph.ray.trainer import PaddleTrainer

__all__ = ["Answer", "PaddleTrainer", "Predictor", "application", "checkpoint", "resume"]
