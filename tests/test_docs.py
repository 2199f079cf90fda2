"""The documents say what the code does: their examples run, their links lead somewhere."""

import doctest
import importlib
import json
import os
import pkgutil
import re
import runpy
import subprocess
import sys
from collections import Counter, OrderedDict
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch
from torch import nn

import scaleconv
import scaleconv.data
from scaleconv import LATE_SCALES, conversion
from scaleconv.bench.shapes import SHAPES
from scaleconv.cli import app, data_app
from scaleconv.data import write_images
from scaleconv.experiments import ITEMS, load_experiment, read_records
from scaleconv.experiments.page import accuracy_tables, cost_table
from scaleconv.experiments.tables import cells, make_rows, make_tables

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CURRENT = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which names what was there once
BENCH, TRUST = ROOT / "results" / "bench", ROOT / "results" / "trust"
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
each_current_page = pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)


def text_of(page):
    """A page of docs/, or the README."""
    return (ROOT / ("README.md" if page == "README.md" else f"docs/{page}")).read_text()


def prose_of(page):
    """The text of a page on one line."""
    return " ".join(text_of(page).split())


def numbers(path):
    return json.loads(path.read_text())


@each_page
def test_python_sessions_in_the_documents_run(page, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # of the tables in them
    sessions = "\n".join(re.findall(r"^```python\n(>>> .*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
    test = doctest.DocTestParser().get_doctest(sessions, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_the_page_of_commands_lists_every_command_and_item():
    commands = text_of("commands.md")
    groups = ((app, ""), (data_app, "data "))
    assert set(re.findall(r"`scaleconv (data \w+|\w+)", commands)) == {
        f"{prefix}{each.callback.__name__}" for group, prefix in groups for each in group.registered_commands
    }
    assert [item for item in ITEMS if f"`{item}`" not in commands] == []


def test_the_api_pages_have_every_public_name_of_the_library():
    pages = sorted((ROOT / "docs").glob("api-*.md"))
    listed = re.findall(r"^::: \S+\.(\w+)$", "\n".join(page.read_text() for page in pages), re.MULTILINE)
    assert Counter(listed) == Counter(re.findall(r"`(\w+)`", text_of("api.md").partition("| --- | --- |")[2]))
    assert set(scaleconv.__all__) - set(listed) == {"DEFAULT_SCALES", "LATE_SCALES", "__version__"}


@each_page
def test_links_lead_to_files(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)", prose)
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_figures_are_those_that_pages_link():
    texts = [page.read_text() for page in PAGES]
    linked = {Path(link).name for text in texts for link in re.findall(r"\]\((?:docs/)?figures/([^)]+)\)", text)}
    assert {path.name for path in (ROOT / "docs" / "figures").iterdir()} == linked


# Files that a reader makes, that a command writes, or that stand in another repository.
ELSEWHERE = r"^(dist|photos|results/(train|compare|mine|table1-quick)|models/sicnn|scripts/clean\.csv)"
NEW = ("configs/shifted.toml", "data/csv_list.py", "data/test_csv_list.py", "models/tiny.py")  # of CONTRIBUTING.md


@each_current_page
def test_paths_in_the_text_are_those_of_files(page):
    endings = "py|md|toml|jsonl?|png|svg|csv|ipynb|safetensors"
    paths = set(re.findall(rf"(?<![\w/.:-])(?:[\w.-]+/)+[\w.-]+\.(?:{endings})\b", page.read_text()))
    roots = (ROOT, page.parent, ROOT / "src" / "scaleconv", ROOT / "tests")
    missing = [path for path in paths if not any((root / path).exists() for root in roots)]
    assert [path for path in missing if not re.match(ELSEWHERE, path) and not path.endswith(NEW)] == []


@each_current_page
def test_dotted_names_in_the_text_can_be_imported(page):
    for name in set(re.findall(r"\bscaleconv(?:\.\w+)+", page.read_text())) - {"scaleconv.json"}:
        pkgutil.resolve_name(name)


@each_page
def test_commands_that_choose_a_test_find_one(page):
    for path, word in re.findall(r"pytest\s+(tests/[\w/]+\.py)\s+-k\s+(\w+)", page.read_text()):
        assert re.search(rf"def test_\w*{word}", (ROOT / path).read_text())


def test_the_results_in_the_readme_are_those_of_the_records():
    experiment = load_experiment("table1")
    rows = make_rows(read_records(ROOT / "results" / "table1"), experiment.paper, experiment.baseline)
    assert [row for row in rows if f"| {' | '.join(cells(row)[:4])} |" not in text_of("README.md")] == []
    (change,) = (row.change for row in rows if row.model == "si_convnet")
    assert f"makes {-change:.0f} % fewer errors" in text_of("README.md")


def step_times(name, clock="eager"):
    """Milliseconds of the steps in a benchmark, by network, task, type and variant."""
    steps = numbers(BENCH / f"{name}.json")["steps"]
    keys = ("network", "task", "dtype", "variant")
    return {tuple(row[key] for key in keys): row[clock]["median_ms"] for row in steps}


def test_the_guide_quotes_its_records():
    guide = text_of("guide.md")
    experiment = load_experiment("table1")
    rows = [cells(row) for row in make_rows(read_records(ROOT / "results" / "table1"), experiment.paper, "convnet")]
    quoted = [(name, ours, seconds) for name, _, ours, *_, seconds in rows if "ConvNet" in name or "ensemble" in name]
    images = read_records(ROOT / "results" / "compare-digits")
    accuracy, costs = accuracy_tables(images)[0], {row[0]: row[2] for row in cost_table(images).rows}
    columns = dict(zip(accuracy.header, zip(*accuracy.rows, strict=True), strict=True))
    at_one = [label for label, *_ in accuracy.rows].index("1")
    quoted += [(name, values[at_one], values[-1], costs[name]) for name, values in columns.items() if name in costs]
    found = [f"| {' | '.join(row)} |" for row in quoted if row[0] != "Hierarchical ConvNet"]
    assert len(found) == 8
    assert [row for row in found if row not in guide] == []
    ratios = [
        row[f"{task}_converted_ms"] / row[f"{task}_plain_ms"]
        for row in numbers(BENCH / "cpu-shapes.json")["rows"]
        for task in ("inference", "training")
    ]
    assert f"takes {min(ratios):.1f} to {max(ratios):.1f} times as long on a CPU" in guide
    times = {key: time for key, time in step_times("h200").items() if key[0] == "resnet18"}
    ratios = [time / times[*key[:3], "plain"] for key, time in times.items() if key[3] == "converted"]
    assert f"a ResNet-18 {min(ratios):.1f} to {max(ratios):.1f} times on an H200" in guide
    turned = numbers(BENCH / "goals-h200.json")["rotations"]
    called, graph = ([row["ti / wide"] for row in turned if row["mode"] == mode] for mode in ("eager", "graph"))
    assert f"take {min(called):.1f} to {max(called):.1f} times as long as `Conv2d`" in prose_of("transforms.md")
    assert f"as a CUDA graph {min(graph):.1f} to {max(graph):.1f} times" in prose_of("transforms.md")
    (scales,) = make_tables(load_experiment("scales"), read_records(ROOT / "results" / "scales"))
    listed = re.findall(r"^\| ([\d.]+(?: –|, then) .*) \| (.*) \|$", guide, re.MULTILINE)
    assert len(listed) == 7
    assert set(listed) <= {row[:2] for row in scales.rows}


def test_the_page_on_performance_quotes_its_records():
    page, rows = text_of("performance.md"), numbers(BENCH / "h200-layers.json")["rows"]
    times = {(row["shape"], row["dtype"], row["layer"]): row for row in rows}
    shapes = {row["shape"] for row in rows}
    assert len(shapes) == 12
    for shape in shapes:
        quoted, between = [], r" \| "
        for dtype in ("float32", "bfloat16"):
            ours, broad = times[shape, dtype, "si"], times[shape, dtype, "conv2d_wide"]
            for name, digits in (("graph_both", 2), ("both", 1)):
                quoted.append(f"{ours[name]['median_ms'] / broad[name]['median_ms']:.{digits}f}")
        assert re.search(rf"\| {shape}: .*\| {between.join(quoted)} \|", page), shape
    titles, steps = {"resnet18": "ResNet-18", "depthwise": "depthwise"}, step_times("h200")
    for (network, task, dtype, variant), plain in steps.items():
        if network in titles and variant == "plain":
            converted = steps[network, task, dtype, "converted"]
            stated = f"{titles[network]} | {task} | {dtype} | {plain:.3g} | {converted:.3g} | {converted / plain:.2f}"
            assert f"| {stated} |" in page
    plain, converted = (
        1_281_167 * 90 * steps["resnet18", "training", "bfloat16", variant] / 32 / 3.6e6
        for variant in ("plain", "converted")
    )
    stated = f"= {plain:.1f} hours | 115,305,030 × {converted / 115_305_030 * 3.6e6:.3g} ms = {converted:.1f} hours |"
    assert stated in text_of("scaling.md")
    epochs = numbers(BENCH / "h200-tried.json")["table1_epoch_of_six_folds_s"]
    for seconds in epochs["a stream for each fold, shared 2**24, channels_last"].values():
        assert f" {700 * seconds:,.0f} s" in page
    kept, prose = numbers(BENCH / "memory-kept.json"), prose_of("performance.md")
    pyramid, ours = kept["pyramid"], kept["SIConv2d"]
    assert " ".join(f"{name}={value}" for name, value in kept["variables"].items()) in prose
    assert "took {} and {} s without, {} and {} s with them".format(*pyramid["without"], *pyramid["with"]) in prose
    assert "{:.2f} and {:.2f} s without, {:.2f} and {:.2f} s with".format(*ours["without"], *ours["with"]) in prose


def test_the_page_on_performance_quotes_its_records_of_a_cpu():
    page, best = text_of("performance.md"), {}
    for row in numbers(BENCH / "cpu-networks.json")["steps"]:  # in the faster layout
        key = row["network"], row["task"], row["batch"], row["variant"]
        best[key] = min(best.get(key, inf), row["eager"]["median_ms"])
    for network, batch, ours, base in (
        ("resnet18", 2, "converted", "plain"), ("depthwise", 2, "converted", "plain"),
        ("paper", 128, "si_convnet", "convnet"),
    ):  # fmt: skip
        steps = (("training", batch), ("inference", 1), ("inference", 8))
        ratios = [best[network, *step, ours] / best[network, *step, base] for step in steps]
        assert f" | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |" in page
    layers = {}
    for row in numbers(BENCH / "cpu-layers.json")["rows"]:
        key = row["shape"], row["layer"]
        layers[key] = min(layers.get(key, inf), row["both"]["median_ms"])
    wide, plain = (
        [layers[shape, "si"] / layers[shape, base] for shape in SHAPES] for base in ("conv2d_wide", "conv2d")
    )
    prose = prose_of("performance.md")
    assert f"take {min(wide):.2f} to {max(wide):.2f} times as long as the wide convolution" in prose
    assert f"{min(plain):.1f} to {max(plain):.1f} times as long as `Conv2d`. Networks" in prose
    late = numbers(BENCH / "cpu-late.json")["late"]
    for first in range(0, len(late), 3):
        ratios = [f"{row['si / conv2d']:.2f}" for row in late[first : first + 3]]
        assert re.search(rf"\| {re.escape(late[first]['layer'])} \(\d+\) \| {' [|] '.join(ratios)} \|", page)
    cases = {"no strided form": "strided form", "no im2col": "im2col"}
    cases["no sparse matrices of both axes"] = "sparse matrices of both axes"
    ablated = numbers(BENCH / "cpu-ablation.json")["ablation"]
    for case, title in cases.items():
        ratios = [f"{row['ratio']:.2f}" for row in ablated if row["case"] == case]
        assert f"| {title} | 2 cores | {' | '.join(ratios)} |" in page


def test_the_pages_on_networks_quote_their_records(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    page, parts = text_of("calibration.md"), importlib.import_module("calibration").PARTS
    records = {"corrections": "calibration", "fine_tuning": "calibration-h200", "few_images": "calibration"}
    for part, name in records.items():
        assert parts[part][1](numbers(BENCH / f"{name}.json")[part]).markdown() in page
    table = importlib.import_module("networks").time_table(numbers(BENCH / "cpu-shapes.json")["rows"])
    assert [line for line in table.markdown().splitlines()[2:] if line not in text_of("networks.md")] == []
    exported = importlib.import_module("networks").onnx_table(numbers(BENCH / "onnx-export.json")["after"]["networks"])
    lines = exported.markdown().splitlines()[2:]
    assert len(lines) == 8
    assert [line for line in lines if line not in text_of("export.md")] == []


def test_the_pages_on_reliability_quote_their_records(monkeypatch):
    page = text_of("reliability.md") + text_of("precision.md")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    table = importlib.import_module("precision").precision_table
    assert table(numbers(TRUST / "precision-cpu.json")["rows"]).markdown() in page
    rows = numbers(TRUST / "precision-h200.json")["rows"]
    assert table([row for row in rows if row["type"] == "tf32"]).markdown() in page
    states = numbers(TRUST / "endurance-cpu.json")["states"]
    for first in range(0, len(states), 11):  # eleven of each layer
        start, end = states[first], states[first + 10]
        memory = [f"{states[first + part]['resident_mib']:.0f}" for part in (0, 1, 5, 10)]
        assert f"| {end['layer']} | {end['done']:,} {end['work']} | {' | '.join(memory)} |" in page
        assert f"| {start['descriptors']} → {end['descriptors']} | {start['threads']} → {end['threads']} |" in page
    tested = (ROOT / "tests" / "test_fuzz.py").read_text()
    for cases, devices in (("calls", ("cpu", "cuda")), ("files", ("cpu",))):
        records = [numbers(path) for path in TRUST.glob(f"{cases}-*.json")]
        passed = {
            device: sum((Counter(record["passed"]) for record in records if record["device"] == device), Counter())
            for device in devices
        }
        for kind in passed["cpu"]:
            stated = " | ".join(f"{count[kind]:,}" for count in passed.values())
            assert re.search(rf"^\| `{kind}`.* \| {re.escape(stated)} \|$", page, re.MULTILINE), (cases, kind)
        failed = [(record["seed"], number) for record in records for number in record["failed"]]
        assert all(f"({seed}, {number}, " in tested for seed, number in failed)
        assert f"| all | {' | '.join(f'{count.total():,}' for count in passed.values())} |" in page
    faults = numbers(TRUST / "faults.json")
    for title, counts, names in (
        ("", faults["passed"], ("reproduce", "train", "train --data", "compare", "data make", "demo")),
        (", after mending", faults["again"]["passed"], ("train --data",)),
    ):
        for name in names:
            signals = ", ".join(f"{counts[f'{name}: {each}']} {each}" for each in ("SIGKILL", "SIGTERM", "SIGINT"))
            assert f"| `{name}`{title} | {signals} | {counts.get(f'{name}: resumed and equal', '–')} " in page
    once = numbers(TRUST / "faults-once.json")
    assert once["failed"] == {}
    for name, fault in (title.split(": ") for title in once["passed"] if "kills" not in title):
        assert f"`{name}`" in page
        assert fault.split(",")[0] in page


def test_the_steps_on_the_first_page_are_what_the_script_finds(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra `experiments`")
    monkeypatch.setattr(sys, "argv", ["step_by_step.py", str(tmp_path / "steps.png")])
    runpy.run_path(str(ROOT / "examples" / "step_by_step.py"), run_name="__main__")
    plain, ours, scale = re.findall(r"\d\.\d+", capsys.readouterr().out)
    page = prose_of("index.md")
    assert f"with this filter is {plain}, that of the layer {ours}." in page
    assert f"size of the filter at scale {scale}, and the response there is the largest of all" in page
    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_the_results_on_the_home_page_are_those_of_the_records():
    experiment = load_experiment("table1")
    rows = make_rows(read_records(ROOT / "results" / "table1"), experiment.paper, experiment.baseline)
    for row in rows:
        if row.model in ("convnet", "si_convnet"):
            assert f"| {' | '.join(cells(row)[1:3])} |" in text_of("index.md")


def test_a_session_is_highlighted_as_one_on_the_site_so_that_its_prompts_are_not_copied(monkeypatch):
    pytest.importorskip("griffe", reason="needs the extra `docs`")
    monkeypatch.syspath_prepend(ROOT / "docs")
    change = importlib.import_module("site_hooks").on_page_markdown
    assert change("```python\n>>> 1\n1\n```\n") == "```pycon\n>>> 1\n1\n```\n"
    assert change("```python\nx = 1\n```\n") == "```python\nx = 1\n```\n"


def test_many_tables_of_an_item_are_shown_by_a_click_on_the_site(monkeypatch):
    pytest.importorskip("griffe", reason="needs the extra `docs`")
    monkeypatch.syspath_prepend(ROOT / "docs")
    change = importlib.import_module("site_hooks").on_page_markdown
    tables = [f"**{title}**\n\n| a |\n| --- |\n| 1 |\n" for title in ("one", "two", "three")]
    few, many = (f"<!-- begin x -->\n{joined}<!-- end x -->\n" for joined in ("\n".join(tables[:2]), "\n".join(tables)))
    assert change(few) == few
    assert change(many).count('??? quote "') == 3
    assert '??? quote "two"\n\n    | a |\n    | --- |\n    | 1 |\n\n???' in change(many)


def words_of(text):
    """The words of prose and lists of a page: without tables, blocks of code, pictures and addresses of links."""
    text = re.sub(r"<!--.*?-->|^ *```.*?^ *```$|!\[[^]]*\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = re.sub(r"\]\([^)]*\)", "]", text).splitlines()
    return re.findall(r"\w\S*", "\n".join(line for line in lines if not line.startswith("|")))


def test_words_are_those_that_a_reader_meets():
    unread = "<!-- x -->\n| a | b |\n\n```\nno\n```\n\n![no](no.png)\n"
    text = f"# A title\n\n- one [two](three.md), 0.5 four–five\n\n{unread}"
    assert words_of(text) == ["A", "title", "one", "two],", "0.5", "four–five"]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_has_at_most_1500_words(page):
    assert len(words_of(page.read_text())) <= 1500


def test_pages_have_the_names_of_their_titles():
    """An entry without a name of its own is shown by the title of its page."""
    entries = (ROOT / "mkdocs.yml").read_text().partition("nav:\n")[2]
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.ipynb")]
    assert sorted(re.findall(r"^ +- ([\w-]+)\.md$", entries, re.MULTILINE)) == sorted(page.stem for page in pages)
    titles = [re.search(r"^# (.+)$", page.read_text(), re.MULTILINE)[1] for page in pages if page.suffix == ".md"]
    assert len(set(titles)) == len(titles)


def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path):
    pytest.importorskip("mkdocstrings", reason="needs the extra `docs`")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    api = "\n".join(page.read_text() for page in tmp_path.glob("api-*.html"))
    missing = [name for name in scaleconv.__all__ if not re.search(rf'id="scaleconv[\w.]*\.{name}"', api)]
    assert missing == ["DEFAULT_SCALES", "LATE_SCALES", "__version__"]
    for notebook in (ROOT / "examples").glob("*.ipynb"):
        assert "<img" in (tmp_path / f"{notebook.stem}.html").read_text()
    for page in tmp_path.glob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]+)|<link[^>]* href="([^"]+)', page.read_text())
        assert not [link for links in loaded for link in links if "//" in link], page.name


def code_of(page):
    """The blocks of a page that are code and no session, one after the other."""
    blocks = re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)
    return [block for block in blocks if not block.startswith(">>>")]


def test_the_code_on_the_first_screen_runs():
    names = {}
    exec(code_of("README.md")[0], names)
    assert conversion(names["network"]) == {"2": {"scales": [*LATE_SCALES], "antialias": False}}


def test_the_code_on_the_digits_runs(monkeypatch):
    small = scaleconv.data.embedded_digits()
    six = replace(small, images=small.images.repeat(6, 1, 1), labels=small.labels.repeat(6))  # as many as in MNIST
    monkeypatch.setattr(scaleconv.data, "load_digits", lambda *_: six)
    names = {}
    for block in code_of("data.md"):
        exec(block, names)
    assert (len(names["train"]), len(names["test"]), names["large"].images.shape[2:]) == (1000, 5000, (40, 40))


def test_the_code_on_scenes_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    first, networks, explained, masks = code_of("scenes.md")
    names = {}
    exec(first, names)
    assert names["scenes"].images.shape == (100, 1, 96, 96)
    exec(networks, names)
    assert names["photos"](torch.rand(1, 3, 16, 16)).shape == (1, 5, 16, 16)
    layer = nn.Sequential(OrderedDict(conv1=nn.Conv2d(1, 4, 3)))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    names["model"] = nn.Sequential(OrderedDict(layer4=nn.Sequential(nn.Identity(), layer), head=head))
    names["image"] = torch.rand(1, 12, 12)
    exec(explained, names)
    assert names["found"].layers["layer4.1.conv1"].winning_scale.shape == (10, 10)
    scaleconv.data.write_scenes(names["scenes"], tmp_path / "photos")
    exec(masks.replace("classes=5", "classes=11"), names)
    assert (names["image"].shape, names["mask"].shape) == ((1, 128, 128), (128, 128))


def test_the_code_on_images_of_your_own_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    digits = scaleconv.data.embedded_digits()
    write_images(digits.images[:60].unsqueeze(1), digits.labels[:60], "0123456789", tmp_path / "photos")
    (block,) = code_of("own-images.md")
    names = {}
    exec(block.replace("epochs=30", "epochs=1").replace("resize=64", "resize=16"), names)
    assert len(names["fitted"].record.series["accuracy by scale"].y) == 8
    assert (tmp_path / "results" / "mine.jsonl").read_text().count("\n") == 1


def test_the_shifts_of_small_digits_are_those_of_the_page():
    """How far the centre of mass of a digit is from where the scale puts it, in canvas pixels along an axis."""
    images = scaleconv.data.embedded_digits().images

    def centre(digits):
        digits = digits.double()
        axis = torch.arange(digits.shape[-1], dtype=torch.float64) - (digits.shape[-1] - 1) / 2
        return torch.stack([digits.sum(2) @ axis, digits.sum(1) @ axis], 1) / digits.sum((1, 2)).unsqueeze(1)

    def shift(scale):
        size = 28 if scale <= 1 else 48
        moved = centre(scaleconv.data.make_scaled(images, scale, size)[:, 0]) - scale * centre(images)
        return float(moved.square().mean().sqrt())

    page = prose_of("data.md")
    assert f"At s = 0.3 its centre of mass is off by {shift(0.3):.2f} canvas pixels" in page
    assert f"at s = 0.77 by {shift(0.77):.2f}, at s = 0.5 and 1.6 by less than 0.02" in page
    assert max(shift(0.5), shift(1.6)) < 0.02
