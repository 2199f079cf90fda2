"""The caches: bounded, shared by threads, and free of what the first caller was doing."""

import threading

import pytest
import torch

from scaleconv import SIConv2d, si_conv2d
from scaleconv.ops.cache import BoundedCache
from scaleconv.ops.geometry import make_plan
from scaleconv.ops.levels import LEVEL_MAPS, level_maps
from scaleconv.ops.signature import make_signature


@pytest.fixture(autouse=True)
def empty_caches():
    LEVEL_MAPS.clear()
    make_plan.cache_clear()


def tensors():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 2, 9, 8), (3, 2, 3, 3), (3,))
    ]


def levels(height, scales=(1, 2), padding=1):
    signature = make_signature((1, height, 8), (1, 1, 3, 3), 1, padding, 1, 1, scales)
    return level_maps(signature, False, torch.float32, torch.device("cpu"))


def test_the_entry_not_used_for_longest_goes_first():
    cache = BoundedCache(entries=2, nbytes=100)
    cache.put("a", 1, nbytes=1)
    cache.put("b", 2, nbytes=1)
    assert cache.get("a") == 1
    cache.put("c", 3, nbytes=1)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert (len(cache), cache.nbytes) == (2, 2)


def test_entries_make_room_for_the_bytes_of_a_new_one():
    cache = BoundedCache(entries=10, nbytes=100)
    for key, nbytes in (("a", 40), ("b", 30), ("c", 30), ("d", 50)):
        cache.put(key, key, nbytes)
    assert [cache.get(key) for key in "abcd"] == [None, None, "c", "d"]
    assert cache.nbytes == 80


def test_a_value_larger_than_the_bound_is_not_kept_and_displaces_nothing():
    cache = BoundedCache(entries=10, nbytes=100)
    cache.put("all", 1, nbytes=100)
    cache.put("more", 2, nbytes=101)
    assert (cache.get("all"), cache.get("more"), cache.nbytes) == (1, None, 100)


def test_two_threads_that_make_the_same_value_count_it_once():
    cache = BoundedCache(entries=10, nbytes=100)
    cache.put("a", 1, nbytes=60)
    cache.put("a", 1, nbytes=60)
    assert (len(cache), cache.nbytes) == (1, 60)


def test_levels_are_made_once_and_weigh_what_their_matrices_weigh():
    made = levels(9)
    assert levels(9) is made
    strided = (2 * 8 + 3) * 9 + (2 * 7 + 3) * 8  # what 9 × 8 outputs meet, kernel 3, of 9 × 8 pixels
    assert LEVEL_MAPS.nbytes == 4 * strided
    direct = levels(9, scales=(1, 0.7), padding=0)[1]
    assert [tuple(matrix.shape) for matrix in direct.sample + direct.align] == [(6, 9), (5, 8), (5, 4), (4, 3)]
    assert LEVEL_MAPS.nbytes == 4 * (strided + 6 * 9 + 5 * 8 + 5 * 4 + 4 * 3)
    by_filter = levels(9, padding=0)[1]
    assert [tuple(matrix.shape) for matrix in by_filter.filter] == [(3, 3), (3, 3)]
    assert LEVEL_MAPS.nbytes == 4 * (strided + 6 * 9 + 5 * 8 + 5 * 4 + 4 * 3 + 2 * 3 * 3)


def test_both_caches_are_bounded(monkeypatch):
    assert (LEVEL_MAPS.max_entries, LEVEL_MAPS.max_nbytes) == (128, 256 * 2**20)
    for height in range(9, 150):
        levels(height)
    assert len(LEVEL_MAPS) == 128
    assert make_plan.cache_info().currsize == make_plan.cache_info().maxsize == 64
    LEVEL_MAPS.clear()
    monkeypatch.setattr(LEVEL_MAPS, "max_nbytes", 5000)
    for height in range(9, 14):
        levels(height)
    assert 1 < len(LEVEL_MAPS) < 5
    assert 2500 < LEVEL_MAPS.nbytes <= 5000


def inside(context):
    def call(*tensors):
        with context:
            si_conv2d(*tensors)

    return call


def per_sample_gradients(images, weight, bias):
    torch.vmap(torch.func.grad(lambda image: si_conv2d(image, weight, bias).sum()))(images)


@pytest.mark.parametrize(
    "first",
    [inside(torch.inference_mode()), inside(torch.no_grad()), inside(torch.device("meta")), per_sample_gradients],
    ids=["inference", "no_grad", "device", "torch.func"],
)
def test_matrices_made_by_any_call_serve_calls_that_differentiate_twice(first):
    images, weight, bias = tensors()
    first(images, weight, bias)
    assert len(LEVEL_MAPS) == 1
    images.requires_grad_()
    (gradient,) = torch.autograd.grad(si_conv2d(images, weight, bias).square().sum(), images, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), images)
    assert len(LEVEL_MAPS) == 1
    assert second.abs().max() > 0


def test_matrices_made_while_exporting_serve_a_compiler_with_free_sizes():
    layer, images = SIConv2d(2, 3, 3), torch.rand(2, 2, 9, 8)
    torch.export.export(layer, (images,), strict=False)
    assert len(LEVEL_MAPS) == 1
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    assert torch.equal(compiled(images), layer(images))


def test_threads_share_the_caches():
    images, weight, bias = tensors()
    expected = si_conv2d(images, weight, bias)
    wrong = []

    def work():
        for _ in range(20):
            LEVEL_MAPS.clear()
            if not torch.equal(si_conv2d(images, weight, bias), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_layer_moved_to_another_device_follows():
    layer = SIConv2d(2, 3, 3)
    layer(torch.rand(1, 2, 9, 8))
    assert layer.to("meta")(torch.rand(1, 2, 9, 8, device="meta")).device.type == "meta"
