"""docs/architecture.md lists the modules that are really entered, and its picture shows the imports of today."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import architecture

PAGE = Path(architecture.__file__).with_suffix(".md")


def listed_after(line):
    """The modules of the first list after a line of the page: those that its entries begin with."""
    bullets = re.search(r"\n(- .*?)\n\n", PAGE.read_text().split(f"\n{line}\n")[1], re.DOTALL)[1]
    entries = re.findall(r"^- ((?:`[\w.]+`(?:, )?)+):", bullets, re.MULTILINE)
    return {name for entry in entries for name in re.findall(r"[\w.]+", entry)}


CALL = listed_after("## One call of the layer")
ON_CPU, ON_GPU = CALL | listed_after("A CPU adds:"), CALL | listed_after("A GPU adds:")
REPRODUCE = listed_after("## `scaleconv reproduce table1`")


SMALL = (
    "data.train=100 data.tested=100 network.maps=[1,1] network.hidden=4 training.batch=50 rbm.hidden=4 si_rbm.hidden=4"
)
COMMAND = ["reproduce", "table1", "--folds", "0", "--epochs", "1"]
COMMAND += [word for setting in SMALL.split() for word in ("--set", setting)]
# In a new process, whose caches are empty: the modules of ours whose functions are called by the layer on a CPU, by the
# layer with the plans of a GPU, which Triton's interpreter executes, and by the command.
WALK = f"""
import importlib, json, os, pkgutil, sys
import torch, scaleconv
from scaleconv import SIConv2d, cli
from scaleconv.ops import custom_op

root = scaleconv.__path__[0] + os.sep
for module in pkgutil.walk_packages(scaleconv.__path__, "scaleconv."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
codes = set()

def entered(function):
    codes.clear()
    sys.settrace(lambda frame, *_: codes.add(frame.f_code))
    try:
        function()
    except SystemExit as end:
        assert not end.code
    finally:
        sys.settrace(None)
    paths = {{code.co_filename for code in codes if code.co_name != "<module>"}}
    return sorted(path.removeprefix(root)[:-3].replace(os.sep, ".") for path in paths if path.startswith(root))

def call(*arguments, **others):
    layer, images = SIConv2d(*arguments, padding=1, **others), torch.rand(1, arguments[0], 3, 2)
    return lambda: layer(images).sum().backward()

found = {{"cpu": entered(call(16, 16, 3)), "command": entered(lambda: cli.main({COMMAND!r}))}}
if importlib.util.find_spec("triton"):
    import dataclasses
    from triton.runtime.interpreter import interpreter_builder

    unchecked = dataclasses.replace(interpreter_builder.options, sanitize_overflow=False)  # else it takes twice as long
    interpreter_builder.options = unchecked
    custom_op.find_plan = lambda input, call: custom_op.make_plan(call, len(input), True)
    dense, depthwise = call(1, 1, 2, scales=(1, 1.5)), call(2, 2, 2, scales=(1, 1.5), groups=2)
    found["gpu"] = entered(lambda: (dense(), depthwise()))
print()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WALK],
        cwd=tmp_path_factory.mktemp("walk"),
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {name: set(modules) for name, modules in json.loads(done.stdout.splitlines()[-1]).items()}


def test_a_call_on_a_cpu_enters_the_modules_on_the_page(walked):
    assert walked["cpu"] == ON_CPU


def test_a_call_on_a_gpu_enters_the_modules_on_the_page(walked):
    pytest.importorskip("triton")
    assert walked["gpu"] == ON_GPU


def test_reproduce_enters_the_modules_on_the_page(walked):
    assert {"nn.layers", "ops.scale_max"} < walked["command"] & ON_CPU
    assert walked["command"] - ON_CPU == REPRODUCE


def identifiers():
    tree = ElementTree.parse(architecture.PICTURE)
    return [element.get("id", "") for element in tree.iter()]


def test_the_picture_has_an_arrow_for_every_import_between_rooms():
    drawn = {tuple(name.split("-imports-")) for name in identifiers() if "-imports-" in name}
    assert drawn == architecture.room_imports()


def test_the_picture_lists_every_module_in_its_room():
    rooms = (name.split("-holds") for name in identifiers() if "-holds" in name)
    drawn = {room: held.split("-")[1:] for room, held in rooms}
    assert drawn == architecture.modules_by_room()


def test_arrows_point_downwards():
    bottoms = {room: place[1] for room, (place, _) in architecture.ROOMS.items()}
    assert all(bottoms[start] > bottoms[end] for start, end in architecture.room_imports())
