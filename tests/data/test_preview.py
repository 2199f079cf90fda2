"""The contact sheet: the right digits, at the right factors, in a picture that can be opened."""

import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw

from scaleconv.data import Fixed, Listed, TruncatedNormal, Uniform, make_scaled, write_preview
from scaleconv.data.preview import GAP, LABEL, MARGIN, TITLE, ZOOM, _steps


def test_the_columns_span_the_distribution():
    assert _steps(Uniform(0.3, 1)).tolist() == pytest.approx([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert _steps(TruncatedNormal(1, 0.24, 0.4, 1.6))[[0, -1]].tolist() == [0.4, 1.6]
    assert _steps(Fixed(0.5)).tolist() == [0.5]
    assert _steps(Listed((1.0, 0.5))).tolist() == [0.5, 1.0]


def test_the_picture_shows_the_digits_pixel_for_pixel_each_above_its_factor(embedded, tmp_path, monkeypatch):
    texts, text = [], ImageDraw.ImageDraw.text
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda *a, **k: (texts.append(a[1:]), text(*a, **k)))
    write_preview(embedded, tmp_path / "sheet.png", size=(28, 30))
    assert [file.name for file in tmp_path.iterdir()] == ["sheet.png"]
    with Image.open(tmp_path / "sheet.png") as picture:
        page = np.asarray(picture)
    high, wide = 28 * ZOOM, 30 * ZOOM
    right = 2 * MARGIN + 8 * (wide + GAP)
    zero, two = (int((embedded.labels == label).nonzero()[0]) for label in (0, 2))
    drawn = Uniform(0.3, 1).draw(80, 0)
    places = [(MARGIN, 0, 0, zero, 0.3), (MARGIN, 7, 0, zero, 1.0), (MARGIN, 1, 2, two, 0.4)]
    for start, column, row, digit, factor in (*places, (right, 3, 1, 11, drawn[11])):
        top, left = TITLE + row * (high + LABEL), start + column * (wide + GAP)
        tile = np.round(make_scaled(embedded.images[digit : digit + 1], float(factor), (28, 30))[0, 0].numpy() * 255)
        found = page[top : top + high, left : left + wide]
        assert np.abs(found - tile.repeat(ZOOM, 0).repeat(ZOOM, 1)).max() <= 1
        assert ((left + wide // 2, top + high + LABEL // 2), f"{factor:.2f}") in texts
    assert texts[0][1] == "a digit of each class across the scales, 28 x 30 pixels"


def test_what_cannot_be_drawn_is_refused_and_leaves_nothing(embedded, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"must end in \.png"):
        write_preview(embedded, tmp_path / "sheet.pdf")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'scaleconv\[experiments\]'"):
        write_preview(embedded, tmp_path / "sheet.png")
    assert list(tmp_path.iterdir()) == []
