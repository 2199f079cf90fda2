"""Files that are either whole or not there; and no pipes in place of files.

A file is written under another name beside its destination, flushed to the disk, and only then renamed. A
process that is killed in between leaves at most a hidden `.part` file, which nothing reads, and which the next one that
writes the same file removes. The part of a process that still writes is locked, and stays.
"""

import errno
import glob
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

REMEDY = "name a place that can be written to"
TRIES = 3  # to open a file in a directory that was just made


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to; it becomes `path` when the block ends, and is removed if the block fails.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with atomic_path(target) as part:
        ...     _ = part.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    target = Path(path)
    part, missing = _part_of(target), missing_parents(target)
    try:  # an interrupt may come at any line: the part has its name before it is there, and is removed twice
        try:
            with _create(part, target) as file:
                _lock(file.fileno())
                yield part
                _flush(part)
                os.replace(part, target)
                _flush(target.parent)
        finally:
            _remove(part)
    finally:
        _remove(part)
        remove_empty(missing)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise OSError if a file of this name cannot be written: before the work whose result would be lost.

    It is tried, since permissions alone do not tell. Nothing is left of it, directories included.
    """
    target = Path(path)
    part, missing = _part_of(target), missing_parents(target)
    try:
        _create(part, target).close()
    finally:
        _remove(part)
        remove_empty(missing)


def check_folder(folder: str | os.PathLike[str]) -> None:
    """As `check_writable`, for files in a folder, which need not be there yet."""
    try:
        check_writable(Path(folder) / "file")
    except OSError as error:
        reason = error.__cause__.strerror if isinstance(error.__cause__, OSError) else error
        raise type(error)(f"cannot write to {folder} ({reason}): {REMEDY}") from None


def refuse_pipes(path: str | os.PathLike[str]) -> None:
    """Raise OSError for what is neither a file nor a directory, and would be waited for when it is read."""
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))


def _part_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


def missing_parents(target: Path) -> list[Path]:
    """The directories above a file that are not there yet, the innermost first."""
    return [parent for parent in target.parents if not os.path.lexists(parent)]


def remove_empty(directories: Iterable[Path]) -> None:
    """Remove those of the directories that are empty, the innermost given first."""
    for directory in directories:
        with suppress(OSError):  # it was never made, or holds something
            directory.rmdir()


def _create(part: Path, target: Path) -> BinaryIO:
    """The part of a file, open; its directory is made, and what others have left in it removed."""
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for _ in range(TRIES - 1):  # another process may remove the directory while it is empty
            with suppress(FileNotFoundError):
                return _open_in_directory(part, target)
        return _open_in_directory(part, target)
    except OSError as error:
        raise type(error)(f"cannot write {target} ({error.strerror}): {REMEDY}") from error


def _open_in_directory(part: Path, target: Path) -> BinaryIO:
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    return part.open("xb")


def remove_leftovers(path: Path) -> None:
    """Remove the `.part` files that processes killed in the middle of writing this file have left."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):  # another process has removed it, or is writing it
            handle = os.open(part, os.O_RDWR)
            try:
                _lock(handle, wait=False)
                part.unlink()
            finally:
                os.close(handle)


def _remove(part: Path) -> None:
    with suppress(OSError):  # it is not there, or nor is its directory
        part.unlink()


def _lock(handle: int, *, wait: bool = True) -> None:
    """Lock a file until it is closed, also by the end of the process.

    Raises:
        OSError: another process has locked it, and this one is not to wait.
    """
    try:
        import fcntl
    except ImportError:
        return  # Windows does not remove files that are open
    fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _flush(path: Path) -> None:
    """Wait until the file, or the directory entry, is on the disk."""
    if os.name != "posix" and path.is_dir():
        return  # only POSIX systems open directories
    # Windows flushes only what is open for writing.
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
