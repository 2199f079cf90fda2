"""Calibration brings a converted network back to the answers of the plain one, and changes nothing else."""

import copy
import io
import itertools
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from scaleconv import SIConv2d, calibrate, convert, revert

IMAGES = F.avg_pool2d(torch.rand(48, 2, 36, 36, generator=torch.Generator().manual_seed(0)), 3)  # smooth, 12×12
PIXELS = (0, 2, 3)


def biased():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3)
    )


def overwriting():
    """The same, with activations that take the place of what the convolutions return."""
    return nn.Sequential(*(nn.ReLU(inplace=True) if isinstance(layer, nn.ReLU) else layer for layer in biased()))


def normalised():
    """BatchNorm in place of biases, with statistics that fit the images as those of a trained network do."""
    torch.manual_seed(2)
    network = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)),
    )
    for layer in network:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, -1, 1)
            layer.momentum = None
    network(2 * IMAGES[:20])
    return network.eval()


def computed():
    """A weight that takes no factor, so that BatchNorm has to."""
    torch.manual_seed(3)
    conv = parametrizations.weight_norm(nn.Conv2d(2, 6, 3, padding=1, bias=False))
    network = nn.Sequential(conv, nn.BatchNorm2d(6))
    network(2 * IMAGES[:20])
    return network.eval()


def outputs(network, names):
    """What the named layers put out."""
    kept = {}
    handles = [
        network.get_submodule(name).register_forward_hook(lambda _, __, output, name=name: kept.update({name: output}))
        for name in names
    ]
    with torch.no_grad():
        network(IMAGES)
    for handle in handles:
        handle.remove()
    return kept


def error(network, plain):
    with torch.no_grad():
        return float((network(IMAGES) - plain(IMAGES)).square().mean())


@pytest.mark.parametrize(("make", "names"), [(biased, "024"), (normalised, "14"), (computed, "1")])
def test_without_steps_every_channel_has_the_plain_mean_and_deviation(make, names):
    plain = make()
    network = calibrate(convert(plain), IMAGES, steps=0, batch=12)  # 4 · 12: all images
    expected, found = outputs(plain, names), outputs(network, names)
    before = outputs(convert(plain), names)
    for name in names:
        torch.testing.assert_close(found[name].mean(PIXELS), expected[name].mean(PIXELS), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[name].std(PIXELS), expected[name].std(PIXELS), rtol=1e-4, atol=1e-5)
        assert (before[name].mean(PIXELS) - expected[name].mean(PIXELS)).abs().max() > 1e-2


@pytest.mark.parametrize("make", [biased, normalised])
def test_steps_bring_the_answers_nearer(make):
    plain = make()
    converted = convert(plain)
    errors = [error(converted, plain), *(error(calibrate(converted, IMAGES, steps=n), plain) for n in (0, 40))]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.6 * errors[0]


@pytest.mark.parametrize("make", [biased, normalised])
def test_at_scale_one_there_is_nothing_to_correct(make):
    plain = make()
    network = calibrate(convert(plain, scales=(1,)), IMAGES, steps=0)
    for key, value in network.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], rtol=1e-5, atol=1e-6)


def test_only_converted_layers_and_statistics_of_batch_norm_change():
    plain = nn.Sequential(*normalised(), nn.Conv2d(4, 3, 1), nn.Conv2d(3, 3, 3)).train()
    plain[5].weight.requires_grad_(False)
    plain[1].eval()
    converted = convert(plain, exclude="6")
    before = copy.deepcopy(converted.state_dict())
    network = calibrate(converted, IMAGES, steps=2)
    changed = {key for key, value in network.state_dict().items() if not torch.equal(value, before[key])}
    norms = {f"{layer}.running_{name}" for layer in "14" for name in ("mean", "var")}
    assert changed - norms == {"0.weight", "3.weight"}
    assert {"1.running_mean", "4.running_mean"} <= changed
    assert all(torch.equal(value, before[key]) for key, value in converted.state_dict().items())
    assert [module.training for module in network] == [module.training for module in plain]
    assert [p.requires_grad for p in network.parameters()] == [p.requires_grad for p in plain.parameters()]
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())


def test_in_place_the_network_itself_is_calibrated_and_still_reverts():
    network = convert(biased())
    assert calibrate(network, IMAGES, steps=1, inplace=True) is network
    assert [type(layer) for layer in revert(network)][::2] == [nn.Conv2d] * 3


def test_it_is_the_same_every_time_and_draws_no_random_numbers():
    network = convert(biased())
    state = torch.get_rng_state()
    first, second = (calibrate(network, IMAGES, steps=3).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_that_are_computed_are_fitted_by_what_they_are_computed_from():
    torch.manual_seed(3)
    plain = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(2, 6, 3)), nn.ReLU(), nn.Conv2d(6, 4, 3))
    converted = convert(plain)
    matched, network = (calibrate(converted, IMAGES, steps=steps) for steps in (0, 60))
    assert error(network, plain) < 0.9 * error(matched, plain) < error(converted, plain)
    assert list(network.state_dict()) == list(plain.state_dict())


def test_a_layer_that_is_called_twice_is_compared_call_by_call():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x):
            return self.conv(F.relu(self.conv(x)))

    torch.manual_seed(4)
    plain = Twice()
    converted = convert(plain)
    assert error(calibrate(converted, IMAGES, steps=30), plain) < 0.7 * error(converted, plain)


def test_a_layer_that_does_not_answer_at_all_does_no_harm():
    plain = biased()
    plain[2].bias.data.fill_(-9.0)  # nothing passes the ReLU behind it
    network = calibrate(convert(plain), IMAGES, steps=10)
    assert error(network, plain) < 1e-6


def test_a_reference_takes_the_place_of_the_plain_network():
    plain, other = biased(), biased()
    for parameter in other.parameters():
        parameter.data.mul_(1.5)
    network = calibrate(convert(plain), IMAGES, reference=other, steps=0, batch=12)
    expected, found = (outputs(each, "4")["4"].std(PIXELS) for each in (other, network))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert type(other[0]) is nn.Conv2d


@pytest.mark.parametrize(
    ("arguments", "error_type", "message"),
    [
        ({"model": [SIConv2d]}, TypeError, r"`model` must be a torch\.nn\.Module, got list"),
        ({"model": biased()}, ValueError, r"`model` \(=Sequential\) must hold an SIConv2d: convert it first"),
        ({"images": [1]}, TypeError, "`images` must be a tensor, got list"),
        ({"images": IMAGES[0]}, ValueError, r"`images` must be \(N, C, H, W\), N at least 1, got shape \(2, 12, 12\)"),
        ({"images": IMAGES[:0]}, ValueError, r"`images` must be \(N, C, H, W\), N at least 1"),
        ({"images": IMAGES / 0}, ValueError, "`images` must hold finite numbers, got NaN or infinity"),
        ({"images": IMAGES.int()}, TypeError, r"`images` must be of a floating-point type, got torch\.int32"),
        ({"images": 1e20 * IMAGES}, ValueError, "`images` must not be so large that a fit of the weights overflows"),
        (
            {"model": convert(biased()).half()},
            TypeError,
            r"`model` must be float32 or float64, got torch\.float16",
        ),
        ({"steps": -1}, ValueError, "`steps` must be at least 0, got -1"),
        ({"steps": 1.5}, TypeError, "`steps` must be an integer, got 1.5"),
        ({"batch": 0}, ValueError, "`batch` must be at least 1, got 0"),
        ({"inplace": "no"}, TypeError, "`inplace` must be True or False, got 'no'"),
        ({"quiet": 3}, TypeError, "`quiet` must be True or False, got 3"),
        ({"reference": 3}, TypeError, r"`reference` must be a torch\.nn\.Module, got int"),
        ({"reference": biased()[:2]}, ValueError, "`reference` must have the layers of `model`, but has no '2'"),
        (
            {"reference": nn.Sequential(nn.Conv2d(1, 1, 1))},
            ValueError,
            r"`reference` must have the layers of `model`, but '0' is Conv2d\(1, 1",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments, error_type, message):
    with pytest.raises(error_type, match=message):
        calibrate(**{"model": convert(biased()), "images": IMAGES, **arguments})


def test_a_network_is_as_it_was_if_it_cannot_be_calibrated_in_place():
    network = convert(biased())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(ValueError, match="`images` must not be so large"):
        calibrate(network, 1e20 * IMAGES, steps=2, inplace=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(("images", "batch"), [(IMAGES[:1], 32), (IMAGES, 1)], ids=["one image", "batches of one"])
def test_one_image_is_enough_for_finite_weights(images, batch):
    classifier = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    calibrated = calibrate(convert(classifier), images, batch=batch, steps=3)
    assert all(tensor.isfinite().all() for tensor in calibrated.state_dict().values())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, **options):
    """What three steps of two seconds each leave on standard error."""
    monkeypatch.setattr(sys, "stderr", stream)
    seconds = itertools.count(0, 2)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(seconds)))
    calibrate(convert(nn.Conv2d(1, 2, 3)), torch.rand(4, 1, 8, 8), steps=3, **options)
    return stream.getvalue()


def test_a_terminal_shows_how_far_it_is_the_rate_and_the_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = shown(monkeypatch, Terminal())
    assert "\rcalibrating 2/3  0.5 steps/s  2 s left\x1b[K\rcalibrating 3/3" in text
    assert text.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("terminal", "stream", "options"),
    [("xterm", io.StringIO, {}), ("dumb", Terminal, {}), ("xterm", Terminal, {"quiet": True})],
    ids=["a pipe", "a dumb terminal", "quiet"],
)
def test_nothing_is_shown_where_it_cannot_or_should_not_be(monkeypatch, terminal, stream, options):
    monkeypatch.setenv("TERM", terminal)
    assert shown(monkeypatch, stream(), **options) == ""


@pytest.mark.parametrize("steps", [0, 20])
def test_activations_in_place_change_nothing(steps):
    found, expected = (calibrate(convert(make()), IMAGES, steps=steps) for make in (overwriting, biased))
    assert torch.equal(found(IMAGES), expected(IMAGES))


@pytest.mark.parametrize("norm", [nn.Identity, lambda: nn.GroupNorm(2, 6), lambda: nn.InstanceNorm2d(6)])
def test_statistics_without_a_bias_bring_every_layer_closer(norm):
    torch.manual_seed(4)
    layers = [(nn.Conv2d(2 if not at else 6, 6, 3, padding=1, bias=False), norm(), nn.ReLU()) for at in range(3)]
    plain = nn.Sequential(*itertools.chain(*layers))
    converted = convert(plain)
    before, after = (
        (network[0](IMAGES) - plain[0](IMAGES)).square().mean()
        for network in (converted, calibrate(converted, IMAGES, steps=0))
    )
    assert after < before


class ByName(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(input=x)


def test_a_layer_may_be_called_by_name():
    found = calibrate(
        convert(nn.Sequential(*(ByName(each) if isinstance(each, nn.Conv2d) else each for each in biased()))),
        IMAGES,
        steps=5,
    )
    assert torch.equal(found(IMAGES), calibrate(convert(biased()), IMAGES, steps=5)(IMAGES))
