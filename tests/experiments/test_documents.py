"""The documents of this repository say what its records say: whoever adds records runs `scaleconv report` again.

Of prose, only the numbers are looked for, outside of what `scaleconv report` writes.
"""

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from scaleconv.experiments import ITEMS, load_item, read_records
from scaleconv.experiments.claims import check_claims
from scaleconv.experiments.report import UNDECIDED, find_folder, markdown
from scaleconv.metrics import interval, sign_flip_test, summarise

ROOT = Path(__file__).parents[2]
FIELD = {"field", "tuned", "lead", "ideas", "consistency", "large", "stir", "fashion"}


@pytest.mark.parametrize(("name", "items"), [("reproduction", set(ITEMS) - FIELD), ("field", FIELD)])
def test_pages_have_the_tables_and_claims_of_the_records(name, items):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    assert {item for item in ITEMS if f"<!-- begin {item} -->" in page} == items
    claims = []
    for item in items:
        loaded, folder = load_item(item), find_folder(ROOT / "results", item, small=False)
        if folder is None:
            assert f"<!-- begin {item} -->\nNo records yet.\n<!-- end {item} -->" in page
            assert item in FIELD or not loaded.checks, f"{item} is of the paper, and has no records"
            continue
        records = read_records(folder)
        assert markdown(loaded, records).strip() in page
        assert (ROOT / "docs" / "figures" / f"{item}.png").is_file()
        found = check_claims(loaded, records)
        claims += [f"| {item} | {each.paper} | {each.ours} | {each.verdict or UNDECIDED} |" for each in found]
    written = re.search(r"<!-- begin claims -->\n(.*?)\n<!-- end", page, re.DOTALL)[1].splitlines()[2:]
    assert sorted(written) == sorted(claims)


def test_every_figure_is_kept_once():
    ignored = (ROOT / ".gitignore").read_text().split()
    pages = {page.parent for page in (ROOT / "results").glob("*/page.md")} | {ROOT / "results" / "bench"}
    kept = [path for path in (ROOT / "results").glob("*/*.*") if path.suffix in (".png", ".svg")]
    kept = [path for path in kept if path.parent not in pages and not path.parent.name.endswith("-quick")]
    assert [path for path in kept if not any(fnmatch(str(path.relative_to(ROOT)), line) for line in ignored)] == []


def prose(name):
    """A page without what is written by `scaleconv report`, on one line."""
    text = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "", (ROOT / name).read_text(), flags=re.DOTALL)
    return " ".join(text.split())


def errors_of(item):
    """By model and point, the test error of each fold."""
    errors = {}
    for found in read_records(ROOT / "results" / item):
        errors.setdefault((found.model, found.point), {})[found.fold] = found.test_error
    return errors


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
    field, lead, tried = (errors_of(item) for item in ("field", "lead", "ideas"))
    again = {model: folds for (model, _), folds in errors_of("consistency").items()}
    means = {
        (item, *key): summarise([*folds.values()]).mean
        for item in ("field", "lead", "tuned", "fashion", "stir")
        for key, folds in errors_of(item).items()
    }
    points, page, readme = ("28", "28p", "56", "56p"), "docs/field.md", "README.md"
    for point in ("28", "28p"):
        found = summarise([*lead["pyramid_deep_cnn", point].values()])
        yield readme, f"{found.mean:.2f} ± {found.std:.2f} %"
    yield page, listed([means["lead", "pyramid_deep_cnn", point] for point in ("28", "28p")])
    yield from ((name, listed([means["lead", "deep_cnn", p] for p in ("28", "28p")])) for name in (page, readme))
    for model in ("cnn", "cropped_cnn", "si_cnn"):
        yield page, listed([means["field", model, point] for point in points])
    for base in ("cnn", "cropped_cnn"):
        for point in points:
            ours, theirs = field["si_cnn", point], field[base, point]
            p = sign_flip_test([ours[fold] - theirs[fold] for fold in ours])
            yield page, f"{gap_of(ours, theirs)}, p = {p:.3f} |"
    seven = errors_of("field-seven-scales")["si_cnn", "28p"]
    yield page, f"{summarise([*seven.values()]).mean:.2f} ± {summarise([*seven.values()]).std:.2f} %"
    yield from ((page, gap_of(seven, field[model, "28p"])) for model in ("cropped_cnn", "si_cnn"))
    three = ("cnn", "cropped_cnn", "si_cnn")
    yield page, listed([summarise([*again[model].values()]).mean for model in three])
    yield page, listed([summarise([field[model, "28"][fold] for fold in again[model]]).mean for model in three])
    yield page, f"{means['tuned', 'pyramid_cnn', '28']:.2f} % at 28"
    accuracy = f"{100 - means['fashion', 'pyramid_deep_cnn', '28']:.1f} % accuracy"
    yield from ((name, accuracy) for name in (page, readme))
    yield page, f"{means['fashion', 'deep_cnn', '28'] - means['fashion', 'pyramid_deep_cnn', '28']:.1f} points"
    (octaves, base) = (next(folds for key, folds in tried.items() if key[1] == point) for point in ("octaves", "lead"))
    yield page, gap_of(octaves, base)
    large, kept, scenes = {}, {}, {}
    for found in read_records(ROOT / "results" / "large"):
        for scale, error in zip(found.series["test_error"].x, found.series["test_error"].y, strict=True):
            large.setdefault((found.point, scale), []).append(100 - error)
    for point in ("whole", "cut"):
        yield page, listed([summarise(large[point, s]).mean for s in (0.5, 1.0, 2.0, 4.0, 8.0)], 1)
    sizes = ("17.32", "33.48", "49.64")
    for model in ("pyramid_deep_cnn", "deep_cnn"):
        yield page, listed([100 - means["stir", model, size] for size in sizes], 1)
    for found in read_records(ROOT / "results" / "consistency"):
        series = found.series["same class at all scales so far"]
        kept.setdefault(found.model, []).append(dict(zip(series.x, series.y, strict=True))[0.3])
    yield from ((page, f"{summarise(shares).mean:.1f} %") for shares in kept.values())
    for found in read_records(ROOT / "results" / "scenes"):
        series = found.series["test_error"]
        for scale, error in zip(series.x, series.y, strict=True):
            scenes.setdefault((found.model, found.point, scale), []).append(error)
    for point, scale in (("range", 1.4), ("range", 2.2), ("range", 1.0), ("near", 1.0)):
        ours, plain = (f"{summarise(scenes[model, point, scale]).mean:.1f}" for model in ("si_fcn", "fcn"))
        yield "docs/scenes.md", ours, f"{plain} %"
    trials = json.loads((ROOT / "results" / "bench" / "fashion-trials.json").read_text())["groups"]
    yield from ((page, f"| {trial['error']:.1f} |") for group in trials for trial in group["trials"])


def test_numbers_in_the_prose_are_those_of_the_records():
    pages = {name: prose(name) for name in ("README.md", "docs/field.md", "docs/scenes.md")}
    together = ((name, r"\D{1,15}".join(map(re.escape, texts))) for name, *texts in stated())
    assert [(name, pattern) for name, pattern in together if not re.search(pattern, pages[name])] == []
