"""Fetching published files: each mirror in turn, checked before it is kept.

A file appears in its folder only after its bytes passed every check of `idx.py`; a broken connection, a wrong page or a
killed process leaves nothing that would be read later.
"""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .atomic import atomic_path
from .datasets import Dataset
from .idx import IdxFile, parse_idx

TIMEOUT = 30  # seconds without a byte
PLAIN = {"Accept-Encoding": "identity"}  # the gzipped file itself: servers may offer to unpack it on the way


def fetch_files(dataset: Dataset, part: str, folder: Path) -> None:
    """Download the images and the labels of one part into the folder, those that are not there yet.

    Raises:
        ImportError: pooch is not installed.
        OSError: no mirror gave the file, or the folder cannot be written to.
    """
    for file in dataset.files[part]:
        if not any((folder / name).is_file() for name in (file.name, f"{file.name}.gz")):
            _fetch(dataset, file, folder / f"{file.name}.gz")


def _fetch(dataset: Dataset, file: IdxFile, target: Path) -> None:
    try:
        from pooch import HTTPDownloader  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ImportError(
            f"{dataset.title} is not on this machine, and fetching it needs pooch: pip install 'scaleconv[download]', "
            "or name a directory that holds it (--data-dir), or use the embedded digits (--dataset embedded)"
        ) from None
    failures = []
    with atomic_path(target) as part:
        for mirror in dataset.mirrors:
            url = mirror + target.name
            try:
                with _Progress(target.name) as progress, part.open("wb") as stream:
                    HTTPDownloader(progress, chunk_size=1 << 16, timeout=TIMEOUT, headers=PLAIN)(url, stream, None)
                if not parse_idx(part.read_bytes(), url, file).verified:
                    raise ValueError(f"{url} was not sent as published, and no checksum vouches for it")
                return
            except (OSError, ValueError) as error:
                failures.append(f"{urlsplit(url).hostname}: {_reason(error)}")
        raise ConnectionError(
            f"could not download {target.name} from any of {len(failures)} mirrors ({'; '.join(failures)}): "
            "check the network, or name a directory that holds the files (--data-dir), "
            "or use the embedded digits (--dataset embedded)"
        )


def _reason(error: Exception) -> str:
    """In a few words: what requests says about a connection fills a screen."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    return type(error).__name__ if isinstance(error, OSError) and error.errno is None else str(error)


class _Progress:
    """A progress bar on standard error, with the four members that pooch expects of one."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(file=sys.stderr)
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(name, total=None)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bar.stop()

    @property
    def total(self) -> float | None:
        return self._bar.tasks[0].total

    @total.setter
    def total(self, size: float) -> None:
        self._bar.update(self._task, total=size or None)

    def update(self, size: float) -> None:
        self._bar.advance(self._task, size)

    def reset(self) -> None:
        self._bar.update(self._task, completed=0)

    def close(self) -> None:
        """The bar is closed when its block ends."""
