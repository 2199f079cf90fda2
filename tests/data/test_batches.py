"""Batches of a set that lives on the device."""

import pytest
import torch

from scaleconv.data import Batches

IMAGES, LABELS = torch.arange(20.0).reshape(10, 2), torch.arange(10)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_an_epoch_shows_each_digit_once_with_its_label():
    batches = Batches(IMAGES, LABELS, 3, generator(), drop_last=False)
    seen = list(batches)
    assert [len(labels) for _, labels in seen] == [3, 3, 3, 1]
    assert len(batches) == 4
    labels = torch.cat([labels for _, labels in seen])
    assert sorted(labels.tolist()) == list(range(10))
    assert labels.tolist() != list(range(10))
    assert torch.equal(torch.cat([images for images, _ in seen]), IMAGES[labels])


def test_the_last_batch_is_dropped_where_it_is_not_full():
    batches = Batches(IMAGES, LABELS, 4, generator())
    assert [len(labels) for _, labels in batches] == [4, 4]
    assert len(batches) == 2
    assert len(Batches(torch.zeros(10_000), torch.zeros(10_000), 128)) == 78


def test_epochs_differ_and_the_generator_alone_decides():
    def epochs(seed):
        batches = Batches(IMAGES, LABELS, 5, generator(seed))
        return [[labels.tolist() for _, labels in batches] for _ in range(3)]

    torch.manual_seed(1)
    first = epochs(0)
    torch.manual_seed(2)
    assert epochs(0) == first
    assert epochs(1) != first
    assert first[0] != first[1] != first[2]


def test_the_state_of_the_generator_resumes_a_run():
    batches = Batches(IMAGES, LABELS, 5, generator())
    list(batches)
    state = batches.generator.get_state()
    second = [labels.tolist() for _, labels in batches]
    resumed = generator(99)
    resumed.set_state(state)
    assert [labels.tolist() for _, labels in Batches(IMAGES, LABELS, 5, resumed)] == second


def test_without_a_generator_the_order_is_kept_and_nothing_is_copied():
    batches = list(Batches(IMAGES, LABELS, 4, drop_last=False))
    assert torch.equal(torch.cat([labels for _, labels in batches]), LABELS)
    assert batches[1][0].data_ptr() == IMAGES[4:].data_ptr()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_stay_on_the_device_in_the_order_of_the_cpu():
    here = Batches(IMAGES, LABELS, 4, generator())
    there = Batches(IMAGES.cuda(), LABELS.cuda(), 4, generator())
    for (images, labels), (moved, named) in zip(here, there, strict=True):
        assert moved.is_cuda
        assert torch.equal(moved.cpu(), images)
        assert torch.equal(named.cpu(), labels)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batches(IMAGES, LABELS[:9], 3), "`labels` .=9. must be as many as `images` .=10."),
        (lambda: Batches(IMAGES, LABELS, 0), "`size` .=0."),
        (lambda: Batches(IMAGES, LABELS, 11), "`size` .=11. must not exceed the 10"),
        (lambda: Batches(IMAGES, LABELS.to("meta"), 3), "`labels` .on meta. must be on the device"),
    ],
)
def test_arguments_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
