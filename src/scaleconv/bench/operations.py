"""What the layer costs with other scales: convolutions by the paper's formula, operations by count, and time.

A sweep varies the largest of six scales, or the number of scales up to the same largest one (paper, appendix B). Each
call is evaluated by every method: `direct` is the order in which the paper evaluates the layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..ops import macs
from ..timing import LayerPass, captured, repeated, time_interleaved
from .layer_costs import make_layer
from .shapes import LayerShape

# What is compared; the keys stand where the name of a model stands in other records.
METHODS = {"conv2d": "Conv2d", "formula": "paper's formula", "direct": "direct order", "si_conv2d": "SIConv2d"}
SWEEPS = {"largest": "largest of six scales", "count": "number of scales from 1 to 2"}


@dataclass(frozen=True)
class Layer:
    """A layer to measure; its name goes into file names, and a first layer needs no gradient of its input."""

    name: str
    title: str
    channels: int
    maps: int
    size: int
    kernel: int
    input_grad: bool = True

    @property
    def parameters(self) -> int:
        return self.maps * (self.channels * self.kernel**2 + 1)


def measure_sweeps(
    method: str, layer: Layer, batch: int, sweeps: Mapping[str, Sequence[float]], device: str, repeats: int
) -> dict[str, dict[float, float]]:
    """`operations SWEEP` and, but for the formula, `milliseconds SWEEP`, each by the position in the sweep."""
    found = {}
    for sweep, positions in sweeps.items():
        calls = {float(position): sweep_scales(sweep, position) for position in positions}
        found[f"operations {sweep}"] = {
            x: count_operations(method, layer, batch, scales, device) for x, scales in calls.items()
        }
        if method != "formula":
            found[f"milliseconds {sweep}"] = {
                x: time_pass(method, layer, batch, scales, device, repeats) for x, scales in calls.items()
            }
    return found


def sweep_scales(sweep: str, position: float) -> tuple[float, ...]:
    """The scales L^(k/3), k = −2 … 3, for the largest L, or n scales from 1 to 2 in equal ratios, for the count n."""
    if sweep == "largest":
        return tuple(position ** (k / 3) for k in range(-2, 4))
    return tuple(2 ** (k / max(1, position - 1)) for k in range(int(position)))


def formula(scales: Sequence[float]) -> float:
    """Convolutions of a layer in units of one, by the paper's appendix B: L² (1 − rⁿ) / (1 − r), r = 1 / step².

    Example:
        >>> round(formula([2 ** (k / 3) for k in range(-2, 4)]), 1)
        10.1
    """
    if len(scales) == 1:
        return scales[0] ** 2
    step = (max(scales) / min(scales)) ** (1 / (len(scales) - 1))
    r = step**-2.0
    return float(max(scales) ** 2 * (1 - r ** len(scales)) / (1 - r))


def count_operations(method: str, layer: Layer, batch: int, scales: Sequence[float], device: str) -> float:
    """Multiply-accumulates as the device does them, resampling counted, in units of the plain convolution."""
    if method == "formula":
        return formula(scales)
    images = (batch, layer.channels, layer.size, layer.size)
    weight = (layer.maps, layer.channels, layer.kernel, layer.kernel)
    cost = macs(images, weight, scales=scales, gpu=not device.startswith("cpu"))
    counted = {"conv2d": cost.conv2d, "direct": cost.direct, "si_conv2d": cost.planned}[method]
    return counted.total / cost.conv2d.total


def time_pass(method: str, layer: Layer, batch: int, scales: Sequence[float], device: str, repeats: int) -> float:
    """Milliseconds of forward and backward, the median; on a GPU the replay of a CUDA graph, without the host."""
    sizes = (layer.channels, layer.maps, layer.size, layer.kernel)
    shape = LayerShape(*sizes, padding=0, batch=batch, cpu_batch=batch)
    module = make_layer("si" if method == "si_conv2d" else method, shape, tuple(scales))
    images = torch.rand(batch, layer.channels, layer.size, layer.size, device=device)
    both = LayerPass(module.to(device), images, input_grad=layer.input_grad)
    workload = repeated(captured(both) if images.is_cuda else both)
    return time_interleaved({method: workload}, device, repeats)[method].median_ms
