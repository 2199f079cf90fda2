"""Work for processes, which import it by its name."""

import os
import signal
import time

import torch


def note(what, folder):
    """Leave a file that says which process did it, with how many threads, and when."""
    if what == "bad":
        raise ValueError("`what` must be good, got bad")
    if what == "lost":
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    time.sleep(0.3 if what != "long" else 60)
    (folder / f"{what}.txt").write_text(f"{os.getpid()} {torch.get_num_threads()} {begin} {time.monotonic()}")
