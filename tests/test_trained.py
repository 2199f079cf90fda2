"""The trained network is changed as the example says, and starts where it says."""

import pytest
import torch
from torch import nn

from helpers.tolerance import assert_close
from helpers.trained import load_trained
from scaleconv import SIConv2d, convert


@pytest.fixture
def trained(monkeypatch, tmp_path):
    return load_trained(monkeypatch, tmp_path)


@pytest.fixture
def images():
    return torch.rand(3, 3, 20, 28, generator=torch.Generator().manual_seed(0))


def converted(trained):
    return convert(trained.plain(10), include=trained.LATE, scales=trained.SCALES)


@pytest.mark.parametrize("factory", ["gated", "gated_channels", "annealed"])
@pytest.mark.parametrize("training", [False, True])
def test_a_blend_starts_as_the_trained_network(trained, images, factory, training):
    network, plain = getattr(trained, factory)(10).train(training), trained.plain(10).train(training)
    assert torch.equal(network(images), plain(images))
    assert not torch.allclose(converted(trained).train(training)(images), plain(images))


@pytest.mark.parametrize(("factory", "gates"), [("gated", 1), ("gated_channels", 64)])
def test_gates_learn_from_the_start_and_blend_what_they_say(trained, images, factory, gates):
    network = getattr(trained, factory)(10).eval()
    found = {name: gate for name, gate in network.named_parameters() if name.endswith("gate")}
    assert {name: gate.shape for name, gate in found.items()} == {
        f"layer3.{block}.conv{conv}.gate": (gates,) for block in range(3) for conv in (1, 2)
    }
    network(images).square().sum().backward()
    assert all(gate.grad.any() for gate in found.values())
    blend, input = network.layer3[1].conv1, torch.rand(1, 64, 5, 6)
    share = torch.linspace(0, 1, gates) if gates > 1 else torch.tensor([0.25])
    blend.gate.data.copy_(share / trained.SPEED)
    ordinary = nn.functional.conv2d(input, blend.layer.weight, padding=1)
    assert_close(blend(input), ordinary + share.view(-1, 1, 1) * (blend.layer(input) - ordinary))


def test_annealing_ends_as_the_converted_network(trained, images):
    blend = trained.AnnealedBlend(SIConv2d(3, 4, 3, padding=1, scales=trained.SCALES), steps=4)
    shares = []
    for _ in range(6):
        shares.append(float(blend.eval().share()))
        blend.train()(images)
    assert shares == [0, 0.25, 0.5, 0.75, 1, 1]
    network, end = trained.annealed(10).eval(), converted(trained).eval()
    for name, calls in network.named_buffers():
        if name.endswith("calls"):
            calls.fill_(trained.RISE)
    assert torch.equal(network(images), end(images))


def test_the_norms_of_all_levels_start_as_the_trained_one_and_go_their_own_way(trained, images):
    network, plain = trained.level_norms(10).eval(), trained.plain(10)
    for block, original in zip(network.layer3, plain.layer3, strict=True):
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2")):
            states = [each.state_dict() for each in getattr(block, conv).norms]
            assert len(states) == len(trained.SCALES)
            for name, wanted in getattr(original, norm).state_dict().items():
                assert all(torch.equal(state[name], wanted) for state in states)
    # Equal norms with positive weights keep the order of the levels: the maximum may as well come before them.
    assert_close(network(images), converted(trained).eval()(images))
    network.train()(images)
    means = [norm.running_mean for norm in network.layer3[0].conv1.norms]
    assert all(not torch.allclose(means[2], mean) for mean in (*means[:2], *means[3:]))


def test_calibration_is_done_once_and_leaves_only_what_is_converted_changed(trained, images):
    first, second, start = trained.calibrated(10), trained.calibrated(10), converted(trained)
    assert trained.calibrated_state.cache_info().misses == 1
    assert torch.equal(first.eval()(images), second.eval()(images))
    assert [name for name, layer in first.named_modules() if isinstance(layer, SIConv2d)] == [
        f"layer3.{block}.conv{conv}" for block in range(3) for conv in (1, 2)
    ]
    changed = {name for name, each in first.state_dict().items() if not same(each, start.state_dict()[name])}
    assert changed
    assert all(".running" in name or name.startswith("layer3") for name in changed)


def same(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize(("variable", "factory"), [("SCALECONV_WEIGHTS", "plain"), ("SCALECONV_IMAGES", "calibrated")])
def test_a_path_that_is_not_given_is_named(trained, monkeypatch, variable, factory):
    monkeypatch.delenv(variable)
    with pytest.raises(ValueError, match=f"`{variable}` must be set in the environment"):
        getattr(trained, factory)(10)
