"""BatchNorm inside a pyramid, in training: whose statistics normalise which level, and what the gradient sees."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.loops import random
from helpers.tolerance import assert_close
from scaleconv import ScaleInvariant
from scaleconv.nn.level_norms import training_norms

SCALES = (0.6, 1.0, 1.7)


def test_batchnorm_in_training_sees_levels_together_or_one_by_one():
    images = random(4, 2, 9, 8)
    level = ScaleInvariant(nn.Identity(), (1, 2), size="input", pool="mean", stride=1, offset=0)._level
    levels = [images, level(images, 2.0, (9, 8))]
    for norm, batches in (("joint", [torch.cat(levels)]), ("level", levels)):
        module = nn.BatchNorm2d(2, momentum=None).double()  # the average of the batches seen
        ScaleInvariant(module, (1, 2), size="input", norm=norm)(images)
        means = torch.stack([batch.mean((0, 2, 3)) for batch in batches])
        assert module.num_batches_tracked == len(batches)
        assert_close(module.running_mean, means.mean(0))


def normed(momentum=0.1):
    norms = [nn.BatchNorm2d(3, momentum=momentum), nn.BatchNorm2d(2, momentum=momentum)]
    return nn.Sequential(nn.Conv2d(2, 3, 3), norms[0], nn.ReLU(), nn.Conv2d(3, 2, 3), norms[1]).double()


@pytest.mark.parametrize("momentum", [0.1, None])
def test_levels_of_other_sizes_are_normalised_by_the_statistics_of_scale_1(momentum):
    """Trained for long with each level's own, a network is another one in evaluation."""
    torch.manual_seed(0)
    module, batches = normed(momentum), [random(4, 2, 20, 21, seed=seed) for seed in range(3)]
    plain, fixed = copy.deepcopy(module), copy.deepcopy(module)
    pyramid = ScaleInvariant(module, SCALES)
    for images in batches:
        output = pyramid(images)
        plain(images)  # moves its running statistics by scale 1
        for norm in (fixed[1], fixed[4]):
            norm.momentum = 1.0
        fixed.train()(images)  # has those of this batch, and no other
        expected = ScaleInvariant(fixed.eval(), SCALES)(images)
        assert (output - expected).abs().max() < 0.005  # the variance of a batch has n or n − 1 below
    for norm, alone in ((module[1], plain[1]), (module[4], plain[4])):
        assert norm.training
        assert (norm.momentum, norm.num_batches_tracked) == (momentum, 3)
        assert_close(norm.running_mean, alone.running_mean)
        assert_close(norm.running_var, alone.running_var)
    each = copy.deepcopy(module)
    ScaleInvariant(each, SCALES, norm="level")(batches[0])
    assert each[1].num_batches_tracked == 6


def test_the_gradient_goes_through_the_statistics_of_scale_1():
    """Of levels of other sizes, too; without it training stalls (docs/pyramid.md)."""
    norm, images = nn.BatchNorm2d(2).double(), random(3, 2, 6, 7).requires_grad_()
    nn.init.constant_(norm.weight, 1.7)
    pyramid = ScaleInvariant(nn.Sequential(norm, nn.Flatten(2), Third()), (1, 2), pool="mean")
    level = ScaleInvariant(nn.Identity(), (1, 2), stride=1, offset=0)._level(images, 2.0, (12, 14))
    mean, variance = images.mean((0, 2, 3)), images.var((0, 2, 3), unbiased=False)
    by_hand = sum(
        1.7 * ((each - mean.view(2, 1, 1)) / (variance.view(2, 1, 1) + 1e-5).sqrt()).pow(3).mean((2, 3)) * 1.7**2 / 2
        for each in (images, level)
    )
    output = pyramid(images)
    assert_close(output, by_hand)
    weights = random(3, 2, seed=5)
    grads = [torch.autograd.grad((weights * each).sum(), images, retain_graph=True)[0] for each in (output, by_hand)]
    assert_close(*grads)


def test_a_norm_without_running_statistics_sees_each_level_for_itself_as_in_evaluation():
    always = nn.BatchNorm2d(2, track_running_stats=False)
    module, means = nn.Sequential(always, nn.BatchNorm2d(2), nn.Flatten(2), Third()).double(), []
    always.register_forward_hook(lambda _module, _given, output: means.append(output.mean((0, 2, 3))))
    ScaleInvariant(module, (1, 2, 0.5))(random(3, 2, 9, 8))
    assert_close(torch.stack(means), torch.zeros(3, 2, dtype=torch.float64))


class Third(nn.Module):
    """The mean of the cubes, which no mean and no variance determine: (N, C, P) → (N, C)."""

    def forward(self, x):
        return x.pow(3).mean(2)


def test_compiled_training_has_the_statistics_of_eager():
    torch.compiler.reset()
    module, images = normed(), random(4, 2, 20, 21)
    eager = ScaleInvariant(copy.deepcopy(module), SCALES)
    compiled = torch.compile(ScaleInvariant(module, SCALES), fullgraph=True, backend="aot_eager")
    assert_close(compiled(images), eager(images))
    assert_close(module[4].running_var, eager.module[4].running_var)


class Checkpointed(nn.Module):
    """Computes its blocks, or some of them, once more in the backward pass."""

    def __init__(self, blocks, reentrant):
        super().__init__()
        self.blocks, self.reentrant = nn.ModuleList(blocks), reentrant

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def blocks():
    torch.manual_seed(3)
    first = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True))
    second = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2))
    return [first.double(), second.double()]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("images_need_gradients", [True, False])
def test_activation_checkpointing_gives_the_gradients_of_the_network_without_it(reentrant, images_need_gradients):
    images, found = random(3, 2, 16, 14), []
    for kind in (None, reentrant):
        # A stem outside, because reentrant checkpointing needs an input with a gradient.
        stem = nn.Conv2d(2, 2, 1).double()
        nn.init.eye_(stem.weight.data.view(2, 2))
        pyramid = ScaleInvariant(nn.Sequential(stem, Checkpointed(blocks(), kind)), SCALES, stride=1, offset=2)
        given = images.clone().requires_grad_(images_need_gradients)
        for _ in range(2):  # nothing is left over from the first
            pyramid.zero_grad()
            given.grad = None
            output = pyramid(given)
            output.square().sum().backward()
        grads = [parameter.grad for parameter in pyramid.module[1].parameters()]
        found.append([output.detach(), *grads, *([given.grad] if images_need_gradients else [])])
    for expected, actual in zip(*found, strict=True):
        assert type(actual) is torch.Tensor
        assert_close(actual, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_second_backward_pass_of_checkpoints_gives_the_same_gradients_once_more(reentrant):
    images = random(3, 2, 16, 14).requires_grad_()
    pyramid = ScaleInvariant(Checkpointed(blocks(), reentrant), SCALES, stride=1, offset=2)
    loss, found = pyramid(images).square().sum(), []
    for _ in range(2):
        pyramid.zero_grad()
        images.grad = None
        loss.backward(retain_graph=True)
        assert type(images.grad) is torch.Tensor
        found.append([images.grad, *(parameter.grad for parameter in pyramid.parameters())])
    for first, second in zip(*found, strict=True):
        assert_close(first, second)


class Skipping(nn.Module):
    """Leaves out its first norm where the image is small."""

    def __init__(self, smallest):
        super().__init__()
        self.first, self.second, self.smallest = nn.BatchNorm2d(2), nn.BatchNorm2d(2), smallest
        nn.init.constant_(self.first.weight, 5.0)

    def forward(self, x):
        return self.second(self.first(x) if x.shape[2] >= self.smallest else x)


def test_statistics_belong_to_their_layer_also_where_a_level_skips_one():
    module, images = Skipping(smallest=8).double(), random(3, 2, 12, 12) + 2
    pyramid = ScaleInvariant(module, (1, 0.5), pool="mean", stride=1, offset=0)
    level = pyramid._level(images, 0.5, (6, 6))
    first = 5 * (images - images.mean((0, 2, 3), True)) / (images.var((0, 2, 3), False, True) + 1e-5).sqrt()
    mean, variance = first.mean((0, 2, 3), True), first.var((0, 2, 3), keepdim=True, unbiased=False)
    expected = (level - mean) / (variance + 1e-5).sqrt()  # by the second layer alone
    seen = []
    module.second.register_forward_hook(lambda _module, _given, output: seen.append(output.detach()))
    pyramid(images)
    assert_close(seen[1].as_subclass(torch.Tensor), expected)


def test_a_layer_that_scale_1_skips_is_refused():
    class Inverse(Skipping):
        def forward(self, x):
            return self.second(self.first(x) if x.shape[2] < self.smallest else x)

    pyramid = ScaleInvariant(Inverse(smallest=8).double(), (1, 0.5), stride=1, offset=0)
    message = r"^`module` must call its BatchNorm2d of 2 channels at scale 1, .*norm=\"level\""
    with pytest.raises(ValueError, match=message):
        pyramid(random(3, 2, 12, 12))


def test_a_layer_that_is_called_several_times_has_statistics_for_each_call():
    torch.manual_seed(0)
    shared, images = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()).double(), []
    images = random(3, 2, 12, 10)
    repeated = nn.Sequential(shared, shared)
    alone = nn.Sequential(shared, copy.deepcopy(shared))  # the same weights, in layers of their own
    outputs = [ScaleInvariant(module, SCALES, stride=1, offset=0)(images) for module in (repeated, alone)]
    assert_close(*outputs)


def test_a_shared_layer_called_more_often_at_some_levels_or_computed_again_is_refused():
    norm = nn.BatchNorm2d(2).double()

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return self.norm(self.norm(x)) if x.shape[2] >= 8 else self.norm(x)

    with pytest.raises(ValueError, match=r"^`module` must call its .*, got 2 calls at scale 1 and 1 at another"):
        ScaleInvariant(Twice(), (1, 0.5), stride=1, offset=0)(random(3, 2, 12, 12))
    again = Checkpointed([norm, norm], reentrant=False)
    output = ScaleInvariant(again, (1, 0.5), stride=1, offset=0)(random(3, 2, 12, 12).requires_grad_())
    with pytest.raises(ValueError, match="once where activation checkpointing computes it again"):
        output.sum().backward()


def test_statistics_of_half_precision_are_taken_in_float32():
    """A mean of bfloat16 numbers, kept as one, is off by half a percent; BatchNorm itself has it in float32."""
    images = (random(4, 2, 30, 30) * 3 + 100.25).to(torch.bfloat16)
    module = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(2), Third())
    output = ScaleInvariant(module, (1, 2), pool="mean")(images).float()
    level = ScaleInvariant(nn.Identity(), (1, 2), stride=1, offset=0)._level(images, 2.0, (60, 60)).double()
    exact = images.double()
    mean, variance = exact.mean((0, 2, 3), True), exact.var((0, 2, 3), keepdim=True, unbiased=False)
    expected = sum(((each - mean) / (variance + 1e-5).sqrt()).pow(3).mean((2, 3)) / 2 for each in (exact, level))
    assert (output - expected).abs().max() < 0.06


def test_statistics_that_processes_share_are_refused_at_levels_of_several_sizes(monkeypatch):
    """They are computed by another function than `batch_norm`; one process alone uses that."""
    module, images = nn.Sequential(nn.SyncBatchNorm(2), nn.ReLU()).double(), random(3, 2, 9, 8)
    assert ScaleInvariant(module, (1, 2))(images).shape == images.shape
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for processes, refused in ((1, False), (2, True)):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda processes=processes: processes)
        if refused:
            with pytest.raises(ValueError, match=r"must not hold a SyncBatchNorm .* norm=\"level\""):
                training_norms(module)
        else:
            assert len(training_norms(module)) == 1
