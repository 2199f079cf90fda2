"""Measures of networks and summaries of runs. Imports nothing of ours."""

from .summary import MOST_PAIRS, Summary, relative_reduction, sign_flip_test, summarise

__all__ = ["MOST_PAIRS", "Summary", "relative_reduction", "sign_flip_test", "summarise"]
