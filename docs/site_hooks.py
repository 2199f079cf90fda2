"""What the documentation site changes in pages and docstrings; both are written to be read without it as well."""

import base64
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = Path(__file__).parents[1] / "examples"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every notebook becomes a page, with the outputs that are stored in it. MkDocs calls this."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text, pictures = as_page(path)
        files.append(File.generated(config, f"{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"figures/{name}", content=picture))
    return files


def as_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and the pictures in it by name."""
    blocks: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        blocks.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(picture)
                blocks.append(f"![What the code above draws](figures/{name})")
            elif text := "".join(output.get("text", "")):
                blocks.append(f"``` {{ .text .no-copy }}\n{text.rstrip()}\n```")
    title, *rest = blocks
    note = f"*This page is the notebook `examples/{path.name}`.*"
    return "\n\n".join([title, note, *rest]).replace("](../docs/", "]("), pictures


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link to a notebook leads to its page; one to another file outside of the site becomes the name of the file.

    A fence of Python that begins with a prompt is a session, so that `site.css` can leave the prompts out of a copy.
    Of an item with many tables each is shown by a click on its title. MkDocs calls this.
    """
    markdown = re.sub(
        r"<!-- begin (\S+) -->.*?<!-- end \1 -->", lambda found: fold_tables(found[0]), markdown, flags=re.DOTALL
    )
    markdown = re.sub(r"(?m)^```python\n(?=>>> )", "```pycon\n", markdown)
    markdown = re.sub(r"\]\(\.\./examples/(\w+)\.ipynb\)", r"](\1.md)", markdown)
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)#\s]+)[^)]*\)", r"\1 (`\2`)", markdown)


def fold_tables(block: str) -> str:
    """Three tables with titles, or more, become boxes that open."""
    titled = r"(?m)^\*\*(.+)\*\*\n\n((?:\|.*\n)+)"
    if len(re.findall(titled, block)) < 3:
        return block
    return re.sub(titled, lambda found: f'??? quote "{found[1]}"\n\n' + textwrap.indent(found[2], "    "), block)


class ExampleSections(Extension):
    """Makes `Example:` in a docstring the section that the site shows as code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^( *)Example:$", r"\1Examples:", obj.docstring.value)
