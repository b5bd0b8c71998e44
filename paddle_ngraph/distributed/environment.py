"""The environment variables by which a rank knows its job."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from paddle_ngraph.distributed import reports
from paddle_ngraph.distributed.connections import SECRET_VARIABLE


def new_job() -> dict[str, str]:
    """The variables that are equal on all ranks of one start of a job, and differ from others."""
    return {
        reports.JOB_VARIABLE: secrets.token_hex(8),
        SECRET_VARIABLE: secrets.token_hex(32),
    }


def of_rank(
    rank: int,
    endpoints: Sequence[str],
    *,
    local_rank: int,
    local_ranks: int,
    node: int = 0,
    nodes: int = 1,
) -> dict[str, str]:
    """The variables of a rank, as ``paddle.distributed.launch`` sets them.

    Args:
        rank: The rank.
        endpoints: ``host:port`` of each rank; the store of the job has the first.
        local_rank: The rank on its machine.
        local_ranks: The number of ranks on its machine.
        node: The number of its machine, from 0.
        nodes: The number of machines.
    """
    ranks = str(len(endpoints))
    return {
        "PADDLE_MASTER": endpoints[0],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": ranks,
        "PADDLE_GLOBAL_RANK": str(rank),
        "PADDLE_GLOBAL_SIZE": ranks,
        "PADDLE_LOCAL_RANK": str(local_rank),
        "PADDLE_LOCAL_SIZE": str(local_ranks),
        "PADDLE_RANK_IN_NODE": str(local_rank),
        "PADDLE_NNODES": str(nodes),
        "PADDLE_NODE_RANK": str(node),
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
