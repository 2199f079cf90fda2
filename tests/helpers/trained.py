"""examples/trained.py with weights and images of no meaning."""

import importlib
from pathlib import Path

import torch
from safetensors.torch import save_file

from helpers.folders import write_image

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_trained(monkeypatch, folder, classes=10):
    """The module, which finds random weights, and images in colour, in the folder."""
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module("trained")
    for index in range(40):
        write_image(folder / "images" / "ab"[index % 2] / f"{index}.png", size=(16, 16), seed=index)
    network = module.ResNet20(classes)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():  # BatchNorm as after training
            if "bn" in name and tensor.is_floating_point():
                tensor.uniform_(0.5, 1.5)
    save_file(network.state_dict(), folder / "weights.safetensors")
    monkeypatch.setenv("SCALECONV_WEIGHTS", str(folder / "weights.safetensors"))
    monkeypatch.setenv("SCALECONV_IMAGES", str(folder / "images"))
    monkeypatch.setattr(module, "FITTED", 1)
    module.calibrated_state.cache_clear()  # of the weights of an earlier test
    return module
