"""Ctrl-C before the command `scaleconv` has begun: it ends without a traceback.

The package imports this module first, for its effect, since importing torch takes a second. A program that imports the
package keeps its own handler.
"""

import os
import signal
import sys

INTERRUPTED = 130  # exit code


def is_command() -> bool:
    """Whether this process is the command: the script of that name, or `python -m scaleconv`."""
    called = sys.argv[0] if sys.argv else ""
    return os.path.basename(called) in ("scaleconv", "scaleconv.exe") or (
        called == "-m" and "scaleconv" in sys.orig_argv  # Python puts the path there once it has found the module
    )


def leads() -> bool:
    """Whether this is the first of the processes that torchrun has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def end(*_: object) -> None:
    """Handle the signal: nothing is written yet that would have to be finished."""
    if leads():
        os.write(2, b"scaleconv: interrupted\n")
    os._exit(INTERRUPTED)


def hand_over() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, which the command answers from here on."""
    if signal.getsignal(signal.SIGINT) is end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
    signal.signal(signal.SIGINT, end)
