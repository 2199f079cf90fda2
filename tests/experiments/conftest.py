"""What the tests of experiments share."""

import math

import pytest

from scaleconv.experiments import run
from scaleconv.experiments.sources import Sources


@pytest.fixture(autouse=True)
def every_checkpoint(monkeypatch):
    """Short runs leave a checkpoint after every step."""
    monkeypatch.setattr(run, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(run, "SHARE_OF_TIME", math.inf)


@pytest.fixture(scope="module")
def digits():
    """Digits that are scaled once for all tests of a file, so that their time goes into training."""
    with pytest.MonkeyPatch.context() as patch:
        sources = Sources("cpu")
        patch.setattr(run, "Sources", lambda *_: sources)
        yield sources
