"""Opens files that other users cannot redirect.

In a folder that another user may write to, a name may be a symbolic or hard link to any file of
this user: a plain ``open`` for writing would empty that file.
"""

from __future__ import annotations

import errno
import os
import stat


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a regular file that belongs to this user and has no other name: an ``opener``.

    Args:
        path: The file. Its folder may be reached through links, the file itself may not.
        flags: As for ``os.open``; without ``O_TRUNC``, since the checks come after the opening.

    Returns:
        The file descriptor.

    Raises:
        OSError: The file cannot be opened, or is another kind of file; ``strerror`` is the reason.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its reader.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, f"{path} is a symbolic link", str(path)) from error
        raise
    try:
        if (reason := _objection(os.fstat(descriptor))) is not None:
            raise OSError(errno.EPERM, f"{path} {reason}", str(path))
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _objection(state: os.stat_result) -> str | None:
    if not stat.S_ISREG(state.st_mode):
        return "is no regular file"
    if state.st_uid != os.geteuid():
        return "belongs to another user"
    # A file that was deleted meanwhile has no name left.
    if state.st_nlink > 1:
        return "is a hard link: the file has another name, too"
    return None
