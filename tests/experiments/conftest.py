"""What the tests of experiments share."""

import pytest
import torch

from scaleconv.experiments import runner
from scaleconv.experiments.digits import DigitStore


@pytest.fixture(scope="module")
def digits():
    """Digits that are scaled once for all tests of a file, so that their time goes into training."""
    with pytest.MonkeyPatch.context() as patch:
        store = DigitStore(torch.device("cpu"))
        patch.setattr(runner, "DigitStore", lambda *_: store)
        yield store
