"""Watchers that interrupt or write down, and what to compare of two folders of runs."""

import msgspec
from safetensors.torch import load_file

from scaleconv.experiments import read_records


class Stop(Exception):  # noqa: N818
    """The interruption."""


class Diary:
    """A watcher that writes down what it is told; it stops the work after so many steps and ends of epochs."""

    def __init__(self, stop=None):
        self.begun, self.advanced, self.ended, self.stop = [], [], [], stop

    def plan(self, *_): ...

    def begin(self, title, epochs, done):
        self.begun.append((title, epochs, done))

    def advance(self, title, epochs, figures):
        self.advanced.append((title, epochs, figures))
        if len(self.advanced) == self.stop:
            raise Stop

    def end(self, title):
        self.ended.append(title)


def outcome(folder):
    """Everything in the records but the time they took and where, and the bytes of the weights."""
    found = {}
    for record in read_records(folder):
        values = msgspec.to_builtins(record)
        for name in ("seconds", "seconds_per_epoch", "environment", "experiment"):
            del values[name]
        for entry in values["history"]:
            del entry["seconds"]
        values["cost"].pop("ms", None)
        weights = load_file(folder / "weights" / f"{record.name}.safetensors")
        found[record.name] = values, {name: tensor.numpy().tobytes() for name, tensor in weights.items()}
    return found
