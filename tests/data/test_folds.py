"""The folds and splits: counts, classes, and that no digit ever trains and tests."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from scaleconv.data import MNIST_SCALE, hold_out, make_folds, make_split, paper_folds, reduced_folds

LABELS = torch.arange(60_000) % 10


def test_the_papers_folds_train_on_one_set_and_test_on_the_others():
    folds = paper_folds(LABELS)
    assert len(folds) == 6
    for k, fold in enumerate(folds):
        assert torch.equal(fold.train, make_folds(LABELS, 10_000, seed=0)[k].train)
        assert sorted(fold.train.tolist() + fold.test.tolist()) == list(range(60_000))
        assert (len(fold.train), len(fold.test)) == (10_000, 50_000)


def test_the_reduced_folds_are_the_same_at_a_tenth(embedded):
    folds = reduced_folds(embedded.labels)
    assert len(folds) == 6
    for fold in folds:
        assert (len(fold.train), len(fold.test)) == (1000, 5000)
        # The halves of the file differ in difficulty; every set draws from both.
        assert 400 < int((fold.train < 5000).sum()) < 600
    assert folds[0].train[:5].tolist() == [4, 7, 10, 18, 35]


@given(st.integers(2, 7), st.integers(40, 60), st.integers(0, 30), st.none() | st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_any_folds_use_each_digit_once_to_train(count, size, spare, seed):
    labels = torch.arange(count * size + spare) % 10
    try:
        folds = make_folds(labels, size, count=count, seed=seed)
    except ValueError as error:
        assert "leave class" in str(error)  # noqa: PT017 - a rare shuffle may leave a class out, and must say so
        assert seed is not None
        return
    trained = sorted(index for fold in folds for index in fold.train.tolist())
    assert len(set(trained)) == len(trained) == count * size
    for fold in folds:
        assert sorted(fold.train.tolist() + fold.test.tolist()) == trained


def test_a_class_that_is_missing_is_named():
    with pytest.raises(ValueError, match="class 9 out of the train"):
        make_folds(torch.arange(600) % 9, 100)
    with pytest.raises(ValueError, match="class 0 out of the test"):
        make_split(torch.arange(600) % 10, 500, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_folds(LABELS, 10_001), "must be of at least 60006"),
        (lambda: make_folds(LABELS, 100, count=1), "`count` .=1."),
        (lambda: make_folds(LABELS, 0), "`size` .=0."),
        (lambda: make_folds(LABELS.reshape(2, -1), 10), "`labels` .of shape .2, 30000.."),
        (lambda: make_split(LABELS, 50_001, 10_000), "must be of at least 60001"),
        (lambda: make_split(LABELS, 0), "`train` .=0."),
        (lambda: make_split(LABELS, val=-1), r"`val` .=-1. at least 0"),
        (lambda: paper_folds(LABELS[:10_000]), "of 10000 digits.*reduced_folds"),
    ],
)
def test_arguments_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_a_fold_tells_nothing_of_the_scales_of_its_digits(seed):
    """Both are drawn from the same seed; from the same stream, a fold would be the digits of one scale."""
    scales = torch.from_numpy(MNIST_SCALE.draw(len(LABELS), seed))
    for fold in make_folds(LABELS, 10_000, seed=seed):
        assert abs(scales[fold.train].mean() - 0.65) < 0.01  # five standard errors
    assert abs(scales[make_split(LABELS, seed=seed).test].mean() - 0.65) < 0.01


def test_held_out_digits_are_training_digits_and_the_others_still_train():
    fold = make_split(LABELS, 10_000, 4000, val=500)
    held = hold_out(fold, 2000, LABELS)
    assert (len(held.train), len(held.test)) == (8000, 2000)
    assert torch.equal(held.val, fold.val)
    assert sorted(held.train.tolist() + held.test.tolist()) == fold.train.tolist()
    assert not torch.equal(hold_out(fold, 2000, LABELS, seed=1).test, held.test)


@pytest.mark.parametrize("count", [0, -1, 100, 101])
def test_as_many_held_out_digits_as_there_are_is_refused(count):
    fold = make_folds(LABELS[:600], 100)[0]
    with pytest.raises(ValueError, match=rf"`count` \(={count}\) must lie between 1 and 99"):
        hold_out(fold, count, LABELS[:600])


UNEVEN = torch.cat([torch.full((100 * (label + 1),), label) for label in range(10)])  # 100 of class 0, 1,000 of class 9


@pytest.mark.parametrize("seed", [0, 5])
def test_a_stratified_split_has_the_shares_of_all_digits_to_within_one_digit(seed):
    split = make_split(UNEVEN, 1100, 2200, val=550, seed=seed, stratified=True)
    for part, count in ((split.train, 1100), (split.test, 2200), (split.val, 550)):
        assert len(part.unique()) == count
        found = torch.bincount(UNEVEN[part], minlength=10)
        assert ((found - torch.arange(1, 11) * count / 55).abs() <= 1).all()
    assert len(torch.cat([split.train, split.test, split.val]).unique()) == 1100 + 2200 + 550
    drawn = make_split(UNEVEN, 1100, 2200, val=550, seed=seed)
    assert (torch.bincount(UNEVEN[drawn.test], minlength=10) - torch.arange(1, 11) * 40).abs().max() > 1
    assert not torch.equal(split.test, make_split(UNEVEN, 1100, 2200, seed=seed + 1, stratified=True).test)


@pytest.mark.parametrize("stratified", [False, True])
def test_validation_and_test_digits_stay_while_the_training_set_grows(stratified):
    few, many = (make_split(LABELS, count, 500, val=300, seed=2, stratified=stratified) for count in (100, 900))
    assert torch.equal(few.test, many.test)
    assert torch.equal(few.val, many.val)
    assert set(few.train.tolist()) < set(many.train.tolist())
    assert len(make_split(LABELS, 100, 500).val) == 0
