"""The notebook runs from top to bottom, in a kernel of its own as a reader's does.

It is kept without outputs: they would be out of date with the next change, and this test makes them anew.
"""

import json
import re
import warnings
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "own_network.ipynb"


def test_the_notebook_converts_fine_tunes_and_compares(tmp_path, monkeypatch):
    nbformat, nbclient = (pytest.importorskip(name, reason="needs nbclient") for name in ("nbformat", "nbclient"))
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests have the other cores
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for the folder of images
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's own
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    plain, converted = (
        [float(number.replace(",", "")) for number in line]
        for line in re.findall(r": ([\d.]+) % over all scales, ([\d,]+) parameters, ([\d.]+) million", text)
    )
    assert converted[0] > plain[0] + 2  # 5.6 points when it was written
    assert converted[1] == plain[1]
    assert 5 < converted[2] / plain[2] < 7
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1


def test_the_notebook_is_kept_without_outputs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
