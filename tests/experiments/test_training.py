"""One step of training against the recipe written out by hand, and the parts around it."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from scaleconv.experiments.config import TrainingConfig
from scaleconv.experiments.training import Trainer, count_errors
from scaleconv.models import Shape, make_model

SMALL = Shape(maps=(3, 4), hidden=12)


def make_trainer(model="convnet", count=40, fold=0, **recipe):
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, 1, 28, 28, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 10, (count,), generator=generator)
    torch.manual_seed(0)
    network = make_model(model, SMALL).double()
    return Trainer(network, images, labels, TrainingConfig(**{"batch": 8, **recipe}), seed=3, fold=fold)


@pytest.mark.parametrize("model", ["convnet", "si_convnet", "hierarchical", "ensemble"])
def test_three_steps_equal_the_recipe_written_by_hand(model):
    """v ← m·v + (g + d·w), w ← w − r·v; biases: no d, twice the r."""
    trainer, other = make_trainer(model), make_trainer(model)
    values = dict(other.network.named_parameters())
    speed = {name: torch.zeros_like(value) for name, value in values.items()}
    order = np.random.default_rng([3, 0, 1]).permutation(40)
    trainer.begin_epoch(1)
    losses = []
    for step in range(3):
        trainer.step()
        chosen = torch.from_numpy(order[8 * step : 8 * step + 8])
        scores = other.network(other.images[chosen])
        loss = -F.log_softmax(scores, 1)[torch.arange(8), other.labels[chosen]].mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(values.values()))
        with torch.no_grad():
            for (name, value), gradient in zip(values.items(), gradients, strict=True):
                is_bias = name.endswith("bias")
                speed[name] = 0.9 * speed[name] + gradient + (0 if is_bias else 1e-4) * value
                value -= (0.02 if is_bias else 0.01) * speed[name]
    state = trainer.state()
    for name, value in values.items():
        torch.testing.assert_close(state[f"weight.{name}"], value.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(state[f"momentum.{name}"], speed[name], rtol=0, atol=1e-12)
    assert trainer.loss.item() == pytest.approx(sum(losses), abs=1e-5)


def test_an_epoch_uses_every_full_batch_once_in_an_order_of_its_own():
    trainer = make_trainer(count=43)
    trainer.begin_epoch(1)
    first = trainer.order.clone()
    assert first.shape == (5, 8)
    assert len(first.unique()) == 40
    trainer.begin_epoch(2)
    assert not torch.equal(trainer.order, first)
    trainer.begin_epoch(1)
    assert torch.equal(trainer.order, first)
    another = make_trainer(count=43, fold=1)
    another.begin_epoch(1)
    assert not torch.equal(another.order, first)


def test_ten_thousand_digits_make_78_batches():
    images, labels = torch.zeros(10_000, 1, 1, 1), torch.zeros(10_000, dtype=torch.long)
    assert Trainer(torch.nn.Linear(1, 1), images, labels, TrainingConfig(), seed=0, fold=0).batches == 78


def test_a_state_restored_goes_on_bit_for_bit():
    trainer, resumed = make_trainer("si_convnet"), make_trainer("si_convnet")
    trainer.begin_epoch(1)
    trainer.step()
    trainer.step()
    kept = {name: tensor.clone() for name, tensor in trainer.state().items()}
    for each in (trainer, resumed):
        each.load_state(kept)
        each.begin_epoch(2)
        each.step()
    for name, tensor in trainer.state().items():
        assert torch.equal(tensor, resumed.state()[name])
        assert not torch.equal(tensor, kept[name])


def test_mixed_precision_changes_little_and_keeps_float32_weights():
    exact, mixed = (make_trainer(precision=precision) for precision in ("float32", "bfloat16"))
    for trainer in (exact, mixed):
        trainer.network.float()
        trainer.images = trainer.images.float()
        trainer.begin_epoch(1)
        trainer.step()
    assert mixed.loss.item() != exact.loss.item()
    assert mixed.loss.item() == pytest.approx(exact.loss.item(), abs=0.05)
    assert {tensor.dtype for tensor in mixed.state().values()} == {torch.float32}


def test_errors_are_counted_over_all_batches():
    scores = torch.eye(10).repeat(3, 1)  # digit i scores class i % 10
    labels = torch.arange(30) % 10
    labels[[0, 13, 29]] = 5
    assert count_errors(torch.nn.Identity(), scores, labels, batch=7) == 3


def test_more_to_a_batch_than_there_are_digits_is_refused():
    with pytest.raises(ValueError, match=r"`batch` \(=64\) must not exceed the 40 training digits"):
        make_trainer(batch=64)
