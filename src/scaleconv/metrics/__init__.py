"""Invariance and equivariance of networks, and summaries of repeated runs. Needs torch alone."""

from .activations import activations, recording
from .equivariance import equivariance_error
from .invariance import NEURONS, invariance_scores, top_mean
from .summary import MOST_PAIRS, Interval, Summary, interval, relative_reduction, sign_flip_test, summarise

__all__ = [
    "MOST_PAIRS",
    "NEURONS",
    "Interval",
    "Summary",
    "activations",
    "equivariance_error",
    "interval",
    "invariance_scores",
    "recording",
    "relative_reduction",
    "sign_flip_test",
    "summarise",
    "top_mean",
]
