"""Runs trained together end where each would have ended alone."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from scaleconv import SIConv2d
from scaleconv.experiments import stacked
from scaleconv.experiments import together as together_module
from scaleconv.experiments.config import TrainingConfig
from scaleconv.experiments.stacked import Stack
from scaleconv.experiments.together import Together
from scaleconv.experiments.training import Trainer
from scaleconv.models import Shape, make_model
from tolerance import assert_close

STEPS = 2
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
def test_on_a_gpu_each_fold_ends_as_if_alone(model, exact, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    monkeypatch.setattr(together_module, "UNROLL", 1)  # the graph is replayed, not only played
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
        # Rounding changes winners, and grows: within 20 steps from the start float32 is percents away from float64.
        allowed = 1e-3 * (weights(alone) - start).norm() + 1e-6 * start.norm()
        assert (weights(trainer) - weights(alone)).norm() < allowed
        assert (weights(step_by_step) - weights(alone)).norm() < allowed


def test_columns_at_once_end_where_they_do_one_after_the_other(exact, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    monkeypatch.setattr(together_module, "UNROLL", 2)
    ends = []
    for take in (stacked._take_columns_at_once, lambda _: None):
        monkeypatch.setattr(stacked, "_take_columns_at_once", take)
        trainers = [make_trainer("hierarchical", fold, "cuda", Shape()) for fold in range(3)]
        together = Together(trainers)
        assert all(isinstance(stack.template, stacked._ColumnsAtOnce) == (not ends) for stack in together.stacks)
        for epoch in range(1, 11):
            together.epoch(epoch)
        ends.append(torch.stack([weights(trainer) for trainer in trainers]))
    assert torch.equal(*ends)


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
    with pytest.raises(ValueError, match=r"`trainers` must have equally many batches, got \[2, 3\]"):
        Together([first, second])


@pytest.mark.parametrize("model", ["convnet", "si_convnet", "hierarchical"])
def test_the_kernels_of_a_stack_change_neither_names_nor_answers_nor_gradients(model, exact):
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = make_model(model, Shape(maps=(2, 4), hidden=5)).to(device)
    template = deepcopy(network)
    stacked._take_first_layers_at_once(template)
    stacked._pool_in_one_pass(template)
    if model == "convnet":  # the interpreter takes its time for convolutions
        stacked._convolve_in_parts(template)
        assert isinstance(template.stages.conv2, stacked._PartsConv2d)
    assert [name for name, _ in template.named_modules()] == [name for name, _ in network.named_modules()]
    assert isinstance(template.stages.conv1, stacked._FirstConv2d)
    assert isinstance(template.stages.pool1, nn.Identity)
    assert isinstance(template.stages.relu2, nn.Identity)
    assert isinstance(template.stages.pool2, stacked._ReLUMaxPool2d)
    assert type(template.classifier.relu3) is nn.ReLU
    generator = torch.Generator().manual_seed(0)
    stacks = {  # large enough for answers about 1
        name: torch.randn(2, *weight.shape, generator=generator).mul(0.2).to(device).requires_grad_()
        for name, weight in network.named_parameters()
    }
    images = torch.rand(2, 2, 1, 28, 28, generator=generator).to(device)
    answers = torch.vmap(lambda own, some: functional_call(template, own, (some,)))(stacks, images)
    slices = [{name: stack[index] for name, stack in stacks.items()} for index in range(2)]
    alone = torch.stack([functional_call(network, own, (some,)) for own, some in zip(slices, images, strict=True)])
    assert_close(answers.cpu(), alone.cpu())
    grads = [torch.autograd.grad(result.square().sum(), list(stacks.values())) for result in (answers, alone)]
    for got, true in zip(*grads, strict=True):
        assert_close(got.cpu(), true.cpu())
        assert true.abs().max() > 0.1


OTHERWISE = {
    "overlap": nn.MaxPool2d(3, 2, ceil_mode=True),
    "floor": nn.MaxPool2d(2, 2),
    "padding": nn.MaxPool2d(2, 2, padding=1, ceil_mode=True),
    "dilation": nn.MaxPool2d(2, 2, dilation=2, ceil_mode=True),
    "indices": nn.MaxPool2d(2, 2, ceil_mode=True, return_indices=True),
    "pair": nn.MaxPool2d((2, 3), (2, 3), ceil_mode=True),
    "wide": nn.MaxPool2d(16, 16, ceil_mode=True),
    "average": nn.AvgPool2d(2, 2, ceil_mode=True),
}


FIRST = {
    "strided": (nn.Conv2d(1, 2, 3, stride=2), nn.ReLU()),
    "padded": (nn.Conv2d(1, 2, 3, padding=1), nn.ReLU()),
    "same": (nn.Conv2d(1, 2, 3, padding="same"), nn.ReLU()),
    "dilated": (nn.Conv2d(1, 2, 3, dilation=2), nn.ReLU()),
    "grouped": (nn.Conv2d(2, 2, 3, groups=2), nn.ReLU()),
    "antialiased": (SIConv2d(1, 2, 3, antialias=True), nn.ReLU()),
    "too many scales": (SIConv2d(1, 2, 3, scales=[1 + k / 100 for k in range(64)]), nn.ReLU()),
    "another activation": (nn.Conv2d(1, 2, 3), nn.Tanh()),
    "nothing behind": (nn.Conv2d(1, 2, 3),),
}


@pytest.mark.parametrize("layers", FIRST.values(), ids=FIRST)
def test_a_first_layer_of_another_kind_stays_as_it_is(layers):
    stages = nn.Sequential(*deepcopy(layers))
    if len(stages) > 1:
        stages.append(nn.MaxPool2d(2, 2, ceil_mode=True))
    kinds = [type(layer) for layer in stages]
    stacked._take_first_layers_at_once(stages)
    assert [type(layer) for layer in stages] == kinds


@pytest.mark.parametrize("pool", OTHERWISE.values(), ids=OTHERWISE)
def test_pooling_of_another_kind_stays_as_it_is(pool):
    relu = nn.ReLU()
    stages = nn.Sequential(relu, pool, nn.MaxPool2d(2, 2, ceil_mode=True))
    stacked._pool_in_one_pass(stages)
    assert stages[0] is relu
    assert stages[1] is pool
    assert type(stages[2]) is nn.MaxPool2d
