"""Sparse maps of one and of two axes against dense matrices that are built by loops."""

import numpy as np
import pytest
import torch

from helpers.loops import random
from helpers.tolerance import assert_close
from scaleconv.ops.cpu import resample
from scaleconv.ops.resampling import MOST_IMAGES, AxisMap, linear_map, plane_entries, sparse_map

COORDINATES = (-1.3, 0.0, 0.25, 1.0, 2.75, 2.75, 3.999, 4.0, 6.5)  # before, on, between and behind the 5 pixels


def dense_by_loops(coordinates, length, support=1.0):
    """Each pixel weighs 1 − distance / support; the weights of a row add up to 1."""
    matrix = np.zeros((len(coordinates), length))
    for row, coordinate in enumerate(coordinates):
        clamped = min(max(coordinate, 0.0), length - 1.0)
        for pixel in range(length):
            matrix[row, pixel] = max(0.0, 1 - abs(clamped - pixel) / support)
        matrix[row] /= matrix[row].sum()
    return torch.from_numpy(matrix)


def some_map(rows, length, seed=0):
    """Up to 3 entries in a row, some of them zero, some of the same column."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(length, (rows, 3), generator=generator)
    weight = torch.randint(-2, 3, (rows, 3), generator=generator).double()
    return AxisMap(index, weight, length), matrix_of(index, weight, length)


def matrix_of(index, weight, length):
    matrix = torch.zeros(len(index), length, dtype=torch.float64)
    for row, (columns, values) in enumerate(zip(index.tolist(), weight.tolist(), strict=True)):
        for column, value in zip(columns, values, strict=True):
            matrix[row, column] += value
    return matrix


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("support", [1.0, 1.3, 2.0, 3.7])
def test_a_linear_map_weighs_pixels_by_a_triangle_with_edges_clamped(length, support):
    axis = linear_map(COORDINATES, length, support)
    assert (len(axis), axis.length) == (len(COORDINATES), length)
    assert_close(axis.dense(), dense_by_loops(COORDINATES, length, support))


def test_the_dense_matrix_adds_entries_of_one_column():
    axis, matrix = some_map(20, 4)
    assert torch.equal(axis.dense(), matrix)


def test_rows_are_chosen_by_a_slice_or_by_number():
    axis, matrix = some_map(7, 4)
    assert torch.equal(axis.rows(slice(2, 5)).dense(), matrix[2:5])
    assert torch.equal(axis.rows(torch.tensor([6, 0, 6])).dense(), matrix[[6, 0, 6]])


def test_a_frame_is_rows_of_zeros():
    axis, matrix = some_map(4, 3)
    framed = axis.framed(2, 1)
    assert torch.equal(framed.dense(), torch.cat([torch.zeros(2, 3), matrix, torch.zeros(1, 3)]))


def test_a_shifted_map_reads_a_line_that_begins_later():
    axis = linear_map((2.5, 3.0, 3.75), 6)
    shifted = axis.shifted(2, 3)
    assert torch.equal(shifted.dense(), dense_by_loops((0.5, 1.0, 1.75), 3))
    assert torch.equal(shifted.shifted(-2, 6).dense(), axis.dense())


def test_a_blend_lies_between_two_rows():
    axis, matrix = some_map(6, 4)
    first, second, fraction = torch.tensor([0, 2, 5]), torch.tensor([1, 2, 0]), torch.tensor([[0.25], [0.5], [0.0]])
    expected = matrix[first] * (1 - fraction) + matrix[second] * fraction
    assert torch.equal(axis.blend(first, second, fraction).dense(), expected)


def test_a_compact_map_names_each_column_once_and_is_the_same_matrix():
    axis, matrix = some_map(30, 4)
    compact = axis.compact()
    assert torch.equal(compact.dense(), matrix)
    most = 0
    for columns, values in zip(compact.index.tolist(), compact.weight.tolist(), strict=True):
        used = [column for column, value in zip(columns, values, strict=True) if value]
        assert len(set(used)) == len(used)
        most = max(most, len(used))
    assert compact.index.shape[1] == most == 3


def test_spare_entries_of_a_compact_row_name_a_pixel_that_it_reads():
    axis = AxisMap(torch.tensor([[3, 0, 0], [1, 2, 3]]), torch.tensor([[1.0, 0, 0], [1, 1, 1]]).double(), 4)
    assert set(axis.compact().index[0].tolist()) == {3}


@pytest.mark.parametrize(("rows", "length"), [(9, 4), (3, 8), (1, 1)])
def test_the_transposed_map_is_the_transposed_matrix(rows, length):
    axis, matrix = some_map(rows, length)
    assert (len(axis.transposed), axis.transposed.length) == (length, rows)
    assert torch.equal(axis.transposed.dense(), matrix.T)
    assert axis.transposed is axis.transposed


def test_a_map_of_zeros_is_compacted_and_transposed_to_zeros():
    nothing = AxisMap(torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, 2, dtype=torch.float64), 4)
    assert torch.equal(nothing.compact().dense(), torch.zeros(3, 4, dtype=torch.float64))
    assert torch.equal(nothing.transposed.dense(), torch.zeros(4, 3, dtype=torch.float64))


def test_only_the_identity_is_the_identity():
    same = torch.arange(4).unsqueeze(1)
    ones = torch.ones(4, 1, dtype=torch.float64)
    assert AxisMap(same, ones, 4).is_identity
    assert not AxisMap(same, 2 * ones, 4).is_identity
    assert not AxisMap(same.flip(0), ones, 4).is_identity
    assert not AxisMap(same, ones, 5).is_identity


def at_once(pixels, rows, columns, place=None):
    size = len(rows), len(columns)
    return sparse_map(plane_entries(rows, columns, place), size, rows.length * columns.length, pixels.dtype)(pixels)


def expected_images(pixels, rows, columns):
    return torch.einsum("nhwc,ph,qw->npqc", pixels, rows.dense(), columns.dense())


@pytest.mark.parametrize("channels", [1, 3, 17])
@pytest.mark.parametrize("images", [0, 1, 5, MOST_IMAGES + 3])
def test_both_ways_to_resample_are_a_product_with_the_dense_matrices(images, channels):
    pixels = random(images, 5, 4, channels)
    maps = linear_map(COORDINATES, 5, 2.0), linear_map((0.5, 3.5, 1.0), 4)
    results = [resample(pixels, *maps), at_once(pixels, *maps)]
    for result in results:
        assert result.shape == (images, 9, 3, channels)
        assert_close(result, expected_images(pixels, *maps))


def test_the_identity_along_one_axis_leaves_it_as_it_is():
    same = AxisMap(torch.arange(4).unsqueeze(1), torch.ones(4, 1, dtype=torch.float64), 4)
    rows = linear_map((0.5, 3.5, 1.0), 5)
    pixels = random(2, 5, 4, 3)
    assert_close(resample(pixels, rows, same), torch.einsum("nhwc,ph->npwc", pixels, rows.dense()))
    assert resample(pixels[:, :4], same, same).data_ptr() == pixels.data_ptr()


def test_entries_follow_the_number_of_images_and_the_type():
    maps = linear_map(COORDINATES, 5), linear_map((0.5, 3.5), 4)
    for images, dtype in ((2, torch.float64), (3, torch.float64), (3, torch.float32), (2, torch.float64)):
        pixels = random(images, 5, 4, 2, seed=images, dtype=dtype)
        assert_close(resample(pixels, *maps), expected_images(pixels.double(), *maps), dtype)


def test_places_say_where_a_pixel_of_the_result_lies():
    rows, columns = linear_map((0.5, 2.0), 3), linear_map((0.25, 1.0, 3.0), 4)
    pixels = random(2, 3, 4, 16)
    turned = at_once(pixels, rows, columns, (torch.arange(2), 2 * torch.arange(3)))  # pixel (y, x) lies at 2·x + y
    assert_close(turned.view(2, 3, 2, 16).transpose(1, 2), expected_images(pixels, rows, columns))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("channels", [1, 16])
def test_a_pixel_that_is_not_finite_touches_only_results_that_read_it(value, channels):
    maps = linear_map(COORDINATES, 5).framed(1, 2), linear_map((0.0, 0.5, 1.0, 2.5, 3.5), 4).framed(2, 0)
    pixels = random(3, 5, 4, channels)
    pixels[1, 2, 1, 0] = value
    reads = (maps[0].dense()[:, 2, None] * maps[1].dense()[:, 1]) != 0
    expected = torch.zeros(3, len(maps[0]), len(maps[1]), channels, dtype=torch.bool)
    expected[1, :, :, 0] = reads
    assert 0 < reads.sum() < reads.numel() / 4
    for result in (resample(pixels, *maps), at_once(pixels, *maps)):
        assert torch.equal(~result.isfinite(), expected)
    back = tuple(axis.transposed for axis in maps)
    sent = random(1, len(maps[0]), len(maps[1]), channels)
    sent[0, 5, 3, 0] = value  # of coordinates 2.75 and 0.5
    results = [resample(sent, *back), at_once(sent, *back)]
    for result in results:
        assert set(map(tuple, (~result.isfinite()).nonzero().tolist())) == {
            (0, y, x, 0) for y in (2, 3) for x in (0, 1)
        }
