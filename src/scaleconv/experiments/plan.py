"""The runs of an experiment: which there are, what identifies one, and where its files lie.

Paths follow from a run alone, so that an interrupted experiment finds what it left behind.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ..models import make_model
from .config import Experiment, Point, Settings
from .records import Epoch, record_path
from .titles import TITLES


@dataclass(frozen=True)
class Run:
    """One network on one fold at one point."""

    model: str
    point: Point
    fold: int
    seed: int

    @property
    def settings(self) -> Settings:
        return self.point.settings

    @property
    def title(self) -> str:
        at = f", {self.point.title}" if self.point.title else ""
        return f"{TITLES[self.model]}{at}, fold {self.fold}"

    def identity(self) -> dict[str, Any]:
        """All that its weights depend on."""
        config = self.settings.of_training(self.model)
        return {"model": self.model, "fold": self.fold, "seed": self.seed, "config": config}

    def record(self, folder: Path) -> Path:
        return record_path(folder, self.model, self.point.name, self.fold, self.seed)

    def checkpoint(self, folder: Path) -> Path:
        """The state of the unfinished run."""
        return folder / "checkpoints" / self.record(folder).with_suffix(".safetensors").name

    def weights(self, folder: Path) -> Path:
        """The weights of the finished run."""
        return folder / "weights" / self.record(folder).with_suffix(".safetensors").name

    def network(self) -> nn.Module:
        """Its network as it is before training, on the CPU."""
        torch.manual_seed(self.seed)
        settings = self.settings.network
        shape = settings.shape(self.settings.data.size)
        return make_model(
            self.model,
            shape,
            settings.scales,
            second_scales=settings.second_scales,
            antialias=settings.antialias,
        )


class Watcher(Protocol):
    """Is told how the runs go on, for display only."""

    def plan(self, title: str, runs: int) -> None:
        """So many runs are to be done."""

    def begin(self, run: Run, done: int) -> None:
        """A run begins, or goes on after so many epochs."""

    def epoch(self, run: Run, entry: Epoch) -> None:
        """A run has finished an epoch."""

    def end(self, title: str) -> None:
        """A run is finished, now or before."""


class Silent:
    """A `Watcher` that says nothing."""

    def plan(self, title: str, runs: int) -> None: ...

    def begin(self, run: Run, done: int) -> None: ...

    def epoch(self, run: Run, entry: Epoch) -> None: ...

    def end(self, title: str) -> None: ...


def plan_runs(experiment: Experiment) -> list[Run]:
    """All runs, model by model, point by point."""
    return [
        Run(model, point, fold, experiment.seed)
        for model in experiment.models
        for point in experiment.points
        for fold in experiment.folds
    ]
