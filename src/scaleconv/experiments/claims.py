"""The paper's claims beside what the records say: reproduced or not, with the interval that decides it.

A check is one function, in `CHECKS` under the name that `checks` of an item's file gives. The paper's numbers come from
that file. One rule decides all claims. Every fold gives one number, and all folds a 95 % interval of its mean.

A number of the paper is compared with that interval. *Reproduced*: the number lies in it. *Differs, lower* or *differs,
higher*: it does not, and ours is lower or higher. Where the paper has a deviation over its own six folds, the interval
is that of the difference between the two means.

A direction that the paper states without a number is the paired difference between two networks. *Reproduced*: the
interval lies on the paper's side of 0, at every point that the claim is about. *Not shown*: it does not.

One fold has no interval: it decides nothing, and neither does a point that is missing.

Where a claim says which of two networks is better, it has a p-value: that of Student's t of the paired differences
against 0, the largest one where the claim is about several points. One claim is primary, that the layer lowers the
error of Table 1; the p-values of the others are to be corrected for their number.

Small runs, those of another preset than the paper's, are judged by directions alone. Their numbers are *not comparable*
with the paper's; a relative change is judged by its sign. *Same direction*: the interval lies on the paper's side of 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import sub, truediv
from statistics import fmean
from typing import Any

from ..metrics import MOST_PAIRS, Interval, Summary, interval, sign_flip_test, t_test
from .items import Experiment, Item
from .methods import TITLES
from .records import Record
from .tables import (
    ByRepeat,
    Line,
    Panel,
    Values,
    as_stated,
    bounds,
    make_panels,
    mean_over_points,
    paired,
    relative_change,
    run_errors,
    signed_mean,
    signed_percent,
    stated_for,
)

OURS, BASE = "si_convnet", "convnet"
# Of table 1, the method and what the paper compares it with.
PAIRS = ((OURS, BASE), (OURS, "hierarchical"), ("hierarchical", BASE), ("si_rbm", "rbm"))
# Of the field, the network that must be below and those it must be below.
BELOW = ((OURS, BASE), ("si_cnn", "cnn"), ("si_cnn", "cropped_cnn"))
PAPER_FOLDS = 6  # behind each deviation of table 1
REPRODUCED, LOWER, HIGHER = "reproduced", "differs, lower", "differs, higher"
NOT_SHOWN = "not shown"  # of a direction
NOT_COMPARABLE, SAME_DIRECTION = "not comparable", "same direction"  # of small runs


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, and ours beside it.

    Attributes:
        paper, ours: as text.
        verdict: None where not all of it is measured yet.
        p: of a claim about which of two networks is better; not corrected for other claims.
        primary: the one claim whose p-value stands for itself.
    """

    paper: str
    ours: str
    verdict: str | None
    p: float | None = None
    primary: bool = False


def check_claims(item: Item, records: Sequence[Record]) -> list[Claim]:
    """What the records say to the paper's claims about an item; empty if they cannot say anything.

    Raises:
        ValueError: the item names a check that does not exist.
    """
    if unknown := [name for name in item.checks if name not in CHECKS]:
        raise ValueError(f"`checks` of {item.item} must be among {', '.join(CHECKS)}, got {unknown[0]!r}")
    return [claim for name in item.checks for claim in CHECKS[name](item, records)]


def _is_small(item: Item) -> bool:
    return item.preset != "paper"


def compare(item: Item, found: Interval | None, paper: float) -> str | None:
    """The verdict on a number of the paper."""
    if _is_small(item):
        return NOT_COMPARABLE
    if found is None:
        return None
    if found.high < paper:
        return LOWER
    return HIGHER if found.low > paper else REPRODUCED


def _shown(item: Item, holds: bool) -> str:
    """The verdict on a direction."""
    if not holds:
        return NOT_SHOWN
    return SAME_DIRECTION if _is_small(item) else REPRODUCED


def _table(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The error of each method, and the methods that the paper compares, fold by fold."""
    errors = run_errors(records)
    claims = []
    for model in TITLES:
        for name, (mean, *std) in stated_for(model, item.paper).items() if model in errors else ():
            values = list(errors[model].values())
            found = interval(values, against=Summary(mean, std[0], PAPER_FOLDS) if std else None)
            paper = f"{name}: {as_stated((mean, *std))} %"
            ours = f"{fmean(values):.2f} %{_gap(found, mean) if std else bounds(found)}, n = {len(values)}"
            claims.append(Claim(paper, ours, compare(item, found, mean)))
    for model, other in PAIRS:
        both = paired(errors.get(model, {}), errors.get(other, {}), relative_change)
        if both and model in item.paper and other in item.paper:
            paper_change = relative_change(item.paper[model][0], item.paper[other][0])
            text = f"error of {TITLES[model]} vs {TITLES[other]}: {signed_percent(paper_change)}"
            claim = _percentage(item, text, list(both.values()), paper_change)
            claims.append(replace(claim, primary=(model, other) == (OURS, BASE)))
    return [*claims, *_comparable(item, errors)]


def _comparable(item: Item, errors: Mapping[str, ByRepeat]) -> list[Claim]:
    """The layer and the scale-invariant RBM lower the error by as much as each other."""
    pairs = (("si_rbm", "rbm"), (OURS, BASE))
    if not all(name in item.paper and name in errors for pair in pairs for name in pair):
        return []
    first, second = (paired(errors[model], errors[other], relative_change) for model, other in pairs)
    gap = paired(first, second)
    if not gap:
        return []
    stated = [relative_change(item.paper[model][0], item.paper[other][0]) for model, other in pairs]
    named = " and ".join(
        f"{signed_percent(value)} of {TITLES[model]}" for value, (model, _) in zip(stated, pairs, strict=True)
    )
    ours = " and ".join(signed_percent(fmean(changes[repeat] for repeat in gap)) for changes in (first, second))
    verdict = compare(item, interval([*gap.values()]), stated[0] - stated[1])
    text = f"{ours}; difference {signed_mean([*gap.values()], 1)} points, n = {len(gap)}"
    return [Claim(f"comparable: {named}", text, verdict)]


def _below(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The network with scale-invariant layers has the lower error at every point."""
    claims = []
    for ours, base in BELOW:
        panel, lines = _compared(item, records, ours, base)
        if not lines:
            continue
        gaps = _differences(panel, lines)
        found = [interval([*gap.values()]) for gap in gaps.values() if gap]
        below = sum(each is not None and each.high < 0 for each in found)
        above = sum(each is not None and each.low > 0 for each in found)
        missing = len(panel.xs) - len(found)
        average = _difference(mean_over_points(gaps), "on average ")
        text = f"below at {below} of {len(found)}, above at {above}; {average}"
        text += f"; {missing} not measured yet" if missing else ""
        verdict = None if not above and (missing or None in found) else _shown(item, below == len(found))
        p = None if missing else _p_of_all(gaps.values(), below=True)
        claims.append(Claim(f"{TITLES[ours]} below {TITLES[base]} at every point", text, verdict, p))
    return claims


def _published(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The published error at each point, by its label, beside the lowest of ours, once all models are there."""
    panel = _first_panel(item, records)
    models = item.models if isinstance(item, Experiment) else ()
    claims = []
    for x in panel.xs:
        values = {line.title: list(line.values[x].values()) for line in panel.lines if line.values.get(x)}
        if (label := panel.label(x)) in item.paper and values:
            title, ours = min(values.items(), key=lambda entry: fmean(entry[1]))
            found, best = interval(ours), item.paper[label][0]
            text = f"{title} {fmean(ours):.2f} %{bounds(found)}, n = {len(ours)}"
            whole = all(TITLES[model] in values for model in models)
            verdict = compare(item, found if whole else None, best)
            claims.append(Claim(f"published at {label}: {best:.2f} %", text, verdict))
    return claims


def _gap_shrinks(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The gap between the two networks is smaller at the last point than at the first, and has not changed its sign."""
    panel, lines = _compared(item, records)
    if not lines or len(panel.xs) < 2:
        return []
    gaps = _differences(panel, lines)
    first, last = ({repeat: -gap for repeat, gap in gaps[x].items()} for x in (panel.xs[0], panel.xs[-1]))
    change = paired(last, first)
    if not change:
        return []
    shrinks, left = interval(list(change.values())), interval(list(last.values()))
    text = f"from {fmean(first.values()):.2f} to {fmean(last.values()):.2f} points".replace("-", "−")
    verdict, p = None, None
    if shrinks and left:
        verdict = _shown(item, shrinks.high < 0 and left.high >= 0)
        p = _p_of_all([change], below=True) if left.high >= 0 else 1.0
    return [Claim(f"the gap shrinks with the {panel.x}", f"{text}; {_difference(change, 'change ')}", verdict, p)]


def _reduction(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The relative reductions that the paper names: `reduction`, and `reduction at X`."""
    panel, lines = _compared(item, records)
    if not lines:
        return []
    changes = _differences(panel, lines, relative_change)
    claims = []
    for name, (paper, *_) in item.paper.items():
        where = name.partition(" at ")[2]
        found = changes.get(float(where), {}) if where else mean_over_points(changes)
        if found:
            place = f"at scale {where}" if where else "on average"
            text = f"error vs {TITLES[BASE]} {place}: {signed_percent(-paper, 0)}"
            claims.append(_percentage(item, text, list(found.values()), -paper))
    return claims


def _grows_slower(item: Item, records: Sequence[Record]) -> list[Claim]:
    """From the first point to the last the error of SI-ConvNet grows by less: in points, and as a ratio."""
    panel, lines = _compared(item, records)
    if not lines or len(panel.xs) < 2:
        return []
    low, high = panel.xs[0], panel.xs[-1]
    rises = (paired(line.values.get(high, {}), line.values.get(low, {})) for line in lines)
    ours, base = ({repeat: rise / (high - low) for repeat, rise in each.items()} for each in rises)
    slower = paired(ours, base)
    if not slower:
        return []
    means = " against ".join(f"{fmean(slopes.values()):.2f}" for slopes in (ours, base))
    stated = f"the error of {TITLES[OURS]} grows more slowly with the range"
    claims = [_lower(item, f"{stated}, in points", f"{means} points per unit of half-width", slower)]
    ends = [
        (line.values[high], {repeat: error for repeat, error in line.values[low].items() if error}) for line in lines
    ]
    ours, base = (paired(*each, truediv) for each in ends)
    if ratio := paired(ours, base):
        means = " against ".join(f"×{fmean(factors[repeat] for repeat in ratio):.2f}" for factors in (ours, base))
        claims.append(_lower(item, f"{stated}, as a ratio", f"{means} over all ranges", ratio))
    return claims


def _lower(item: Item, paper: str, text: str, differences: ByRepeat) -> Claim:
    """The claim that the mean of these differences is below 0."""
    found = interval([*differences.values()])
    verdict = None if found is None else _shown(item, found.high < 0)
    return Claim(paper, f"{text}; {_difference(differences)}", verdict, _p_of_all([differences], below=True))


def _invariant(item: Item, records: Sequence[Record]) -> list[Claim]:
    """SI-ConvNet has the higher score at every layer."""
    panel, lines = _compared(item, records)
    gaps = {x: gap for x, gap in _differences(panel, lines).items() if gap} if lines else {}
    if not gaps:
        return []
    layers = "; ".join(f"{panel.label(x)} {signed_mean([*gap.values()], 2)}" for x, gap in gaps.items())
    text = f"{layers}; n = {min(map(len, gaps.values()))}"
    found, verdict = [each for gap in gaps.values() if (each := interval([*gap.values()]))], None
    if len(found) == len(panel.xs):
        verdict = _shown(item, all(each.low > 0 for each in found))
    p = _p_of_all(gaps.values(), below=False) if len(found) == len(panel.xs) else None
    return [Claim(f"{TITLES[OURS]} more invariant at every layer", text, verdict, p)]


def _operations(item: Item, records: Sequence[Record]) -> list[Claim]:
    """The paper's formula at the paper's scales, and the operations that are counted there: exact, without interval."""
    claims = []
    for panel in make_panels(item, records):
        at = {line.model: line.summaries.get(2.0) for line in panel.lines}
        formula, chosen, direct = (at.get(name) for name in ("formula", "si_conv2d", "direct"))
        if formula and chosen and direct and panel.x.startswith("largest"):
            text = f"formula ×{formula.mean:.1f}; counted ×{direct.mean:.1f} direct, ×{chosen.mean:.1f} as we do it"
            least = item.paper["factor"][0]
            verdict = compare(item, Interval(chosen.mean, chosen.mean, chosen.mean), least)
            claims.append(Claim(f"×{least:.0f} operations, {panel.title}", text, verdict))
    return claims


def _first_panel(item: Item, records: Sequence[Record]) -> Panel:
    """The panel that a claim is about; an empty one where there is nothing to draw."""
    return next(iter(make_panels(item, records)), Panel("", "", "", []))


Networks = tuple[Line, Line]  # with scale-invariant layers, and what it is compared with


def _compared(
    item: Item, records: Sequence[Record], ours: str = OURS, base: str = BASE
) -> tuple[Panel, Networks | None]:
    """The first panel, and the two networks in it if both are there."""
    panel = _first_panel(item, records)
    found = {line.model: line for line in panel.lines if not line.control}
    return panel, ((found[ours], found[base]) if ours in found and base in found else None)


def _differences(panel: Panel, lines: Networks, combine: Callable[[float, float], float] = sub) -> Values:
    """The first network less the second at each x, for each repeat."""
    return {x: paired(lines[0].values.get(x, {}), lines[1].values.get(x, {}), combine) for x in panel.xs}


def _percentage(item: Item, paper: str, changes: Sequence[float], expected: float) -> Claim:
    """A relative change of the error against the paper's; of small runs, its sign alone."""
    found = interval(changes)
    verdict = compare(item, found, expected)
    if _is_small(item):
        verdict = None if found is None else _shown(item, found.high < 0 if expected < 0 else found.low > 0)
    bounds = "" if found is None else f" [{signed_percent(found.low)[:-2]}, {signed_percent(found.high)[:-2]}]"
    p = _p_of_all([dict(enumerate(changes))], below=expected < 0)
    return Claim(paper, f"{signed_percent(fmean(changes))}{bounds}, n = {len(changes)}", verdict, p)


def _p_of_all(differences: Iterable[Mapping[Any, float]], *, below: bool) -> float | None:
    """The largest p-value of several means, each to lie on one side of 0; None if one is of fewer than two folds."""
    found = []
    for each in differences:
        values = [*each.values()]
        p = t_test(values) if values else None
        found.append(p if p is None or (fmean(values) < 0) == below else 1.0)
    return None if None in found else max((p for p in found if p is not None), default=None)


def _difference(by_repeat: ByRepeat, about: str = "difference ") -> str:
    """Mean, interval and the exact test of paired differences, as text."""
    values = list(by_repeat.values())
    if not values:
        return "no fold has every point"
    p = f", sign-flip p = {sign_flip_test(values):.3f}" if len(values) <= MOST_PAIRS else ""
    return f"{about}{signed_mean(values, 2)}{p}, n = {len(values)}"


def _gap(found: Interval | None, paper: float) -> str:
    """The interval of the difference between two means, said as such."""
    if found is None:
        return ""
    gap = Interval(*(value - paper for value in (found.mean, found.low, found.high)))
    return f"; difference to the paper {gap.mean:+.2f}{bounds(gap, '+.2f')}".replace("-", "−")


CHECKS: dict[str, Callable[[Item, Sequence[Record]], list[Claim]]] = {
    "table": _table,
    "below": _below,
    "published": _published,
    "gap_shrinks": _gap_shrinks,
    "reduction": _reduction,
    "grows_slower": _grows_slower,
    "invariant": _invariant,
    "operations": _operations,
}
