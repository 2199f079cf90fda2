"""Where each level samples the input and where its responses land on the output.

Plain numbers, computed once per call signature and cached; the tensor code of this room decides no sizes.
Each axis is planned alone, in float64, by the equations in the docstring of `si_conv2d`. No tensors here.
Paper, section 3.1: the operators T_i and their inverses.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

SLACK = 1e-6  # forgives rounding where s·H meets an integer, or a position the edge of its coverage


@dataclass(frozen=True)
class AxisLevel:
    """One axis of one level.

    Attributes:
        size: samples of the rescaled input.
        response_size: responses of the convolution at this level.
        sources: for each sample, where it reads the input.
        covered: the first covered output position, and one past the last.
        targets: for each covered output position, where it reads the response.
    """

    size: int
    response_size: int
    sources: tuple[float, ...]
    covered: tuple[int, int]
    targets: tuple[float, ...]

    @property
    def step(self) -> int:
        """How many responses lie between the targets of neighbours; 0 if no whole number, or one reads past the edge.

        It is the scale where that is a whole number.
        """
        first, last = self.targets[0], self.targets[-1]
        step = round((last - first) / (len(self.targets) - 1)) if len(self.targets) > 1 else 1
        even = all(abs(v - first - step * place) < SLACK for place, v in enumerate(self.targets))
        return step if even and first >= 0 and last <= self.response_size - 1 else 0


@dataclass(frozen=True)
class Axis:
    """What a convolution does along one axis; `padding` is (leading, trailing)."""

    length: int
    kernel: int
    stride: int
    padding: tuple[int, int]
    dilation: int

    def response_size(self, size: int) -> int:
        """Responses of the convolution to an input of this size; below 1 if the kernel does not fit."""
        return (size + sum(self.padding) - self.reach - 1) // self.stride + 1

    @property
    def reach(self) -> int:
        """Pixels from the first tap of the kernel to the last."""
        return self.dilation * (self.kernel - 1)

    def stride_matters(self, outputs: int) -> bool:
        """Whether a convolution needs a stride to give so many outputs: with one tap, its pixels can be picked."""
        return self.kernel > 1 and outputs > 1

    @property
    def output_size(self) -> int:
        return self.response_size(self.length)

    def level(self, scale: float) -> AxisLevel | None:
        """Place one level on this axis; None if it is too small to respond or covers no position."""
        size = math.floor(scale * self.length + SLACK)
        response_size = self.response_size(size)
        if size < 1 or response_size < 1:
            return None
        input_centre, level_centre = (self.length - 1) / 2, (size - 1) / 2
        kernel_centre = self.reach / 2 - self.padding[0]
        sources = tuple((q - level_centre) / scale + input_centre for q in range(size))
        targets = [
            (scale * (self.stride * p + kernel_centre - input_centre) + level_centre - kernel_centre) / self.stride
            for p in range(self.output_size)
        ]
        inside = [p for p, v in enumerate(targets) if -0.5 - SLACK <= v <= response_size - 0.5 + SLACK]
        if not inside:
            return None
        covered = (inside[0], inside[-1] + 1)
        return AxisLevel(size, response_size, sources, covered, tuple(targets[slice(*covered)]))


@dataclass(frozen=True)
class Level:
    """One entry of the pyramid.

    Attributes:
        index: its place in `scales`.
        code: its place in the order in which all scales compete, and so its value in the winner map.
        wins_ties: whether it also wins where it only equals the levels before it in that order.
    """

    index: int
    code: int
    scale: float
    wins_ties: bool
    height: AxisLevel
    width: AxisLevel

    @property
    def regular(self) -> bool:
        """Whether every output samples the responses at the same sub-pixel phase, a whole number of them apart."""
        return self.scale > 1 and self.height.step > 0 and self.width.step > 0


@dataclass(frozen=True)
class Geometry:
    """The axes, and the levels that take part in the order in which they compete."""

    height: Axis
    width: Axis
    levels: tuple[Level, ...]


def competing_order(scales: tuple[float, ...]) -> tuple[int, ...]:
    """The indices of the scales in the order in which they compete.

    The identity covers every position, so it comes first and starts the maximum. Then come the levels listed before it
    in `scales`, last one first, which win ties; then those listed after it, which lose them. So a tie goes to the scale
    listed first.

    Example:
        >>> competing_order((0.5, 0.7, 1, 2))
        (2, 1, 0, 3)
    """
    identity = scales.index(1)
    return (identity, *reversed(range(identity)), *range(identity + 1, len(scales)))


@lru_cache(maxsize=256)
def make_geometry(height: Axis, width: Axis, scales: tuple[float, ...]) -> Geometry:
    """Place every level; those too small to respond, or that cover no position, take no part."""
    levels = []
    for code, index in enumerate(competing_order(scales)):
        vertical, horizontal = height.level(scales[index]), width.level(scales[index])
        if vertical and horizontal:
            levels.append(Level(index, code, scales[index], index < scales.index(1), vertical, horizontal))
    return Geometry(height, width, tuple(levels))
