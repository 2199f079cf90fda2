"""The experiments of the paper: configuration, training, records, tables and figures."""

from .config import Experiment
from .cost import CostStudy
from .items import ITEMS, SEARCHES, check_name, folder_name, load_experiment, load_item, parse_override
from .records import Epoch, Record, Series, read_records
from .run import run_experiment
from .train import plan_runs

__all__ = [
    "ITEMS",
    "SEARCHES",
    "CostStudy",
    "Epoch",
    "Experiment",
    "Record",
    "Series",
    "check_name",
    "folder_name",
    "load_experiment",
    "load_item",
    "parse_override",
    "plan_runs",
    "read_records",
    "run_experiment",
]
