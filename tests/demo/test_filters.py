"""A filter under many transforms: levels and winners of the loops, and known patterns."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from helpers import reference
from scaleconv.demo import filters


def disc(side, radius):
    place = torch.arange(side) - (side - 1) / 2
    return (radius + 0.5 - torch.hypot(place[:, None], place)).clamp(0, 1)  # half of it at the radius


def winner_at_the_centre(found, decode):
    """By its colour there, whatever the brightness."""
    shown = decode(found["winners"])
    colour = torch.tensor(shown[shown.shape[0] // 2, shown.shape[1] // 2]).float()
    assert colour.max() > 0
    known = torch.tensor([list(bytes.fromhex(entry["colour"][1:])) for entry in found["legend"]]).float()
    return found["legend"][int((known / known.norm(dim=1, keepdim=True) @ colour).argmax())]["name"]


def letter(degrees):
    """An L (9, 9), rotated."""
    image = torch.zeros(9, 9)
    image[1:8, 1:3] = image[6:8, 1:7] = 1
    return torch.rot90(image, degrees // 90)


@pytest.mark.parametrize(
    ("by", "patch", "image", "winner"),
    [
        *(
            ("scale", disc(9, 3), disc(65, 3 * s), name)
            for s, name in ((2 ** (-1 / 3), "×1.3"), (1, "×1"), (2, "×0.5"))
        ),
        *(("rotation", letter(0), F.pad(letter(d), [16] * 4), f"{-d % 360}°") for d in (0, 90, 180, 270)),
    ],
)
def test_a_pattern_is_found_by_the_level_that_undoes_its_transform(by, patch, image, winner, decode):
    assert winner_at_the_centre(filters.apply_patch(patch, image, by), decode) == winner


def test_a_patch_responds_by_its_correlation():
    patch = torch.zeros(9, 9)
    patch[4, 4] = 1  # without its mean 80/81 there and −1/81 elsewhere, of norm √(80/81)
    found = filters.apply_patch(patch, F.pad(patch, [20] * 4), "scale")
    assert {level["name"]: level["peak"] for level in found["levels"]}["×1"] == pytest.approx((80 / 81) ** 0.5)


@pytest.mark.parametrize(("name", "by"), [("ConvNet.conv1", "rotation"), ("SI-FCN.conv3", "scale")])
def test_levels_and_winners_of_a_layer_are_those_of_the_loops(pairs, by, name, decode):
    torch.manual_seed(1)
    layer, image = filters.find_layers(pairs)[name], torch.rand(23, 20)
    found = filters.apply_layer(layer, 2, image, by)
    with torch.no_grad():
        features = layer.before((image - image.mean())[None, None]).double().numpy()
    weight = layer.convolution.weight.detach()[2:3].double().numpy()
    bias = np.zeros(1) if layer.convolution.bias is None else layer.convolution.bias.detach()[2:3].numpy()
    call = ((1, 1), [(weight.shape[-1] // 2,) * 2] * 2, (1, 1), 1)
    matrices = [transform.matrix for transform in filters.TRANSFORMS[by].values()]
    aligned = reference.ti_conv2d(features, weight, bias, *call, matrices, "bilinear", "zeros")[:, 0, 0]
    assert found["channels"] == weight.shape[1]
    shares = np.bincount(aligned.argmax(0).ravel(), minlength=len(matrices)) / aligned[0].size
    assert [entry["share"] for entry in found["legend"]] == pytest.approx(shares, abs=1e-6)
    alone = reference.convolve(features[0], weight, bias, *call)
    for kind, expected in (("plain", alone), ("invariant", aligned.max(0))):
        red = decode(found[kind]["image"]).astype(int)[..., [0, 2]] @ [1, -1]  # more red than blue above 0
        assert ((red > 20) <= (expected > 0)).all()
        assert ((red < -20) <= (expected < 0)).all()
        assert np.abs(red).max() > 20
        assert found[kind]["peak"] == pytest.approx(expected.max(), rel=1e-4)
    for shown, matrix in zip(found["levels"], matrices, strict=True):
        level = reference.transform(features[0], matrix, "bilinear", "zeros")
        assert decode(shown["image"]).shape[:2] == level.shape[1:]
        assert shown["peak"] == pytest.approx(reference.convolve(level, weight, bias, *call).max(), rel=1e-4)


def test_a_gallery_shows_each_filter_with_white_at_zero(pairs, decode):
    layer = filters.find_layers(pairs)["SI-FCN.conv2"]
    shown = layer.gallery()
    assert len(shown) == layer.filters
    for picture, weight in zip(shown, layer.convolution.weight.detach().mean(1), strict=True):
        red = torch.tensor(decode(picture)[..., [0, 2]].astype(int)) @ torch.tensor([1, -1])
        clear = weight.abs() > 0.1 * weight.abs().max()
        assert torch.equal((red > 0)[clear], (weight > 0)[clear])
