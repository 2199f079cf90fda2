"""Runs trained together end where each would have ended alone."""

import pytest
import torch

from scaleconv.experiments.config import TrainingConfig
from scaleconv.experiments.stacked import Stack
from scaleconv.experiments.together import Together
from scaleconv.experiments.training import Trainer
from scaleconv.models import Shape, make_model

STEPS = 50
SMALL = Shape(maps=(6, 8), hidden=20)


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


@pytest.mark.parametrize("model", ["convnet", "si_convnet", "hierarchical"])
def test_on_a_gpu_each_fold_ends_as_if_alone(model, exact):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    shape = Shape()
    together = [make_trainer(model, fold, "cuda", shape) for fold in range(3)]
    Together(together).epoch(1)
    for fold, trainer in enumerate(together):
        alone = make_trainer(model, fold, "cuda", shape)
        start = weights(alone)
        Together([alone]).epoch(1)
        step_by_step = make_trainer(model, fold, "cuda", shape)
        step_by_step.begin_epoch(1)
        for _ in range(STEPS):
            step_by_step.step()
        moved = (weights(alone) - start).norm()
        assert (weights(trainer) - weights(alone)).norm() < 1e-3 * moved
        assert (weights(step_by_step) - weights(alone)).norm() < 1e-3 * moved


def test_on_the_cpu_each_fold_ends_as_if_alone():
    together = [make_trainer("convnet", fold, "cpu") for fold in range(2)]
    Together(together).epoch(1)
    for fold, trainer in enumerate(together):
        alone = make_trainer("convnet", fold, "cpu")
        Together([alone]).epoch(1)
        assert torch.equal(weights(trainer), weights(alone))
        assert trainer.mean_loss() == alone.mean_loss() > 0


@pytest.mark.parametrize("model", ["convnet", "si_convnet", "hierarchical", "ensemble"])
def test_stacked_runs_take_the_steps_each_would_take_alone(model):
    stacked, alone = ([make_trainer(model, fold, "cpu") for fold in range(2)] for _ in range(2))
    for trainer in (*stacked, *alone):
        trainer.network.double()
        trainer.images = trainer.images.double()
        trainer.begin_epoch(3)
    alone[0].step()  # a run that has momentum already keeps it
    stacked[0].step()
    stacked[0].cursor.zero_()
    alone[0].cursor.zero_()
    stack = Stack(stacked)
    for _ in range(2):
        stack.step()
    for together, single in zip(stacked, alone, strict=True):
        for _ in range(2):
            single.step()
        state = together.state()
        assert state.keys() == single.state().keys()
        for name, tensor in single.state().items():
            torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-12)
        assert together.loss.item() == pytest.approx(single.loss.item())
    assert not torch.equal(weights(stacked[0]), weights(stacked[1]))


def test_runs_with_different_numbers_of_batches_are_refused():
    first, second = (make_trainer("convnet", 0, "cpu") for _ in range(2))
    second.batches = 3
    with pytest.raises(ValueError, match=r"`trainers` must have equally many batches, got \[50, 3\]"):
        Together([first, second])
