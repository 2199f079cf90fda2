"""Controls of the layer against plain convolutions."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers.loops import random
from scaleconv.models.controls import ASPP, add_branches, dilate


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 1, 1), (3, 2, 1), ((5, 3), 1, 1), (3, 1, 2)])
def test_layers_reach_twice_as_far_around_the_same_centres(kernel, stride, dilation):
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (height // 2 * dilation, width // 2 * dilation)
    layer = nn.Conv2d(2, 3, kernel, stride, padding, dilation)
    images = random(2, 2, 15, 12, seed=1, dtype=torch.float32)
    before = layer(images)
    spread = torch.zeros(3, 2, 2 * dilation * (height - 1) + 1, 2 * dilation * (width - 1) + 1)
    spread[:, :, :: 2 * dilation, :: 2 * dilation] = layer.weight.detach()  # the wide filter, written out with its gaps
    wide = F.conv2d(images, spread, layer.bias, stride, (2 * padding[0], 2 * padding[1]))

    branches = nn.Conv2d(2, 3, kernel, stride, padding, dilation)
    branches.load_state_dict(layer.state_dict())
    add_branches([branches])
    dilate([layer])
    torch.testing.assert_close(layer(images), wide)
    torch.testing.assert_close(branches(images), before.maximum(wide))
    assert list(branches.state_dict()) == ["weight", "bias"]


def test_even_kernels_and_padding_in_words_are_refused():
    for layer in (nn.Conv2d(1, 1, 2), nn.Conv2d(1, 1, 3, padding="same")):
        with pytest.raises(
            ValueError, match="`layers` must have kernels of odd size and padding in numbers, got Conv2d"
        ):
            dilate([layer])


def test_aspp_joins_four_views_of_a_map():
    made, maps = ASPP(8).eval(), random(2, 8, 9, 7, seed=1, dtype=torch.float32)
    point, near, far = made.branches
    parts = [
        F.conv2d(maps, point.weight),
        F.conv2d(maps, near.weight, padding=2, dilation=2),
        F.conv2d(maps, far.weight, padding=4, dilation=4),
        F.conv2d(maps.mean((2, 3), keepdim=True), made.mean.weight).expand(-1, -1, 9, 7),
    ]
    expected = made.join(made.norm(torch.cat(parts, 1))).relu()
    torch.testing.assert_close(made(maps), expected)
    assert {part.shape[1] for part in parts} == {2}
