"""The paper's claims beside what the records say: the same or not. The paper's numbers come from the item's file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .config import Experiment
from .cost import CostStudy
from .panels import Line, Panel, is_table, make_panels
from .records import Record
from .tables import make_rows

OURS, BASE = "si_convnet", "convnet"
PAIRS = ((OURS, BASE), ("si_rbm", "rbm"))  # of table 1: with scale-invariant filters, and without
ROUNDING = 1e-9  # a share that equals the paper's is the paper's


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, ours beside it, and whether they agree; None where that is not all measured yet."""

    paper: str
    ours: str
    holds: bool | None


def check_claims(item: Experiment | CostStudy, records: Sequence[Record]) -> list[Claim]:
    """What the records say to the paper's claims about an item; empty if they cannot say anything."""
    if isinstance(item, Experiment) and is_table(item):
        return _table(item, records)
    panels = make_panels(item, records)
    check = _CHECKS.get(item.item)
    return check(item, panels) if check and panels else []


def _table(item: Experiment, records: Sequence[Record]) -> list[Claim]:
    claims = []
    for row in make_rows(records, item.paper, item.baseline):
        if row.ours is None or not row.paper:
            continue
        mean, *std = row.paper
        spread = std[0] if std else row.ours.std or 0.0
        claims.append(
            Claim(
                f"{row.title}: {' ± '.join(f'{value:.2f}' for value in row.paper)} %",
                f"{row.ours.mean:.2f} % (n = {row.ours.n})",
                row.ours.mean <= mean + spread,
            )
        )
    for name, other in PAIRS:
        found = {row.model: row for row in make_rows(records, item.paper, other)}
        ours, base = found.get(name), found.get(other)
        if ours and base and ours.reduction is not None and ours.paper and base.paper:
            least = 100 * (1 - ours.paper[0] / base.paper[0])
            holds = ours.reduction >= least - ROUNDING
            claims.append(Claim(f"{ours.title} {least:.2g} % under {base.title}", f"{ours.reduction:.1f} %", holds))
    return claims


def _lines(panel: Panel) -> tuple[Line, Line] | None:
    """SI-ConvNet and ConvNet, if both are there."""
    found = {line.model: line for line in panel.lines if not line.control}
    return (found[OURS], found[BASE]) if OURS in found and BASE in found else None


def _both(panel: Panel, lines: tuple[Line, Line]) -> list[tuple[float, float, float, float]]:
    """x, the two means, and the sum of their deviations, where both were measured."""
    rows = []
    for x in panel.xs:
        ours, base = lines[0].at(x), lines[1].at(x)
        if ours and base:
            rows.append((x, ours.mean, base.mean, (ours.std or 0.0) + (base.std or 0.0)))
    return rows


def _below(panel: Panel) -> list[Claim]:
    lines = _lines(panel)
    if not lines:
        return []
    rows = _both(panel, lines)
    below = sum(ours < base for _, ours, base, _ in rows)
    clearly = sum(ours + spread < base for _, ours, base, spread in rows)
    missing = len(panel.xs) - len(rows)
    text = f"below at {below} of {len(rows)}, at {clearly} with bars (± std) that do not meet"
    text += f"; {missing} not measured yet" if missing else ""
    holds = None if missing and below == len(rows) else below == len(rows)
    return [Claim("SI-ConvNet below ConvNet at every point", text, holds)]


def _shrinks(item: Experiment | CostStudy, panels: Sequence[Panel]) -> list[Claim]:
    claims, panel = _below(panels[0]), panels[0]
    lines = _lines(panel)
    if lines and len(rows := _both(panel, lines)) == len(panel.xs) > 1:
        first, last = rows[0][2] - rows[0][1], rows[-1][2] - rows[-1][1]
        text = f"from {first:.2f} to {last:.2f} points"
        claims.append(Claim(f"the gap shrinks with the {panel.x}", text, abs(last) < abs(first)))
    return claims


def _unfamiliar(item: Experiment | CostStudy, panels: Sequence[Panel]) -> list[Claim]:
    claims, panel = _below(panels[0]), panels[0]
    lines = _lines(panel)
    if not lines:
        return []
    for name, (least, *_) in item.paper.items():
        where = name.partition(" at ")[2]
        found = panel.reduction(lines[0], float(where)) if where else panel.mean_reduction(lines[0])
        if found is not None:
            paper = f"relative error {least:.0f} % lower {f'at scale {where}' if where else 'on average'}"
            claims.append(Claim(paper, f"{found:.1f} %", found >= least - ROUNDING))
    return claims


def _grows(item: Experiment | CostStudy, panels: Sequence[Panel]) -> list[Claim]:
    claims, panel = _below(panels[0]), panels[0]
    lines = _lines(panel)
    if lines and len(rows := _both(panel, lines)) == len(panel.xs) > 1:
        width = rows[-1][0] - rows[0][0]
        ours, base = ((rows[-1][column] - rows[0][column]) / width for column in (1, 2))
        text = f"{ours:.2f} against {base:.2f} points per unit of half-width"
        claims.append(Claim("the error of SI-ConvNet grows more slowly with the range", text, ours < base))
    return claims


def _invariant(item: Experiment | CostStudy, panels: Sequence[Panel]) -> list[Claim]:
    lines = _lines(panels[0])
    rows = _both(panels[0], lines) if lines else []
    if not rows:
        return []
    texts = [f"{panels[0].label(x)} {ours:.1f} against {base:.1f}" for x, ours, base, _ in rows]
    above = all(ours > base for _, ours, base, _ in rows)
    return [Claim("SI-ConvNet more invariant at every layer", "; ".join(texts), above)]


def _cheaper(item: Experiment | CostStudy, panels: Sequence[Panel]) -> list[Claim]:
    """The formula at the paper's scales, and what the chosen order takes there."""
    claims = []
    for panel in panels:
        found = {line.model: line for line in panel.lines}
        at = {model: line.at(2.0) for model, line in found.items()}
        formula, chosen, direct = (at.get(name) for name in ("formula", "si_conv2d", "direct"))
        if formula and chosen and direct and panel.x.startswith("largest"):
            text = f"formula ×{formula.mean:.1f}; counted ×{direct.mean:.1f} direct, ×{chosen.mean:.1f} as we do it"
            least = item.paper["factor"][0]
            claims.append(Claim(f"×{least:.0f} operations, {panel.title}", text, chosen.mean <= least))
    return claims


_CHECKS: dict[str, Callable[[Experiment | CostStudy, Sequence[Panel]], list[Claim]]] = {
    "fig3": _invariant,
    "fig4a": _shrinks,
    "fig4b": _shrinks,
    "fig5a": _unfamiliar,
    "fig5b": _grows,
    "cost": _cheaper,
}
