"""The recommendation keeps what wins, drops what does not, and `convert` takes it."""

import numpy as np
import pytest
import torch
from torch import nn

from scaleconv import convert, recommend, scale_usage

SCALES = (0.5, 0.7, 1, 1.4, 2)
IMAGES = torch.rand(4, 2, 14, 14, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return convert(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3)), scales=SCALES)


def test_scales_that_win_less_than_the_least_share_are_dropped():
    model = network()
    shares = scale_usage(model, IMAGES).shares
    advice = recommend(model, IMAGES, least=0.2, repeats=1)
    for name, layer in advice.layers.items():
        assert layer.shares == shares[name]
        assert layer.kept == tuple(scale for scale in SCALES if scale == 1 or shares[name][scale] >= 0.2)
        assert 1 <= len(layer.kept) < len(SCALES)
        assert layer.ms > 0 < layer.kept_ms


def test_scale_one_is_kept_even_if_nothing_else_is():
    assert recommend(network(), IMAGES, least=1, repeats=1).scales == {"0": (1,), "2": (1,)}
    assert recommend(network(), IMAGES, least=0, repeats=1).scales == {"0": SCALES, "2": SCALES}


def test_the_order_of_the_scales_does_not_matter_where_all_answer_alike():
    """On the blank half of an image every level answers by the bias, and the first one listed wins."""
    images = IMAGES.clone()
    images[..., 7:] = 0
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1))
    found = [recommend(convert(plain, scales=order), images, repeats=1) for order in (SCALES, SCALES[::-1])]
    assert found[0].layers["0"].shares == found[1].layers["0"].shares
    assert found[0].layers["0"].shares[1] > 0.3


def test_convert_takes_the_proposal():
    model = network()
    advice = recommend(model, IMAGES, least=0.2, repeats=1)
    cheaper = convert(model, scales=advice.scales)
    assert {name: cheaper.get_submodule(name).scales for name in advice.layers} == advice.scales
    assert model[0].scales == SCALES


def test_table_and_picture_have_the_numbers():
    advice = recommend(network(), IMAGES, least=0.2, repeats=1)
    lines = str(advice).splitlines()
    assert lines[0] == "Scales that win at least 20 % of the outputs of a layer, on 4 images"
    dropped = next(scale for scale in SCALES if scale not in advice.layers["0"].kept)
    assert f"{dropped:.3g} ({100 * advice.layers['0'].shares[dropped]:.1f})" in lines[3]
    assert lines[-1].split()[:2] == ["all", "layers"]
    (axis,) = advice.plot().axes
    assert [bar.get_height() for bar in axis.patches[:2]] == [layer.ms for layer in advice.layers.values()]


def test_numbers_of_numpy_are_numbers():
    advice = recommend(network(), IMAGES, least=np.float32(0.25), repeats=np.int64(1))
    assert advice.scales == recommend(network(), IMAGES, least=0.25, repeats=1).scales


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": nn.ReLU()}, ValueError, r"`model` \(=ReLU\) must hold an SIConv2d"),
        ({"images": None}, TypeError, "`images` must be images .* or an iterable of batches, got NoneType"),
        ({"least": 1.5}, ValueError, "`least` must be from 0 to 1, got 1.5"),
        ({"least": "5 %"}, TypeError, "`least` must be a number, got '5 %'"),
        ({"repeats": 0}, ValueError, "`repeats` must be at least 1, got 0"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        recommend(**{"model": network(), "images": IMAGES, **arguments})
