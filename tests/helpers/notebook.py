"""Run notebooks and keep their outputs: `python -m helpers.notebook examples/*.ipynb` writes them where they are.

What differs from run to run is left out: the times of cells and the versions of the kernel.
"""

import sys
from pathlib import Path

SECONDS = 300  # for a cell, on a machine that does other work, too


def execute(path, folder):
    """The notebook with the outputs of a run in a folder."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    options = {"timeout": SECONDS, "kernel_name": "python3", "record_timing": False, "coalesce_streams": True}
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **options).execute()
    notebook.metadata.pop("language_info", None)
    return notebook


def write(path, target, folder):
    """Run one, and keep it with its outputs."""
    import nbformat

    nbformat.write(execute(path, folder), target)


if __name__ == "__main__":
    import tempfile

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(name), Path(name), folder)
