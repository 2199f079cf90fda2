"""What the documentation site changes in pages and docstrings; both are written to be read without it as well."""

import re
from typing import Any

from griffe import Extension, Object


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A link to a file outside of the site, such as a record, becomes the file's name. MkDocs calls this.

    A fence of Python that begins with a prompt is a session, so that `site.css` can leave the prompts out of a copy.
    """
    markdown = re.sub(r"(?m)^```python\n(?=>>> )", "```pycon\n", markdown)
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)#\s]+)[^)]*\)", r"\1 (`\2`)", markdown)


class ExampleSections(Extension):
    """Makes `Example:` in a docstring the section that the site shows as code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^( *)Example:$", r"\1Examples:", obj.docstring.value)
