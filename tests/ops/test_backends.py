"""The kernels are launched on the GPU of what they work on."""

from contextlib import contextmanager

import pytest
import torch

from kernel_calls import by_kernels, leaves_of, random
from scaleconv.ops.first_layer import first_layer
from scaleconv.ops.relu_pool import relu_pool

pytest.importorskip("triton")
from scaleconv.ops import fused
from scaleconv.ops.kernels import relu_pool as relu_pool_kernels


@pytest.fixture
def entered(monkeypatch):
    """On whose device the program is, and was."""
    devices = []

    @contextmanager
    def device_of(tensor):
        devices.append(tensor)
        yield
        devices.append(None)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    return devices


def on_a_device(function, entered):
    def checked(*arguments, **options):
        assert entered[-1] is not None
        return function(*arguments, **options)

    return checked


def test_kernels_are_launched_on_the_device_of_their_tensors(entered, monkeypatch):
    for name in ("respond", "weight_grad", "add_patches_back"):
        monkeypatch.setattr(fused, name, on_a_device(getattr(fused, name), entered))
    monkeypatch.setattr(relu_pool_kernels, "_launch", on_a_device(relu_pool_kernels._launch, entered))
    leaves = leaves_of((2, 1, 7, 6), (3, 1, 3, 3))
    output = by_kernels(leaves, {"scales": (1.0, 1.5)})
    torch.autograd.grad(relu_pool(output, 2)[0].sum(), leaves)
    pooled, _ = first_layer(random(2, 1, 7, 6), *leaves[1:], [1.0], 2, 1)
    torch.autograd.grad(pooled.sum(), leaves[1:])
    assert len(entered) == 2 * 6  # forward and backward of the three
