"""A step of each optimiser against its formula, and the running mean against its closed form, in float64."""

import math

import pytest
import torch
from torch import nn

from scaleconv.experiments.optimiser import KEPT, make_optimiser, mean_moves, move_average

RATE, DECAY, MOMENTUM, BIAS_RATE = 0.03, 0.2, 0.7, 2.0
FIRST, SECOND, LEAST = 0.9, 0.999, 1e-8  # of Adam, as PyTorch has them
STEPS = 4


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64)


def follow(name, value, gradients, rate, decay):
    """The numbers of a parameter after steps with these gradients, one number at a time."""
    after = []
    for number, *pulls in zip(value.flatten().tolist(), *(g.flatten().tolist() for g in gradients), strict=True):
        speed = first = second = 0.0
        for step, pull in enumerate(pulls, start=1):
            if name == "sgd":
                speed = MOMENTUM * speed + pull + decay * number
                number -= rate * speed
                continue
            if name == "adam":
                pull += decay * number
            else:
                number -= rate * decay * number
            first = FIRST * first + (1 - FIRST) * pull
            second = SECOND * second + (1 - SECOND) * pull**2
            mean, square = first / (1 - FIRST**step), second / (1 - SECOND**step)
            number -= rate * mean / (math.sqrt(square) + LEAST)
        after.append(number)
    return torch.tensor(after, dtype=torch.float64).view(value.shape)


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_weights_decay_and_biases_have_a_rate_of_their_own(name, varies):
    torch.manual_seed(0)
    layer = nn.Linear(3, 2, dtype=torch.float64)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    gradients = [(numbers(2, 3), numbers(2)) for _ in range(STEPS)]
    optimiser = make_optimiser(
        name,
        layer.parameters(),
        RATE,
        weight_decay=DECAY,
        momentum=MOMENTUM,
        bias_rate=BIAS_RATE,
        varies=varies,
    )
    for layer.weight.grad, layer.bias.grad in gradients:
        optimiser.step()
    of_weight, of_bias = zip(*gradients, strict=True)
    close = {"rtol": 1e-6 if varies else 1e-12, "atol": 1e-7 if varies else 1e-14}  # a rate that varies is float32
    torch.testing.assert_close(layer.weight.detach(), follow(name, weight, of_weight, RATE, DECAY), **close)
    torch.testing.assert_close(layer.bias.detach(), follow(name, bias, of_bias, RATE * BIAS_RATE, 0.0), **close)


@pytest.mark.parametrize("name", KEPT)
def test_what_a_checkpoint_keeps_is_what_an_optimiser_has(name):
    layer = nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    optimiser = make_optimiser(name, layer.parameters(), RATE, weight_decay=DECAY)
    optimiser.step()
    for parameter in layer.parameters():
        assert set(optimiser.state[parameter]) == set(KEPT[name].values())


@pytest.mark.parametrize("name", KEPT)
def test_a_parameter_without_a_gradient_is_left_alone(name):
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    optimiser = make_optimiser(name, layer.parameters(), RATE, weight_decay=DECAY)
    assert [[id(each) for each in group["params"]] for group in optimiser.param_groups] == [[], [id(layer.bias)]]


@pytest.mark.parametrize("name", KEPT)
def test_a_rate_that_varies_is_read_at_every_step(name):
    layer = nn.Linear(3, 2)
    optimiser = make_optimiser(name, layer.parameters(), RATE, weight_decay=DECAY, varies=True)
    before = layer.weight.detach().clone()
    layer(torch.ones(1, 3)).sum().backward()
    for group in optimiser.param_groups:
        group["lr"].zero_()
    optimiser.step()
    assert torch.equal(layer.weight, before)


def test_a_running_mean_of_weights_that_stand_still_is_a_product_of_decays():
    """From 1 to 0 in n steps: the product of (1 + k) / (10 + k), k = 1 … n, is (n + 1)! 10! / (n + 10)!."""
    left = 1.0
    for step in range(20):
        left *= 1 - mean_moves(0.999, step)
        exact = math.factorial(step + 2) * math.factorial(10) / math.factorial(step + 11)
        assert left == pytest.approx(exact, rel=1e-12)


def test_a_running_mean_comes_to_its_decay_and_without_one_follows_at_once():
    moves = [mean_moves(0.9, step) for step in range(100)]
    assert moves == sorted(moves, reverse=True)
    assert [step for step, share in enumerate(moves) if share == pytest.approx(0.1)] == list(range(79, 100))
    assert [mean_moves(0.0, step) for step in (0, 7)] == [1, 1]


@pytest.mark.parametrize("share", [0.1, torch.tensor(0.1)])
def test_the_running_mean_is_that_of_the_weights(share):
    torch.manual_seed(0)
    mean, ours = (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).double() for _ in "ab")
    expected = {name: tensor.clone() for name, tensor in mean.state_dict().items()}
    for _ in range(3):
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.add_(torch.randn_like(parameter))
            ours[1].num_batches_tracked += 1
            ours[1].running_mean += 1
        move_average(mean, ours, share)
        for name, tensor in ours.state_dict().items():
            whole = not tensor.is_floating_point()
            expected[name] = tensor.clone() if whole else (1 - float(share)) * expected[name] + float(share) * tensor
    assert mean[1].num_batches_tracked == 3
    for name, tensor in mean.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-12, atol=1e-14)
