"""Energy, conditionals and gradients of both RBMs against enumeration: 9 visible units, 3 hidden ones, 3 scales."""

import math

import pytest
import torch
from torch.nn import functional as F

from helpers.rbm_reference import HIDDEN, SCALES, SIZE, Tiny, transform_loops
from helpers.tolerance import assert_close
from scaleconv.models.boltzmann import draw_hidden
from scaleconv.models.contrastive import ContrastiveDivergence, Recipe
from scaleconv.models.si_rbm import SIRBM
from scaleconv.ops.geometry import Axis
from scaleconv.ops.resampling import linear_map

PLAIN = Recipe(batch=4, weight_decay=0, sparsity_cost=0)


@pytest.fixture(params=[SCALES, (1.0,), None], ids=["three scales", "scale 1", "RBM"])
def tiny(request):
    return Tiny(request.param)


def hidden_given(tiny, images):
    machine = tiny.model.machine
    return machine.hidden(machine.transform.spread(images))


def test_hidden_probabilities_are_those_of_enumeration(tiny):
    expected = torch.stack([tiny.hidden_means(image) for image in tiny.images])
    assert_close(hidden_given(tiny, tiny.images), expected)
    assert_close(tiny.model.transform(tiny.images), expected.sum(1))


def test_visible_probabilities_are_those_of_enumeration(tiny):
    for state in tiny.hidden_states[::5]:
        hidden = tiny.one_hot(state)
        weights = [math.exp(-tiny.energy(visible, state)) for visible in tiny.visible_states]
        expected = sum(w * v for w, v in zip(weights, tiny.visible_states, strict=True)) / math.fsum(weights)
        assert_close(tiny.model.machine.visible(hidden.unsqueeze(0))[0], expected)


def test_the_free_energy_is_that_of_enumeration(tiny):
    expected = torch.tensor([tiny.free_energy(image) for image in tiny.images], dtype=torch.float64)
    assert_close(tiny.model.free_energy(tiny.images), expected)


def test_the_statistics_are_the_gradient_of_the_free_energy(tiny):
    machine = tiny.model.machine
    parameters = [parameter.requires_grad_() for parameter in machine.parameters()]
    gradients = torch.autograd.grad(-machine.free_energy(tiny.images).mean(), parameters)
    levels = machine.transform.spread(tiny.images)
    with torch.no_grad():
        statistics = machine.statistics(tiny.images, levels, machine.hidden(levels))
    for gradient, statistic in zip(gradients, statistics, strict=True):
        assert_close(statistic, gradient)


def test_both_phases_make_the_gradient_of_the_exact_likelihood(tiny):
    """∂ mean log p(v) = statistics under the data − statistics under the model, the model by listing its states."""
    machine = tiny.model.machine
    data = torch.stack(tiny.visible_states[3::100])
    every = torch.stack(tiny.visible_states)
    chances = tiny.visible_distribution()
    hidden = hidden_given(tiny, every) * (len(every) * chances).view(-1, 1, 1)  # their mean is the expectation
    negative = list(machine.statistics(every, machine.transform.spread(every), hidden))
    negative[2] = chances @ every
    positive = machine.statistics(data, machine.transform.spread(data), hidden_given(tiny, data))
    parameters = [parameter.clone().requires_grad_() for parameter in machine.parameters()]
    for kept, parameter in zip(("weight", "hidden_bias", "visible_bias"), parameters, strict=True):
        setattr(machine, kept, parameter)
    likelihood = -machine.free_energy(data).mean() - torch.logsumexp(-machine.free_energy(every), 0)
    for exact, p, n in zip(torch.autograd.grad(likelihood, parameters), positive, negative, strict=True):
        assert_close(p - n, exact)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_gradient_is_the_difference_of_both_phases_for_the_samples_drawn(tiny, steps, persistent):
    recipe = Recipe(batch=4, weight_decay=0, sparsity_cost=0, steps=steps, persistent=persistent)
    training = ContrastiveDivergence(tiny.model.machine, tiny.images, recipe, torch.Generator().manual_seed(1))
    chains = list(tiny.images)
    if persistent:  # as left by a step on other images
        chains = list(1 - tiny.images)
        training.chains = torch.stack(chains)
    actual = training.gradient(tiny.images)

    # The same random numbers, used one state at a time.
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        chances = torch.rand(4, 1, HIDDEN, generator=generator, dtype=torch.float64)[:, 0]
        for n, visible in enumerate(chains):
            means, state = tiny.hidden_means(visible), []
            for unit in range(HIDDEN):
                reached = [scale for scale in range(len(means)) if chances[n, unit] < means[: scale + 1, unit].sum()]
                state.append(reached[0] if reached else None)
            pattern = sum(
                tiny.transforms[scale].T @ tiny.weight[unit] for unit, scale in enumerate(state) if scale is not None
            )
            chains[n] = torch.sigmoid(pattern + tiny.visible_bias)
        if persistent:
            coins = torch.rand(4, 9, generator=generator, dtype=torch.float64)
            chains = [(coin < chain).double() for coin, chain in zip(coins, chains, strict=True)]
    for index, gradient in enumerate(actual):
        expected = sum(
            tiny.minus_energy_gradient(image, tiny.hidden_means(image))[index]
            - tiny.minus_energy_gradient(chain, tiny.hidden_means(chain))[index]
            for image, chain in zip(tiny.images, chains, strict=True)
        )
        assert_close(gradient, expected / 4)
    if persistent:
        assert_close(training.chains, torch.stack(chains))


def test_decay_and_sparsity_add_to_the_gradient(tiny):
    machine, images = tiny.model.machine, tiny.images
    full = Recipe(batch=4, weight_decay=0.3, sparsity_cost=2, sparsity_target=0.1)
    plain, more = (
        ContrastiveDivergence(machine, images, recipe, torch.Generator().manual_seed(0)).gradient(images)
        for recipe in (PLAIN, full)
    )
    activity = torch.stack([tiny.hidden_means(image).sum(0) for image in images]).mean(0)
    assert_close(more[0] - plain[0], -0.3 * tiny.weight)
    assert_close(more[1] - plain[1], (2 * (0.1 - activity)).expand_as(plain[1]))
    assert_close(more[2], plain[2])


def test_drawn_hidden_states_have_the_probabilities_and_at_most_one_scale():
    tiny, count = Tiny(), 20_000
    means = hidden_given(tiny, tiny.images[:1])
    states = draw_hidden(means.expand(count, -1, -1), torch.Generator().manual_seed(0))
    assert set(states.unique().tolist()) == {0, 1}
    assert set(states.sum(1).unique().tolist()) == {0, 1}
    torch.testing.assert_close(states.mean(0), means[0], rtol=0, atol=4 * 0.5 / count**0.5)


def test_the_pseudo_likelihood_over_all_pixels_is_the_exact_one(tiny):
    pixels = len(tiny.visible_bias)
    for image in tiny.images:
        expected = 0
        for i in range(pixels):
            off, on = image.clone(), image.clone()
            off[i], on[i] = 0, 1
            chance = 1 / (1 + math.exp(tiny.free_energy(on) - tiny.free_energy(off)))
            expected += image[i] * math.log(chance) + (1 - image[i]) * math.log(1 - chance)
        estimates = tiny.model.pseudo_likelihood(image.expand(pixels, -1), pixels=torch.arange(pixels))
        assert_close(estimates.mean(), expected)


def test_gibbs_samples_have_the_models_means():
    tiny, count = Tiny(), 4000
    expected = tiny.visible_distribution() @ torch.stack(tiny.visible_states)
    samples = tiny.model.sample(count, steps=100)
    torch.testing.assert_close(samples.mean(0), expected, rtol=0, atol=4 * 0.5 / count**0.5)


@pytest.mark.parametrize("size", [SIZE, (4, 7), (7, 4)])
@pytest.mark.parametrize("canvas", [SIZE, (5, 2)])
def test_transforms_are_those_of_the_loops_and_gather_is_their_transpose(size, canvas):
    pixels, filter_pixels = math.prod(size), math.prod(canvas)
    model = SIRBM(2, size, scales=SCALES, filter_size=canvas)
    model.load(*(torch.zeros(shape, dtype=torch.float64) for shape in ((2, filter_pixels), (3, 2), (pixels,))))
    transform = model.machine.transform
    dense = torch.stack([transform_loops(scale, size, canvas) for scale in SCALES])  # (S, D, V)
    images = torch.rand(2, 5, pixels, dtype=torch.float64)
    patterns = torch.rand(2, 5, 3, filter_pixels, dtype=torch.float64)
    assert_close(transform.spread(images), torch.einsum("sdv,rnv->rnsd", dense, images))
    assert_close(transform.gather(patterns), torch.einsum("sdv,rnsd->rnv", dense, patterns))


@pytest.mark.parametrize(("scale", "length"), [(2.0, 28), (1.5, 28), (0.5, 28), (9 / 7, 7), (5 / 7, 7)])
def test_a_transform_is_the_level_of_the_layer_cropped_or_framed_at_the_centre(scale, length):
    axis = Axis(length, kernel=1, stride=1, padding=(0, 0), dilation=1)
    level = linear_map(axis.level(scale).sources, length).dense()  # (h, length)
    margin = (length - len(level)) // 2
    assert (length - len(level)) % 2 == 0
    expected = F.pad(level, (0, 0, margin, margin))
    model = SIRBM(1, length, scales=(1, scale))
    model.load(*(torch.zeros(shape, dtype=torch.float64) for shape in ((1, length**2), (2, 1), (length**2,))))
    assert_close(model.machine.transform.rows[1], expected)
