"""What tests of several benches use."""

import pytest
from torch import nn

from scaleconv.bench import network_costs
from scaleconv.bench.network_costs import CLASSES, NETWORKS


@pytest.fixture
def stand_ins(monkeypatch):
    """A small network in place of each large one, where the rows are tested and not the networks."""

    def make():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))

    monkeypatch.setattr(network_costs, "NETWORKS", dict.fromkeys(NETWORKS, make))
