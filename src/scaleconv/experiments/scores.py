"""What a trained network gets right, and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.order import Order
from ..models import Classifier
from ..nn import SIConv2d
from ..nn.observe import evaluating, hooked
from ..ops import macs
from ..timing import milliseconds
from .sources import Examples

PIXELS = 28 * 28
BATCH, GPU_BATCH = 100, 5000  # test images of so many pixels at a time; a CPU takes what stays in its cache
TIMINGS = 5


@dataclass(frozen=True)
class Tally:
    """What a network got right of N images, with a label each, or one for each pixel.

    Attributes:
        right: (N,), how many labels of each image were found.
        counted: (N,), how many it has.
        confusion: (K, K), of pixels: how many of each class, by row, were taken for which; else empty.
    """

    right: Tensor
    counted: Tensor
    confusion: Tensor

    def error(self, images: Tensor | None = None) -> float:
        """How many labels were not found, of all images or of some, in percent."""
        chosen = slice(None) if images is None else images
        right, counted = int(self.right[chosen].sum()), int(self.counted[chosen].sum())
        return 100 * (counted - right) / max(1, counted)

    def mean_iou(self) -> float:
        """Intersection over union, the mean over the classes that have pixels, in percent.

        Example:
            >>> confusion = torch.tensor([[6, 2, 0], [1, 3, 0], [0, 0, 0]])
            >>> round(Tally(torch.empty(0), torch.empty(0), confusion).mean_iou(), 2)  # of 6/9 and 3/6
            58.33
        """
        confusion = self.confusion.double()
        hits, labelled = confusion.diag(), confusion.sum(1)
        union = labelled + confusion.sum(0) - hits
        return 100 * float((hits / union)[labelled > 0].mean())


def score(
    network: nn.Module,
    examples: Examples,
    *,
    uncounted: int | None = None,
    workers: int = 0,
    fabric: Any = None,
    precision: str = "float32",
) -> Tally:
    """Which labels a network finds.

    Args:
        network: takes images in [0, 1].
        examples: with their labels.
        uncounted: the label of pixels that are not counted.
        workers: processes that decode images.
        fabric: of the processes that share the work; None for this one alone.
        precision: `bfloat16` for mixed precision.
    """
    right, counted = torch.zeros(2, len(examples), dtype=torch.long)
    classes = len(getattr(network, "classes", ()))
    confusion = torch.zeros(classes * classes, dtype=torch.long)
    device = next(network.parameters()).device
    order = _test_order(examples, device)
    if fabric is not None:
        order = order[fabric.global_rank :: fabric.world_size]
    with evaluating(network), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        for indices, (images, labels) in zip(order, examples.batches(order, workers), strict=True):
            predicted = network(images).argmax(1)
            counts = torch.ones_like(labels, dtype=torch.bool) if uncounted is None else labels != uncounted
            found = (predicted == labels) & counts
            right[indices] = found.flatten(1).sum(1).cpu() if found.dim() > 1 else found.long().cpu()
            counted[indices] = counts.flatten(1).sum(1).cpu() if counts.dim() > 1 else counts.long().cpu()
            if labels.dim() > 1 and classes:
                pairs = (labels * classes + predicted)[counts]
                confusion += torch.bincount(pairs, minlength=classes * classes).cpu()
    if fabric is not None and fabric.world_size > 1:
        right, counted, confusion = (
            fabric.all_reduce(part.to(device), reduce_op="sum").cpu() for part in (right, counted, confusion)
        )
    return Tally(right, counted, confusion.view(classes, classes))


def _test_order(examples: Examples, device: torch.device) -> list[list[int]]:
    """Batches of images of one size, in the order of the set."""
    groups: dict[tuple[int, int], list[int]] = {}
    for index, size in enumerate(examples.sizes):
        groups.setdefault(size, []).append(index)
    batches = []
    for (height, width), own in groups.items():
        most = max(1, (GPU_BATCH if device.type == "cuda" else BATCH) * PIXELS // (height * width))
        batches += [own[start : start + most] for start in range(0, len(own), most)]
    return batches


def measure_cost(network: Classifier, examples: Examples, batch: int) -> dict[str, float]:
    """What a network costs on a batch of images.

    Returns:
        Of one image: `macs`, multiply-accumulate operations; `kept_mib`, what a training step keeps for the backward
        pass; `ms`, the time to classify it, in the batch, the median of 5. On a GPU also `peak_mib`, the most memory
        that was taken since the run began.
    """
    indices = Order(examples.sizes, batch, 0, 0).of_pass(1)[0].tolist()
    images, labels = next(iter(examples.batches([indices])))
    device = images.device
    with evaluating(network):
        operations = count_macs(network, images[:1])
        network(images)  # warm
        times = [milliseconds(lambda: network(images), str(device)) for _ in range(TIMINGS)]
    cost = {
        "macs": float(operations),
        "kept_mib": kept_bytes(network, images, torch.zeros_like(labels)) / 2**20 / len(images),
        "ms": median(times) / len(images),
    }
    if device.type == "cuda":
        cost["peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
    return cost


def count_macs(network: nn.Module, image: Tensor) -> int:
    """Multiply-accumulate operations of convolutions and linear layers, resampling included, for one batch.

    Example:
        >>> count_macs(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5)), torch.rand(1, 1, 4, 4))
        112
    """
    total = 0

    def count(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        if isinstance(layer, SIConv2d):
            settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
            weight = tuple(layer.weight.shape)
            total += macs(given[0].shape, weight, *settings, scales=layer.scales, gpu=given[0].is_cuda).planned.total
        elif isinstance(layer, nn.Conv2d):
            total += output.numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.Linear):
            total += output.numel() * layer.in_features

    with hooked([layer.register_forward_hook(count) for layer in network.modules()]), torch.no_grad():
        network(image)
    return total


def kept_bytes(network: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Bytes that a training step's forward pass keeps for its backward pass, parameters not counted."""
    kept: dict[int, int] = {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    modes = {module: module.training for module in network.modules()}
    needed = {parameter: parameter.requires_grad for parameter in network.parameters()}
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.train().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = F.cross_entropy(network(images), labels)
    del loss
    network.load_state_dict(state)  # running means and the like
    for module, training in modes.items():
        module.training = training
    for parameter, need in needed.items():
        parameter.requires_grad_(need)
    return sum(kept.values())


def by_size(tally: Tally, sides: Sequence[int], groups: int = 4) -> tuple[list[float], list[float]]:
    """Accuracy in percent of images divided by the length of their shorter side into up to so many groups.

    Returns:
        The median side of each group, and its accuracy.
    """
    lengths = torch.tensor(sides, dtype=torch.float64)
    edges = lengths.quantile(torch.linspace(0, 1, groups + 1, dtype=torch.float64)).unique()
    group = torch.bucketize(lengths, edges[1:-1])
    chosen = [group == index for index in group.unique()]
    return [float(lengths[own].median()) for own in chosen], [100 - tally.error(own) for own in chosen]
