"""A whole run, recomputed by hand from the digits on: which digits train, which test, and from which seeds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from scaleconv.data import embedded_digits, make_folds, make_scaled, parse_scales
from scaleconv.experiments import load_experiment, plan_runs, run_experiment
from scaleconv.experiments.digits import divide
from scaleconv.models import Shape, make_model

SETTINGS = {
    "models": ["si_convnet"],
    "folds": [1],
    "seed": 5,
    "data.train": 200,
    "data.seed": 3,
    "data.fold_seed": 2,
    "data.size": 30,
    "data.scales": "uniform:0.5,0.9",
    "network.maps": [2, 3],
    "network.hidden": 8,
    "network.scales": [0.8, 1.0, 1.3],
    "training.epochs": 2,
    "training.batch": 50,
}


def test_a_run_is_what_the_settings_say(tmp_path):
    experiment = load_experiment("table1", "quick", SETTINGS)
    (record,) = run_experiment(experiment, tmp_path / "table1-hand")

    digits = embedded_digits()
    scales = parse_scales("uniform:0.5,0.9").draw(10_000, 3)
    images = make_scaled(digits.images, torch.from_numpy(scales), 30)
    split = make_folds(digits.labels, 200, count=4, seed=2)[1]
    assert (len(split.train), len(split.test)) == (200, 600)
    mean = images[split.train].double().mean().item()
    train, test = images[split.train] - mean, images[split.test] - mean
    torch.manual_seed(5)
    network = make_model("si_convnet", Shape((2, 3), 7, 30, 8), (0.8, 1, 1.3))
    rates = [
        {
            "params": [p],
            "lr": 0.02 * (2 if n.endswith("bias") else 1),
            "weight_decay": 0 if n.endswith("bias") else 1e-4,
        }
        for n, p in network.named_parameters()
    ]
    optimiser = torch.optim.SGD(rates, momentum=0.9)
    for epoch in (1, 2):
        losses = []
        for chosen in np.random.default_rng([5, 1, epoch]).permutation(200).reshape(4, 50):
            optimiser.zero_grad()
            loss = F.cross_entropy(network(train[chosen]), digits.labels[split.train][chosen])
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert record.history[epoch - 1].train_loss == pytest.approx(sum(losses) / 4, rel=1e-5)
    with torch.no_grad():
        wrong = (network(test).argmax(1) != digits.labels[split.test]).sum().item()
    assert record.test_error == pytest.approx(100 * wrong / 600)
    (run,) = plan_runs(experiment)
    weights = load_file(run.weights(tmp_path / "table1-hand"))
    for name, value in network.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


def test_networks_of_a_fold_start_from_the_same_weights():
    """The comparison is between layers: everything else about the two networks is the same."""
    weights = []
    for name in ("convnet", "si_convnet"):
        torch.manual_seed(0)
        weights.append(list(make_model(name).parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_below_zero_the_fold_seed_keeps_the_order_of_the_file():
    config = load_experiment("table1", "quick", {"data.fold_seed": -1}).settings.data
    assert divide(torch.arange(10_000) % 10, config, 1).train.tolist() == list(range(1000, 2000))


def test_with_test_digits_named_each_fold_is_a_draw_and_smaller_sets_are_part_of_larger_ones():
    labels = torch.arange(10_000) % 10
    small, large = (
        load_experiment("table1", "quick", {"data.train": train, "data.test": 300}).settings.data
        for train in (200, 500)
    )
    splits = [divide(labels, small, 0), divide(labels, large, 0), divide(labels, large, 1)]
    sets = [(set(split.train.tolist()), set(split.test.tolist())) for split in splits]
    assert [(len(train), len(test)) for train, test in sets] == [(200, 300), (500, 300), (500, 300)]
    assert sets[0][0] < sets[1][0]
    assert sets[0][1] == sets[1][1] != sets[2][1]
    assert not sets[1][0] & sets[1][1]


def test_held_out_digits_take_the_place_of_the_test_digits():
    labels = torch.arange(10_000) % 10
    config = load_experiment("table1", "quick", {"data.held_out": 300}).settings.data
    split, whole = divide(labels, config, 1), divide(labels, replace(config, held_out=0), 1)
    assert (len(split.train), len(split.test)) == (700, 300)
    assert sorted([*split.train.tolist(), *split.test.tolist()]) == whole.train.tolist()
