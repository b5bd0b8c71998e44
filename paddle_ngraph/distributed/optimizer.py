"""A wrapper of an optimizer, which distributes the training program that ``minimize`` completes."""

from __future__ import annotations

from typing import Any

import paddle

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.transpiler import distribution_transpiler
from paddle_ngraph.transpiler.distribution_transpiler import DistributionOptions


class DistributedOptimizer:
    """See :func:`paddle_ngraph.distributed.distributed_optimizer`.

    Args:
        optimizer: The optimizer of Paddle.
        ranks: The number of processes.
        options: The options of the distribution.
    """

    def __init__(self, optimizer: Any, ranks: int, options: DistributionOptions) -> None:
        self._optimizer = optimizer
        self._ranks = ranks
        self._options = options

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def minimize(self, loss: Any, startup_program: Any = None, *args: Any, **kwargs: Any) -> Any:
        """``minimize`` of the optimizer, followed by the transformation into programs of a rank.

        Args:
            loss: The loss in a static PIR program: the mean over the samples of a batch.
            startup_program: ``None``: the default one.
            args, kwargs: The further arguments of the optimizer's ``minimize``.

        Raises:
            NgraphError: The program is a ProgramDesc or dynamic, or cannot be distributed.
        """
        if not isinstance(loss, paddle.pir.Value):
            raise NgraphError(
                "distributed_optimizer() minimizes losses of static PIR programs: pass a "
                "ProgramDesc program to paddle_ngraph.distribute(), and a dynamic layer to "
                "paddle.DataParallel"
            )
        main: Any = paddle.static.default_main_program()
        startup: Any = startup_program or paddle.static.default_startup_program()
        result = self._optimizer.minimize(loss, startup_program, *args, **kwargs)
        distribution_transpiler.distribute(main, self._ranks, self._options)
        distribution_transpiler.distribute_startup(startup, self._ranks, self._options)
        return result
