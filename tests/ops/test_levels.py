"""Which order each level takes, against operation counts done by hand, and the matrices that follow."""

from collections.abc import Iterable
from dataclasses import is_dataclass

import pytest
import torch

from scaleconv.ops.levels import LEVEL_MAPS, Convolution, level_maps
from scaleconv.ops.pool import as_channels_last
from scaleconv.ops.resample import SIDE_BY_SIDE, gather_patches, resample, spread_patches
from scaleconv.ops.signature import make_signature

PATCHES, DIRECT, STRIDED, FILTER = "patches", "direct", "strided", "filter"

# Operations at one level: direct = convolution + C·h·W·(H + w) + M·H0·w'·(h' + W0), patches = convolution
# + C·(H0·K)·W·(H + W0·K), where H0 × W0 are the covered outputs and h × w, h' × w' the level and its responses.
CASES = {
    # scale 1.9: 22, 18 and 8; direct 324·75 + 22·12·34 + 3·8·18·26 = 44508, patches 64·75 + 40·12·52 = 29760
    # scale ½: 6, 2 and 4; direct 4·75 + 6·12·18 + 3·4·2·6 = 1740, patches 16·75 + 20·12·32 = 8880
    "enlarged by patches, shrunk directly": ((1, 12, 12), (3, 1, 5, 5), 0, (0.5, 1, 1.9), {0.5: DIRECT, 1.9: PATCHES}),
    # direct 324·25 + 22·12·34 + 8·18·26 = 20820, patches 64·25 + 40·12·52 = 26560, though it convolves a fifth of it
    "one map: gathering costs more than it saves": ((1, 12, 12), (1, 1, 5, 5), 0, (1, 1.9), {1.9: DIRECT}),
    # output 0 reads between responses 2 and 3, which meet samples 2 to 7, which lie between pixels 0 and 4: 64·3·5²
    # operations, and nothing to resample; at 3 response 5, samples 5 to 9, pixels 1 to 3: 64·3·3²
    "whole numbers by the filter": ((1, 12, 12), (3, 1, 5, 5), 0, (2, 1, 3), {2: FILTER, 3: FILTER}),
    # the first outputs meet zeros; they lie 2 responses apart and meet 2·11 + 5 = 27 rows; 3: 38 rows
    "whole numbers by strides": ((1, 12, 12), (3, 1, 5, 5), 2, (2, 1, 3), {2: STRIDED, 3: STRIDED}),
    # 9, 9 and 10; direct 81·4 + 9·10·19 + 4·10·9·19 = 8874, patches 100·4 + 10·10·20 = 2400, though it convolves more
    "many maps: aligning costs more than it saves": ((1, 10, 10), (4, 1, 1, 1), 0, (1, 0.9), {0.9: PATCHES}),
}


@pytest.mark.parametrize(("image", "weight", "padding", "scales", "orders"), CASES.values(), ids=CASES)
def test_the_order_with_fewer_operations_is_taken(image, weight, padding, scales, orders):
    signature = make_signature(image, weight, 1, padding, 1, 1, scales)
    levels = level_maps(signature, False, torch.float32, torch.device("cpu"))
    kernel = weight[2:]
    assert {scales[level.index] for level in levels} == {1, *orders}
    for level in levels:
        scale = scales[level.index]
        covered = [side.stop - side.start for side in level.region[1:]]
        if scale == 1:
            assert (level.sample, level.taps, level.align) == ((), (), ())
            assert level.convolution == Convolution(stride=(1, 1), padding=(padding, padding))
        elif orders[scale] == FILTER:
            assert [tuple(matrix.shape) for matrix in level.filter] == [({2: 5, 3: 3}[scale], 5)] * 2
            assert level.margin == {2: (0, 0, 0, 0), 3: (1, 1, 1, 1)}[scale]
            assert (level.sample, level.taps, level.align) == ((), (), ())
            assert level.convolution == Convolution(stride=(1, 1))
        elif orders[scale] == PATCHES:
            assert [len(matrix) for matrix in level.sample] == [covered[0] * kernel[0], covered[1] * kernel[1]]
            assert (level.taps, level.align, level.convolution) == ((), (), Convolution(stride=kernel))
        elif orders[scale] == STRIDED:
            assert [len(matrix) for matrix in level.sample] == [{2: 27, 3: 38}[scale]] * 2
            assert (level.taps, level.align, level.convolution) == ((), (), Convolution(stride=(scale, scale)))
        else:
            assert [len(matrix) for matrix in level.sample] == [int(scale * n) for n in image[1:]]
            assert [len(matrix) for matrix in level.align] == covered
            assert level.convolution == Convolution(stride=(1, 1))


@pytest.mark.parametrize(("channels", "groups"), [(SIDE_BY_SIDE - 1, 1), (SIDE_BY_SIDE, 1), (SIDE_BY_SIDE, 2)])
def test_taps_become_channels_where_channels_are_many_and_not_grouped(channels, groups):
    weight = (4, channels // groups, 3, 2)
    signature = make_signature((channels, 9, 8), weight, 1, 0, 1, groups, (1, 1.9))
    level = level_maps(signature, False, torch.float32, torch.device("cpu"))[1]
    if channels == SIDE_BY_SIDE and groups == 1:
        assert (level.taps, level.convolution) == ((3, 2), Convolution(stride=(1, 1)))
    else:
        assert (level.taps, level.convolution) == ((), Convolution(stride=(3, 2), groups=groups))


def test_gathered_patches_hold_the_taps_as_channels_and_spreading_is_the_transpose():
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 5, 4), (7 * 3, 5), (6 * 2, 4), (2, 2 * 3 * 3, 7, 6))
    images, rows, columns, other = (torch.randint(-9, 9, shape, generator=generator).double() for shape in shapes)
    patches = gather_patches(images, (3, 2), rows, columns)
    taps = (rows.view(7, 3, 5), columns.view(6, 2, 4))
    assert torch.equal(patches, torch.einsum("nchw,pkh,qlw->nlkcpq", images, *taps).reshape(2, -1, 7, 6))
    assert (patches * other).sum() == (images * spread_patches(other, (3, 2), rows, columns)).sum()


@pytest.mark.parametrize("channels", [1, SIDE_BY_SIDE - 1, SIDE_BY_SIDE, SIDE_BY_SIDE + 1])
def test_few_and_many_channels_are_resampled_alike(channels):
    generator = torch.Generator().manual_seed(0)
    images, rows, columns = (
        torch.randint(-9, 9, shape, generator=generator).double() for shape in ((2, channels, 5, 4), (7, 5), (3, 4))
    )
    expected = torch.einsum("nchw,ph,qw->ncpq", images, rows, columns)
    assert torch.equal(resample(images, rows, columns), expected)
    assert torch.equal(resample(images.to(memory_format=torch.channels_last), rows, columns), expected)


def test_channels_last_tensors_are_not_copied_and_others_are_made_so():
    images = torch.rand(2, 3, 5, 4)
    last = as_channels_last(images)
    assert torch.equal(last, images)
    assert last.stride() == (60, 1, 12, 3)
    assert as_channels_last(last).data_ptr() == last.data_ptr()
    assert as_channels_last(torch.rand(6, 1, 3, 3)).stride() == (9, 1, 3, 1)


def test_bags_take_patches_where_the_responses_would_be_about_twice_as_many_as_the_outputs():
    LEVEL_MAPS.clear()
    call = ((64, 56, 56), (64, 64, 3, 3), 1, 1, 1, 1, (0.63, 1, 1.26, 1.5, 1.6, 2, 3))
    levels = level_maps(make_signature(*call), False, torch.float32, torch.device("cpu"))
    by_bags = {call[-1][level.index]: level.by_bags for level in levels}
    assert {scale for scale, level in by_bags.items() if level.taps} == {1.5, 1.6}
    assert {scale for scale, level in by_bags.items() if level.align_bags} == {0.63, 1.26}
    assert {scale for scale, level in by_bags.items() if not level.bags} == {1}
    assert not any(level.sample or level.align for level in by_bags.values())
    assert all(level.gathered.taps == (3, 3) for level in by_bags.values())
    assert LEVEL_MAPS.nbytes == sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors_of(levels)}.values())


def tensors_of(value):
    """All tensors in a plan, some of them more than once."""
    if isinstance(value, torch.Tensor):
        return [value]
    if is_dataclass(value):
        value = vars(value).values()
    return [tensor for part in value for tensor in tensors_of(part)] if isinstance(value, Iterable) else []


def test_large_images_are_not_gathered_by_bags_and_larger_ones_take_none():
    def planned(size):
        signature = make_signature((16, size, size), (64, 16, 3, 3), 1, 0, 1, 1, (1, 1.7))
        return level_maps(signature, False, torch.float32, torch.device("cpu"))[1].by_bags

    assert planned(120).taps == (3, 3)
    assert planned(132).align_bags
    assert planned(385) is None
