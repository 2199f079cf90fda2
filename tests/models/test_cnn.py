"""The networks of the later literature: their sizes, and the cropped layer against the resizing it stands for."""

import pytest
import torch
from msgspec.structs import asdict
from torch.nn import functional as F

from helpers.loops import random
from helpers.methods import make_method
from scaleconv.experiments.methods import apply_method
from scaleconv.experiments.settings import NetworkSettings, TrainingSettings
from scaleconv.models import CroppedSIConv2d, Images, make_network
from scaleconv.models.cnn import GlobalMaxCNN

LATER = ("cnn", "cropped_cnn", "si_cnn", "pyramid_cnn", "deep_cnn", "pyramid_deep_cnn")
MAPS = (32, 63, 95)
SCALES = (0.3, 0.45, 0.67, 1.0, 1.49, 2.23, 3.33)


@pytest.mark.parametrize("upsample", [1, 2])
@pytest.mark.parametrize("name", ["cnn", "cropped_cnn", "si_cnn", "pyramid_cnn"])
def test_every_form_of_the_literatures_network_has_its_494549_parameters(name, upsample):
    network = make_method(name, 28, maps=MAPS, scales=(1, 2), upsample=upsample)
    assert sum(parameter.numel() for parameter in network.parameters()) == 494_549


@pytest.mark.parametrize("name", LATER)
def test_upsampling_doubles_the_pixels_of_the_images(name):
    images = random(2, 1, 28, 28, seed=1, dtype=torch.float32)
    torch.manual_seed(0)
    network = make_method(name, 28, maps=(3, 4, 5), scales=(1, 2), upsample=2).eval()
    torch.manual_seed(0)
    large = make_method(name, 56, maps=(3, 4, 5), scales=(1, 2)).eval()
    doubled = images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(network(images), large(doubled))
    assert network(images).shape == (2, 10)


@pytest.mark.parametrize(("levels", "sizes"), [("input", [28]), ("own", [56, 112])])
def test_a_pyramid_of_the_input_s_size_shows_larger_images_in_windows_of_the_size_it_was_made_for(levels, sizes):
    network = make_method("pyramid_deep_cnn", 28, maps=(3, 4, 5), scales=(0.5, 1), levels=levels).eval()
    seen = []
    network.module.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[2]))
    assert network(random(2, 1, 112, 112, seed=1, dtype=torch.float32)).shape == (2, 10)
    assert sorted(seen) == sizes


@pytest.mark.parametrize("name", ["stir_cnn", "si_stir_cnn", "pyramid_stir_cnn"])
def test_every_form_of_stirs_network_has_its_parameters_and_takes_its_icons(name):
    network, _ = apply_method(name, NetworkSettings(scales=(0.5, 1), levels="own"), TrainingSettings())
    made = make_network(Images((64, 64), 1, 36), **asdict(network))
    assert sum(parameter.numel() for parameter in made.parameters()) == 27_108
    assert made(random(2, 1, 64, 64, seed=1, dtype=torch.float32)).shape == (2, 36)


def test_stirs_network_computes_what_is_written_out_by_hand():
    network = GlobalMaxCNN((3, 4), classes=5, channels=2)
    values, images = network.state_dict(), random(2, 2, 15, 18, seed=1, dtype=torch.float32)
    first = F.conv2d(images, values["conv1.weight"], values["conv1.bias"]).clamp(min=0)
    second = F.conv2d(first, values["conv2.weight"], values["conv2.bias"]).clamp(min=0)
    expected = F.linear(second.flatten(2).max(2).values, values["classifier.weight"], values["classifier.bias"])
    torch.testing.assert_close(network(images), expected)


def test_cropped_layers_have_scales_of_their_own():
    network = make_method("cropped_cnn", 28, maps=(3, 4, 5), scales=(1, 2), cropped_scales=(1, 1.5))
    layers = [module for module in network.modules() if isinstance(module, CroppedSIConv2d)]
    assert [layer.scales for layer in layers] == [(1, 1.5)] * 3
    assert CroppedSIConv2d(1, 1, 3, padding=1).scales == SCALES


def resize_and_crop(images, scale):
    """As the re-implementations do it: corners on corners, then the centre of the canvas, or a frame of zeros."""
    if scale == 1:
        return images
    resized = F.interpolate(images, scale_factor=scale, mode="bilinear", align_corners=True)
    missing = images.shape[3] - resized.shape[3]
    before = missing // 2
    return F.pad(resized, (before, missing - before, before, missing - before))


@pytest.mark.parametrize("size", [7, 14, 28])
def test_the_cropped_layer_resizes_crops_and_lets_zeros_compete(size):
    layer = CroppedSIConv2d(2, 3, 7, padding=3, scales=SCALES).double()
    images = random(2, 2, size, size, seed=size)
    levels = [F.conv2d(resize_and_crop(images, s), layer.weight, layer.bias, padding=3) for s in SCALES]
    expected = torch.stack([resize_and_crop(level, 1 / s) for s, level in zip(SCALES, levels, strict=True)]).amax(0)
    torch.testing.assert_close(layer(images), expected, rtol=0, atol=1e-6)


def test_a_padding_that_changes_the_size_is_refused():
    with pytest.raises(ValueError, match=r"`padding` must be half of an odd kernel_size \(=5\), got 1"):
        CroppedSIConv2d(1, 1, 5, padding=1)


@pytest.mark.parametrize("name", ["cnn", "deep_cnn"])
def test_pixels_are_divided_by_the_deviation_that_the_literature_names(name):
    network = make_method(name, 28, maps=(3, 4, 5)).eval()
    images = random(2, 1, 28, 28, seed=1, dtype=torch.float32)
    seen = []
    network.stages.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    network(images)
    torch.testing.assert_close(seen[0], images / 0.2161)
