"""Where runs are done: in this process, in several processes of this machine, or on a Ray cluster.

A task is a group of runs that share a device. An engine calls one function for each task and gives what it returns as
soon as it is there; the caller writes it. What training leaves on the way, its checkpoints, stays on the machine.
"""

import math
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from ..environment import choose_device
from ..ops.checks import check_choice

Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES = ("local", "ray")
MOST_PROCESSES = 256
RETRIES = 3  # of a task that loses its worker
SECONDS_BETWEEN = 0.1  # looks at what processes report


class Watcher(Protocol):
    """Is told about the progress of runs, by their titles, for display only."""

    def plan(self, title: str, runs: int) -> None:
        """This many runs are to be done."""

    def begin(self, title: str, epochs: int, done: int) -> None:
        """A run of so many epochs begins, or resumes after some of them."""

    def advance(self, title: str, epochs: float, figures: str) -> None:
        """A run has done so many of its epochs; what there is to say about it, such as its loss."""

    def end(self, title: str) -> None:
        """A run is finished, now or earlier."""


class Silent:
    """A `Watcher` that says nothing."""

    def plan(self, title: str, runs: int) -> None: ...

    def begin(self, title: str, epochs: int, done: int) -> None: ...

    def advance(self, title: str, epochs: float, figures: str) -> None: ...

    def end(self, title: str) -> None: ...


Results = Generator[Result, None, None]
Work = Callable[[Task, Path, Watcher], Result]  # does a task: its files on the way go into the folder


class Engine(Protocol):
    """Does tasks.

    Attributes:
        groups: whether runs of equal shape should be one task, to share a GPU.
    """

    groups: bool

    def device(self, name: str) -> str:
        """The device of a run, from what the user asked for."""

    def run(self, work: Work[Task, Result], tasks: Iterable[Task], folder: Path, watcher: Watcher) -> Results[Result]:
        """Do all tasks, and give what comes out of each as soon as it is there; to close it stops them."""


class Local:
    """This process, one task after the other."""

    groups = True

    def device(self, name: str) -> str:
        return choose_device(name)

    def run(self, work: Work[Task, Result], tasks: Iterable[Task], folder: Path, watcher: Watcher) -> Results[Result]:
        for task in tasks:
            yield work(task, folder, watcher)


class Processes:
    """Processes of this machine, a task each, which share its cores; for CPUs.

    A process that is lost ends the work, and so does an error of a task: the others are stopped. What they have begun
    goes on from its checkpoint the next time.

    Args:
        count: how many work at once.
    """

    groups = False

    def __init__(self, count: int) -> None:
        self.count = count

    def device(self, name: str) -> str:
        if (device := choose_device(name)) != "cpu":
            raise ValueError(f"`processes` (={self.count}) must be 1 on a GPU, or `device` cpu, got {device!r}")
        return device

    def run(self, work: Work[Task, Result], tasks: Iterable[Task], folder: Path, watcher: Watcher) -> Results[Result]:
        # Processes are forked from one that has imported everything and computed nothing.
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload([f"{__package__}.run"])
        threads = max(1, (os.cpu_count() or 1) // self.count)
        said, others = context.Queue(), set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(self.count, context, _begin_process, (threads, said))
        waiting: set[Future[Result]] = set()
        try:
            waiting |= {pool.submit(_in_process, work, task, folder) for task in tasks}
            while waiting:
                finished, waiting = wait(waiting, SECONDS_BETWEEN, FIRST_COMPLETED)
                while not said.empty():
                    kind, *what = said.get()
                    getattr(watcher, kind)(*what)
                for future in finished:
                    yield future.result()
        except BrokenProcessPool:
            raise OSError("a process was lost: the same command goes on from what is finished") from None
        finally:
            for process in set(multiprocessing.active_children()) - others if waiting else ():
                process.terminate()  # a task may have hours to go, and its result is not wanted
            pool.shutdown(wait=True, cancel_futures=True)
            said.close()


class _Relay:
    """A `Watcher` that tells another process what it is told."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def __getattr__(self, kind: str) -> Callable[..., None]:
        return lambda *what: self.queue.put((kind, *what))


_relay: Any = Silent()  # of this process


def _begin_process(threads: int, said: Any) -> None:
    global _relay
    _relay = _Relay(said)
    said.cancel_join_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes: the first one stops the others
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()  # it may be killed
        os._exit(1)


def _in_process(work: Work[Task, Result], task: Task, folder: Path) -> Result:
    return work(task, folder, _relay)


class RayCluster:
    """Workers of Ray, a task each; a task that loses its worker is begun again by Ray.

    Args:
        ray: the module, connected.
        gpus, cpus: of each task; None as for `open_engine`.
    """

    groups = False

    def __init__(self, ray: Any, gpus: float | None, cpus: int) -> None:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        most = {kind: max(machine.get(kind, 0) for machine in machines) for kind in ("GPU", "CPU")}
        self.ray, self.cpus = ray, cpus
        self.gpus = min(1, most["GPU"]) if gpus is None else gpus
        for kind, wanted in (("GPU", self.gpus), ("CPU", self.cpus)):
            if wanted > most[kind]:  # Ray would wait for such a machine to join
                option = f"{kind.lower()}s_per_run"
                raise ValueError(f"`{option}` must be at most the {most[kind]:g} of a machine, got {wanted:g}")

    def device(self, name: str) -> str:
        if name != "auto":
            raise ValueError(
                f"`device` must be auto with the engine ray, got {name!r}: `gpus_per_run` says what to use"
            )
        return "cuda" if self.gpus else "cpu"

    def run(self, work: Work[Task, Result], tasks: Iterable[Task], folder: Path, watcher: Watcher) -> Results[Result]:
        ray = self.ray
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": RETRIES}
        remote, shared = ray.remote(_on_worker).options(**options), ray.put(work)
        running = [remote.remote(shared, task, folder.name, self.cpus) for task in tasks]
        while running:
            (finished,), running = ray.wait(running, num_returns=1)
            try:
                yield ray.get(finished)
            except ray.exceptions.RayTaskError as error:
                if error.cause is None or isinstance(error.cause, ray.exceptions.RayError):
                    reason = str(error).strip().rpartition("\n")[2]  # such as a package that the worker lacks
                    raise OSError(f"a worker cannot begin a run ({reason})") from None
                raise error.cause from None  # the task's own
            except ray.exceptions.RayError as error:
                reason = str(error).partition("\n")[0]
                raise OSError(f"a run lost its worker {RETRIES + 1} times ({reason})") from None


def _on_worker(work: Work[Task, Result], task: Task, name: str, threads: int) -> Result:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="scaleconv-") as scratch:
        return work(task, Path(scratch) / name, Silent())


@contextmanager
def open_engine(
    name: str = "local",
    address: str | None = None,
    gpus_per_run: float | None = None,
    cpus_per_run: int = 1,
    processes: int = 1,
) -> Iterator[Engine]:
    """An engine to be used in a `with` block; Ray is left when the block ends.

    Args:
        name: `local` or `ray`.
        address: of a running Ray cluster, `HOST:PORT`; `auto` finds the one that this machine is part of. None starts
            Ray on this machine alone, and stops it in the end.
        gpus_per_run: how much of a GPU each run takes, such as 0.25; 0 trains on CPUs. None is 1 where there are GPUs.
        cpus_per_run: threads of each run.
        processes: of the engine local, on CPUs, that train a run each; 0 for one on each core.

    Raises:
        ValueError: an argument breaks its rule, or asks for more than a machine of the cluster has; or torchrun
            started this process.
        ImportError: Ray is not installed.
        OSError: there is no cluster at the address.
    """
    check_choice("engine", name, ENGINES)
    if not 0 <= processes <= MOST_PROCESSES:
        raise ValueError(f"`processes` must lie between 0 and {MOST_PROCESSES}, got {processes}")
    if name == "local":
        for option, value in (("address", address), ("gpus_per_run", gpus_per_run)):
            if value is not None:
                raise ValueError(f"`{option}` (={value}) must be given with the engine ray")
        count = processes or os.cpu_count() or 1
        yield Local() if count == 1 else Processes(count)
        return
    if processes != 1:
        raise ValueError(f"`processes` (={processes}) must be given with the engine local")
    if "RANK" in os.environ:  # each run would wait for the other processes of torchrun
        raise ValueError("`engine` ray must not be started by torchrun, got a process of rank " + os.environ["RANK"])
    gpus = gpus_per_run
    if gpus is not None and not (math.isfinite(gpus) and (0 <= gpus <= 1 or (gpus > 1 and gpus == int(gpus)))):
        raise ValueError(f"`gpus_per_run` must be a share from 0 to 1 or a whole number, got {gpus:g}")
    ray = _connect(address)
    try:
        yield RayCluster(ray, gpus, cpus_per_run)
    finally:
        ray.shutdown()


def _connect(address: str | None) -> Any:
    """Ray, connected to a cluster or started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ImportError("the engine ray needs its package: pip install 'scaleconv[ray]'") from None
    if address not in (None, "auto"):
        _check_address(address)
    try:
        here = {"include_dashboard": False} if address is None else {}
        ray.init(address or "local", log_to_driver=False, logging_level="error", **here)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"`address` must be of a running Ray cluster, got {address or 'none'} ({reason})") from None
    return ray


def _check_address(address: str) -> None:
    """Refuse an address without a server: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise ValueError(f"`address` must be auto or HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise OSError(
            f"`address` must be of a running Ray cluster, got {address} ({error.strerror or error})"
        ) from None
