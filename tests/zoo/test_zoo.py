"""Eight networks of other libraries are converted, trained, saved, reverted, calibrated, explained and exported.

They differ in what follows a convolution, in what they take and return, and in how their convolutions pad.
`make test-zoo` runs more steps with more networks.
"""

from pathlib import Path

import pytest

from zoo.networks import ENTRIES, MODULES, prepare_torchvision
from zoo.report import rows_of
from zoo.steps import FAILED, STEPS, Case, run_step

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
EIGHT = (
    "torchvision/vgg",  # in-place ReLU after the convolutions
    "torchvision/resnet10",
    "torchvision/fpn_backbone",  # returns an OrderedDict of maps
    "timm/tf_mobilenetv3_small_minimal_100",  # Conv2dSame, depthwise
    "transformers/ConvNext",  # returns a ModelOutput
    "smp/Unet",
    "monai/UNet",
    "diffusers/UNet2DModel",  # takes a timestep, too
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


def test_the_page_has_a_row_for_every_network_and_nothing_of_ours_fails():
    rows = rows_of(PAGE)
    assert list(rows) == list(ENTRIES)
    assert {len(marks) for marks in rows.values()} == {len(STEPS)}
    assert [name for name, marks in rows.items() if FAILED in marks] == []
