"""This process, and where it runs: the device that was asked for, and the versions, hardware and commit of a record."""

import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def choose_device(device: str) -> str:
    """The name of a device this machine has; `auto` takes a GPU if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"`device` must be one this machine has, got {device!r} ({reason})") from None
    return device


@lru_cache(maxsize=8)
def describe_environment(device: str) -> dict[str, Any]:
    """Versions, hardware and commit of this process."""
    kind = torch.device(device)
    return {
        "scaleconv": _version("scaleconv"),
        "torch": str(torch.__version__),
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(kind) if kind.type == "cuda" else f"{kind.type}, {_processor()}",
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cores": os.cpu_count(),
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    """The commit of the source tree this package runs from, with `+` if it was changed; None if it is installed.

    `$SCALECONV_COMMIT` names it where a tree was copied without its history.
    """
    if named := os.environ.get("SCALECONV_COMMIT"):
        return named
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
        changes = subprocess.run(["git", "status", "--porcelain", "src"], cwd=root, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "")
