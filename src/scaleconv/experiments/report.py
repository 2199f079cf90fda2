"""The outcome of an item, all from records: on the terminal, beside the records, in the documents and on one page.

The pages of `docs/` keep their prose: only the text between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced.
NAME is an item, for its tables and figure; `ITEM.figure`, for the figure alone; or `claims`, for the list of what the
paper says, and whether that is reproduced. The list on `field.md` has the items of `field.md` and of `field-*.md`, that
on the first page all others. The page for a browser is `templates/report.html`, one file that needs no other and no
network.
"""

import base64
import json
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path
from statistics import fmean, median
from typing import Any

from .. import __version__
from ..data.files import atomic_path, check_writable
from ..data.progress import watched
from ..metrics import holm
from ..models.networks import NETWORKS
from ..table import Table, terminal_width, wrapped
from .claims import HIGHER, LOWER, REPRODUCED, SAME_DIRECTION, check_claims
from .explanation import draw_predictions
from .figures import describe, draw, draw_learned_filters, draw_svg
from .items import ITEMS, Experiment, Item, folder_name, load_item
from .methods import METHODS, TITLES, config_of, of_result, settings_of
from .records import Record, read_records, records_file
from .settings import SceneData, has_settled
from .tables import (
    as_stated,
    csv_text,
    make_panels,
    make_rows,
    make_tables,
    models_of,
    of_model,
    signed_percent,
    stated_for,
    summaries,
)

PAGE = "reproduction.md"
OTHER_PAGES = ("numbers*.md", "readings*.md", "beyond*.md", "field*.md", "scenes.md")  # filled where they are there
UNDECIDED = "not yet"  # where no verdict can be given


def print_tables(item: Item, records: Sequence[Record]) -> None:
    """Print the tables and the notes under them, as wide as the terminal."""
    tables = make_tables(item, records)
    heading = "" if len(tables) == 1 and tables[0].title == item.title else item.title
    print(terminal_text(tables, notes(item, records), heading))


def terminal_text(tables: Sequence[Table], notes: Sequence[str], heading: str = "") -> str:
    """Tables and the notes under them, as wide as the terminal."""
    width = terminal_width()
    blocks = [wrapped(heading, width), *(table.text(width) for table in tables)]
    return "\n\n".join([*blocks[not heading :], "\n".join(wrapped(note, width) for note in notes)])


def print_items(results: Path) -> None:
    """Print a line for each item, and for other records that are there: name, title, and how many runs are kept."""
    titles = {item: load_item(item).title for item in ITEMS}
    for path in sorted(results.glob("*.jsonl")):
        item = path.stem.removesuffix("-quick")
        titles.setdefault(path.stem, titles.get(item, "Networks compared on a folder of images"))
    rows = [
        (name, textwrap.shorten(title, 56, placeholder=" …"), str(_count_records(results / name) or "–"))
        for name, title in titles.items()
    ]
    print(Table("", ("name", "title", "runs"), rows, labels=2).text(terminal_width()))


def print_json(item: Item, records: Sequence[Record]) -> None:
    """Print mean, std and n per model, and at each point of a curve, as JSON."""
    print(json.dumps(summaries(item, records), indent=1))


def markdown(item: Item, records: Sequence[Record]) -> str:
    """The tables of an item as Markdown, with the notes under them."""
    tables = "\n\n".join(markdown_blocks(make_tables(item, records), item.title))
    return "\n".join([tables, "", *notes(item, records), ""])


def markdown_blocks(tables: Sequence[Table], heading: str = "") -> list[str]:
    """Tables as Markdown, each under its title, unless that is the heading of them all."""
    titles = (f"**{table.title}**\n\n" if table.title != heading else "" for table in tables)
    return [title + table.markdown() for title, table in zip(titles, tables, strict=True)]


def notes(item: Item, records: Sequence[Record]) -> list[str]:
    """The lines under an item's tables: how its numbers were made, and at which commit."""
    commits = commit_note(records)
    return [*footnotes(item, records), *([f"{commits[0].upper()}{commits[1:]}."] if commits else [])]


def commit_note(records: Sequence[Record]) -> str:
    """Of which commits the records are; `+` stands for a tree that was changed. Empty if none is named."""
    named = [record.environment.get("commit") or "" for record in records]
    counts = Counter(commit[:7] + ("+" if commit.endswith("+") else "") for commit in named)
    unnamed = counts.pop("", 0)
    if not counts:
        return ""
    changed = " (+: with changes of its own)" if any(commit.endswith("+") for commit in counts) else ""
    more = f", and {unnamed} without one" if unnamed else ""
    return f"{'commit' if len(counts) == 1 else 'commits'} {', '.join(sorted(counts))}{changed}{more}"


@singledispatch
def footnotes(item: Any, records: Sequence[Record]) -> list[str]:
    """The lines under an item's table: how its numbers were made, from the records."""
    raise TypeError(f"`item` must be of a class with footnotes, got {type(item).__name__}")


@footnotes.register
def _footnotes(item: Experiment, records: Sequence[Record]) -> list[str]:
    if not records:
        return ["No records yet."]
    if not item.is_table:
        over = f"Mean ± standard deviation over {counted(repeats(records), 'fold')}."
        return [over, *_training_notes(records), *_scene_notes(records), *_run_notes(records)]
    baseline, ran = TITLES[item.baseline], {record.model for record in records}
    missing = ", ".join(title for model, title in TITLES.items() if model in item.paper and model not in ran)
    return [
        "Test error in percent, mean ± standard deviation over folds.",
        f"error vs {baseline}: relative change of the mean error; below 0 is better. "
        "p: exact paired sign-flip test of that difference.",
        *_training_notes(records),
        *_feature_notes(records),
        *([f"Not run: {missing}."] if missing else []),
        *_later_notes(item),
        "s / epoch: seconds of the device for one epoch of one run, without tests.",
    ]


def _later_notes(item: Experiment) -> list[str]:
    """What was published about a method elsewhere than in the table."""
    stated = {name: numbers for model in item.models for name, numbers in stated_for(model, item.paper).items()}
    return [f"{name}: {as_stated(numbers)}." for name, numbers in stated.items() if name not in TITLES.values()]


def _training_notes(records: Sequence[Record]) -> list[str]:
    """On what was trained, and how large the networks are."""
    networks = [record for record in records if "network" in record.config]
    images = (
        f"Trained on {numbers(_trained_on(record) for record in records)} "
        f"{joined(record.config['data']['dataset'] for record in records)} images"
    )
    devices = joined(record.environment["device"] for record in records)
    if not networks:
        return [f"{images}, on {devices}."]
    pairs = sorted({(_trained_on(record), len(record.history)) for record in networks})
    settling = [record for record in networks if record.config["training"].get("settled")]
    counts = [count for _, count in pairs]  # in the order of the numbers of images
    epochs = f"{min(counts)} – {max(counts)}" if settling else joined(counts)
    steps = numbers({record.config["training"].get("steps", 0) for record in networks} - {0})
    length = counted(epochs, "epoch") + (f" of {counted(steps, 'step')}" if steps else "")
    if settling:
        done = sum(has_settled(_losses(record), record.config["training"]["settled"]) for record in settling)
        length += ", until the training loss had settled"
        length += "" if done == len(networks) else f" in {done} of {len(networks)} runs"
    named = [maps for record in networks if (maps := record.config["network"]["maps"])]
    maps = f"; {joined(' and '.join(map(str, each)) for each in named)} feature maps" if named else ""
    return [f"{images} for {length}, on {devices}{maps}."]


def _losses(record: Record) -> list[float]:
    return [epoch.train_loss for epoch in record.history]


def _trained_on(record: Record) -> int:
    data = record.config["data"]
    return int(data["train"]) - int(data.get("held_out", 0))


def _scene_notes(records: Sequence[Record]) -> list[str]:
    """What a scene is, what is counted in one, and what a step of training costs."""
    scenes = [record for record in records if record.config["data"].get("scene")]
    if not scenes:
        return []
    times: dict[str, list[float]] = {}
    for record in scenes:
        steps = _trained_on(record) // record.config["training"]["batch"]
        times.setdefault(TITLES[record.model], []).append(record.seconds_per_epoch / record.runs_together / steps)
    size, most = (numbers(record.config["data"][name] for record in scenes) for name in ("size", "scene"))
    batch = numbers(record.config["training"]["batch"] for record in scenes)
    fastest = ", ".join(f"{title} {min(found):.2g}" for title, found in times.items())
    return [
        f"As many scenes as digits, {size}×{size} pixels with up to {most} of them; the background is not counted.",
        f"Seconds of the device for a step of {batch} scenes, in the fastest runs: {fastest}.",
    ]


def _run_notes(records: Sequence[Record]) -> list[str]:
    """Parameters of the networks of the later literature, and the seconds of a run at the fastest and slowest point."""
    times: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if METHODS[record.model].network and NETWORKS[METHODS[record.model].network].stages == 3:
            title = f"{TITLES[record.model]} {record.parameters:,} parameters"
            times.setdefault(title, {}).setdefault(record.point, []).append(record.seconds / record.runs_together)
    if not times:
        return []
    costs = []
    for title, points in times.items():
        fastest = [min(found) for found in points.values()]
        ends = dict.fromkeys(f"{seconds:.0f}" for seconds in (min(fastest), max(fastest)))  # equal ones once
        costs.append(f"{title}, {' to '.join(ends)} s")
    return [f"Fastest run at each point, on a device that may have done other work too: {'; '.join(costs)}."]


def _feature_notes(records: Sequence[Record]) -> list[str]:
    """How the RBMs were trained, how they compare with each other, and what the control is."""
    lines = []
    machines = [record for record in records if record.model in ("rbm", "si_rbm")]
    if machines:
        hidden = numbers(record.config[record.model]["hidden"] for record in machines)
        epochs = counted(numbers(len(record.history) for record in machines), "epoch")
        lines.append(f"RBMs: {hidden} hidden units, {epochs} without labels, then a softmax classifier.")
    for row in make_rows(machines, {}, "rbm"):
        if row.change is not None:
            p = "" if row.p is None else f" (p = {row.p:.3f})"
            lines.append(f"{row.title}: error vs RBM {signed_percent(row.change)}{p}.")
    if of_model(records, "pixels"):
        alone = "the same classifier without learned features; its one epoch is all its training."
        lines.append(f"Softmax on pixels: {alone}")
    return lines


def repeats(records: Sequence[Record]) -> str:
    """How many folds and seeds there are of each model at each point."""
    keys = {(record.model, record.point) for record in records}
    return numbers(len({(r.fold, r.seed) for r in records if (r.model, r.point) == key}) for key in keys)


def joined(values: Iterable[object]) -> str:
    """Different values in the order they come in."""
    return " / ".join(dict.fromkeys(map(str, values)))


def numbers(values: Iterable[int]) -> str:
    """Different numbers, the smallest first."""
    return " / ".join(map(str, sorted(set(values))))


def counted(number: object, noun: str) -> str:
    """A number with its noun: 1 epoch, 2 epochs."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def check_item(item: Item, records: Sequence[Record]) -> None:
    """Refuse records of another kind of item, whose numbers would mean something else.

    Raises:
        ValueError: names the first record that does not belong to the item.
    """
    for record in records:
        if isinstance(item, Experiment):
            measured = record.config.get("measure", {}).get("kind", "")
            fits = "data" in record.config and measured == item.settings.measure.kind
            fits = fits and (bool(measured) or (record.x is None) == item.is_table)
        else:
            fits = item.item in record.config
        if not fits:
            raise ValueError(f"`item` must be the one the records were made for, got {item.item!r} for {record.name}")


def write_tables(item: Item, records: Sequence[Record], folder: Path) -> list[Path]:
    """Write table.md and table.csv beside the records."""
    page = write_text(folder / "table.md", f"# {item.title}\n\n{markdown(item, records)}")
    return [page, write_text(folder / "table.csv", csv_text(item, records))]


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all, and return its path."""
    with atomic_path(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def write_report(item: Item, records: Sequence[Record], folder: Path, data_dir: Path | None = None) -> list[Path]:
    """Write tables, the figure and what the networks learned, if that can be drawn, beside the records."""
    written = [*write_tables(item, records, folder), *draw(item, records, folder, "figure")]
    return [*written, *_draw_learned(item, folder, folder, data_dir)]


def find_folder(results: Path, name: str) -> Path | None:
    """The folder of that name, or, if it has no records, the one with the most whose name begins with it.

    Never the quick version of an item in the place of the one of the paper's size.
    """
    similar = sorted(path.with_suffix("") for path in results.glob(f"{name}-*.jsonl"))
    similar = [path for path in similar if not path.name.endswith("-quick")]
    folders = [results / name, *sorted(similar, key=_count_records, reverse=True)]
    return next((folder for folder in folders if _count_records(folder)), None)


@dataclass(frozen=True)
class Recorded:
    """An item with the folder of its records; an item that has none yet is without a folder."""

    item: Item
    folder: Path | None
    records: list[Record]


def read_recorded(results: Path, preset: str) -> list[Recorded]:
    """All items under a preset, with their records.

    Raises:
        ValueError: there is no such directory, or it holds records of another kind of item.
    """
    if not results.is_dir():
        raise ValueError(f"`results` must be a directory with records, got {results}")
    found = []
    for name in watched(ITEMS, "reading records", len(ITEMS)):
        item, folder = load_item(name, preset), find_folder(results, folder_name(name, preset))
        records = read_records(folder) if folder else []
        check_item(item, records)
        found.append(Recorded(item, folder, records))
    return found


def claims_table(found: Sequence[Recorded]) -> Table:
    """What was published about each item, ours beside it, and the verdict.

    All claims that have a p-value, but the primary one, are corrected together.
    """
    claims = [
        (each.item.item, claim) for each in found if each.folder for claim in check_claims(each.item, each.records)
    ]
    others = [claim for _, claim in claims if claim.p is not None and not claim.primary]
    corrected = dict(zip(map(id, others), holm([claim.p for claim in others if claim.p is not None]), strict=True))
    rows = []
    for item, claim in claims:
        p = "–" if claim.p is None else p_text(claim.p if claim.primary else corrected[id(claim)])
        p += ", primary" if claim.primary else ""
        rows.append((item, claim.paper, claim.ours, p, claim.verdict or UNDECIDED))
    return Table("", ("item", "published", "ours", "p (Holm)", "verdict"), rows)


def p_text(p: float) -> str:
    """A p-value as text.

    Example:
        >>> p_text(0.0314), p_text(0.0002)
        ('0.031', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def pictures(item: Item, folder: Path, beginning: str) -> dict[Path, str]:
    """The pictures in a folder of what networks learned, and what each shows.

    Weights are not kept with the records: a picture that was drawn from some stays without them.
    """
    return {path: _alt(item.title, path.stem) for path in sorted(folder.glob(f"{beginning}-*.png"))}


def write_documents(results: Path, docs: Path, preset: str = "paper") -> list[Path]:
    """Write the tables beside the records, and the figures and the pages of the documents; return what was written.

    Figures go into the documents only, so that each is kept once. An item without markers is left out of a page.

    Raises:
        ValueError: the first page is missing, or a marker is not closed.
    """
    figures = docs / "figures"
    found = read_recorded(results, preset)
    if not (docs / PAGE).is_file():
        raise ValueError(f"`docs` must be a directory with {PAGE}, got {docs}")
    pages = [docs / PAGE, *(path for names in OTHER_PAGES for path in sorted(docs.glob(names)))]
    for path in (*pages, figures / "figure.svg"):
        check_writable(path)
    written: list[Path] = []
    contents: dict[str, str] = {}  # by item
    for each in watched(found, "writing tables and figures", len(found)):
        item, folder, records = each.item, each.folder, each.records
        if folder is None:
            contents[item.item] = contents[f"{item.item}.figure"] = "No records yet."
            continue
        written += [*write_tables(item, records, folder), *draw(item, records, figures, item.item, ["svg"])]
        written += _draw_learned(item, folder, figures)
        learned = [f"![{alt}](figures/{path.name})" for path, alt in pictures(item, figures, item.item).items()]
        drawn = f"![{item.title}](figures/{item.item}.svg)"
        blocks = [drawn, f"Records: `{folder.name}`.", markdown(item, records).strip(), *learned]
        contents[item.item] = "\n\n".join(blocks)
        made = ", ".join(
            filter(None, (f"Records: `{folder.name}`", counted(len(records), "run"), commit_note(records)))
        )
        contents[f"{item.item}.figure"] = f"{drawn}\n\n{made}."
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    claims = claims_table(found)
    items = [each.item.item for each in found]
    shown = {page: {item for item in items if f"<!-- begin {item} -->" in text} for page, text in texts.items()}
    for page in pages:
        listed = replace(claims, rows=[row for row in claims.rows if row[0] in _claimed(page, texts, shown)])
        for name, content in {**contents, "claims": listed.markdown()}.items():
            texts[page] = _replace(texts[page], name, content, page)
    return [*written, *(write_text(page, text) for page, text in texts.items())]


def _claimed(page: Path, texts: dict[Path, str], shown: dict[Path, set[str]]) -> set[str]:
    """The items whose claims a page lists: those of pages that are named after it, the first page all others."""
    lists = [each.stem for each, text in texts.items() if each.name != PAGE and "<!-- begin claims -->" in text]

    def listed_on(each: Path) -> str:
        return next((stem for stem in lists if each.stem == stem or each.stem.startswith(f"{stem}-")), Path(PAGE).stem)

    return set().union(*(items for each, items in shown.items() if listed_on(each) == page.stem))


def draws_learned(item: Item) -> bool:
    """Whether pictures that are drawn from weights belong to an item: what RBMs learned, or how scenes are labelled."""
    if not isinstance(item, Experiment):
        return False
    return isinstance(item.settings.data, SceneData) or (
        item.is_table and not {"rbm", "si_rbm"}.isdisjoint(item.models)
    )


def _draw_learned(item: Item, results: Path, folder: Path, data_dir: Path | None = None) -> list[Path]:
    """Draw what was learned, where weights are there."""
    if not isinstance(item, Experiment) or not draws_learned(item):
        return []
    beside = folder == results
    if isinstance(item.settings.data, SceneData):
        return draw_predictions(results, folder, "scenes" if beside else item.item, data_dir)
    return draw_learned_filters(results, folder, "filters" if beside else item.item)


def _alt(title: str, name: str) -> str:
    drawn = name.partition("-")[2]
    return f"{TITLES[drawn]}: filters and samples" if drawn in TITLES else f"{title}: {drawn}"


def _count_records(folder: Path) -> int:
    path = records_file(folder)
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def _replace(text: str, name: str, content: str, page: Path) -> str:
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if begin not in text and end not in text:
        return text
    pattern = re.compile(rf"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{page} must have the markers {begin} and {end}")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def write_html(results: Path, figures: Path, path: Path, preset: str = "paper") -> Path:
    """Write the page for a browser; `figures` has the pictures that `scaleconv report` has drawn from weights."""
    return write_text(path, html_page(read_recorded(results, preset), figures, preset))


def html_page(found: Sequence[Recorded], figures: Path, preset: str) -> str:
    """The page as text; the same records give the same page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    recorded = [each for each in found if each.folder]
    if not recorded:
        raise ValueError(f"`results` must hold records of the preset {preset}: run `scaleconv reproduce` first")
    claims = claims_table(recorded)
    environment = Environment(
        loader=PackageLoader("scaleconv.experiments"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html").render(
        version=__version__,
        preset=preset,
        count=sum(len(each.records) for each in recorded),
        claims=claims,
        verdicts={REPRODUCED: "same", SAME_DIRECTION: "same", LOWER: "lower", HIGHER: "higher"},
        counts=sorted(Counter(row[-1] for row in claims.rows).items()),
        sections=[_section(each, figures) for each in watched(recorded, "drawing figures", len(recorded))],
        provenance=provenance_table(recorded),
        missing=[each.item.item for each in found if not each.folder],
    )


def _section(each: Recorded, figures: Path) -> dict[str, Any]:
    """What the page says about an item."""
    item, records = each.item, each.records
    is_table = isinstance(item, Experiment) and item.is_table
    learned = _learned_pictures(each, figures)
    return {
        "item": item,
        "command": command(each),
        "is_table": is_table,
        "tables": [*make_tables(item, records), *([training_cost_table(records)] if is_table else [])],
        "about": describe(make_panels(item, records)),
        "figure": _base64(draw_svg(item, records).encode()),
        "notes": notes(item, records),
        "pictures": {alt: _base64(path.read_bytes()) for path, alt in learned.items()},
        "draws_learned": draws_learned(item),
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _learned_pictures(each: Recorded, figures: Path) -> dict[Path, str]:
    """The pictures beside the records; of the paper's size those of the documents, where they are kept."""
    item, folder = each.item, each.folder or figures
    beside = pictures(item, folder, "filters") | pictures(item, folder, item.item)
    return beside or (pictures(item, figures, item.item) if folder.name == item.item else {})


def training_cost_table(records: Sequence[Record]) -> Table:
    """Of each method, how much it learns and how long that takes."""
    rows = []
    for model in models_of(records):
        runs = of_model(records, model)
        seconds = median(run.seconds / run.runs_together for run in runs)
        parameters = joined(f"{run.parameters:,}" for run in runs)
        rows.append(
            (TITLES.get(model, model), parameters, f"{seconds:.3g}", f"{fmean(len(run.history) for run in runs):.0f}")
        )
    return Table("Cost of training", ("method", "parameters", "device seconds of a run", "epochs"), rows)


def provenance_table(recorded: Sequence[Recorded]) -> Table:
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
    words = ["scaleconv", "reproduce", item.item, "--preset", item.preset]
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
    """The settings in which records differ from those of the item, and the values that they have there, as JSON."""
    points = {point.name: point.settings for point in item.points}
    found: dict[str, dict[str, None]] = {}
    for record in records:
        now: dict[str, Any] = {}
        if record.point in points:
            settings = settings_of(record.model, points[record.point])
            now = of_result(record.model, config_of(record.model, settings))
        for section, values in record.config.items():
            for name, value in values.items():
                if name in now.get(section, {}) and value != now[section][name]:
                    found.setdefault(f"{section}.{name}", {})[json.dumps(value)] = None
    return {key: list(values) for key, values in found.items()}
