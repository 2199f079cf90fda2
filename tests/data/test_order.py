"""Batches hold images of one size, every image at most once in a pass; the order follows seed, fold and pass alone."""

import pytest

from scaleconv.data.order import Order

MIXED = [(8, 8), (9, 9), (8, 8), (8, 8), (9, 9), (8, 8), (7, 5), (8, 8)]  # five, two and one


def taken(batches):
    return [image for batch in batches for image in batch.tolist()]


@pytest.mark.parametrize(("count", "batch", "per_pass"), [(10, 4, 2), (12, 4, 3), (3, 4, 1), (1, 1, 1), (7, 1, 7)])
def test_a_pass_takes_no_image_twice_and_leaves_out_the_last_partial_batch(count, batch, per_pass):
    order = Order([(5, 6)] * count, batch, seed=0, fold=0)
    assert order.per_pass == per_pass
    for number in (1, 2, 3):
        batches = order.of_pass(number)
        assert [len(each) for each in batches] == [min(batch, count)] * per_pass
        assert len(set(taken(batches))) == len(taken(batches))
        assert set(taken(batches)) <= set(range(count))


def test_images_of_one_size_go_together_and_few_of_a_size_are_a_batch_of_their_own():
    order = Order(MIXED, 2, seed=0, fold=0)
    assert order.per_pass == 4  # two of the five, one of the two, and the single image
    for number in range(1, 20):
        batches = order.of_pass(number)
        sizes = [{MIXED[image] for image in batch} for batch in batches]
        assert all(len(each) == 1 for each in sizes)
        assert sorted(len(batch) for batch in batches) == [1, 2, 2, 2]
        assert len(set(taken(batches))) == 7
        assert {1, 4, 6} <= set(taken(batches))


def test_every_image_has_its_turn_and_sizes_come_in_any_order():
    order = Order(MIXED, 2, seed=0, fold=0)
    passes = [order.of_pass(number) for number in range(1, 30)]
    left_out = [(set(range(8)) - set(taken(batches))).pop() for batches in passes]
    assert set(left_out) == {0, 2, 3, 5, 7}
    assert {next(k for k, batch in enumerate(batches) if 6 in batch) for batches in passes} == {0, 1, 2, 3}


@pytest.mark.parametrize("sizes", [[(5, 5)] * 40, [(5, 5)] * 20 + [(6, 6)] * 20])
def test_seeds_folds_and_passes_differ_and_equal_ones_agree(sizes):
    def images(seed, fold, number):
        return taken(Order(sizes, 5, seed, fold).of_pass(number))

    found = [images(*numbers) for numbers in [(0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2), (1, 1, 1), (0, 1, 2)]]
    assert len({tuple(each) for each in found}) == len(found)
    assert images(0, 1, 2) == found[-1]


@pytest.mark.parametrize("sizes", [[(5, 5)] * 11, MIXED])
@pytest.mark.parametrize("per_epoch", [1, 3, 5, 12])
def test_steps_run_through_the_passes_whatever_the_length_of_an_epoch(sizes, per_epoch):
    order = Order(sizes, 2, seed=3, fold=1)
    expected = [batch.tolist() for number in range(1, 20) for batch in order.of_pass(number)]
    found = [batch.tolist() for epoch in range(4) for batch in order.of_steps(epoch * per_epoch, per_epoch)]
    assert found == expected[: 4 * per_epoch]
