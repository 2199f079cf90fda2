"""What tests of the kernels use."""

import pytest
import torch

from scaleconv.ops.cache import BoundedCache


@pytest.fixture
def whole_float32():
    """Products of float32 as such: TF32 has the accuracy of a 16-bit type."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def local_filters(monkeypatch):
    """Whatever the sizes, take filters of each position, those of few levels at once; which ones were taken."""
    from scaleconv.ops import fused
    from scaleconv.ops.kernels import call as call_module

    monkeypatch.setattr(call_module, "LEAST_IMAGES", 1)
    monkeypatch.setattr(call_module, "IMAGES_PER_FILTER", 0)
    monkeypatch.setattr(call_module, "LEAST_CHANNELS", 1)
    monkeypatch.setattr(call_module, "LOCAL_FILTERS", 2000)
    monkeypatch.setattr(call_module, "CALLS", BoundedCache(entries=8, nbytes=2**30))
    taken = []
    respond = fused.respond_locally
    monkeypatch.setattr(fused, "respond_locally", lambda *a: (taken.append(a[5]), respond(*a)))
    return taken
