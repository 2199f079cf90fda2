"""Watchers that interrupt or write down, and what to compare of two folders of runs."""

from dataclasses import asdict

from safetensors.torch import load_file

from scaleconv.experiments import read_records


class Stop(Exception):  # noqa: N818
    """The interruption."""


class Diary:
    """A watcher that writes down what it is told."""

    def __init__(self):
        self.begun, self.epochs, self.ended = [], [], []

    def plan(self, *_): ...

    def begin(self, run, done):
        self.begun.append((run.model, run.fold, done))

    def epoch(self, run, entry):
        self.epochs.append((run.model, run.fold, entry))

    def end(self, title):
        self.ended.append(title)


class StopAt(Diary):
    """Interrupts the experiment after so many epochs."""

    def __init__(self, epochs):
        super().__init__()
        self.most = epochs

    def epoch(self, run, entry):
        super().epoch(run, entry)
        if len(self.epochs) == self.most:
            raise Stop


def outcome(folder):
    """Everything in the records but the time they took and where, and the weights."""
    found = {}
    for record in read_records(folder):
        values = asdict(record)
        for name in ("seconds", "seconds_per_epoch", "environment", "experiment"):
            del values[name]
        for entry in values["history"]:
            del entry["seconds"]
        weights = load_file((folder / "weights" / record.name).with_suffix(".safetensors"))
        found[record.name] = values, {name: tensor.tolist() for name, tensor in weights.items()}
    return found
