"""What a trained network loses when it is converted, and what brings it back: calibration, fine-tuning.

    python benchmarks/calibration.py [--networks resnet7-bn,…] [--seeds 0] [--fine-tune | --few] [--rate 0.01]
                                     [--device cpu] [--weights DIR] [--out FILE]

Small networks are trained on 7,000 of the digits in the package and tested on 2,000 others, at scale 1. Then they are
converted, and corrected with 1,000 further digits without their labels. With --fine-tune, the plain network, the
converted and the calibrated one are trained for one more epoch at scale 1, all in the same way, and tested at seven
scales. With --few, the converted network is calibrated on 1, 2, 4, … of the further digits. Results join those that the
file holds.
"""

import argparse
import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scaleconv import calibrate, convert
from scaleconv.data import embedded_digits, make_scaled
from scaleconv.experiments.records import describe_environment
from scaleconv.metrics.summary import interval
from scaleconv.table import Table

TRAINED, UNLABELLED = 7000, 1000  # of the 10,000 digits; the others are for the test
MEAN = 0.13  # of a pixel
EPOCHS, BATCH, DECAY = 4, 64, 5e-4
SCALES = (0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0)
FINE_TUNED = "resnet7-bn"
FEW = (1, 2, 4, 16, 64, 250, 1000)  # images to calibrate on
CANVAS = 40  # so that a digit of twice its size is not cut off


def norm(channels: int, batch_norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut; without BatchNorm the second one begins small."""

    def __init__(self, in_channels: int, channels: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=not batch_norm)
        self.norm1 = norm(channels, batch_norm)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=not batch_norm)
        self.norm2 = norm(channels, batch_norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != channels:
            point = nn.Conv2d(in_channels, channels, 1, stride, bias=not batch_norm)
            self.shortcut = nn.Sequential(point, norm(channels, batch_norm))

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(input)))))
        return F.relu(output + self.shortcut(input))


def make_resnet(blocks: int, widths: tuple[int, ...], batch_norm: bool) -> nn.Sequential:
    """A 3×3 convolution, stages of so many blocks, the mean over all positions, ten classes."""
    before = widths[0]
    layers = [nn.Conv2d(1, before, 3, 1, 1, bias=not batch_norm), norm(before, batch_norm), nn.ReLU()]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(ResidualBlock(before, width, 2 if stage and not block else 1, batch_norm))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


SHAPES = {
    "resnet7": (1, (8, 16, 32)),
    "resnet13": (2, (8, 16, 32)),
    "resnet19": (3, (8, 16, 32)),
    "resnet18": (2, (8, 16, 24, 32)),  # four stages of two blocks
}
NETWORKS = [shape + kind for kind in ("-bn", "") for shape in SHAPES]  # with and without BatchNorm


def make_network(name: str, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    shape, _, kind = name.partition("-")
    network = make_resnet(*SHAPES[shape], batch_norm=kind == "bn")
    if kind != "bn":
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        for layer in network.modules():
            if isinstance(layer, ResidualBlock):
                layer.conv2.weight.data.mul_(0.3)
    return network


def load_parts(
    device: str, scale: float = 1.0, canvas: int = 28
) -> tuple[tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor]]:
    """(images, labels) for training, images without labels, (images, labels) for the test; all digits of one scale."""
    digits = embedded_digits()
    factors = torch.full((len(digits),), scale, dtype=torch.float64)
    images = digits.images.float().div(255).unsqueeze(1)
    if (scale, canvas) != (1.0, 28):
        images = make_scaled(digits.images, factors, canvas, truncate="allow")
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    images, labels = (images - MEAN)[order].to(device), digits.labels[order].to(device)
    end = TRAINED + UNLABELLED
    return (images[:TRAINED], labels[:TRAINED]), images[TRAINED:end], (images[end:], labels[end:])


def train(network: nn.Module, images: Tensor, labels: Tensor, epochs: int, rate: float, seed: int, adam: bool) -> None:
    """One cycle of SGD, or of AdamW for networks without BatchNorm."""
    network.train()
    order = torch.Generator().manual_seed(seed)
    optimiser: torch.optim.Optimizer = torch.optim.SGD(
        network.parameters(), lr=rate, momentum=0.9, weight_decay=DECAY, nesterov=True
    )
    if adam:
        optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.05)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, epochs * (len(images) // BATCH))
    for _ in range(epochs):
        shuffled = torch.randperm(len(images), generator=order).to(images.device)
        for chosen in shuffled.split(BATCH)[: len(images) // BATCH]:
            optimiser.zero_grad()
            F.cross_entropy(network(images[chosen]), labels[chosen]).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            rates.step()
    network.eval()


def trained_network(name: str, seed: int, images: Tensor, labels: Tensor, weights: Path | None) -> nn.Sequential:
    """Trained here, or read from the folder of weights, which keeps it."""
    network, adam = make_network(name, seed).to(images.device), not name.endswith("-bn")
    path = weights / f"{name}-{images.shape[-1]}-{seed}.pt" if weights else None
    if path and path.exists():
        network.load_state_dict(torch.load(path, weights_only=True))
        return network.eval()
    train(network, images, labels, EPOCHS, 0.004 if adam else 0.05, seed, adam)
    if path:
        torch.save(network.state_dict(), path)
    return network


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """In percent."""
    parts = zip(images.split(250), labels.split(250), strict=True)
    return 100 * sum(int((network(some).argmax(1) == right).sum()) for some, right in parts) / len(images)


def estimate_batch_norm(network: nn.Module, images: Tensor) -> nn.Module:
    """BatchNorm's statistics anew, as is usually done: the baseline."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.reset_running_stats()
            layer.momentum = None
    network.train()
    with torch.no_grad():
        for some in images.split(100):
            network(some)
    return network.eval()


CORRECTIONS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "converted": lambda network, _: network,
    "BatchNorm re-estimated": estimate_batch_norm,
    "statistics matched": lambda network, images: calibrate(network, images, steps=0),
    "calibrated": lambda network, images: calibrate(network, images),
}


def measure_corrections(name: str, seed: int, device: str, weights: Path | None) -> list[dict[str, Any]]:
    """The accuracy of one network, plain, converted and corrected."""
    training, unlabelled, test = load_parts(device)
    plain = trained_network(name, seed, *training, weights)
    rows: list[dict[str, Any]] = [_row(name, seed, "plain", 1.0, accuracy(plain, *test), 0.0)]
    for title, correct in CORRECTIONS.items():
        if title == "BatchNorm re-estimated" and not name.endswith("-bn"):
            continue
        start = process_time()
        network = correct(convert(plain), unlabelled)
        rows.append(_row(name, seed, title, 1.0, accuracy(network, *test), process_time() - start))
    return rows


def measure_fine_tuning(name: str, seed: int, device: str, weights: Path | None, rate: float) -> list[dict[str, Any]]:
    """The accuracy at every scale of a network that was fine-tuned at scale 1, plain, converted and calibrated."""
    training, unlabelled, _ = load_parts(device, canvas=CANVAS)
    tests = {scale: load_parts(device, scale, CANVAS)[2] for scale in SCALES}
    plain = trained_network(name, seed, *training, weights)
    converted = convert(plain)
    begun = {"plain": copy.deepcopy(plain), "converted": converted, "calibrated": calibrate(converted, unlabelled)}
    rows = []
    for title, network in begun.items():
        for tuned in (False, True):
            start = process_time()
            if tuned:
                train(network, *training, 1, rate, seed, adam=False)
            seconds = process_time() - start
            label = f"{title}, fine-tuned at {rate:g}" if tuned else title
            rows += [_row(name, seed, label, scale, accuracy(network, *test), seconds) for scale, test in tests.items()]
    return rows


def measure_few(name: str, seed: int, device: str, weights: Path | None) -> list[dict[str, Any]]:
    """The accuracy of one network that was calibrated on few images, and on more."""
    training, unlabelled, test = load_parts(device)
    plain = trained_network(name, seed, *training, weights)
    converted = convert(plain)
    begun = {"plain": plain, "converted": converted}
    rows = [_row(name, seed, how, 1.0, accuracy(each, *test), 0.0) for how, each in begun.items()]
    for count in FEW:
        start = process_time()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`images` holds")
            network = calibrate(converted, unlabelled[:count])
        rows.append(_row(name, seed, str(count), 1.0, accuracy(network, *test), process_time() - start))
    return rows


def _row(network: str, seed: int, how: str, scale: float, percent: float, seconds: float) -> dict[str, Any]:
    print(f"{network:16} seed {seed}  {how:24} scale {scale:4}  {percent:6.2f} %  {seconds:5.0f} s", flush=True)
    return {
        "network": network,
        "seed": seed,
        "how": how,
        "scale": scale,
        "accuracy": round(percent, 2),
        "cpu_seconds": round(seconds, 1),
    }


def correction_table(rows: list[dict[str, Any]]) -> Table:
    """A row for each network, the mean over its seeds."""
    hows = list(dict.fromkeys(row["how"] for row in rows))
    shown = []
    for name in dict.fromkeys(row["network"] for row in rows):
        seeds = sorted({row["seed"] for row in rows if row["network"] == name})
        mean = {how: fmean(found) for how in hows if (found := _accuracies(rows, network=name, how=how))}
        cells = (f"{mean[how]:.1f}" if how in mean else "–" for how in hows)
        shown.append((name, str(len(seeds)), *cells, f"{mean['plain'] - mean['calibrated']:.1f}"))
    return Table("", ("network", "n", *hows, "lost"), shown)


def few_table(rows: list[dict[str, Any]]) -> Table:
    """A row for each network: plain, converted, and calibrated on so many images; the mean over its seeds."""
    hows = list(dict.fromkeys(row["how"] for row in rows))
    shown = []
    for name in dict.fromkeys(row["network"] for row in rows):
        found = [_accuracies(rows, network=name, how=how) for how in hows]
        shown.append((name, str(len(found[0])), *(f"{fmean(each):.1f}" if each else "–" for each in found)))
    return Table("", ("network", "n", *hows), shown)


def fine_tuning_table(rows: list[dict[str, Any]]) -> Table:
    """For each network and rate the accuracy of the plain one, and how much more the converted ones have, by scale.

    Mean ± standard deviation over seeds; of the differences, which are paired by seed, the mean and its 95 % interval.
    """
    shown = []
    names = dict.fromkeys((row["network"], row["how"]) for row in rows if row["how"].startswith("plain, "))
    for name, plain in names:
        tuned = plain.removeprefix("plain")
        for how in (plain, "converted" + tuned, "calibrated" + tuned):
            cells = []
            for scale in SCALES:
                base, found = (_accuracies(rows, network=name, how=each, scale=scale) for each in (plain, how))
                if how == plain:
                    cells.append(f"{fmean(found):.1f}" + (f" ± {stdev(found):.1f}" if len(found) > 1 else ""))
                elif found:
                    cells.append(_gain([ours - theirs for ours, theirs in zip(found, base, strict=True)]))
            if cells:
                shown.append((name, str(len(base)), how, *cells))
    return Table("", ("network", "n", "", *map(str, SCALES)), shown)


def _gain(differences: list[float]) -> str:
    found = interval(differences)
    text = f"{fmean(differences):+.1f}" + (f" [{found.low:+.1f}, {found.high:+.1f}]" if found else "")
    return text.replace("-", "−")


def _accuracies(rows: list[dict[str, Any]], **wanted: Any) -> list[float]:
    """In the order of the seeds."""
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return [row["accuracy"] for row in sorted(found, key=lambda row: row["seed"])]


TABLES = {"corrections": correction_table, "fine_tuning": fine_tuning_table, "few_images": few_table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", help=f"default: all, or {FINE_TUNED} to fine-tune")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--fine-tune", action="store_true", help="fine-tune instead, networks with BatchNorm")
    parser.add_argument("--few", action="store_true", help="calibrate on few images instead")
    parser.add_argument("--rate", type=float, default=0.01, help="largest learning rate of it; training has 0.05")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", type=Path, help="folder that keeps the trained networks")
    parser.add_argument("--out", type=Path, default=Path("results/bench/calibration.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    part, usual = "corrections", NETWORKS
    if arguments.fine_tune or arguments.few:
        part, usual = "fine_tuning" if arguments.fine_tune else "few_images", [FINE_TUNED]
    for name in arguments.networks.split(",") if arguments.networks else usual:
        for seed in map(int, arguments.seeds.split(",")):
            about = (name, seed, arguments.device, arguments.weights)
            if arguments.fine_tune:
                rows = measure_fine_tuning(*about, arguments.rate)
            else:
                rows = (measure_few if arguments.few else measure_corrections)(*about)
            record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
            anew = {(row["network"], row["seed"], row["how"]) for row in rows}
            kept = [row for row in record.get(part, []) if (row["network"], row["seed"], row["how"]) not in anew]
            record |= {"environment": describe_environment(arguments.device), part: kept + rows}
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(TABLES[part](record[part]).markdown())


if __name__ == "__main__":
    main()
