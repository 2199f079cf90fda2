"""Eight networks of other libraries are converted, trained, saved, reverted, calibrated, explained and exported.

They differ in what follows a convolution, in what they take and return, and in how their convolutions pad.
`make test-zoo` runs more steps with more networks.
"""

from pathlib import Path

import pytest
from torch import nn

from zoo.networks import ENTRIES, MODULES, Entry, prepare_torchvision
from zoo.report import BEGIN, END, render, rows_of, tidy, write
from zoo.steps import FAILED, FAILED_PLAIN, LEFT_OUT, PASSED, STEPS, Case, Outcome, run_network, run_step

PAGE = Path(__file__).parents[2] / "docs" / "networks-tried.md"
EIGHT = (
    "torchvision/vgg",  # in-place ReLU after the convolutions
    "torchvision/fpn_backbone",  # a ResNet; returns an OrderedDict of maps
    "timm/tf_mobilenetv3_small_minimal_100",  # Conv2dSame, depthwise
    "transformers/ConvNext",  # returns a ModelOutput
    "smp/Unet",
    "monai/UNet",
    "diffusers/UNet2DModel",  # takes a timestep, too
    "kornia/KeyNet",  # its first convolution sees no image
)
DONE = ("convert", "train", "channels_last", "state_dict", "revert", "calibrate", "explain", "export")


@pytest.fixture(scope="module")
def case(request):
    """The network that the tests of a module share; every step takes a copy."""
    entry = ENTRIES[request.param]
    prepare_torchvision()
    pytest.importorskip(MODULES.get(entry.library, entry.library), reason="needs the extra `zoo`")
    return Case(entry)


@pytest.mark.parametrize("step", DONE)
@pytest.mark.parametrize("case", EIGHT, indirect=True)
def test_a_network_of_a_library_goes_through_the_steps(case, step):
    outcome = run_step(STEPS[step], case.entry, case)
    assert outcome.mark != FAILED, outcome.note


def test_the_page_has_every_network_and_nothing_of_ours_fails():
    rows = rows_of(PAGE)
    assert sorted(rows) == sorted(ENTRIES)
    assert all(set(marks) == set(STEPS) for marks in rows.values())
    assert [name for name, marks in rows.items() if FAILED in marks.values()] == []


# The steps find what is wrong, and whose fault it is.


def small(**options):
    return Entry("tests/small", lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), size=(3, 8, 8), **options)


def marks_of(entry, *steps):
    return [outcome.mark for outcome in run_network(entry, [STEPS[each] for each in steps]).values()]


def test_a_step_that_fails_with_the_plain_network_too_is_told_apart():
    def fail(case):
        case.network()[0].nothing  # noqa: B018

    def fail_converted(case):
        if case.converted:
            fail(case)

    found = [
        run_step(type(STEPS["train"])("broken", run, plain=True), small(), Case(small()))
        for run in (fail, fail_converted)
    ]
    assert [outcome.mark for outcome in found] == [FAILED_PLAIN, FAILED]
    assert "no attribute 'nothing'" in found[0].note


def test_a_network_that_is_not_converted_goes_through_no_further_step():
    entry = Entry("tests/none", lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), size=(3, 8, 8))
    assert marks_of(entry, "convert", "train", "revert") == [FAILED, LEFT_OUT, LEFT_OUT]


def test_a_step_that_does_not_apply_has_a_reason():
    entry = small(without={"train": "it sleeps"})
    found = run_network(entry, [STEPS["convert"], STEPS["train"]])
    assert found == {"convert": Outcome(PASSED), "train": Outcome(LEFT_OUT, "it sleeps")}


class Forgetful(nn.Conv2d):
    """Draws other weights when it is loaded."""

    def _load_from_state_dict(self, *arguments):
        super()._load_from_state_dict(*arguments)
        nn.init.normal_(self.weight)


def test_a_network_that_forgets_what_it_loads_is_found():
    entry = Entry("tests/forgetful", lambda: nn.Sequential(Forgetful(3, 4, 3)), size=(3, 8, 8))
    assert marks_of(entry, "convert", "state_dict", "revert") == [PASSED, FAILED_PLAIN, PASSED]


def test_a_long_message_becomes_its_reason():
    message = "`module` must take levels of other sizes than the image (8×8 pixels), but not that of 5×5 (Error: a)"
    assert tidy(f"with `size='input'`: {message}") == "with `size='input'`: it takes images of one size"
    assert tidy("`x` must be (N, C, H, W), got shape (2, 640)") == "for images"
    assert tidy("onnxruntime: off by 2.4e-01") == "onnxruntime: off by 2.4e-01"


def test_the_table_is_written_between_its_marks_and_read_again(tmp_path):
    page, names = tmp_path / "page.md", ["timm/levit_128s", "smp/FPN"]
    whole, passed = "timm/repvgg_a0", dict.fromkeys(("convert", "train", "copy"), Outcome(PASSED))
    page.write_text(f"Before\n\n{BEGIN}\nold\n{END}\n\nAfter\n")
    outcomes = {"convert": Outcome(PASSED), "train": Outcome(LEFT_OUT, "a|b"), "copy": Outcome(FAILED_PLAIN, "a|b")}
    for _ in range(2):
        write(render(dict.fromkeys(names, outcomes) | {whole: passed}, list(outcomes)), page)
    marks = {step: outcome.mark for step, outcome in outcomes.items()}
    assert rows_of(page) == dict.fromkeys(names, marks) | {whole: dict.fromkeys(marks, PASSED)}
    assert page.read_text().startswith(f"Before\n\n{BEGIN}\n3 networks, 3 steps. torch ")
    assert "every network: `convert`.\n" in page.read_text()
    assert "\n- timm: `repvgg_a0`\n\n| network | train | copy |\n" in page.read_text()
    assert page.read_text().endswith(f"\n1. a\\|b\n{END}\n\nAfter\n")
