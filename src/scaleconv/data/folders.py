"""What a folder of images holds: which files, with which labels or masks, what is wrong with some, and its parts.

    photos/cat/1.jpg         photos/dog/2.png         a folder for each class; divided here, every class alike
    photos/images/1.jpg      photos/masks/1.png       a mask for each image, paired by name, whatever the ending
    photos/train/cat/1.jpg   photos/test/cat/2.png    divided already, with or without photos/val; masks alike
    photos/sizes.csv                                  how large what the images show is, where that is known

Every file is decoded once before anything else happens, so that a broken one is found now and not in the third hour of
training. What cannot be used is left out and named; a folder that cannot be used is refused. Here folders of digits and
scenes are written, too.
"""

import csv
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import inf, nan
from pathlib import Path

import numpy as np
from torch import Tensor

from .decoding import Size, UnusableImageError, checksum, decode_mask, import_pillow, inspect, printable, quiet_pillow
from .files import atomic_path, check_writable
from .progress import watched
from .rescale import IGNORE
from .scales import raw_stream
from .scenes import Scenes
from .sets import ScaledSet

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
MASK_SUFFIXES = (".png", ".bmp")  # JPEG changes numbers, and WebP knows colours only
SIZES = "sizes.csv"
PARTS = ("test", "val", "train")  # of two copies, the one in the earlier part is kept
THREADS = 8  # that decode at once; Pillow releases the GIL
PURPOSE = 2  # of the random stream that divides a folder


@dataclass(frozen=True)
class ImageFile:
    """An image that can be used."""

    name: str  # its path inside the folder
    label: int  # index of its class; −1 where a mask has the classes
    size: Size  # (height, width), upright
    grey: bool  # whether it has no colour
    checksum: str  # of its bytes, and of those of its mask
    mask: str = ""  # path of its mask inside the folder; empty where images have none
    shown: float | None = None  # size of what a test image shows, in pixels; None where the folder does not say


@dataclass(frozen=True)
class Skipped:
    """A file, or a folder, that is left out, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


@dataclass(frozen=True)
class ImageFolder:
    """What a folder holds."""

    root: Path  # the folder
    classes: tuple[str, ...]  # names, in the order of the labels
    train: tuple[ImageFile, ...]  # by class and name
    val: tuple[ImageFile, ...]  # may be empty
    test: tuple[ImageFile, ...]
    skipped: tuple[Skipped, ...]  # all that is left out

    @property
    def images(self) -> tuple[ImageFile, ...]:
        return (*self.train, *self.val, *self.test)

    @property
    def masked(self) -> bool:
        """Whether every image has a mask, in place of a class."""
        return bool(self.train[0].mask)

    def fingerprint(self) -> str:
        """SHA-256 of everything a result may depend on: names, bytes, labels, parts and sizes of all images."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for part in (self.train, self.val, self.test):
            digest.update(b"part")
            for image in part:
                shown = "" if image.shown is None else f" {image.shown}"
                digest.update(f"{image.name!a} {image.label} {image.checksum}{shown}\n".encode())
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


@dataclass(frozen=True)
class Candidate:
    """A file that may be an image of a part and a class, and the one that may be its mask."""

    part: str  # train, val or test; empty where parts are to be drawn
    label: str
    path: Path
    mask: Path | None = None


def read_folder(root: str | os.PathLike[str], *, val: float = 0.1, test: float = 0.1, seed: int = 0) -> ImageFolder:
    """Find, check and divide the images of a folder with a folder for each class.

    Where the only folders are train and test or val, or all three, they are the parts; without test, val is what is
    tested on. Otherwise every folder is a class, and each class is divided at random. PNG, JPEG, BMP and WebP are read,
    also from folders inside a class; of an animation, the first frame.

    Left out and named are: files with another ending; hidden files; broken and unreadable ones; images of more than 67
    megapixels, by their header; byte-by-byte copies of a file that was taken already, in any part or class (test comes
    before val, val before train); links that lead in a circle; files outside of every class; and classes without an
    image.

    Args:
        root: the folder.
        val, test: shares of each class where the folder is not divided already; each part gets at least one image,
            unless `val` is 0.
        seed: of the division.

    Raises:
        OSError: the folder cannot be read.
        ValueError: fewer than two classes have images, two classes differ in upper and lower case only, a class has
            no training image, or has too few to be divided; sizes.csv is wrong, or leaves out a test image.
    """
    folder, parts, skipped = _check_folder(root, "a folder for each class", val, test)
    found: list[Candidate] = []
    labels: set[str] = set()
    for part, path in parts.items():
        for entry in _entries(path):
            if entry.is_dir() and not entry.name.startswith("."):
                label = printable(entry.name)
                labels.add(label)
                found += [Candidate(part, label, file) for file in _walk(path / entry.name, SUFFIXES, folder, skipped)]
            elif path / entry.name != folder / SIZES:
                reason = "is hidden" if entry.name.startswith(".") else "lies in no folder of a class"
                skipped.append(Skipped(_inside(path / entry.name, folder), reason))
    return divide_by_class(folder, found, skipped, labels, val=val, test=test, seed=seed)


def divide_by_class(
    folder: Path,
    candidates: Sequence[Candidate],
    skipped: list[Skipped],
    labels: set[str],
    *,
    val: float,
    test: float,
    seed: int,
) -> ImageFolder:
    """Check the images that a reader has found, and divide those that can be used, class by class.

    Args:
        folder: in which they lie.
        candidates: each with its class, and its part, which is empty for all where parts are to be drawn. Of copies,
            the first counts: list those to test on first.
        skipped: what the reader has left out; what cannot be used is added.
        labels: all classes that there should be.
        val, test, seed: as for `read_folder`.
    """
    known: dict[str, str] = {}
    for name in sorted(labels):
        if (other := known.setdefault(name.casefold(), name)) != name:
            got = f"{other} and {name}"
            raise ValueError(f"`data` (={folder}) must not hold classes that differ in case only, got {got}")
    parts = {candidate.part for candidate in candidates}
    if not parts <= set(PARTS) and parts != {""}:
        got = ", ".join(sorted(part or "none" for part in parts))
        raise ValueError(f"`part` must be {', '.join(PARTS)} for each image, or none for all, got {got}")
    usable: dict[tuple[str, str], list[ImageFile]] = {}
    for candidate, image, _ in _usable(folder, candidates, skipped):
        usable.setdefault((candidate.label, candidate.part), []).append(image)
    names = sorted({label for label, _ in usable})
    skipped += [Skipped(name, "is a class without an image that can be used") for name in sorted(labels - set(names))]
    if len(names) < 2:
        got = f"{len(names)} ({', '.join(names)})" if names else "0"
        raise ValueError(f"`data` (={folder}) must hold images of at least 2 classes, got {got}{_first(skipped)}")
    divided: dict[str, list[ImageFile]] = {part: [] for part in PARTS}
    for number, name in enumerate(names):
        own = {part: [replace(image, label=number) for image in usable.get((name, part), [])] for part in ("", *PARTS)}
        if own[""]:
            own = _divide(own[""], f" of class {name}", val, test, seed=(seed, PURPOSE, number))
        if not own["train"]:
            raise ValueError(f"`data` (={folder}) must hold images of every class in train, got none of {name}")
        for part in PARTS:
            divided[part] += own[part]
    return _divided_folder(folder, names, divided, skipped)


def read_masked_images(
    root: str | os.PathLike[str], *, classes: int | None = None, val: float = 0.1, test: float = 0.1, seed: int = 0
) -> ImageFolder:
    """Find, check and divide the images and masks of a folder. A mask is an image of class numbers.

    An image and a mask belong together if their names are the same but for the ending. Images are PNG, JPEG, BMP or
    WebP; masks are PNG or BMP, in grey or with a palette. Left out and named is what `read_folder` leaves out, and
    files without a partner, all but the first of several files with one name, masks in colour, masks of another size
    than their image, and masks without a label.

    Args:
        root: has the folders `images` and `masks`, or such folders in train, test and val.
        classes: how many there are; None for one more than the largest number in the masks.
        val, test: shares of the images where the folder is not divided already; each part gets at least one image,
            unless `val` is 0.
        seed: of the division.

    Raises:
        OSError: a folder cannot be read.
        ValueError: a part has no pair that can be used, there are too few to be divided, or masks hold numbers that are
            no class, or one class only; sizes.csv is wrong, or leaves out a test image.
    """
    if classes is not None and not 2 <= classes <= IGNORE:
        raise ValueError(f"`classes` must lie between 2 and {IGNORE}, got {classes}")
    folder, parts, skipped = _check_folder(root, "the folders images and masks", val, test)
    pairs = [pair for part, path in parts.items() for pair in _pairs(part, path, folder, skipped)]
    divided: dict[str, list[ImageFile]] = {part: [] for part in ("", *PARTS)}
    largest: dict[str, int] = {}
    for candidate, image, number in _usable(folder, pairs, skipped):
        divided[candidate.part].append(image)
        largest[printable(image.mask)] = number
    if not largest:
        raise ValueError(f"`data` (={folder}) must hold an image with a mask, got none{_first(skipped)}")
    count = classes or max(largest.values()) + 1
    if wrong := [name for name, number in largest.items() if number >= (classes or IGNORE)]:
        raise ValueError(
            f"`classes` (={classes or IGNORE}) must be above every number in the masks, got {largest[wrong[0]]} in "
            f"{wrong[0]}; {len(wrong)} of {len(largest)} masks hold such numbers"
        )
    if count < 2:
        raise ValueError(
            f"`data` (={folder}) must hold masks of at least 2 classes, got 0 in every pixel with a label "
            f"({IGNORE} is a pixel without one)"
        )
    if "" in parts:
        divided = _divide(divided[""], "", val, test, seed=(seed, PURPOSE))
    return _divided_folder(folder, [str(number) for number in range(count)], divided, skipped)


def check_shares(val: float, test: float) -> None:
    """Of the images to validate and to test on."""
    for name, share in (("val", val), ("test", test)):
        if not 0 <= share < 1:
            raise ValueError(f"`{name}` must be at least 0 and below 1, got {share}")
    if val + test >= 1 or test == 0:
        raise ValueError(f"`test` (={test}) must be above 0, and with `val` (={val}) below 1")


def write_folder(scaled: ScaledSet, root: str | os.PathLike[str]) -> Path:
    """Write a set of digits as `write_images` does."""
    return write_images((scaled.images * 255).round().byte(), scaled.labels, "0123456789", root)


def write_images(images: Tensor, labels: Tensor, classes: Sequence[str], root: str | os.PathLike[str]) -> Path:
    """Write images (N, C, H, W) uint8 as PNGs, `root/CLASS/INDEX.png`, whole or not at all.

    Raises:
        ValueError: there is something of that name already.
    """
    files = (
        (f"{classes[label]}/{index:05}.png", image[0] if len(image) == 1 else image.permute(1, 2, 0))
        for index, (image, label) in enumerate(zip(images, labels.tolist(), strict=True))
    )
    return _write_pngs(watched(files, "writing images", len(images)), root)


def write_scenes(scenes: Scenes, root: str | os.PathLike[str]) -> Path:
    """Write scenes as PNGs, `root/images/INDEX.png` and `root/masks/INDEX.png`, whole or not at all.

    Raises:
        ValueError: there is something of that name already.
    """
    pixels = (scenes.images[:, 0] * 255).round().byte().cpu()
    both = (("images", pixels), ("masks", scenes.labels.byte().cpu()))
    files = ((f"{name}/{index:05}.png", each[index]) for index in range(len(pixels)) for name, each in both)
    return _write_pngs(watched(files, "writing scenes", 2 * len(pixels)), root)


def check_new_folder(root: str | os.PathLike[str]) -> None:
    """Refuse a folder that is there already, or that cannot be made: before the images for it are."""
    if os.path.lexists(root):
        raise ValueError(f"`path` must name a folder that is not there yet, got {root}")
    check_writable(root)


def _write_pngs(files: Iterable[tuple[str, Tensor]], root: str | os.PathLike[str]) -> Path:
    """Write pixels (H, W) or (H, W, 3) under their names inside a new folder."""
    pillow = import_pillow()
    check_new_folder(root)
    with atomic_path(root) as part:
        for name, pixels in files:
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            pillow.fromarray(pixels.numpy()).save(part / name)
    return Path(root)


def _check_folder(
    root: str | os.PathLike[str], content: str, val: float, test: float
) -> tuple[Path, dict[str, Path], list[Skipped]]:
    """The folder, its parts, and a list for what is left out."""
    check_shares(val, test)
    import_pillow()
    folder = Path(root)
    if not folder.is_dir():
        raise NotADirectoryError(f"`data` must be a directory with {content}, got {folder}")
    return folder, _find_parts(folder), []


def _find_parts(root: Path) -> dict[str, Path]:
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


def _walk(
    folder: Path, suffixes: tuple[str, ...], root: Path, skipped: list[Skipped], seen: set[Size] | None = None
) -> Iterator[Path]:
    """The files below a folder that may be images; every folder is entered once, whatever links lead to it."""
    seen = set() if seen is None else seen

    def skip(path: Path, reason: str) -> None:
        skipped.append(Skipped(_inside(path, root), reason))

    try:
        about, entries = folder.stat(), _entries(folder)
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
            yield from _walk(path, suffixes, root, skipped, seen)
        elif not stat.S_ISREG(mode):
            skip(path, "is not a regular file")
        elif path.suffix.lower() not in suffixes:
            skip(path, f"does not end in {', '.join(suffixes)}")
        else:
            yield path
    return None


def _pairs(part: str, folder: Path, root: Path, skipped: list[Skipped]) -> Iterator[Candidate]:
    """The images of a part, each with its mask."""
    if absent := [name for name in ("images", "masks") if not (folder / name).is_dir()]:
        raise NotADirectoryError(
            f"`data` must be a directory with the folders images and masks, got {folder} without {' and '.join(absent)}"
        )
    images, masks = (
        _by_stem(folder / name, suffixes, root, skipped)
        for name, suffixes in (("images", SUFFIXES), ("masks", MASK_SUFFIXES))
    )
    for missing, own, other in (("mask", images, masks), ("image", masks, images)):
        alone = [path for stem, path in own.items() if stem not in other]
        skipped += [Skipped(_inside(path, root), f"has no {missing}") for path in alone]
    for stem in sorted(images.keys() & masks.keys()):
        yield Candidate(part, "", images[stem], masks[stem])


def _by_stem(folder: Path, suffixes: tuple[str, ...], root: Path, skipped: list[Skipped]) -> dict[Path, Path]:
    """The files of a folder that may be images, by their path inside of it without the ending."""
    found: dict[Path, Path] = {}
    for path in _walk(folder, suffixes, root, skipped):
        first = found.setdefault(path.relative_to(folder).with_suffix(""), path)
        if first != path:
            skipped.append(Skipped(_inside(path, root), f"shares its name with {first.name}"))
    return found


def _usable(
    root: Path, candidates: Sequence[Candidate], skipped: list[Skipped]
) -> Iterator[tuple[Candidate, ImageFile, int]]:
    """The candidates that can be decoded and are no copies, and the largest class number in their masks."""
    taken: dict[str, str] = {}
    with quiet_pillow(), ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        inspected = watched(pool.map(partial(_inspected, root), candidates), "checking images", len(candidates))
        for candidate, found in zip(candidates, inspected, strict=True):
            if isinstance(found, Skipped):
                skipped.append(found)
                continue
            image, own_checksum, largest = found
            name = printable(image.name)
            if first := taken.get(own_checksum):
                skipped.append(Skipped(name, "is listed twice" if first == name else f"is a copy of {first}"))
                continue
            taken[own_checksum] = name
            yield candidate, image, largest


def _inspected(root: Path, candidate: Candidate) -> tuple[ImageFile, str, int] | Skipped:
    """An image, the checksum without its mask, and the largest number in the mask; or what cannot be used, and why."""
    path, mask = candidate.path, candidate.mask
    if not path.is_relative_to(root):
        return Skipped(printable(str(path)), "lies outside of the folder")
    try:
        image = ImageFile(str(path.relative_to(root)), -1, *inspect(path))
        if mask is None:
            return image, image.checksum, -1
        path = mask
        numbers, both = decode_mask(mask), image.checksum + checksum(mask)
    except UnusableImageError as error:
        return Skipped(_inside(path, root), str(error))
    if tuple(numbers.shape) != image.size:
        sizes = ["×".join(map(str, size)) for size in (numbers.shape, image.size)]
        return Skipped(_inside(mask, root), f"is {sizes[0]}, its image {sizes[1]}")
    labelled = numbers[numbers != IGNORE]
    if not len(labelled):
        return Skipped(_inside(mask, root), f"has no label ({IGNORE} in every pixel)")
    return replace(image, mask=str(mask.relative_to(root)), checksum=both), image.checksum, int(labelled.max())


def _divide(
    images: list[ImageFile], of_class: str, val: float, test: float, *, seed: tuple[int, ...]
) -> dict[str, list[ImageFile]]:
    """The images of a class, or all, at random: at least one to each part that is asked for."""
    tested = max(1, round(test * len(images)))
    validated = max(1, round(val * len(images))) if val else 0
    if len(images) <= tested + validated:
        raise ValueError(
            f"`data` must hold at least {tested + validated + 1} images{' of every class' if of_class else ''} to "
            f"divide them, got {len(images)}{of_class}"
        )
    order = np.argsort(raw_stream(len(images), *seed), kind="stable").tolist()
    chosen = {"test": order[:tested], "val": order[tested : tested + validated], "train": order[tested + validated :]}
    return {part: [images[index] for index in sorted(indices)] for part, indices in chosen.items()}


def _divided_folder(
    root: Path, classes: Sequence[str], divided: dict[str, list[ImageFile]], skipped: Sequence[Skipped]
) -> ImageFolder:
    for part in ("train", "test"):
        if not divided[part]:
            raise ValueError(f"`data` (={root}) must hold images to {part} on, got none")
    train, val, test = (tuple(divided[part]) for part in ("train", "val", "test"))
    return ImageFolder(root, tuple(classes), train, val, _with_sizes(root / SIZES, test), tuple(skipped))


def _with_sizes(path: Path, test: tuple[ImageFile, ...]) -> tuple[ImageFile, ...]:
    """The test images with the sizes of what they show, if there is a file of them."""
    if not os.path.lexists(path):
        return test
    sizes = _read_sizes(path)
    if absent := [image.name for image in test if image.name not in sizes]:
        raise ValueError(
            f"{path} must have a size for every test image, got none for {printable(absent[0])}; {len(absent)} of "
            f"{len(test)} have none"
        )
    return tuple(replace(image, shown=sizes[image.name]) for image in test)


def _read_sizes(path: Path) -> dict[str, float]:
    """What a file of the columns file and size says, by file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except OSError as error:
        raise type(error)(f"cannot read {path} ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is not valid CSV ({error})") from None
    if header != ["file", "size"]:
        raise ValueError(f"{path} must have the columns file,size, got {','.join(header)[:80]!r}")
    sizes: dict[str, float] = {}
    for row in rows:
        if len(row) != 2 or row[0] in sizes:
            raise ValueError(f"{path} must have one line for each file, its name and size, got {','.join(row)[:80]!r}")
        name, text = row
        try:
            sizes[name] = float(text)
        except ValueError:
            sizes[name] = nan
        if not 0 < sizes[name] < inf:
            raise ValueError(f"`size` must be a number above 0, got {text[:80]!r} for {name[:80]!r} in {path}")
    return sizes


def _first(skipped: Sequence[Skipped]) -> str:
    return f"; {len(skipped)} left out, first: {skipped[0]}" if skipped else ""


def _inside(path: Path, root: Path) -> str:
    return printable(str(path.relative_to(root)))
