"""What the layer costs beside plain convolutions: time, memory and operations of single layers and of whole networks.

All that is compared is measured in one process, interleaved. A run ends in one JSON file, from which the tables and the
figure are made.
"""

from .session import Result, run_bench
from .shapes import Settings, make_settings

__all__ = ["Result", "Settings", "make_settings", "run_bench"]
