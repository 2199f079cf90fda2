"""Imports point one way: cli → bench → experiments → models, data, metrics → nn → ops → torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import scaleconv

ROOT = Path(scaleconv.__file__).parent
MAY_IMPORT = {
    "ops": set(),
    "nn": {"ops"},
    "models": {"nn", "ops"},
    "data": {"ops"},
    "metrics": set(),
    "experiments": {"models", "data", "metrics", "nn", "ops", "configs"},
    "bench": {"experiments", "models", "data", "nn", "ops"},
    "cli": {"bench", "experiments", "models", "data", "metrics", "nn", "ops"},
    "__init__": {"nn", "ops"},
}
OPTIONAL = {"matplotlib", "pooch"}
FILES = sorted(ROOT.rglob("*.py"))


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree, path):
    """(module, whether at the top of the file) of everything the file imports, ours as absolute names."""
    package = ["scaleconv", *path.relative_to(ROOT).parts[:-1]]
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    here = room(path)
    for module, _ in imports(ast.parse(path.read_text()), path):
        parts = module.split(".")
        if parts[0] == "scaleconv" and len(parts) > 1 and parts[1] not in (here, "__version__"):
            assert parts[1] in MAY_IMPORT[here], f"{path} must not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_optional_packages_are_imported_where_they_are_used(path):
    for module, at_top in imports(ast.parse(path.read_text()), path):
        assert not (at_top and module.split(".")[0] in OPTIONAL), f"{path} imports {module} at its top"


def test_the_package_imports_without_its_optional_packages():
    code = "import sys; [sys.modules.__setitem__(name, None) for name in {}]; import scaleconv, scaleconv.cli"
    done = subprocess.run([sys.executable, "-c", code.format(sorted(OPTIONAL))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_layer_needs_nothing_of_the_command_line():
    code = "import sys, scaleconv; print(sorted({'typer', 'rich', 'matplotlib', 'scaleconv.cli'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
