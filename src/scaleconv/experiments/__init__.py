"""The experiments of the paper, and training on images of your own: settings, runs, records, tables, figures."""

from ..models import Classifier
from .checkpoint import load
from .compare import Fitted, fit
from .cost import CostStudy
from .items import (
    ITEMS,
    SEARCHES,
    Experiment,
    check_name,
    folder_name,
    load_experiment,
    load_item,
    parse_override,
    plan_runs,
)
from .records import Epoch, Record, Series, read_records
from .run import Options, run_experiment
from .settings import NetworkSettings, Settings, TrainingSettings

__all__ = [
    "ITEMS",
    "SEARCHES",
    "Classifier",
    "CostStudy",
    "Epoch",
    "Experiment",
    "Fitted",
    "NetworkSettings",
    "Options",
    "Record",
    "Series",
    "Settings",
    "TrainingSettings",
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
