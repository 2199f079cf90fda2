"""Files that are either whole or not there; and no pipes in place of files.

A file is written in a hidden folder beside its destination, flushed to the disk, and only then moved. A lock in the
folder says that its process is alive. What a killed process leaves, the next one that writes the same file removes.
"""

import errno
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path for a file or a folder; what is written there becomes `path` when the block ends, unless it fails."""
    target = Path(path)
    folder = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    missing = [parent for parent in target.parents if not os.path.lexists(parent)]  # the innermost first
    lock = FileLock(folder / "lock")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        remove_leftovers(target)
        for more in (True, True, False):
            try:
                lock.acquire()  # and make the folder
                break
            except FileNotFoundError:  # another process has removed the one above while it was empty
                if not more:
                    raise
        yield (part := folder / target.name)
        if part.is_file():
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        if part.exists():
            os.replace(part, target)
    except OSError as error:
        if error.errno is None:  # it has a message of its own
            raise
        remedy = "name a place that can be written to and has free space"
        raise type(error)(f"cannot write {target} ({error.strerror}): {remedy}") from error
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
        for directory in missing:
            with suppress(OSError):  # it was never made, or holds something
                directory.rmdir()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OSError if a file of this name cannot be written, which is tried, and leave nothing of it."""
    with atomic_path(path):
        pass


def check_folder(folder: str | os.PathLike[str]) -> None:
    """As `check_writable`, for files in a folder, which need not be there yet."""
    try:
        check_writable(Path(folder) / "file")
    except OSError as error:
        raise type(error)(str(error).replace(f"write {Path(folder) / 'file'}", f"write to {folder}")) from None


def refuse_pipes(path: str | os.PathLike[str]) -> None:
    """Raise OSError for what is neither a file nor a directory, and would be waited for when it is read."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def remove_leftovers(path: Path) -> None:
    """Remove what processes killed in the middle of writing this file have left."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(Timeout, OSError):  # its process still writes, or another one has removed it
            with FileLock(folder / "lock", timeout=0):
                pass
            shutil.rmtree(folder)
