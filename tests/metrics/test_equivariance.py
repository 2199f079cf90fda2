"""The distance of features under rescaling: 0 for what follows the scale exactly, and known values otherwise."""

import pytest
import torch
from torch import nn

from scaleconv.metrics import equivariance_error

BLANK = torch.zeros(1, 1, 9, 9, dtype=torch.float64)


def pattern(scale, curve=lambda y, x: 2 * x - y):
    """A function of the position, rescaled about the centre of 9×9 pixels."""
    y, x = torch.meshgrid(*[torch.arange(9.0, dtype=torch.float64) - 4] * 2, indexing="ij")
    return curve(y / scale, x / scale).expand(2, 1, 9, 9).contiguous()


class Bias(nn.Module):
    def forward(self, images):
        return images + 100


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("model", [nn.Identity(), Bias(), nn.Conv2d(1, 2, 1).double()], ids=["same", "bias", "1×1"])
def test_maps_that_follow_the_scale_have_no_error(model, scale):
    """Linear interpolation of a linear pattern is exact; a bias is no part of the features."""
    network = nn.Sequential(model)
    assert equivariance_error(network, pattern(1), pattern(scale), scale, ["0"], BLANK)["0"] == pytest.approx(
        0, abs=1e-9
    )


@pytest.mark.parametrize("model", [nn.Identity(), Bias()], ids=["same", "bias"])
def test_maps_that_stay_where_they_are_have_the_error_of_the_rescaling(model):
    """f(T x) = x where T x is expected: ‖x − x/2‖ / ‖x/2‖ = 1 at scale 2."""
    network = nn.Sequential(model)
    assert equivariance_error(network, pattern(1), pattern(1), 2.0, ["0"], BLANK)["0"] == pytest.approx(1)


def test_only_what_is_known_is_compared():
    """At scale 0.5 only the inner 5×5 come from within the map; noise outside does not count."""
    images, moved = pattern(1), pattern(0.5)
    moved[..., :2, :] += 50
    moved[..., :, 7:] -= 50
    network = nn.Sequential(nn.Identity())
    assert equivariance_error(network, images, moved, 0.5, ["0"], BLANK)["0"] == pytest.approx(0, abs=1e-9)
    moved[..., 4, 4] += 1
    assert equivariance_error(network, images, moved, 0.5, ["0"], BLANK)["0"] > 0.01


def test_outputs_without_positions_are_compared_as_they_are():
    network = nn.Sequential(nn.Flatten())
    images = pattern(1)
    assert equivariance_error(network, images, 3 * images, 0.5, ["0"], BLANK)["0"] == pytest.approx(2)


def test_batches_change_nothing_and_a_silent_layer_has_no_error():
    network = nn.Sequential(nn.Identity(), nn.Threshold(1e9, 0.0))
    images, moved = pattern(1), pattern(1.5, lambda y, x: x * x - y)
    whole = equivariance_error(network, images, moved, 1.5, ["0", "1"], BLANK)
    parts = equivariance_error(network, images, moved, 1.5, ["0", "1"], BLANK, batch=1)
    assert whole == pytest.approx(parts)
    assert whole["1"] == 0
    assert whole["0"] > 0.1


def test_what_cannot_be_compared_is_refused():
    images = pattern(1)
    with pytest.raises(ValueError, match="`scale` must be above 0, got 0"):
        equivariance_error(nn.Identity(), images, images, 0, [], BLANK)
    with pytest.raises(ValueError, match="`rescaled` must have the shape of `images`"):
        equivariance_error(nn.Identity(), images, images[:1], 1, [], BLANK)
