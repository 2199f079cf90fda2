"""What the layer costs beside plain convolutions: time and memory of single layers and of whole networks.

All layers of a comparison are measured in one process, interleaved. A run ends in one JSON file, from which the tables
and the figure are made. Nothing in the package but the command line imports `bench`.
"""

from .session import Result, run_bench
from .settings import Settings, make_settings

__all__ = ["Result", "Settings", "make_settings", "run_bench"]
