"""Runs trained together end where each would have ended alone."""

import pytest
import torch

from scaleconv.experiments import together as together_module
from scaleconv.experiments.config import TrainingConfig
from scaleconv.experiments.together import Together
from scaleconv.experiments.training import Trainer
from scaleconv.models import Shape, make_model

STEPS = 2
SMALL = Shape(maps=(6, 8), hidden=20)
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MODELS = ["convnet", "si_convnet", "hierarchical"]


@pytest.fixture
def exact():
    """Whole float32 and deterministic libraries, so that only the order of the work can differ."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
    torch.set_float32_matmul_precision("highest")
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = before[:2]
    torch.set_float32_matmul_precision(before[2])


def make_trainer(model, fold, device, shape=SMALL):
    generator = torch.Generator().manual_seed(fold)
    images = torch.rand(STEPS * 16, 1, 28, 28, generator=generator) - 0.5
    labels = torch.randint(0, 10, (STEPS * 16,), generator=generator)
    torch.manual_seed(0)
    network = make_model(model, shape).to(device)
    recipe = TrainingConfig(epochs=1, batch=16)
    return Trainer(network, images.to(device), labels.to(device), recipe, seed=0, fold=fold)


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
    monkeypatch.setattr(together_module, "UNROLL", 1)  # the graph is replayed, not only played
    shape = Shape()
    trainers = [make_trainer(model, fold, "cuda", shape) for fold in range(3)]
    together = Together(trainers)
    assert together.graph is not None
    assert together.batches // together.unrolled == STEPS
    together.epoch(1)
    for fold, trainer in enumerate(trainers):
        alone = make_trainer(model, fold, "cuda", shape)
        start = weights(alone)
        Together([alone]).epoch(1)
        step_by_step = make_trainer(model, fold, "cuda", shape)
        step_through(step_by_step, 1)
        end = weights(alone)
        assert (weights(trainer) - end).norm() < allowed(end, start)
        assert (weights(step_by_step) - end).norm() < allowed(end, start)
        assert trainer.mean_loss() == pytest.approx(step_by_step.mean_loss(), rel=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_on_the_cpu_each_fold_ends_as_if_alone(model):
    trainers = [make_trainer(model, fold, "cpu") for fold in range(2)]
    together = Together(trainers)
    assert together.graph is None
    together.epoch(1)
    for fold, trainer in enumerate(trainers):
        alone = make_trainer(model, fold, "cpu")
        step_through(alone, 1)
        assert torch.equal(weights(trainer), weights(alone))
        assert trainer.mean_loss() == alone.mean_loss() > 0
    assert not torch.equal(weights(trainers[0]), weights(trainers[1]))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_resumed_runs_go_on_with_their_momenta(device, exact):
    unbroken = [make_trainer("convnet", fold, device) for fold in range(2)]
    resumed = [make_trainer("convnet", fold, device) for fold in range(2)]
    for before, after in zip(unbroken, resumed, strict=True):
        step_through(before, 1)
        after.load_state({name: tensor.clone() for name, tensor in before.state().items()})
    starts = [weights(trainer) for trainer in resumed]
    together = Together(resumed)
    for trainer, start in zip(resumed, starts, strict=True):
        assert torch.equal(weights(trainer), start)  # a graph is captured without taking a step
    together.epoch(2)
    for before, after, start in zip(unbroken, resumed, starts, strict=True):
        step_through(before, 2)
        assert after.state().keys() == before.state().keys()
        if device == "cpu":
            assert all(torch.equal(after.state()[name], tensor) for name, tensor in before.state().items())
        end = weights(before)
        assert (weights(after) - end).norm() < allowed(end, start)


def test_runs_with_different_numbers_of_batches_are_refused():
    first, second = (make_trainer("convnet", 0, "cpu") for _ in range(2))
    second.batches = 3
    with pytest.raises(ValueError, match=r"`trainers` must have equally many batches, got \[2, 3\]"):
        Together([first, second])
