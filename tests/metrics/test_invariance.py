"""The invariance score of units whose score is known by hand, and of a network against loops that spell it out."""

import math

import pytest
import torch
from torch import nn

from scaleconv.metrics import activations, invariance_scores, top_mean

FACTORS = [0.1 * k for k in range(3, 13)]  # ten, as in the paper


class Units(nn.Module):
    """One neuron per function of the image (value, factor); `out` is the layer that is looked at."""

    def __init__(self, *functions):
        super().__init__()
        self.functions, self.out = functions, nn.Identity()

    def forward(self, images):
        value, factor = images[:, 0], images[:, 1]
        return self.out(torch.stack([function(value, factor) for function in self.functions], 1))


def note_factor(images, factor):
    """Keeps the value of an image and notes the factor by which it was transformed."""
    return torch.stack([images[:, 0], torch.full_like(images[:, 1], factor)], 1)


def scores(*functions, count=1000, factors=FACTORS, **options):
    images = torch.stack([torch.arange(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)], 1)
    return invariance_scores(Units(*functions), images, ["out"], note_factor, factors, **options)["out"].tolist()


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (lambda value, factor: torch.ones_like(value), 1),  # always fires
        (lambda value, factor: torch.zeros_like(value), 0),  # never
        (lambda value, factor: value, 100),  # to one image in a hundred, at every factor
        (lambda value, factor: value * (abs(factor - 1) < 0.01), 10),  # to as many, at one factor of ten
    ],
)
def test_units_whose_score_is_known(unit, expected):
    assert scores(unit) == [pytest.approx(expected)]


def test_the_score_is_the_local_rate_over_the_global_rate():
    """Fires to a quarter of the images (they tie), and to their transforms by 4 of 10 factors: 0.3 … 0.5, and 1."""
    unit = lambda value, factor: ((value >= 750) & ((factor < 0.55) | (factor == 1))).double()  # noqa: E731
    assert scores(unit) == [pytest.approx((4 / 10) / (1 / 4))]


def test_the_threshold_is_the_highest_that_lets_enough_images_fire():
    """Of 1000 images 15 must fire: the value of the 15th, 985. A factor below 0.99 takes the weaker ones under it."""
    unit = lambda value, factor: value * factor  # noqa: E731
    fired = [v for v in range(985, 1000) for f in (1.0, 0.99) if v * f >= 985]
    assert scores(unit, factors=[1.0, 0.99], firing=0.015) == [pytest.approx(len(fired) / 30 / 0.015)]


@pytest.mark.parametrize(("firing", "must_fire"), [(0.07, 7), (0.29, 29), (0.025, 3)])
def test_so_many_images_must_fire_whatever_the_product_rounds_to(firing, must_fire):
    """0.07 · 100 is 7.000000000000001. An invariant unit scores 1 over the part of the images it fires to."""
    assert scores(lambda value, factor: value, count=100, firing=firing) == [pytest.approx(100 / must_fire)]


def test_a_unit_that_is_on_too_rarely_has_no_threshold_and_scores_0():
    on_for = lambda count: lambda value, factor: (value < count).double()  # noqa: E731
    assert scores(on_for(9), on_for(10)) == [0, pytest.approx(100)]


def test_negative_activations_count_where_nothing_is_called_silent():
    assert scores(lambda value, factor: value - 2000) == [0]
    assert scores(lambda value, factor: value - 2000, silent=-math.inf) == [pytest.approx(100)]


def loop_scores(model, images, transform, factors, firing):
    """The text of the paper, neuron by neuron and image by image."""

    def responses(image):
        return model[:2](image.unsqueeze(0)).flatten().tolist()

    at_rest = [responses(image) for image in images]
    moved = [[responses(transform(image.unsqueeze(0), f)[0]) for f in factors] for image in images]
    found = []
    for unit in range(len(at_rest[0])):
        values = [response[unit] for response in at_rest]
        score = 0.0
        for threshold in sorted({value for value in values if value > 0}, reverse=True):  # fires at and above it
            firing_images = [k for k, value in enumerate(values) if value >= threshold]
            if len(firing_images) / len(values) >= firing:
                local = [moved[k][f][unit] >= threshold for k in firing_images for f in range(len(factors))]
                score = (sum(local) / len(local)) / (len(firing_images) / len(values))
                break
        found.append(score)
    return found


@pytest.mark.parametrize("batch", [7, 60])
def test_a_network_scores_as_in_the_loops(batch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4)).double()
    images = torch.rand(60, 1, 8, 8, dtype=torch.float64)
    images[::3] = 0  # ties
    transform = lambda some, factor: some * factor + 0.1 * some.roll(1, 2)  # noqa: E731
    found = invariance_scores(model, images, ["1"], transform, [0.5, 0.9, 1.2], firing=0.2, batch=batch)["1"]
    expected = loop_scores(model, images, transform, [0.5, 0.9, 1.2], 0.2)
    assert found.tolist() == pytest.approx(expected)
    assert len({round(score, 6) for score in expected}) > 5


@pytest.mark.parametrize(("neuron", "size"), [("centre", 8), ("centre", 7), ("channel", 8)])
def test_other_neurons_of_a_map_score_as_if_the_network_put_out_nothing_else(neuron, size):
    """The centre is one position of an odd map and four of an even one; a channel is its maximum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 5, 3), nn.ReLU()).double()
    nn.init.uniform_(model[0].weight, -0.2, 0.4)  # so that every channel fires
    images = torch.rand(60, 1, size, size, dtype=torch.float64)
    transform = lambda some, factor: some * factor + 0.1 * some.roll(1, 2)  # noqa: E731

    class Reduced(nn.Module):
        def forward(self, maps):
            if neuron == "channel":
                return maps.amax((2, 3))
            return maps[:, :, 2:4, 2:4].flatten(1) if size == 8 else maps[:, :, 2, 2]

    alone = nn.Sequential(model[0], nn.Sequential(model[1], Reduced()))
    found = invariance_scores(model, images, ["1"], transform, [0.9, 0.97], firing=0.2, neuron=neuron)["1"]
    assert found.tolist() == pytest.approx(loop_scores(alone, images, transform, [0.9, 0.97], 0.2))
    assert len(set(found.tolist())) > 1
    assert len(found) == {("centre", 8): 20, ("centre", 7): 5, ("channel", 8): 5}[neuron, size]


@pytest.mark.parametrize("neuron", ["position", "centre", "channel"])
def test_a_layer_without_positions_has_a_neuron_for_each_number(neuron):
    """The second unit falls silent at one of two factors."""
    found = scores(lambda v, f: v, lambda v, f: v * f, factors=[0.5, 1.0], neuron=neuron)
    assert found == [pytest.approx(100), pytest.approx(50)]


def test_the_best_part_of_the_neurons_rounded_to_whole_ones_is_averaged():
    """Of 1 … 12 a fifth are 2.4 neurons, of 13 they are 2.6, of 8 they are 1.6 and of 7 they are 1.4."""
    expected = {12: 11.5, 13: 12.0, 8: 7.5, 7: 7.0, 2: 2.0}
    assert {count: top_mean(torch.arange(1.0, count + 1), 0.2) for count in expected} == expected
    for part in (0, 2):
        with pytest.raises(ValueError, match=f"`part` must lie above 0 and not above 1, got {part}"):
            top_mean(torch.ones(3), part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ["nope"]}, "`layers` must name modules of the model .out., got 'nope'"),
        ({"images": torch.zeros(0, 2)}, "`images` must not be empty"),
        ({"factors": []}, "`factors` must not be empty"),
        ({"firing": 0}, "`firing` must lie above 0 and not above 1, got 0"),
        ({"neuron": "cell"}, "`neuron` must be one of position, centre, channel, got 'cell'"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, message):
    model = Units(lambda value, factor: value)
    arguments = {"images": torch.zeros(5, 2), "layers": ["out"], "factors": [1.0], **change}
    with pytest.raises(ValueError, match=message):
        invariance_scores(model, transform=note_factor, **arguments)


def test_activations_are_those_of_the_named_modules():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    images = torch.rand(5, 2)
    found = activations(model, images, ["0", "1"], batch=2)
    torch.testing.assert_close(found["1"], model(images))
    torch.testing.assert_close(found["0"].relu(), found["1"])
