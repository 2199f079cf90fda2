"""A step of training against the recipe written out by hand; networks trained at once end as if each were alone."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from scaleconv.data.rescale import rescale
from scaleconv.experiments import sgd
from scaleconv.experiments.config import TrainingConfig
from scaleconv.experiments.sgd import Trainer, TrainerGroup, choose_device, error_rate
from scaleconv.models import Shape, make_later_model, make_model

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODELS = ["convnet", "si_convnet", "hierarchical"]
STEPS = 2  # of an epoch of networks trained at once


def make_trainer(model="convnet", count=40, fold=0, *, shape=None, device="cpu", dtype=torch.float64, **recipe):
    """A small network and random digits, the same for the same fold."""
    generator = torch.Generator().manual_seed(fold)
    images = torch.rand(count, 1, 28, 28, generator=generator, dtype=torch.float64).sub(0.5).to(device, dtype)
    labels = torch.randint(0, 10, (count,), generator=generator).to(device)
    torch.manual_seed(0)
    network = make_model(model, shape or Shape(maps=(3, 4), hidden=12)).to(device, dtype)
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


@pytest.mark.parametrize("steps", [1, 3, 5, 7, 12])
def test_epochs_of_given_length_go_through_pass_after_pass(steps):
    """Whatever the length of an epoch, its batches follow those of the epoch before, as epochs of one pass would."""
    passes, cut = make_trainer(count=43), make_trainer(count=43, steps=steps)
    whole, parts = [], []
    for epoch in range(1, 6):
        passes.begin_epoch(epoch)
        whole.append(passes.order.clone())
    for epoch in range(1, 25 // steps + 1):
        cut.begin_epoch(epoch)
        assert cut.order.shape == (steps, 8)
        parts.append(cut.order.clone())
    together = torch.cat(parts)
    assert torch.equal(together, torch.cat(whole)[: len(together)])


def test_the_loss_of_an_epoch_of_given_length_is_the_mean_over_its_steps():
    trainer = make_trainer(count=43, steps=3)
    group = TrainerGroup([trainer])
    group.epoch(1)
    assert trainer.cursor.item() == 3
    assert trainer.mean_loss() == pytest.approx(trainer.loss.item() / 3)


def augmented(epoch, **recipe):
    trainer = make_trainer(count=200, **recipe)
    trainer = Trainer(
        trainer.network, trainer.images, trainer.labels, trainer.recipe, seed=3, fold=0, augment=bool(recipe)
    )
    trainer.begin_epoch(epoch)
    return trainer


def test_factors_are_drawn_anew_in_every_epoch_between_the_ends_as_often_below_one_as_above():
    first, second = (augmented(epoch, rescale=(0.5, 2.0)).factors for epoch in (1, 2))
    assert not torch.equal(first, second)
    assert torch.equal(first, augmented(1, rescale=(0.5, 2.0)).factors)
    assert first.shape == (25, 8)
    assert 0.5 <= first.min() < 0.55
    assert 1.9 < first.max() <= 2
    assert abs(first.log().mean()) < 0.1
    assert len(first.unique()) == 200


def test_a_step_with_augmentation_learns_from_the_rescaled_digits_and_others_do_not():
    trainer, plain = augmented(1, rescale=(0.5, 2.0)), augmented(1)
    chosen, factors = trainer.order[0], trainer.factors[0]
    rescaled = rescale(trainer.images[chosen], factors, antialias=True, border="edge")
    expected = F.cross_entropy(trainer.network(rescaled), trainer.labels[chosen])
    as_they_are = F.cross_entropy(plain.network(plain.images[chosen]), plain.labels[chosen])
    trainer.step()
    plain.step()
    assert trainer.loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert plain.loss.item() == pytest.approx(as_they_are.item(), abs=1e-6)
    gradient = dict(trainer.network.named_parameters())["stages.conv1.weight"].grad
    assert not torch.equal(gradient, dict(plain.network.named_parameters())["stages.conv1.weight"].grad)


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


def make_later(count=40, **recipe):
    """A network with BatchNorm and dropout, in float64."""
    plain = make_trainer(count=count)
    torch.manual_seed(0)
    network = make_later_model("cnn", 28, (2, 3, 4), dropout=0.5).double()
    settings = TrainingConfig(batch=8, bias_rate=1.0, **recipe)
    return Trainer(network, plain.images, plain.labels, settings, seed=3, fold=0)


def train_alone(optimiser, other, rates, smoothing=0.0):
    """The same steps by PyTorch's own optimiser; the weights after each."""
    orders = [torch.from_numpy(np.random.default_rng([3, 0, number]).permutation(40)) for number in (1, 2)]
    passed = []
    for rate, chosen in zip(rates, torch.cat(orders).split(8), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad()
        F.cross_entropy(other.network(other.images[chosen]), other.labels[chosen], label_smoothing=smoothing).backward()
        optimiser.step()
        passed.append([value.detach().clone() for value in other.network.parameters()])
    return passed


def test_adam_drops_its_rate_to_a_tenth_after_the_named_epochs():
    recipe = {"optimizer": "adam", "learning_rate": 0.003, "weight_decay": 0.0, "drops": (1,), "epochs": 2}
    trainer, other = (make_trainer(bias_rate=1.0, **recipe) for _ in range(2))
    group = TrainerGroup([trainer])
    group.epoch(1)
    group.epoch(2)
    adam = torch.optim.Adam(other.network.parameters(), lr=0.003)
    expected = train_alone(adam, other, [0.003] * 5 + [0.0003] * 5)[-1]
    for value, wanted in zip(trainer.network.parameters(), expected, strict=True):
        torch.testing.assert_close(value.detach(), wanted, rtol=1e-5, atol=1e-9)


def test_adamw_follows_a_cosine_smooths_labels_and_decays_weights_alone():
    recipe = {"optimizer": "adamw", "learning_rate": 0.003, "weight_decay": 0.5, "cosine": True, "epochs": 2}
    trainer, other = (make_trainer(bias_rate=1.0, smoothing=0.1, keep="average", average=0.5, **recipe) for _ in "ab")
    group = TrainerGroup([trainer])
    group.epoch(1)
    group.epoch(2)
    weights = [value for name, value in other.network.named_parameters() if name.endswith("weight")]
    biases = [value for name, value in other.network.named_parameters() if name.endswith("bias")]
    adamw = torch.optim.AdamW([{"params": weights, "weight_decay": 0.5}, {"params": biases, "weight_decay": 0.0}])
    rates = [0.003 * (1 + np.cos(np.pi * step / 10)) / 2 for step in range(10)]
    passed = train_alone(adamw, other, rates, smoothing=0.1)
    mean = [value.detach() for value in make_trainer().network.parameters()]
    for step, values in enumerate(passed):
        decay = min(0.5, (2 + step) / (11 + step))
        mean = [decay * old + (1 - decay) * new for old, new in zip(mean, values, strict=True)]
    for value, wanted in zip(trainer.network.parameters(), passed[-1], strict=True):
        torch.testing.assert_close(value.detach(), wanted, rtol=1e-5, atol=1e-9)
    assert trainer.tested is trainer.kept
    for value, wanted in zip(trainer.tested.parameters(), mean, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-8)


def test_the_best_network_is_that_of_the_epoch_with_the_lowest_validation_error():
    trainer = make_later(keep="best", optimizer="adam")
    group, states = TrainerGroup([trainer]), []
    errors = [5.0, 3.0, 4.0, 3.0]
    for epoch in range(1, 5):
        group.epoch(epoch)
        states.append({name: value.clone() for name, value in trainer.network.state_dict().items()})
        trainer.keep_best(errors[:epoch])
    for name, value in trainer.tested.state_dict().items():
        assert torch.equal(value, states[1][name])
    assert any(not torch.equal(value, states[3][name]) for name, value in trainer.tested.state_dict().items())


@pytest.mark.parametrize("keep", ["last", "best", "average"])
def test_norms_dropout_and_moments_go_on_bit_for_bit(keep):
    trainer, resumed = (make_later(keep=keep, optimizer="adamw", cosine=True, epochs=3) for _ in "ab")
    TrainerGroup([trainer]).epoch(1)
    trainer.keep_best([1.0])
    resumed.load_state({name: tensor.clone() for name, tensor in trainer.state().items()})
    torch.rand(7)  # what else is drawn in between does not matter
    for each in (trainer, resumed):
        TrainerGroup([each]).epoch(2)
    assert trainer.state().keys() == resumed.state().keys() == trainer.expected(trainer.state()).keys()
    for name, tensor in trainer.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
    assert {name.partition(".")[0] for name in trainer.state()} == {
        *("weight", "buffer", "first", "second", "step"),
        *(() if keep == "last" else ("kept",)),
    }


def test_a_network_is_tested_without_dropout_and_trains_on_with_it():
    trainer = make_later()
    images, labels = trainer.images, trainer.labels
    assert len({error_rate(trainer.network, images, labels) for _ in range(5)}) == 1
    assert trainer.network.training
    assert trainer.tested is trainer.network


def test_a_test_leaves_every_module_in_its_own_mode_even_where_it_fails():
    network = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.BatchNorm2d(1).eval(), torch.nn.Flatten())
    for images in (torch.rand(4, 1, 3, 3), torch.rand(4, 2, 3, 3)):
        with nullcontext() if images.shape[1] == 1 else pytest.raises(RuntimeError):
            error_rate(network, images, torch.zeros(4, dtype=torch.long))
        assert [module.training for module in network.modules()] == [True, True, False, True]


def test_factors_of_the_uniform_law_lie_evenly_between_the_ends():
    found = augmented(1, rescale=(0.5, 2.0), rescale_law="uniform").factors
    assert 0.5 <= found.min() < 0.55
    assert 1.9 < found.max() <= 2
    assert abs(found.mean() - 1.25) < 0.1


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
    scores = torch.eye(10).repeat(784 + 16, 1)  # digit i scores class i % 10; 7840 of these fit into a batch
    labels = torch.arange(8000) % 10
    labels[[0, 13, 7999]] = 5
    assert error_rate(torch.nn.Identity(), scores, labels) == 100 * 3 / 8000


def test_more_to_a_batch_than_there_are_digits_is_refused():
    with pytest.raises(ValueError, match=r"`batch` \(=64\) must not exceed the 40 training digits"):
        make_trainer(batch=64)


@pytest.fixture
def exact():
    """Whole float32 and deterministic libraries, so that only the order of the work can differ."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    torch.set_float32_matmul_precision("highest")
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before[:2]
    torch.set_float32_matmul_precision(before[2])


def make_fold(model, fold, device, shape=None):
    return make_trainer(model, STEPS * 16, fold, shape=shape, device=device, dtype=torch.float32, batch=16)


def weights(trainer):
    return torch.cat([parameter.detach().flatten().cpu() for parameter in trainer.network.parameters()])


def step_through(trainer, epoch):
    trainer.begin_epoch(epoch)
    for _ in range(STEPS):
        trainer.step()


def allowed(end, start):
    """Rounding changes winners, and grows: within 20 steps from the start float32 is percents away from float64."""
    return 1e-3 * (end - start).norm() + 1e-6 * start.norm()


@NEEDS_GPU
@pytest.mark.parametrize("model", MODELS)
def test_on_a_gpu_each_fold_ends_as_if_alone(model, exact, monkeypatch):
    monkeypatch.setattr(sgd, "UNROLL", 1)  # the graph is replayed, not only played
    shape = Shape()
    trainers = [make_fold(model, fold, "cuda", shape) for fold in range(3)]
    group = TrainerGroup(trainers)
    assert group.replay is not None
    assert group.batches // group.unrolled == STEPS
    group.epoch(1)
    for fold, trainer in enumerate(trainers):
        alone = make_fold(model, fold, "cuda", shape)
        start = weights(alone)
        TrainerGroup([alone]).epoch(1)
        step_by_step = make_fold(model, fold, "cuda", shape)
        step_through(step_by_step, 1)
        end = weights(alone)
        assert (weights(trainer) - end).norm() < allowed(end, start)
        assert (weights(step_by_step) - end).norm() < allowed(end, start)
        assert trainer.mean_loss() == pytest.approx(step_by_step.mean_loss(), rel=1e-3)


def later_fold(name, fold, keep):
    """A network of the later literature on a GPU, without dropout, since what that drops depends on the group."""
    plain = make_fold("convnet", fold, "cuda")
    torch.manual_seed(0)
    network = make_later_model(name, 28, (8, 12, 16), (1, 1.5), dropout=0.0, pool="logsumexp").cuda()
    recipe = TrainingConfig(
        batch=16, optimizer="adamw", cosine=True, epochs=3, smoothing=0.1, keep=keep, average=0.9, bias_rate=1.0
    )
    return Trainer(
        network, plain.images, plain.labels, recipe, seed=3, fold=fold, augment=True, interpolation="bicubic"
    )


@NEEDS_GPU
@pytest.mark.parametrize("keep", ["best", "average"])
@pytest.mark.parametrize("name", ["cnn", "cropped_cnn", "si_cnn", "pyramid_cnn", "pyramid_deep_cnn"])
def test_on_a_gpu_moments_norms_and_means_are_those_of_steps_one_by_one(name, keep, exact):
    trainers = [later_fold(name, fold, keep) for fold in range(2)]
    TrainerGroup(trainers).epoch(1)
    for fold, trainer in enumerate(trainers):
        alone = later_fold(name, fold, keep)
        start = {key: tensor.clone() for key, tensor in alone.state().items()}
        step_through(alone, 1)
        assert trainer.state().keys() == alone.state().keys()
        for key, end in alone.state().items():
            moved = (end - start.get(key, 0)).float().norm()  # some are counts
            assert (trainer.state()[key] - end).float().norm() <= 0.02 * moved + 1e-5 * end.float().norm(), key


@pytest.mark.parametrize("model", MODELS)
def test_on_the_cpu_each_fold_ends_as_if_alone(model):
    trainers = [make_fold(model, fold, "cpu") for fold in range(2)]
    group = TrainerGroup(trainers)
    assert group.replay is None
    group.epoch(1)
    for fold, trainer in enumerate(trainers):
        alone = make_fold(model, fold, "cpu")
        step_through(alone, 1)
        assert torch.equal(weights(trainer), weights(alone))
        assert trainer.mean_loss() == alone.mean_loss() > 0
    assert not torch.equal(weights(trainers[0]), weights(trainers[1]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_resumed_runs_go_on_with_their_momenta(device, exact):
    unbroken = [make_fold("convnet", fold, device) for fold in range(2)]
    resumed = [make_fold("convnet", fold, device) for fold in range(2)]
    for before, after in zip(unbroken, resumed, strict=True):
        step_through(before, 1)
        after.load_state({name: tensor.clone() for name, tensor in before.state().items()})
    starts = [weights(trainer) for trainer in resumed]
    group = TrainerGroup(resumed)
    for trainer, start in zip(resumed, starts, strict=True):
        assert torch.equal(weights(trainer), start)  # a graph is captured without taking a step
    group.epoch(2)
    for before, after, start in zip(unbroken, resumed, starts, strict=True):
        step_through(before, 2)
        assert after.state().keys() == before.state().keys()
        if device == "cpu":
            assert all(torch.equal(after.state()[name], tensor) for name, tensor in before.state().items())
        end = weights(before)
        assert (weights(after) - end).norm() < allowed(end, start)


def test_runs_with_different_numbers_of_batches_are_refused():
    first, second = (make_fold("convnet", 0, "cpu") for _ in range(2))
    second.batches = 3
    with pytest.raises(ValueError, match=r"`trainers` must have equally many batches, got \[2, 3\]"):
        TrainerGroup([first, second])


@pytest.mark.parametrize("device", ["meta", "abacus", "cuda:99"])
def test_a_device_that_holds_no_numbers_is_refused(device):
    with pytest.raises(ValueError, match=f"`device` must be one this machine has, got '{device}'"):
        choose_device(device)
