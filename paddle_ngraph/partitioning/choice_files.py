"""Files with the results of measured choices, for later processes of the same machine."""

from __future__ import annotations

import hashlib
import os

from paddle_ngraph import flags
from paddle_ngraph.conversion import disk_cache
from paddle_ngraph.utils.measured_choice import RecordFile


def choice_file(subject: str, threads: str) -> RecordFile:
    """The file of a model or a function, in ``FLAGS_ngraph_cache_dir``.

    Another processor, number of threads, or version of a library is another file.

    Args:
        subject: Describes the contents of the model, or the code of the function.
        threads: Describes the threads that its runs use.
    """
    folder = flags.get("ngraph_cache_dir")
    if not folder:
        return RecordFile(None)
    conditions = [
        subject,
        *disk_cache.fixed_conditions(),
        f"{threads} {flags.get('ngraph_num_threads')} threads",
        f"{len(os.sched_getaffinity(0))} cores",
        str(flags.get("ngraph_precision")),
        str(flags.get("ngraph_weights")),
    ]
    digest = hashlib.sha256("\n".join(conditions).encode()).hexdigest()[:32]
    return RecordFile(os.path.join(os.path.expanduser(folder), "choices", f"{digest}.json"))
