"""Files that are either whole or not there; and no pipes in place of files.

A file is written under a hidden name beside its destination, flushed to the disk, and only then renamed. A lock beside
it says that its process is alive. What a killed process leaves, the next one that writes the same file removes.
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
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    missing = [parent for parent in target.parents if not os.path.lexists(parent)]  # the innermost first
    lock = FileLock(f"{part}.lock")
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        while not lock.is_locked:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(target)
            with suppress(FileNotFoundError):  # another process has removed the directory while it was empty
                lock.acquire()
        yield part
        if part.is_file():
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        if part.exists():
            os.replace(part, target)
    except OSError as error:
        if error.errno is None:  # it has a message of its own
            raise
        remedy = "name a place that can be written to and has room"
        raise type(error)(f"cannot write {target} ({error.strerror}): {remedy}") from error
    finally:
        _remove(part, lock)
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
    for name in {str(left).removesuffix(".lock") for left in path.parent.glob(f".{glob.escape(path.name)}.*.part*")}:
        lock = FileLock(f"{name}.lock", timeout=0)
        with suppress(Timeout, OSError):  # its process still writes, or another one has removed it
            lock.acquire()
            _remove(Path(name), lock)


def _remove(part: Path, lock: FileLock) -> None:
    shutil.rmtree(part, ignore_errors=True)
    for path in (part, Path(lock.lock_file)):
        with suppress(OSError):  # it is not there, or has got its name
            path.unlink()
    lock.release()
