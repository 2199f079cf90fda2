"""Settings of the methods that learn features without labels, and of the classifier on them (paper, table 1).

Each RBM has its own recipe; the classifier and the choice of its penalty are the same for all, pixels included, or the
features could not be compared.
"""

from dataclasses import dataclass

from ..models import Recipe
from ..models.images import check_count
from ..models.si_rbm import ENLARGING_SCALES
from ..models.unsupervised import PENALTIES
from ..ops.signature import check_scales


@dataclass(frozen=True)
class RBMConfig(Recipe):
    """The recipe of an RBM, and `hidden`, the number of its units."""

    hidden: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("hidden", self.hidden)


@dataclass(frozen=True)
class SIRBMConfig(RBMConfig):
    """The same for the scale-invariant RBM, and the `scales` of its transforms."""

    scales: tuple[float, ...] = ENLARGING_SCALES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scales(self.scales)


@dataclass(frozen=True)
class SoftmaxConfig:
    """The classifier.

    Attributes:
        penalties: of its squared weights, to choose from.
        held_out: the part of the training digits on which the penalty is chosen.
    """

    penalties: tuple[float, ...] = PENALTIES
    held_out: float = 0.2

    def __post_init__(self) -> None:
        if not self.penalties or not min(self.penalties) >= 0:
            raise ValueError(f"`penalties` must hold at least one, none below 0, got {list(self.penalties)}")
        if not 0 < self.held_out < 1:
            raise ValueError(f"`held_out` must lie between 0 and 1, got {self.held_out}")
