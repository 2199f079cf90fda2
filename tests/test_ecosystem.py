"""The code of docs/ecosystem.md runs, and what it loads is the network that was kept."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import scaleconv
from scaleconv import LATE_SCALES, SIConv2d, SIConv3d
from zoo.networks import prepare_torchvision

PAGE = (Path(__file__).parents[1] / "docs" / "ecosystem.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))
CONVOLUTIONS, SCALE_INVARIANT = (nn.Conv2d, nn.Conv3d), (SIConv2d, SIConv3d)
SIZES = {"MONAI": (1, 8, 8, 8), "diffusers": (3, 16, 16)}
pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries


@pytest.fixture(autouse=True, scope="module")
def torchvision():
    """All these libraries import it."""
    prepare_torchvision()


def answer(network, images, name):
    output = network(images, timestep=1) if name == "diffusers" else network(images)
    return output if isinstance(output, torch.Tensor) else next(iter(output.values()))


@pytest.mark.parametrize("name", SECTIONS)
def test_a_network_that_was_kept_comes_back_converted_by_the_recipe(name, tmp_path):
    torch.manual_seed(0)
    images = torch.rand(2, *SIZES.get(name, (3, 32, 32)))
    scope = {"folder": tmp_path, "images": images}
    if name == "Lightning":
        import lightning

        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        scope["trainer"] = lightning.Trainer(max_steps=1, accelerator="cpu", default_root_dir=tmp_path, **quiet)
        examples = torch.utils.data.TensorDataset(images, torch.tensor([0, 1]))
        scope["batches"] = torch.utils.data.DataLoader(examples, batch_size=2)
    for code in re.findall(r"```python\n(.*?)```", SECTIONS[name], re.DOTALL):
        exec(code, scope)
    network, loaded = scope["network"], scope["loaded"]
    assert scaleconv.conversion(loaded) == scaleconv.conversion(network) != {}
    if name == "Lightning":
        network, loaded = network.network, loaded.network
    late = [isinstance(layer, SCALE_INVARIANT) for layer in network.modules() if isinstance(layer, CONVOLUTIONS)]
    assert not late[0]
    assert {layer.scales for layer in network.modules() if isinstance(layer, SCALE_INVARIANT)} == {LATE_SCALES}
    for norm in (*network.modules(), *loaded.modules()):
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.ones_(norm.weight)  # timm begins with 0 in the last of a block, which would hide its layers
    with torch.no_grad():
        expected, found = (answer(each.eval(), images, name) for each in (network, loaded))
        plain = answer(scaleconv.revert(loaded).eval(), images, name)
    torch.testing.assert_close(found, expected)
    assert (plain - expected).abs().max() > 1e-3 * expected.abs().max()  # the conversion matters


def test_every_ecosystem_has_its_lines():
    wanted = ["torchvision", "timm", "transformers", "diffusers", "MONAI", "Lightning", "accelerate"]
    assert [name for name in SECTIONS if name in wanted] == wanted


def lora(network):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(network, LoraConfig(target_modules=["0"], r=2, init_lora_weights=False))


def test_lora_around_a_converted_layer_has_plain_adapters_and_is_not_merged():
    torch.manual_seed(0)
    network = scaleconv.convert(lora(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU())), scales=(1, 2))
    layer = network.base_model.model[0]
    assert isinstance(layer.base_layer, SIConv2d)
    assert type(layer.lora_A["default"]) is type(layer.lora_B["default"]) is nn.Conv2d
    images = torch.rand(2, 3, 9, 9)
    adapter = layer.lora_B["default"](layer.lora_A["default"](images)) * layer.scaling["default"]
    torch.testing.assert_close(network(images), (layer.base_layer(images) + adapter).relu())
    network(images).sum().backward()
    with pytest.raises(RuntimeError, match="`merge` of Conv2d would fold a scale-invariant layer"):
        network.merge_and_unload()
    plain = scaleconv.revert(network)
    torch.testing.assert_close(plain.merge_and_unload()(images), scaleconv.revert(network)(images))


@pytest.mark.parametrize("name", ["repvgg_a0", "mobileone_s0", "fastvit_t8"])
def test_branches_are_not_added_up_while_they_are_scale_invariant(name):
    import timm
    from timm.utils import reparameterize_model

    torch.manual_seed(0)
    plain = timm.create_model(name, num_classes=3).eval()
    network = scaleconv.convert(plain, include="*", scales=(1, 2))
    with pytest.raises(RuntimeError, match="would fold a scale-invariant layer"):
        reparameterize_model(network)
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            reparameterize_model(scaleconv.revert(network))(images), plain(images), atol=1e-3, rtol=1e-3
        )
