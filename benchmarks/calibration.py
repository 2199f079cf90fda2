"""What a trained network loses when it is converted, and what brings it back: calibration, fine-tuning.

    python benchmarks/calibration.py --parts corrections,fine_tuning,few_images [--networks resnet7-bn] [--seeds 0,1]
                                     [--rate 0.01] [--device cpu] [--out FILE]

Small networks are trained on 7,000 of the digits in the package and tested on 2,000 others. Then they are converted,
and corrected with 1,000 further digits without their labels. `fine_tuning` trains the plain network, the converted and
the calibrated one for one more epoch at scale 1 and tests at seven scales. `few_images` calibrates on 1, 2, 4, … of the
further digits.
"""

import argparse
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

import torch
from layers import Part, Row, run_parts
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from scaleconv import DEFAULT_SCALES, calibrate, convert
from scaleconv.data import embedded_digits, make_scaled
from scaleconv.metrics.summary import interval
from scaleconv.models.resnet import ResidualBlock
from scaleconv.table import Table

Examples = tuple[Tensor, Tensor]  # images and labels
SCALES = (0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0)
STAGES = {"resnet7": (8, 16, 32), "resnet13": (8, 16, 32), "resnet19": (8, 16, 32), "resnet18": (8, 16, 24, 32)}
BLOCKS = {"resnet7": 1, "resnet13": 2, "resnet19": 3, "resnet18": 2}  # of each stage


def make_network(name: str, seed: int) -> nn.Sequential:
    """A 3×3 convolution, stages of blocks, the mean over all positions, ten classes; `-bn` has BatchNorm."""
    torch.manual_seed(seed)
    shape, _, norm = name.partition("-")
    before = STAGES[shape][0]
    layers: list[nn.Module] = [nn.Conv2d(1, before, 3, 1, 1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
    for stage, width in enumerate(STAGES[shape]):
        for block in range(BLOCKS[shape]):
            layers.append(ResidualBlock(before, width, 2 if stage and not block else 1))
            before = width
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))
    if norm:
        return network
    for module in list(network.modules()):
        for key, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, key, nn.Identity())
            elif isinstance(child, nn.Conv2d):
                nn.init.kaiming_normal_(child.weight).data.mul_(0.3 if key == "conv2" else 1)  # the second begins small
                child.bias = nn.Parameter(torch.zeros(child.out_channels))
    return network


def load_parts(device: str, scale: float = 1.0, canvas: int = 28) -> tuple[Examples, Tensor, Examples]:
    """Digits of one scale: for training, images without labels, and for the test."""
    digits = embedded_digits()
    images = digits.images.float().div(255).unsqueeze(1)
    if (scale, canvas) != (1.0, 28):
        factors = torch.full((len(digits),), scale, dtype=torch.float64)
        images = make_scaled(digits.images, factors, canvas, truncate="allow")
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    images, labels = (images - 0.13)[order].to(device), digits.labels[order].to(device)  # the mean of a pixel
    return (images[:7000], labels[:7000]), images[7000:8000], (images[8000:], labels[8000:])


def train(network: nn.Module, examples: Examples, epochs: int, rate: float, seed: int, adam: bool = False) -> nn.Module:
    """One cycle of SGD, or of AdamW for networks without BatchNorm."""
    images, labels = examples
    random, steps = torch.Generator().manual_seed(seed), len(images) // 64
    optimiser: torch.optim.Optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.05)
    if not adam:
        optimiser = torch.optim.SGD(network.parameters(), rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, epochs * steps)
    network.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(images), generator=random).to(images.device).split(64)[:steps]:
            optimiser.zero_grad()
            F.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            rates.step()
    return network.eval()


def train_plain(name: str, seed: int, examples: Examples) -> nn.Module:
    network, adam = make_network(name, seed).to(examples[0].device), not name.endswith("-bn")
    return train(network, examples, 4, 0.004 if adam else 0.05, seed, adam)


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """In percent."""
    right = [
        network(some).argmax(1) == expected for some, expected in zip(images.split(250), labels.split(250), strict=True)
    ]
    return round(100 * float(torch.cat(right).double().mean()), 2)


def estimate_batch_norm(network: nn.Module, images: Tensor) -> nn.Module:
    """BatchNorm's statistics anew, as is usually done: the baseline."""
    update_bn(images.split(100), network)
    return network.eval()


def convert_all(network: nn.Module) -> nn.Module:
    """As in the paper: every layer, at six scales."""
    return convert(network, include="*", scales=DEFAULT_SCALES)


Corrections = dict[str, Callable[[nn.Module, Tensor], nn.Module]]  # of a plain network, with images without labels
CORRECTIONS: Corrections = {
    "plain": lambda network, _: network,
    "converted": lambda network, _: convert_all(network),
    "BatchNorm re-estimated": lambda network, images: estimate_batch_norm(convert_all(network), images),
    "statistics matched": lambda network, images: calibrate(convert_all(network), images, steps=0),
    "calibrated": lambda network, images: calibrate(convert_all(network), images),
}
FEW_IMAGES: Corrections = {name: CORRECTIONS[name] for name in ("plain", "converted")} | {
    str(count): lambda network, images, count=count: calibrate(convert_all(network), images[:count])
    for count in (1, 2, 4, 16, 64, 250, 1000)
}


def measure_corrections(corrections: Corrections, name: str, seed: int, asked: argparse.Namespace) -> Iterator[Row]:
    training, unlabelled, test = load_parts(asked.device)
    plain = train_plain(name, seed, training)
    for how, correct in corrections.items():
        if how != "BatchNorm re-estimated" or name.endswith("-bn"):
            yield {"how": how, "scale": 1.0, "accuracy": accuracy(correct(plain, unlabelled), *test)}


def measure_fine_tuning(name: str, seed: int, asked: argparse.Namespace) -> Iterator[Row]:
    """On a canvas of 40 pixels, so that a digit of twice its size is not cut off."""
    training, unlabelled, _ = load_parts(asked.device, canvas=40)
    tests = {scale: load_parts(asked.device, scale, 40)[2] for scale in SCALES}
    plain = train_plain(name, seed, training)
    begun = {
        "plain": copy.deepcopy(plain),
        "converted": convert_all(plain),
        "calibrated": calibrate(convert_all(plain), unlabelled),
    }
    for how, network in begun.items():
        yield from ({"how": how, "scale": scale, "accuracy": accuracy(network, *test)} for scale, test in tests.items())
        train(network, training, 1, asked.rate, seed)
        tuned = f"{how}, fine-tuned at {asked.rate:g}"
        yield from (
            {"how": tuned, "scale": scale, "accuracy": accuracy(network, *test)} for scale, test in tests.items()
        )


def mean_table(rows: Sequence[Row]) -> Table:
    """A row for each network, the mean over its seeds; and what the calibrated one has lost."""
    hows = list(dict.fromkeys(row["how"] for row in rows))
    lost, shown = ("lost",) if "calibrated" in hows else (), []
    for name in dict.fromkeys(row["network"] for row in rows):
        found = {how: find(rows, network=name, how=how) for how in hows}
        cells = [f"{fmean(each):.1f}" if each else "–" for each in found.values()]
        cells += [f"{fmean(found['plain']) - fmean(found['calibrated']):.1f}"] if lost else []
        shown.append((name, str(len(found["plain"])), *cells))
    return Table("", ("network", "n", *hows, *lost), shown)


def fine_tuning_table(rows: Sequence[Row]) -> Table:
    """For each network and rate the accuracy of the plain one, and how much more the converted ones have, by scale.

    Mean ± standard deviation over seeds; of the differences, which are paired by seed, the mean and its 95 % interval.
    """
    shown = []
    for name, plain in dict.fromkeys((row["network"], row["how"]) for row in rows if row["how"].startswith("plain, ")):
        for kind in ("plain", "converted", "calibrated"):
            how, cells = kind + plain.removeprefix("plain"), []
            for scale in SCALES:
                base, found = (find(rows, network=name, how=each, scale=scale) for each in (plain, how))
                if kind == "plain":
                    cells.append(f"{fmean(found):.1f}" + (f" ± {stdev(found):.1f}" if len(found) > 1 else ""))
                elif found:
                    gains = [ours - theirs for ours, theirs in zip(found, base, strict=True)]
                    range_ = interval(gains)
                    text = f"{fmean(gains):+.1f}" + (f" [{range_.low:+.1f}, {range_.high:+.1f}]" if range_ else "")
                    cells.append(text.replace("-", "−"))
            if cells:
                shown.append((name, str(len(base)), how, *cells))
    return Table("", ("network", "n", "", *map(str, SCALES)), shown)


def find(rows: Sequence[Row], **wanted: Any) -> list[float]:
    """Accuracies, in the order of the seeds."""
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return [row["accuracy"] for row in sorted(found, key=lambda row: row["seed"])]


def part(
    measure: Callable[[str, int, argparse.Namespace], Iterator[Row]], table: Callable[[Sequence[Row]], Table]
) -> Part:
    def rows(asked: argparse.Namespace) -> Iterator[Row]:
        for name in asked.networks.split(","):
            for seed in map(int, asked.seeds.split(",")):
                yield from ({"network": name, "seed": seed, **row} for row in measure(name, seed, asked))

    return rows, table


PARTS = {
    "corrections": part(partial(measure_corrections, CORRECTIONS), mean_table),
    "fine_tuning": part(measure_fine_tuning, fine_tuning_table),
    "few_images": part(partial(measure_corrections, FEW_IMAGES), mean_table),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="`images` holds")
    names = ",".join(name + norm for norm in ("-bn", "") for name in STAGES)
    run_parts(__doc__, PARTS, "results/bench/calibration.json", networks=names, seeds="0", rate=0.01)
