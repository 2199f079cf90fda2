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
        compare="si,conv2d",
        scales="0.5,1,2",
        repeats=3,
        batch=7,
    )
    assert settings == Settings(
        shapes=("mnist2", "res14"),
        dtypes=("bfloat16",),
        layouts=("contiguous", "channels_last"),
        compare=("si", "conv2d"),
        scales=(0.5, 1.0, 2.0),
        repeats=3,
        batch=7,
    )


def test_what_is_not_given_is_everything():
    settings = make_settings("cpu")
    assert settings.shapes == tuple(SHAPES)
    assert settings.compare == ("conv2d", "conv2d_wide", "direct", "si")
    assert (settings.dtypes, settings.layouts) == (("float32", "bfloat16"), ("contiguous",))
    assert (settings.scales, settings.repeats, settings.name) == (DEFAULT_SCALES, 5, "cpu")
    assert settings.image_size == 224


def test_wide_scales_are_as_many_and_spread_to_four():
    assert Settings().wide_scales == pytest.approx([4 ** (k / 3) for k in range(-2, 4)])


def test_a_batch_is_that_of_the_device_unless_given():
    shapes = [SHAPES[name] for name in ("mnist1", "res56", "stem", "depthwise", "single56", "large512")]
    assert [Settings().batch_of(shape) for shape in shapes] == [128, 4, 2, 2, 1, 1]
    assert [Settings("cuda").batch_of(shape) for shape in shapes] == [768, 64, 32, 64, 1, 2]
    assert [Settings("cuda", batch=5).batch_of(shape) for shape in shapes] == [5] * 6


def test_every_shape_is_a_convolution_with_the_output_size_it_says():
    for shape in SHAPES.values():
        options = {"stride": shape.stride, "padding": shape.padding, "groups": shape.groups, "device": "meta"}
        layer = torch.nn.Conv2d(shape.in_channels, shape.out_channels, shape.kernel, **options)
        output = layer(torch.empty(1, shape.in_channels, shape.size, shape.size, device="meta"))
        assert output.shape == (1, shape.out_channels, shape.output_size, shape.output_size)


def test_the_flags_that_speed_depends_on_are_told(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert Settings().as_dict()["flags"]["cudnn_benchmark"] is True
    assert Settings().as_dict()["flags"]["cudnn_allow_tf32"] is torch.backends.cudnn.allow_tf32


def test_the_files_are_named_after_the_device_unless_given(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # as if there were a GPU
    assert make_settings("cuda:1").name == "cuda"
    assert make_settings("cuda", "mine").name == "mine"


WRONG = {
    "shapes": ({"shapes": "mnist3"}, "`shapes` must be among mnist1, mnist2, .*, large512, got 'mnist3'"),
    "twice": ({"shapes": "mnist1,mnist1"}, "`shapes` must name at least one, and none twice, got mnist1, mnist1"),
    "dtypes": ({"dtypes": "int8"}, "`dtypes` must be among float32, bfloat16, got 'int8'"),
    "layouts": ({"layouts": ("tiled",)}, "`layouts` must be among contiguous, channels_last, got 'tiled'"),
    "compare": ({"compare": "sesn"}, "`compare` must be among conv2d, .*, got 'sesn'"),
    "peers": ({"peers": ("package.Layer",)}, "`peer` must be MODULE:CLASS, got 'package.Layer'"),
    "peers twice": ({"peers": ("a:B", "a:B")}, "`peer` must not name a class twice, got a:B, a:B"),
    "scales": ({"scales": "one"}, "`scales` must be numbers separated by commas, got 'one'"),
    "no identity": ({"scales": "0.5,2"}, "`scales` must contain 1"),
    "huge squares": ({"scales": "1,40"}, "`scales` must have squares of at most 1000, .* got 40.0"),
    "repeats": ({"repeats": 0}, "`repeats` must be at least 1, got 0"),
    "batch": ({"batch": 0}, "`batch` must be at least 1, got 0"),
    "image size": ({"image_size": 16}, "`image_size` must be at least 32, got 16"),
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
