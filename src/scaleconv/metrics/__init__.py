"""Measures of networks and summaries of runs. Imports nothing of ours."""

from .summary import Summary, relative_reduction, sign_flip_test, summarise

__all__ = ["Summary", "relative_reduction", "sign_flip_test", "summarise"]
