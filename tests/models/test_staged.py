"""Networks of three stages: their layers, counted by hand, and where their maps are halved."""

import pytest
import torch
from torch import nn

from helpers.loops import random
from scaleconv.models.staged import BLOCKS, bottleneck, convnext, inverted, make_staged


def sizes(network, side):
    """The side of the map behind each stage."""
    found, maps = [], network.stem(torch.rand(1, 3, side, side))
    for stage in network.stages:
        maps = stage(maps)
        found.append((maps.shape[1], maps.shape[2]))
    return found


@pytest.mark.parametrize("name", BLOCKS)
def test_the_second_and_the_third_stage_halve_the_map(name):
    network = make_staged(BLOCKS[name], (8, 16, 24), (1, 2, 1)).eval()
    assert sizes(network, 32) == [(8, 32), (16, 16), (24, 8)]
    assert [len(stage) for stage in network.stages] == [1, 2, 1]


def test_a_resnet_of_one_block_a_stage_has_seven_convolutions_of_three_by_three():
    network = make_staged(BLOCKS["resnet"], (48, 96, 192), (1, 1, 1))
    kernels = [m.kernel_size[0] for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert kernels.count(3) == 7
    convolutions = 9 * (3 * 48 + 2 * 48 * 48 + 48 * 96 + 96 * 96 + 96 * 192 + 192 * 192) + 48 * 96 + 96 * 192
    norms = 2 * (48 + 2 * 48 + 3 * 96 + 3 * 192)
    assert sum(p.numel() for p in network.parameters()) == convolutions + norms + 10 * 192 + 10


def test_blocks_have_the_convolutions_of_their_papers():
    def layers(block):
        return [
            (m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0], m.groups)
            for m in block.modules()
            if isinstance(m, nn.Conv2d)
        ]

    projection = (8, 16, 1, 2, 1)
    assert sorted(layers(bottleneck(8, 16, 2))) == sorted(
        [(8, 4, 1, 1, 1), (4, 4, 3, 2, 1), (4, 16, 1, 1, 1), projection]
    )
    assert layers(inverted(8, 16, 2)) == [(8, 32, 1, 1, 1), (32, 32, 3, 2, 32), (32, 16, 1, 1, 1)]
    assert layers(convnext(8, 16, 2)) == [(8, 16, 2, 2, 1), (16, 16, 7, 1, 16), (16, 64, 1, 1, 1), (64, 16, 1, 1, 1)]
    assert layers(convnext(8, 8, 1)) == [(8, 8, 7, 1, 8), (8, 32, 1, 1, 1), (32, 8, 1, 1, 1)]


@pytest.mark.parametrize("block", [inverted, convnext, bottleneck])
def test_where_the_size_stays_the_input_is_added(block):
    made, images = block(8, 8, 1).eval(), random(2, 8, 6, 5, seed=1, dtype=torch.float32)
    residual = made[0] if isinstance(made, nn.Sequential) else made
    with torch.no_grad():
        expected = images + residual.body(images)
    assert torch.equal(made(images), expected.relu() if block is bottleneck else expected)
