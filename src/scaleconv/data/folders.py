"""A folder of images, one folder for each class: which files it holds, what is wrong with some, and how it is divided.

    photos/cat/1.jpg         photos/dog/2.png         divided here: seeded, every class alike
    photos/train/cat/1.jpg   photos/test/cat/2.png    divided already, with or without photos/val

Every file is decoded once before anything else happens, so that a broken one is found now and not in the third hour of
training. What cannot be used is left out and named; a folder that cannot be used is refused. No file is changed.
"""

import hashlib
import os
import shutil
import stat
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .atomic import check_writable, missing_parents, refuse_pipes, remove_empty
from .progress import watched
from .scales import raw_stream
from .sets import ScaledSet

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
PARTS = ("test", "val", "train")  # of two copies, the one in the earlier part is kept
MOST_PIXELS = 2**26  # 67 megapixels, 200 MB once decoded
THREADS = 8  # that decode at once; Pillow lets go of Python meanwhile
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)  # EXIF
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L")
PURPOSE = 2  # of the random stream that divides a folder

Size = tuple[int, int]


@dataclass(frozen=True)
class ImageFile:
    """An image that can be used.

    Attributes:
        name: its path inside the folder.
        label: index of its class; −1 where a mask has the classes.
        size: (height, width), upright.
        grey: whether it has no colour.
        checksum: of its bytes, and of those of its mask.
        mask: path of its mask inside the folder; empty where images have none.
    """

    name: str
    label: int
    size: Size
    grey: bool
    checksum: str
    mask: str = ""


@dataclass(frozen=True)
class Skipped:
    """A file, or a folder, that is left out, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


@dataclass(frozen=True)
class ImageFolder:
    """What a folder holds.

    Attributes:
        root: the folder.
        classes: names, in the order of the labels.
        train, val, test: the images of each part, by class and name. `val` may be empty.
        skipped: all that is left out.
    """

    root: Path
    classes: tuple[str, ...]
    train: tuple[ImageFile, ...]
    val: tuple[ImageFile, ...]
    test: tuple[ImageFile, ...]
    skipped: tuple[Skipped, ...]

    @property
    def images(self) -> tuple[ImageFile, ...]:
        return (*self.train, *self.val, *self.test)

    @property
    def masked(self) -> bool:
        """Whether every image has a mask, in place of a class."""
        return bool(self.train[0].mask)

    def fingerprint(self) -> str:
        """SHA-256 of everything a result may depend on: names, bytes, labels and parts of all images."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for part in (self.train, self.val, self.test):
            digest.update(b"part")
            for image in part:
                digest.update(f"{image.name!a} {image.label} {image.checksum}\n".encode())
        return digest.hexdigest()

    def summary(self, most: int = 10) -> str:
        """Counts, and the first of the files that are left out, each on a line."""
        counts = ", ".join(f"{len(getattr(self, part))} to {part}" for part in reversed(PARTS))
        lines = [f"{self.root}: {len(self.images)} images of {len(self.classes)} classes ({counts})"]
        if self.skipped:
            lines.append(f"{len(self.skipped)} left out:")
            lines += [f"  {each}" for each in self.skipped[:most]]
        if len(self.skipped) > most:
            lines.append(f"  … and {len(self.skipped) - most} more")
        return "\n".join(lines)


def read_folder(root: str | os.PathLike[str], *, val: float = 0.1, test: float = 0.1, seed: int = 0) -> ImageFolder:
    """Find, check and divide the images of a folder.

    Where the only folders are train and test or val, or all three, they are the parts; without test, val is what is
    tested on. Otherwise every folder is a class, and each class is divided at random. PNG, JPEG, BMP and WebP are read,
    also from folders inside a class; of an animation, the first frame.

    Left out and named are: files with another ending; hidden files; broken and unreadable ones; images of more than 67
    megapixels, by their header; copies of a file that was taken already, byte by byte, in the same part, class or
    another (test comes before val, val before train); links that lead in a circle; files outside of every class; and
    classes without an image.

    Args:
        root: the folder.
        val, test: shares of each class where the folder is not divided already; each part gets at least one image,
            unless `val` is 0.
        seed: of the division.

    Raises:
        OSError: the folder cannot be read.
        ValueError: fewer than two classes have images, two classes differ in upper and lower case only, a class has
            no training image, or has too few to be divided.
        ImportError: Pillow is not installed.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise NotADirectoryError(f"`data` must be a directory with a folder for each class, got {folder}")
    check_shares(val, test)
    import_pillow()
    skipped: list[Skipped] = []
    parts = find_parts(folder)
    found = [(part, *each) for part, path in parts.items() for each in _class_files(path, folder, skipped)]
    _refuse_case(folder, {name for _, name, _ in found})
    usable = _usable(folder, [(part, name, path) for part, name, files in found for path in files], skipped)
    names = sorted({name for name, _ in usable})
    empty = sorted({name for _, name, _ in found} - set(names))
    skipped += [Skipped(name, "is a class without an image that can be used") for name in empty]
    if len(names) < 2:
        first = f"; {len(skipped)} left out, first: {skipped[0]}" if skipped else ""
        got = f"{len(names)} ({', '.join(names)})" if names else "0"
        raise ValueError(f"`data` (={folder}) must hold images of at least 2 classes, got {got}{first}")
    divided: dict[str, list[ImageFile]] = {part: [] for part in PARTS}
    for label, name in enumerate(names):
        own = {part: [replace(image, label=label) for image in usable.get((name, part), [])] for part in parts}
        if "" in own:
            own = divide(own[""], name, val, test, seed=(seed, PURPOSE, label))
        if not own["train"]:
            raise ValueError(f"`data` (={folder}) must hold images of every class in train, got none of {name}")
        for part, images in own.items():
            divided[part] += images
    return divided_folder(folder, names, divided, skipped)


def divided_folder(
    root: Path, classes: Sequence[str], divided: dict[str, list[ImageFile]], skipped: Sequence[Skipped]
) -> ImageFolder:
    """What was found in a folder, by part.

    Raises:
        ValueError: there is no image to train or to test on.
    """
    for part in ("train", "test"):
        if not divided[part]:
            raise ValueError(f"`data` (={root}) must hold images to {part} on, got none")
    train, val, test = (tuple(divided[part]) for part in ("train", "val", "test"))
    return ImageFolder(root, tuple(classes), train, val, test, tuple(skipped))


def check_shares(val: float, test: float) -> None:
    """Of the images to validate and to test on."""
    for name, share in (("val", val), ("test", test)):
        if not 0 <= share < 1:
            raise ValueError(f"`{name}` must be at least 0 and below 1, got {share}")
    if val + test >= 1 or test == 0:
        raise ValueError(f"`test` (={test}) must be above 0, and with `val` (={val}) below 1")


def import_pillow() -> Any:
    """Pillow's module `Image`."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("reading images needs Pillow: pip install 'scaleconv[experiments]'") from None
    return Image


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Without Pillow's warnings, of damaged EXIF data and the like: what matters is told by exceptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_folder(scaled: ScaledSet, root: str | os.PathLike[str]) -> Path:
    """Write a set of digits as PNGs, `root/CLASS/INDEX.png`, whole or not at all.

    Raises:
        ValueError: there is something of that name already.
    """
    return write_images((scaled.images * 255).round().byte(), scaled.labels, "0123456789", root)


def write_images(images: Tensor, labels: Tensor, classes: Sequence[str], root: str | os.PathLike[str]) -> Path:
    """Write images (N, C, H, W) uint8 as `write_folder` does; `classes` are the names of the labels.

    Raises:
        ValueError: there is something of that name already.
    """
    pillow = import_pillow()
    with new_folder(root) as part:
        for label in labels.unique().tolist():
            (part / classes[label]).mkdir(parents=True)
        labelled = zip(images, labels.tolist(), strict=True)
        for index, (image, label) in enumerate(watched(labelled, "writing images", len(images))):
            pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
            pillow.fromarray(pixels.numpy()).save(part / classes[label] / f"{index:05}.png")
    return Path(root)


def check_new_folder(root: str | os.PathLike[str]) -> None:
    """Refuse a folder that is there already, or that cannot be made: before the images for it are."""
    if os.path.lexists(root):
        raise ValueError(f"`path` must name a folder that is not there yet, got {root}")
    check_writable(root)


@contextmanager
def new_folder(root: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to fill, which gets its name when it is whole."""
    check_new_folder(root)
    folder = Path(root)
    part = folder.with_name(f".{folder.name}.part")
    missing = missing_parents(folder)
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a killed run
        yield part
        part.rename(folder)
    except OSError as error:
        raise type(error)(f"cannot write {folder} ({error.strerror}): name another folder, or make room") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)  # unless it has got its name
        remove_empty(missing)


def find_parts(root: Path) -> dict[str, Path]:
    """The folders of the parts, test first; the whole folder under "" where it is not divided."""
    names = {entry.name for entry in _entries(root) if not entry.name.startswith(".") and entry.is_dir()}
    if not names or not names <= set(PARTS) or "train" not in names:
        return {"": root}
    if names == {"train"}:
        raise ValueError(f"`data` (={root}) must have a folder test or val beside train")
    if "test" not in names:
        return {"test": root / "val", "train": root / "train"}
    return {part: root / part for part in PARTS if part in names}


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise type(error)(f"cannot read the folder {folder} ({error.strerror})") from None


def _class_files(part: Path, root: Path, skipped: list[Skipped]) -> Iterator[tuple[str, list[Path]]]:
    """The classes of a part, each with the files that may be images."""
    for entry in _entries(part):
        path = part / entry.name
        if entry.is_dir() and not entry.name.startswith("."):
            yield printable(entry.name), list(_walk(path, root, set(), skipped))
        else:
            reason = "is hidden" if entry.name.startswith(".") else "lies in no folder of a class"
            skipped.append(Skipped(_name(path, root), reason))


def _walk(folder: Path, root: Path, seen: set[Size], skipped: list[Skipped]) -> Iterator[Path]:
    """The files below a folder that may be images; every folder is entered once, whatever links lead to it."""

    def skip(path: Path, reason: str) -> None:
        skipped.append(Skipped(_name(path, root), reason))

    try:
        about = folder.stat()
        entries = _entries(folder)
    except OSError as error:
        return skip(folder, f"cannot be read ({error.strerror or error})")
    if (about.st_dev, about.st_ino) in seen:
        return skip(folder, "is a link to a folder that was read already")
    seen.add((about.st_dev, about.st_ino))
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith("."):
            skip(path, "is hidden")
            continue
        try:
            mode = entry.stat().st_mode  # of what a link leads to
        except OSError as error:
            skip(path, f"cannot be read ({error.strerror})")
            continue
        if stat.S_ISDIR(mode):
            yield from _walk(path, root, seen, skipped)
        elif not stat.S_ISREG(mode):
            skip(path, "is not a regular file")
        elif path.suffix.lower() not in SUFFIXES:
            skip(path, f"does not end in {', '.join(SUFFIXES)}")
        else:
            yield path
    return None


def _refuse_case(root: Path, names: set[str]) -> None:
    known: dict[str, str] = {}
    for name in sorted(names):
        if (other := known.setdefault(name.casefold(), name)) != name:
            raise ValueError(f"`data` (={root}) must not hold classes that differ in case only, got {other} and {name}")


def _usable(
    root: Path, files: Sequence[tuple[str, str, Path]], skipped: list[Skipped]
) -> dict[tuple[str, str], list[ImageFile]]:
    """By class and part, the images among the files (part, class, path) that can be decoded and are no copies."""
    usable: dict[tuple[str, str], list[ImageFile]] = {}
    taken: dict[str, str] = {}
    with quiet_pillow(), ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        inspected = watched(pool.map(inspect, (path for *_, path in files)), "checking images", len(files))
        for (part, name, path), found in zip(files, inspected, strict=True):
            inside = str(path.relative_to(root))
            if isinstance(found, str):
                skipped.append(Skipped(printable(inside), found))
            elif found.checksum in taken:
                skipped.append(Skipped(printable(inside), f"is a copy of {taken[found.checksum]}"))
            else:
                taken[found.checksum] = printable(inside)
                usable.setdefault((name, part), []).append(replace(found, name=inside))
    return usable


def inspect(path: Path) -> ImageFile | str:
    """What is known of an image without its place in the folder, or why it cannot be used.

    The header is read first, and only an image of bearable size is decoded. Of a JPEG an eighth of the size is enough
    to meet all of its bytes.
    """
    pillow = import_pillow()
    try:
        refuse_pipes(path)
        with path.open("rb") as file, pillow.open(file, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                return _too_large(f"{width}×{height}")
            grey = image.mode in GREY_MODES
            if image.getexif().get(ORIENTATION) in SIDEWAYS:
                width, height = height, width
            image.draft(None, (max(1, width // 8), max(1, height // 8)))
            image.load()
            file.seek(0)
            checksum = hashlib.file_digest(file, "blake2b").hexdigest()
        return ImageFile("", -1, (height, width), grey, checksum)
    except pillow.DecompressionBombError:  # from twice Pillow's own limit on, before the size is known here
        return _too_large("more")
    except pillow.UnidentifiedImageError:
        return f"is not an image ({', '.join(FORMATS)})"
    except Exception as error:  # Pillow raises whatever a damaged file makes its parsers stumble over
        if isinstance(error, OSError) and error.strerror:  # the system's, not Pillow's
            return f"cannot be read ({error.strerror})"
        return f"is broken ({' '.join(str(error).split()) or type(error).__name__})"


def _too_large(size: str) -> str:
    return f"is too large ({size} pixels, at most {MOST_PIXELS:,})"


def divide(
    images: list[ImageFile], name: str, val: float, test: float, *, seed: tuple[int, ...]
) -> dict[str, list[ImageFile]]:
    """The images of a class, or all, at random: at least one to each part that is asked for."""
    tested = max(1, round(test * len(images)))
    validated = max(1, round(val * len(images))) if val else 0
    if len(images) <= tested + validated:
        raise ValueError(
            f"`data` must hold at least {tested + validated + 1} images{' of every class' if name else ''} to divide "
            f"them, got {len(images)}{f' of class {name}' if name else ''}"
        )
    order = np.argsort(raw_stream(len(images), *seed), kind="stable").tolist()
    chosen = {"test": order[:tested], "val": order[tested : tested + validated], "train": order[tested + validated :]}
    return {part: [images[index] for index in sorted(indices)] for part, indices in chosen.items()}


def _name(path: Path, root: Path) -> str:
    return printable(str(path.relative_to(root)))


def printable(name: str) -> str:
    """A file's name as text: bytes that are no UTF-8 are written out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
