"""The notebooks run from the first cell to the last, in a kernel of their own, as a reader's do.

They are stored with their outputs, which `make notebooks` writes; those have to be what the code gives now.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
TIMES = r"a training step: .*"  # of this machine
MEASURED = r"\d+\.\d+|\d+(?= ?%)|(?<=: a )\d"  # after training, which rounds differently on another processor
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def outputs_of(path):
    """Of each cell of code its text and the number of its pictures."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    return [
        (
            re.sub(TIMES, "#", "".join("".join(output.get("text", "")) for output in cell["outputs"])),
            sum("image/png" in output.get("data", {}) for output in cell["outputs"]),
        )
        for cell in cells
    ]


@each_notebook
def test_a_notebook_runs_and_gives_the_outputs_that_are_stored(path, tmp_path):
    pytest.importorskip("nbclient", reason="needs the extra `test`")
    pytest.importorskip("ipykernel", reason="needs the extra `test`")
    helpers = str(Path(__file__).parent)
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), helpers)))
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    call = [sys.executable, "-W", "ignore", "-m", "helpers.notebook", copy]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, stored = outputs_of(copy), outputs_of(path)
    assert [(re.sub(MEASURED, "#", text), pictures) for text, pictures in found] == [
        (re.sub(MEASURED, "#", text), pictures) for text, pictures in stored
    ]
    for now, kept in zip(found, stored, strict=True):
        for new, old in zip(re.findall(MEASURED, now[0]), re.findall(MEASURED, kept[0]), strict=True):
            assert float(new) == pytest.approx(float(old), abs=10)  # percent, mostly
    if path.stem == "own_network":
        converting_gains("".join(text for text, _ in found))


def converting_gains(text):
    """Of two networks with as many parameters the one with late layers converted is better over all scales."""
    assert "scale-invariant: layers 12, 15\n" in text
    found = re.findall(r"(\w+): .* at scale 1, ([\d.]+) % over all scales, ([\d,]+) parameters", text)
    (_, plain, before), (_, converted, after) = found
    assert [name for name, *_ in found] == ["plain", "converted"]
    assert float(converted) > float(plain) > 70  # by 1.8 points in the stored run
    assert before == after


@each_notebook
def test_a_notebook_is_stored_with_outputs_of_the_code_alone(path):
    assert sum(pictures for _, pictures in outputs_of(path)) > 0
    cells = json.loads(path.read_text())["cells"]
    run = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert run == list(range(1, len(run) + 1))
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}  # no warnings, no progress
    texts = [text for text, _ in outputs_of(path)]
    assert [text for text in texts if re.search(r"/(tmp|home|root|work|usr)/|\d\d:\d\d|[Ww]arning", text)] == []
    assert [cell["metadata"] for cell in cells if cell["metadata"]] == []
    assert path.stat().st_size < 150_000
