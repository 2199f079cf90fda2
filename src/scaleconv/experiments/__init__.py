"""The experiments of the paper: configuration, training, records, tables and figures."""

from .config import Experiment
from .cost import CostStudy
from .loading import APART, ITEMS, folder_name, load_experiment, load_item, parse_override
from .plan import plan_runs
from .records import Epoch, Record, Series, read_records
from .runner import run_experiment

__all__ = [
    "APART",
    "ITEMS",
    "CostStudy",
    "Epoch",
    "Experiment",
    "Record",
    "Series",
    "folder_name",
    "load_experiment",
    "load_item",
    "parse_override",
    "plan_runs",
    "read_records",
    "run_experiment",
]
