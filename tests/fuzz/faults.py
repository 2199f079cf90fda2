"""python -m fuzz.faults [--kills 210] [--command NAME] [--seed 0] [--out FILE]

Commands are ended at random moments by SIGKILL, SIGTERM or SIGINT and started again until they finish: no finished run
is lost, nothing half-written is read, nothing is left behind, and the results are those of an undisturbed run, bit for
bit. Then a full disk, a folder that cannot be written to, a record or all checkpoints deleted meanwhile, a clock
that jumps, two processes on one folder.

Every command is a process of its own, forked from one that has imported everything and has no threads: starting Python
would take most of the time.
"""

import argparse
import contextlib
import ctypes
import glob
import io
import itertools
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import matplotlib.pyplot as plt  # noqa: F401  # imported before the fork
import torch

from helpers.folders import write_classes
from helpers.runs import outcome
from scaleconv import cli
from scaleconv.data import read_set
from scaleconv.environment import describe_environment
from scaleconv.experiments import read_records
from scaleconv.experiments import run as run_module
from scaleconv.experiments.checkpoint import load_checkpoint
from scaleconv.experiments.sources import Sources

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LONGEST = 120  # seconds that a command may take
SMALL = ("data.train=100", "data.test=100", "network.maps=[2,3]", "network.hidden=8", "training.batch=20")
TINY = [part for setting in SMALL for part in ("--set", setting)]
FIT = ["--data", "images", "--model", "convnet", "--epochs", "3", "--batch", "8", "--scales", "0.7,1"]
COMMANDS = {
    "reproduce": ["reproduce", "table1", "--models", "convnet,si_convnet", "--folds", "0,1", "--epochs", "4", *TINY],
    "train": ["train", "si_convnet", "--epochs", "8", *TINY],
    "train --data": ["train", *FIT, "--variant", "plain,converted"],
    "compare": ["compare", *FIT, "--seeds", "1"],
    "data make": ["data", "make", "set.safetensors", "--dataset", "embedded", "--scales", "fixed:0.5"],
}
# Of the signals.
SHARES = {"train": 0.3, "train --data": 0.2, "data make": 0.15, "reproduce": 0.2, "compare": 0.1, "demo": 0.05}


@contextlib.contextmanager
def fresh(inputs=None):
    """An empty folder, with links to the inputs."""
    with tempfile.TemporaryDirectory(prefix="scaleconv-faults-", ignore_cleanup_errors=True) as name:
        for path in inputs.iterdir() if inputs else ():
            (Path(name) / path.name).symlink_to(path)
        yield Path(name)


class Process:
    """A command in a fork of this process, in a folder, its output in a file."""

    def __init__(self, arguments, folder, prepare=lambda: None, log="output"):
        self.log = folder / f".{log}"
        output = os.open(self.log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666)
        self.number = os.fork()
        if self.number == 0:
            try:
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.chdir(folder)
                prepare()
                cli.main(arguments)
            except SystemExit as end:
                sys.stdout.flush()
                os._exit(end.code)
            except BaseException:
                traceback.print_exc()
            os._exit(99)
        os.close(output)

    def wait(self, most=LONGEST):
        """The exit code, negative for a signal, once it has ended."""
        deadline = time.monotonic() + most
        while time.monotonic() < deadline:
            number, status = os.waitpid(self.number, os.WNOHANG)
            if number:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(self.number, signal.SIGKILL)
        os.waitpid(self.number, 0)
        raise AssertionError(f"did not end within {most} s: {self.output()[-300:]}")

    def output(self):
        return self.log.read_text(errors="replace")


def finish(arguments, folder, prepare=lambda: None):
    process = Process(arguments, folder, prepare)
    code = process.wait()
    assert code == 0, f"ended with {code}: {process.output()[-500:]}"


def refused(process, *words):
    """The command has ended with one line that says why."""
    code, output = process.wait(), process.output()
    assert code == 2, f"ended with {code}: {output[-500:]}"
    last = output.splitlines()[-1]
    assert last.startswith("scaleconv: "), output[-500:]
    assert "Traceback" not in output
    assert all(word in last for word in words), last


def results(folder):
    """All that counts of what a command has left: records without their times, weights, and sets."""
    found = {path.name: read_set(path).checksum() for path in folder.glob("*.safetensors")}
    for path in folder.glob("results/*.jsonl"):
        found[path.stem] = outcome(path.with_suffix(""))
    return found


def check_whole(folder, finished):
    """Check that every file with its final name is whole, and that no finished run was lost or changed.

    Returns:
        The runs that are finished now.
    """
    for path in folder.glob("results/*/[cw]*/[!.]*.safetensors"):
        load_checkpoint(path)
    for path in folder.glob("*.safetensors"):
        read_set(path)
    now = {
        record.name: record for path in folder.glob("results/*.jsonl") for record in read_records(path.with_suffix(""))
    }
    lost = [name for name, record in finished.items() if now.get(name) != record]
    assert not lost, f"lost or changed: {lost}"
    return now


def check_clean(folder):
    left = [str(path.relative_to(folder)) for path in folder.rglob("*.part")]
    left += [str(path.relative_to(folder)) for path in folder.glob("results/*/checkpoints/*")]
    assert not left, f"left behind: {left}"


def check_end(code, number, output):
    """A signal ends a command as it should: at once, or with one line."""
    assert "Traceback" not in output, output[-800:]
    expected = {signal.SIGKILL: {-9}, signal.SIGTERM: {-15, 130}, signal.SIGINT: {130}}[number]
    assert code in {0, *expected}, f"ended with {code} after {number.name}: {output[-500:]}"
    if code == 130:
        assert output.splitlines()[-1].startswith("scaleconv: interrupted"), output[-500:]


def kill_often(name, kills, dice, inputs, seconds, expected, count):
    """End a command so many times at random moments, and let it finish whenever it comes that far."""
    while kills > 0:
        with fresh(inputs) as folder:
            finished = {}
            for _ in range(min(10, kills)):
                number = dice.choice(SIGNALS)
                process = Process(COMMANDS[name], folder)
                time.sleep(dice.uniform(0, seconds))
                os.kill(process.number, number)
                code = process.wait()
                check_end(code, number, process.output())
                finished = check_whole(folder, finished)
                if code == 0:  # it was quicker
                    count[f"{name}: finished first"] += 1
                    break
                count[f"{name}: {number.name}"] += 1
                kills -= 1
            resume(name, folder, expected)
            check_whole(folder, finished)
            count[f"{name}: resumed and equal"] += 1


def kill_demo(kills, dice, count):
    """The page ends when it is told to, and its port is free again."""
    for _ in range(kills):
        number = dice.choice(SIGNALS)
        with fresh() as folder:
            process = Process(["demo", "--port", "0"], folder)
            deadline = time.monotonic() + LONGEST
            while not (found := re.search(r"http://127.0.0.1:(\d+)", process.output())):
                assert time.monotonic() < deadline, process.output()
                time.sleep(0.01)
            time.sleep(dice.uniform(0, 0.3))
            os.kill(process.number, number)
            code = process.wait(20)
            assert "Traceback" not in process.output(), process.output()[-500:]
            assert code in {signal.SIGKILL: {-9}, signal.SIGTERM: {-15}, signal.SIGINT: {0, 130}}[number], code
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", int(found.group(1))))
        count[f"demo: {number.name}"] += 1


def resume(name, folder, expected):
    """Run the command again after a fault: it finishes, and leaves what an undisturbed run leaves."""
    finish(COMMANDS[name], folder)
    check_clean(folder)
    assert results(folder) == expected, "the results differ from those of an undisturbed run"


def full_disk(name, folder, most):
    """No file may grow beyond so many bytes, as where a quota ends."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    refused(Process(COMMANDS[name], folder, limit), "cannot write", "File too large")
    check_whole(folder, {})
    assert not list(folder.rglob("*.part")), "left behind"


def no_space(name, folder, _):
    """The results are written to a file system that is too small for all files."""
    process = Process(COMMANDS[name], folder, partial(mount_small, target_of(name, folder)))
    refused(process, "cannot write", "No space left on device")


def target_of(name, folder):
    """The folder that a command writes to."""
    target = folder if name == "data make" else folder / "results"
    target.mkdir(exist_ok=True)
    return target


def mount_small(target):
    """Mount a file system of 8 KiB where only this process sees it; links to the inputs are kept."""
    links = {path.name: path.readlink() for path in target.iterdir() if path.is_symlink()}
    libc, (new_namespace, recursive, private) = ctypes.CDLL(None, use_errno=True), (0x20000, 0x4000, 0x40000)
    failed = (
        libc.unshare(new_namespace)
        or libc.mount(b"none", b"/", None, recursive | private, None)
        or libc.mount(b"none", os.fsencode(target), b"tmpfs", 0, b"size=8k")
    )
    assert not failed, os.strerror(ctypes.get_errno())
    os.chdir(os.getcwd())  # which may be the one that it was mounted on
    for name, source in links.items():
        (target / name).symlink_to(source)


def read_only(name, folder, _):
    """The folder may not be written to."""
    target = target_of(name, folder)
    target.chmod(0o555)
    refused(Process(COMMANDS[name], folder, drop_capabilities), "cannot write")
    target.chmod(0o755)


def drop_capabilities():
    """Even root then needs permission to write."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = struct.pack("II", 0x20080522, 0)
    assert libc.capset(version, bytes(24)) == 0, os.strerror(ctypes.get_errno())


def delete_records(name, folder, _):
    """The records are deleted while others are made."""
    process = Process(COMMANDS[name], folder)
    while not (found := glob.glob(f"{folder}/results/*.jsonl")):  # pathlib fails where a folder comes and goes
        time.sleep(0.002)
    os.unlink(found[0])
    if process.wait() != 0:
        assert "Traceback" not in process.output(), process.output()[-500:]


def delete_checkpoints(name, folder, _):
    """Every checkpoint is deleted as soon as it is there: a run that is not ended does not need it."""
    process, deleted = Process(COMMANDS[name], folder), 0
    while os.waitid(os.P_PID, process.number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        for path in folder.glob("results/*/checkpoints/[!.]*"):
            path.unlink(missing_ok=True)
            deleted += 1
        time.sleep(0.002)
    assert process.wait() == 0, process.output()[-500:]
    assert deleted, "there was none to delete"


def wrong_clock(name, folder, seconds):
    """The clock says 1970, then 2106, then 1970 while the command is killed twice; files get such times, too."""
    for now in (0.0, 2.0**32):
        process = Process(COMMANDS[name], folder, partial(set_clock, now))
        time.sleep(seconds / 3)
        os.kill(process.number, signal.SIGKILL)
        process.wait()
        for path in folder.rglob("*"):
            os.utime(path, (now, now), follow_symlinks=False)
    finish(COMMANDS[name], folder, partial(set_clock, 0.0))


def set_clock(now):
    """A clock that goes backwards from then on."""
    steps = itertools.count(now, -1.0)
    time.time = lambda: next(steps)
    time.time_ns = lambda: int(1e9 * next(steps))


def two_processes(name, folder, delay):
    """Two processes on one folder, the second a little later: both finish."""
    processes = [Process(COMMANDS[name], folder)]
    time.sleep(delay)
    processes.append(Process(COMMANDS[name], folder, log="second"))
    codes = [process.wait() for process in processes]
    assert codes == [0, 0], [process.output()[-300:] for process in processes]


def faults_of(name, dice, seconds):
    """What happens to each command, by title: the fault and its argument."""
    every = {
        "full disk": (full_disk, 1200),
        "full disk, larger": (full_disk, 4000),
        "no space": (no_space, None),
        "read-only": (read_only, None),
        "clock": (wrong_clock, seconds),
        **{f"two processes, {number}": (two_processes, dice.uniform(0, 0.3)) for number in range(3)},
    }
    if name == "data make":  # which has neither
        return every
    return every | {"a record deleted": (delete_records, None), "checkpoints deleted": (delete_checkpoints, None)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=210)
    parser.add_argument("--command", choices=[*COMMANDS, "demo"], help="this one alone, with its share of the signals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    start, count, failed = time.perf_counter(), Counter(), {}

    @contextlib.contextmanager
    def attempt(title):
        try:
            yield
            count[title] += 1
        except (AssertionError, OSError, ValueError) as error:
            failed[title] = str(error)
        print(f"{title}: {failed.get(title, 'passed')}", flush=True)

    with fresh() as inputs:
        prepare(inputs)
        for name in [name for name in COMMANDS if given.command in (None, name)]:
            dice = Random(f"{given.seed} {name}")
            with fresh(inputs) as whole:
                begun = time.monotonic()
                finish(COMMANDS[name], whole)
                seconds, expected = time.monotonic() - begun, results(whole)
            with attempt(f"{name}: kills"):
                kill_often(name, round(SHARES[name] * given.kills), dice, inputs, seconds, expected, count)
            for title, (fault, argument) in faults_of(name, dice, seconds).items():
                with attempt(f"{name}: {title}"), fresh(inputs) as folder:
                    fault(name, folder, argument)
                    resume(name, folder, expected)
    if given.command in (None, "demo"):
        with attempt("demo: kills"):
            kill_demo(round(SHARES["demo"] * given.kills), Random(given.seed), count)
    seconds = round(time.perf_counter() - start, 1)
    kills = sum(number for title, number in count.items() if "SIG" in title)
    print(f"{kills} kills, {len(failed)} failed in {seconds} s")
    if given.out:
        settings = {"environment": describe_environment("cpu"), "seed": given.seed, "kills": kills, "seconds": seconds}
        text = json.dumps({**settings, "passed": count, "failed": failed}, indent=1)
        given.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(bool(failed))


def prepare(inputs):
    """Images to train on, digits scaled once for all forks, and a checkpoint after every step or epoch."""
    write_classes(inputs / "images", 12, size=(20, 20))
    torch.set_num_threads(1)  # a fork must not inherit a pool of threads
    shared = Sources("cpu")

    class Shared(Sources):
        """Digits are scaled once for all forks."""

        def __init__(self, *given):
            super().__init__(*given)
            self._digits, self._sets = shared._digits, shared._sets

    run_module.Sources = Shared
    run_module.SECONDS_BETWEEN = 0.0
    run_module.SHARE_OF_TIME = 1.0
    with fresh(inputs) as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for arguments in COMMANDS.values():
            with contextlib.suppress(SystemExit):
                cli.main(arguments)


if __name__ == "__main__":
    main()
