"""Winner maps and shares are those of the layers' own calls."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import SIConv2d, convert, explain, recommend, scale_usage, si_conv2d, winners
from scaleconv.drawing import scale_colours
from scaleconv.nn.observe import winner_of

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
    model = convert(network(), include="*", scales=SCALES).eval()
    found = winners(model, IMAGES)
    for name, index in expected_winners(model).items():
        assert torch.equal(found.maps[name], torch.tensor(SCALES)[index.long()])
        assert len(found.maps[name].unique()) == 3


def test_shares_are_those_of_all_outputs_in_all_batches():
    model = convert(network(), include="*", scales=SCALES).eval()
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


def test_a_network_in_training_is_looked_at_in_evaluation_mode():
    """By the running statistics, which are far from those of the images; so other scales win behind them."""
    model = convert(network(), include="*", scales=SCALES)
    model[1].running_mean.fill_(0.4)
    model[1].running_var.fill_(9.0)
    model.train()
    found, usage = winners(model, IMAGES), scale_usage(model, IMAGES)
    before = [index.clone() for index in expected_winners(model.eval()).values()]
    for index, name in zip(before, ("0", "3"), strict=True):
        assert torch.equal(found.maps[name], torch.tensor(SCALES)[index.long()])
        expected = [float((index == k).double().mean()) for k in range(3)]
        assert list(usage.shares[name].values()) == pytest.approx(expected)
    model.train()
    assert not torch.equal(expected_winners(model)["3"], before[1])


def half_constant(value):
    images = IMAGES.clone()
    images[..., 6:] = value
    return images


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [0.0, 0.3, -2.1])
def test_where_all_levels_respond_alike_scale_one_has_won(value, dtype):
    """The layer gives such a tie to the scale listed first; and where the constant is not 0, rounding decides."""
    layer = convert(network()[0], scales=(0.5, 1.7, 1, 1.2)).to(dtype)
    images = torch.full((2, 2, 15, 14), value, dtype=dtype)
    assert set(winner_of(layer, images).unique().tolist()) == {2}
    assert {scale for scale, share in scale_usage(layer, images).shares[""].items() if share} == {1}
    assert {scale for scale, share in recommend(layer, images, repeats=1).layers[""].shares.items() if share} == {1}
    assert winners(layer, images).maps[""].unique().tolist() == [1]
    assert explain(layer, images[0]).layers[""].winning_scale.unique().tolist() == [1]


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_where_a_level_responds_more_than_scale_one_it_has_won(value):
    scales, images = (0.5, 1.7, 1), half_constant(value).double()
    layer = convert(network()[0], scales=scales).double()
    output, winner = layer(images, return_winner=True)
    plain = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="reflect"), layer.weight, layer.bias)
    tied = output - plain < 1e-12
    assert 0.2 < tied.double().mean() < 0.8
    assert torch.equal(winner_of(layer, images), torch.where(tied, 2, winner))
    assert layer.scales == scales


def test_a_win_by_a_thousandth_counts():
    """A filter of ones and an image that is larger by a thousandth below the middle: scales see it differently."""
    layer = SIConv2d(1, 1, 3, bias=False, scales=(0.5, 1))
    nn.init.ones_(layer.weight)
    image = torch.ones(1, 1, 16, 16)
    image[..., 8:, :] += 1e-3
    assert 0 < scale_usage(layer, image).shares[""][0.5] < 0.5


def test_winners_of_single_images_without_a_batch_are_found_too():
    """Inside a network, a layer may be called with (C, H, W)."""

    class OneByOne(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = convert(network()[0], scales=SCALES)

        def forward(self, images):
            return torch.stack([self.conv(image) for image in images])

    model = OneByOne()
    assert scale_usage(model, IMAGES).shares["conv"] == scale_usage(model.conv, IMAGES).shares[""]
    view, batched = (explain(each, IMAGES[0]).layers[name] for each, name in ((model, "conv"), (model.conv, "")))
    assert torch.equal(view.output, batched.output)
    assert torch.equal(view.winner, batched.winner)


def test_the_table_names_layers_and_scales():
    model = convert(network(), scales={"0": (1, 2), "3": (1, 0.5)})
    lines = str(scale_usage(model, IMAGES)).splitlines()
    assert lines[0] == "Outputs won by each scale, percent, on 3 images"
    assert lines[1].split() == ["layer", "0.5", "1", "2"]
    assert lines[3].split()[:2] == ["0", "–"]
    assert lines[4].split()[3] == "–"


def test_pictures_have_a_panel_for_each_layer():
    model = convert(network(), include="*", scales=SCALES)
    figure = winners(model, IMAGES).plot(image=2)
    assert [axis.get_title() for axis in figure.axes[:3]] == ["image", "0", "3"]
    (bars,) = scale_usage(model, IMAGES).plot().axes
    assert [text.get_text() for text in bars.get_xticklabels()] == ["0", "3"]
    tops = [max(bar.get_y() + bar.get_height() for bar in bars.patches if bar.get_x() + 0.4 == k) for k in (0, 1)]
    assert tops == pytest.approx([100, 100])
    shares = scale_usage(model, IMAGES).shares
    drawn = [bar.get_height() for bar in bars.patches]
    assert drawn == pytest.approx([100 * shares[name][scale] for scale in sorted(SCALES) for name in ("0", "3")])
    assert bars.get_ylabel() == "outputs won (%)"
    assert [text.get_text() for text in bars.get_legend().get_texts()] == ["1.7", "1", "0.5"]
    assert [bar.get_facecolor() for bar in bars.patches[::2]] == scale_colours(sorted(SCALES))


def test_the_picture_is_that_of_the_image_asked_for():
    found = winners(convert(network(), include="*", scales=SCALES), IMAGES)
    image, first, *_ = found.plot(image=2).axes
    grey = IMAGES[2].mean(0) - IMAGES[2].min()
    torch.testing.assert_close(
        torch.tensor(image.images[0].get_array()), grey / (IMAGES[2].max() - IMAGES[2].min()), check_dtype=False
    )
    drawn = torch.tensor(first.images[0].get_array())
    torch.testing.assert_close(drawn, found.maps["0"][2].log2().mean(0), check_dtype=False)
    assert not torch.equal(drawn, found.maps["0"][0].log2().mean(0))


def test_without_matplotlib_a_picture_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"figures need matplotlib: pip install 'scaleconv\[experiments\]'"):
        winners(convert(network()), IMAGES).plot()


def test_an_image_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="`image` must be from 0 to 2, got 3"):
        winners(convert(network()), IMAGES).plot(image=3)
    with pytest.raises(TypeError, match=r"`image` must be an integer, got 0\.5"):
        winners(convert(network()), IMAGES).plot(image=0.5)


class Watched(nn.Conv2d):
    """Calls `look` whenever it runs."""

    def forward(self, x):
        self.look()
        return F.conv2d(x, self.weight, self.bias)


def test_looking_for_winners_changes_no_layer_even_for_a_moment():
    """Another thread may be answering with the same network."""
    layer, seen = Watched(2, 4, 3), []
    layer.look = lambda: None
    layer = convert(layer, scales=SCALES)
    layer.look = lambda: seen.append(layer.scales)
    winner_of(layer, IMAGES)
    assert seen == [SCALES, SCALES]
