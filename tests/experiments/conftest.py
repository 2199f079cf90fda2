"""What the tests of experiments share."""

import pytest

from scaleconv.experiments import run


@pytest.fixture(autouse=True)
def every_checkpoint(monkeypatch):
    """Short runs leave a checkpoint after every step."""
    monkeypatch.setattr(run, "SECONDS_BETWEEN", 0.0)
