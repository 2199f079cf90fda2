"""Training against steps written by hand, and runs that were interrupted against runs that were not, bit for bit."""

import copy
import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from helpers.sources import Streamed, make_source, random_examples
from scaleconv.data.augment import augment
from scaleconv.data.order import Order
from scaleconv.experiments import Epoch, trainer
from scaleconv.experiments.checkpoint import Checkpoint, load_checkpoint, write_checkpoint
from scaleconv.experiments.processes import make_fabric
from scaleconv.experiments.settings import TrainingSettings
from scaleconv.experiments.trainer import Trainer, TrainerGroup, mean_loss
from scaleconv.models import Classifier

FABRIC = make_fabric("cpu")
RECIPE = TrainingSettings(epochs=3, batch=4, learning_rate=0.05, smoothing=0.1, warmup=0.2)
CLASSES = ("class0", "class1", "class2")


def small_network(seed=0, dropout=0.3):
    """Convolution, norms with and without statistics, dropout and a linear layer."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.BatchNorm2d(4)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(16, 3)),
    )
    return Classifier(layers, (0.4,), (0.5,), CLASSES)


def make_trainer(settings=RECIPE, network=None, source=None, fabric=FABRIC, seed=0, fold=0):
    source = source or make_source(random_examples())
    return Trainer(network or small_network(), source, settings, fabric, seed=seed, fold=fold)


def train(made, epochs, first=1, done=0):
    """The mean losses of epochs."""
    losses, group = [], TrainerGroup([made])
    for number in range(first, first + epochs):
        for _ in group.run_epoch(number, done):
            pass
        losses.append(made.epoch_loss())
        done = 0
    return losses


def weights(made):
    return {name: tensor.clone() for name, tensor in made.state().items() if name != "seconds"}


def assert_same(first, second):
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


# The loss.


def smoothed_loss(scores, label, smoothing):
    """1 − ε of the label's and ε of the mean over the classes."""
    logs = np.array(scores) - np.log(np.exp(scores).sum())
    return -(1 - smoothing) * logs[label] - smoothing * logs.mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_the_mean_over_images(smoothing):
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0])
    expected = np.mean(
        [smoothed_loss(row, label, smoothing) for row, label in zip(logits.tolist(), labels, strict=True)]
    )
    assert mean_loss(logits, labels, smoothing).item() == pytest.approx(expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_of_a_mask_is_the_mean_over_its_labelled_pixels_then_over_images(smoothing):
    logits = torch.randn(3, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([[[0, 255], [255, 255]], [[1, 2], [0, 1]], [[255, 255], [255, 255]]])
    of_images = []
    for image in range(3):
        pixels = [(row, column) for row in (0, 1) for column in (0, 1) if labels[image, row, column] != 255]
        losses = [smoothed_loss(logits[image, :, r, c].tolist(), labels[image, r, c], smoothing) for r, c in pixels]
        of_images.append(sum(losses) / max(1, len(losses)))
    assert of_images[2] == 0
    assert mean_loss(logits, labels, smoothing).item() == pytest.approx(sum(of_images) / 3)


def test_each_of_several_predictions_learns_as_if_alone():
    logits = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 1, 0])
    (gradient,) = torch.autograd.grad(mean_loss(logits, labels, 0.1), logits)
    for own, expected in zip(logits.detach(), gradient, strict=True):
        alone = own.clone().requires_grad_()
        mean_loss(alone, labels, 0.1).backward()
        torch.testing.assert_close(alone.grad, expected)


@pytest.mark.parametrize(("shape", "labels"), [((2, 3, 1), (2,)), ((2, 3), (2, 4, 4)), ((2, 3, 4, 5), (2, 4, 4))])
def test_a_network_with_another_output_is_refused(shape, labels):
    with pytest.raises(ValueError, match=r"`model` must return numbers of shape \(N, classes.*got"):
        mean_loss(torch.zeros(shape), torch.zeros(labels, dtype=torch.long), 0.0)


# Steps, by hand.


def by_hand(network, examples, settings, epochs, per_epoch):
    """The same training written out in float64: order and gradients are PyTorch's, every update is a formula."""
    own = {name: parameter.detach().double().requires_grad_() for name, parameter in network.named_parameters()}
    zero = {name: torch.zeros_like(parameter) for name, parameter in own.items()}
    first, second, losses = dict(zero), dict(zero), []
    batches = Order(examples.sizes, settings.batch, 0, 0).of_steps(0, epochs * per_epoch)
    for step, batch in enumerate(batches):
        logits = torch.func.functional_call(network, own, (examples.images[batch],))
        logs = logits.log_softmax(1)
        chosen = logs[torch.arange(len(batch)), examples.labels[batch]]
        loss = -((1 - settings.smoothing) * chosen + settings.smoothing * logs.mean(1)).mean()
        losses.append(loss.item())
        gradients = dict(zip(own, torch.autograd.grad(loss, list(own.values())), strict=True))
        for name, gradient in gradients.items():
            flat = own[name].dim() < 2
            decay = 0.0 if flat else settings.weight_decay
            rate = settings.learning_rate * (settings.bias_rate if flat else 1) * settings.rate_at(step, per_epoch)
            weight = own[name].detach()
            if settings.optimizer == "adamw":
                weight = weight * (1 - rate * decay)
            else:
                gradient = gradient + decay * weight
            if settings.optimizer == "sgd":
                first[name] = settings.momentum * first[name] + gradient
                change = first[name]
            else:
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                mean, square = first[name] / (1 - 0.9 ** (step + 1)), second[name] / (1 - 0.999 ** (step + 1))
                change = mean / (square.sqrt() + 1e-8)
            own[name] = (weight - rate * change).requires_grad_()
    return own, [np.mean(losses[k : k + per_epoch]) for k in range(0, len(losses), per_epoch)]


RECIPES = {
    "sgd": {"optimizer": "sgd", "weight_decay": 0.1, "bias_rate": 2.0, "momentum": 0.8},
    "adam": {"optimizer": "adam", "weight_decay": 0.1, "bias_rate": 0.5},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.5, "bias_rate": 2.0},
    "constant": {"optimizer": "sgd", "warmup": 0.0, "cosine": False, "momentum": 0.0},
    "drops": {"optimizer": "adamw", "warmup": 0.3, "cosine": False, "drops": (1, 2)},
    "steps": {"optimizer": "sgd", "steps": 5, "smoothing": 0.0},  # two and a half passes over the images
}


@pytest.mark.parametrize("changes", RECIPES.values(), ids=RECIPES)
def test_weights_and_losses_are_those_of_updates_written_out_by_hand(changes):
    settings = replace(RECIPE, **changes)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)).double()
    network = Classifier(layers, (0.4,), (0.5,), CLASSES)
    examples = random_examples(dtype=torch.float64)
    made = make_trainer(settings, network, make_source(examples))
    expected, losses = by_hand(copy.deepcopy(network), examples, settings, 3, settings.steps or 2)
    assert train(made, 3) == pytest.approx(losses, rel=1e-5)
    for name, parameter in made.network.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name].detach(), rtol=1e-5, atol=1e-6)


# What counts: the last, the best or the mean of the weights.


class OneWeight(nn.Module):
    """Scores w·x and 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[3.0]]))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, images):
        self.calls += self.training
        return torch.cat([images.flatten(1)[:, :1] @ self.weight, torch.zeros(len(images), 1)], 1)


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_the_running_mean_is_a_weighted_sum_of_all_weights_so_far(decay):
    settings = replace(RECIPE, keep="average", average=decay, optimizer="sgd", epochs=6)
    network = Classifier(OneWeight(), (0.0,), (1.0,), ("a", "b"))
    made = make_trainer(settings, network, make_source(random_examples(8, classes=2), classes=2))
    seen, group = [3.0], TrainerGroup([made])
    for epoch in range(1, 7):
        for _ in group.run_epoch(epoch):
            seen.append(made.network.network.weight.item())  # noqa: PERF401
    # The mean keeps d_k = min(decay, (1 + k) / (10 + k)) of itself in step k, from 1.
    kept = [0.0, *(min(decay, (1 + k) / (10 + k)) for k in range(1, len(seen)))]
    shares = [(1 - kept[k]) * math.prod(kept[k + 1 :]) for k in range(len(seen))]
    assert sum(shares) == pytest.approx(1)
    assert made.tested.network.weight.item() == pytest.approx(sum(w * s for w, s in zip(seen, shares, strict=True)))
    assert made.tested.network.calls.item() == 12  # no mean of whole numbers
    assert abs(made.tested.network.weight.item() - seen[-1]) > 1e-3
    assert not made.tested.training
    assert not made.tested.network.weight.requires_grad


def test_the_best_is_the_first_with_the_least_validation_error_and_the_last_is_itself():
    made = make_trainer(replace(RECIPE, keep="best"))
    weight = made.network.network[7].weight
    errors, kept = [], []
    for number, error in enumerate([30.0, 20.0, 25.0, 20.0, 10.0]):
        with torch.no_grad():
            weight.fill_(number)
        errors.append(error)
        made.keep_best(errors)
        kept.append(made.tested.network[7].weight[0, 0].item())
    assert kept == [0, 1, 1, 1, 4]
    last = make_trainer()
    last.keep_best([1.0])
    assert last.tested is last.network


# Augmentation and precision.


@pytest.fixture
def seen(monkeypatch):
    """What `augment` was given and returned, call by call."""
    calls = []

    def spy(images, labels, draws, kinds, **options):
        moved = augment(images, labels, draws, kinds, **options)
        calls.append((images, labels, draws.clone(), kinds, options, moved))
        return moved

    monkeypatch.setattr(trainer, "augment", spy)
    return calls


AUGMENTED = replace(RECIPE, augment=("scale", "flip"), rescale=(0.7, 1.4), rescale_law="uniform")


def test_draws_follow_seed_fold_and_epoch_and_no_two_images_share_theirs(seen):
    found = {}
    for seed, fold in [(0, 0), (1, 0), (0, 1)]:
        train(make_trainer(AUGMENTED, seed=seed, fold=fold), 2)
        for epoch in (1, 2):
            found[seed, fold, epoch] = torch.stack([call[2] for call in seen[2 * epoch - 2 : 2 * epoch]])  # 2 steps
        seen.clear()
    together = torch.cat([draws.flatten() for draws in found.values()])
    assert (len(together), len(together.unique())) == (6 * 2 * 4 * 4,) * 2
    assert 0 <= together.min() < 0.05 < 0.95 < together.max() < 1
    train(make_trainer(AUGMENTED), 1, first=2)  # whatever came before
    assert torch.equal(torch.stack([call[2] for call in seen]), found[0, 0, 2])


def test_the_network_learns_from_the_augmented_images_of_its_batch(seen):
    examples = random_examples()
    given = []
    network = small_network()
    network.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    train(make_trainer(AUGMENTED, network, make_source(examples, interpolation="bicubic")), 2)
    batches = Order(examples.sizes, 4, 0, 0).of_steps(0, 4)
    for batch, images, call in zip(batches, given, seen, strict=True):
        assert torch.equal(call[0], examples.images[batch])
        assert torch.equal(call[1], examples.labels[batch])
        assert call[3:5] == (("scale", "flip"), {"rescale": (0.7, 1.4), "law": "uniform", "interpolation": "bicubic"})
        assert torch.equal(images, call[5][0])
        assert not torch.equal(images, call[0])


def test_masks_move_with_their_images(seen):
    torch.manual_seed(0)
    network = Classifier(nn.Sequential(nn.Conv2d(1, 3, 3, padding=1)), (0.0,), (1.0,), CLASSES)
    source = make_source(random_examples(masks=True), task="segmentation")
    (loss,) = train(make_trainer(replace(AUGMENTED, steps=1, rescale=(0.4, 0.5)), network, source), 1)
    torch.manual_seed(0)
    fresh = nn.Conv2d(1, 3, 3, padding=1)
    images, masks = seen[0][5]
    assert (masks == 255).any()
    assert loss == pytest.approx(mean_loss(fresh(images), masks, 0.1).item())


@pytest.mark.parametrize(("precision", "kind"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_precision_is_that_of_convolutions_in_training(precision, kind):
    network, kinds = small_network(), []
    network.network[0].register_forward_hook(lambda *given: kinds.append(given[2].dtype))
    train(make_trainer(replace(RECIPE, precision=precision), network, fabric=make_fabric("cpu", precision)), 1)
    assert set(kinds) == {kind}
    assert network.network[0].weight.dtype == torch.float32


# Interruptions, other ways to the same images, and several networks.


@pytest.mark.parametrize("stop", [1, 2, 4])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("optimizer", "keep"), [("sgd", "last"), ("adam", "best"), ("adamw", "average")])
def test_a_run_that_was_interrupted_at_any_step_ends_bit_for_bit_where_it_would_have(
    optimizer, keep, streamed, stop, tmp_path
):
    """After one step of the second epoch, two, or all four of them."""
    settings = replace(AUGMENTED, optimizer=optimizer, keep=keep, batch=2, steps=4)
    examples = random_examples()
    source = make_source(Streamed(*examples.tensors) if streamed else examples)
    whole = make_trainer(settings, source=source)
    losses = train(whole, 3)

    begun = make_trainer(settings, source=source)
    train(begun, 1)
    for done in TrainerGroup([begun]).run_epoch(2):
        if done == stop:
            break
    begun.seconds.fill_(1.5)
    history = [Epoch(number + 1, losses[number], None, 1.0) for number in range(1 + (stop == 4))]
    write_checkpoint(tmp_path / "state", Checkpoint({}, history, begun.state()))

    torch.manual_seed(99)
    resumed = make_trainer(settings, small_network(seed=5), source)
    train(resumed, 1)  # leaves a state of the optimiser that must go
    found, epoch = load_checkpoint(tmp_path / "state"), 2 + (stop == 4)
    resumed.begin_epoch(epoch)
    resumed.load_state(tmp_path / "state", found.tensors)
    assert resumed.seconds.item() == 1.5
    assert train(resumed, 4 - epoch, first=epoch, done=stop % 4) == losses[epoch - 1 :]
    assert_same(weights(resumed), weights(whole))


def test_a_state_before_the_first_step_has_no_optimiser_and_clears_that_of_another(tmp_path):
    fresh = make_trainer()
    state = {name: tensor.clone() for name, tensor in fresh.state().items()}
    assert not [name for name in state if name.startswith("exp_avg")]
    used = make_trainer(network=small_network(seed=5))
    train(used, 2)
    used.load_state(tmp_path, state)
    assert train(used, 2) == train(fresh, 2)
    assert_same(weights(used), weights(fresh))


def test_the_state_of_another_network_or_optimiser_is_refused_by_file_and_name(tmp_path):
    made = make_trainer()
    train(made, 1)
    good = made.state()
    weight, flat = torch.zeros(2, 16), torch.zeros(4)
    wrong = {
        r"network\.network\.7\.weight must be of shape \(3, 16\), got \(2, 16\)": {"network.network.7.weight": weight},
        r"network\.network\.7\.bias must be of shape \(3,\), got None": {"network.network.7.bias": None},
        r"momentum_buffer\.network\.0\.bias must be of shape None": {"momentum_buffer.network.0.bias": flat},
        r"exp_avg\.network\.0\.bias must be of type torch.float32": {"exp_avg.network.0.bias": flat.double()},
        r"kept\.mean must be of shape None": {"kept.mean": flat},
    }
    for message, change in wrong.items():
        state = {name: tensor for name, tensor in {**good, **change}.items() if tensor is not None}
        with pytest.raises(ValueError, match=f"a-file .*{message}"):
            make_trainer().load_state("a-file", state)


def test_images_in_memory_and_images_on_the_way_train_alike():
    examples = random_examples()
    settings = replace(AUGMENTED, batch=3)
    sources = [make_source(examples), make_source(Streamed(*examples.tensors))]
    first, second = (make_trainer(settings, source=source) for source in sources)
    assert train(first, 2) == train(second, 2)
    assert_same(weights(first), weights(second))


def test_bytes_are_learned_from_as_their_values_in_0_to_1():
    examples = random_examples()
    whole = (examples.images * 255).round()
    sources = [make_source(type(examples)(images, examples.labels)) for images in (whole.byte(), whole / 255)]
    first, second = (make_trainer(source=source) for source in sources)
    assert train(first, 1) == train(second, 1)


def test_batches_of_several_sizes_are_learned_one_by_one():
    images = [torch.rand(1, *size) for size in [(6, 6)] * 5 + [(7, 9)] * 2]
    source = make_source(Streamed(images, [torch.tensor(k % 3) for k in range(7)]))
    network, given = small_network(), []
    network.register_forward_pre_hook(lambda _, inputs: given.append(tuple(inputs[0].shape)))
    made = make_trainer(AUGMENTED, network, source)
    assert made.steps == 2
    train(made, 1)
    assert sorted(given) == [(2, 1, 7, 9), (4, 1, 6, 6)]


def test_several_networks_end_where_each_would_have_ended_alone():
    """Dropout and augmentation included."""
    alone = [make_trainer(AUGMENTED, small_network(k), seed=k, fold=k) for k in (0, 1)]
    losses = [train(made, 2) for made in alone]
    together = [make_trainer(AUGMENTED, small_network(k), seed=k, fold=k) for k in (0, 1)]
    group, found = TrainerGroup(together), []
    for epoch in (1, 2):
        assert list(group.run_epoch(epoch)) == [2]
        found.append([made.epoch_loss() for made in together])
    assert found == [list(epoch) for epoch in zip(*losses, strict=True)]
    for one, other in zip(alone, together, strict=True):
        assert_same({**weights(one), "random": 0 * one.cursor}, {**weights(other), "random": 0 * one.cursor})
    with pytest.raises(ValueError, match=r"`trainers` must have equally many steps, got \[2, 3\]"):
        TrainerGroup([make_trainer(), make_trainer(replace(RECIPE, steps=3))])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="replays are of a GPU")
@pytest.mark.parametrize("stop", [5, 6])
def test_a_gpu_goes_on_between_two_replays_or_after_one(stop, tmp_path):
    """Six steps are one replay; a CPU may have stopped after five."""
    settings, fabric = replace(AUGMENTED, steps=12), make_fabric("cuda")
    examples = random_examples()
    source = make_source(type(examples)(*(part.cuda() for part in examples.tensors)))
    whole = make_trainer(settings, source=source, fabric=fabric)
    losses = train(whole, 2)
    begun = make_trainer(settings, source=source, fabric=fabric)
    begun.begin_epoch(1)
    begun.seed_dropout(1)
    for _ in range(stop):
        begun.step()
    state = {name: tensor.cpu().clone() for name, tensor in begun.state().items()}
    resumed = make_trainer(settings, small_network(seed=5), source, fabric)
    group = TrainerGroup([resumed])
    resumed.begin_epoch(1)
    resumed.load_state(tmp_path, state)
    assert list(group.run_epoch(1, stop)) == [*range(stop + 1, 7), 12]
    assert resumed.epoch_loss() == pytest.approx(losses[0], rel=1e-4)


def test_what_dropout_draws_differs_between_epochs_seeds_and_folds():
    drawn = []
    for seed, fold, epoch in [(0, 0, 1), (0, 0, 2), (1, 0, 1), (0, 1, 1)]:
        make_trainer(seed=seed, fold=fold).seed_dropout(epoch)
        drawn.append(torch.rand(3).tolist())
    assert len({tuple(each) for each in drawn}) == 4
