"""What the tests of experiments share."""

import pytest
import torch

from scaleconv.experiments import run, train
from scaleconv.experiments.train import DigitStore


@pytest.fixture(autouse=True)
def every_checkpoint(monkeypatch):
    """Short runs are saved as often as their settings say."""
    monkeypatch.setattr(train, "SECONDS_BETWEEN", 0.0)


@pytest.fixture(scope="module")
def digits():
    """Digits that are scaled once for all tests of a file, so that their time goes into training."""
    with pytest.MonkeyPatch.context() as patch:
        store = DigitStore(torch.device("cpu"))
        patch.setattr(run, "DigitStore", lambda *_: store)
        yield store
