"""Ways to make a trained network scale-invariant before it is fine-tuned: factories for `scaleconv compare --plan`.

The network is ResNet-20 (He et al., 2016) with the weights for CIFAR-10 in the file that the environment variable
`SCALECONV_WEIGHTS` names. Each factory changes its last stage in another way, and examples/plans/trained.toml compares
them. `calibrated` takes images from the folder `SCALECONV_IMAGES`.
"""

import copy
import os
from collections.abc import Callable, Sequence
from functools import cache

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from scaleconv import LATE_SCALES as SCALES
from scaleconv import SIConv2d, calibrate, convert
from scaleconv.data import load_folder
from scaleconv.environment import choose_device
from scaleconv.ops.geometry import competing_order
from scaleconv.ops.levels import Aligned, align, level_size, pool_levels, rescale

LATE = "layer3.*"
RISE = 117  # training steps: half of three epochs of 10,000 images in batches of 128
SPEED = 10  # of a gate: Adam moves a number by at most its learning rate in a step, too little to come from 0 to 1
IMAGES, FITTED = 1000, 300  # for `calibrate`, and its steps at most


class Block(nn.Module):
    """Two convolutions, and a shortcut that takes every second pixel and pads channels with zeros."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, (channels - in_channels) // 2
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, input: Tensor) -> Tensor:
        body = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(input)))))
        shortcut = F.pad(input[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more, self.more))
        return F.relu(body + shortcut)


def stage(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    first = Block(in_channels, channels, stride)
    return nn.Sequential(first, Block(channels, channels, 1), Block(channels, channels, 1))


class ResNet20(nn.Module):
    """Takes (N, 3, H, W), normalised, to one number for each class."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = stage(16, 16, 1), stage(16, 32, 2), stage(32, 64, 2)
        self.linear = nn.Linear(64, num_classes)

    def forward(self, input: Tensor) -> Tensor:
        maps = F.relu(self.bn1(self.conv1(input)))
        maps = self.layer3(self.layer2(self.layer1(maps)))
        logits: Tensor = self.linear(maps.mean((2, 3)))
        return logits


def plain(num_classes: int) -> ResNet20:
    """The trained network."""
    network = ResNet20(num_classes)
    network.load_state_dict(load_file(named_by("SCALECONV_WEIGHTS")))
    return network


def named_by(variable: str) -> str:
    if not (path := os.environ.get(variable)):
        raise ValueError(f"`{variable}` must be set in the environment, to a path, got none")
    return path


def calibrated(num_classes: int) -> nn.Module:
    """Converted, and fitted to the answers of the trained network."""
    network = convert(plain(num_classes), include=LATE, scales=SCALES)
    network.load_state_dict(calibrated_state(num_classes, named_by("SCALECONV_WEIGHTS"), named_by("SCALECONV_IMAGES")))
    return network


@cache  # all seeds start from the same state
def calibrated_state(num_classes: int, weights: str, images: str) -> dict[str, Tensor]:
    data = load_folder(images)
    mean, std = (torch.tensor(moment).view(-1, 1, 1) for moment in data.moments)
    chosen = range(0, len(data.train), -(-len(data.train) // IMAGES))  # of all classes
    ((pixels, _),) = data.train.batches([chosen])
    device = choose_device("auto")  # minutes on a CPU
    network = convert(plain(num_classes), include=LATE, scales=SCALES).to(device)
    calibrate(network, ((pixels / 255 - mean) / std).to(device), steps=FITTED, inplace=True, quiet=True)
    return network.cpu().state_dict()


class Blend(nn.Module):
    """conv(x) + g · (si_conv(x) − conv(x)) of the same weights; g starts at 0 and is learned.

    Args:
        layer: si_conv.
        gates: how many numbers g has: 1, or one for each output channel.
    """

    def __init__(self, layer: SIConv2d, gates: int = 1) -> None:
        super().__init__()
        self.layer, self.gate = layer, nn.Parameter(torch.zeros(gates))

    def share(self) -> Tensor:
        return SPEED * self.gate.view(-1, 1, 1)

    def forward(self, input: Tensor) -> Tensor:
        layer = self.layer
        ordinary = F.conv2d(input, layer.weight, layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups)
        return torch.lerp(ordinary, layer(input), self.share().to(ordinary.dtype))


class AnnealedBlend(Blend):
    """The same, but g is not learned: it rises from 0 to 1 in the first `steps` calls in training, and stays there."""

    def __init__(self, layer: SIConv2d, steps: int = RISE) -> None:
        super().__init__(layer)
        del self.gate
        self.steps = steps
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def share(self) -> Tensor:
        share = (self.calls / self.steps).clamp(max=1)
        if self.training:
            self.calls += 1  # on the device, so that a CUDA graph can capture it
        return share


def blended(num_classes: int, make: Callable[[SIConv2d], nn.Module]) -> nn.Module:
    network = convert(plain(num_classes), include=LATE, scales=SCALES)
    for name, layer in list(network.named_modules()):
        if isinstance(layer, SIConv2d):
            network.set_submodule(name, make(layer))
    return network


def gated(num_classes: int) -> nn.Module:
    """Each layer learns how much of its convolution is scale-invariant."""
    return blended(num_classes, Blend)


def gated_channels(num_classes: int) -> nn.Module:
    """Each channel does."""
    return blended(num_classes, lambda layer: Blend(layer, layer.out_channels))


def annealed(num_classes: int) -> nn.Module:
    """Training leads from the trained network to the converted one."""
    return blended(num_classes, AnnealedBlend)


class LevelNorms(nn.Module):
    """A scale-invariant convolution whose response to each level has a BatchNorm of its own before the maximum.

    Args:
        conv: as trained; its first output is centred at the first pixel of the image.
        norm: behind it; those of all levels start as copies.
        scales: the factors; 1 among them.
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.Module, scales: Sequence[float] = SCALES) -> None:
        super().__init__()
        self.conv, self.scales = conv, tuple(scales)
        self.norms = nn.ModuleList([copy.deepcopy(norm) for _ in scales])

    def forward(self, input: Tensor) -> Tensor:
        image, responses = input.shape[2:], list[Aligned]()
        for place in competing_order(self.scales.index(1.0), len(self.scales)):  # scale 1 first
            scale, norm = self.scales[place], self.norms[place]
            size = level_size(image, scale)
            response = norm(self.conv(input if scale == 1 else rescale(input, scale, size)))
            output = responses[0].values.shape[2:] if responses else response.shape[2:]
            aligned = align(response, scale, output, image, size, self.conv.stride, offset=(0, 0))
            responses.append(Aligned(place, *aligned))
        return pool_levels(responses, "max", len(responses))[0]


def level_norms(num_classes: int) -> nn.Module:
    """The maximum is of normalised responses, which no level leads by its statistics alone."""
    network = plain(num_classes)
    for block in network.layer3:
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2")):
            setattr(block, conv, LevelNorms(getattr(block, conv), getattr(block, norm)))
            setattr(block, norm, nn.Identity())
    return network
