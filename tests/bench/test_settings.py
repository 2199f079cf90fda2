"""What can be asked of a bench, and what is refused before anything runs."""

import pytest
import torch

from scaleconv import DEFAULT_SCALES
from scaleconv.bench import Settings, make_settings
from scaleconv.bench.settings import SHAPES


def test_texts_become_settings():
    settings = make_settings(
        "cpu",
        shapes="mnist2, res14",
        dtypes="bfloat16",
        layouts=("contiguous,channels_last",),
        contenders="si,conv2d",
        scales="0.5,1,2",
        repeats=3,
        batch=7,
    )
    assert settings == Settings(
        shapes=("mnist2", "res14"),
        dtypes=("bfloat16",),
        layouts=("contiguous", "channels_last"),
        contenders=("si", "conv2d"),
        scales=(0.5, 1.0, 2.0),
        repeats=3,
        batch=7,
    )


def test_what_is_not_given_is_everything():
    settings = make_settings("cpu")
    assert settings.shapes == ("mnist1", "mnist2", "res56", "res14")
    assert settings.contenders == ("conv2d", "conv2d_wide", "direct", "si_torch", "si")
    assert (settings.dtypes, settings.layouts) == (("float32", "bfloat16"), ("contiguous",))
    assert (settings.scales, settings.repeats, settings.name) == (DEFAULT_SCALES, 5, "cpu")


def test_wide_scales_are_as_many_and_spread_to_four():
    assert Settings().wide_scales == pytest.approx([4 ** (k / 3) for k in range(-2, 4)])


def test_a_batch_is_that_of_the_device_unless_given():
    assert [Settings().batch_of(shape) for shape in SHAPES.values()] == [128, 128, 4, 4]
    assert [Settings("cuda").batch_of(shape) for shape in SHAPES.values()] == [768, 768, 64, 64]
    assert [Settings("cuda", batch=5).batch_of(shape) for shape in SHAPES.values()] == [5] * 4


def test_the_flags_that_speed_depends_on_are_told(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert Settings().as_dict()["flags"]["cudnn_benchmark"] is True
    assert Settings().as_dict()["flags"]["cudnn_allow_tf32"] is torch.backends.cudnn.allow_tf32


def test_replays_of_a_graph_do_not_overwrite_the_calls(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # as if there were a GPU
    assert make_settings("cuda").name == "cuda"
    assert make_settings("cuda", graph=True).name == "cuda-graph"
    assert make_settings("cuda", "mine", graph=True).name == "mine"


WRONG = {
    "shapes": ({"shapes": "mnist3"}, "`shapes` must be among mnist1, mnist2, res56, res14, got 'mnist3'"),
    "twice": ({"shapes": "mnist1,mnist1"}, "`shapes` must name at least one, and none twice, got mnist1, mnist1"),
    "dtypes": ({"dtypes": "int8"}, "`dtypes` must be among float32, bfloat16, got 'int8'"),
    "layouts": ({"layouts": ("tiled",)}, "`layouts` must be among contiguous, channels_last, got 'tiled'"),
    "contenders": ({"contenders": "sesn"}, "`contenders` must be among conv2d, .*, got 'sesn'"),
    "peers": ({"peers": ("package.Layer",)}, "`peer` must be MODULE:CLASS, got 'package.Layer'"),
    "peers twice": ({"peers": ("a:B", "a:B")}, "`peer` must not name a class twice, got a:B, a:B"),
    "scales": ({"scales": "one"}, "`scales` must be numbers separated by commas, got 'one'"),
    "no identity": ({"scales": "0.5,2"}, "`scales` must contain 1"),
    "huge squares": ({"scales": "1,40"}, "`scales` must have squares of at most 1000, .* got 40.0"),
    "repeats": ({"repeats": 0}, "`repeats` must be at least 1, got 0"),
    "batch": ({"batch": 0}, "`batch` must be at least 1, got 0"),
    "graph": ({"graph": True}, "`graph` needs a CUDA device, got `device` 'cpu'"),
    "nothing": ({"layers": False, "end_to_end": False}, "`layers` or `end_to_end` must be measured, got neither"),
    "name": ({"name": "a/b"}, "`name` must be a file's name without a directory, got 'a/b'"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_refusals_name_the_argument_the_rule_and_the_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_settings("cpu", **arguments)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="`device` must be one this machine has, got 'abacus'"):
        make_settings("abacus")


def test_large_scales_do_without_their_squares():
    assert make_settings("cpu", scales="1,40", wide=False).scales == (1, 40)
