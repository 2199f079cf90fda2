"""Which device a command runs on."""

import torch


def choose_device(device: str) -> str:
    """The name of a device this machine has; `auto` takes a GPU if there is one."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"`device` must be one this machine has, got {device!r} ({error})") from None
    return device
