"""Charts as SVG inside a page: no library, no font, no colour that is fixed to a light or a dark background.

Every mark carries its value as a `<title>`, which a browser shows where the pointer rests. A curve has the name of its
model as a class, and the style sheet of the page says how to paint that. This module knows no records.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 480.0, 320.0
RIGHT, TOP, BOTTOM = 14.0, 12.0, 52.0  # margins; the left one holds the labels of an axis
LETTER = 7.6  # width of one in pixels, on average
ROW, GAP = 13.0, 12.0  # height of a mark and of the space between two categories, where these are listed downwards
MOST_TICKS = 8
DARKEST = 0.85  # of a cell, so that its number can be read on it
MARKERS = {
    "o": '<circle r="4"/>',
    "s": '<path d="M-3.7-3.7h7.4v7.4h-7.4z"/>',
    "^": '<path d="M0-5 4.8 3.6h-9.6z"/>',
    "D": '<path d="M0-5 5 0 0 5-5 0z"/>',
}


@dataclass(frozen=True)
class Mark:
    """A value, its deviation, and the text that names both."""

    x: float
    y: float
    spread: float
    text: str


@dataclass(frozen=True)
class Curve:
    """Marks of one colour, that of the class `model`, and one shape; a hollow one is a reference beside the others."""

    title: str
    marks: Sequence[Mark]
    model: str
    marker: str = "o"
    hollow: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over one axis.

    Attributes:
        title: above it; may be empty.
        x, y: what the axes are.
        curves: in the order of the legend.
        labels: of values of x that are ticks; empty to choose round numbers.
        kind: `lines`, `bars` (marks beside categories, listed downwards) or `shares` (a cell for each mark).
        log_x, log_y: axes.
    """

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    labels: dict[float, str] = field(default_factory=dict)
    kind: str = "lines"
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Axis:
    """Maps numbers from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(max(each, 1e-300)) if self.log else each for each in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers between the ends: 1, 2 or 5 times a power of ten.

        Example:
            >>> Axis(0.0, 1.2, 0, 100).ticks(), Axis(0.5, 30.0, 0, 100, log=True).ticks()
            ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2], [0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
        """
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            round_numbers = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
            found = [number for number in round_numbers if self.low <= number <= self.high]
            if 1 < len(found) <= MOST_TICKS:
                return found
        rough = (self.high - self.low) / (MOST_TICKS - 1)
        decade = 10.0 ** math.floor(math.log10(rough))
        step = next(digit * decade for digit in (1, 2, 5, 10) if digit * decade >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def draw_chart(chart: Chart) -> str:
    """The chart as an `<svg>` element, without its legend."""
    return {"lines": _lines, "bars": _bars, "shares": _shares}[chart.kind](chart)


def draw_key(curve: Curve) -> str:
    """The mark of a curve alone, for a legend."""
    return f'<svg class="key" viewBox="-7 -7 14 14" aria-hidden="true">{_group(curve, MARKERS[curve.marker])}</svg>'


def _number(value: float) -> str:
    """As text, with a true minus."""
    return f"{value:g}".replace("-", "−")


def _lines(chart: Chart) -> str:
    marks = [mark for curve in chart.curves for mark in curve.marks]
    labels = chart.labels if chart.labels or not chart.log_x else {mark.x: f"{mark.x:g}" for mark in marks}
    horizontal = _axis([mark.x for mark in marks], 0, 0, chart.log_x, margin=0.04)
    vertical = _axis(_ends(marks), HEIGHT - BOTTOM, TOP, chart.log_y)
    ticks = vertical.ticks()
    left = 30 + LETTER * max(len(_number(tick)) for tick in ticks)
    horizontal = Axis(horizontal.low, horizontal.high, left, WIDTH - RIGHT, chart.log_x)
    parts = [_level(vertical(tick), left, _number(tick)) for tick in ticks]
    below = {horizontal(x): text for x, text in (labels or {x: _number(x) for x in horizontal.ticks()}).items()}
    parts += _below(below, HEIGHT)
    for curve in chart.curves:
        places = [(horizontal(mark.x), vertical(mark.y)) for mark in curve.marks]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn = [f'<polyline points="{path}"/>'] if len(places) > 1 else []
        for mark, (x, y) in zip(curve.marks, places, strict=True):
            low, high = (vertical(max(mark.y + end, vertical.low)) for end in (-mark.spread, mark.spread))
            drawn.append(_mark(curve, mark, x, y, f"M{x:.1f} {low:.1f}V{high:.1f}" if mark.spread else ""))
        parts.append(_group(curve, "".join(drawn)))
    return _svg(chart, HEIGHT, [*parts, *_titles(chart.x, chart.y, left, HEIGHT)])


def _bars(chart: Chart) -> str:
    """Not bars, which begin at 0 and hide a difference that is small beside the values: a mark in a row of its own."""
    marks = [mark for curve in chart.curves for mark in curve.marks]
    xs = sorted({mark.x for mark in marks})
    step = GAP + ROW * len(chart.curves)
    height = TOP + step * len(xs) + BOTTOM
    left = 14 + LETTER * max(len(chart.labels.get(x, f"{x:g}")) for x in xs)
    values = _axis(_ends(marks), left, WIDTH - RIGHT, chart.log_y)
    parts = []
    for place, x in enumerate(xs):
        middle = TOP + step * (place + 0.5)
        parts.append(f'<path class="grid" d="M{left:.1f} {middle + step / 2:.1f}H{WIDTH - RIGHT}"/>')
        label = escape(chart.labels.get(x, f"{x:g}"))
        parts.append(f'<text x="{left - 8:.1f}" y="{middle + 4:.1f}" text-anchor="end">{label}</text>')
    parts += _below({values(tick): _number(tick) for tick in values.ticks()}, height)
    for number, curve in enumerate(chart.curves):
        drawn = []
        for mark in curve.marks:
            y = TOP + step * (xs.index(mark.x) + 0.5) + (number - (len(chart.curves) - 1) / 2) * ROW
            low, high = (values(max(mark.y + end, values.low)) for end in (-mark.spread, mark.spread))
            drawn.append(_mark(curve, mark, values(mark.y), y, f"M{low:.1f} {y:.1f}H{high:.1f}" if mark.spread else ""))
        parts.append(_group(curve, "".join(drawn)))
    return _svg(chart, height, [*parts, *_titles(chart.y, "", left, height)])


def _shares(chart: Chart) -> str:
    """A cell for each mark, the darker the larger; the first curve is the lowest row."""
    marks = [mark for curve in chart.curves for mark in curve.marks]
    xs = sorted({mark.x for mark in marks})
    most = max(mark.y for mark in marks) or 1.0
    left = 34 + LETTER * max(len(curve.title) for curve in chart.curves)
    wide, high = (WIDTH - RIGHT - left) / len(xs), (HEIGHT - TOP - BOTTOM) / len(chart.curves)
    parts = _below({left + wide * (k + 0.5): chart.labels.get(x, f"{x:g}") for k, x in enumerate(xs)}, HEIGHT)
    for row, curve in enumerate(chart.curves):
        y = HEIGHT - BOTTOM - high * (row + 1)
        parts.append(
            f'<text x="{left - 6:.1f}" y="{y + high / 2 + 4:.1f}" text-anchor="end">{escape(curve.title)}</text>'
        )
        cells = []
        for mark in curve.marks:
            x = left + wide * xs.index(mark.x)
            cell = f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide - 1:.1f}" height="{high - 1:.1f}"'
            text = f'<text x="{x + wide / 2:.1f}" y="{y + high / 2 + 4:.1f}" text-anchor="middle">{mark.y:.0f}</text>'
            shade = f'fill-opacity="{DARKEST * mark.y / most:.3f}"'
            cells.append(f'<g class="mark"><title>{escape(mark.text)}</title>{cell} {shade}/>{text}</g>')
        parts.append(_group(curve, "".join(cells)))
    return _svg(chart, HEIGHT, [*parts, *_titles(chart.x, "level", left, HEIGHT)])


def _ends(marks: Sequence[Mark]) -> list[float]:
    return [end for mark in marks for end in (mark.y - mark.spread, mark.y, mark.y + mark.spread)]


def _axis(values: Sequence[float], start: float, end: float, log: bool, margin: float = 0.06) -> Axis:
    """An axis that all values fit on, with a margin; from 0 where they are not close to one another."""
    positive = [value for value in values if value > 0]
    log = log and bool(positive)
    low, high = (min(positive), max(positive)) if log else (min(values), max(values))
    if log:
        room = (high / low) ** margin if high > low else 1.1
        return Axis(low / room, high * room, start, end, log=True)
    if margin > 0.05 and 0 < 2 * low < high:
        low = 0.0
    room = margin * (high - low) or 0.1 * abs(high) or 1.0
    return Axis(low - room if low else 0.0, high + room, start, end)


def _level(y: float, left: float, text: str) -> str:
    line = f'<path class="grid" d="M{left:.1f} {y:.1f}H{WIDTH - RIGHT}"/>'
    return f'{line}<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _below(labels: dict[float, str], height: float) -> list[str]:
    """Labels under an axis by their place; one that would touch the last is left out."""
    parts, end = [], -math.inf
    for x, text in sorted(labels.items()):
        half = LETTER * len(text) / 2
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{height - BOTTOM + 4}"/>')
        if x - half > end + LETTER:
            parts.append(f'<text x="{x:.1f}" y="{height - BOTTOM + 18}" text-anchor="middle">{escape(text)}</text>')
            end = x + half
    return parts


def _titles(x: str, y: str, left: float, height: float) -> list[str]:
    """What the axes are; that of the vertical one is turned."""
    middle, centre = (left + WIDTH - RIGHT) / 2, (TOP + height - BOTTOM) / 2
    parts = [f'<text x="{middle:.1f}" y="{height - 10}" text-anchor="middle">{escape(x)}</text>']
    if y:
        turned = f'transform="translate(14 {centre:.1f}) rotate(-90)"'
        parts.append(f'<text {turned} text-anchor="middle">{escape(y)}</text>')
    return parts


def _mark(curve: Curve, mark: Mark, x: float, y: float, whisker: str) -> str:
    """A marker with its deviation, and around it a circle that nobody sees but a finger hits."""
    line = f'<path class="whisker" d="{whisker}"/>' if whisker else ""
    shape = f'<g transform="translate({x:.1f} {y:.1f})"><circle class="aim" r="9"/>{MARKERS[curve.marker]}</g>'
    return f'<g class="mark"><title>{escape(mark.text)}</title>{line}{shape}</g>'


def _group(curve: Curve, content: str) -> str:
    kinds = f"curve {curve.model}{' hollow' if curve.hollow else ''}"
    return f'<g class="{kinds}">{content}</g>'


def _svg(chart: Chart, height: float, parts: Sequence[str]) -> str:
    name = ", ".join(part for part in (chart.title, f"{chart.y} against {chart.x}") if part)
    opening = f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(name)}">'
    return f"{opening}{''.join(parts)}</svg>"
