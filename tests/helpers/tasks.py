"""Work for other processes, which import it by its name."""

import os
import signal
import time

import torch

from helpers.records import record
from scaleconv.experiments import run
from scaleconv.experiments.records import write_record

work = run._work


def note(what, folder, watcher):
    """Leave a file that says which process did it, with how many threads; the first two, a and b, wait for each other.

    What is bad is refused, what is lost kills its process, what is long takes ten minutes.
    """
    if what == "bad":
        raise ValueError("`what` must be good, got bad")
    if what == "lost":
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"{what}.begun").touch()
    end = time.monotonic() + 60
    while what in "ab" and not all((folder / f"{name}.begun").exists() for name in "ab"):
        assert time.monotonic() < end, f"{what} is alone"
        time.sleep(0.01)
    for number in (1, 2, 3):
        watcher.advance(what, number, "")
    time.sleep({"d": 1, "long": 600}.get(what, 0))
    return what, os.getpid(), torch.get_num_threads()


def killed_once(mark, task, folder, watcher, **options):
    """Train runs, but kill the process of the second fold in its third step, unless the file `mark` is there."""
    if task.runs[0].fold != 1 or mark.exists():
        return work(task, folder, watcher, **options)

    class Killer:
        begin = end = staticmethod(lambda *_: None)

        def advance(self, title, epochs, figures, steps=[]):  # noqa: B006
            steps.append(epochs)
            if len(steps) == 3:
                mark.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)

    return work(task, folder, Killer(), **options)


def write_records(folder, model, count, start):
    """Write records of so many folds, one by one, once all have started."""
    start.wait(60)
    for fold in range(count):
        write_record(folder, record(model, fold))
