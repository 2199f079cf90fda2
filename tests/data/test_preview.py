"""The contact sheet: the right digits, at the right factors, in a picture that can be opened."""

import sys

import numpy as np
import pytest

from scaleconv.data import Fixed, Listed, TruncatedNormal, Uniform, make_scaled, write_preview
from scaleconv.data.preview import GAP, LABEL, ZOOM, _sheet, _steps

pytest.importorskip("matplotlib", reason="needs the extra `experiments`")


def test_tiles_and_labels_are_where_they_belong():
    images = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5) / 60
    sheet, labels = _sheet(images, [0.3, 0.5, 1.0], 2)
    assert sheet.shape == (2 * (4 * ZOOM + LABEL), 2 * 5 * ZOOM + GAP)
    top, left = 4 * ZOOM + LABEL, 5 * ZOOM + GAP
    for k, (y, x) in enumerate([(0, 0), (0, left), (top, 0)]):
        tile = sheet[y : y + 4 * ZOOM : ZOOM, x : x + 5 * ZOOM : ZOOM]
        assert np.array_equal(tile, np.round(images[k] * 255))
        assert x < labels[k][0] < x + 5 * ZOOM
        assert y + 4 * ZOOM < labels[k][1] < y + 4 * ZOOM + LABEL
    assert [text for _, _, text in labels] == ["× 0.30", "× 0.50", "× 1.00"]
    assert (sheet[top:, left:] == 255).all()


def test_the_columns_span_the_distribution():
    assert _steps(Uniform(0.3, 1)).tolist() == pytest.approx([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert _steps(TruncatedNormal(1, 0.24, 0.4, 1.6))[[0, -1]].tolist() == [0.4, 1.6]
    assert _steps(Fixed(0.5)).tolist() == [0.5]
    assert _steps(Listed((1.0, 0.5))).tolist() == [0.5, 1.0]


def test_the_picture_shows_the_digits_pixel_for_pixel(embedded, tmp_path):
    from matplotlib.image import imread

    path = tmp_path / "sheet.png"
    write_preview(embedded, path)
    picture = np.round(imread(path)[..., 0] * 255)
    assert [file.name for file in tmp_path.iterdir()] == ["sheet.png"]
    zero = int((embedded.labels == 0).nonzero()[0])
    for scale in (0.3, 1.0):
        tile = np.round(make_scaled(embedded.images[zero : zero + 1], scale, 28)[0, 0].numpy() * 255)
        tile = tile.repeat(ZOOM, 0).repeat(ZOOM, 1)
        windows = np.lib.stride_tricks.sliding_window_view(picture[:200], tile.shape)
        assert (np.abs(windows[:, :, ::9, ::9] - tile[::9, ::9]).max((2, 3)) <= 1).any(), scale


def test_the_name_must_be_a_picture(embedded, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png"):
        write_preview(embedded, tmp_path / "sheet.pdf")


def test_without_matplotlib_the_message_names_the_extra(embedded, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[experiments\]'"):
        write_preview(embedded, tmp_path / "sheet.png")
    assert list(tmp_path.iterdir()) == []
