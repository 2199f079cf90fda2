"""Invariance and equivariance of networks, and summaries of repeated runs. Needs torch alone."""

from .activations import activations
from .equivariance import equivariance_error
from .invariance import NEURONS, invariance_scores, top_mean
from .summary import (
    MOST_PAIRS,
    MOST_RUNS,
    Interval,
    Summary,
    chance_of_sample,
    holm,
    interval,
    relative_reduction,
    runs_needed,
    sign_flip_test,
    summarise,
    t_test,
)

__all__ = [
    "MOST_PAIRS",
    "MOST_RUNS",
    "NEURONS",
    "Interval",
    "Summary",
    "activations",
    "chance_of_sample",
    "equivariance_error",
    "holm",
    "interval",
    "invariance_scores",
    "relative_reduction",
    "runs_needed",
    "sign_flip_test",
    "summarise",
    "t_test",
    "top_mean",
]
