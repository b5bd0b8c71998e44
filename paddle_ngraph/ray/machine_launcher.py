"""The launcher of the ranks on one machine of a cluster of Ray, in a process of its own.

Run with ``python -m paddle_ngraph.ray.machine_launcher OPTIONS FOLDER DESCRIPTOR``: options in
JSON, the working folder, and a file descriptor for the end of the job. The launcher needs the main
thread of a process, and a worker of Ray has another use for its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys

from paddle_ngraph.distributed import launcher
from paddle_ngraph.distributed.launcher import End, LauncherOptions
from paddle_ngraph.distributed.machines import Place
from paddle_ngraph.errors import NgraphError


def command(options: LauncherOptions, folder: str, descriptor: int) -> list[str]:
    """The command line of the process."""
    arguments = [packed(options), folder, str(descriptor)]
    return [sys.executable, "-W", "ignore", "-m", __name__, *arguments]


def packed(options: LauncherOptions) -> str:
    """The options as JSON."""
    return json.dumps(dataclasses.asdict(options))


def unpacked(text: str) -> LauncherOptions:
    """The options of a JSON text."""
    fields = json.loads(text)
    return LauncherOptions(**{**fields, "place": Place(**fields["place"])})


def end_of(text: bytes) -> End:
    """The end of the job that the process has written.

    Raises:
        NgraphError: This launcher could not run the ranks.
    """
    found = json.loads(text)
    if isinstance(found, str):
        raise NgraphError(found)
    return End(*found)


def main(options: str, folder: str, descriptor: int) -> None:
    """Runs the ranks in a folder, if there is one, and writes the end of the job to a file."""
    with contextlib.suppress(OSError):
        os.chdir(folder)
    try:
        end: End | str = launcher.run(unpacked(options))
    except NgraphError as error:
        end = str(error)
    with open(descriptor, "w") as answer:
        json.dump(end, answer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
