"""The grid of a module is found from the sizes of its answers, or has to be given."""

import copy
import warnings

import pytest
import torch
from torch import nn

from scaleconv import ScaleInvariant, SIConv2d
from scaleconv.nn.grid import find_grids

SCALES = (0.6, 1.0, 1.7)

GRIDS = {
    "convolution": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 0)),
    "large kernel": (nn.Conv2d(2, 3, 7, dilation=2), (1, 6)),
    "more padding than reach": (nn.Conv2d(2, 3, 3, padding=4), (1, -3)),
    "chain": (nn.Sequential(nn.Conv2d(2, 3, 5, 2, 1), nn.MaxPool2d(3, 2), nn.Conv2d(3, 3, 3)), (4, 1 + 2 + 4)),
    "stride of 32": (nn.Sequential(nn.Conv2d(2, 3, 7, 2, 3), *(nn.Conv2d(3, 3, 3, 2, 1) for _ in range(4))), (32, 0)),
    "patches": (nn.Conv2d(2, 3, 16, stride=16), (16, 7.5)),
    "upsampling": (nn.Upsample(scale_factor=2), (0.5, -0.25)),
    "pixel shuffle": (nn.Sequential(nn.Conv2d(2, 9, 3, padding=1), nn.PixelShuffle(3)), (1 / 3, -1 / 3)),
    "down and up": (nn.Sequential(nn.Conv2d(2, 3, 2, 2), nn.ConvTranspose2d(3, 3, 2, 2)), (1, 0)),
    "down and up by 3": (nn.Sequential(nn.Conv2d(2, 3, 3, 3), nn.Upsample(scale_factor=3)), (1, 0)),
    "stride of 63": (nn.Conv2d(2, 3, 3, 63), (63, 1)),
    "stride of 128": (nn.Conv2d(2, 3, 3, 128, 1), (128, 0)),
    "BatchNorm in training": (nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)), (1, 0)),
    "BatchNorm that counts": (nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=None)), (1, 1)),
    "half precision": (nn.Conv2d(2, 3, 3).half(), (1, 1)),
    "the layer": (SIConv2d(2, 3, 3, stride=3), (3, 1)),
}


@pytest.mark.parametrize(("module", "grid"), GRIDS.values(), ids=GRIDS)
def test_the_grid_of_a_module_is_found_from_sizes(module, grid):
    [((down, right), (top, left))] = find_grids(module, 2)
    assert (down, top) == (right, left) == pytest.approx(grid, abs=1e-12)


def test_the_grid_may_differ_between_height_and_width():
    module = nn.Conv2d(2, 3, (3, 6), stride=(1, 4), padding=(2, 1))
    assert find_grids(module, 2) == [((1, 4), (-1, 1.5))]


def test_a_module_that_stands_under_several_names_keeps_its_weights():
    torch.manual_seed(0)
    shared = nn.Conv2d(3, 3, 3, padding=1)
    tied = nn.Conv2d(3, 3, 3, padding=1)
    tied.weight = shared.weight
    module = nn.Sequential(shared, nn.ReLU(), shared, tied)
    module.stem = module[0]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    images = torch.rand(2, 3, 16, 16)
    first, second = (ScaleInvariant(module, (1, 0.5, 2))(images) for _ in range(2))
    assert torch.equal(first, second)
    assert module[0] is module[2] is module.stem
    assert module[3].weight is module[0].weight
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Warns(nn.Module):
    def forward(self, x):
        warnings.warn("as reentrant checkpointing does without gradients", stacklevel=1)
        return x


def test_finding_the_grid_changes_nothing_and_warns_of_nothing():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(), Warns())
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    find_grids(module, 2)  # a warning would be an error
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training


class FixedHead(nn.Module):
    def forward(self, x):
        return nn.functional.linear(x.flatten(1), x.new_zeros(4, 2 * 8 * 8)).view(-1, 4, 1, 1)


UNKNOWN = {
    "a module of one size": (FixedHead(), r"the module takes no image of 1024×1024 pixels"),
    "maps of one size": (nn.AdaptiveAvgPool2d(1), r"the module answers by 1 and 1,"),
    "a stride of 3/2": (nn.Sequential(nn.Upsample(scale_factor=2), nn.MaxPool2d(3)), r"not one for every whole number"),
    "rounding up": (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), r"0 \(=MaxPool2d.*both sides of the image alike"),
    "uneven padding": (nn.ZeroPad2d((0, 1, 0, 1)), r"does not treat both sides"),
    "uneven padding of the width": (nn.ZeroPad2d((0, 1, 1, 1)), r"does not treat both sides"),
    "uneven padding of the height": (nn.ZeroPad2d((1, 1, 2, 1)), r"does not treat both sides"),
    "an even kernel": (nn.Conv2d(2, 2, 4, padding="same"), r"does not treat both sides"),
    "output padding": (nn.ConvTranspose2d(2, 2, 3, 2, output_padding=1), r"does not treat both sides"),
}


@pytest.mark.filterwarnings("ignore:Using padding=.same.:UserWarning")  # of conv2d itself
@pytest.mark.parametrize(("module", "reason"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_grid_that_sizes_do_not_show_has_to_be_given(module, reason):
    with pytest.raises(ValueError, match=f"`stride` and `offset` must be given, .*{reason}"):
        ScaleInvariant(module, SCALES, size="input")(torch.rand(1, 2, 8, 8))


def test_one_level_and_vectors_need_no_grid():
    assert ScaleInvariant(FixedHead(), (1,))(torch.rand(3, 2, 8, 8)).shape == (3, 4, 1, 1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(2 * 8 * 8, 3))
    assert ScaleInvariant(module, SCALES, size="input")(torch.rand(4, 2, 8, 8)).shape == (4, 3)
