"""The page for a browser: it needs nothing else, and every number on it is recomputed here from the files."""

import base64
import json
import re
import shlex
import subprocess
import tomllib
from collections import Counter
from html.parser import HTMLParser
from itertools import product
from math import fsum
from pathlib import Path

import numpy as np
import pytest

from helpers.command import refused
from helpers.records import CURVES, record
from scaleconv import __version__
from scaleconv.experiments import load_item
from scaleconv.experiments.claims import check_claims
from scaleconv.experiments.config import TITLES, Settings
from scaleconv.experiments.cost import METHODS
from scaleconv.experiments.experiment import Experiment
from scaleconv.experiments.html_report import command, make_charts, make_page
from scaleconv.experiments.items import parse_override
from scaleconv.experiments.parsing import build
from scaleconv.experiments.records import Epoch, write_record
from scaleconv.experiments.report import Recorded, footnotes, read_recorded

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "src" / "scaleconv" / "configs"
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """The page taken apart: by section, the rows of its tables, the values of its marks, and its other text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.section, self.links = [], "", []
        self.rows, self.marks, self.prose = {}, {}, {}
        self.feed(text)
        assert self.open == []  # every element is closed

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.links += [values[name] for name in ("src", "href", "xlink:href") if name in values]
        if tag not in VOID:
            self.open.append((tag, values.get("class") or ""))
        if tag == "section":
            self.section = values["id"]
        if tag == "tr":
            self.rows.setdefault(self.section, []).append([])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tags = [tag for tag, _ in self.open]
        if not data.strip() or {"style", "script"} & set(tags):
            return
        if {"td", "th"} & set(tags):
            self.rows[self.section][-1].append(data.replace("\N{NO-BREAK SPACE}", " "))
        elif "title" in tags and "svg" in tags:
            self.marks.setdefault(self.section, []).append(data)
        elif "svg" not in tags:
            self.prose.setdefault(self.section, []).append(data)


@pytest.fixture(scope="module")
def found():
    return read_recorded(ROOT / "results", "paper")


@pytest.fixture(scope="module")
def text(found):
    return make_page(found, ROOT / "docs" / "figures", "paper")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


@pytest.fixture(scope="module")
def raw(found):
    """The records of each item as they lie in the files."""
    files = {each.item.item: sorted(each.folder.glob("*.json")) for each in found if each.folder}
    return {item: [json.loads(path.read_text()) for path in paths] for item, paths in files.items()}


def spread(values):
    """Mean ± deviation as the page writes it; a deviation of 0 is that of counted numbers."""
    return f"{fsum(values) / len(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(set(values)) > 1 else "")


def percent(ours, base):
    """The relative change between two sums."""
    number = f"{100 * (np.sum(ours) / np.sum(base) - 1):+.1f}"
    return f"{number.replace('-', '−') if float(number) else '0.0'} %"


def on_common_folds(ours, base):
    """Two lists of values of those folds that both have."""
    common = sorted(ours.keys() & base.keys())
    return [ours[fold] for fold in common], [base[fold] for fold in common]


def curves(records):
    """{(line, place, quantity): {fold: value}} of all that the records of a figure measured."""
    values = {}
    for one in records:
        measure = one["config"].get("measure", {})
        kind, title = measure.get("kind"), {**TITLES, **METHODS}[one["model"]]
        if not kind and one["model"] in TITLES:  # the error of each run is what the figure shows
            at = f", {one['label']}" if one["label"] else f" at {one['x']:g}"
            values.setdefault((title, at, ""), {})[one["fold"]] = one["test_error"]
            continue
        for name, series in one["series"].items():
            line = f"{title}, random weights" if name == "random" else title
            line = f"×{name.rpartition(' ')[2]}" if kind == "winners" else line
            for x, y in zip(series["x"], series["y"], strict=True):
                at = f", {measure['layers'][int(x) - 1].partition('.')[2]}" if kind == "invariance" else f" at {x:g}"
                values.setdefault((line, at, one["point"] + name), {})[one["fold"]] = y
    return values


def numbers(text):
    """Everything that looks like a number, without its sign."""
    return re.findall(r"\d+(?:[.,]\d+)*", text)


ITEMS = [
    *("fig3", "fig4a", "fig4b", "fig5a", "fig5b", "cost", "winners", "equivariance", "scales", "recipes"),
    *("unfamiliar", "neurons", "folds", "alignment", "scenes", "field", "tuned", "lead", "ideas"),
    *("consistency", "large", "stir", "fashion"),
]


def test_every_item_with_records_is_checked(raw):
    assert set(raw) == {*ITEMS, "table1", "background"}


@pytest.mark.parametrize("item", ITEMS)
def test_every_cell_of_a_table_is_a_value_of_the_files_or_follows_from_some(item, page, raw):
    values = curves(raw[item])
    lines = {}
    for (line, at, name), found in values.items():
        lines.setdefault((line, name), {})[at] = found
    allowed, means = {spread([found[fold] for fold in sorted(found)]) for found in values.values()}, []
    for (line, name), points in lines.items():
        means.append(np.mean([np.mean(list(found.values())) for found in points.values()]))
        for base in (base for (other, same), base in lines.items() if same == name and other != line):
            paired = [on_common_folds(points[at], base[at]) for at in points if sum(base.get(at, {}).values())]
            allowed |= {percent(*pair) for pair in paired}
            means += [np.mean([100 * (sum(ours) / sum(theirs) - 1) for ours, theirs in paired])] if paired else []
    heads = {at.removeprefix(", ").removeprefix(" at ") for _, at, _ in values}
    for head, *cells in page.rows[item]:
        if head == "mean":
            found = [float(cell.removesuffix(" %").replace("−", "-")) for cell in cells if cell != "–"]
            assert all(min(abs(mean - value) for mean in means) < 0.051 for value in found)
        elif head in heads:
            assert set(cells) - {"–"} <= allowed, head
        else:  # the names of the columns
            assert not re.search(r"(?<![×\d.])\d+\.\d\d", " ".join(cells)), head


@pytest.mark.parametrize("item", ITEMS)
def test_the_value_of_every_mark_is_that_of_the_files(item, page, raw):
    assert Counter(mark for mark in page.marks[item] if " vs " not in mark) == Counter(
        f"{line}{at}: {spread(list(values.values()))}, n = {len(values)}"
        for (line, at, _), values in curves(raw[item]).items()
    )


@pytest.mark.parametrize("item", ["fig4a", "fig4b", "fig5a", "fig5b"])
def test_changes_and_table_cells_are_those_of_the_files(item, page, raw):
    values = curves(raw[item])
    lines = [title for title in TITLES.values() if any(line == title for line, _, _ in values)]
    places = list(dict.fromkeys(at for _, at, _ in values))
    places.sort(key=lambda at: float(re.search(r"[\d.]+", at)[0]))
    assert len({name for _, _, name in values}) == 1
    measured = {(line, at): list(found.values()) for (line, at, _), found in values.items()}
    others = [line for line in lines if line != "ConvNet"]
    changes = {
        (line, at): percent(measured[line, at], measured["ConvNet", at])
        for line in others
        for at in places
        if (line, at) in measured
    }
    rows = [
        [
            re.sub("^, | at ", "", at),
            *(spread(measured[line, at]) if (line, at) in measured else "–" for line in lines),
            *(changes.get((line, at), "–") for line in others),
        ]
        for at in places
    ]
    every = {line: [measured[line, at] for at in places if (line, at) in measured] for line in lines}
    means = [np.mean(found) if len(found) == len(places) else "–" for found in every.values()]
    assert page.rows[item][1:-1] == rows
    title, *found = page.rows[item][-1][: len(lines) + 1]
    shown = [cell if cell == "–" else float(cell) for cell in found]
    assert (title, shown) == ("mean", [mean if mean == "–" else pytest.approx(mean, abs=0.005001) for mean in means])
    assert sorted(mark for mark in page.marks[item] if " vs " in mark) == sorted(
        f"{line} vs ConvNet{at}: {change}" for (line, at), change in changes.items()
    )


@pytest.mark.parametrize("item", ["table1", "background"])
def test_a_table_of_methods_is_that_of_the_files_beside_the_paper(item, page, raw):
    paper = tomllib.loads((CONFIGS / f"{item}.toml").read_text())["paper"]
    runs = {model: [one for one in raw[item] if one["model"] == model] for model in TITLES}
    runs = {model: sorted(made, key=lambda one: one["fold"]) for model, made in runs.items() if made}
    errors = {model: np.array([one["test_error"] for one in made]) for model, made in runs.items()}
    expected, costs, marks = [], [], []
    for model, made in runs.items():
        stated = " ± ".join(f"{value:.2f}" for value in paper[model]) if model in paper else "–"
        change = p = "–"
        if model not in ("convnet", "rbm", "si_rbm", "pixels"):
            change = percent(errors[model], errors["convnet"])
            gaps = errors[model] - errors["convnet"]
            flipped = [abs(np.dot(signs, gaps)) for signs in product((1, -1), repeat=len(gaps))]
            p = f"{np.mean([total >= abs(gaps.sum()) - 1e-9 for total in flipped]):.3f}"
        seconds = np.median([one["seconds_per_epoch"] / one["runs_together"] for one in made])
        whole = np.median([one["seconds"] / one["runs_together"] for one in made])
        ours = spread(errors[model])
        expected.append([TITLES[model], stated, ours, str(len(made)), change, p, f"{seconds:.2g}"])
        epochs = f"{np.mean([len(one['history']['epoch']) for one in made]):.0f}"
        costs.append([TITLES[model], f"{made[0]['parameters']:,}", f"{whole:.3g}", epochs])
        if model != "pixels":
            marks += [f"{TITLES[model]}, ours: {ours}, n = {len(made)}"]
            marks += [f"{TITLES[model]}, paper: {stated}"] if model in paper else []
        if model not in ("rbm", "si_rbm", "pixels"):
            tested = [dict(zip(one["history"]["tested"], one["history"]["test_error"], strict=True)) for one in made]
            shared = sorted(set.intersection(*map(set, tested)))
            for epoch in shared if len(shared) > 1 else []:
                found = spread([errors_of[epoch] for errors_of in tested])
                marks.append(f"{TITLES[model]} at epoch {epoch}: {found}, n = {len(made)}")
    rows = [row for row in page.rows[item] if row[0] != "method"]
    assert rows == [*expected, *costs]
    assert sorted(page.marks[item]) == sorted(marks)


def test_claims_are_those_of_the_checks_and_are_counted(page, found):
    expected = [
        [each.item.item, claim.paper, claim.ours, claim.verdict or "not yet"]
        for each in found
        if each.folder
        for claim in check_claims(each.item, each.records)
    ]
    assert page.rows["claims"][1:] == expected
    counts = Counter(verdict for *_, verdict in expected)
    stated, prose = (
        ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())),
        " ".join(page.prose["claims"]),
    )
    assert f"{len(expected)} claims of the paper, and of what was published later: {stated}." in prose


def test_the_records_behind_each_item_are_listed(page, raw, found):
    rows = {row[0]: row for row in page.rows["made"][1:]}
    folders = {each.item.item: each.folder.name for each in found if each.folder}
    assert set(rows) == set(raw)
    for item, files in raw.items():
        made = [one["environment"] for one in files]
        assert rows[item][1:3] == [folders[item], str(len(files))]
        assert set(rows[item][3].split(" / ")) == {entry["device"] for entry in made}
        assert set(rows[item][4].split(" / ")) == {entry["torch"] for entry in made}
        assert set(rows[item][7].split(" / ")) == {entry["commit"][:10] for entry in made}
    assert not any("No records yet" in line for line in page.prose["made"])


def test_items_without_records_are_named(found):
    gone = ("lead", "stir")
    left = [Recorded(each.item, None, []) if each.item.item in gone else each for each in found]
    page = Page(make_page(left, ROOT / "docs" / "figures", "paper"))
    assert "No records yet: lead, stir." in page.prose["made"]


def test_no_other_number_stands_on_the_page(page, found, raw):
    for each in found:
        if each.folder:
            item = each.item
            words = [item.title, item.claim, command(each), *footnotes(item, each.records)]
            allowed = {number for text in words for number in numbers(text)}
            allowed |= {
                number for chart in make_charts(item, each.records) for number in numbers(chart.title + chart.y)
            }
            prose = [re.sub(r", 16 of 32 points$", "", text) for text in page.prose[item.item]]  # of a long curve
            assert {number for text in prose for number in numbers(text)} <= allowed
    header = {"2014", __version__, str(sum(map(len, raw.values())))}
    assert {number for text in page.prose[""] for number in numbers(text)} <= header | set(numbers(" ".join(raw)))


def test_the_page_needs_no_other_file_and_no_network(text, page):
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert sum(link.startswith("data:") for link in page.links) == 3  # the filters of the two RBMs, and the scenes
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(re.findall(r'id="([\w-]+)"', text))
    assert not re.search(r"https?:|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert '<meta name="viewport" content="width=device-width' in text
    for column, name in ((2, "published"), (3, "ours")):  # of a claim, whose headings a phone does not show
        assert f'td:nth-child({column})::before {{ content: "{name}: "' in text


def test_the_command_of_an_item_gives_the_settings_of_its_records(found):
    for each in found:
        if not each.folder or not isinstance(each.item, Experiment):
            continue
        line, _, comment = command(each).partition("  # ")
        options = shlex.split(line)[3:]
        given = dict(zip(options[::2], options[1::2], strict=True))  # the last of --set; all of them are below
        settings = [value for name, value in zip(options[::2], options[1::2], strict=True) if name == "--set"]
        varied = re.findall(r"[\w.]+(?= by point)", comment)
        item = load_item(each.item.item, given["--preset"], dict(map(parse_override, settings)))
        assert sorted({one.fold for one in each.records}) == [
            int(fold) for fold in given.get("--folds", ",".join(map(str, item.folds))).split(",")
        ]
        assert given.get("--name", item.item) == each.folder.name
        points = {point.name: point.settings for point in item.points}
        for one in each.records:
            made = build(Settings, one.config, "the record").of_result(one.model)
            now = points[one.point].of_result(one.model)
            for key in varied:
                section, name = key.split(".")
                now[section][name] = made[section][name]
            assert made == now


def test_items_of_one_fold_or_one_method_have_a_page_too(tmp_path):
    recorded = [
        Recorded(load_item(item), tmp_path / item, [one for one in CURVES[item] if one.fold == 0]) for item in CURVES
    ]
    alone = [record("rbm", 0, 6.0)]
    page = Page(make_page([Recorded(load_item("table1"), tmp_path / "table1", alone), *recorded], tmp_path, "paper"))
    assert page.marks["table1"] == ["RBM, ours: 6.00, n = 1", "RBM, paper: 6.10"]
    assert "ConvNet at 1000: 8.00, n = 1" in page.marks["fig4b"]
    assert set(CURVES) < set(page.rows)


def test_errors_during_training_are_shown_at_epochs_that_all_runs_were_tested_at():
    runs = [
        record("convnet", fold, history=[Epoch(1, 2.0, 9.0, 1.0), Epoch(2, 1.0, tested, 1.0), Epoch(3, 0.5, 5.0, 1.0)])
        for fold, tested in ((0, 7.0), (1, None))
    ]
    _, training = make_charts(load_item("table1"), runs)
    assert [mark.x for mark in training.curves[0].marks] == [1, 3]


def test_the_papers_deviation_is_drawn_where_it_has_one():
    errors, *_ = make_charts(load_item("table1"), [record("rbm"), record("convnet")])
    (theirs,) = (curve for curve in errors.curves if curve.title == "paper")
    assert [(mark.y, mark.spread) for mark in theirs.marks] == [(6.1, 0.0), (3.48, 0.23)]


def test_the_page_is_valid(text, tmp_path):
    validator = ROOT / "build" / "node_modules" / ".bin" / "html-validate"
    if not validator.exists():
        pytest.skip("no html-validate: npm install --prefix build html-validate")
    (tmp_path / "page.html").write_text(text)
    found = subprocess.run([validator, tmp_path / "page.html"], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_no_line_of_a_claim_breaks_between_a_number_and_its_unit(text):
    claims = text.partition('<section id="claims">')[2].partition("</table>")[0].partition("<table")[2]
    assert len(re.findall(r"\d\N{NO-BREAK SPACE}%", claims)) > 10
    assert not re.findall(r"\d %|n = ", claims)


def test_pictures_of_filters_are_those_beside_the_records_or_of_the_papers_size(tmp_path):
    figures, small = tmp_path / "figures", tmp_path / "table1-quick"
    for folder in (figures, small):
        folder.mkdir()
    (figures / "table1-rbm.png").write_bytes(b"of the paper's size")
    runs, paper = [record("rbm", 0, 6.0)], base64.b64encode(b"of the paper's size").decode()
    assert paper in make_page([Recorded(load_item("table1"), tmp_path / "table1", runs)], figures, "paper")
    quick = [Recorded(load_item("table1", "quick"), small, runs)]
    without = make_page(quick, figures, "quick")
    assert "<img" not in without
    assert "are drawn from weights" in without
    (small / "filters-rbm.png").write_bytes(b"small")
    beside = make_page(quick, figures, "quick")
    assert base64.b64encode(b"small").decode() in beside
    assert "are drawn from weights" not in beside


def test_a_page_of_small_runs_says_so(tmp_path):
    runs = [record("convnet", 0, 6.0)]
    for preset, said in (("paper", False), ("quick", True)):
        text = make_page([Recorded(load_item("table1", preset), tmp_path / "table1", runs)], tmp_path, preset)
        assert ("small versions" in text) == said


def test_what_records_say_is_text_and_not_markup(tmp_path):
    bad = [record("convnet", 0, 4.0, "a", 1.0, "<script>&")]
    text = make_page([Recorded(load_item("fig4a"), tmp_path / "fig4a", bad)], tmp_path, "paper")
    assert "&lt;script&gt;&amp;" in text
    assert text.count("<script>") == 1


def test_the_command_writes_the_page_where_it_is_told_and_twice_the_same(run, tmp_path):
    folder = tmp_path / "results" / "table1"
    folder.mkdir(parents=True)
    for fold in (0, 1):
        write_record(folder, record("convnet", fold, 4.0 + fold))
    assert run("report", "--html") == (0, "report.html\nNext: open report.html in a browser\n", "")
    assert run("report", "--html", "other.html")[1].startswith("other.html\n")
    assert (tmp_path / "other.html").read_bytes() == (tmp_path / "report.html").read_bytes()
    assert "4.50 ± 0.71" in (tmp_path / "other.html").read_text()
    refused(run("report", "page.html"), "`path` must be given with --html, got page.html")
    refused(run("report", "--html", "--preset", "quick"), "`results` must hold records of the preset quick")
    refused(run("report", "--html", "--results", "nowhere"), "`results` must be a directory", "got nowhere")
