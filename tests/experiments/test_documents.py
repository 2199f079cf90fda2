"""The documents of this repository say what its records say: whoever adds records runs `scaleconv report` again.

Of prose, only the numbers are looked for, outside of what `scaleconv report` writes.
"""

import re
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean

import pytest

from scaleconv.experiments import ITEMS, load_item, read_records
from scaleconv.experiments.report import OTHER_PAGES, PAGE, claims_table, find_folder, markdown, read_recorded
from scaleconv.metrics import interval, sign_flip_test

ROOT = Path(__file__).parents[2]
FIGURES = {"fig3", "fig4a", "fig4b", "fig5a", "fig5b", "cost"}
FIELD = {"field", "seven", "tuned", "lead", "ideas", "consistency", "large", "stir", "fashion"}
FIELD |= {"samescales", "leadsame", "stirsmall", "largeplain", "fashion7", "emoji", "leadunseen", "largeunseen"}
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
FILLED = [path.stem for names in (PAGE, *OTHER_PAGES) for path in sorted((ROOT / "docs").glob(names))]


@pytest.fixture(scope="module")
def claimed():
    """The claims of all records as lines of a table, by item."""
    found: dict[str, list[str]] = {}
    for row in claims_table(read_recorded(ROOT / "results", "paper")).rows:
        found.setdefault(row[0], []).append(f"| {' | '.join(row)} |")
    return found


def items_on(*pages):
    return {item for item in ITEMS for name in pages if f"<!-- begin {item} -->" in PAGES[name]}


def test_every_item_has_its_tables_on_one_page_and_figures_stand_beside_the_claims():
    assert sorted(item for name in FILLED for item in items_on(name)) == sorted(ITEMS)
    assert items_on("reproduction") == {"table1"}
    assert items_on(*(name for name in FILLED if name.startswith("numbers"))) == FIGURES
    assert items_on(*(name for name in FILLED if name.startswith("field"))) == FIELD
    assert {item for item in ITEMS if f"<!-- begin {item}.figure -->" in PAGES["reproduction"]} == FIGURES
    for item in FIGURES:
        assert f"![{load_item(item).title}](figures/{item}.svg)" in PAGES["reproduction"]


@pytest.mark.parametrize("name", FILLED)
def test_pages_have_the_tables_and_claims_of_the_records(name, claimed):
    page = PAGES[name]
    for item in (item for item in ITEMS if f"<!-- begin {item} -->" in page):
        loaded, folder = load_item(item), find_folder(ROOT / "results", item)
        if folder is None:
            assert f"<!-- begin {item} -->\nNo records yet.\n<!-- end {item} -->" in page
            assert item in FIELD or not loaded.checks, f"{item} is of the paper, and has no records"
            continue
        records = read_records(folder)
        assert markdown(loaded, records).strip() in page
        assert (ROOT / "docs" / "figures" / f"{item}.svg").is_file()
    if name in ("reproduction", "field"):
        items = FIELD if name == "field" else set(ITEMS) - FIELD
        written = re.search(r"<!-- begin claims -->\n(.*?)\n<!-- end", page, re.DOTALL)[1].splitlines()[2:]
        assert sorted(written) == sorted(line for item in items for line in claimed.get(item, []))


def test_every_figure_is_kept_once():
    ignored = (ROOT / ".gitignore").read_text().split()
    pages = {page.parent for page in (ROOT / "results").glob("*/page.md")} | {ROOT / "results" / "bench"}
    kept = [path for path in (ROOT / "results").glob("*/*.*") if path.suffix in (".png", ".svg")]
    kept = [path for path in kept if path.parent not in pages and not path.parent.name.endswith("-quick")]
    assert [path for path in kept if not any(fnmatch(str(path.relative_to(ROOT)), line) for line in ignored)] == []


def prose(name):
    """The pages that begin with a name, without what is written by `scaleconv report`, on one line."""
    text = "\n".join(text for page, text in PAGES.items() if page == name or page.startswith(f"{name}-"))
    return " ".join(re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", text, flags=re.DOTALL).split())


def errors_of(item, series="", at=None):
    """By model and point, for each fold the test error, or a value of a series."""
    errors = {}
    for found in read_records(ROOT / "results" / item):
        values = dict(zip(found.series[series].x, found.series[series].y, strict=True)) if series else {}
        errors.setdefault((found.model, found.point), {})[found.fold] = values[at] if series else found.test_error
    return errors


def means_of(item, *measured):
    return {key: fmean(folds.values()) for key, folds in errors_of(item, *measured).items()}


def listed(numbers, digits=2):
    *most, last = (f"{number:.{digits}f}" for number in numbers)
    return f"{', '.join(most)} and {last}"


def gap_of(ours, base):
    """The mean difference over the folds of the first with its interval."""
    gap = interval([value - base[fold] for fold, value in ours.items()])
    bounds = f"[{gap.low:+.2f}, {gap.high:+.2f}]".replace("+0.00", "0.00")
    return f"{gap.mean:.2f} {bounds}".replace("-", "−")


def stated():
    """Numbers of the prose from the records: the page, and one or two that stand together there, as text."""
    page, points, three = "field", ("28", "28p", "56", "56p"), ("cnn", "cropped_cnn", "si_cnn")
    field = errors_of("field")
    means, again, fashion, stir = (means_of(item) for item in ("field", "consistency", "fashion", "stir"))
    for model in ("pyramid_deep_cnn", "deep_cnn"):
        yield page, listed([means_of("lead")[model, point] for point in points[:2]])
        yield page, listed([100 - stir[model, size] for size in ("17.32", "33.48", "49.64")], 1)
    for model in three:
        yield page, listed([means[model, point] for point in points])
        for point in points if model != "si_cnn" else ():
            ours, base = field["si_cnn", point], field[model, point]
            p = sign_flip_test([ours[fold] - base[fold] for fold in ours])
            yield page, f"{gap_of(ours, base)}, p = {p:.3f} |"
    (seven,) = errors_of("seven").values()
    yield from ((page, gap_of(seven, field[model, "28p"])) for model in three[1:])
    yield page, listed([mean for model in three for (name, _), mean in again.items() if name == model])
    yield page, f"{100 - fashion['pyramid_deep_cnn', '28']:.1f} % accuracy"
    for point in ("whole", "cut"):
        scales = [means_of("large", "test_error", scale) for scale in (0.5, 1.0, 2.0, 4.0, 8.0)]
        yield page, listed([100 - mean for each in scales for (_, name), mean in each.items() if name == point], 1)
    for kept in means_of("consistency", "same class at all scales so far", 0.3).values():
        yield page, f"{kept:.1f} %"
    for point, scale in (("range", 1.4), ("range", 2.2), ("range", 1.0), ("near", 1.0)):
        scenes = means_of("scenes", "test_error", scale)
        yield "scenes", f"{scenes['si_fcn', point]:.1f}", f"{scenes['fcn', point]:.1f} %"


def test_numbers_in_the_prose_are_those_of_the_records():
    pages = {name: prose(name) for name in ("field", "scenes")}
    together = ((name, r"\D{1,15}".join(map(re.escape, texts))) for name, *texts in stated())
    assert [(name, pattern) for name, pattern in together if not re.search(pattern, pages[name])] == []
