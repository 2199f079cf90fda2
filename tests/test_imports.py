"""Imports point one way, cli → demo → experiments → bench → inspection, models, data, metrics → nn → ops → torch."""

import ast
import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaleconv.__main__ import NEEDED, main

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
SOURCES = Path(__file__).parents[1] / "src" / "scaleconv"
FILES_BESIDE = ("table", "timing", "environment", "drawing")
MAY_IMPORT = {
    "ops": set(),
    "nn": {"ops"},
    "models": {"nn", "ops"},
    "data": set(),
    "metrics": {"data", "nn", "ops"},
    "table": set(),
    "timing": {"ops"},
    "environment": set(),
    "drawing": {"data"},
    "inspection": {"drawing", "metrics", "nn", "ops", "table", "timing"},
    "bench": {"models", "data", "nn", "ops", *FILES_BESIDE},
    "experiments": {"bench", "models", "data", "metrics", "inspection", "nn", "ops", "configs", *FILES_BESIDE},
    "demo": {"drawing", "experiments", "inspection", "models", "data", "nn", "ops"},
    "cli": {"demo", "bench", "experiments", "models", "data", "metrics", "nn", "ops", "table", "_start"},
    "__init__": {"inspection", "nn", "ops", "_start"},
    "__main__": {"cli", "_start"},
    "_start": set(),
}
# These import torch alone.
CORE = ("__init__", "__main__", "_start", "ops", "nn", "models", "metrics", "table", "timing", "environment")
# Imported where they are used.
OPTIONAL = {"PIL", "fontTools", "jinja2", "lightning_fabric", "matplotlib", "platformdirs", "ray", "requests"}
DEMO = {"anyio", "starlette", "uvicorn"}  # of the extra `demo`, in its server
# Their names differ from what is imported.
PACKAGES = {"PIL": "pillow", "fontTools": "fonttools", "lightning_fabric": "pytorch-lightning"}
FILES = sorted(SOURCES.rglob("*.py"))


def imported_by(path: Path) -> Iterator[tuple[str, bool]]:
    """(module, whether at the top of the file) of everything a file imports, ours as absolute names."""
    package = ["scaleconv", *path.relative_to(SOURCES).parts[:-1]]
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "scaleconv" else [module]
            for name in names:
                yield name, id(node) in top


def package_of(path: Path) -> str:
    """The folder of `src/scaleconv` that a file is in; a file beside the folders is a package of its own."""
    return path.relative_to(SOURCES).parts[0].removesuffix(".py")


def name(path):
    return str(path.relative_to(SOURCES))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_point_downwards_and_optional_packages_are_imported_where_they_are_used(path):
    here = package_of(path)
    for module, at_top in imported_by(path):
        parts = module.split(".")
        assert not (at_top and parts[0] in OPTIONAL), f"{path} imports {module} at its top"
        if parts[0] == "scaleconv" and len(parts) > 1 and parts[1] not in (here, "__version__"):
            assert parts[1] in MAY_IMPORT[here], f"{path} must not import {module}"


def third_party(path):
    names = {module.split(".")[0] for module, _ in imported_by(path)}
    return names - set(sys.stdlib_module_names) - {"scaleconv"}


@pytest.mark.parametrize("path", [path for path in FILES if package_of(path) in CORE], ids=name)
def test_the_core_imports_torch_alone(path):
    kernels = {"triton"} if path.parent.name == "triton" else set()
    assert third_party(path) <= {"torch"} | kernels


def test_what_the_command_imports_is_what_its_extra_installs():
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert [name.partition(">")[0] for name in project["dependencies"]] == ["torch"]
    extras = project["optional-dependencies"]
    named = (*extras["experiments"], extras["ray"][1], *extras["demo"][1:])
    extra = {name.partition(">")[0] for name in named}
    used = set().union(*(third_party(path) for path in FILES)) - {"torch", "triton"}
    assert used == {*NEEDED, *OPTIONAL, *DEMO}
    assert {PACKAGES.get(name, name) for name in used} == extra


def test_no_two_modules_share_a_name():
    names = Counter(path.stem if path.stem != "__init__" else path.parent.name for path in FILES)
    assert [name for name, count in names.items() if count > 1] == []


def run_python(code, without=()):
    """What a process prints that cannot import some packages."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({sorted(without)}))\n"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", blocked + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


LIGHT = """
import json, pathlib, sys, time
import torch

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 if sys.platform == "linux" else 0

before, held, start = set(sys.modules), resident(), time.process_time()  # the clock of others' work is not ours
import scaleconv
seconds, grown = time.process_time() - start, resident() - held
print(json.dumps([sorted(set(sys.modules) - before), seconds, grown / 2**20]))
"""


def test_importing_the_layer_imports_torch_and_ours_alone_in_no_time():
    imported, seconds, mib = json.loads(run_python(LIGHT))
    ours = {name for name in imported if name.split(".")[0] == "scaleconv"}
    assert {name.split(".")[1] for name in ours if "." in name} == {"nn", "ops", "_start"}
    assert {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names} == ours
    # It takes 30 ms of the processor and 1.5 MiB. To import the compiler, which happens by accident, takes 1.7 s and
    # 74 MiB.
    assert seconds < 0.5
    assert mib < 15


FORWARD_AND_BACKWARD = """
import torch, scaleconv
layer = scaleconv.SIConv2d(1, 2, 3)
layer(torch.rand(1, 1, 9, 9)).sum().backward()
print(tuple(layer.weight.grad.shape))
"""


def test_the_packages_of_the_suite_are_there_when_asked_for():
    code = "import scaleconv; print(scaleconv.experiments.load.__name__, scaleconv.data.read_set.__name__)"
    assert run_python(code) == "load read_set\n"


def test_the_layer_works_with_torch_alone():
    assert run_python(FORWARD_AND_BACKWARD, without={*NEEDED, *OPTIONAL, "triton"}) == "(2, 1, 3, 3)\n"


RECIPE = """
import torch, scaleconv
from scaleconv.data.augment import augment
images, _ = augment(torch.rand(2, 3, 16, 16), torch.zeros(2), torch.rand(2, 4), ["scale"])
layer = torch.nn.Conv2d(3, 4, 3)
print(scaleconv.convert(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), layer), images=images)(images).shape)
"""


def test_the_recipe_for_photographs_works_with_torch_alone():
    without = {*NEEDED, *OPTIONAL, "triton"}
    assert run_python(RECIPE, without) == "torch.Size([2, 4, 14, 14])\n"


def test_the_command_imports_without_what_is_imported_where_it_is_used():
    run_python("import scaleconv.cli", without=OPTIONAL)


@pytest.mark.parametrize("missing", [NEEDED, ("numpy",)])
def test_the_command_without_its_packages_is_one_line_that_names_the_extra(missing, monkeypatch, capsys):
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    expected = f"scaleconv: the command needs {', '.join(missing)}: pip install 'scaleconv[experiments]'\n"
    assert capsys.readouterr() == ("", expected)


def test_the_data_without_its_packages_names_the_extra():
    code = "try: from scaleconv.data import read_set\nexcept ImportError as error: print(error)"
    expected = "scaleconv.data needs safetensors: pip install 'scaleconv[experiments]'\n"
    assert run_python(code, without={"safetensors"}) == expected


@pytest.mark.parametrize("arguments", [[], ["--help"], ["compare", "--help"], ["data", "--help"]])
def test_the_help_of_the_command_does_not_wait_for_torch(arguments):
    code = f"sys.argv = {['scaleconv', *arguments]}\nfrom scaleconv.__main__ import main\nmain()"
    assert "scaleconv" in run_python(code, {"torch"})


def test_the_command_has_the_whole_package_when_it_needs_it():
    imports = "sys.argv = ['scaleconv']\nfrom scaleconv import *\n"
    names = run_python(f"{imports}print(SIConv2d.__name__, scaling.__name__, summary.__name__)")
    assert names.split() == ["SIConv2d", "scaling", "summary"]
