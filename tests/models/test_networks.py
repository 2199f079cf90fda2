"""Networks by name: what each takes, its variants, what is refused; and the classifier that takes pixels."""

import sys
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import asdict
from torch import nn

from helpers.loops import random
from helpers.methods import make_method
from scaleconv import SIConv2d
from scaleconv.experiments.settings import NetworkSettings
from scaleconv.models import NETWORKS, Classifier, Images, make_network
from scaleconv.models.controls import TwoDilations
from scaleconv.models.networks import channels_of, check_network
from scaleconv.nn import ScaleInvariant

CLASSIFIERS = [name for name, network in NETWORKS.items() if network.task == "classification"]
SCENES = Images((20, 20), 1, 4, "segmentation")


def make(images, **options):
    return make_network(images, **asdict(NetworkSettings(**options)))


@pytest.fixture
def package(monkeypatch):
    """A module of someone else."""
    found = SimpleNamespace(
        make=lambda num_classes: nn.Conv2d(3, num_classes, 1), text=lambda num_classes: "no network"
    )
    monkeypatch.setitem(sys.modules, "someones", found)
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_takes_its_channels_and_gives_its_classes(name):
    dense = name not in CLASSIFIERS
    images = Images((28, 28), 3, 4, "segmentation" if dense else "classification")
    network = make(images, name=name, maps=(2, 3, 4)[: NETWORKS[name].stages], scales=(1, 1.5)).eval()
    assert network(torch.rand(2, 3, 28, 28)).shape == ((2, 4, 28, 28) if dense else (2, 4))
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    assert first.in_channels == 3


def test_options_reach_the_networks_that_have_them():
    convnet = make_method("convnet", 30, maps=(2, 3), kernel=5, hidden=7)
    assert (convnet.stages.conv1.weight.shape, convnet.classifier.fc1.out_features) == ((2, 1, 5, 5), 7)
    assert (convnet.stages.conv2.out_channels, convnet.classifier.fc2.out_features) == (3, 10)
    for method in ("cnn", "deep_cnn", "cropped_cnn"):
        network = make_method(method, maps=(2, 3, 4), dropout=0.25)
        assert {module.p for module in network.modules() if isinstance(module, nn.Dropout)} == {0.25}
    assert len(make_method("multi_column", scales=(1, 2, 3)).columns) == 3
    unet, wide = make(SCENES, name="unet"), make(SCENES, name="unet", maps=(3, 5))
    assert (unet.down1.conv1.out_channels, wide.down1.conv1.out_channels) == (16, 3)


def test_controls_change_the_layers_that_are_chosen():
    images, late = Images((32, 32), 3), ("stages.2.*",)
    dilated = make(images, name="resnet", variant="dilated", layers=late)
    branches = make(images, name="resnet", variant="branches", layers=late)
    spread = [name for name, m in dilated.named_modules() if isinstance(m, nn.Conv2d) and m.dilation == (2, 2)]
    assert spread == ["stages.2.0.conv1", "stages.2.0.conv2"]
    assert [name for name, m in branches.named_modules() if isinstance(m, TwoDilations)] == spread
    for variant, kind in (("converted", SIConv2d), ("branches", TwoDilations)):
        found = make(images, name="resnet", variant=variant, last=0.3)  # 2 of 7
        changed = [name for name, m in found.named_modules() if isinstance(m, kind)]
        assert changed == spread
    with pytest.raises(ValueError, match=r"`layers` must match convolutions .* got 'stages.3"):
        make(images, name="resnet", variant="branches", layers=("stages.3.*",))


def test_networks_of_three_stages_have_the_blocks_that_are_asked_for():
    images = Images((32, 32), 3)
    assert [len(s) for s in make(images, name="mobilenet", maps=(4, 8, 12), blocks=(1, 2, 3)).stages] == [1, 2, 3]
    assert not hasattr(make(images, name="resnet"), "context")
    assert make(images, name="resnet_aspp").context.join[1].out_channels == 192
    for name, blocks in (("resnet", (1, 2)), ("convnet", (1, 1, 1))):
        with pytest.raises(ValueError, match="`blocks` must be 3 numbers, for resnet, bottleneck, mobilenet, convnext"):
            make(images, name=name, blocks=blocks)


def test_resnet_has_the_small_first_layer_for_small_images():
    for size, kernel in [((64, 64), 3), ((65, 20), 7), ((20, 65), 7), (None, 7)]:
        network = make(Images(size), name="resnet18").eval()
        assert network[0].kernel_size == (kernel, kernel)
        stem, maps = network[:-11](torch.rand(1, 1, 64, 64)), 64 if kernel == 3 else 16
        assert (stem.shape[2], network[-11:-3](stem).shape[2]) == (maps, maps // 8)


def test_converted_networks_have_the_chosen_layers_scales_and_averaging():
    def layers(**options):
        network = make(Images((28, 28)), name="convnet", variant="converted", maps=(2, 3), **options)
        return {name: layer for name, layer in network.named_modules() if isinstance(layer, SIConv2d)}

    assert {name: layer.scales for name, layer in layers(scales=(1, 2)).items()} == {
        "stages.conv1": (1, 2),
        "stages.conv2": (1, 2),
    }
    assert list(layers(layers=("stages.conv2",))) == list(layers(layers=("*2",))) == ["stages.conv2"]
    second = layers(scales=(1, 2), second_scales=(0.5, 1))
    assert [layer.scales for layer in second.values()] == [(1, 2), (0.5, 1)]
    assert [layer.antialias for layer in layers(antialias=True).values()] == [True, True]
    assert [layer.antialias for layer in layers().values()] == [False, False]


@pytest.mark.parametrize(("levels", "size"), [("input", (28, 28)), ("own", "own")])
def test_a_pyramid_has_the_rules_of_its_settings(levels, size):
    options = {"pool": "mean", "norm": "level", "antialias": True, "scales": (0.5, 1), "maps": (2, 3)}
    found = make_method("pyramid", name="convnet", levels=levels, **options)
    assert isinstance(found, ScaleInvariant)
    assert (found.scales, found.pool, found.norm, found.antialias) == ((0.5, 1), "mean", "level", True)
    assert found.size == size
    upsampled = make_method("pyramid", name="cnn", maps=(2, 3, 4), upsample=2)
    assert upsampled[1].size == (56, 56)
    assert make(Images(None, 3), name="resnet18", variant="pyramid").size == "input"


def test_the_network_of_a_pyramid_is_converted_where_layers_are_named():
    both = make(Images((32, 32), 3), name="resnet", variant="pyramid", layers=("stages.2.*",), scales=(0.5, 1))
    assert isinstance(both, ScaleInvariant)
    inner = [name for name, module in both.named_modules() if isinstance(module, SIConv2d)]
    assert [name.removeprefix("module.") for name in inner] == ["stages.2.0.conv1", "stages.2.0.conv2"]
    plain = make(Images((32, 32), 3), name="resnet", variant="pyramid", scales=(0.5, 1))
    assert not any(isinstance(module, SIConv2d) for module in plain.modules())


def test_a_pyramid_of_a_dense_network_gives_every_pixel():
    averaged = make(SCENES, name="unet", variant="pyramid", antialias=True)
    assert (averaged.antialias, averaged.stride, averaged.offset) == (True, (1, 1), (0, 0))
    found = make(SCENES, name="unet", variant="pyramid", scales=(0.5, 1, 2), maps=(2, 3)).eval()
    assert isinstance(found, ScaleInvariant)
    assert found(torch.rand(1, 1, 20, 20)).shape == (1, 4, 20, 20)


def test_networks_of_someone_else_are_made_for_the_classes(package):
    network = make(Images((8, 8), 3, 5), name="someones:make")
    assert (network.out_channels, channels_of("someones:make"), channels_of("unet")) == (5, 3, None)
    assert isinstance(make(Images((8, 8), 3, 5), name="someones:make", variant="pyramid"), ScaleInvariant)

    def broken(num_classes):
        raise RuntimeError("out of order")

    package.broken = broken
    for name, message in [
        ("nobodys:make", r"`model` must be package.module:factory that can be imported, got nobodys:make"),
        ("someones:other", r"`model` must be .*imported, got someones:other"),
        ("someones:broken", r"`model` someones:broken must take num_classes=5, got RuntimeError: out of order"),
        ("someones:text", r"`model` someones:text must return a torch.nn.Module, got str"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(Images((8, 8), 3, 5), name=name)


def test_a_factory_may_be_in_the_current_directory_with_what_it_imports(tmp_path, monkeypatch):
    (tmp_path / "my_layers.py").write_text("from torch.nn import Conv2d\n")
    (tmp_path / "my_networks.py").write_text(
        "def make(num_classes):\n    from my_layers import Conv2d\n    return Conv2d(3, num_classes, 1)\n"
    )
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    assert make(Images((8, 8), 3, 5), name="my_networks:make").out_channels == 5
    with pytest.raises(ValueError, match="imported, got my_networks:nothing"):
        make(Images((8, 8), 3, 5), name="my_networks:nothing")
    assert sys.path == path
    for name in ("my_layers", "my_networks"):
        del sys.modules[name]


def test_what_a_network_does_not_take_is_refused():
    for images, options, message in [
        (Images((28, 20)), {"name": "convnet"}, "`model` convnet .*square images of one size.*got 28×20"),
        (Images(None), {"name": "cnn"}, "`model` cnn .*square images of one size.*got images of their own sizes"),
        (Images((12, 12)), {"name": "tiled"}, r"`model` tiled .*`size` \(=12\) must leave"),
        (Images((28, 28)), {"name": "unet"}, "`model` must be convnet .* for classification, got unet"),
        (SCENES, {"name": "cnn"}, "`model` must be fcn or unet or .* for segmentation, got cnn"),
        (Images((28, 28)), {"name": "convnet", "maps": (2, 3, 4)}, r"`maps` must be 2 numbers for convnet, got \[2, 3"),
        (Images((28, 28)), {"name": "cnn", "maps": (2, 3)}, r"`maps` must be 3 numbers for cnn, got \[2, 3\]"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(images, **options)
    check_network("package:factory", "segmentation", (1, 2, 3, 4))
    for pattern, message in [("nose.*", "got 'nose"), ("*shortcut.0", r"that can gain by it.*got '\*shortcut")]:
        with pytest.raises(ValueError, match=f"`layers` must match convolutions .*{message}"):
            make(Images((32, 32)), name="resnet18", variant="converted", layers=(pattern,))


def test_a_classifier_normalises_each_channel_and_names_its_classes():
    class Identity(nn.Module):
        def forward(self, images):
            return {"aux": images * 0, "out": images}

    images = random(2, 3, 4, 5)
    for network in (nn.Identity(), Identity()):
        found = Classifier(network, (0.1, 0.2, 0.3), (1.0, 2.0, 4.0), ["a", "b", "c"])
        expected = torch.stack([(images[:, k] - (k + 1) / 10) / 2**k for k in range(3)], dim=1)
        torch.testing.assert_close(found(images).double(), expected, rtol=1e-5, atol=1e-6)
        assert found.classes == ("a", "b", "c")
        assert set(found.state_dict()) == {"mean", "std"}
