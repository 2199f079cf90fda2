"""Reports are made from records: notes, files beside the records, the documents, and the page for a browser."""

import base64
import json
import re
import shutil
from dataclasses import replace as replace_fields
from itertools import product
from xml.etree import ElementTree

import pytest
import torch
from msgspec.structs import replace

from helpers.command import refused, says_next
from helpers.records import CURVES, record, sweep, table_records
from scaleconv.experiments import ITEMS, load_experiment, load_item, read_records
from scaleconv.experiments.checkpoint import Checkpoint, write_checkpoint
from scaleconv.experiments.figures import draw_svg
from scaleconv.experiments.methods import config_of, settings_of
from scaleconv.experiments.records import write_record
from scaleconv.experiments.report import (
    Recorded,
    check_item,
    claims_table,
    command,
    commit_note,
    find_folder,
    footnotes,
    html_page,
    markdown,
    notes,
    print_json,
    print_tables,
    write_documents,
    write_report,
)
from scaleconv.experiments.settings import SETTLED_EPOCHS

TABLE1 = load_experiment("table1", "quick")
CHART = "data:image/svg+xml;base64,"
PAGE = "prose\n<!-- begin claims -->\nwhat stood there\n<!-- end claims -->\n" + "".join(
    f"## {item}\n<!-- begin {item} -->\n<!-- end {item} -->\nmore prose\n" for item in ITEMS
)


def changed(model="convnet", fold=0, data=None, training=None, network=None, **others):
    """A record of a curve with other settings."""
    made = replace(record(model, fold, 5.0, "p1", 1.0), **others)
    parts = {"data": data or {}, "training": training or {}, "network": network or {}}
    return replace(made, config={**made.config, **{key: {**made.config[key], **parts[key]} for key in parts}})


@pytest.mark.parametrize("item", CURVES)
def test_every_curve_has_tables_numbers_and_pictures_beside_its_records(item, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    loaded, records = load_item(item), CURVES[item]
    check_item(loaded, records)
    paths = write_report(loaded, records, tmp_path)
    assert [path.name for path in paths] == ["table.md", "table.csv", "figure.png", "figure.svg"]
    assert paths[0].read_text().startswith(f"# {loaded.title}\n\n")
    print_tables(loaded, records)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert " ".join(shown.split()).startswith(loaded.title)
    print_json(loaded, records)
    assert set(json.loads(capsys.readouterr().out)) == {record.model for record in records}


def test_table_1_has_its_notes_and_names_what_was_not_run(capsys):
    records = table_records({"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 4.5, 4.5]})
    assert "| SI-ConvNet | 3.13 ± 0.19 | 4.00 ± 0.87 | 3 | −20.0 % | 0.250 | 1 |\n\nTest error" in markdown(
        TABLE1, records
    )
    print_tables(TABLE1, records)
    table, notes = capsys.readouterr().out.split("\n\n")
    assert (table.count(TABLE1.title), "Hierarchical" in table) == (1, False)
    assert "60 embedded images for 3 epochs, on a device; 2 and 3 feature maps." in notes
    assert "Not run: RBM, Scale-invariant RBM, Hierarchical ConvNet." in notes


def test_rbms_are_compared_with_each_other_in_a_note():
    records = table_records({"convnet": [4.0, 4.0], "rbm": [8.0, 6.0], "si_rbm": [6.0, 5.5], "pixels": [20.0, 20.0]})
    notes = footnotes(load_experiment("table1"), records)
    assert "RBMs: 30 hidden units, 3 epochs without labels, then a softmax classifier." in notes
    assert "Scale-invariant RBM: error vs RBM −17.9 % (p = 0.500)." in notes
    assert any(note.startswith("Softmax on pixels: ") for note in notes)


SIZES = {100: 1, 20: 2, 3: 3}  # epochs, by the number of images
SECONDS = [(0, "28", 60.0), (1, "28", 20.0), (0, "56", 80.0)]
LONG_ENOUGH = changed().history * SETTLED_EPOCHS
SETTLED = replace(changed(training={"steps": 78, "settled": 5.0}), history=LONG_ENOUGH)
NOTES = [
    (
        "fig4b",
        [
            replace(changed(fold=n, data={"train": images}), history=changed().history * n)
            for images, n in SIZES.items()
        ],
        "Trained on 3 / 20 / 100 embedded images for 3 / 2 / 1 epochs, on a device; 2 and 3 feature maps.",
    ),
    (
        "fig4b",
        [SETTLED],
        "Trained on 60 embedded images for 10 – 10 epochs of 78 steps, until the training loss had settled, on a "
        "device; 2 and 3 feature maps.",
    ),
    (
        "fig4b",
        [SETTLED, changed(fold=1, training={"steps": 78, "settled": 5.0})],
        "Trained on 60 embedded images for 1 – 10 epochs of 78 steps, until the training loss had settled in 1 of 2 "
        "runs, on a device; 2 and 3 feature maps.",
    ),
    (
        "fig4b",
        [changed(network={"maps": []})],  # as many as the network has by itself
        "Trained on 60 embedded images for 1 epoch, on a device.",
    ),
    (
        "scales",
        [changed(data={"train": 1000, "held_out": 200})],
        "Trained on 800 embedded images for 1 epoch, on a device; 2 and 3 feature maps.",
    ),
    (
        "field",
        [
            changed("cnn", fold, point=point, seconds=seconds, runs_together=2, parameters=494_549)
            for fold, point, seconds in SECONDS
        ],
        "Fastest run at each point, on a device that may have done other work too: CNN 494,549 parameters, 10 to 40 s.",
    ),
    (
        "scenes",
        [changed("fcn", int(s), {"scene": 4, "size": 64}, {"batch": 20}, seconds_per_epoch=s) for s in (6.0, 3.0)],
        "Seconds of the device for a step of 20 scenes, in the fastest runs: FCN 1.",
    ),
]


@pytest.mark.parametrize(("item", "records", "note"), NOTES)
def test_notes_say_how_the_numbers_were_made(item, records, note):
    assert note in footnotes(load_item(item), records)
    assert footnotes(load_item("fig4b"), [changed()]) == [
        "Mean ± standard deviation over 1 fold.",
        "Trained on 60 embedded images for 1 epoch, on a device; 2 and 3 feature maps.",
    ]


@pytest.mark.parametrize(
    ("item", "records"),
    [("cost", "fig4a"), ("table1", "fig4a"), ("fig4a", "fig3"), ("fig3", "cost"), ("fig4a", ""), ("fig3", "winners")],
)
def test_records_of_another_item_are_refused_by_name(item, records):
    made = CURVES.get(records) or table_records({"convnet": [4.0]})
    with pytest.raises(ValueError, match=f"`item` must be the one .*, got '{item}' for {made[0].name}"):
        check_item(load_item(item), made)


def test_what_was_published_later_stands_under_the_table():
    made = table_records({"convnet": [4.0, 5.0], "si_convnet": [3.0, 4.0]})
    assert "SI-ConvNet, in the authors' later code: 2.93." in footnotes(load_item("table1"), made)
    assert [note for note in footnotes(load_item("background"), made) if "2.93" in note]


def test_the_commits_of_the_records_are_named_under_every_table():
    def made_at(*commits):
        made = zip(CURVES["cost"], commits, strict=False)
        return [replace(each, environment={**each.environment, "commit": commit}) for each, commit in made]

    assert commit_note(made_at("b" * 40)) == "commit bbbbbbb"
    mixed = made_at("b" * 40, "a" * 40 + "+", "b" * 40, None)
    assert commit_note(mixed) == "commits aaaaaaa+, bbbbbbb (+: with changes of its own), and 1 without one"
    assert commit_note(made_at(None)) == ""
    assert notes(load_item("cost"), mixed)[-1] == f"C{commit_note(mixed)[1:]}."
    assert markdown(load_item("cost"), made_at("b" * 40)).endswith("\nCommit bbbbbbb.\n")


@pytest.fixture
def tree(tmp_path):
    """Records of three items, and a page of the documents with the markers of all."""
    for folder, point in (
        *(("table1-100", ()), ("fig4a", ("maps36", 1.0, "36, 64"))),
        *(("fig4b-quick", ("train250", 250.0)), ("table1-100-short", ())),
    ):
        (tmp_path / "results" / folder).mkdir(parents=True)
        for fold in range(1 if folder.endswith("short") else 2):
            for model, error in (("convnet", 4.0), ("si_convnet", 3.0)):
                write_record(tmp_path / "results" / folder, record(model, fold, error, *point))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "reproduction.md").write_text(PAGE)
    return tmp_path


def test_the_page_is_filled_between_its_markers_and_twice_gives_the_same(tree, run):
    code, output, errors = run("report")
    assert (code, errors) == (0, "")
    says_next(output, "scaleconv report --html")
    page = (tree / "docs" / "reproduction.md").read_text()
    assert "| SI-ConvNet | 3.13 ± 0.19 | 3.00 ± 0.00 | 2 | −25.0 %" in page
    assert "\n\nRecords: `table1-100`.\n\n" in page
    assert "| 36, 64 | 4.00 | 3.00 | −25.0 % |" in page
    assert page.count("No records yet.") == len(ITEMS) - 2  # the small version of fig4b is none of the paper's size
    assert (page.count("more prose"), "what stood there" in page) == (len(ITEMS), False)
    stated, verdict = "error of SI-ConvNet vs ConvNet: −10.1 %", "< 0.001, primary | differs, lower"
    assert f"| table1 | {stated} | −25.0 % [−25.0, −25.0], n = 2 | {verdict} |" in page
    drawn = {path.name for path in (tree / "docs" / "figures").iterdir()}
    assert drawn == {"table1.svg", "fig4a.svg"}
    assert {path.name for path in (tree / "results" / "fig4a").glob("[ft]*")} == {"table.csv", "table.md"}
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    run("report")
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before
    write_documents(tree / "results", tree / "docs", "quick")
    assert "| 250 | 4.00 | 3.00 | −25.0 % |" in (tree / "docs" / "reproduction.md").read_text()


def test_a_page_lists_the_claims_of_pages_named_after_it_and_the_first_page_all_others(tree):
    docs, figure = tree / "docs", "<!-- begin fig4a.figure -->\n<!-- end fig4a.figure -->\n"
    claims, block = "<!-- begin claims -->\n<!-- end claims -->\n", "<!-- begin {0} -->\n<!-- end {0} -->\n"
    (docs / "reproduction.md").write_text(claims + figure)
    (docs / "numbers.md").write_text(block.format("fig4a"))
    (docs / "field.md").write_text(claims)
    (docs / "field-more.md").write_text(block.format("table1"))
    write_documents(tree / "results", docs)
    first, numbers, field = ((docs / f"{name}.md").read_text() for name in ("reproduction", "numbers", "field"))
    assert ("| fig4a | " in first, "| table1 | " in first, "| table1 | " in field) == (True, False, True)
    assert "](figures/fig4a.svg)\n\nRecords: `fig4a`, 4 runs.\n<!-- end fig4a.figure -->" in first
    assert ("| 36, 64 |" in first, "| 36, 64 |" in numbers, "| fig4a | " in field) == (False, True, False)


def test_what_a_page_does_not_mention_is_left_out_and_half_a_marker_is_one_line(tree, run):
    page = tree / "docs" / "reproduction.md"
    page.write_text(PAGE.replace("<!-- begin fig4a -->\n<!-- end fig4a -->\n", ""))
    write_documents(tree / "results", tree / "docs")
    assert ("36, 64" in page.read_text(), "| fig4a |" in page.read_text()) == (False, False)
    page.write_text(PAGE.replace("<!-- end fig5a -->", ""))
    refused(run("report"), "reproduction.md must have the markers", "<!-- begin fig5a -->")
    page.unlink()
    refused(run("report"), "`docs` must be a directory with reproduction.md, got docs")


def test_the_folder_with_the_most_records_is_found_by_its_beginning(tree):
    results = tree / "results"
    assert find_folder(results, "fig4a") == results / "fig4a"
    assert find_folder(results, "table1") == results / "table1-100"
    assert find_folder(results, "fig5a") is None
    assert find_folder(results, "fig4b") is None  # the quick version is none of the paper's size
    assert find_folder(results, "fig4b-quick") == results / "fig4b-quick"


def test_pictures_of_what_was_learned_are_drawn_and_stay_when_the_weights_are_gone(tree):
    results, docs = tree / "results", tree / "docs"
    folder, tensors = results / "table1-100", {"rbm.weight": torch.randn(4, 784), "samples": torch.rand(4, 784)}
    for model in ("rbm", "si_rbm"):
        weights = folder / "weights" / f"{model}-fold0-seed0.safetensors"
        write_checkpoint(weights, Checkpoint({"fold": 0, "config": {"data": {"size": 28}}}, [], tensors))
    assert {"table1-rbm.png", "table1-si_rbm.png"} <= {path.name for path in write_documents(results, docs)}
    page = (docs / "reproduction.md").read_text()
    assert "![Scale-invariant RBM: filters and samples](figures/table1-si_rbm.png)" in page
    beside = write_report(load_item("table1"), read_records(folder), folder)
    assert [path.name for path in beside[-2:]] == ["filters-rbm.png", "filters-si_rbm.png"]
    assert len(write_report(load_item("recipes"), CURVES["fig4a"], folder)) == 4
    shutil.rmtree(folder / "weights")
    assert "table1-rbm.png" not in {path.name for path in write_documents(results, docs)}
    assert (docs / "reproduction.md").read_text() == page


def taken_apart(text):
    """The sections of a page by their ids; every element is closed, or this is an error."""
    tree = ElementTree.fromstring(re.sub(r"<((?:meta|img|br)\b[^>]*)>", r"<\1/>", text))
    return tree, {section.get("id"): section for section in tree.iter("section")}


def words(section):
    return " ".join("".join(section.itertext()).split())


def rows(section):
    return [["".join(cell.itertext()) for cell in row] for row in section.iter("tr")]


def recorded(folder, item="table1", records=None, preset="paper"):
    return Recorded(load_item(item, preset), folder and folder / item, records or [record("rbm", 0, 6.0)])


@pytest.fixture(scope="module")
def page_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    made = table_records({"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 4.5, 4.5]})
    environment = {"device": "a device", "torch": "2.9", "numpy": None, "python": "3.11", "commit": "c" * 40}
    made = [replace(one, environment=environment, seconds=8.0, runs_together=2) for one in made]
    missing = [recorded(None, "lead"), recorded(None, "stir")]
    items = [recorded(folder, item, CURVES[item]) for item in CURVES]
    return html_page([recorded(folder, records=made), *items, *missing], folder, "paper")


def test_the_p_values_of_all_claims_but_the_primary_are_corrected_together(tmp_path):
    """Two folds with differences −1 and −3 have p = 1 − 2/π · atan 2 = 0.295; with −1 and −1.1, of t = 21, 0.030."""

    def at_one_point(*ours):
        return sweep([[10, 20]], [ours], (1.0,), ("",))

    table = recorded(tmp_path, records=table_records({"convnet": [10.0, 10.0], "si_convnet": [9.0, 7.0]}))
    found = [
        table,
        recorded(tmp_path, "fig4a", at_one_point(9, 17)),
        recorded(tmp_path, "fig5b", at_one_point(9, 18.9)),
    ]
    p = {(item, paper): p for item, paper, _, p, _ in claims_table(found).rows}
    below = "SI-ConvNet below ConvNet at every point"
    assert p["table1", "error of SI-ConvNet vs ConvNet: −10.1 %"] == "0.295, primary"
    assert (p["fig4a", below], p["fig5b", below]) == ("0.295", "0.061")  # the least twice, the other once
    assert p["table1", "ConvNet: 3.48 ± 0.23 %"] == "–"
    assert [row[3] for row in claims_table(found[2:]).rows] == ["0.030"]


def test_the_page_for_a_browser_has_claims_tables_figures_and_where_they_come_from(page_text):
    _, sections = taken_apart(page_text)
    claims = rows(sections["claims"])[1:]
    assert claims[0][:2] == ["table1", "ConvNet: 3.48 ± 0.23\u00a0%"]  # no line ends before the sign
    verdicts = [row[4] for row in claims]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in sorted(set(verdicts)))
    stated = f"{len(verdicts)} claims of the paper, and of what was published later: {counts}."
    assert stated in words(sections["claims"])
    assert {"same", "lower", "higher"} <= set(re.findall(r'<td class="(\w+)">', page_text))
    assert rows(sections["table1"]) == [
        ["method", "paper", "ours", "n", "error vs ConvNet", "p", "s / epoch"],
        ["ConvNet", "3.48 ± 0.23", "5.00 ± 1.00", "3", "–", "–", "0.5"],
        ["SI-ConvNet", "3.13 ± 0.19", "4.00 ± 0.87", "3", "−20.0\u00a0%", "0.250", "0.5"],
        ["method", "parameters", "device seconds of a run", "epochs"],
        *(["ConvNet", "10", "4", "3"], ["SI-ConvNet", "10", "4", "3"]),
    ]
    assert rows(sections["fig4a"])[1] == ["9, 16", "9.00 ± 1.41", "6.00", "−33.3\u00a0%"]
    charts = {name: section.find(".//img[@class='chart']") for name, section in sections.items()}
    assert charts["table1"].get("alt") == "test error (%) against method; during training: test error (%) against epoch"
    for item in CURVES:
        loaded = load_item(item)
        assert base64.b64decode(charts[item].get("src").removeprefix(CHART)).decode() == draw_svg(loaded, CURVES[item])
        assert words(sections[item]).startswith(f"{loaded.title} {loaded.claim} scaleconv reproduce {item}")
        assert words(sections[item]).endswith(footnotes(loaded, CURVES[item])[-1])
    assert rows(sections["made"])[1] == ["table1", "table1", "6", "a device", "2.9", "–", "3.11", "c" * 10]
    assert words(sections["made"]).endswith(" No records of this preset yet: lead, stir.")


def test_the_page_needs_no_other_file_and_no_network_and_is_for_phones_and_the_dark(page_text):
    tree, _ = taken_apart(page_text)
    ids = [each.get("id") for each in tree.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    links = {link for each in tree.iter() for name in ("src", "href") if (link := each.get(name))}
    assert {link for link in links if not link.startswith(("data:image/png;base64,", CHART))} <= {
        f"#{name}" for name in ids
    }
    assert not re.search(r"<script|@import|url\((?!#)", page_text)
    assert "prefers-color-scheme: dark" in page_text
    assert '<meta name="viewport" content="width=device-width' in page_text
    assert page_text.startswith("<!DOCTYPE html>")


def test_pictures_are_those_beside_the_records_or_of_the_papers_size(tmp_path):
    figures, small = tmp_path / "figures", tmp_path / "table1-quick"
    for folder, name in ((figures, "table1-rbm.png"), (small, "filters-rbm.png")):
        folder.mkdir()
        (folder / name).write_bytes(folder.name.encode())

    def page(each):
        text = html_page([each], figures, "quick" if each.folder == small else "paper")
        found = re.search(r'<img alt="RBM: filters and samples" src="data:image/png;base64,(.*?)"', text)
        return found and base64.b64decode(found[1]).decode(), "drawn from weights" in text, "small versions" in text

    assert page(recorded(tmp_path)) == ("figures", False, False)
    quick = replace_fields(recorded(tmp_path, preset="quick"), folder=small)
    assert page(quick) == ("table1-quick", False, True)
    (small / "filters-rbm.png").unlink()
    assert page(quick) == (None, True, True)
    assert page(recorded(tmp_path, "fig4a", CURVES["fig4a"])) == (None, False, False)


def test_the_page_of_small_runs_judges_directions_and_explains_no_other_verdict(tmp_path, page_text):
    made = table_records({"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 3.75, 4.5]})
    small = html_page([recorded(tmp_path, records=made, preset="quick")], tmp_path, "quick")
    _, sections = taken_apart(small)
    assert [row[4] for row in rows(sections["claims"])[1:]] == [*["not comparable"] * 3, "same direction"]
    assert '<td class="same">same direction</td>' in small
    assert "reproduced" not in small
    told = {verdict.text for verdict in sections["claims"].find("p").iter("em")}
    assert told == {"same direction", "not shown", "not comparable"}
    _, sections = taken_apart(page_text)
    told = {verdict.text for verdict in sections["claims"].find("p").iter("em")}
    assert told == {"reproduced", "differs", "lower", "higher", "not shown"}


def test_what_records_say_is_text_and_not_markup(tmp_path):
    text = html_page([recorded(tmp_path, "fig4a", [record("convnet", 0, 4.0, "a", 1.0, "<b>&")])], tmp_path, "paper")
    assert ("&lt;b&gt;&amp;" in text, "<b>" in text) == (True, False)


def test_the_command_of_an_item_has_what_differs_from_its_file(tmp_path):
    item = load_item("fig4a")
    first, second = item.points[:2]

    def configured(run, training=None):
        settings = {first.name: first, second.name: second}[run.point].settings
        config = config_of(run.model, settings_of(run.model, settings))
        return replace(run, config={**config, "training": {**config["training"], **(training or {})}})

    places = product(item.models, item.folds, (first, second))
    runs = [record(model, fold, 5.0, point.name, point.x) for model, fold, point in places]
    made = [configured(run) for run in runs]
    assert command(Recorded(item, tmp_path / "fig4a", made)) == "scaleconv reproduce fig4a --preset paper"
    some = [run for run in runs if run.model == "si_convnet" and run.fold in (0, 2)]
    told = "scaleconv reproduce fig4a --preset paper --models si_convnet --folds 0,2"
    ours = [configured(run, {"batch": 7}) for run in some]
    assert command(Recorded(item, tmp_path / "short", ours)) == f"{told} --set training.batch=7 --name short"
    ours = [configured(run, {"batch": {first.name: 7, second.name: 8}[run.point]}) for run in some]
    assert command(Recorded(item, tmp_path / "fig4a", ours)) == f"{told}  # training.batch by point: 7, 8"


def test_the_command_writes_the_page_where_it_is_told_and_twice_the_same(run, tmp_path):
    (tmp_path / "results" / "table1").mkdir(parents=True)
    for fold in (0, 1):
        write_record(tmp_path / "results" / "table1", record("convnet", fold, 4.0 + fold))
    assert run("report", "--html") == (0, "report.html\nNext: open report.html in a browser\n", "")
    assert run("report", "--html", "other.html")[1].startswith("other.html\n")
    assert (tmp_path / "other.html").read_bytes() == (tmp_path / "report.html").read_bytes()
    assert "4.50 ± 0.71" in (tmp_path / "other.html").read_text()
    refused(run("report", "page.html"), "`path` must be given with --html, got page.html")
    refused(run("report", "--html", "--preset", "quick"), "`results` must hold records of the preset quick")
    refused(run("report", "--html", "--results", "nowhere"), "`results` must be a directory", "got nowhere")
