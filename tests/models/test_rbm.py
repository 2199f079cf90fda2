"""Both RBMs against enumeration of all states, training against loops, and what they refuse."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from helpers.rbm_reference import HIDDEN, PIXELS, SCALES, Tiny
from helpers.tolerance import assert_close
from scaleconv.models import RBM, SIRBM, Recipe
from scaleconv.models.rbm import canvas_matrix
from scaleconv.ops.geometry import Axis
from scaleconv.ops.resampling import linear_map

KINDS = pytest.mark.parametrize("scales", [SCALES, (1.0,), ()], ids=["three scales", "scale 1", "RBM"])
QUICK = Recipe(epochs=3, batch=20)
IMAGES = torch.rand(100, 64, generator=torch.Generator().manual_seed(0)) ** 3


@KINDS
def test_features_are_the_hidden_means_of_enumeration(scales):
    tiny = Tiny(scales)
    expected = torch.stack([tiny.hidden_means(image).sum(0) for image in tiny.images])
    assert_close(tiny.model.transform(tiny.images), expected)


@KINDS
@pytest.mark.parametrize(("steps", "persistent"), [(1, False), (3, False), (2, True)])
def test_the_gradient_is_the_difference_of_both_phases_with_decay_and_sparsity(scales, steps, persistent):
    recipe = Recipe(weight_decay=0.3, sparsity_target=0.1, sparsity_cost=2, steps=steps, persistent=persistent)
    tiny = Tiny(scales, recipe)
    chains = list(1 - tiny.images) if persistent else list(tiny.images)
    begun = torch.stack(chains) if persistent else None
    actual, ended = tiny.model._gradients(tiny.images, begun, torch.Generator().manual_seed(1))

    generator = torch.Generator().manual_seed(1)  # the same random numbers, used one state at a time
    for _ in range(steps):
        chances = torch.rand(12, 1, HIDDEN, generator=generator, dtype=torch.float64)[:, 0]
        for n, visible in enumerate(chains):
            means, total = tiny.hidden_means(visible), tiny.visible_bias.clone()
            for unit in range(HIDDEN):
                reached = [scale for scale in range(len(means)) if chances[n, unit] < means[: scale + 1, unit].sum()]
                if reached:
                    total += tiny.transforms[reached[0]].T @ tiny.weight[unit]
            chains[n] = torch.sigmoid(total)
        if persistent:
            coins = torch.rand(12, PIXELS, generator=generator, dtype=torch.float64)
            chains = [(coin < chain).double() for coin, chain in zip(coins, chains, strict=True)]
    means = [tiny.hidden_means(image) for image in tiny.images]
    extra = -0.3 * tiny.weight, 2 * (0.1 - sum(means).sum(0) / 12), 0
    for index, gradient in enumerate(actual):
        expected = sum(
            tiny.minus_energy_gradient(image, mean)[index]
            - tiny.minus_energy_gradient(chain, tiny.hidden_means(chain))[index]
            for image, mean, chain in zip(tiny.images, means, chains, strict=True)
        )
        assert_close(gradient, expected / 12 + extra[index])
    assert (ended is None) == (not persistent)
    if persistent:
        assert_close(ended, torch.stack(chains))


@pytest.mark.parametrize("persistent", [False, True])
def test_training_is_momentum_on_batches_in_random_order(persistent):
    """Weights, velocities, chains and order written out; five images make two batches of two."""
    images = torch.rand(5, PIXELS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    images[:2] /= 10  # where persistent chains start
    images[:, 0] = 0  # a pixel that is never on
    recipe = Recipe(
        epochs=4, batch=2, momentum=0.7, learning_rate=0.3, sparsity_target=0.4, initial_std=2, persistent=persistent
    )
    seen = []
    model = SIRBM(HIDDEN, (3, 4), recipe, scales=SCALES, seed=6).fit(images, seen.append)

    generator = torch.Generator().manual_seed(6)
    frequencies = images.mean(0).clamp(0.01, 0.99)
    parameters = [
        2 * torch.empty(HIDDEN, PIXELS, dtype=torch.float64).normal_(generator=generator),
        torch.full((3, HIDDEN), math.log(0.4 / 0.6 / 3), dtype=torch.float64),  # a unit is on with chance 0.4
        (frequencies / (1 - frequencies)).log(),
    ]
    velocities, chains = [torch.zeros_like(p) for p in parameters], images[:2] if persistent else None
    twin = SIRBM(HIDDEN, (3, 4), recipe, scales=SCALES)
    for rate in (0.3, 0.3, 0.3, 0.15):
        order = torch.randperm(5, generator=generator)
        for chosen in (order[:2], order[2:4]):
            gradients, chains = twin.load(*parameters)._gradients(images[chosen], chains, generator)
            velocities = [0.7 * v + g for v, g in zip(velocities, gradients, strict=True)]
            parameters = [p + rate * v for p, v in zip(parameters, velocities, strict=True)]
    for actual, expected in zip(model.state().values(), parameters, strict=True):
        assert_close(actual, expected)
    weight, _, visible_bias = parameters
    twin.load(*parameters)
    dense = torch.stack(Tiny().transforms)  # (S, V, V)
    hidden = twin._hidden(torch.einsum("svw,nw->nsv", dense, images[chosen]))
    reconstruction = torch.sigmoid(torch.einsum("nsj,jv,svw->nw", hidden, weight, dense) + visible_bias)
    assert_close(model.history[-1].reconstruction, (reconstruction - images[chosen]).square().mean())
    assert seen == model.history
    assert [entry.epoch for entry in seen] == [1, 2, 3, 4]


def test_gibbs_samples_have_the_models_means():
    tiny, count = Tiny(), 4000
    drawn = tiny.model.sample(torch.ones(count, PIXELS, dtype=torch.float64), 50).mean(0)
    torch.testing.assert_close(drawn, tiny.visible_means(), rtol=0, atol=2 / count**0.5)


def test_a_chain_goes_from_its_start_through_drawn_images():
    """Two steps by enumeration: p(v₂ = 1) = Σ p(h₀ | v₀) p(v₁ | h₀) p(h₁ | v₁) p(v₂ = 1 | h₁), the one hidden unit."""
    weight, hidden_bias, visible_bias = torch.tensor([4.0, 3.0]), -3.0, torch.tensor([-1.0, -2.0])
    start, expected = torch.tensor([0.0, 0.0]), torch.zeros(2)
    for on, first, second, then in itertools.product((0, 1), repeat=4):
        chances = [
            torch.sigmoid(start @ weight + hidden_bias),
            *torch.sigmoid(on * weight + visible_bias),
            torch.sigmoid(torch.tensor([first, second]).float() @ weight + hidden_bias),
        ]
        chance = math.prod(p if is_on else 1 - p for p, is_on in zip(chances, (on, first, second, then), strict=True))
        expected += chance * torch.sigmoid(then * weight + visible_bias)
    model = RBM(1).load(weight[None], torch.tensor([[hidden_bias]]), visible_bias)
    drawn = model.sample(start.repeat(40_000, 1), 2).mean(0)
    torch.testing.assert_close(drawn, expected, rtol=0, atol=0.01)


@pytest.mark.parametrize(("scale", "length"), [(2.0, 28), (1.5, 28), (0.5, 28), (9 / 7, 7), (5 / 7, 7)])
def test_a_transform_is_the_level_of_the_layer_cropped_or_framed_at_the_centre(scale, length):
    axis = Axis(length, kernel=1, stride=1, padding=(0, 0), dilation=1)
    level = linear_map(axis.level(scale).sources, length).dense()  # (h, length)
    margin, odd = divmod(length - len(level), 2)
    assert odd == 0
    assert_close(canvas_matrix(scale, length), F.pad(level, (0, 0, margin, margin)))


@pytest.mark.parametrize(
    "model", [RBM(7, QUICK, seed=1), SIRBM(7, (8, 8), QUICK, scales=(1, 1.5), seed=1)], ids=["RBM", "SI"]
)
def test_machines_trained_together_end_as_they_would_alone(model):
    stacked = torch.stack([IMAGES, IMAGES.flip(1), IMAGES.sqrt()])
    together = [model.fit(stacked).run(index) for index in range(3)]
    features, samples = model.transform(stacked), model.sample(stacked[:, :2], 3)
    assert model.weight.shape == (3, 7, 64)
    torch.rand(5)  # the global generator does not matter
    for index, one in enumerate(together):
        alone = model.fit(stacked[index])
        for name, tensor in one.state().items():
            torch.testing.assert_close(tensor, alone.state()[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(features[index], alone.transform(stacked[index]), rtol=1e-4, atol=1e-5)
        assert len(alone.history) == 3
        torch.testing.assert_close(samples[index], alone.sample(stacked[index, :2], 3), rtol=1e-4, atol=1e-4)
        assert one.history[-1].reconstruction == pytest.approx(alone.history[-1].reconstruction.item(), rel=1e-4)
    assert not torch.equal(alone.weight, RBM(7, QUICK, seed=2).fit(stacked[2]).weight)


def test_machines_may_have_filters_of_their_own_at_the_start():
    still = Recipe(epochs=1, batch=10, learning_rate=0.0)
    model, stacked = RBM(7, still, seed=1), torch.stack([IMAGES, IMAGES])
    shared = model.fit(stacked).weight
    assert torch.equal(shared[0], shared[1])
    first, second = model.fit(stacked, starts=[1, 5]).weight
    assert torch.equal(first, shared[0])  # the seed of the machine itself
    assert torch.equal(second, RBM(7, still, seed=5).fit(IMAGES).weight)
    assert not torch.equal(first, second)


def test_features_of_many_images_are_those_of_each():
    model = RBM(3, QUICK).fit(IMAGES)
    assert_close(model.transform(IMAGES.repeat(11, 1)), model.transform(IMAGES).repeat(11, 1))
    assert RBM(3, QUICK).fit(IMAGES.double()).transform(IMAGES.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(batch=101), r"`batch` \(=101\) must not exceed the 100 images"),
        (Recipe(learning_rate=1e30), "training diverged in epoch 2: lower `learning_rate`"),
    ],
)
def test_too_few_images_and_a_training_that_diverges_are_told(recipe, message):
    with pytest.raises(ValueError, match=message):
        RBM(3, recipe).fit(IMAGES)
