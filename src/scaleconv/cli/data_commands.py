"""The commands `scaleconv data …`: the digits on this machine, and sets made of them."""

import shlex
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .wording import say_next

if TYPE_CHECKING:
    from scaleconv.data import Digits, ScaledSet

data_app = typer.Typer(no_args_is_help=True, help="The digits, and what is made of them.", rich_markup_mode=None)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Directory of the IDX files, gzipped or not. Default: $SCALECONV_DATA, then the user's cache."),
]
DatasetName = Annotated[str, typer.Option(help="mnist, fashion, or embedded (the 10,000 test digits in the package).")]
Part = Annotated[str | None, typer.Option(help="train or test. Default: train where there is one.")]
Scales = Annotated[
    str, typer.Option(help="Distribution: uniform:LOW,HIGH, normal:MEAN,STD,LOW,HIGH, fixed:SCALE or list:SCALE,…")
]
Size = Annotated[int, typer.Option(help="Height and width of the canvas in pixels.")]
Seed = Annotated[int, typer.Option(help="Seed of the random scales.")]
Interpolation = Annotated[str, typer.Option(help="bilinear or bicubic.")]
Antialias = Annotated[
    bool, typer.Option("--antialias", help="Average pixels where a digit shrinks, instead of skipping some.")
]
Truncate = Annotated[str, typer.Option(help="error: refuse a canvas that cuts off foreground. allow: cut it off.")]


@data_app.command(epilog="Example: scaleconv data info")
def info(
    path: Annotated[
        Path | None, typer.Argument(help="A set written by `data make`. Default: the digits themselves.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """List the digits on this machine, and check their checksums."""
    if path is None:
        _print_digits(data_dir)
    else:
        _print_set(path)


@data_app.command(epilog="Example: scaleconv data make set.safetensors --scales uniform:0.5,1")
def make(
    path: Annotated[Path, typer.Argument(help="File to write, ending in .safetensors.")],
    dataset: DatasetName = "embedded",
    part: Part = None,
    data_dir: DataDir = None,
    scales: Scales = "uniform:0.3,1",
    size: Size = 28,
    seed: Seed = 0,
    interpolation: Interpolation = "bilinear",
    antialias: Antialias = False,
    truncate: Truncate = "error",
) -> None:
    """Write a set of scaled digits, with its parameters and checksum."""
    from scaleconv.data import load_digits, make_set, parse_scales, write_set
    from scaleconv.data.sets import check_set_path

    check_set_path(path)
    distribution = parse_scales(scales)
    digits = load_digits(dataset, part, data_dir=data_dir)
    made = make_set(
        digits, distribution, size, seed=seed, interpolation=interpolation, antialias=antialias, truncate=truncate
    )
    checksum = write_set(made, path)
    typer.echo(f"{path}: {len(made)} digits on {size}×{size}, scales {distribution}, seed {seed}, MD5 {checksum}")
    _say_what_is_cut(digits, made)
    say_next(f"scaleconv data info {shlex.quote(str(path))}, which checks it; scaleconv.data.read_set reads it")


@data_app.command(epilog="Example: scaleconv data export digits --count 1000 --size 40")
def export(
    path: Annotated[Path, typer.Argument(help="Folder to write; it must not be there yet.")],
    dataset: DatasetName = "embedded",
    part: Part = None,
    data_dir: DataDir = None,
    count: Annotated[int | None, typer.Option(help="Write the first digits only. Default: all.")] = None,
    task: Annotated[
        str, typer.Option(help="classification, or segmentation: as many scenes of several digits, with masks.")
    ] = "classification",
    scales: Scales = "fixed:1",
    size: Size = 28,
    seed: Seed = 0,
    truncate: Truncate = "error",
) -> None:
    """Write digits as PNGs by class, or scenes with masks.

    `train --data` and `compare --data` read such a folder.
    """
    from scaleconv.data import load_digits, make_scenes, make_set, parse_scales, write_folder, write_scenes
    from scaleconv.data.folders import check_new_folder
    from scaleconv.data.loading import check_task

    check_task(task)
    if task == "segmentation" and truncate != "error":
        raise ValueError(f"`truncate` must be error for segmentation, got {truncate!r}: a scene holds whole digits")
    check_new_folder(path)
    distribution = parse_scales(scales)
    digits = load_digits(dataset, part, data_dir=data_dir).first(count)
    if task == "segmentation":
        write_scenes(make_scenes(digits.images, digits.labels, distribution, len(digits), size, seed=seed), path)
    else:
        made = make_set(digits, distribution, size, seed=seed, truncate=truncate)
        write_folder(made, path)
        _say_what_is_cut(digits, made)
    things = "scenes of digits" if task == "segmentation" else "digits"
    typer.echo(f"{path}: {len(digits)} {things} on {size}×{size}, scales {distribution}")
    how = "--task segmentation" if task == "segmentation" else "--model convnet"
    say_next(f"scaleconv compare --data {shlex.quote(str(path))} {how}, to see which network to take")


@data_app.command(epilog="Example: scaleconv data cifar10 cifar/test --data-dir cifar-10-batches-bin --part test")
def cifar10(
    path: Annotated[Path, typer.Argument(help="Folder to write; it must not be there yet.")],
    data_dir: Annotated[Path, typer.Option(help="Directory of the binary batches, data_batch_1.bin and so on.")],
    part: Annotated[str, typer.Option(help="train or test.")] = "train",
    count: Annotated[int | None, typer.Option(help="Write the first images only. Default: all.")] = None,
) -> None:
    """Write the images of CIFAR-10 as PNGs by class."""
    from scaleconv.data import read_cifar10, write_images
    from scaleconv.data.datasets import CIFAR_CLASSES as CLASSES
    from scaleconv.data.folders import check_new_folder

    check_new_folder(path)
    images, labels = read_cifar10(data_dir, part, count)
    write_images(images, labels, CLASSES, path)
    typer.echo(f"{path}: {len(images)} images of {len(CLASSES)} classes")
    say_next(f"the other part beside it, then scaleconv compare --data {shlex.quote(str(path.parent))}")


@data_app.command(epilog="Example: scaleconv data preview sheet.png --scales list:0.3,0.6,1")
def preview(
    path: Annotated[Path, typer.Argument(help="Picture to write, ending in .png.")] = Path("mnist-scale.png"),
    dataset: DatasetName = "embedded",
    part: Part = None,
    data_dir: DataDir = None,
    scales: Scales = "uniform:0.3,1",
    size: Size = 28,
    seed: Seed = 0,
    interpolation: Interpolation = "bilinear",
    antialias: Antialias = False,
    truncate: Truncate = "error",
) -> None:
    """Draw digits at several scales, each labelled with its scale."""
    from scaleconv.data import load_digits, parse_scales, write_preview
    from scaleconv.data.files import check_writable

    check_writable(path)
    digits, distribution = load_digits(dataset, part, data_dir=data_dir), parse_scales(scales)
    write_preview(
        digits, path, distribution, size, seed=seed, interpolation=interpolation, antialias=antialias, truncate=truncate
    )
    typer.echo(path)


def _say_what_is_cut(digits: "Digits", made: "ScaledSet") -> None:
    from scaleconv.data import cut_off

    if cut := int((cut_off(digits.images, made.scales, made.parameters.size) > 0).sum()):
        typer.echo(f"the foreground of {cut} digits is cut off", err=True)


def _print_digits(data_dir: Path | None) -> None:
    from scaleconv.data.datasets import take_inventory
    from scaleconv.table import Table, terminal_width

    rows, missing = [], defaultdict(list)
    for dataset, part, found in take_inventory(data_dir):
        if isinstance(found, str):
            missing[found].append(f"{dataset} {part}")
            continue
        counts = found.labels.bincount(minlength=10)
        classes = f"{int(counts.min())} … {int(counts.max())}"
        rows.append((dataset, part, str(len(found)), classes, "agree", found.source))
    header = ("data set", "part", "digits", "per class", "checksums", "from")
    typer.echo(Table("", header, rows, labels=2).text(terminal_width()))
    for reason, parts in missing.items():
        typer.echo(f"{', '.join(parts)}: {reason}")


def _print_set(path: Path) -> None:
    from scaleconv.data import read_set

    scaled = read_set(path)
    low, high = float(scaled.scales.min()), float(scaled.scales.max())
    typer.echo(f"{path}: {len(scaled)} digits, scales {low:.4f} … {high:.4f}, MD5 {scaled.checksum()} (agrees)")
    for name, value in scaled.parameters.as_dict().items():
        typer.echo(f"  {name}: {', '.join(map(str, value)) if isinstance(value, tuple) else value}")
