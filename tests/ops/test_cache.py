"""The caches: bounded, shared by threads, and free of what the first caller was doing."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from helpers.loops import random, tensors_of
from scaleconv import SIConv2d, resize_cache, si_conv2d
from scaleconv.ops import cpu
from scaleconv.ops.cpu import ROUNDS, SLICE, SPARSE_MAPS, MatrixCache, return_memory
from scaleconv.ops.plan import _make_plan, make_plan

SCALES = (0.6, 1, 1.7)


def clear():
    """Forget the matrices and the plans."""
    SPARSE_MAPS.clear()
    make_plan.cache_clear()
    _make_plan.cache_clear()


@pytest.fixture(autouse=True)
def empty_caches():
    clear()
    before = SPARSE_MAPS.max_nbytes
    yield
    resize_cache(before)
    clear()


def keep(cache, *sizes):
    """Make values of so many bytes; a value's key is its number, from 0 in every cache."""
    for nbytes in sizes:
        cache.find(next(cache.numbers), lambda nbytes=nbytes: SimpleNamespace(nbytes=nbytes))


def cache_of(nbytes, *sizes):
    cache = MatrixCache(nbytes)
    cache.numbers = count()
    keep(cache, *sizes)
    return cache


def held(cache, keys=range(10)):
    """Which of these the cache still has: a value that is made instead is too large to be kept."""
    return [key for key in keys if cache.find(key, lambda: SimpleNamespace(nbytes=10**12)).nbytes < 10**12]


def test_the_least_recently_used_go_first_until_a_new_one_fits():
    cache = cache_of(100, 40, 30, 30)
    assert held(cache, [0]) == [0]  # which uses it
    keep(cache, 50)
    assert held(cache) == [0, 3]
    assert (len(cache), cache.nbytes) == (2, 90)


def test_a_value_larger_than_the_bound_is_not_kept_and_displaces_nothing():
    cache = cache_of(100, 100, 101)
    assert (held(cache), cache.nbytes) == ([0], 100)


def test_two_threads_that_make_the_same_value_count_it_once():
    cache = cache_of(100)

    def slow():
        keep(cache, 60)  # another thread was faster
        return SimpleNamespace(nbytes=60)

    cache.find(0, slow)
    assert (len(cache), cache.nbytes) == (1, 60)


def test_a_smaller_bound_forgets_at_once_and_a_larger_one_keeps_more():
    cache = cache_of(100, 25, 25, 25, 25)
    cache.resize(50)
    assert held(cache) == [2, 3]
    assert (cache.max_nbytes, cache.nbytes) == (50, 50)
    cache.resize(75)
    keep(cache, 25)
    assert held(cache) == [2, 3, 4]


@pytest.mark.parametrize(("nbytes", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("1", TypeError)])
def test_a_bound_that_is_no_number_of_bytes_is_refused(nbytes, error):
    with pytest.raises(error, match="`nbytes` must be"):
        resize_cache(nbytes)


def test_a_cache_that_forgets_all_it_holds_several_times_over_warns_once_for_each_bound():
    cache = cache_of(100, *[10] * 10 * (ROUNDS + 1))  # ten fill it, and others have made room three times over
    with pytest.warns(UserWarning, match=r"keeps 0 MiB .* scaleconv.resize_cache\(nbytes\) sets another bound"):
        keep(cache, 10)
    with warnings.catch_warnings(action="error"):
        keep(cache, *[10] * 100)
        cache.resize(200)
        keep(cache, *[10] * (10 + 20 * ROUNDS))  # ten are left of before
    with pytest.warns(UserWarning, match="these layers need more"):
        keep(cache, 10)


@pytest.mark.filterwarnings("ignore:scaleconv keeps")
def test_memory_goes_back_to_the_system_for_every_slice_that_is_forgotten(monkeypatch):
    returned = []
    monkeypatch.setattr(cpu, "return_memory", lambda: returned.append(1))
    cache = cache_of(SLICE, *[SLICE // 4] * 8)  # four fill it
    assert len(returned) == 1
    cache.resize(0)
    assert len(returned) == 2


def test_freed_memory_goes_back_where_the_c_library_can(monkeypatch):
    trimmed = mock.Mock()
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda _: trimmed)
    return_memory()
    trimmed.malloc_trim.assert_called_once_with(0)
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda _: object())
    return_memory()


def test_layers_that_need_more_than_the_bound_say_so_and_stay_right():
    calls = [tensors_of((1, 16, size, 8), (2, 16, 3, 3)) for size in range(8, 13)]
    expected = [si_conv2d(*call, scales=SCALES) for call in calls]
    needed = SPARSE_MAPS.nbytes
    assert needed > 0
    SPARSE_MAPS.clear()
    resize_cache(needed // 2)

    def call_all():
        for call, true in zip(calls * 3 * ROUNDS, expected * 3 * ROUNDS, strict=True):
            assert torch.equal(si_conv2d(*call, scales=SCALES), true)
            assert SPARSE_MAPS.nbytes <= needed // 2

    with pytest.warns(UserWarning, match="each call makes them anew") as warned:
        call_all()
    assert len(warned) == 1


def test_layers_that_fit_make_their_matrices_once():
    images, weight, bias = tensors_of((2, 16, 9, 8), (3, 16, 3, 3))
    si_conv2d(images, weight, bias, scales=SCALES)
    kept, nbytes = len(SPARSE_MAPS), SPARSE_MAPS.nbytes
    si_conv2d(images, weight, bias, scales=SCALES)
    assert (len(SPARSE_MAPS), SPARSE_MAPS.nbytes) == (kept, nbytes)
    assert kept > 0
    si_conv2d(images.float(), weight.float(), bias.float(), scales=SCALES)
    assert len(SPARSE_MAPS) == 2 * kept


@pytest.mark.parametrize("channels", [2, 16])
def test_what_a_batch_of_any_size_needs_counts_towards_the_bound(channels):
    _, weight, bias = tensors_of((1, channels, 9, 8), (3, channels, 3, 3))
    resize_cache(2**20)
    for images in (1, 64, 1000):
        si_conv2d(random(images, channels, 9, 8), weight, bias, scales=SCALES)
        assert 0 < SPARSE_MAPS.nbytes <= 2**20


def test_a_cache_of_zero_bytes_keeps_nothing_and_calls_stay_right():
    images, weight, bias = tensors_of((2, 16, 9, 8), (3, 16, 3, 3))
    expected = si_conv2d(images, weight, bias, scales=SCALES)
    resize_cache(0)
    assert torch.equal(si_conv2d(images, weight, bias, scales=SCALES), expected)
    assert len(SPARSE_MAPS) == 0


def inside(context):
    def call(*tensors):
        with context:
            si_conv2d(*tensors, scales=SCALES)

    return call


def per_sample_gradients(images, weight, bias):
    torch.vmap(torch.func.grad(lambda image: si_conv2d(image, weight, bias, scales=SCALES).sum()))(images)


@pytest.mark.parametrize("channels", [2, 16])
@pytest.mark.parametrize(
    "first",
    [inside(torch.inference_mode()), inside(torch.no_grad()), per_sample_gradients],
    ids=["inference", "no_grad", "torch.func"],
)
def test_what_any_call_has_made_serves_calls_that_differentiate_twice(first, channels):
    images, weight, bias = tensors_of((2, channels, 9, 8), (3, channels, 3, 3))
    first(images, weight, bias)
    leaves = [images.requires_grad_(), weight.requires_grad_()]

    def gradients():
        output = si_conv2d(images, weight, bias, scales=SCALES)
        once = torch.autograd.grad(output.square().sum(), leaves)
        (gradient,) = torch.autograd.grad(
            si_conv2d(images, weight, bias, scales=SCALES).square().sum(), images, create_graph=True
        )
        return [output, *once, *torch.autograd.grad(gradient.square().sum(), leaves)]

    after = gradients()
    clear()
    for actual, expected in zip(after, gradients(), strict=True):
        assert torch.equal(actual, expected)
        assert actual.abs().max() > 0


@pytest.mark.parametrize(
    "channels",
    [2, 16],
)
def test_a_default_device_has_no_part_in_a_call(channels):
    images, weight, bias = tensors_of((2, channels, 9, 8), (3, channels, 3, 3))
    weight.requires_grad_()
    with torch.device("meta"):
        output = si_conv2d(images, weight, bias, scales=SCALES)
        output.sum().backward()
    assert torch.equal(output, si_conv2d(images, weight, bias, scales=SCALES))
    assert weight.grad.abs().max() > 0


def test_threads_that_empty_the_caches_of_one_another_get_the_same_numbers():
    _, weight, bias = tensors_of((2, 16, 9, 8), (3, 16, 3, 3))
    batches = [random(images, 16, 9, 8, seed=images) for images in (1, 2, 3, 5)]
    weight.requires_grad_()

    def step(images):
        output = si_conv2d(images, weight, bias)
        return [output, *torch.autograd.grad(output.square().sum(), weight)]

    expected = [step(images) for images in batches]

    def work(number):
        clear()
        return all(torch.equal(a, b) for a, b in zip(step(batches[number]), expected[number], strict=True))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, [0, 1, 2, 3] * 10)) == [True] * 40


def test_a_layer_moved_to_another_device_follows():
    layer = SIConv2d(2, 3, 3)
    layer(torch.rand(1, 2, 9, 8))
    assert layer.to("meta")(torch.rand(1, 2, 9, 8, device="meta")).device.type == "meta"
