"""Winner maps and shares are those of the layers' own calls."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import SIConv2d, convert, scale_usage, si_conv2d, winners

SCALES = (1, 0.5, 1.7)
IMAGES = torch.rand(3, 2, 13, 12, generator=torch.Generator().manual_seed(0))


class PaddedConv(nn.Conv2d):
    """Pads and halves the weight in its own forward."""

    def forward(self, x):
        return F.conv2d(F.pad(x, (2, 0, 1, 1)), self.weight / 2, self.bias)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(4), nn.ReLU(), PaddedConv(4, 5, 3)
    )


def expected_winners(model):
    """Index of the winner in both layers, from `si_conv2d` itself."""
    first, last = model[0], model[3]
    extended = F.pad(IMAGES, (1, 1, 1, 1), mode="reflect")
    output, one = si_conv2d(extended, first.weight, first.bias, scales=SCALES, return_winner=True)
    inner = F.relu(model[1](output))
    _, two = si_conv2d(F.pad(inner, (2, 0, 1, 1)), last.weight / 2, last.bias, scales=SCALES, return_winner=True)
    return {"0": one, "3": two}


def test_maps_hold_the_scale_that_won_at_each_position():
    model = convert(network(), scales=SCALES).eval()
    found = winners(model, IMAGES)
    for name, index in expected_winners(model).items():
        assert torch.equal(found.maps[name], torch.tensor(SCALES)[index.long()])
        assert len(found.maps[name].unique()) == 3


def test_shares_are_those_of_all_outputs_in_all_batches():
    model = convert(network(), scales=SCALES).eval()
    usage = scale_usage(model, [(IMAGES[:1], torch.tensor([7])), [IMAGES[1:], None]])
    assert usage.images == 3
    for name, index in expected_winners(model).items():
        expected = [float((index == k).double().mean()) for k in range(3)]
        assert list(usage.shares[name]) == list(SCALES)
        assert list(usage.shares[name].values()) == pytest.approx(expected)
    assert usage.shares == scale_usage(model, IMAGES).shares


def test_a_pattern_at_twice_the_size_of_the_filter_is_won_by_one_half():
    """A bar as wide as the filter is met at scale 1, one of twice the width at 0.5, half the width at 2."""
    layer = SIConv2d(1, 1, 9, padding=4, bias=False, scales=(0.5, 1, 2))
    bar = (torch.arange(9.0) - 4).abs()
    layer.weight.data = torch.where(bar <= 1, 1.0, -0.5).expand(1, 1, 9, 9).clone()
    columns = (torch.arange(33.0) - 16).abs()
    images = torch.stack([(columns <= half).float().expand(1, 33, 33) for half in (3, 1, 0.5)])
    middle = winners(nn.Sequential(layer), images).maps["0"][:, 0, 16, 16]
    assert middle[:2].tolist() == [0.5, 1]
    assert middle[2] >= 1


def test_modes_and_hooks_are_as_before():
    model = convert(network(), scales=SCALES).train()
    model[1].eval()
    before = model[1].running_mean.clone()
    winners(model, IMAGES)
    scale_usage(model, IMAGES)
    assert [layer.training for layer in model] == [True, False, True, True]
    assert torch.equal(model[1].running_mean, before)
    assert not any(layer._forward_hooks for layer in model)


def test_the_table_names_layers_and_scales():
    model = convert(network(), scales={"0": (1, 2), "3": (1, 0.5)})
    lines = str(scale_usage(model, IMAGES)).splitlines()
    assert lines[0] == "Outputs won by each scale, percent, on 3 images"
    assert lines[1].split() == ["layer", "0.5", "1", "2"]
    assert lines[3].split()[:2] == ["0", "–"]
    assert lines[4].split()[3] == "–"


def test_pictures_have_a_panel_for_each_layer():
    model = convert(network(), scales=SCALES)
    figure = winners(model, IMAGES).plot(image=2)
    assert [axis.get_title() for axis in figure.axes[:3]] == ["image", "0", "3"]
    (bars,) = scale_usage(model, IMAGES).plot().axes
    assert [text.get_text() for text in bars.get_xticklabels()] == ["0", "3"]
    tops = [max(bar.get_y() + bar.get_height() for bar in bars.patches if bar.get_x() + 0.4 == k) for k in (0, 1)]
    assert tops == pytest.approx([100, 100])


def test_without_matplotlib_a_picture_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"`plot` needs matplotlib: pip install 'scaleconv\[experiments\]'"):
        winners(convert(network()), IMAGES).plot()


@pytest.mark.parametrize("function", [winners, scale_usage])
@pytest.mark.parametrize(
    ("model", "images", "error", "message"),
    [
        (3, IMAGES, TypeError, r"`model` must be a torch\.nn\.Module, got int"),
        (network(), IMAGES, ValueError, "`model` .=Sequential. must hold an SIConv2d: convert it first"),
        (convert(network()), IMAGES[0], ValueError, r"`images` must be \(N, C, H, W\), N at least 1, got"),
    ],
    ids=["model", "plain", "shape"],
)
def test_wrong_arguments_are_named(function, model, images, error, message):
    with pytest.raises(error, match=message):
        function(model, images)


def test_nothing_to_count_and_no_such_image_are_refused():
    with pytest.raises(ValueError, match="`images` must hold images, got none"):
        scale_usage(convert(network()), [])
    with pytest.raises(
        TypeError, match=r"`images` must be images \(N, C, H, W\) or an iterable of batches, got NoneType"
    ):
        scale_usage(convert(network()), None)
    with pytest.raises(TypeError, match=r"`images\[1\]` must be a tensor, got str"):
        scale_usage(convert(network()), [IMAGES, "digits"])
    with pytest.raises(ValueError, match="`image` must be from 0 to 2, got 3"):
        winners(convert(network()), IMAGES).plot(image=3)
    with pytest.raises(TypeError, match=r"`image` must be an integer, got 0\.5"):
        winners(convert(network()), IMAGES).plot(image=0.5)
