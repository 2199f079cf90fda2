"""What can be asked of a bench, and what is refused before anything runs."""

import pytest
import torch

from scaleconv import DEFAULT_SCALES
from scaleconv.bench import Settings, make_settings
from scaleconv.bench.shapes import SHAPES


def test_texts_become_settings_and_what_is_not_given_is_everything():
    lists = {"shapes": "mnist2, res14", "dtypes": "bfloat16", "layouts": ("contiguous,channels_last",)}
    assert make_settings("cpu", **lists, compare="si,conv2d", scales="0.5,1,2", repeats=3, batch=7) == Settings(
        shapes=("mnist2", "res14"),
        dtypes=("bfloat16",),
        layouts=("contiguous", "channels_last"),
        compare=("si", "conv2d"),
        scales=(0.5, 1, 2),
        repeats=3,
        batch=7,
    )
    default = make_settings("cpu")
    assert (default.shapes, default.compare) == (tuple(SHAPES), ("conv2d", "conv2d_wide", "direct", "si"))
    assert (default.dtypes, default.layouts) == (("float32", "bfloat16"), ("contiguous",))
    assert (default.scales, default.repeats, default.name, default.image_size) == (DEFAULT_SCALES, 5, "cpu", 224)


def test_on_a_gpu_there_are_more_repeats_larger_batches_and_another_name(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)  # as if there were a GPU
    assert (make_settings("cuda:1").name, make_settings("cuda:1").repeats) == ("cuda", 11)
    assert make_settings("cuda", "mine").name == "mine"
    shapes = [SHAPES[name] for name in ("mnist1", "res56", "stem", "depthwise", "single56", "large512")]
    assert [Settings().batch_of(shape) for shape in shapes] == [128, 4, 2, 2, 1, 1]
    assert [Settings("cuda").batch_of(shape) for shape in shapes] == [768, 64, 32, 64, 1, 2]
    assert Settings("cuda", batch=5).batch_of(shapes[0]) == 5


def test_a_record_has_the_squares_of_the_scales_and_the_flags_that_speed_depends_on(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    record = Settings().as_dict()
    assert record["wide_scales"] == pytest.approx([4 ** (k / 3) for k in range(-2, 4)])
    assert record["flags"]["cudnn_benchmark"] is True
    assert record["flags"]["cudnn_allow_tf32"] is torch.backends.cudnn.allow_tf32
    assert make_settings("cpu", scales="1,40", wide=False).scales == (1, 40)


WRONG = {
    "shapes": ({"shapes": "mnist3"}, "`shapes` must be among mnist1, mnist2, .*, large512, got 'mnist3'"),
    "twice": ({"shapes": "mnist1,mnist1"}, "`shapes` must name at least one, and none twice, got mnist1, mnist1"),
    "compare": ({"compare": "sesn"}, "`compare` must be among conv2d, .*, got 'sesn'"),
    "peers": ({"peers": ("package.Layer",)}, "`peer` must be MODULE:CLASS, got 'package.Layer'"),
    "scales": ({"scales": "one"}, "`scales` must be numbers separated by commas, got 'one'"),
    "no identity": ({"scales": "0.5,2"}, "`scales` must contain 1"),
    "huge squares": ({"scales": "1,40"}, "`scales` must have squares of at most 1000, .* got 40.0"),
    "repeats": ({"repeats": 0}, "`repeats` must be at least 1, got 0"),
    "image size": ({"image_size": 31}, "`image_size` must be at least 32, got 31"),
    "nothing": ({"layers": False, "end_to_end": False}, "`layers` or `end_to_end` must be measured, got neither"),
    "name": ({"name": "a/b"}, "`name` must be a file's name without a directory, got 'a/b'"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_refusals_name_the_argument_the_rule_and_the_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_settings("cpu", **arguments)
