"""The picture of filters and samples."""

import re

import pytest
import torch

from scaleconv.experiments.filters import draw_filters, tile


def test_tiles_lie_in_rows_with_lines_between():
    images = torch.arange(1.0, 4).view(3, 1, 1).expand(3, 2, 2)
    expected = torch.tensor([[1, 1, 9, 2, 2], [1, 1, 9, 2, 2], [9] * 5, [3, 3, 9, 9, 9], [3, 3, 9, 9, 9]])
    assert torch.equal(tile(images, 2, 9.0), expected.float())


def test_a_picture_is_written(tmp_path):
    path = tmp_path / "filters.png"
    draw_filters(torch.randn(12, 8, 8), torch.rand(5, 8, 8), "RBM", [path])
    from matplotlib.image import imread

    pixels = imread(path)
    assert pixels.shape[0] > 500
    assert pixels[..., :3].std() > 0.1


def test_filters_that_are_zero_are_drawn_too(tmp_path):
    draw_filters(torch.zeros(2, 4, 4), torch.zeros(2, 4, 4), "nothing learned", [tmp_path / "zero.png"])
    assert (tmp_path / "zero.png").stat().st_size > 1000


def test_wrong_shapes_are_named(tmp_path):
    for filters, samples, name, shape in (
        (torch.zeros(3, 4), torch.zeros(1, 4, 4), "filters", "(3, 4)"),
        (torch.zeros(1, 4, 4), torch.zeros(0, 4, 4), "samples", "(0, 4, 4)"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"`{name}` must be of shape (N, height, width)")) as refusal:
            draw_filters(filters, samples, "", [tmp_path / "x.png"])
        assert shape in str(refusal.value)
