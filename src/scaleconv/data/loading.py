"""Images of a folder as tensors, batch by batch, with their labels or masks.

`load_folder` says how images are brought to one size, or that they keep their own; an `ImageSet` decodes the images of
one part. Small sets are decoded once and kept in memory; large ones are decoded by worker processes, whose number
changes nothing but the time. A new kind of path is a `Reader`.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .decoding import FITS, Size, decode, decode_mask, quiet_pillow
from .folders import THREADS, ImageFile, ImageFolder, read_folder, read_masked_images

TASKS = ("classification", "segmentation")
KEPT_BYTES = 2**28  # of a set that is kept in memory
SAMPLED = 1000  # training images that mean and standard deviation are taken of
LEAST_STD = 1 / 255


Batch = tuple[Tensor, Tensor]


class ImageSet(Dataset[Batch | str]):
    """The images of one part, decoded when they are asked for: (C, H, W) uint8, each with its label or mask.

    Args:
        root: the folder.
        files: of the part.
        classes: how many there are.
        channels: 1 or 3.
        size: (height, width) of all images; None leaves each its own.
        fit: `crop` or `letterbox`.
    """

    def __init__(
        self, root: Path, files: Sequence[ImageFile], classes: int, channels: int, size: Size | None, fit: str
    ) -> None:
        self.root, self.files, self.classes, self.channels = root, files, classes, channels
        self.size, self.fit = size, fit
        self.labels = torch.tensor([file.label for file in files], dtype=torch.long)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def masked(self) -> bool:
        """Whether there is a label for each pixel."""
        return any(file.mask for file in self.files)

    @property
    def sizes(self) -> list[Size]:
        """Of the tensors."""
        return [self.size or file.size for file in self.files]

    def __getitem__(self, index: int) -> Batch | str:
        """An image with its label, or its mask (H, W) uint8.

        Or why it cannot be read: an exception would come out of a worker with its whole traceback.
        """
        file = self.files[index]
        path = self.root / file.name
        try:
            image = decode(path, self.channels, self.size, self.fit)
            if not file.mask:
                return image, self.labels[index]
            path = self.root / file.mask
            return image, decode_mask(path, self.size, self.fit).byte()
        except Exception as error:
            return f"cannot read {path}, which could be read before (it {error})"

    @cached_property
    def kept(self) -> Batch | None:
        """All images (N, C, H, W) with their labels, if they are few enough to be kept."""
        planes = self.channels + self.masked
        if len(set(self.sizes)) != 1 or planes * len(self) * np.prod(self.sizes[0]) > KEPT_BYTES:
            return None
        with quiet_pillow(), ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
            return _usable(_stacked(list(pool.map(self.__getitem__, range(len(self))))))

    def batches(self, batches: Iterable[Sequence[int]], workers: int = 0) -> Iterator[Batch]:
        """Images (N, C, H, W) uint8 and labels (N,) or (N, H, W), decoded ahead by so many worker processes.

        Raises:
            OSError: an image cannot be read any more.
        """
        if self.kept is not None:
            images, labels = self.kept
            for indices in batches:
                chosen = torch.as_tensor(indices)
                yield images[chosen], labels[chosen]
            return
        loader: DataLoader[Any] = DataLoader(
            self,
            batch_sampler=batches,  # type: ignore[arg-type]  # any iterable will do
            num_workers=workers,
            collate_fn=_stacked,  # by the worker that decoded them
            worker_init_fn=_ignore_interrupts if workers else None,
            persistent_workers=False,
            generator=torch.Generator(),  # else it draws a seed from the stream of dropout
        )
        for found in loader:
            yield _usable(found)


@dataclass(frozen=True)
class ImageData:
    """A folder, and how its images become tensors."""

    folder: ImageFolder  # what was found
    channels: int  # 1 where no image has colour, else 3
    size: Size | None  # (height, width) of all tensors; None where images keep their own
    fit: str = "crop"  # how an image of another size is brought to it

    @cached_property
    def train(self) -> ImageSet:
        return self._set(self.folder.train)

    @cached_property
    def val(self) -> ImageSet:
        return self._set(self.folder.val)

    @cached_property
    def test(self) -> ImageSet:
        return self._set(self.folder.test)

    def _set(self, files: Sequence[ImageFile]) -> ImageSet:
        return ImageSet(self.folder.root, files, len(self.folder.classes), self.channels, self.size, self.fit)

    @property
    def task(self) -> str:
        """`segmentation` where images have masks, else `classification`."""
        return TASKS[self.folder.masked]

    @cached_property
    def moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel in [0, 1], over up to 1,000 training images."""
        step = -(-len(self.train) // SAMPLED)
        total, squares, count = torch.zeros(self.channels), torch.zeros(self.channels), 0
        for image, _ in self.train.batches([[index] for index in range(0, len(self.train), step)]):
            pixels = image.double().div(255).flatten(2)[0]  # (C, H·W)
            total, squares = total + pixels.sum(1), squares + pixels.square().sum(1)
            count += pixels.shape[1]
        mean = total / count
        std = (squares / count - mean.square()).clamp(min=0).sqrt().clamp(min=LEAST_STD)
        return tuple(round(value, 6) for value in mean.tolist()), tuple(round(value, 6) for value in std.tolist())

    def config(self) -> dict[str, Any]:
        """All that a result depends on, and no path."""
        return {
            "fingerprint": self.folder.fingerprint(),
            **{part: len(getattr(self.folder, part)) for part in ("train", "val", "test")},
            "classes": list(self.folder.classes),
            "channels": self.channels,
            "size": list(self.size) if self.size else None,
            "fit": self.fit,
            "task": self.task,
        }


class Reader(NamedTuple):
    """How the images of a path are found: whether it fits a path and a task, and what reads it."""

    fits: Callable[[Path, str], bool]
    read: Callable[..., ImageFolder]


READERS = [  # the first that fits is taken
    Reader(lambda path, task: task == "segmentation", read_masked_images),
    Reader(lambda path, task: True, read_folder),
]


def load_folder(
    root: str | os.PathLike[str] | ImageFolder,
    *,
    task: str = "classification",
    resize: int | Size | None = None,
    native: bool = False,
    fit: str = "crop",
    channels: int | None = None,
    val: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
) -> ImageData:
    """Find the images of a folder and settle their size.

    Args:
        root: the folder, or what `read_folder` or `read_masked_images` found in it.
        task: `classification` of images in a folder for each class, or `segmentation` of images with masks.
        resize: (height, width), or one number for both, of all tensors. None takes images of one size as they are.
        native: every image keeps its own size; batches hold images of one size.
        fit: `crop` brings the shorter side to the size and crops the middle; `letterbox` brings the longer side to the
            size and repeats the edge beyond the image.
        channels: 1 or 3; None takes 1 where no image has colour.
        val, test, seed: of the division into parts, as for `read_folder`.

    Raises:
        OSError, ValueError: as `read_folder` and `read_masked_images`; or images differ in size, and neither `resize`
            nor `native` is given.
    """
    check_task(task)
    if fit not in FITS:
        raise ValueError(f"`fit` must be one of {', '.join(FITS)}, got {fit!r}")
    if channels not in (None, 1, 3):
        raise ValueError(f"`channels` must be 1 or 3, got {channels}")
    if native and resize is not None:
        raise ValueError(f"`resize` (={resize}) must not be given where images keep their size (`native`)")
    size = (resize, resize) if isinstance(resize, int) else resize
    if size is not None and (min(size) < 1 or max(size) > 4096):
        raise ValueError(f"`resize` must be 1 to 4096 pixels a side, got {resize}")
    if isinstance(root, ImageFolder):
        folder = root
    else:
        path = Path(root)
        read = next(reader.read for reader in READERS if reader.fits(path, task))
        folder = read(path, val=val, test=test, seed=seed)
    sizes = {image.size for image in folder.images}
    if size is None and len(sizes) == 1:
        size = next(iter(sizes))
    if size is None and not native:
        least, most = (end(sizes, key=lambda size: size[0] * size[1]) for end in (min, max))
        raise ValueError(
            f"`resize` must be given, or `native`, where images differ in size, got {least[0]}×{least[1]} to "
            f"{most[0]}×{most[1]} (height × width) in {folder.root}"
        )
    grey = all(image.grey for image in folder.images)
    return ImageData(folder, channels or (1 if grey else 3), size, fit)


def check_task(task: str) -> None:
    if task not in TASKS:
        raise ValueError(f"`task` must be one of {', '.join(TASKS)}, got {task!r}")


def _stacked(found: Sequence[Batch | str]) -> Batch | str:
    """Images and labels of a batch, or why one of them cannot be read."""
    for each in found:
        if isinstance(each, str):
            return each
    pairs = [each for each in found if not isinstance(each, str)]
    return torch.stack([image for image, _ in pairs]), torch.stack([label for _, label in pairs])


def _usable(found: Batch | str) -> Batch:
    if isinstance(found, str):
        raise OSError(found)
    return found


def _ignore_interrupts(_: int) -> None:
    """Ctrl-C is for the process that trains, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
