"""Images that are decoded in a second, beside torchvision's ImageFolder, and images that training takes in a second.

    python benchmarks/loading.py [--device cuda] [--workers 4,16] [--size 224] [--batch 128] [--out FILE]

JPEGs of 500×375 pixels are made in a folder of their own. Both loaders decode them anew in every epoch, bring the
shorter side to the size, crop the middle and stack batches. What training takes is measured by steps on images that are
in memory already: ResNet-18, plain and converted, as `scaleconv train` does them, on a GPU with `--amp` (bfloat16).
"""

import argparse
import importlib
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scaleconv.data import load_folder, loading
from scaleconv.data.decoding import import_pillow
from scaleconv.data.loading import Order
from scaleconv.experiments import FitSettings, NetworkSpec
from scaleconv.experiments.classifier import Classifier
from scaleconv.experiments.records import describe_environment
from scaleconv.experiments.training import Training
from scaleconv.table import Table

SOURCE = (375, 500)  # pixels of a JPEG, as ImageNet has them on average
VARIANTS = ("plain", "converted")
WARM_UP = 2  # steps


def write_jpeg(path: Path, seed: int) -> None:
    """Coarse and fine noise, about 100 kB."""
    pillow = import_pillow()
    random = np.random.default_rng(seed)
    coarse = pillow.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(SOURCE[::-1])
    pixels = np.asarray(coarse).astype(np.float32) + random.normal(0, 12, (*SOURCE, 3))
    pillow.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def write_images(root: Path, images: int) -> None:
    for name in ("a", "b"):
        (root / name).mkdir()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda index: write_jpeg(root / "ab"[index % 2] / f"{index}.jpg", index), range(images)))


def endless(images: int, batch: int) -> Iterator[list[int]]:
    order = Order([(1, 1)] * images, batch, seed=0)
    return (indices for epoch in count(1) for indices in order.epoch(epoch))


def our_batches(root: Path, size: int, batch: int, workers: int) -> Iterator[Any]:
    loading.KEPT_BYTES = 0  # as if there were too many for the memory
    images = load_folder(root, resize=size, val=0.0, test=0.01).train
    return (pixels for pixels, _ in images.batches(endless(len(images), batch), workers))


def torchvision_batches(root: Path, size: int, batch: int, workers: int) -> Iterator[Any]:
    """By ImageFolder and torchvision's transforms, to the same uint8 tensors.

    Raises:
        ImportError, RuntimeError: torchvision is not there, or does not fit the installed PyTorch.
    """
    datasets = importlib.import_module("torchvision.datasets")
    transforms = importlib.import_module("torchvision.transforms")
    steps = [transforms.Resize(size), transforms.CenterCrop(size), transforms.PILToTensor()]
    images = datasets.ImageFolder(str(root), transforms.Compose(steps))
    sampler: Any = endless(len(images), batch)
    loader = torch.utils.data.DataLoader(images, batch_sampler=sampler, num_workers=workers)
    return (pixels for pixels, _ in loader)


LOADERS = {"scaleconv": our_batches, "torchvision": torchvision_batches}


def loading_rate(batches: Iterator[Any], workers: int, seconds: float) -> float:
    """Images in a second, once all that was decoded ahead has been taken."""
    for _ in islice(batches, 3 * workers + 1):
        pass
    images, start = 0, time.perf_counter()
    for pixels in batches:
        images += len(pixels)
        if (passed := time.perf_counter() - start) >= seconds:
            return images / passed
    raise ValueError("`batches` must not end")


def training_rate(variant: str, size: int, batch: int, device: str, seconds: float) -> float:
    """Images in a second that training takes, if they are always there."""
    torch.manual_seed(0)
    network = NetworkSpec("resnet18", variant).make(3, (size, size), 1000)
    classifier = Classifier(network, (0.45,) * 3, (0.25,) * 3, tuple(map(str, range(1000))))
    on_gpu = torch.device(device).type == "cuda"  # a CPU is slower in bfloat16
    training = Training(classifier, FitSettings(batch=batch, amp=on_gpu), steps=1000, device=device)
    images = torch.randint(256, (batch, 3, size, size), dtype=torch.uint8)
    labels, indices = torch.arange(batch) % 1000, list(range(batch))
    for _ in range(WARM_UP):
        training.step(images, labels, 1, indices)
    training.loss.item()  # waits for the device
    steps, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        training.step(images, labels, 1, indices)
        training.loss.item()
        steps += 1
    return steps * batch / passed


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rates, as they are written."""
    record: dict[str, Any] = {
        "environment": describe_environment(arguments.device),
        "settings": {"source": SOURCE, **{key: getattr(arguments, key) for key in ("images", "size", "batch")}},
        "loading": [],
        "training": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_images(root, arguments.images)
        for workers in map(int, arguments.workers.split(",")):
            for name, make in LOADERS.items():
                try:
                    batches = make(root, arguments.size, arguments.batch, workers)
                    rate = loading_rate(batches, workers, arguments.seconds)
                except (ImportError, RuntimeError) as error:
                    print(f"{name} cannot be measured here ({str(error).splitlines()[0]})")
                    continue
                record["loading"].append({"loader": name, "workers": workers, "images_per_second": round(rate, 1)})
    for variant in VARIANTS:
        rate = training_rate(variant, arguments.size, arguments.batch, arguments.device, arguments.seconds)
        record["training"].append({"network": "resnet18", "variant": variant, "images_per_second": round(rate, 1)})
    return record


def make_table(record: dict[str, Any]) -> Table:
    """A row for each loader and number of workers, with its rate as a multiple of what each network takes."""
    taken = {row["variant"]: row["images_per_second"] for row in record["training"]}
    header = ("loader", "workers", "images/s", *(f"× {v} ResNet-18 ({rate:,.0f}/s)" for v, rate in taken.items()))
    rows = [
        (
            row["loader"],
            str(row["workers"]),
            f"{row['images_per_second']:,.0f}",
            *(f"{row['images_per_second'] / rate:.2f}" for rate in taken.values()),
        )
        for row in record["loading"]
    ]
    return Table("", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", default="4,16", help="processes that decode, separated by commas")
    parser.add_argument("--images", type=int, default=512, help="JPEGs in the folder")
    parser.add_argument("--size", type=int, default=224, help="side of the tensors")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--out", type=Path, help="file for the record, such as results/bench/loading.json")
    arguments = parser.parse_args()
    record = measure(arguments)
    print(make_table(record).markdown())
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
