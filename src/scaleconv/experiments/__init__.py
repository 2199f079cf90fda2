"""The experiments of the paper, and training on images of your own: settings, training, records, tables, figures."""

from .classifier import Classifier, NetworkSpec, load
from .cost import CostStudy
from .experiment import Experiment
from .fit import Fitted, fit
from .items import ITEMS, SEARCHES, check_name, folder_name, load_experiment, load_item, parse_override
from .records import Epoch, Record, Series, read_records
from .run import run_experiment
from .train import plan_runs
from .training import FitSettings

__all__ = [
    "ITEMS",
    "SEARCHES",
    "Classifier",
    "CostStudy",
    "Epoch",
    "Experiment",
    "FitSettings",
    "Fitted",
    "NetworkSpec",
    "Record",
    "Series",
    "check_name",
    "fit",
    "folder_name",
    "load",
    "load_experiment",
    "load_item",
    "parse_override",
    "plan_runs",
    "read_records",
    "run_experiment",
]
