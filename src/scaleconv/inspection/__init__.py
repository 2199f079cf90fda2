"""Look at a network: what was converted and at what cost, which scales win, and how it answers to rescaled images."""

from .advice import Recommendation, recommend
from .consistency import ScaleCheck, check_scale
from .overview import Overview, summary
from .winner_maps import ScaleUsage, Winners, scale_usage, winners

__all__ = [
    "Overview",
    "Recommendation",
    "ScaleCheck",
    "ScaleUsage",
    "Winners",
    "check_scale",
    "recommend",
    "scale_usage",
    "summary",
    "winners",
]
