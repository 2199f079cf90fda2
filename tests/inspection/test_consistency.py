"""Consistency and distance are those of rescaled images, and 1 and 0 for a network that sees no scale."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import check_scale

DISC = ((torch.arange(33.0) - 16)[:, None] ** 2 + (torch.arange(33.0) - 16) ** 2).sqrt()


class Area(nn.Module):
    """Two classes: below and above a number of white pixels."""

    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        area = x.sum((1, 2, 3))
        return torch.stack([torch.full_like(area, self.threshold), area], 1)


class First(nn.Module):
    def forward(self, x):
        return x[:1].mean((2, 3))


def discs(*radii):
    return torch.stack([(radius >= DISC).float()[None] for radius in radii])


def test_a_prediction_that_follows_the_area_changes_where_the_area_passes_the_threshold():
    found = check_scale(Area(200.0), discs(6, 12), scales=(0.4, 1, 1.25))  # areas 113 and 452, times the scale squared
    assert found.consistency == {0.4: 0.5, 1.0: 1.0, 1.25: 1.0}
    areas = torch.stack([torch.tensor([113.0, 452.0]) * scale**2 for scale in (0.4, 1, 1.25)])
    norm = (areas[1].square().sum() + 2 * 200**2).sqrt()
    expected = [float((areas[k] - areas[1]).square().sum().sqrt() / norm) for k in range(3)]
    assert list(found.distance.values()) == pytest.approx(expected, abs=0.03)


def test_a_network_that_sees_one_pixel_in_the_middle_is_invariant():
    class Middle(nn.Module):
        def forward(self, x):
            return x[:, :, 16, 16]

    images = torch.rand(5, 3, 33, 33)
    found = check_scale(Middle(), images)
    assert set(found.consistency.values()) == {1.0}
    assert max(found.distance.values()) < 1e-5


def test_maps_are_compared_with_rescaled_maps():
    pointwise = nn.Conv2d(1, 3, 1)
    smooth = F.interpolate(torch.rand(4, 1, 5, 5), (33, 33), mode="bicubic", align_corners=True)
    found = check_scale(pointwise, smooth, scales=(0.7, 1.5))
    assert max(found.distance.values()) < 1e-5
    assert min(found.consistency.values()) > 0.99
    shifted = nn.Sequential(nn.Conv2d(1, 3, 1), nn.ZeroPad2d((8, 0, 0, 0)))
    assert min(check_scale(shifted, smooth, scales=(0.7, 1.5)).distance.values()) > 0.1


def test_what_surrounds_a_shrunk_image_is_filled():
    images = torch.full((2, 1, 9, 9), 0.3)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(81, 4))
    assert check_scale(flat, images, scales=[0.5], fill=0.3).distance[0.5] < 1e-5
    assert check_scale(flat, images, scales=[0.5]).distance[0.5] > 0.01


def test_the_network_sees_its_images_then_those_rescaled_with_the_fill_around_them():
    """A constant image at scale 0.7: the inner 5×5 pixels keep their value, and all else is the fill.

    The pixels next to these lie within one pixel of the image's edge, where bilinear reading would blend.
    """
    seen = []
    images = torch.full((2, 1, 9, 9), 0.25)
    call = lambda model, batch: seen.append(batch) or model(batch)  # noqa: E731
    check_scale(nn.Flatten(), images, scales=[0.7, 1], fill=-0.75, call=call)
    given, shrunk, same = seen
    inside = torch.zeros(9, 9, dtype=torch.bool)
    inside[2:7, 2:7] = True
    torch.testing.assert_close(shrunk, torch.where(inside, 0.25, -0.75).expand(2, 1, 9, 9))
    assert torch.equal(given, images)
    torch.testing.assert_close(same, images)


def test_the_network_is_looked_at_in_evaluation_mode():
    """At scale 1 nothing moves, unless dropout draws anew or a batch is normalised by itself."""
    network = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(81, 4), nn.BatchNorm1d(4)).train()
    found = check_scale(network, torch.rand(6, 1, 9, 9), scales=[1])
    assert (found.consistency[1], found.distance[1]) == (1, pytest.approx(0, abs=1e-5))


def test_batches_do_not_matter():
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(5))
    images = torch.rand(7, 1, 9, 9)
    network(images)
    one, two = (check_scale(network, images, scales=(0.5, 2), batch=batch) for batch in (3, 7))
    assert one.consistency == two.consistency
    assert list(one.distance.values()) == pytest.approx(list(two.distance.values()))


def test_where_no_position_is_known_there_is_no_number():
    """A map of 2×2 is its own edge: shrunk, it covers none of its four positions."""
    found = check_scale(nn.Conv2d(1, 3, 5, stride=5), torch.rand(2, 1, 10, 10), scales=(0.5, 1))
    assert math.isnan(found.consistency[0.5])
    assert math.isnan(found.distance[0.5])
    assert (found.consistency[1], found.distance[1]) == (1, pytest.approx(0, abs=1e-5))


def test_the_table_and_the_picture_show_both():
    found = check_scale(Area(200.0), discs(6, 12), scales=(0.5, 1))
    assert [line.split()[0] for line in str(found).splitlines()[3:]] == ["0.5", "1"]
    figure = found.plot()
    assert [axis.get_ylabel() for axis in figure.axes] == ["same prediction (%)", "relative distance of the output"]
    shares, distances = figure.axes
    assert list(shares.lines[0].get_ydata()) == [100 * found.consistency[0.5], 100]
    assert list(distances.lines[0].get_ydata()) == [found.distance[0.5], found.distance[1]]
    assert shares.get_ylim() == (0, 102)
    assert distances.get_ylim()[0] == 0 < found.distance[0.5] < distances.get_ylim()[1]
    for axis in figure.axes:
        assert list(axis.lines[0].get_xdata()) == [0.5, 1]
        assert [text.get_text() for text in axis.get_xticklabels()] == ["0.5", "1"]
        assert (axis.get_xscale(), axis.get_xlabel()) == ("log", "scale of the image")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scales": 2}, TypeError, "`scales` must be a sequence of numbers, got 2"),
        ({"scales": ()}, ValueError, "`scales` must hold at least one number, got none"),
        ({"scales": (1, 0)}, ValueError, "`scales` must be positive and at most 1000, got 0"),
        ({"scales": (1, True)}, TypeError, "`scales` must hold numbers, got True"),
        ({"fill": None}, TypeError, "`fill` must be a number, got None"),
        ({"fill": math.nan}, ValueError, "`fill` must be finite, got nan"),
        ({"batch": 0}, ValueError, "`batch` must be at least 1, got 0"),
        ({"model": nn.Flatten(0)}, ValueError, r"`model` must return \(N, K\) or .*, got shape \(2178,\)"),
        ({"model": First()}, ValueError, r"`model` must return .* with N \(=2\), got shape \(1, 1\)"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        check_scale(**{"model": Area(1.0), "images": discs(3, 4), **arguments})
