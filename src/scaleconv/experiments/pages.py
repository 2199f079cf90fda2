"""Every table and figure of the documents, from the records that are there, by one command.

`reproduction.md` keeps its prose: only what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced.
NAME is an item, for its table, or `claims`, for the list of what the paper says and whether ours agrees.
"""

import re
from pathlib import Path

from ..data.atomic import atomic_path
from .claims import check_claims
from .filters import draw_learned
from .loading import ITEMS, folder_name, load_item
from .panels import is_table
from .records import read_records
from .report import draw, markdown, write_report
from .tables import line
from .titles import TITLES

PAGE = "reproduction.md"

SAME = {True: "yes", False: "no", None: "not yet"}


def find_folder(results: Path, name: str, *, small: bool = True) -> Path | None:
    """The folder of that name, or, if it has no records, the one with the most whose name begins with it.

    Without `small`, never the quick version of an item in the place of the one of the paper's size.
    """
    others = [path for path in results.glob(f"{name}-*") if small or not path.name.endswith("-quick")]
    folders = [results / name, *sorted(others, key=lambda path: (-_records(path), path.name))]
    return next((folder for folder in folders if _records(folder)), None)


def write_pages(results: Path, docs: Path, preset: str = "paper") -> list[Path]:
    """Write the tables beside the records, the figures and the page of the documents; return what was written.

    Raises:
        ValueError: a marker of the page is missing or not closed.
    """
    page = docs / PAGE
    text = page.read_text(encoding="utf-8")
    written: list[Path] = []
    claims = [line(["item", "the paper", "ours", "same"]), line(["---"] * 4)]
    for name in ITEMS:
        item = load_item(name, preset)
        folder = find_folder(results, folder_name(name, preset), small=False)
        if folder is None:
            text = _replace(text, name, "No records yet.", page)
            continue
        records = read_records(folder)
        written += write_report(item, records, folder)
        (docs / "figures").mkdir(parents=True, exist_ok=True)
        written += draw(item, records, docs / "figures", name)
        written += draw_learned(folder, docs / "figures", name) if is_table(item) else []
        # Weights are not kept with the records: a picture that was drawn from some stays in the page without them.
        names = [name, *(path.stem for path in sorted((docs / "figures").glob(f"{name}-*.png")))]
        pictures = [f"![{_alt(item.title, each)}](figures/{each}.png)" for each in names]
        blocks = [*pictures[:1], f"Records: `{folder.name}`.", markdown(item, records).strip(), *pictures[1:]]
        content = "\n\n".join(blocks)
        text = _replace(text, name, content, page)
        checked = check_claims(item, records)
        claims += [line([name, claim.paper, claim.ours, SAME[claim.holds]]) for claim in checked]
    text = _replace(text, "claims", "\n".join(claims), page)
    with atomic_path(page) as part:
        part.write_text(text, encoding="utf-8")
    return [*written, page]


def _alt(title: str, name: str) -> str:
    model = name.partition("-")[2]
    return f"{TITLES.get(model, model)}: filters and samples" if model else title


def _records(folder: Path) -> int:
    return len(list(folder.glob("*-fold*-seed*.json")))


def _replace(text: str, name: str, content: str, page: Path) -> str:
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(rf"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{page} must have the markers {begin} and {end}")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)
