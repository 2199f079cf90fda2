"""A method changes the network, its variant and the augmentation of a run, and nothing else of its settings."""

import json

import pytest
import torch

from helpers.loops import random
from helpers.methods import make_method
from scaleconv import DEFAULT_SCALES, LATE_SCALES, SIConv2d
from scaleconv.experiments import load_item
from scaleconv.experiments.methods import (
    COMPARED,
    METHODS,
    OWN,
    PAPERS,
    UNSCALED,
    apply_method,
    config_of,
    of_result,
    of_weights,
    settings_of,
)
from scaleconv.experiments.settings import NetworkSettings, Settings, TrainingSettings
from scaleconv.models import UNSUPERVISED
from scaleconv.nn import ScaleInvariant
from scaleconv.nn.convert import LATE

SETTINGS = Settings(
    network=NetworkSettings(name="deep_cnn", variant="pyramid", hidden=9), training=TrainingSettings(augment=("flip",))
)


@pytest.mark.parametrize(
    ("method", "name", "variant", "augment"),
    [
        ("convnet", "convnet", "plain", ("flip",)),
        ("si_convnet", "convnet", "converted", ("flip",)),
        ("ensemble", "convnet", "pyramid", ("flip",)),
        ("augmented", "convnet", "plain", ("flip", "scale")),
        ("si_unet", "unet", "converted", ("flip",)),
        ("plain", "deep_cnn", "plain", ("flip",)),
        ("late", "deep_cnn", "converted", ("flip",)),
        ("plain-scale", "deep_cnn", "plain", ("flip", "scale")),
        ("converted-scale", "deep_cnn", "converted", ("flip", "scale")),
        ("pyramid", "deep_cnn", "pyramid", ("flip",)),
    ],
)
def test_a_method_decides_on_network_variant_and_rescaling(method, name, variant, augment):
    network, training = apply_method(method, SETTINGS.network, SETTINGS.training)
    assert (network.name, network.variant, training.augment) == (name, variant, augment)
    assert (network.last, network.scales) == ((LATE, LATE_SCALES) if method == "late" else (0, DEFAULT_SCALES))
    assert network.hidden == 9
    assert apply_method(method, network, training) == (network, training)  # rescaled once, not twice


def test_only_methods_of_the_paper_change_the_settings_of_their_runs():
    found = settings_of("si_convnet", SETTINGS)
    assert (found.network.name, found.network.variant) == ("convnet", "converted")
    assert (found.data, found.measure) == (SETTINGS.data, SETTINGS.measure)
    for name in ("late-scale", "pyramid-scale", "method of a plan", "rbm"):
        assert settings_of(name, SETTINGS) is SETTINGS


def test_the_network_of_a_method_has_the_layers_that_its_name_says():
    for method in (name for name in METHODS if METHODS[name].network):
        made = make_method(method, scales=(1, 2))
        converted = any(isinstance(module, SIConv2d) for module in made.modules())
        assert converted == method.startswith("si_"), method
        assert isinstance(made, ScaleInvariant) == (method == "ensemble" or method.startswith("pyramid_")), method


def test_methods_are_divided_into_those_of_the_paper_and_those_of_any_network():
    assert set(OWN) | set(PAPERS) == set(METHODS)
    assert set(OWN) > set(COMPARED)
    assert set(UNSUPERVISED) < set(PAPERS)
    assert settings_of("rbm", SETTINGS) is SETTINGS


def test_a_record_holds_the_sections_that_the_method_uses():
    sections = {method: list(config_of(method, SETTINGS)) for method in ("convnet", "rbm", "si_rbm", "pixels")}
    assert sections == {
        "convnet": ["data", "network", "training", "measure"],
        "rbm": ["data", "rbm", "softmax"],
        "si_rbm": ["data", "si_rbm", "softmax"],
        "pixels": ["data", "softmax"],
    }
    assert config_of("convnet", SETTINGS)["network"]["hidden"] == 9
    for config in (config_of("si_convnet", SETTINGS), load_item("cost").config):
        assert json.loads(json.dumps(config)) == config  # as it is read again


def test_results_depend_on_all_but_the_tests_on_the_way_and_weights_not_on_the_measure():
    config = config_of("convnet", SETTINGS)
    result, weights = of_result("convnet", config), of_weights("convnet", config)
    left = {key: value for key, value in config["training"].items() if key != "evaluate_every"}
    assert result == {**config, "training": left}
    assert weights == {key: value for key, value in result.items() if key != "measure"}
    assert set(config["network"]) - set(of_result("cnn", config)["network"]) == {"scales"}
    assert "evaluate_every" in config["training"]  # not changed


def test_a_setting_that_there_was_not_yet_has_its_default():
    config = config_of("convnet", SETTINGS)
    older = {**config, "network": {key: value for key, value in config["network"].items() if key != "dropout"}}
    assert of_result("convnet", older) == of_result("convnet", config)
    other = {**config, "network": {**config["network"], "dropout": 0.1}}
    assert of_result("convnet", older) != of_result("convnet", other)


@pytest.mark.parametrize("method", ["cnn", "cropped_cnn", "si_cnn", "pyramid_cnn", "deep_cnn", "pyramid_deep_cnn"])
def test_results_lack_the_scales_of_networks_that_scales_do_not_change(method):
    images, found = random(2, 1, 28, 28, seed=1, dtype=torch.float32), []
    for scales in [(1, 2), (0.5, 1)]:
        torch.manual_seed(0)
        found.append(make_method(method, maps=(3, 4, 5), scales=scales).eval()(images))
    assert torch.equal(*found) == (method in UNSCALED)
