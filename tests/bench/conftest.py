"""Layers of others, as `--peer` takes them from the module `peers`."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn


class Shorter(nn.Conv2d):
    def forward(self, input):
        return super().forward(input)[..., 1:]


class Unlike(nn.Module):
    def __init__(self, channels):
        super().__init__()


class Broken(nn.Conv2d):
    """It works in float32, in which its shape is checked."""

    def forward(self, input):
        if input.dtype == torch.bfloat16:
            raise RuntimeError("no such\nkernel")
        return super().forward(input)


@pytest.fixture(autouse=True)
def peers(monkeypatch):
    classes = {"Plain": nn.Conv2d, "Shorter": Shorter, "Unlike": Unlike, "Broken": Broken}
    monkeypatch.setitem(sys.modules, "peers", SimpleNamespace(**classes))
