"""The command in a process of its own, forked from one that has imported everything: to start Python takes seconds."""

import math
import multiprocessing
import os
import signal
import socket
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout

import torch

from scaleconv import cli
from scaleconv.experiments import fit, measures, run
from scaleconv.experiments.trainer import Trainer


class Command:
    """A command at work in a folder.

    Args:
        arguments: what follows `scaleconv`.
        folder: where it is called; its output goes there.
        environment: variables besides those of this process.
        end: a signal, and the step after which it sends it to itself.
    """

    def __init__(self, arguments, folder, environment=None, end=None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "lightning_fabric", "matplotlib.figure"])
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        variables = {**os.environ, **(environment or {})}
        arguments = [str(each) for each in arguments]
        self.process = context.Process(
            target=_run, args=(arguments, folder, variables, end, torch.get_num_threads()), daemon=True
        )
        self.process.start()

    def wait(self, seconds=120):
        """Exit code, output and errors."""
        self.process.join(seconds)
        return self.process.exitcode, *((self.folder / name).read_text() for name in (".out", ".err"))


def _run(arguments, folder, variables, end, threads):
    os.environ.update(variables)
    os.chdir(folder)
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of a job in the background it would be ignored
    sys.argv = ["scaleconv", *arguments]
    measures.BATCH = 3  # for more batches to test than processes
    if end is None or end[0] == signal.SIGKILL:  # else a checkpoint is written for the signal alone
        run.SECONDS_BETWEEN, run.SHARE_OF_TIME = 0.0, math.inf
    if end is not None:
        _end_at(*end)
    out, errors = ((folder / name).open("w") for name in (".out", ".err"))
    with out, errors, redirect_stdout(out), redirect_stderr(errors):
        cli.main()


def _end_at(number, step):
    before, steps = Trainer.learn, []

    def learn(self, *arguments):
        before(self, *arguments)
        steps.append(1)
        if len(steps) == step:
            os.kill(os.getpid(), number)

    Trainer.learn = learn


def fit_together(*arguments, processes=2):
    """Error, weights and file of weights that `fit` returns in each of several processes, as torchrun starts them."""
    shared, context = torchrun_variables(processes), multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(processes, context) as pool:
        jobs = [
            pool.submit(_join, {**shared, "RANK": str(i), "LOCAL_RANK": str(i)}, arguments) for i in range(processes)
        ]
        return [job.result(300) for job in jobs]


def torchrun_variables(processes=2):
    """Those that all processes share."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    count = str(processes)
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}


def _join(variables, arguments):
    os.environ.update(variables)
    torch.set_num_threads(1)
    fitted = fit(*arguments, device="cpu")
    state = {name: tensor.numpy() for name, tensor in fitted.network.state_dict().items()}
    return fitted.record.error, state, fitted.weights
