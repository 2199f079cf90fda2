"""BatchNorm inside a pyramid, in training: whose statistics normalise which level, and what the gradient sees."""

import copy

import pytest
import torch
from torch import nn

from helpers.loops import random
from helpers.tolerance import assert_close
from scaleconv import ScaleInvariant

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
