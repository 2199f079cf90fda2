"""What tests start in processes of their own: the command, and networks as package.module:factory."""

import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from torch import nn

from scaleconv import cli
from scaleconv.experiments import evaluate, fit


def make_normed(num_classes):
    """Small, with BatchNorm."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 3, bias=False), nn.BatchNorm2d(6, momentum=None, affine=False), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, num_classes)),
    )


class Killed(nn.Sequential):
    """Sends a signal to the second process in its fifth step, once: what the file says that the environment names."""

    steps = 0

    def forward(self, images):
        mark = Path(os.environ["KILLED"])
        Killed.steps += self.training
        if os.environ.get("RANK") == "1" and Killed.steps == 5 and mark.exists():
            number = int(mark.read_text())
            mark.unlink()
            signal.raise_signal(number)
        return super().forward(images)


def make_killed(num_classes):
    return Killed(*make_normed(num_classes))


def run_command(arguments, environment, folder):
    """Run the command in a folder as one of several processes, its output in files; every step leaves a checkpoint."""
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.modules[fit.__module__].SECONDS_BETWEEN = 0.0
    evaluate.BATCH = 3  # for more batches to test than processes
    with (
        (folder / "out").open("w") as out,
        (folder / "err").open("w") as err,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        cli.main(arguments)
