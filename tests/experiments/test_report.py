"""Reports are made from records: notes, files beside the records, and the documents, whose prose is left alone."""

import json
import re
import shutil
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch

from helpers.command import refused, says_next
from helpers.records import CURVES, record, table_records
from scaleconv.experiments import ITEMS, load_experiment, load_item, read_records, report
from scaleconv.experiments.checkpoint import Checkpoint, write_checkpoint
from scaleconv.experiments.claims import check_claims
from scaleconv.experiments.panels import make_panels
from scaleconv.experiments.records import write_record
from scaleconv.experiments.report import (
    check_item,
    find_folder,
    footnotes,
    markdown,
    print_json,
    print_tables,
    write_documents,
    write_report,
)
from scaleconv.metrics import interval, sign_flip_test, summarise

ROOT = Path(__file__).parents[2]


PAGE = "prose\n<!-- begin claims -->\nwhat stood there\n<!-- end claims -->\n" + "".join(
    f"## {item}\n<!-- begin {item} -->\n<!-- end {item} -->\nmore prose\n" for item in ITEMS
)


@pytest.mark.parametrize("item", CURVES)
def test_every_curve_has_a_table_a_file_of_numbers_json_and_two_pictures(item, tmp_path, capsys):
    loaded, records = load_item(item), CURVES[item]
    paths = write_report(loaded, records, tmp_path)
    assert [path.name for path in paths] == ["table.md", "table.csv", "figure.png", "figure.svg"]
    assert paths[0].read_text().startswith(f"# {loaded.title}\n")
    assert "a device" in paths[0].read_text()
    assert loaded.claim.split(":")[0].split(".")[0] in paths[3].read_text()
    print_tables(loaded, records)
    assert loaded.title in " ".join(capsys.readouterr().out.split())
    print_json(loaded, records)
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {record.model for record in records}
    for summary in found.values():
        assert {"mean", "std", "n", "points"} == set(summary)
        assert all({"x", "label", "mean", "std", "n"} <= set(point) for point in summary["points"])


def test_the_report_of_table_1_is_a_table_twice_and_a_picture_twice(tmp_path):
    errors = {"convnet": [4.0, 5.0, 6.0], "si_convnet": [3.0, 4.5, 4.5]}
    paths = write_report(load_experiment("table1", "quick"), table_records(errors), tmp_path)
    assert [path.name for path in paths] == ["table.md", "table.csv", "figure.png", "figure.svg"]
    assert "| SI-ConvNet | 3.13 ± 0.19 | 4.00 ± 0.87 | 3 | −20.0 % | 0.250 | 1 |" in paths[0].read_text()
    assert "60 embedded images for 3 epochs, on a device; 2 and 3 feature maps." in paths[0].read_text()
    assert paths[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("columns", ["80", "200"])
def test_tables_are_as_wide_as_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    print_tables(load_item("fig4b"), CURVES["fig4b"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert any("10.00" in line or "9.00 ± 1.41" in line for line in lines)


def test_rbms_are_compared_with_each_other_in_a_note():
    records = table_records({"convnet": [4.0, 4.0], "rbm": [8.0, 6.0], "si_rbm": [6.0, 5.5], "pixels": [20.0, 20.0]})
    notes = footnotes(load_experiment("table1"), records)
    assert "RBMs: 30 hidden units, 3 epochs without labels, then a softmax classifier." in notes
    assert "Scale-invariant RBM: error vs RBM −17.9 % (p = 0.500)." in notes


def test_the_note_names_the_epochs_in_the_order_of_the_digits():
    made = [record("convnet", 0, 5.0, f"p{n}", float(n)) for n in (100, 20, 3)]
    made = [
        replace(
            one, config={**one.config, "data": {"train": int(one.x), "dataset": "embedded"}}, history=one.history * n
        )
        for one, n in zip(made, (1, 2, 3), strict=True)
    ]
    assert any(
        note.startswith("Trained on 3 / 20 / 100 embedded images for 3 / 2 / 1 epochs")
        for note in footnotes(load_item("fig4b"), made)
    )


def test_the_note_says_how_long_an_epoch_is_where_it_is_no_pass_over_the_digits():
    made = record("convnet", 0, 5.0, "p1", 1.0)
    made = replace(made, config={**made.config, "training": {"epochs": 1, "steps": 78}})
    assert any("images for 1 epoch of 78 steps, on a device" in note for note in footnotes(load_item("fig4b"), [made]))


def test_the_note_names_the_commits_where_records_are_of_more_than_one():
    made = [record("convnet", fold, 5.0, "p1", 1.0) for fold in range(3)]
    made = [
        replace(one, environment={"device": "a device", "commit": commit})
        for one, commit in zip(made, ("b" * 40, "a" * 40 + "+", None), strict=True)
    ]
    named = "Trained at 2 commits: aaaaaaa+, bbbbbbb."
    assert named in footnotes(load_item("fig4b"), made)
    assert not any("commit" in note for note in footnotes(load_item("fig4b"), made[:1]))


def test_the_note_says_what_a_run_of_the_later_literature_costs():
    made = [
        replace(record("cnn", fold, 5.0, point, 1.0), seconds=seconds, runs_together=2, parameters=494_549)
        for fold, point, seconds in [(0, "28", 60.0), (1, "28", 20.0), (0, "56", 80.0)]
    ]
    (note,) = (note for note in footnotes(load_item("field"), made) if "Fastest" in note)
    assert note.endswith(": CNN 494,549 parameters, 10 to 40 s.")
    assert not any("Fastest" in note for note in footnotes(load_item("fig4b"), [record("convnet", 0, 5.0, "p1", 1.0)]))


def test_sets_of_scales_are_bars_with_a_note_of_the_digits_left_to_train_on(tmp_path):
    made = [record("si_convnet", fold, 4 + fold, point="wide", x=3.0, label="0.52 – 2.7 (6)") for fold in range(2)]
    config = {**made[0].config, "data": {**made[0].config["data"], "train": 1000, "held_out": 200}}
    made = [replace(one, config=config) for one in made]
    item = load_item("scales")
    (panel,) = make_panels(item, made)
    assert (panel.kind, panel.label(3.0)) == ("bars", "0.52 – 2.7 (6)")
    assert any(note.startswith("Trained on 800 ") for note in footnotes(item, made))
    assert [path.name for path in write_report(item, made, tmp_path)][-2:] == ["figure.png", "figure.svg"]


def test_what_rbms_learned_is_drawn_beside_a_table_only(tmp_path, monkeypatch):
    monkeypatch.setattr("scaleconv.experiments.report.draw_learned_filters", lambda *_: [tmp_path / "drawn"])
    made = [record("si_convnet", 0, 4.0, x=1.0)]
    beside = {item: write_report(load_item(item), made, tmp_path) for item in ("table1", "recipes")}
    assert {item: tmp_path / "drawn" in paths for item, paths in beside.items()} == {"table1": True, "recipes": False}


WRONG_ITEMS = [
    ("cost", "fig4a"),
    ("table1", "fig4a"),
    ("fig4a", "fig3"),
    ("fig3", "cost"),
    ("fig4a", "table1"),
    ("fig3", "winners"),
]


@pytest.mark.parametrize(("item", "records"), WRONG_ITEMS)
def test_records_of_another_item_are_refused_by_name(item, records):
    made = CURVES.get(records) or table_records({"convnet": [4.0]})
    with pytest.raises(ValueError, match=f"`item` must be the one .*, got '{item}' for {made[0].name}"):
        check_item(load_item(item), made)


@pytest.mark.parametrize("item", CURVES)
def test_records_of_an_item_belong_to_it(item):
    check_item(load_item(item), CURVES[item])


@pytest.fixture
def tree(tmp_path):
    for fold in (0, 1):
        for model, error in (("convnet", 4.0), ("si_convnet", 3.0)):
            write_record(_made(tmp_path / "results" / "table1-100"), record(model, fold, error))
            write_record(_made(tmp_path / "results" / "fig4a"), record(model, fold, error, "maps36", 1.0, "36, 64"))
            write_record(_made(tmp_path / "results" / "fig4b-quick"), record(model, fold, error, "train250", 250.0))
    (_made(tmp_path / "docs") / "reproduction.md").write_text(PAGE)
    return tmp_path


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_the_page_is_filled_between_its_markers_and_twice_gives_the_same(tree, run):
    code, output, errors = run("report")
    assert (code, errors) == (0, "")
    page = (tree / "docs" / "reproduction.md").read_text()
    assert "| SI-ConvNet | 3.13 ± 0.19 | 3.00 ± 0.00 | 2 | −25.0 %" in page
    assert "| 36, 64 | 4.00 | 3.00 | −25.0 % |" in page
    assert "Records: `table1-100`." in page
    assert page.count("No records yet.") == len(ITEMS) - 2  # the small version of fig4b is none of the paper's size
    assert page.count("more prose") == len(ITEMS)
    assert "what stood there" not in page
    assert "| table1 | error of SI-ConvNet vs ConvNet: −10.1 % | −25.0 % [−25.0, −25.0], n = 2 | better |" in page
    assert "| fig4a | SI-ConvNet below ConvNet at every point | below at 1 of 1" in page
    figures = {path.name for path in (tree / "docs" / "figures").iterdir()}
    assert figures == {"table1.png", "table1.svg", "fig4a.png", "fig4a.svg"}
    assert "docs/figures/fig4a.svg" in output.splitlines()
    says_next(output, "scaleconv report --html")
    assert {path.name for path in (tree / "results" / "fig4a").glob("[ft]*")} == {"table.csv", "table.md"}
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    run("report")
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_small_versions_are_shown_when_asked_for(tree):
    write_documents(tree / "results", tree / "docs", "quick")
    assert "| 250 | 4.00 | 3.00 | −25.0 % |" in (tree / "docs" / "reproduction.md").read_text()


def test_a_page_that_is_missing_or_has_half_a_marker_is_one_line(tree, run):
    page = tree / "docs" / "reproduction.md"
    page.write_text(PAGE.replace("<!-- end fig5a -->", ""))
    refused(run("report"), "reproduction.md must have the markers", "<!-- begin fig5a -->")
    page.unlink()
    refused(run("report"), "`docs` must be a directory with reproduction.md, got docs")
    refused(run("report", "--docs", "/nonexistent"), "`docs` must be", "got /nonexistent")


def test_an_item_that_the_page_does_not_mention_is_left_out_of_it(tree):
    page = tree / "docs" / "reproduction.md"
    page.write_text(page.read_text().replace("<!-- begin fig4a -->\n<!-- end fig4a -->\n", ""))
    write_documents(tree / "results", tree / "docs")
    assert "36, 64" not in page.read_text()
    assert "3.13 ± 0.19" in page.read_text()


def test_the_folder_with_records_is_found_by_its_beginning(tree):
    results = tree / "results"
    assert find_folder(results, "fig4a") == results / "fig4a"
    assert find_folder(results, "table1") == results / "table1-100"
    assert find_folder(results, "fig5a") is None
    assert find_folder(results, "fig4b") == results / "fig4b-quick"
    assert find_folder(results, "fig4b", small=False) is None


FIELD = {"field", "tuned", "lead", "ideas", "consistency", "large", "stir", "fashion"}


@pytest.mark.parametrize(("name", "items"), [("reproduction", set(ITEMS) - FIELD), ("field", FIELD)])
def test_the_pages_of_this_repository_say_what_its_records_say(name, items):
    """Made by `scaleconv report`; whoever adds records runs it again."""
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert {item for item in ITEMS if f"<!-- begin {item} -->" in page} == items
    checked = 0
    for item in items:
        loaded, folder = load_item(item), find_folder(ROOT / "results", item, small=False)
        if folder is None:
            assert f"<!-- begin {item} -->\nNo records yet.\n<!-- end {item} -->" in page
            assert item in FIELD or not loaded.checks, f"{item} is of the paper, and has no records"
            continue
        records = read_records(folder)
        assert markdown(loaded, records).strip() in page
        assert (ROOT / "docs" / "figures" / f"{item}.svg").is_file()
        for claim in check_claims(loaded, records):
            assert f"| {item} | {claim.paper} | {claim.ours} | {claim.verdict or report.UNDECIDED} |" in page
            checked += 1
    assert checked == re.search(r"<!-- begin claims -->(.*?)<!-- end", page, re.DOTALL).group(1).count("\n|") - 2
    assert checked >= 20 or name == "field"


def test_every_figure_is_kept_once():
    kept = [path for path in (ROOT / "results").glob("*/*") if not path.parent.name.endswith("-quick")]
    figures = [path for path in kept if path.suffix in (".png", ".svg")]
    ignored = (ROOT / ".gitignore").read_text().split()
    pages = {page.parent for page in (ROOT / "results").glob("*/page.md")} | {ROOT / "results" / "bench"}
    figures = [path for path in figures if path.parent not in pages]
    assert [path for path in figures if not any(fnmatch(str(path.relative_to(ROOT)), line) for line in ignored)] == []


def test_the_page_keeps_the_pictures_of_what_was_learned_when_the_weights_are_gone(tree):
    results, docs = tree / "results", tree / "docs"
    tensors = {"rbm.weight": torch.randn(4, 784), "samples": torch.rand(4, 784)}
    for model in ("rbm", "si_rbm"):
        weights = results / "table1-100" / "weights" / f"{model}-fold0-seed0.safetensors"
        write_checkpoint(weights, Checkpoint({"fold": 0, "config": {"data": {"size": 28}}}, [], tensors))
    written = {path.name for path in write_documents(results, docs)}
    assert {"table1-rbm.png", "table1-si_rbm.png"} <= written
    page = (docs / "reproduction.md").read_text()
    assert "![Scale-invariant RBM: filters and samples](figures/table1-si_rbm.png)" in page
    beside = write_report(load_item("table1"), read_records(results / "table1-100"), results / "table1-100")
    assert [path.name for path in beside[-2:]] == ["filters-rbm.png", "filters-si_rbm.png"]
    shutil.rmtree(results / "table1-100" / "weights")
    assert "table1-rbm.png" not in {path.name for path in write_documents(results, docs)}
    assert (docs / "reproduction.md").read_text() == page


def test_methods_that_were_not_run_are_named_under_the_table_and_not_in_it(capsys):
    print_tables(load_experiment("table1"), table_records({"convnet": [4.0], "si_convnet": [3.0]}))
    table, notes = capsys.readouterr().out.split("Test error in percent, mean")
    assert "Hierarchical" not in table
    assert "Not run: RBM, Scale-invariant RBM, Hierarchical ConvNet." in notes


def test_what_is_said_about_the_lead_is_recorded():
    errors = {}
    for found in read_records(ROOT / "results" / "lead"):
        errors.setdefault((found.model, found.point), []).append(found.test_error)
    alone, augmented = (summarise(errors["pyramid_deep_cnn", point]) for point in ("28", "28p"))
    readme, page = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/field.md"))
    assert f"has {alone.mean:.2f} ± {alone.std:.2f} % on MNIST-Scale" in readme
    assert f"and {augmented.mean:.2f} ± {augmented.std:.2f} % with scale augmentation" in readme
    assert f"has {alone.mean:.2f} % error at 28 (1.70), and {augmented.mean:.2f} % with scale augmentation" in page
    plain = [summarise(errors["deep_cnn", point]).mean for point in ("28", "28p")]
    assert f"The network without the pyramid has {listed(plain, 2)} %:" in page
    assert f"the network alone has {listed(plain, 2)}." in readme
    assert f"with the same errors: {alone.mean:.2f} and {augmented.mean:.2f}, where" in page


def listed(numbers, digits):
    *most, last = (f"{number:.{digits}f}" for number in numbers)
    return f"{', '.join(most)} and {last}"


def test_what_is_said_about_the_field_is_recorded():
    errors = {}
    for found in read_records(ROOT / "results" / "field"):
        errors.setdefault((found.model, found.point), {})[found.fold] = found.test_error
    points = ("28", "28p", "56", "56p")
    means = {key: summarise(list(folds.values())).mean for key, folds in errors.items()}
    ours, plain = ([means[model, point] for point in points] for model in ("si_cnn", "cnn"))
    readme, page = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/field.md"))
    assert f"has {listed(ours, 2)} % where the CNN has {listed(plain, 2)}." in page
    cropped = [means["cropped_cnn", point] for point in points]
    words = f"The cropped layer has {listed(cropped, 2)} %. The faithful one is below it in every draw at 28 and 28+"
    assert words in page
    for point in ("28", "28p"):
        assert all(errors["si_cnn", point][fold] < error for fold, error in errors["cropped_cnn", point].items())
    for baseline, title in (("cnn", "CNN"), ("cropped_cnn", "CNN, cropped layers")):
        row = [f"| {title} |"]
        for point, label in zip(points, ("28", "28+", "56", "56+"), strict=True):
            differences = [errors["si_cnn", point][fold] - errors[baseline, point][fold] for fold in range(6)]
            gap = interval(differences)
            said = f"{gap.mean:.2f} {between(gap)}".replace("-", "−")
            row.append(f"{said}, p = {sign_flip_test(differences):.3f} |")
            assert gap.high < 0 or f"{said} at {label}" in page
        assert " ".join(row) in page
    assert f"{means['cnn', '28p'] - means['si_cnn', '28p']:.2f} points, cannot be told from none" in readme
    seven = {found.fold: found.test_error for found in read_records(ROOT / "results" / "field-seven-scales")}
    gap = interval([seven[fold] - errors["cropped_cnn", "28p"][fold] for fold in range(6)])
    has = summarise(list(seven.values()))
    assert f"`SIConv2d` has {has.mean:.2f} ± {has.std:.2f} % at 28+" in page
    assert f"{gap.mean:+.2f} {between(gap)} against the cropped layer" in page
    gap = interval([seven[fold] - errors["si_cnn", "28p"][fold] for fold in range(6)])
    assert f"{gap.mean:+.2f} {between(gap)} against its own six" in page
    again = {}
    for found in read_records(ROOT / "results" / "consistency"):
        again.setdefault(found.model, {})[found.fold] = found.test_error
    three = ("cnn", "cropped_cnn", "si_cnn")
    cnn, cropped, ours = second = [summarise(list(again[model].values())).mean for model in three]
    first = [summarise([errors[model, "28"][fold] for fold in again[model]]).mean for model in three]
    assert f"they have {listed(second, 2)} %, against {listed(first, 2)} above (CNN, cropped, faithful)" in page
    gaps = cropped - ours, means["cropped_cnn", "28"] - means["si_cnn", "28"]
    assert "has a gap of {:.2f} instead of {:.2f}".format(*gaps) in page
    assert sum(again["si_cnn"][fold] > error - 0.01 for fold, error in again["cropped_cnn"].items()) == 1
    assert (
        f"three draws: {summarise(list(again['pyramid_cnn'].values())).mean:.2f} %, where the CNN has {cnn:.2f}."
        in page
    )


def between(gap):
    """The interval as it is printed, with the sign of minus."""
    return f"[{gap.low:+.2f}, {gap.high:+.2f}]".replace("-", "−").replace("+0.00", "0.00")


def test_what_is_said_about_pyramids_and_consistency_is_recorded():
    readme, page = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/field.md"))
    errors, kept = {}, {}
    for item in ("tuned", "fashion"):
        for found in read_records(ROOT / "results" / item):
            errors.setdefault((item, found.model, found.point), []).append(found.test_error)
    mean = {key: summarise(found).mean for key, found in errors.items()}
    pyramid, cnn = mean["tuned", "pyramid_cnn", "28"], mean["tuned", "cnn", "28"]
    assert f"six draws: {pyramid:.2f} % at 28 (1.70), where the CNN by that recipe has {cnn:.2f}." in page
    clothes, plain = mean["fashion", "pyramid_deep_cnn", "28"], mean["fashion", "deep_cnn", "28"]
    assert (
        f"six draws: {100 - clothes:.1f} % accuracy (89.62). A pyramid takes {plain - clothes:.1f} points off" in page
    )
    assert (
        f"on Fashion-MNIST a pyramid does not reach the best published ({100 - clothes:.1f} % accuracy, 89.6)" in readme
    )
    clothes = [found for found in read_records(ROOT / "results" / "fashion") if found.model == "pyramid_deep_cnn"]
    early, late = (summarise([found.history[epoch].val_error for found in clothes]).mean for epoch in (29, 59))
    assert f"stays where it is: {early:.1f} % after 30 epochs, {late:.1f} at the end" in page
    assert f"The loss ends at {summarise([found.history[59].train_loss for found in clothes]).mean:.2f}" in page
    for found in read_records(ROOT / "results" / "consistency"):
        series = found.series["same class at all scales so far"]
        kept.setdefault(found.model, []).append(dict(zip(series.x, series.y, strict=True))[0.3])
    share = {model: f"{summarise(found).mean:.1f} %" for model, found in kept.items()}
    words = (
        "{} keep their class at all scales from 0.3 to 1 with a pyramid around the CNN, {} with the faithful layer, "
    )
    words += "{} with the cropped one, {} with the CNN."
    assert words.format(*(share[model] for model in ("pyramid_cnn", "si_cnn", "cropped_cnn", "cnn"))) in page
    gaps = [
        interval([ours - plain for ours, plain in zip(kept[model], kept["cnn"], strict=True)])
        for model in ("cropped_cnn", "si_cnn", "pyramid_cnn")
    ]
    words = "cropped layers keep {} points more digits than the CNN, faithful ones {}, a pyramid {}."
    assert words.format(*(f"{gap.mean:.1f} [{gap.low:.1f}, {gap.high:.1f}]" for gap in gaps)) in page
    tried = {}
    for found in read_records(ROOT / "results" / "ideas"):
        tried.setdefault(found.point, {})[found.fold] = found.test_error
    gap = interval([tried["octaves"][fold] - error for fold, error in tried["lead"].items()])
    assert f"two levels instead of six, {gap.mean:+.2f} {between(gap)}, in" in page


def test_what_is_said_about_sizes_that_were_not_trained_on_is_recorded():
    large, stir = {"whole": {}, "cut": {}}, {}
    for found in read_records(ROOT / "results" / "large"):
        for scale, error in zip(found.series["test_error"].x, found.series["test_error"].y, strict=True):
            large[found.point].setdefault(scale, []).append(100 - error)
    for found in read_records(ROOT / "results" / "stir"):
        stir.setdefault((found.model, found.point), []).append(100 - found.test_error)
    readme, page = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/field.md"))
    cut, at = ([summarise(large[point][s]).mean for s in (0.5, 1.0, 2.0, 4.0, 8.0)] for point in ("cut", "whole"))
    assert f"{listed(at, 1)} % accuracy at ½, 1, 2, 4 and 8, trained at scale 1 alone" in page
    assert f"no longer the published protocol: {listed(cut, 1)} %" in page
    words = f"{min(at[:4]):.1f} to {max(at[:4]):.1f} % accuracy on MNIST Large Scale, and {at[4]:.1f} % at eight times"
    assert words in readme
    means, plain = (
        [summarise(stir[model, point]).mean for point in ("17.32", "33.48", "49.64")]
        for model in ("pyramid_deep_cnn", "deep_cnn")
    )
    assert f"Our network without the pyramid has {listed(plain, 1)} %." in page
    assert f"{listed(means, 1)} % accuracy at sizes that were not trained on" in page
    assert f"{min(means):.1f} to {max(means):.1f} % at the others" in readme


def test_the_trials_on_clothes_are_recorded():
    page = (ROOT / "docs" / "field.md").read_text()
    groups = json.loads((ROOT / "results" / "bench" / "fashion-trials.json").read_text())["groups"]
    rows = [
        f"| {'… ' + trial['change'] if trial['change'] else group['title']} | {trial['error']:.1f} |"
        for group in groups
        for trial in group["trials"]
    ]
    assert "\n".join(rows) in page


def test_what_is_said_about_the_scenes_is_recorded():
    errors = {}
    for found in read_records(ROOT / "results" / "scenes"):
        series = found.series["test_error"]
        for scale, error in zip(series.x, series.y, strict=True):
            errors.setdefault((found.model, found.point, scale), []).append(error)
    mean = {key: f"{summarise(found).mean:.1f}" for key, found in errors.items()}
    page = " ".join((ROOT / "docs" / "scenes.md").read_text().split())
    for point, scale, words in [
        ("range", 1.4, "{} instead of {} % at 1.4"),
        ("range", 2.2, "{} instead of {} % at 2.2"),
        ("range", 1.0, "At 1 it is {} instead of {} %"),
        ("near", 1.0, "the same error there ({} and {} %)"),
    ]:
        assert words.format(mean["si_fcn", point, scale], mean["fcn", point, scale]) in page
