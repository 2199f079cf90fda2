"""All tables and figures as one HTML file, which needs no other file and no network, from records alone.

Numbers come from `tables`, `panels` and `claims`, as in every other report; this module lays them out. Pictures of what
networks learned are pixels, and are embedded.
"""

import base64
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from .. import __version__
from ..data.progress import watched
from ..metrics import Summary, summarise
from ..table import Table
from .claims import BETTER, SAME, WORSE
from .config import TITLES, Settings
from .experiment import Experiment, Item
from .figures import COLOURS, MARKERS
from .panels import Panel, learning_curves, make_panels, of_model, relative_change, shows_change, signed_percent
from .parsing import build
from .records import Record, writing
from .report import Recorded, claims_table, draws_learned, footnotes, joined, pictures, read_recorded
from .svg import Chart, Curve, Mark, draw_chart, draw_key
from .tables import as_stated, make_rows, make_tables, mean_and_std

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --soft: #f3f4f6; --line: #c9ced6; --faint: #57606a;
  --same: #1a6b34; --better: #0b57b7; --worse: #b42318; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; font: 16px/1.5 system-ui, sans-serif; color: var(--text);
  background: var(--back); }
a { color: var(--better); }
h1 { line-height: 1.2; }
h2 { margin: 2.5rem 0 .5rem; padding-top: .5rem; border-top: 1px solid var(--line); }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .875rem; }
pre { padding: .6rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; background: var(--soft); }
.note { color: var(--faint); font-size: .875rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
figure h3 { margin: .5rem 0; font-size: 1rem; font-weight: 600; }
figure > svg, figure > img { display: block; width: 100%; max-width: 38rem; height: auto; }
figure > img { max-width: 100%; background: #ffffff; }
figcaption { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .875rem; }
.key { width: 14px; height: 14px; vertical-align: -2px; }
svg text { font-size: 13.5px; fill: var(--text); }
.grid { stroke: var(--line); stroke-opacity: .6; fill: none; }
.curve { --ink: var(--c); fill: var(--ink); stroke: var(--ink); }
.curve polyline { fill: none; stroke-width: 1.8; }
.curve rect { fill: var(--c); stroke: none; }
.curve text { stroke: none; }
.hollow { fill: var(--back); }
.whisker { stroke-width: 1.2; fill: none; }
.aim { fill: transparent; stroke: none; }
.mark:hover { stroke-width: 3; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
thead th { white-space: normal; vertical-align: bottom; min-width: 3.5rem; }
th:first-child { text-align: left; }
th[scope=row] { font-weight: 500; }
.prose th, .prose td { text-align: left; white-space: normal; vertical-align: top; }
.same { color: var(--same); } .better { color: var(--better); } .worse { color: var(--worse); }
.same, .better, .worse { font-weight: 600; }
summary { cursor: pointer; }
#value { position: fixed; z-index: 1; padding: .25rem .5rem; max-width: 16rem; font-size: .875rem; pointer-events: none;
  color: var(--back); background: var(--text); border-radius: .3rem; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ee; --back: #14171c; --soft: #20252d; --line: #4a525e; --faint: #a5adba; --same: #5fce83;
    --better: #7db4ff; --worse: #ff8a7d; }
  .curve { --ink: color-mix(in srgb, var(--c) 62%, white); }
}
@media (max-width: 40rem) {
  .prose thead { display: none; }
  .prose tr, .prose th, .prose td { display: block; border: 0; padding: .1rem 0; }
  .prose tr { padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .prose td:nth-child(2)::before { content: "published: "; color: var(--faint); }
  .prose td:nth-child(3)::before { content: "ours: "; color: var(--faint); }
}
@media print { details > * { display: block; } }
"""

# Values are shown at once, and where a finger taps; without the script a browser shows the titles by itself.
SCRIPT = """
const value = document.getElementById("value");
for (const title of document.querySelectorAll(".mark > title")) {
  title.parentNode.dataset.value = title.textContent;
  title.remove();
}
function show(event) {
  const mark = event.target.closest(".mark");
  value.hidden = !mark;
  if (!mark) return;
  value.textContent = mark.dataset.value;
  value.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - value.offsetWidth - 8)) + "px";
  value.style.top = Math.max(4, event.clientY - value.offsetHeight - 12) + "px";
}
document.addEventListener("pointerover", show);
document.addEventListener("pointerdown", show);
"""


def write_html(results: Path, figures: Path, path: Path, preset: str = "paper") -> Path:
    """Write the page and return its path.

    Args:
        results: directory of the records.
        figures: where `scaleconv report` keeps the pictures that are drawn from weights.
        path: the file.
        preset: `paper` or `quick`.
    """
    text = make_page(read_recorded(results, preset), figures, preset)
    with writing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def make_page(found: Sequence[Recorded], figures: Path, preset: str) -> str:
    """The page as text; the same records give the same page."""
    recorded = [each for each in found if each.folder]
    if not recorded:
        raise ValueError(f"`results` must hold records of the preset {preset}: run `scaleconv reproduce` first")
    sections = [_section(each, figures) for each in watched(recorded, "drawing charts", len(recorded))]
    links = [
        ("claims", "Claims"),
        *((each.item.item, each.item.item) for each in recorded),
        ("made", "How it was made"),
    ]
    count = sum(len(each.records) for each in recorded)
    small = "" if preset == "paper" else " These are small versions, on few digits: they cannot settle a claim."
    missing = ", ".join(each.item.item for each in found if not each.folder)
    colours = "\n".join(f".{model} {{ --c: {colour}; }}" for model, colour in COLOURS.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>scaleconv: the paper, reproduced</title>
<style>{STYLE}{colours}
</style>
</head>
<body>
<header>
<h1>Locally scale-invariant convolution: the paper, reproduced</h1>
<p>Kanazawa, Sharma and Jacobs, <cite>Locally Scale-Invariant Convolutional Neural Networks</cite> (2014), beside what
scaleconv {__version__} measured. Everything on this page was computed from {count} records, one of each finished run.
Point at a mark, or tap it, to read its value.{small}</p>
<nav aria-label="Items">{"".join(f'<a href="#{place}">{text}</a>' for place, text in links)}</nav>
</header>
<main>
{_claims(recorded)}
{"".join(sections)}
<section id="made"><h2>How it was made</h2>
{_scrolling(provenance(recorded).html())}
{f'<p class="note">No records yet: {missing}.</p>' if missing else ""}
</section>
</main>
<div id="value" role="status" hidden></div>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _claims(recorded: Sequence[Recorded]) -> str:
    table = claims_table(recorded)
    counts = Counter(row[-1] for row in table.rows)
    summary = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    return f"""<section id="claims"><h2>Claims</h2>
<p>{len(table.rows)} claims of the paper, and of what was published later: {summary}. In brackets, the 95 % interval of
our mean over folds; where the paper has a deviation, too, that of the difference between the two means. A published
number is <em>same</em> if it lies in that interval, or 0 in that of the difference. A direction without a number is
<em>same</em> if the interval lies on the claim’s side of 0, else <em>worse</em>: not shown.</p>
<div class="prose">{_scrolling(_unbroken(table.html(classes={SAME, BETTER, WORSE})))}</div>
</section>"""


def _learned(each: Recorded, figures: Path) -> dict[Path, str]:
    """The pictures beside the records; of the paper's size those of the documents, where they are kept."""
    item, folder = each.item, each.folder or figures
    beside = pictures(item, folder, "filters") | pictures(item, folder, item.item)
    return beside or (pictures(item, figures, item.item) if folder.name == item.item else {})


def _section(each: Recorded, figures: Path) -> str:
    item, records = each.item, each.records
    charts = "".join(_figure(chart) for chart in make_charts(item, records))
    tables = [table.html() for table in make_tables(item, records)]
    is_table = isinstance(item, Experiment) and item.is_table
    if is_table:
        tables.append(cost_table(records).html())
    shown = _scrolling("\n".join(tables))
    learned = "".join(_picture(path, alt) for path, alt in _learned(each, figures).items())
    if not learned and draws_learned(item):
        learned = '<p class="note">Pictures of what was learned are drawn from weights, where these were trained.</p>'
    notes = "<br>\n".join(escape(note) for note in footnotes(item, records))
    return f"""<section id="{item.item}"><h2>{escape(item.title)}</h2>
<p>{escape(item.claim)}</p>
<pre><code>{escape(command(each))}</code></pre>
{shown if is_table else ""}
<div class="charts">{charts}</div>
{"" if is_table else f"<details><summary>The numbers</summary>{shown}</details>"}
<p class="note">{notes}</p>
<div class="charts">{learned}</div>
</section>
"""


def make_charts(item: Item, records: Sequence[Record]) -> list[Chart]:
    """The figure of an item: a chart for each panel; beside a single one, the change against its baseline."""
    if isinstance(item, Experiment) and item.is_table:
        return list(_method_charts(item, records))
    panels = make_panels(item, records)
    return [*map(_panel_chart, panels), *(map(_change_chart, panels) if shows_change(panels) else ())]


def _panel_chart(panel: Panel) -> Chart:
    curves = []
    for line in panel.lines:
        found = {x: summary for x in panel.xs if (summary := line.at(x))}
        marks = [_mark(_at(panel, line.title, x), x, summary) for x, summary in found.items()]
        marker = MARKERS.get(line.model, "o")
        curves.append(Curve(line.title, marks, line.model, marker, hollow=line.control))
    return Chart(panel.title, panel.x, panel.y, curves, panel.labels, panel.kind, panel.log_x, panel.log_y)


def _change_chart(panel: Panel) -> Chart:
    """Error against the baseline in percent: over all repeats, and the deviation between repeats."""
    curves = []
    for line in panel.compared:
        marks = []
        for x in panel.xs:
            if (change := panel.change(line, x)) is not None:
                spread = summarise([relative_change(a, b) for a, b in panel.pairs(line, x)]).std
                about = _at(panel, f"{line.title} vs {panel.baseline_title}", x)
                marks.append(Mark(x, change, spread or 0.0, f"{about}: {signed_percent(change)}"))
        curves.append(Curve(line.title, marks, line.model, MARKERS.get(line.model, "o")))
    y = f"{panel.y.partition(' (')[0]} vs {panel.baseline_title} (%)"
    return Chart(f"Change against {panel.baseline_title}", panel.x, y, curves, panel.labels, log_x=panel.log_x)


def _method_charts(item: Experiment, records: Sequence[Record]) -> Iterator[Chart]:
    """The errors of the methods beside the paper's, and those of networks against the epoch.

    The control on pixels is left out of the first, where its error would make the others small.
    """
    rows = [row for row in make_rows(records, item.paper, item.baseline) if row.model != "pixels"]
    labels = {float(place): row.title for place, row in enumerate(rows)}
    ours, theirs = [], []
    for place, row in enumerate(rows):
        ours.append(_mark(f"{row.title}, ours", place, row.ours))
        if row.paper:
            spread = row.paper[1] if len(row.paper) > 1 else 0.0
            theirs.append(Mark(place, row.paper[0], spread, f"{row.title}, paper: {as_stated(row.paper)}"))
    curves = [Curve("ours", ours, "si_convnet"), Curve("paper", theirs, "convnet", "s", hollow=True)]
    yield Chart("", "method", "test error (%), mean ± std", [each for each in curves if each.marks], labels, "bars")
    curves = []
    for model, tests in learning_curves(records).items():
        marks = [
            _mark(f"{TITLES[model]} at epoch {epoch}", epoch, summarise(errors)) for epoch, errors in tests.items()
        ]
        curves.append(Curve(TITLES[model], marks, model, MARKERS.get(model, "o")))
    if curves:
        yield Chart("During training", "epoch", "test error (%), mean ± std", curves, log_y=True)


def _at(panel: Panel, title: str, x: float) -> str:
    return f"{title}, {panel.labels[x]}" if panel.labels.get(x) else f"{title} at {x:g}"


def _mark(about: str, x: float, found: Summary) -> Mark:
    return Mark(x, found.mean, found.std or 0.0, f"{about}: {mean_and_std(found)}, n = {found.n}")


def cost_table(records: Sequence[Record]) -> Table:
    """Of each method, how much it learns and how long that takes."""
    rows = []
    for model in (name for name in TITLES if of_model(records, name)):
        runs = of_model(records, model)
        seconds = median(run.seconds / run.runs_together for run in runs)
        parameters = joined(f"{run.parameters:,}" for run in runs)
        rows.append((TITLES[model], parameters, f"{seconds:.3g}", f"{fmean(len(run.history) for run in runs):.0f}"))
    return Table("Cost of training", ("method", "parameters", "device seconds of a run", "epochs"), rows)


def provenance(recorded: Sequence[Recorded]) -> Table:
    """The records behind each item: how many, where, and with what they were made."""
    rows = []
    for each in recorded:
        made = [record.environment for record in each.records]
        versions = [joined(entry.get(name) or "–" for entry in made) for name in ("device", "torch", "numpy", "python")]
        commits = joined(str(entry.get("commit") or "–")[:10] for entry in made)
        folder = each.folder.name if each.folder else "–"
        rows.append((each.item.item, folder, str(len(each.records)), *versions, commits))
    return Table("", ("item", "folder", "records", "device", "PyTorch", "NumPy", "Python", "commit"), rows)


def command(each: Recorded) -> str:
    """The command that makes these records, from what they say: what differs from the item's file is an option.

    Settings that differ from point to point cannot be given on a command line, and are named in a comment.
    """
    item, records = each.item, each.records
    words = ["scaleconv", "reproduce", item.item, "--preset", str(getattr(item, "preset", "paper"))]
    comment = ""
    if isinstance(item, Experiment):
        models = [model for model in item.models if of_model(records, model)]
        folds = sorted({record.fold for record in records})
        words += [] if len(models) == len(item.models) else ["--models", ",".join(models)]
        words += [] if folds == sorted(item.folds) else ["--folds", ",".join(map(str, folds))]
        for key, values in sorted(_changed(item, records).items()):
            if len(values) == 1:
                words += ["--set", f"{key}={values[0]}"]
            else:
                comment += f"  # {key} by point: {', '.join(values)}"
    if each.folder and each.folder.name != item.item:
        words += ["--name", each.folder.name]
    return shlex.join(words) + comment


def _changed(item: Experiment, records: Sequence[Record]) -> dict[str, list[str]]:
    """The settings in which records differ from those of the item, and the values that they have there."""
    points = {point.name: point.settings for point in item.points}
    found: dict[str, dict[str, None]] = {}
    for record in records:
        if record.point in points:
            before = build(Settings, record.config, f"the settings of {record.name}").of_result(record.model)
            now = points[record.point].of_result(record.model)
            for section, values in before.items():
                for name, value in values.items():
                    if value != now[section][name]:
                        found.setdefault(f"{section}.{name}", {})[json.dumps(value)] = None
    return {key: list(values) for key, values in found.items()}


def _figure(chart: Chart) -> str:
    heading = f"<h3>{escape(chart.title)}</h3>" if chart.title else ""
    keys = [f"<span>{draw_key(curve)} {escape(curve.title)}</span>" for curve in chart.curves]
    legend = f"<figcaption>{''.join(keys)}</figcaption>" if len(keys) > 1 and chart.kind != "shares" else ""
    return f"<figure>{heading}{draw_chart(chart)}{legend}</figure>\n"


def _picture(path: Path, alt: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><h3>{escape(alt)}</h3><img alt="{escape(alt)}" src="data:image/png;base64,{data}"></figure>\n'


def _unbroken(text: str) -> str:
    """No line ends between a number and its sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%").replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _scrolling(content: str) -> str:
    """Content that may be wider than a phone; reached by the keyboard, to be scrolled with it."""
    return f'<div class="scroll" tabindex="0">{content}</div>'
