"""The RBMs as a user meets them: learning, determinism, several machines at once."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

from helpers.small_rbms import IMAGES, QUICK, kinds, make, random_images
from scaleconv.models.contrastive import ContrastiveDivergence, Recipe
from scaleconv.models.rbm import RBM, products_like_convolutions
from scaleconv.models.si_rbm import SIRBM


def bars(count=400, side=6, seed=0):
    """One bright row or column per image: 2·side patterns, known in full."""
    random = torch.Generator().manual_seed(seed)
    images = torch.zeros(count, side, side)
    for image, which in zip(images, torch.randint(2 * side, (count,), generator=random).tolist(), strict=True):
        image[which if which < side else slice(None), slice(None) if which < side else which - side] = 1
    return images.flatten(1)


def same_state(one, other):
    return all(torch.equal(one.state()[name], other.state()[name]) for name in one.state())


@pytest.mark.parametrize("recipe", [QUICK, Recipe(epochs=2, batch=20, steps=2, persistent=True)], ids=["CD-1", "PCD-2"])
def test_with_the_single_scale_one_the_si_rbm_is_the_rbm(recipe):
    images = random_images()
    plain, invariant = RBM(7, recipe).fit(images), SIRBM(7, 8, recipe, scales=(1,)).fit(images)
    assert same_state(plain, invariant)
    assert torch.equal(plain.transform(images), invariant.transform(images))
    assert torch.equal(plain.sample(3, 5), invariant.sample(3, 5))


def test_one_filter_serves_all_scales():
    """As many weights as the RBM; only the biases come once per scale."""
    plain, invariant = (make(kind).fit(random_images()) for kind in ("rbm", "si_rbm"))
    assert plain.weight.shape == invariant.weight.shape == (7, 64)
    assert plain.hidden_bias.shape == (1, 7)
    assert invariant.hidden_bias.shape == (2, 7)


def test_a_unit_answers_alike_to_an_image_and_to_its_enlargement():
    """A filter matched to a square answers to squares of twice the size, if 0.5 is among its scales."""
    small, large = torch.zeros(12, 12), torch.zeros(12, 12)
    small[4:8, 4:8], large[2:10, 2:10] = 1, 1
    filters = torch.where(small > 0, 1.0, -1.0).flatten().unsqueeze(0)
    images = torch.stack([small, large]).flatten(1)
    features = {}
    for scales in [(1,), (1, 0.5)]:
        model = SIRBM(1, 12, scales=scales).load(filters, torch.full((len(scales), 1), -10.0), torch.zeros(144))
        features[scales] = model.transform(images)[:, 0]
    assert features[(1,)][0] > 0.99
    assert features[(1,)][1] < 0.01
    assert features[(1, 0.5)].min() > 0.99


@kinds
def test_fit_is_a_function_of_images_and_seed(kind):
    images = random_images()
    first = make(kind).fit(images)
    torch.rand(5)  # whatever happens to the global generator
    assert same_state(first, make(kind).fit(images))
    assert same_state(first, first.fit(images))
    assert len(first.history) == QUICK.epochs
    assert not torch.equal(first.weight, make(kind, seed=1).fit(images).weight)


@kinds
def test_machines_learned_together_end_as_they_would_alone(kind):
    stacked = torch.stack([random_images(seed=seed) for seed in range(3)])
    together = make(kind).fit(stacked)
    assert together.weight.shape == (3, 7, 64)
    for index, images in enumerate(stacked):
        alone, one = make(kind).fit(images), together.run(index)
        for name, tensor in one.state().items():
            torch.testing.assert_close(tensor, alone.state()[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.transform(images), together.transform(stacked)[index])
        torch.testing.assert_close(one.free_energy(images), together.free_energy(stacked)[index])
        assert one.history[-1].reconstruction == pytest.approx(alone.history[-1].reconstruction.item(), rel=1e-4)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("scales", [None, (1, 1.5)], ids=["rbm", "si_rbm"])
def test_learning_tells_the_images_from_others(scales, persistent):
    images, recipe = bars(), Recipe(epochs=40, batch=20, sparsity_target=0.1, persistent=persistent)
    model = (SIRBM(24, 6, recipe, scales=scales) if scales else RBM(24, recipe)).fit(images)
    shuffled = images[:, torch.randperm(36, generator=torch.Generator().manual_seed(1))]
    assert model.free_energy(bars(seed=1)).mean() < model.free_energy(shuffled).mean() - 5
    assert model.pseudo_likelihood(bars(seed=1)).mean() > model.pseudo_likelihood(shuffled).mean() + 5
    assert model.history[-1].reconstruction < 0.5 * model.history[0].reconstruction
    assert (model.reconstruct(images) - images).square().mean() < 0.5 * images.var()
    assert [entry.epoch for entry in model.history] == list(range(1, 41))


@pytest.mark.parametrize("target", [0.05, 0.3])
def test_the_sparsity_target_is_met(target):
    recipe = Recipe(epochs=30, batch=20, learning_rate=0.1, sparsity_target=target, sparsity_cost=10)
    model = RBM(20, recipe).fit(bars())
    assert model.transform(bars()).mean() == pytest.approx(target, rel=0.3)
    assert model.history[-1].activity == pytest.approx(target, rel=0.4)  # of one batch


def test_the_rate_is_constant_for_half_of_the_epochs_and_then_falls():
    assert [Recipe(epochs=5, learning_rate=0.5).rate(epoch) for epoch in range(1, 6)] == pytest.approx(
        [0.5, 0.5, 0.5, 0.4, 0.2]
    )


def test_steps_follow_the_gradient_with_momentum():
    """v ← m·v + g, w ← w + rate·v, the gradients taken from a twin that draws the same numbers."""
    machine, recipe = make("si_rbm").fit(IMAGES).machine, Recipe(batch=20, momentum=0.7)
    twin = copy.deepcopy(machine)
    training, other = (
        ContrastiveDivergence(one, IMAGES, recipe, torch.Generator().manual_seed(0)) for one in (machine, twin)
    )
    velocities = [torch.zeros_like(parameter) for parameter in twin.parameters()]
    for images in IMAGES.split(20)[:3]:
        training.step(images, 0.1)
        gradients = other.gradient(images)
        velocities = [0.7 * velocity + gradient for velocity, gradient in zip(velocities, gradients, strict=True)]
        for parameter, velocity in zip(twin.parameters(), velocities, strict=True):
            parameter += 0.1 * velocity
    for parameter, expected in zip(machine.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected)


def test_weight_decay_shrinks_the_weights():
    norms = [
        RBM(7, Recipe(epochs=20, batch=20, weight_decay=decay)).fit(random_images()).weight.norm() for decay in (0, 0.5)
    ]
    assert norms[1] < 0.5 * norms[0]


def test_chains_start_where_they_are_told():
    model = make("rbm").load(10 * torch.eye(7, 64), torch.full((1, 7), -5.0), torch.full((64,), -5.0))
    start = torch.zeros(2, 64)
    start[1, 3] = 1
    samples = model.sample(2, 1, start=start)
    assert samples[1, 3] > 0.9
    assert samples[0].max() < 0.1


def test_watchers_are_told_of_every_epoch():
    seen = []
    make("rbm").fit(random_images(), watch=seen.append)
    assert [entry.epoch for entry in seen] == [1, 2, 3]


def test_float64_stays_float64():
    model = make("si_rbm").fit(random_images().double())
    assert {tensor.dtype for tensor in model.state().values()} == {torch.float64}
    assert model.sample(2, 2).dtype == torch.float64


def test_integers_of_numpy_are_accepted():
    assert RBM(np.int64(3), QUICK).fit(IMAGES).weight.shape == (3, 64)


def test_divergence_is_an_error_not_a_result():
    with pytest.raises(ValueError, match=r"training diverged in epoch 1: lower `learning_rate` \(=1e\+30\)"):
        RBM(7, Recipe(epochs=3, batch=20, learning_rate=1e30)).fit(IMAGES)


def test_what_was_learned_stays_when_learning_fails():
    model = RBM(7, QUICK).fit(IMAGES)
    before = model.transform(IMAGES)
    model.recipe = Recipe(epochs=3, batch=20, learning_rate=1e30)
    with pytest.raises(ValueError, match="diverged"):
        model.fit(IMAGES)
    assert torch.equal(model.transform(IMAGES), before)
    assert len(model.history) == QUICK.epochs
    fresh = RBM(7, Recipe(batch=1000))
    with pytest.raises(ValueError, match="`batch`"):
        fresh.fit(IMAGES)
    with pytest.raises(RuntimeError, match="has not learned anything"):
        fresh.transform(IMAGES)


@kinds
def test_before_the_first_step_units_are_as_likely_on_as_they_should_be_and_weights_as_wide_as_asked(kind):
    still = Recipe(epochs=1, batch=100, learning_rate=0, sparsity_target=0.07, initial_std=0.02)
    model = make(kind, still, hidden=200).fit(IMAGES)
    assert model.weight.std() == pytest.approx(0.02, rel=0.05)
    model.load(torch.zeros_like(model.weight), model.hidden_bias, model.visible_bias)
    torch.testing.assert_close(model.transform(IMAGES), torch.full((100, 200), 0.07))


def test_a_chain_goes_on_from_drawn_images():
    """Two steps by enumeration: p(v₂ = 1) = Σ p(h₀ | v₀) p(v₁ | h₀) p(h₁ | v₁) p(v₂ = 1 | h₁), the one hidden unit."""
    weight, hidden_bias, visible_bias = torch.tensor([4.0, 3.0]), -3.0, torch.tensor([-1.0, -2.0])
    start = torch.tensor([1.0, 0.0])
    expected = torch.zeros(2)
    for on, then, first, second in itertools.product((0, 1), repeat=4):
        between = torch.tensor([first, second]).float()
        chances = [
            torch.sigmoid(start @ weight + hidden_bias),
            *torch.sigmoid(on * weight + visible_bias),
            torch.sigmoid(between @ weight + hidden_bias),
        ]
        happened = (on, first, second, then)
        chance = math.prod(p if is_so else 1 - p for p, is_so in zip(chances, happened, strict=True))
        expected += chance * torch.sigmoid(then * weight + visible_bias)
    model = RBM(1).load(weight[None], torch.tensor([[hidden_bias]]), visible_bias)
    drawn = model.sample(40_000, 2, start=start.repeat(40_000, 1)).mean(0)
    torch.testing.assert_close(drawn, expected, rtol=0, atol=0.01)


@pytest.fixture
def precision():
    """What torch says of its precision may be changed in a test."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize(
    ("device", "convolutions", "asked", "expected"),
    [
        ("cuda", True, "highest", "high"),
        ("cuda", False, "highest", "highest"),
        ("cpu", True, "highest", "highest"),
        ("cuda", True, "medium", "medium"),
        ("cuda", False, "high", "high"),
    ],
)
def test_products_of_training_are_tf32_where_convolutions_are(device, convolutions, asked, expected):
    torch.set_float32_matmul_precision(asked)
    torch.backends.cudnn.allow_tf32 = convolutions
    with products_like_convolutions(torch.device(device)):
        assert torch.get_float32_matmul_precision() == expected
    assert torch.get_float32_matmul_precision() == asked


@pytest.mark.usefixtures("precision")
def test_the_precision_is_put_back_when_training_breaks_off():
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(KeyboardInterrupt), products_like_convolutions(torch.device("cuda")):
        raise KeyboardInterrupt
    assert torch.get_float32_matmul_precision() == "highest"
