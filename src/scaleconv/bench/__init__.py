"""What the layer costs beside plain convolutions: time and memory of single layers, and of whole networks in training.

Everything is measured in one process, the contenders taking turns, and ends in one JSON file from which the table and
the picture are made. Nothing of the package but the command line imports this room.
"""

from .runner import Result, run_bench
from .settings import Settings, make_settings

__all__ = ["Result", "Settings", "make_settings", "run_bench"]
