"""Where each level samples the input and where its responses land on the output.

A plan of plain numbers, computed once per call signature and cached; the tensor code of this room decides no sizes.
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
        reach = self.dilation * (self.kernel - 1) + 1
        return (size + sum(self.padding) - reach) // self.stride + 1

    @property
    def output_size(self) -> int:
        return self.response_size(self.length)

    def meets(self, level: AxisLevel) -> tuple[int, int]:
        """The first pixel that the first output meets at a regular level, and how many it meets.

        Each further output meets as many, one stride on. Where padding or a clamped edge make a difference, it is none.
        """
        if not level.step:
            return 0, 0
        before = math.floor(level.targets[0])
        first = self.stride * before - self.padding[0]
        reach = self.dilation * (self.kernel - 1) + (self.stride if level.targets[0] > before else 0)
        last = first + reach + self.stride * level.step * (len(level.targets) - 1)
        if first < 0 or last >= level.size or level.sources[first] < 0 or level.sources[last] > self.length - 1:
            return 0, 0
        pixel = math.floor(level.sources[first])
        return pixel, math.ceil(level.sources[first + reach]) - pixel + 1

    def level(self, scale: float) -> AxisLevel | None:
        """Place one level on this axis; None if it is too small to respond or covers no position."""
        size = math.floor(scale * self.length + SLACK)
        response_size = self.response_size(size)
        if size < 1 or response_size < 1:
            return None
        input_centre, level_centre = (self.length - 1) / 2, (size - 1) / 2
        kernel_centre = self.dilation * (self.kernel - 1) / 2 - self.padding[0]
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
        index: its place in `scales`, and so its value in the winner map.
        wins_ties: whether it also wins where it only equals the levels before it in the plan.
    """

    index: int
    scale: float
    wins_ties: bool
    height: AxisLevel
    width: AxisLevel

    @property
    def regular(self) -> bool:
        """Whether all outputs read between responses alike, so that a convolution with a stride meets them all."""
        return self.scale > 1 and self.height.step > 0 and self.width.step > 0


@dataclass(frozen=True)
class Plan:
    """The levels that take part, in the order in which they compete.

    The identity covers every position, so it comes first and starts the maximum. Then come the levels listed before it
    in `scales`, last one first, which win ties; then those listed after it, which lose them. So a tie goes to the scale
    listed first.
    """

    height: Axis
    width: Axis
    levels: tuple[Level, ...]


@lru_cache(maxsize=64)
def make_plan(height: Axis, width: Axis, scales: tuple[float, ...]) -> Plan:
    """Plan every level; those too small to respond, or that cover no position, take no part."""
    identity = scales.index(1)
    order = [identity, *reversed(range(identity)), *range(identity + 1, len(scales))]
    levels = []
    for index in order:
        vertical, horizontal = height.level(scales[index]), width.level(scales[index])
        if vertical and horizontal:
            levels.append(Level(index, scales[index], index < identity, vertical, horizontal))
    return Plan(height, width, tuple(levels))
