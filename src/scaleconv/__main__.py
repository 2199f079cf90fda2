"""The entry point of the command `scaleconv`, which the layer does not need: it says what to install.

`pip install scaleconv` is the layer, on torch alone. The command and all that it runs are the extra `experiments`.
"""

import sys
from importlib.util import find_spec

from ._start import hand_over

NEEDED = ("typer", "rich", "numpy", "safetensors", "filelock", "msgspec")  # others are asked for where they are used


def main() -> None:
    """Run the command; without its packages, print one line and end with exit code 2."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"scaleconv: the command needs {', '.join(missing)}: pip install 'scaleconv[experiments]'", file=sys.stderr
        )
        sys.exit(2)
    from .cli import main as run

    hand_over()
    run()


if __name__ == "__main__":
    main()
