"""What tests of several packages use."""

import os
import shutil
import sys
from types import SimpleNamespace

if not shutil.which("nvidia-smi"):  # Triton reads this when it is imported, which torch does
    os.environ["TRITON_INTERPRET"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores; threads of each would only wait for one another
    os.environ["OMP_NUM_THREADS"] = "1"  # theirs, and of the processes that they start

import pytest
from hypothesis import settings

from scaleconv import cli
from scaleconv.ops.cpu import SPARSE_MAPS

# The same examples in every run: a suite is to fail for a change, not by chance. `make fuzz` looks for new ones.
settings.register_profile("suite", derandomize=True)
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="module")
def few_matrices():
    """A process of tests has more layers than any other, and would be told to keep more of their matrices."""
    yield
    SPARSE_MAPS.clear()


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run the command in an empty directory with an empty cache: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCALECONV_DATA", raising=False)
    monkeypatch.delenv("SCALECONV_TRACEBACK", raising=False)
    monkeypatch.setitem(
        sys.modules, "platformdirs", SimpleNamespace(user_cache_dir=lambda *_, **__: str(tmp_path / "cache"))
    )

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        return end.value.code, *capsys.readouterr()

    return call
