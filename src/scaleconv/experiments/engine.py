"""Where runs are done: one after the other in this process, in several of this machine, or as tasks of a Ray cluster.

An engine does tasks. Each leaves files in the folder of the results: a record, weights, and checkpoints on the way. A
small network gains little from a second core, so on a CPU two runs in two processes are done sooner than one after the
other. A worker of Ray does not see the folder of the results. It works in a temporary one, and what appears there
travels back as values and is written here. A task that loses its worker goes on from its last checkpoint on another.
"""

import math
import multiprocessing
import os
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Protocol

import torch

from ..environment import choose_device
from ..ops.checks import check_choice
from .records import run_file, writing
from .train import Watcher

ENGINES = ("local", "ray")
MOST_PROCESSES = 256
RETRIES = 3  # of a task that loses its worker
LAST = "last"  # kind of what a process sends at its end; the others are methods of a `Watcher`
SECONDS_BETWEEN = 1.0  # looks at the temporary folder of a task

Files = dict[str, bytes]  # by path in the folder of the results


@dataclass(frozen=True)
class Task:
    """Something to do.

    Attributes:
        records: names of the records it leaves.
        what: is told to the function that does it.
    """

    records: tuple[str, ...]
    what: Any

    def checkpoints(self, folder: Path) -> list[Path]:
        """Where it leaves its checkpoints."""
        return [run_file(folder / name, "checkpoints") for name in self.records]


Work = Callable[[Any, Path, Watcher], None]  # does a task: `Task.what`, the folder for its files, and who is told


class Engine(Protocol):
    """Does tasks.

    Attributes:
        groups: whether runs of equal shape should be one task, to share a GPU.
    """

    groups: bool

    def device(self, name: str) -> str:
        """The device of a run, from what the user asked for."""

    def run(self, work: Work, tasks: Iterable[Task], folder: Path, watcher: Watcher) -> Iterator[Task]:
        """Do all tasks, and give each as soon as its files are in the folder."""


class Local:
    """This process, one task after the other."""

    groups = True

    def device(self, name: str) -> str:
        return choose_device(name)

    def run(self, work: Work, tasks: Iterable[Task], folder: Path, watcher: Watcher) -> Iterator[Task]:
        for task in tasks:
            work(task.what, folder, watcher)
            yield task


class LocalPool:
    """Processes of this machine, a task each, which share its cores; for CPUs.

    A process that is lost ends the work, and so does an error of a task. The others are stopped; what they have begun
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

    def run(self, work: Work, tasks: Iterable[Task], folder: Path, watcher: Watcher) -> Iterator[Task]:
        # Processes are forked from one that has imported everything and computed nothing.
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload([f"{__package__}.run"])
        threads = max(1, (os.cpu_count() or 1) // self.count)
        waiting, running = iter(tasks), list[_Worker]()
        try:
            while True:
                while len(running) < self.count and (task := next(waiting, None)):
                    running.append(_Worker(context, (work, task.what, folder, threads), task))
                if not running:
                    return
                wait_for([each for worker in running for each in (worker.process.sentinel, worker.receiver)])
                for worker in list(running):
                    ended = not worker.process.is_alive()
                    worker.listen(watcher)
                    if ended:
                        running.remove(worker)
                        worker.finish()
                        yield worker.task
        finally:
            for worker in running:
                worker.process.terminate()
            for worker in running:
                worker.process.join()


class _Worker:
    """A process that does a task and sends what a `Watcher` is to be told, and at the end what it raised, or None."""

    def __init__(self, context: Any, what: tuple[Any, ...], task: Task) -> None:
        self.task, self.sent_last, self.error = task, False, None
        self.receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_work_here, args=(*what, sender), daemon=True)
        self.process.start()
        sender.close()

    def listen(self, watcher: Watcher) -> None:
        """Pass on what was sent so far."""
        while self.receiver.poll():
            try:
                kind, *what = self.receiver.recv()
            except EOFError:
                return
            if kind == LAST:
                self.sent_last, (self.error,) = True, what
            else:
                getattr(watcher, kind)(*what)

    def finish(self) -> None:
        """Raise what the ended process has raised; one that was lost has not said how it ended."""
        self.process.join()
        self.receiver.close()
        if not self.sent_last:
            code = self.process.exitcode
            raise OSError(f"the process of {self.task.records[0]} was lost (exit code {code}): start the command again")
        if self.error is not None:
            raise self.error


class _Relay:
    """A `Watcher` that tells another process what it is told."""

    def __init__(self, sender: Connection) -> None:
        self.sender = sender

    def __getattr__(self, kind: str) -> Callable[..., None]:
        return lambda *what: self.sender.send((kind, *what))


def _work_here(work: Work, what: Any, folder: Path, threads: int, sender: Connection) -> None:
    """Do a task in a process of its own."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        work(what, folder, _Relay(sender))
    except (ValueError, OSError, ImportError) as error:
        sender.send((LAST, error))
    except KeyboardInterrupt:
        os._exit(1)  # the process that shows results says so
    else:
        sender.send((LAST, None))


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()  # it may be killed
        os._exit(1)


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
        yield Local() if count == 1 else LocalPool(count)
        return
    if processes != 1:
        raise ValueError(f"`processes` (={processes}) must be given with the engine local")
    if "RANK" in os.environ:  # each run would wait for the other processes of torchrun
        raise ValueError("`engine` ray must not be started by torchrun, got a process of rank " + os.environ["RANK"])
    _check_gpus(gpus_per_run)
    ray = _connect(address)
    try:
        yield RayCluster(ray, gpus_per_run, cpus_per_run)
    finally:
        ray.shutdown()


class RayCluster:
    """Workers of Ray, a task each.

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

    def run(self, work: Work, tasks: Iterable[Task], folder: Path, watcher: Watcher) -> Iterator[Task]:
        """Do all tasks at once, as far as there is room; retries are ours, since those of Ray know no checkpoints.

        Each worker tells a copy of the watcher.
        """
        ray = self.ray
        remote = ray.remote(_work_away).options(
            num_returns="streaming", max_retries=0, num_cpus=self.cpus, num_gpus=self.gpus
        )
        shared = ray.put((work, watcher))  # once, not with every task
        precision = torch.get_float32_matmul_precision()

        def submit(task: Task) -> Any:
            begun = {str(path.relative_to(folder)): path for path in task.checkpoints(folder) if path.exists()}
            files = {name: path.read_bytes() for name, path in begun.items()}
            return remote.remote(shared, task.what, folder.name, files, self.cpus, precision)

        lost: Counter[tuple[str, ...]] = Counter()
        running = {submit(task): task for task in tasks}
        while running:
            (stream,), _ = ray.wait(list(running), num_returns=1)
            task = running[stream]
            try:
                _write(folder, ray.get(next(stream)))
            except StopIteration:
                del running[stream]
                for path in task.checkpoints(folder):
                    path.unlink(missing_ok=True)
                yield task
            except ray.exceptions.RayTaskError as error:
                if error.cause is None or isinstance(error.cause, ray.exceptions.RayError):
                    reason = str(error).strip().rpartition("\n")[2]  # such as a package that the worker lacks
                    raise OSError(f"a worker cannot begin {task.records[0]} ({reason})") from None
                raise error.cause from None  # the task's own
            except ray.exceptions.RayError as error:  # the worker or its machine is gone
                del running[stream]
                lost[task.records] += 1
                if lost[task.records] > RETRIES:
                    reason = str(error).partition("\n")[0]
                    raise OSError(f"{task.records[0]} lost its worker {RETRIES + 1} times ({reason})") from None
                running[submit(task)] = task


def _work_away(
    shared: tuple[Work, Watcher], what: Any, name: str, files: Files, threads: int, precision: str
) -> Iterator[Files]:
    """Do a task on a worker: its files as they appear, beginning with those that were there."""
    work, watcher = shared
    torch.set_float32_matmul_precision(precision)
    with (
        tempfile.TemporaryDirectory(prefix="scaleconv-") as scratch,
        ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,)) as thread,
    ):
        folder = Path(scratch) / name
        seen: dict[str, tuple[int, ...]] = {}
        _write(folder, files)
        doing = thread.submit(work, what, folder, watcher)
        while not wait([doing], SECONDS_BETWEEN).done:
            if files := _changed(folder, seen):
                yield files
        doing.result()
        yield _changed(folder, seen)


def _changed(folder: Path, seen: dict[str, tuple[int, ...]]) -> Files:
    """The files that were written since the last look; those still being written have hidden names."""
    files = {}
    for path in sorted(folder.rglob("[!.]*")):
        if path.is_file():
            name, state = str(path.relative_to(folder)), path.stat()
            stamp = (state.st_ino, state.st_mtime_ns, state.st_size)  # clocks jump, but a new file is another inode
            if seen.get(name) != stamp:
                seen[name], files[name] = stamp, path.read_bytes()
    return files


def _write(folder: Path, files: Files) -> None:
    """Write files, each whole or not at all; records last, since they say that the rest is there."""
    for name in sorted(files, key=lambda name: name.count(os.sep), reverse=True):
        with writing(folder / name) as part:
            part.write_bytes(files[name])


def _check_gpus(gpus: float | None) -> None:
    if gpus is not None and not (math.isfinite(gpus) and (0 <= gpus <= 1 or (gpus > 1 and gpus == int(gpus)))):
        raise ValueError(f"`gpus_per_run` must be a share from 0 to 1 or a whole number, got {gpus:g}")


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
    """Refuse an address where nobody listens: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 2**16):
        raise ValueError(f"`address` must be auto or HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise OSError(
            f"`address` must be of a running Ray cluster, got {address} ({error.strerror or error})"
        ) from None
