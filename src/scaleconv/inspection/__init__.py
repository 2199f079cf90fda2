"""Look at a network: what was converted and at what cost, which scales win, and how its output depends on the scale."""

from .advice import Recommendation, recommend
from .consistency import ScaleCheck, check_scale
from .explain import Explanation, explain
from .overview import Overview, summary
from .winner_maps import ScaleUsage, Winners, scale_usage, winners

__all__ = [
    "Explanation",
    "Overview",
    "Recommendation",
    "ScaleCheck",
    "ScaleUsage",
    "Winners",
    "check_scale",
    "explain",
    "recommend",
    "scale_usage",
    "summary",
    "winners",
]
