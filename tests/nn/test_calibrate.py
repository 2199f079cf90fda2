"""Calibration brings a converted network back to the answers of the plain one, and changes nothing else."""

import copy
import importlib
import io
import itertools
import re
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import scaleconv
from scaleconv import SIConv2d, calibrate, revert
from scaleconv.data import embedded_digits
from scaleconv.nn.match import Moments, match_statistics
from scaleconv.nn.paired import Pair

module = importlib.import_module("scaleconv.nn.calibrate")

IMAGES = F.avg_pool2d(torch.rand(48, 2, 36, 36, generator=torch.Generator().manual_seed(0)), 3)  # smooth, 12×12
PIXELS = (0, 2, 3)


def convert(model, scales=(1, 2), **options):
    """All layers, to two scales, so that a step takes little time."""
    return scaleconv.convert(model, include="*", scales=scales, **options)


def biased():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 4, 3)
    )


class ByName(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(input=x)


def otherwise():
    """The same, with convolutions called by name, and activations that take the place of what these return."""
    layers = [nn.ReLU(inplace=True) if isinstance(layer, nn.ReLU) else ByName(layer) for layer in biased()]
    return nn.Sequential(*layers)


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


def pooled():
    """BatchNorm of vectors."""
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Conv2d(2, 6, 3), nn.Hardtanh(0), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(6))
    plain[0].bias.data.fill_(0.5)  # so that every channel responds
    plain[4].momentum = None
    plain(IMAGES)
    return plain.eval()


def whole(model, batch):
    """A `call` that takes images as one piece, which is either fitted or held out."""
    return model(batch[0])


WHOLE = {"images": [(IMAGES,)] * 3, "call": whole}  # so that the statistics are those of all images


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


def same_state(first, second):
    return all(torch.equal(value, second.state_dict()[key]) for key, value in first.state_dict().items())


def error(network, plain, *further):
    with torch.no_grad():
        return float((network(IMAGES, *further) - plain(IMAGES, *further)).abs().square().mean())


def require_same_statistics(network, plain, names, tolerance=1e-5):
    expected, found = outputs(plain, names), outputs(network, names)
    for name in names:
        dims = [dim for dim in range(found[name].ndim) if dim != 1]
        for statistic in (torch.mean, torch.std):
            pair = statistic(found[name], dims), statistic(expected[name], dims)
            torch.testing.assert_close(*pair, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize(("make", "names"), [(biased, "024"), (normalised, "14"), (computed, "1"), (pooled, "4")])
def test_without_steps_every_channel_has_the_plain_mean_and_deviation(make, names):
    plain = make()
    converted = convert(plain)
    require_same_statistics(calibrate(converted, steps=0, **WHOLE), plain, names, 1e-4 if make is pooled else 1e-5)
    with pytest.raises(AssertionError):
        require_same_statistics(converted, plain, names, 1e-3)


@pytest.mark.parametrize("make", [biased, normalised])
def test_steps_bring_the_answers_nearer(make):
    plain = make()
    converted = convert(plain)
    errors = [error(converted, plain), *(error(calibrate(converted, IMAGES, steps=n), plain) for n in (0, 40))]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.6 * errors[0]


def test_only_converted_layers_and_statistics_of_batch_norm_change():
    plain = nn.Sequential(*normalised(), nn.Conv2d(4, 3, 1), nn.Conv2d(3, 3, 3)).train()
    plain[5].weight.requires_grad_(False)
    plain[1].eval()
    converted = convert(plain, exclude="6")
    before = copy.deepcopy(converted)
    network = calibrate(converted, IMAGES, steps=2)
    assert same_state(converted, before)
    state = before.state_dict()
    changed = {key for key, value in network.state_dict().items() if not torch.equal(value, state[key])}
    norms = {f"{layer}.running_{name}" for layer in "14" for name in ("mean", "var")}
    assert changed - norms == {"0.weight", "3.weight"}
    assert {"1.running_mean", "4.running_mean"} <= changed
    assert [module.training for module in network] == [module.training for module in plain]
    assert [p.requires_grad for p in network.parameters()] == [p.requires_grad for p in plain.parameters()]
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())


def test_in_place_the_network_itself_is_calibrated_and_still_reverts():
    network = convert(normalised())
    expected = calibrate(network, IMAGES, steps=30)
    assert not same_state(network, expected)
    assert calibrate(network, IMAGES, steps=30, inplace=True) is network
    assert same_state(network, expected)
    assert [type(layer) for layer in revert(network)][::3] == [nn.Conv2d] * 2


def test_it_is_the_same_every_time_and_draws_no_random_numbers():
    network = convert(biased())
    state = torch.get_rng_state()
    assert same_state(*(calibrate(network, IMAGES, steps=3) for _ in range(2)))
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
    require_same_statistics(calibrate(convert(plain), reference=other, steps=0, **WHOLE), other, "4")


@pytest.mark.parametrize(
    ("arguments", "error_type", "message"),
    [
        ({"model": [SIConv2d]}, TypeError, r"`model` must be a torch\.nn\.Module, got list"),
        ({"model": biased()}, ValueError, r"`model` \(=Sequential\) must hold an SIConv2d: convert it first"),
        ({"images": 1}, TypeError, r"`images` must be images \(N, C, H, W\) or an iterable of batches, got int"),
        ({"images": IMAGES[0]}, ValueError, r"`images` must be \(N, C, H, W\), N at least 1, got shape \(2, 12, 12\)"),
        ({"images": IMAGES / 0}, ValueError, "`images` must hold finite numbers, got NaN or infinity"),
        ({"images": 1e20 * IMAGES}, ValueError, "`images` must not be so large that the networks overflow"),
        ({"call": 3}, TypeError, "`call` must be a function of the model and a batch, got int"),
        ({"call": lambda model, batch: [model(batch)]}, TypeError, "`call` must return a tensor, got list of 1"),
        (
            {"call": lambda model, batch: model(batch).argmax(1)},
            TypeError,
            r"`call` must return a tensor of a floating-point type, got a tensor of torch\.int64",
        ),
        ({"call": lambda model, batch: batch}, ValueError, "`call` must run an SIConv2d, but calls none"),
        (
            {"call": lambda model, batch: model(batch)[isinstance(model[0], SIConv2d) :]},
            ValueError,
            r"`model` must answer in the shape of the plain network, got \(7, 4, 10, 10\), not \(8, 4, 10, 10\)",
        ),
        ({"model": convert(biased()).half()}, TypeError, r"`model` must be float32 or float64, got torch\.float16"),
        ({"steps": -1}, ValueError, "`steps` must be at least 0, got -1"),
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
        (
            {"model": convert(normalised()), "reference": nn.Sequential(normalised()[0], *biased()[1:4])},
            ValueError,
            "`reference` must have the layers of `model`, but '1' is ReLU",
        ),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", str(value)),  # the same in every process
)
def test_wrong_arguments_are_named(arguments, error_type, message):
    with pytest.raises(error_type, match=message):
        calibrate(**{"model": convert(biased()), "images": IMAGES, **arguments})


def test_a_network_is_as_it_was_if_it_cannot_be_calibrated_in_place():
    network = convert(biased())
    before = copy.deepcopy(network)
    with pytest.raises(ValueError, match="`images` must not be so large"):
        calibrate(network, 1e20 * IMAGES, steps=2, inplace=True)
    assert same_state(network, before)


def test_batches_of_one_image_give_finite_weights():
    classifier = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
    calibrated = calibrate(convert(classifier), IMAGES, batch=1, steps=3)
    assert all(tensor.isfinite().all() for tensor in calibrated.state_dict().values())


@pytest.mark.parametrize("steps", [0, 20])
def test_activations_in_place_and_calls_by_name_change_nothing(steps):
    found, expected = (calibrate(convert(make()), IMAGES, steps=steps) for make in (otherwise, biased))
    assert torch.equal(found(IMAGES), expected(IMAGES))


@pytest.mark.parametrize("norm", [nn.Identity, lambda: nn.GroupNorm(2, 6), lambda: nn.InstanceNorm2d(6)])
def test_statistics_without_a_bias_bring_every_layer_closer(norm):
    torch.manual_seed(4)
    layers = [(nn.Conv2d(2 if not at else 6, 6, 3, padding=1, bias=False), norm(), nn.ReLU()) for at in range(3)]
    plain = nn.Sequential(*itertools.chain(*layers))
    network = convert(plain)
    pair = Pair(revert(network), network, None)
    with torch.no_grad():
        first = (network[0](IMAGES) - plain[0](IMAGES)).square().mean()
        match_statistics(pair, [IMAGES])
        assert (network[0](IMAGES) - plain[0](IMAGES)).square().mean() < first


# Few images, held-out images


@pytest.fixture(scope="module")
def digits():
    """A small network that tells digits apart, 500 digits without labels and 500 for the test."""
    torch.manual_seed(0)
    drawn = embedded_digits()
    order = torch.randperm(len(drawn))[:3000]
    images, labels = drawn.images[order].float().div(255).unsqueeze(1) - 0.13, drawn.labels[order]
    convs = [
        layer
        for n, m in ((1, 8), (8, 8), (8, 8))
        for layer in (nn.Conv2d(n, m, 3, 2, bias=False), nn.BatchNorm2d(m), nn.ReLU())
    ]
    network = nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(5):
        for some, right in zip(images[:2000].split(50), labels[:2000].split(50), strict=True):
            optimiser.zero_grad()
            F.cross_entropy(network(some), right).backward()
            optimiser.step()
    return network.eval(), images[2000:2500], (images[2500:], labels[2500:])


def accuracy(network, images, labels):
    with torch.no_grad():
        return 100 * float((network(images).argmax(1) == labels).float().mean())


@pytest.mark.filterwarnings("ignore:`images` holds")
@pytest.mark.parametrize("count", [1, 2, 4, 16, 64])
def test_few_images_do_not_ruin_a_trained_network(digits, count):
    plain, images, test = digits
    converted = convert(plain)
    before = accuracy(converted, *test)
    assert accuracy(plain, *test) > before + 10
    assert accuracy(calibrate(converted, images[:count], steps=60), *test) >= before


def test_many_images_bring_the_accuracy_back(digits):
    plain, images, test = digits
    converted = convert(plain)
    lost = accuracy(plain, *test) - accuracy(converted, *test)
    assert accuracy(plain, *test) - accuracy(calibrate(converted, images, steps=100), *test) < 0.3 * lost


def test_the_best_of_all_looks_at_the_held_out_images_is_returned(monkeypatch):
    """Three looks at errors 5, 3 and 4 after the two without a step: the second is the best."""
    found = iter([9.0, 8.0, 5.0, 3.0, 4.0])
    states = []

    def compare(pair, batch, fitting=False):
        if fitting:
            return compared(pair, batch, fitting)
        states.append(copy.deepcopy(pair.network.state_dict()))
        return torch.tensor(0.0), torch.tensor(next(found))

    compared = module._compare
    monkeypatch.setattr(module, "_compare", compare)
    state = calibrate(convert(biased()), IMAGES, steps=50).state_dict()  # a look after every 20, and after the last
    assert len(states) == 5
    assert [all(torch.equal(state[key], each[key]) for key in state) for each in states] == [False] * 3 + [True, False]


def test_the_error_on_held_out_images_is_the_mean_over_their_batches():
    network = convert(biased())
    pair = Pair(revert(network), network, None)
    batches = (IMAGES * torch.linspace(0, 2, 48).view(-1, 1, 1, 1)).split(20)
    with torch.no_grad():
        errors = [float(module._compare(pair, batch)[1]) for batch in batches]
        best = module.Best(pair, batches)
        assert best.look("now")
        assert not best.look("again")
    assert errors[0] != pytest.approx(errors[2], rel=0.1)
    assert (best.error, best.title) == (pytest.approx(sum(errors) / 3), "now")


class Counted:
    """A `call` that counts the steps, and keeps the images that they are made on."""

    def __init__(self):
        self.steps, self.images = 0, []

    def __call__(self, model, batch):
        if torch.is_grad_enabled():
            self.steps += 1
            self.images.append(batch)
        return model(batch)


def test_it_ends_when_the_held_out_images_are_answered_no_better(monkeypatch):
    monkeypatch.setattr(module, "RATE", 100.0)
    counted = Counted()
    calibrate(convert(biased()), IMAGES, call=counted)
    assert counted.steps == module.PATIENCE


def test_steps_are_made_on_all_images_but_the_held_out():
    counted = Counted()
    calibrate(convert(biased()), IMAGES, steps=60, batch=6, call=counted)
    assert counted.steps == 60
    assert len(torch.cat(counted.images).unique(dim=0)) == 48 - 8  # a tenth would be fewer than the least


def test_the_rate_falls_from_its_share_of_the_weights_to_nothing():
    rates, sizes = [], []

    def watch(optimiser, *_):
        rates.append([group["lr"] for group in optimiser.param_groups])
        sizes.append([float(group["params"][0].detach().square().mean().sqrt()) for group in optimiser.param_groups])

    handle = register_optimizer_step_pre_hook(watch)
    calibrate(convert(biased()), IMAGES, steps=8, batch=6)
    handle.remove()
    assert len(rates) == 8
    for step, found in enumerate(rates):
        assert found == pytest.approx([0.06 * (1 - step / 8) * size for size in sizes[0]], rel=1e-5)


@pytest.mark.parametrize(("count", "held_out"), [(2, 1), (4, 2), (20, 8), (90, 9), (2000, 128)])
@pytest.mark.filterwarnings("ignore:`images` holds")
def test_a_tenth_is_held_out_within_limits(count, held_out):
    examples = module._gather(torch.arange(count).view(-1, 1, 1, 1).float(), 32, None)
    assert (len(examples.fitted), len(examples.held_out)) == (count - held_out, held_out)
    assert len(torch.cat(examples.fitted + examples.held_out).unique()) == count


def test_few_images_are_named_in_a_warning_where_it_was_called(capsys):
    network = convert(biased())
    with pytest.warns(UserWarning, match="holds 31 images, too few: weights fitted .* poor. About a thousand") as few:
        calibrate(network, IMAGES[:31], steps=0)
    assert [warning.filename for warning in few] == [__file__]
    with pytest.warns(UserWarning, match="holds 15 images, too few: only statistics are matched. About a thousand"):
        calibrate(network, IMAGES[:15], call=(counted := Counted()))
    assert counted.steps == 0
    with pytest.warns(UserWarning, match="holds 16 images, too few: weights"):
        calibrate(network, IMAGES[:16], steps=2, call=counted)
    assert counted.steps == 2
    capsys.readouterr()
    with pytest.warns(UserWarning, match="`images` holds 1 image, too few: nothing is changed. About a thousand"):
        assert same_state(calibrate(network, IMAGES[:1]), network)
    assert ", nothing is changed; returned in a copy" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="`images` holds one batch, too few: nothing is changed"):
        assert same_state(calibrate(network, [(IMAGES,)], call=whole), network)
    calibrate(network, IMAGES[:32], steps=0)


# What is given


def dictionaries(images):
    return [{"labels": torch.arange(len(some)), "image": some} for some in images.split(10)]


@pytest.mark.parametrize(
    "make", [lambda x: DataLoader(TensorDataset(x, torch.arange(48)), 20), dictionaries, lambda x: iter(x.split(7))]
)
def test_batches_are_taken_like_one_tensor(make):
    network = convert(biased())
    found, expected = (calibrate(network, images, steps=5) for images in (make(IMAGES), IMAGES))
    assert same_state(found, expected)


def test_only_so_many_images_of_an_endless_iterable_are_kept(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 100)
    taken = []
    endless = (taken.append(some) or some for some in itertools.cycle([IMAGES]))
    calibrate(convert(biased()), endless, steps=1)
    assert len(taken) == 3  # 48 · 3 is the first number that is not below 100


def test_a_tensor_is_used_whole_however_large(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 10)
    assert len(module._gather(IMAGES, 8, None).fitted) == 40


def test_batches_of_other_sizes_are_compared_one_by_one():
    plain = biased()
    images = [IMAGES[:16], IMAGES[16:32, :, :10], IMAGES[32:, :, :, 1:]]
    converted = convert(plain)
    assert error(calibrate(converted, images, steps=40), plain) < 0.9 * error(converted, plain)


class Around(nn.Module):
    """The network of `biased`, run in another way by a function of it and what is given."""

    def __init__(self, run):
        super().__init__()
        self.body, self.run = biased(), run

    def forward(self, *given):
        return self.run(self.body, *given)


@pytest.mark.parametrize(
    ("batch", "call"),
    [
        (lambda some: {"image": some, "time": 0.0}, lambda model, batch: model(batch["image"], batch["time"])["out"]),
        (list, lambda model, batch: model(torch.stack(batch), 0.0)["out"]),
    ],
    ids=["more than images", "no images as such"],
)
def test_a_call_takes_batches_of_any_kind_and_returns_a_part_of_the_answer(batch, call):
    rich = Around(lambda body, images, time: {"names": "x", "out": body(images) + time})
    found = calibrate(convert(rich), [batch(some) for some in IMAGES.split(12)], steps=9, call=call)
    pieces = [(some,) for some in IMAGES.split(12)]
    assert same_state(found.body, calibrate(convert(rich.body), pieces, steps=9, call=whole))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: {"out": x}, r"`model` returns dict with 'out', so only its layers .* model\(batch\)\['out'\]"),
        (
            lambda x: x.argmax(1),
            r"`model` returns a tensor of torch\.int64, so only its layers are compared: give `call`",
        ),
        (lambda x: None, "`model` returns NoneType, so only"),
    ],
)
def test_an_answer_that_cannot_be_compared_is_named_and_the_layers_are_compared(answer, message):
    plain = Around(lambda body, images: answer(body(images)))
    with pytest.warns(UserWarning, match=message) as said:
        network = calibrate(convert(plain), IMAGES, steps=40)
    assert [warning.filename for warning in said] == [__file__]
    assert error(network.body, plain.body) < 0.6 * error(convert(plain.body), plain.body)


@pytest.mark.parametrize("answer", [torch.fft.rfft2, lambda x: x[:, 0, 0, 0]])
def test_complex_numbers_and_one_number_an_image_are_compared(answer):
    plain = Around(lambda body, images: answer(body(images)))
    converted = convert(plain, scales=(0.5, 1, 2))
    matched, fitted = (calibrate(converted, IMAGES, steps=steps) for steps in (0, 60))
    assert error(fitted, plain) < 0.9 * error(matched, plain) < error(converted, plain)


def test_one_number_for_a_batch_is_compared():
    plain = Around(lambda body, images: body(images).square().mean())
    converted = convert(plain)
    assert error(calibrate(converted, IMAGES, steps=3), plain) < 0.25 * error(converted, plain)


# The loss


def test_the_error_is_in_units_of_the_plain_deviation_without_the_mean_of_layers_that_have_no_bias():
    plain = nn.Sequential(*normalised(), nn.Conv2d(4, 3, 3)).eval()
    plain[5].weight.data[0] = 0  # a channel that does not vary, whose unit is of its layer
    network = convert(plain)
    with torch.no_grad():
        layers, answer = module._compare(Pair(revert(network), network, None), IMAGES)
    expected, found = outputs(plain, "01345"), outputs(network, "01345")
    errors = {}
    for name in "01345":
        total, channels = 0.0, expected[name].shape[1]
        for a, b in zip(found[name].unbind(1), expected[name].unbind(1), strict=True):
            error = (a - b) - (a - b).mean() * (name in "03")
            total += float((error**2).mean() / max(b.var(correction=0), 0.01 * (expected[name] ** 2).mean()))
        errors[name] = total / channels
    assert float(layers) == pytest.approx(sum(errors.values()), rel=1e-4)
    assert float(answer) == pytest.approx(errors["5"], rel=1e-4)


def test_the_answer_takes_part_in_the_fit():
    """The mean of a layer without a bias counts in no layer."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    converted = convert(plain)
    matched, fitted = (error(calibrate(converted, IMAGES, steps=steps), plain) for steps in (0, 60))
    assert fitted < 0.2 * matched


# Networks of all kinds


class Shared(nn.Module):
    """Two layers of one weight, each with its own bias."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.first, self.second = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(2))
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


@pytest.mark.parametrize("inplace", [False, True])
def test_tied_weights_stay_tied(inplace):
    plain = Shared()
    converted = convert(plain)
    before = error(converted, plain)
    network = calibrate(converted, IMAGES, steps=60, inplace=inplace)
    assert network.first.weight is network.second.weight
    assert error(network, plain) < 0.7 * before


def test_a_weight_that_layers_share_takes_no_factor_and_their_biases_the_mean():
    plain, names = Shared(), ["first", "second"]
    network = calibrate(convert(plain), steps=0, **WHOLE)
    assert torch.equal(network.first.weight, plain.first.weight)
    means = ([output.mean(PIXELS) for output in outputs(each, names).values()] for each in (network, plain))
    for found, expected in zip(*means, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Remembering(nn.Module):
    """Keeps something that is no tensor in its state_dict."""

    def __init__(self):
        super().__init__()
        self.body, self.notes = biased(), {"version": 3}

    def forward(self, x):
        return self.body(x)

    def get_extra_state(self):
        return self.notes

    def set_extra_state(self, state):
        raise AssertionError("what is not calibrated is not to be set")


@pytest.mark.parametrize("inplace", [False, True])
def test_state_that_is_no_tensor_is_left_alone(inplace):
    network = calibrate(convert(Remembering()), IMAGES, steps=2, inplace=inplace)
    assert network.get_extra_state() == {"version": 3}


def checkpointed(use_reentrant, before=2):
    """All layers from this one on in a checkpoint."""
    return Around(lambda body, x: checkpoint(body[before:], body[:before](x), use_reentrant=use_reentrant))


def test_activation_checkpointing_changes_nothing():
    expected = calibrate(convert(biased()), IMAGES, steps=30).state_dict()
    found = calibrate(convert(checkpointed(False)), IMAGES, steps=30).body.state_dict()
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's, of any evaluation
@pytest.mark.parametrize("before", [2, 0])
def test_layers_in_a_checkpoint_that_keeps_no_graph_are_fitted_too(before):
    plain = checkpointed(True, before)
    converted = convert(plain, scales=(0.5, 1, 2))
    matched, fitted = (calibrate(converted, IMAGES, steps=steps) for steps in (0, 60))
    assert error(fitted, plain) < 0.9 * error(matched, plain)


def test_layers_may_be_given_images_one_by_one():
    plain = Around(lambda body, images: torch.stack([body(image) for image in images]))
    converted = convert(plain)
    network = calibrate(converted, [(IMAGES,)] * 2, call=whole, steps=0)
    require_same_statistics(network.body, plain.body, "0", 1e-4)
    assert error(calibrate(converted, IMAGES, steps=4, batch=8), plain) < error(converted, plain)


def test_moments_of_parts_are_those_of_the_whole():
    torch.manual_seed(0)
    plain, ours = torch.rand(2, 9, 3, 4, 5)
    factor, shift = torch.rand(3) + 0.5, torch.rand(3)
    parts = [Moments.of(plain[some], ours[some], [0, 2, 3]) for some in (slice(0, 4), slice(4, 9))]
    moments = parts[1].moved(factor, shift).joined(parts[0].moved(factor, shift))
    moved = ours * factor.view(3, 1, 1) + shift.view(3, 1, 1)
    for channel in range(3):
        both = torch.stack([plain[:, channel].flatten(), moved[:, channel].flatten()])
        torch.testing.assert_close(moments.mean[:, channel], both.mean(1))
        torch.testing.assert_close(moments.covariance[..., channel], torch.cov(both, correction=0))
        torch.testing.assert_close(moments.ratio()[channel], both[0].std() / both[1].std())
        torch.testing.assert_close(moments.projection()[channel], both[0] @ both[1] / (both[1] @ both[1]))


@pytest.mark.parametrize("inplace", [False, True])
def test_inference_mode_changes_nothing(inplace):
    expected = calibrate(convert(normalised()), IMAGES, steps=20)
    with torch.inference_mode():
        images = IMAGES + 0.0
        found = calibrate(convert(normalised()), images, steps=20, inplace=inplace)
        pieces = calibrate(convert(normalised()), [(images,)] * 2, steps=3, call=whole)
    assert same_state(found, expected)
    assert not same_state(pieces, convert(normalised()))


class Counting(nn.Module):
    """Changes whenever it is called, in evaluation too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_the_networks_given_stay_bit_for_bit(norm):
    torch.manual_seed(7)
    conv = norm(nn.Conv2d(2, 6, 3))
    plain = nn.Sequential(Counting(), conv, nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3)).train()
    converted, reference = convert(plain), copy.deepcopy(plain)
    calibrate(converted, IMAGES, reference=reference, steps=3)
    for each in (converted, reference):
        assert same_state(each, plain)
        assert all(layer.training for layer in each.modules())


class Branching(nn.Module):
    """Uses its second layer when told to, and its third never."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.first, self.second, self.idle = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))

    def forward(self, x, more):
        return self.second(self.first(x)) if more else self.first(x)


def test_a_layer_that_some_batches_skip_is_fitted_where_it_is_called_and_one_never_called_is_named():
    plain = Branching()
    batches = [(some, more) for some in IMAGES.split(6) for more in (False, True)]
    converted = convert(plain, scales=(0.5, 1, 2))
    with pytest.warns(UserWarning, match="left as converted, since no image came to them: idle$") as said:
        network = calibrate(converted, batches, steps=60, call=lambda model, batch: model(*batch))
    assert [warning.filename for warning in said] == [__file__]
    for more in (False, True):
        assert error(network, plain, more) < 0.8 * error(converted, plain, more)


@pytest.mark.parametrize("caller", [SIConv2d, nn.Conv2d])
def test_a_layer_that_only_one_of_the_networks_calls_is_named(caller):
    shape, none = r"gives shape \(8, 2, 12, 12\)", "gives no output"
    found, expected = (shape, none) if caller is SIConv2d else (none, shape)
    with pytest.raises(ValueError, match=rf"but 'second' {found} where that one {expected}: leave it out by the `excl"):
        calibrate(convert(Branching()), IMAGES, call=lambda model, batch: model(batch, type(model.first) is caller))


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Notebook(io.StringIO):
    """As a notebook has it: no terminal, but a line can be written anew."""


Notebook.__module__ = "ipykernel.iostream"


def shown(monkeypatch, stream, seconds=2, **options):
    """What three steps of two seconds each leave on standard error."""
    monkeypatch.setattr(sys, "stderr", stream)
    now = itertools.count(0, seconds)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    calibrate(convert(nn.Conv2d(2, 2, 3)), IMAGES, steps=3, **options)
    return stream and stream.getvalue()


@pytest.mark.parametrize("stream", [Terminal, Notebook])
def test_a_terminal_and_a_notebook_show_a_bar_the_rate_and_the_time_left(monkeypatch, stream):
    monkeypatch.setenv("TERM", "xterm")
    lines = shown(monkeypatch, stream()).split("\r")
    assert lines[2].rstrip() == "calibrating [#############.......] 2/3  0.5 steps/s  at most 2 s left"
    assert lines[3].startswith("calibrating [####################] 3/3")
    assert len(lines) == 5
    assert all(len(line) >= 79 for line in lines[1:])  # so that nothing is left of a longer one
    end = r"calibrated in 8 s, [a-z0-9 ]+: error on held-out images ([\d.]+), ([\d.]+) before; returned in a copy, the"
    after, before = map(float, re.match(end, lines[4]).groups())
    assert after < before
    assert lines[4].endswith("\n")


def test_a_log_has_a_line_every_ten_seconds_and_one_at_the_end(monkeypatch):
    lines = shown(monkeypatch, io.StringIO(), seconds=6).splitlines()
    assert [line[:40] for line in lines[:-1]] == ["calibrating [#############.......] 2/3  "]
    assert lines[-1].startswith("calibrated in 24 s, ")


@pytest.mark.parametrize(
    ("terminal", "stream", "options"),
    [("xterm", Terminal(), {"quiet": True}), ("xterm", None, {}), ("dumb", Terminal(), {"inplace": True})],
    ids=["quiet", "no standard error", "a dumb terminal in place"],
)
def test_nothing_is_shown_where_it_cannot_or_should_not_be(monkeypatch, terminal, stream, options):
    monkeypatch.setenv("TERM", terminal)
    text = shown(monkeypatch, stream, **options)
    assert "\r" not in (text or "")
    assert bool(text) == ("inplace" in options)
    assert "copy" not in (text or "")


def test_an_error_is_reported_below_the_bar(monkeypatch):
    def call(model, batch):
        if torch.is_grad_enabled() and next(made) == 2:
            raise RuntimeError
        return model(batch)

    made = itertools.count()
    stream = Terminal()
    with pytest.raises(RuntimeError):
        shown(monkeypatch, stream, call=call)
    assert stream.getvalue().endswith(" \n")
