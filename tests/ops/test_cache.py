"""The caches: bounded, shared by threads, and free of what the first caller was doing."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch

from helpers.loops import random, tensors_of
from scaleconv import SIConv2d, resize_cache, si_conv2d
from scaleconv.ops import cache as cache_module
from scaleconv.ops.cache import ROUNDS, SLICE, BoundedCache, return_memory
from scaleconv.ops.cpu import SPARSE_MAPS
from scaleconv.ops.plan import make_plan

SCALES = (0.6, 1, 1.7)


@pytest.fixture(autouse=True)
def empty_caches():
    def clear():
        SPARSE_MAPS.clear()
        make_plan.cache_clear()

    clear()
    before = SPARSE_MAPS.max_nbytes
    yield
    resize_cache(before)
    clear()


def test_the_entry_not_used_for_longest_goes_first():
    cache = BoundedCache(nbytes=2)
    cache.put("a", 1, nbytes=1)
    cache.put("b", 2, nbytes=1)
    assert cache.get("a") == 1
    cache.put("c", 3, nbytes=1)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert (len(cache), cache.nbytes) == (2, 2)


def test_entries_make_room_for_the_bytes_of_a_new_one():
    cache = BoundedCache(nbytes=100)
    for key, nbytes in (("a", 40), ("b", 30), ("c", 30), ("d", 50)):
        cache.put(key, key, nbytes)
    assert [cache.get(key) for key in "abcd"] == [None, None, "c", "d"]
    assert cache.nbytes == 80


def test_a_value_larger_than_the_bound_is_not_kept_and_displaces_nothing():
    cache = BoundedCache(nbytes=100)
    cache.put("all", 1, nbytes=100)
    cache.put("more", 2, nbytes=101)
    assert (cache.get("all"), cache.get("more"), cache.nbytes) == (1, None, 100)


def test_two_threads_that_make_the_same_value_count_it_once():
    cache = BoundedCache(nbytes=100)
    cache.put("a", 1, nbytes=60)
    cache.put("a", 1, nbytes=60)
    assert (len(cache), cache.nbytes) == (1, 60)


def test_a_smaller_bound_forgets_at_once_and_a_larger_one_keeps_more():
    cache = BoundedCache(nbytes=100)
    for key in "abcd":
        cache.put(key, key, 25)
    cache.resize(50)
    assert [cache.get(key) for key in "abcd"] == [None, None, "c", "d"]
    assert (cache.max_nbytes, cache.nbytes) == (50, 50)
    cache.resize(75)
    cache.put("e", "e", 25)
    assert [cache.get(key) for key in "cde"] == ["c", "d", "e"]


@pytest.mark.parametrize(("nbytes", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("1", TypeError)])
def test_a_bound_that_is_no_number_of_bytes_is_refused(nbytes, error):
    with pytest.raises(error, match="`nbytes` must be"):
        resize_cache(nbytes)


def test_a_cache_that_forgets_all_it_holds_several_times_over_warns_once():
    cache = BoundedCache(nbytes=100)
    for number in range(10 * (ROUNDS + 1)):  # the first ten fill it, and others have made room three times over
        cache.put(number, number, 10)
    with pytest.warns(UserWarning, match=r"keeps 0 MiB .* scaleconv.resize_cache\(nbytes\) sets another bound"):
        cache.put("one more", 1, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(1000, 1100):
            cache.put(number, number, 10)


def test_a_bound_that_was_set_anew_warns_anew():
    cache = BoundedCache(nbytes=10)
    for number in range(ROUNDS + 1):
        cache.put(number, number, 10)
    cache.resize(20)
    for number in range(1 + 2 * ROUNDS):  # beside the one that it has kept
        cache.put(("again", number), number, 10)
    assert cache.nbytes == 20
    with pytest.warns(UserWarning, match="these layers need more"):
        cache.put("one more", 1, 10)


@pytest.mark.filterwarnings("ignore:scaleconv keeps")
def test_memory_goes_back_to_the_system_for_every_slice_that_is_forgotten(monkeypatch):
    returned = []
    monkeypatch.setattr(cache_module, "return_memory", lambda: returned.append(1))
    cache = BoundedCache(nbytes=SLICE)
    for number in range(8):  # four fill it
        cache.put(number, number, SLICE // 4)
    assert len(returned) == 1
    cache.resize(0)
    assert len(returned) == 2


def test_freed_memory_goes_back_where_the_c_library_can(monkeypatch):
    trimmed = mock.Mock()
    monkeypatch.setattr(cache_module.ctypes, "CDLL", lambda _: trimmed)
    return_memory()
    trimmed.malloc_trim.assert_called_once_with(0)
    monkeypatch.setattr(cache_module.ctypes, "CDLL", lambda _: object())
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
    SPARSE_MAPS.clear()
    make_plan.cache_clear()
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
    images, weight, bias = tensors_of((2, 16, 9, 8), (3, 16, 3, 3))
    sent = random(2, 3, 7, 6, seed=5)
    weight.requires_grad_()

    def step():
        output = si_conv2d(images, weight, bias)
        return [output, *torch.autograd.grad(output, weight, sent)]

    expected = step()

    def work(_):
        SPARSE_MAPS.clear()
        make_plan.cache_clear()
        return all(torch.equal(a, b) for a, b in zip(step(), expected, strict=True))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(40))) == [True] * 40


def test_threads_with_batches_of_other_sizes_do_not_disturb_one_another():
    weight = random(3, 2, 3, 3)
    batches = [random(images, 2, 9, 8, seed=images) for images in (1, 2, 3, 5)]
    expected = [si_conv2d(batch, weight) for batch in batches]

    def work(number):
        return torch.equal(si_conv2d(batches[number], weight), expected[number])

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, [0, 1, 2, 3] * 20)) == [True] * 80


def test_a_layer_moved_to_another_device_follows():
    layer = SIConv2d(2, 3, 3)
    layer(torch.rand(1, 2, 9, 8))
    assert layer.to("meta")(torch.rand(1, 2, 9, 8, device="meta")).device.type == "meta"
