"""What a trained classifier gets right at every scale of the test images, and what it costs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.augment import rescale
from ..data.loading import ImageSet, Order
from ..metrics.timing import milliseconds
from ..nn import SIConv2d
from ..ops import macs
from .records import Series

TEST_SCALES = (0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0)
BATCH = 128
GROUPS = 4  # of test images by size
TIMINGS = 5
BY_SCALE, BY_SIZE = "accuracy by scale", "accuracy by size"


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """In evaluation mode, without gradients, and back."""
    before = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(before)


def score(
    network: nn.Module,
    images: ImageSet,
    device: str,
    scales: Sequence[float] = (1.0,),
    *,
    amp: bool = False,
    workers: int = 0,
) -> Tensor:
    """Which images are classified correctly when all are rescaled about their centre: (S, N) bool.

    An image stays on a canvas of its size: enlarged, it loses its margin; shrunk, it repeats its edge.
    """
    correct = torch.zeros(len(scales), len(images), dtype=torch.bool)
    order = Order(images.sizes, BATCH, seed=0).epoch(0)
    with evaluating(network):
        for indices, batch in zip(order, images.batches(order, workers), strict=True):
            pixels = batch.to(device).float() / 255
            labels = images.labels[indices].to(device)
            for row, scale in enumerate(scales):
                with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=amp):
                    logits = network(rescale(pixels, scale))
                correct[row, indices] = (logits.argmax(1) == labels).cpu()
    return correct


def error_percent(correct: Tensor) -> float:
    """How many of the images are wrong, in percent."""
    return 100 * float((~correct).sum()) / len(correct)


def accuracies(correct: Tensor, images: ImageSet) -> dict[str, Series]:
    """Accuracy in percent at each of `TEST_SCALES`; where images had several sizes, also by size at scale 1.

    Args:
        correct: (S, N), of `score` at `TEST_SCALES`.
        images: the test images, which are divided by the length of their shorter side into up to four groups.
    """
    found = {BY_SCALE: Series(list(TEST_SCALES), [100 - error_percent(row) for row in correct])}
    sides = torch.tensor([min(file.size) for file in images.files])
    if len(sides.unique()) > 1:
        at_one = correct[TEST_SCALES.index(1.0)]
        edges = sides.double().quantile(torch.linspace(0, 1, GROUPS + 1, dtype=torch.float64)).unique()
        group = torch.bucketize(sides.double(), edges[1:-1])
        groups = [group == index for index in group.unique()]
        middles = [float(sides[own].median()) for own in groups]
        found[BY_SIZE] = Series(middles, [100 - error_percent(at_one[own]) for own in groups])
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

    hooks = [layer.register_forward_hook(count) for layer in network.modules()]
    try:
        with torch.no_grad():
            network(image)
    finally:
        for hook in hooks:
            hook.remove()
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
