"""How far the response stays the same when a pattern is rescaled: the numbers in the docstring of `si_conv2d`."""

import math

import pytest
import torch
from torch.nn import functional as F

from scaleconv import si_conv2d

FACTORS = [2 ** (k / 12) for k in range(-8, 9)]  # 0.63 … 1.59, between the layer's scales as well as on them
ANGLES = [k * math.pi / 3 for k in range(3)]


def pattern(size, scale, angle):
    """A smooth oriented ripple about the centre of an image, `scale` times as large as the filter's own."""
    centred = torch.arange(size, dtype=torch.float64) - (size - 1) / 2
    y, x = torch.meshgrid(centred / scale, centred / scale, indexing="ij")
    across, along = math.cos(angle) * x + math.sin(angle) * y, math.cos(angle) * y - math.sin(angle) * x
    return torch.exp(-((across / 3) ** 2) / 2 - (along / 4.5) ** 2 / 2) * torch.cos(0.55 * across)


@pytest.fixture(scope="module")
def changes():
    """Relative change of the response at the centre, for every orientation and factor: of our layer, of `conv2d`."""
    result = []
    for layer in (si_conv2d, F.conv2d):
        of_layer = []
        for angle in ANGLES:
            weight = pattern(21, 1, angle)
            weight = (weight - weight.mean()).view(1, 1, 21, 21)
            images = torch.stack([pattern(61, factor, angle) for factor in FACTORS]).unsqueeze(1)
            responses = layer(images, weight)[:, 0, 20, 20]
            of_layer.append((responses / responses[FACTORS.index(1)] - 1).abs())
        result.append(torch.stack(of_layer))
    return result


def test_a_rescaled_pattern_changes_the_response_less_than_conv2d_by_a_factor_of_four(changes):
    ours, plain = changes
    assert ours.mean() < plain.mean() / 4
    assert (ours.mean(0) <= plain.mean(0) + 1e-12).all()


def test_the_docstring_states_what_is_measured(changes):
    ours, plain = changes
    measured = [ours.mean(), ours.max(), plain.mean(), plain.max()]
    stated = "by {:.1f} % on average and {:.0f} % at most, that of `conv2d` by {:.0f} % and {:.0f} %"
    assert stated.format(*(100 * value.item() for value in measured)) in " ".join(si_conv2d.__doc__.split())


@pytest.mark.parametrize(("factor", "scale"), [(0.5, 2), (1, 1), (2, 0.5)])
def test_a_rescaled_pattern_wins_at_the_scale_that_undoes_it(factor, scale):
    """A square of side 8 with a negative surround answers most to a square of just that side."""
    weight = torch.full((1, 1, 14, 14), -64 / (14**2 - 64), dtype=torch.float64)
    weight[..., 3:-3, 3:-3] = 1
    image = torch.zeros(1, 1, 64, 64, dtype=torch.float64)
    half = int(4 * factor)
    image[..., 32 - half : 32 + half, 32 - half : 32 + half] = 1
    scales = (0.5, 1, 2)
    _, winner = si_conv2d(image, weight, scales=scales, return_winner=True)
    assert scales[winner[0, 0, 25, 25]] == scale
