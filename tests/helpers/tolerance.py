"""One table: the error allowed for each floating-point type, relative to the largest value compared."""

import torch

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def assert_close(actual, expected, dtype=None):
    """Compare in float64, to the tolerance of `dtype` (by default, the type of `actual`)."""
    limit = TOLERANCE[dtype or actual.dtype]
    actual, expected = actual.double(), expected.double()
    assert actual.shape == expected.shape
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=limit * scale)
