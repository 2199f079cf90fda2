"""The experiments of the paper: configuration, training, records, tables and figures."""

from .config import Experiment, items, load_experiment, parse_override
from .records import Epoch, Record, read_records
from .runner import run_experiment

__all__ = [
    "Epoch",
    "Experiment",
    "Record",
    "items",
    "load_experiment",
    "parse_override",
    "read_records",
    "run_experiment",
]
