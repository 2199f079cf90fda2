"""What a user writes, for `mypy --strict`: in `make test`, and in `make release` against the wheel. Never called."""

from typing import assert_type

import torch
from torch import Tensor, nn

from scaleconv import (
    DEFAULT_SCALES,
    Explanation,
    ScaleInvariant,
    SIConv2d,
    TIConv2d,
    Transform,
    calibrate,
    convert,
    explain,
    macs,
    resize_cache,
    revert,
    rotation,
    scaling,
    si_conv1d,
    si_conv2d,
    si_conv3d,
    ti_conv2d,
)


class Network(nn.Module):
    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.first = SIConv2d(channels, 8, 3, padding="same", scales=DEFAULT_SCALES, antialias=True)
        self.second = TIConv2d(8, 8, (3, 5), stride=2, transforms=(rotation(0), rotation(30), scaling(2)))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.second(torch.relu(self.first(images)))
        return found


def use(images: Tensor, weight: Tensor) -> None:
    network = Network()
    assert_type(network.first.weight, Tensor)
    assert_type(convert(network), Network)
    assert_type(convert(network, include="*", scales=DEFAULT_SCALES), Network)
    assert_type(revert(network), Network)
    assert_type(calibrate(network, images), Network)
    assert_type(si_conv2d(images, weight, scales=(1, 2)), Tensor)
    assert_type(si_conv2d(images, weight, return_winner=True), tuple[Tensor, Tensor])
    assert_type(si_conv1d(images[0], weight[0]), Tensor)
    assert_type(si_conv3d(images, weight, padding=1, return_winner=True), tuple[Tensor, Tensor])
    assert_type(ti_conv2d(images, weight, transforms=[rotation(0), rotation(90)]), Tensor)
    assert_type(explain(network, images), Explanation)
    assert_type(rotation(30), Transform)
    assert_type(macs((1, 3, 28, 28), (8, 3, 3, 3)).planned.total, int)
    resize_cache(2**20)
    invariant: nn.Module = ScaleInvariant(nn.Conv2d(3, 8, 3), scales=(1, 2))
    print(invariant(images))


def misuse(images: Tensor, weight: Tensor) -> None:
    SIConv2d(3, 8)  # type: ignore[call-arg]
    si_conv2d(images, weight, scales="1")  # type: ignore[arg-type]
    convert(3)  # type: ignore[call-overload]
    rotation("30")  # type: ignore[arg-type]
