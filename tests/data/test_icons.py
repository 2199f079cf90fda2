"""Icons: paths as SVG means them, coverage by hand, and the places of the published generator."""

import json
import math

import numpy as np
import pytest

from scaleconv.data.icons import (
    EMBEDDED_ICONS,
    EMOJI,
    SIZES,
    draw_icon,
    find_package,
    flatten,
    load_icons,
    parse_icon,
    read_icon,
)

DRAWING = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 16"><!-- d="M9 9" --><path fill="#fff" d="{path}"/></svg>'
)
FRAME = "M0 0h8v8H0zM2 2v4h4V2z"  # 8×8 with a hole of 4×4, in the upper half of a view of 8×16


def write_package(folder, version="5.15.3", path=FRAME):
    """An installed package whose icons are all the same drawing."""
    (folder / "svgs" / "regular").mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"version": version}))
    for name in EMOJI:
        (folder / "svgs" / "regular" / f"{name}.svg").write_text(DRAWING.format(path=path))


def test_a_drawing_covers_what_it_encloses_scaled_to_fit_and_centred(tmp_path):
    (tmp_path / "frame.svg").write_text(DRAWING.format(path=FRAME))
    drawn = draw_icon(read_icon(tmp_path / "frame.svg"), 32)  # 16 wide, 32 high: from column 8 to 24
    expected = np.zeros((32, 32))
    expected[:16, 8:24] = 255
    expected[4:12, 12:20] = 0
    assert np.array_equal(drawn, expected)


def test_partly_covered_pixels_have_their_share():
    # From 1.25 to 2.5 along both axes, of 4 pixels.
    drawn = draw_icon(parse_icon("0 0 4 4", "M1.25 1.2h1.25v1.4h-1.25z"), 4) / 255
    across, down = np.array([0, 0.75, 0.5, 0]), np.array([0, 0.8, 0.6, 0])
    assert drawn == pytest.approx(np.outer(down, across), abs=1 / 255)


@pytest.mark.parametrize("size", [17, 40, 64])
def test_shapes_cover_their_areas(size):
    areas = {"square": 1, "triangle": 1 / 2, "frame": 1 - (192 / 512) ** 2, "disc": math.pi / 4}
    for name, icon in EMBEDDED_ICONS.items():
        covered = draw_icon(parse_icon(*icon), size).mean() / 255
        assert covered == pytest.approx(areas[name], abs=0.25 / size), name  # a curve is drawn within 0.1 pixels


def test_what_winds_twice_is_covered_once_and_what_winds_back_is_open():
    square = "M0 0h4v4h-4z"
    assert (draw_icon(parse_icon("0 0 4 4", square + square), 4) == 255).all()
    assert (draw_icon(parse_icon("0 0 4 4", square + "M0 0v4h4v-4z"), 4) == 0).all()


@pytest.mark.parametrize("path", ["m1 1l2 0 0 2z", "M1,1H3V3", "M1 1h2v2zM0 0z"])
def test_every_contour_is_closed(path):
    parts = parse_icon("0 0 4 4", path).parts
    assert parts == ((1 + 1j, 3 + 1j), (3 + 1j, 3 + 3j), (3 + 3j, 1 + 1j))


def test_a_curve_becomes_lines_that_lie_within_a_tenth_of_a_pixel():
    curve = (0j, 30j, 40 + 30j, 40 + 0j)
    lines = flatten(curve)
    assert [line[1] for line in lines[:-1]] == [line[0] for line in lines[1:]]
    for t in np.linspace(0, 1, 1000):
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        point = sum(weight * each for weight, each in zip(weights, curve, strict=True))
        distances = []
        for start, end in lines:
            along = min(max(((point - start) * (end - start).conjugate()).real / abs(end - start) ** 2, 0), 1)
            distances.append(abs(point - start - along * (end - start)))
        assert min(distances) < 0.1
    assert len(lines) < 40


def test_places_are_drawn_icon_by_icon_size_by_size_and_set_by_set():
    icons = load_icons("embedded")
    np.random.seed(42)  # noqa: NPY002  # as the published generator does
    for index in range(4):
        for level, size in enumerate(range(64, 16, -1)):
            for part in range(3):
                left, top = np.random.randint(0, 64 - size + 1, 2)  # noqa: NPY002
                assert icons.places[part, level, index].tolist() == [left, top]
                image = icons.images[part, level, index]
                if index == 0:  # a square fills its place
                    assert (image[top : top + size, left : left + size] == 255).all()
                assert int(image.sum()) == int(image[top : top + size, left : left + size].sum()) > 0


def test_images_of_sizes_come_with_their_labels():
    icons = load_icons("embedded")
    images, labels = icons.of_sizes(2, [17, 64])
    assert (images.shape, labels.tolist()) == ((8, 1, 64, 64), [0, 1, 2, 3] * 2)
    assert images[0].sum() == 17 * 17 * 255
    assert images[4].sum() == 64 * 64 * 255
    assert (list(SIZES[:2]), SIZES[-1]) == ([64, 63], 17)


@pytest.mark.parametrize("place", ["", "package", "node_modules/@fortawesome/fontawesome-free"])
def test_the_package_is_found_where_npm_puts_it(tmp_path, place):
    write_package(tmp_path / place)
    assert find_package(tmp_path) == tmp_path / place
    icons = load_icons("emoji", tmp_path)
    assert (icons.images.shape, icons.names) == ((3, 48, 36, 64, 64), EMOJI)


def test_another_version_or_no_package_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"fontawesome-free in .*`npm install .*@5\.15\.3`"):
        load_icons("emoji", tmp_path)
    write_package(tmp_path, "6.0.0")
    with pytest.raises(ValueError, match=r"must be @fortawesome/fontawesome-free 5\.15\.3, got version 6\.0\.0"):
        load_icons("emoji", tmp_path)


@pytest.mark.parametrize("path", ["0 0L1 1", "M0 0L1", "M0 0Q1 1 2 2"], ids=["no start", "cut", "quadratic"])
def test_a_path_that_cannot_be_drawn_is_refused_with_its_file(tmp_path, path):
    (tmp_path / "wrong.svg").write_text(DRAWING.format(path=path))
    with pytest.raises(ValueError, match=r"wrong\.svg: "):
        read_icon(tmp_path / "wrong.svg")


def test_a_file_that_is_no_drawing_is_refused(tmp_path):
    (tmp_path / "none.svg").write_text("<svg></svg>")
    with pytest.raises(ValueError, match=r"none\.svg must have one view box and one path, got 0 and 0"):
        read_icon(tmp_path / "none.svg")
    with pytest.raises(OSError, match=r"cannot read .*gone\.svg"):
        read_icon(tmp_path / "gone.svg")
    with pytest.raises(ValueError, match="`view` must be left, top, width and height, got '0 0 0 4'"):
        parse_icon("0 0 0 4", "M0 0")
