"""The notebooks run from the first cell to the last, in a kernel of their own, as a reader's do.

They are stored without outputs, which would be out of date after the next change.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
SECONDS = 300  # a machine that does other work, too
RUN = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=int(sys.argv[3]), kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    pytest.importorskip("nbclient", reason="needs the extra `test`")
    pytest.importorskip("ipykernel", reason="needs the extra `test`")
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-W", "ignore", "-c", RUN, path, tmp_path / "run.ipynb", str(SECONDS)]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "run.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    if path.stem == "own_network":
        converting_gains("".join("".join(output.get("text", "")) for output in outputs))


def converting_gains(text):
    """The converted network is better over all scales, with as many parameters."""
    plain, converted = (
        [float(number.replace(",", "")) for number in line]
        for line in re.findall(r": ([\d.]+) % over all scales, ([\d,]+) parameters, ([\d.]+) million", text)
    )
    assert converted[0] > plain[0] + 2  # 5.6 points when it was written
    assert converted[1] == plain[1]
    assert 5 < converted[2] / plain[2] < 7


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
