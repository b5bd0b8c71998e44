"""Opens files that other users cannot redirect.

In a folder that another user may write to, a name may be a symbolic or hard link to any file of
this user: a plain ``open`` for writing would empty that file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

_CREATE = os.O_CREAT | os.O_EXCL
# Without O_NONBLOCK, opening a pipe would wait for its reader.
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_unlinked(path: str | os.PathLike[str], flags: int) -> int:
    """An ``opener`` that follows no symbolic link at the end of the path."""
    return os.open(path, flags | _SAFE, 0o666)


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """An ``opener`` for a file that this user creates, or has created, under no other name.

    A file of another user is deleted and created anew, unless a process has locked it.

    Args:
        path: The file. Its folder may be reached through links, the file itself may not.
        flags: As for ``os.open``; without ``O_TRUNC``, since the checks come after the opening.

    Returns:
        The file descriptor.

    Raises:
        OSError: The file cannot be opened, or is another kind of file; ``strerror`` is the reason.
    """
    try:
        # The owner of a new file is not compared: some file systems set another one.
        return open_unlinked(path, flags | _CREATE)
    except FileExistsError:
        descriptor = _existing(path, flags & ~_CREATE)
    if os.fstat(descriptor).st_uid == os.geteuid():
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)
    return open_unlinked(path, flags | _CREATE)


def _existing(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a regular file with one name."""
    try:
        descriptor = open_unlinked(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise OSError(errno.ELOOP, f"{path} is a symbolic link", str(path)) from error
        if error.errno == errno.EISDIR:
            raise OSError(errno.EISDIR, f"{path} is a directory", str(path)) from error
        raise
    state, reason = os.fstat(descriptor), ""
    if not stat.S_ISREG(state.st_mode):
        reason = "is no regular file"
    elif state.st_nlink > 1:  # 0: the file was deleted meanwhile
        reason = "is a hard link: the file has another name, too"
    if reason:
        os.close(descriptor)
        raise OSError(errno.EPERM, f"{path} {reason}", str(path))
    return descriptor
