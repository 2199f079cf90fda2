"""The notebooks run from the first cell to the last, in a kernel of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
SECONDS = 300  # a machine that does other work, too
RUN = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=int(sys.argv[2]), kernel_name="python3").execute()
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    pytest.importorskip("nbclient", reason="needs the extra `test`")
    pytest.importorskip("ipykernel", reason="needs the extra `test`")
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-W", "ignore", "-c", RUN, path, str(SECONDS)]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
