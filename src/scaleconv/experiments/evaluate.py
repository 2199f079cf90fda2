"""What a trained network gets right at every scale of the test images, and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.augment import rescale, rescale_masks
from ..data.loading import ImageSet, Order
from ..data.masks import IGNORE
from ..nn import SIConv2d
from ..nn.observe import evaluating, hooked
from ..ops import macs
from ..timing import milliseconds
from .distributed import ALONE, Processes
from .records import Series

TEST_SCALES = (0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0)
BATCH, MASKED_BATCH = 128, 16
GROUPS = 4  # of test images by size
TIMINGS = 5
BY_SCALE, BY_SIZE, IOU_BY_SCALE = "accuracy by scale", "accuracy by size", "mean IoU by scale"


@dataclass(frozen=True)
class Tally:
    """What a network got right: N images at S scales, with a label each, or one for each pixel.

    Attributes:
        right: (S, N), how many labels of each image were found.
        counted: (S, N), how many it has.
        confusion: (S, K, K), of pixels: how many of each class, by row, were taken for which; else empty.
    """

    right: Tensor
    counted: Tensor
    confusion: Tensor

    def error(self, row: int = 0, images: Tensor | None = None) -> float:
        """How many labels were not found at a scale, of all images or of some, in percent."""
        chosen = slice(None) if images is None else images
        right, counted = (int(found[row][chosen].sum()) for found in (self.right, self.counted))
        return 100 * (counted - right) / max(1, counted)

    def mean_iou(self, row: int = 0) -> float:
        """Intersection over union at a scale, the mean over the classes that have pixels, in percent.

        Example:
            >>> confusion = torch.tensor([[[6, 2, 0], [1, 3, 0], [0, 0, 0]]])
            >>> round(Tally(torch.empty(1, 0), torch.empty(1, 0), confusion).mean_iou(), 2)  # of 6/9 and 3/6
            58.33
        """
        confusion = self.confusion[row].double()
        hits, labelled = confusion.diag(), confusion.sum(1)
        union = labelled + confusion.sum(0) - hits
        return 100 * float((hits / union)[labelled > 0].mean())


def score(
    network: nn.Module,
    images: ImageSet,
    device: str,
    scales: Sequence[float] = (1.0,),
    *,
    amp: bool = False,
    workers: int = 0,
    processes: Processes = ALONE,
) -> Tally:
    """Which labels are found when all images are rescaled about their centre.

    An image stays on a canvas of its size: enlarged, it loses its margin; shrunk, it repeats its edge, where its mask
    has no label.
    """
    right, counted = torch.zeros(2, len(scales), len(images), dtype=torch.long)
    classes = images.classes if images.masked else 0
    confusion = torch.zeros(len(scales), classes * classes, dtype=torch.long)
    order = Order(images.sizes, MASKED_BATCH if images.masked else BATCH, seed=0).epoch(0)
    order = order[processes.rank :: processes.size]
    with evaluating(network):
        for indices, (batch, labels) in zip(order, images.batches(order, workers), strict=True):
            pixels, labels = batch.to(device).float() / 255, labels.to(device)
            for row, scale in enumerate(scales):
                with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=amp):
                    predicted = network(rescale(pixels, scale)).argmax(1)
                wanted = rescale_masks(labels, scale).long() if images.masked else labels
                counts = wanted != IGNORE if images.masked else torch.ones_like(wanted, dtype=torch.bool)
                right[row, indices] = ((predicted == wanted) & counts).reshape(len(indices), -1).sum(1).cpu()
                counted[row, indices] = counts.reshape(len(indices), -1).sum(1).cpu()
                if images.masked:
                    pairs = (wanted * classes + predicted)[counts]
                    confusion[row] += torch.bincount(pairs, minlength=classes * classes).cpu()
    for found in (right, counted, confusion):
        processes.add(found)
    return Tally(right, counted, confusion.view(len(scales), classes, classes))


def accuracies(tally: Tally, images: ImageSet) -> dict[str, Series]:
    """Accuracy in percent at each of `TEST_SCALES`, with masks also the mean IoU.

    Where images had several sizes, also the accuracy by size at scale 1.

    Args:
        tally: of `score` at `TEST_SCALES`.
        images: the test images, which are divided by the length of their shorter side into up to four groups.
    """
    rows, scales = range(len(TEST_SCALES)), list(TEST_SCALES)
    found = {BY_SCALE: Series(scales, [100 - tally.error(row) for row in rows])}
    if images.masked:
        found[IOU_BY_SCALE] = Series(scales, [tally.mean_iou(row) for row in rows])
    sides = torch.tensor([min(file.size) for file in images.files])
    if len(sides.unique()) > 1:
        edges = sides.double().quantile(torch.linspace(0, 1, GROUPS + 1, dtype=torch.float64)).unique()
        group = torch.bucketize(sides.double(), edges[1:-1])
        groups = [group == index for index in group.unique()]
        middles = [float(sides[own].median()) for own in groups]
        at_one = TEST_SCALES.index(1.0)
        found[BY_SIZE] = Series(middles, [100 - tally.error(at_one, own) for own in groups])
    return found


def measure_cost(network: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """What the network costs on a batch of images (N, C, H, W) in [0, 1].

    Returns:
        Of one image: `macs`, multiply-accumulate operations; `kept_mib`, what a training step keeps for the backward
        pass; `ms`, the time to classify it, in the batch, the median of 5.
    """
    device = str(images.device)
    with evaluating(network):
        operations = count_macs(network, images[:1])
        network(images)  # warm
        times = [milliseconds(lambda: network(images), device) for _ in range(TIMINGS)]
    return {
        "macs": float(operations),
        "kept_mib": kept_bytes(network, images, labels) / 2**20 / len(images),
        "ms": median(times) / len(images),
    }


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

    before, state = network.training, {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.train()
    with torch.autograd.graph.saved_tensors_hooks(note, _same):
        loss = F.cross_entropy(network(images), labels)
    del loss
    network.load_state_dict(state)  # running means and the like
    network.train(before)
    return sum(kept.values())


def _same(tensor: Any) -> Any:
    return tensor
