"""Which images a run learns from and is tested on, and what they look like at another scale, against loops."""

import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL import Image

from helpers.folders import write_classes, write_masks
from scaleconv.data import Digits, Fixed, folds, load_folder, loading, make_scenes
from scaleconv.data.icons import SIZES, load_icons
from scaleconv.data.rescale import make_scaled
from scaleconv.data.sets import smooth
from scaleconv.experiments import sources as module
from scaleconv.experiments.settings import DigitData, IconData, SceneData
from scaleconv.experiments.sources import FromFiles, InMemory, Rescaled, Sources, divide, folder_data, images_of
from scaleconv.models import Classifier, Images

COUNT = 120
PLAIN = {"dataset": "embedded", "scales": "fixed:1", "train": 40, "test": 20}


@pytest.fixture(autouse=True)
def digits(monkeypatch):
    """Digits that show which they are: squares of 8×8, each of a brightness of its own, labels 0, 1, 2 in turn."""
    images = torch.zeros(COUNT, 28, 28, dtype=torch.uint8)
    images[:, 10:18, 10:18] = torch.arange(100, 100 + COUNT).view(-1, 1, 1)
    found = Digits(images, torch.arange(COUNT) % 3, "embedded", "all", "", ("", ""))
    monkeypatch.setattr(folds, "CLASSES", 3)
    monkeypatch.setattr(module, "load_digits", lambda *_, **__: found)
    return found


def shown(images):
    """Which digits these are, by their brightness."""
    return (images.flatten(1).amax(1) * 255).round().long() - 100


def test_each_part_has_digits_of_its_own_with_their_labels():
    for fold in (0, 1):
        source = Sources("cpu").open(DigitData(**PLAIN, val=15), fold)
        parts = [shown(part.images).tolist() for part in (source.train, source.val, source.test)]
        assert [len(set(part)) for part in parts] == [40, 15, 20]
        assert len({index for part in parts for index in part}) == 75
        for part, examples in zip(parts, (source.train, source.val, source.test), strict=True):
            assert examples.labels.tolist() == [index % 3 for index in part]
    assert len(Sources("cpu").open(DigitData(**PLAIN), 0).val) == 0


def test_a_source_says_what_a_network_must_take_and_the_mean_of_its_training_pixels():
    source = Sources("cpu").open(DigitData(**PLAIN, interpolation="bicubic"), 0)
    expected = np.mean([(100 + index) * 64 / 784 / 255 for index in shown(source.train.images).tolist()])
    assert source.mean == pytest.approx((expected,))
    assert (source.std, source.images, source.classes) == ((1.0,), Images((28, 28)), tuple("0123456789"))
    assert (source.uncounted, source.interpolation) == (None, "bicubic")
    scenes = images_of(SceneData(size=48))
    assert scenes == (Images((48, 48), 1, 11, "segmentation"), (*"0123456789", "background"))


def test_folds_are_draws_of_their_own_or_sets_that_test_on_the_other_sets(digits):
    drawn = [divide(digits.labels, DigitData(**PLAIN, fold_seed=3), fold) for fold in (0, 1)]
    assert not torch.equal(drawn[0].test, drawn[1].test)
    assert torch.equal(divide(digits.labels, DigitData(**PLAIN, fold_seed=4), 0).test, drawn[1].test)
    fewer = divide(digits.labels, DigitData(**{**PLAIN, "train": 30}, fold_seed=3), 0)
    assert torch.equal(fewer.test, drawn[0].test)
    assert set(fewer.train.tolist()) < set(drawn[0].train.tolist())

    data = DigitData(dataset="embedded", train=40, sets=3, fold_seed=-1)
    splits = [divide(digits.labels, data, fold) for fold in range(3)]
    assert [split.train.tolist() for split in splits] == [list(range(k, k + 40)) for k in (0, 40, 80)]
    assert [sorted({*split.train.tolist(), *split.test.tolist()}) for split in splits] == [list(range(120))] * 3
    shuffled = divide(digits.labels, DigitData(dataset="embedded", train=40, sets=3), 0)
    assert shuffled.train.tolist() != list(range(40))


def test_unseen_digits_are_those_that_fold_0_does_not_take(digits):
    data = DigitData(dataset="embedded", train=40, val=12, test=18, stratified=True, fold_seed=3)
    first = divide(digits.labels, data, 0)
    taken = {*first.train.tolist(), *first.val.tolist(), *first.test.tolist()}
    assert len(taken) == 70
    found = [divide(digits.labels, replace(data, seen=70, test=50), fold) for fold in (0, 1)]
    for split in found:
        assert set(split.test.tolist()) == set(range(COUNT)) - taken
        assert (len(split.train), len(split.val)) == (40, 12)
        assert {*split.train.tolist(), *split.val.tolist()} < taken
        assert not {*split.train.tolist()} & {*split.val.tolist()}
    assert found[0].train.tolist() != found[1].train.tolist()
    with pytest.raises(ValueError, match=r"`data.seen` \(=70\) and `data.test` \(=49\) must be the 120 digits"):
        divide(digits.labels, replace(data, seen=70, test=49), 0)


def test_the_mean_may_be_an_image():
    source = Sources("cpu").open(DigitData(**PLAIN, mean="image"), 0)
    assert source.mean.shape == (1, 28, 28)
    torch.testing.assert_close(source.mean[0], torch.stack(list(source.train.images[:, 0])).mean(0))
    seen = []
    classifier = Classifier(lambda images: seen.append(images) or images.flatten(1), source.mean, source.std, ("a",))
    images = source.train.images[:3]
    classifier(images)
    torch.testing.assert_close(seen[0], images - source.mean)
    assert seen[0][0, 0, 0, 0] == 0  # the background is; with one number it is below


def test_fewer_digits_are_tested_and_some_can_be_held_out(digits):
    whole = divide(digits.labels, DigitData(**PLAIN), 0)
    assert torch.equal(divide(digits.labels, DigitData(**PLAIN, tested=7), 0).test, whole.test[:7])
    held = divide(digits.labels, DigitData(**{**PLAIN, "train": 90}, held_out=40), 0)
    assert (len(held.train), len(held.test)) == (50, 40)
    assert not set(held.test.tolist()) & set(whole.test.tolist())
    for changes in ({"train": 101}, {"train": 100, "val": 1}, {"train": 41, "test": 0, "sets": 3}):
        with pytest.raises(ValueError, match=rf"`data.train` \(={changes['train']}\) .*120 digits of embedded, got 12"):
            divide(digits.labels, DigitData(**{**PLAIN, **changes}), 0)


def test_runs_of_one_set_share_it_and_others_have_their_own(monkeypatch):
    made, make_set = [], module.make_set
    monkeypatch.setattr(module, "make_set", lambda *args, **options: made.append(1) or make_set(*args, **options))
    opened = Sources("cpu")
    for changes in ({}, {"train": 30}, {"test": 10}, {"val": 5}, {"fold_seed": 1}, {"tested": 3}, {"held_out": 15}):
        opened.open(DigitData(**{**PLAIN, **changes}), 1)
    assert len(made) == 1
    changes = [{"scales": "fixed:0.5"}, {"size": 30}, {"seed": 1}, {"interpolation": "bicubic"}, {"smoothed": True}]
    for count, change in enumerate([*changes, {"shifted": True}, {"truncate": "allow"}], start=2):
        opened.open(DigitData(**{**PLAIN, **change}), 0)
        assert len(made) == count, change


def test_smoothed_and_shifted_digits_are_those_of_the_settings():
    plain, smoothed, shifted = (
        Sources("cpu").open(DigitData(**{**PLAIN, "scales": "fixed:0.5"}, **change), 0).train.images
        for change in ({}, {"smoothed": True}, {"shifted": True})
    )
    torch.testing.assert_close(smoothed, smooth(plain, 0.5))
    assert torch.equal(shown(shifted), shown(plain))
    assert not torch.equal(shifted, plain)


@pytest.mark.parametrize("smoothed", [False, True])
@pytest.mark.parametrize(("scale", "size"), [(0.5, None), (1.0, None), (2.0, 40), (4.0, None)])
def test_test_digits_at_a_scale_are_scaled_from_the_originals(scale, size, smoothed, digits):
    """Not from the scaled digits that the run is tested on; what leaves the canvas is cut off."""
    source = Sources("cpu").open(DigitData(**{**PLAIN, "scales": "fixed:0.3"}, smoothed=smoothed), 0)
    chosen = divide(digits.labels, DigitData(**PLAIN), 0).test[:7]
    found = source.at_scale(scale, 7, size)
    expected = make_scaled(digits.images[chosen], scale, size or 28, truncate="allow")
    torch.testing.assert_close(found.images, smooth(expected, scale) if smoothed else expected)
    assert found.labels.tolist() == (chosen % 3).tolist()
    if scale == 1 and not smoothed:
        assert torch.equal(found.images[:, 0], digits.images[chosen] / 255)
    assert len(source.at_scale(scale, None, size)) == 20


def test_scenes_hold_digits_of_their_part_and_are_laid_out_anew_for_a_scale(digits):
    data = SceneData(**{**PLAIN, "size": 40}, scene=1, seed=3)
    source = Sources("cpu").open(data, 0)
    split = divide(digits.labels, data, 0)
    for part, examples in ((split.train, source.train), (split.test, source.test)):
        assert examples.images.shape == (len(part), 1, 40, 40)
        assert set(shown(examples.images).tolist()) <= set(part.tolist())
        inked = examples.images[:, 0] > 0
        assert torch.equal(examples.labels != 10, inked)
        assert torch.equal(examples.labels.where(inked, -1).flatten(1).amax(1), shown(examples.images) % 3)
    assert source.uncounted == 10
    assert not torch.equal(*(part.labels[:20] == 10 for part in (source.train, source.test)))  # of other places
    large = source.at_scale(2.0, 5, 64)
    assert large.images.shape == (5, 1, 64, 64)
    assert set(shown(large.images).tolist()) <= set(split.test.tolist())
    pixels = (large.labels != 10).sum((1, 2)) / 64  # for 8×8 at scale 1
    assert ((pixels > 3.5) & (pixels < 4.6)).all()
    again = make_scenes(
        digits.images[split.test], digits.labels[split.test], Fixed(2.0), 5, 64, digits=1, pieces=0, noise=0.0, seed=7
    )
    assert torch.equal(large.images, again.images)
    assert len(source.at_scale(1.0, None, None)) == 20


def test_noise_and_pieces_reach_the_scenes():
    kinds = [{}, {"noise": 0.1}, {"pieces": 4}, {"scene": 4}]
    found = [Sources("cpu").open(SceneData(**PLAIN, size=60, **{"scene": 2, **kind}), 0).train for kind in kinds]
    plain, noisy, cluttered, full = (each.images for each in found)
    assert (plain == 0).float().mean() > 0.9 > 0.6 > (noisy == 0).float().mean()
    assert ((cluttered[:, 0] > 0) & (found[2].labels == 10)).any()
    assert not ((plain[:, 0] > 0) & (found[0].labels == 10)).any()
    assert (full > 0).sum() > 1.3 * (plain > 0).sum()


# A user's images.


def test_bytes_come_out_as_their_values_in_0_to_1_and_labels_as_long():
    levels = torch.arange(6, dtype=torch.uint8).view(3, 1, 1, 2) * 51
    for images in (levels, levels / 255):
        examples = InMemory(images, torch.tensor([7, 8, 9], dtype=torch.uint8))
        assert (len(examples), examples.sizes) == (3, [(1, 2)] * 3)
        ((found, labels), (last, _)) = examples.batches([[2, 0], np.array([1])])
        torch.testing.assert_close(found.flatten(), torch.tensor([0.8, 1.0, 0.0, 0.2]))
        assert (labels.dtype, labels.tolist(), last.shape) == (torch.int64, [9, 7], (1, 1, 1, 2))


def test_files_in_memory_and_files_on_the_way_are_the_same_images(tmp_path, monkeypatch):
    write_classes(tmp_path, 8)
    found = []
    for most in (2**20, 0):
        monkeypatch.setattr(loading, "KEPT_BYTES", most)
        examples = FromFiles(load_folder(tmp_path).train, torch.device("cpu"))
        assert (examples.tensors is None) == (most == 0)
        found.append(list(examples.batches([[3, 0, 5], [1]])))
    for (images, labels), (others, theirs) in zip(*found, strict=True):
        assert images.dtype == torch.float32
        assert 0 < images.max() <= 1
        assert torch.equal(images, others)
        assert labels.tolist() == theirs.tolist()


def test_a_folder_gives_its_parts_moments_and_classes_and_others_are_refused(tmp_path):
    data = load_folder(write_classes(tmp_path / "a", 10))
    source = Sources("cpu", folder=data).open(folder_data(data), 0)
    assert [len(part) for part in (source.train, source.val, source.test)] == [
        len(part) for part in (data.train, data.val, data.test)
    ]
    assert ((source.mean, source.std), source.classes) == (data.moments, ("cat", "dog"))
    assert (source.images, source.uncounted) == (Images((12, 12), 1, 2), None)
    assert source.at_scale(1.0, None, None) is source.test
    other = load_folder(write_classes(tmp_path / "b", 11))
    for folder in (other, None):
        with pytest.raises(ValueError, match=r"`data` must hold the images of the settings, got"):
            Sources("cpu", folder=folder).open(folder_data(data), 0)


def rescaled_by_loops(image, scale):
    """The triangle kernel, as wide as the step where the image shrinks, about the centre; the edge is repeated."""
    side, width = len(image), max(1.0, 1 / scale)
    matrix = np.zeros((side, side))
    for q in range(side):
        u = min(max((q - (side - 1) / 2) / scale + (side - 1) / 2, 0), side - 1)
        weights = [max(0.0, 1 - abs(u - p) / width) for p in range(side)]
        matrix[q] = np.array(weights) / sum(weights)
    return matrix @ image @ matrix.T


@pytest.mark.parametrize("scale", [0.4, 0.63, 1.6])
def test_images_and_masks_at_a_scale_are_seen_from_another_distance(scale, tmp_path):
    data = load_folder(write_masks(tmp_path, 24), task="segmentation")
    source = Sources("cpu", folder=data).open(folder_data(data), 0)
    assert source.uncounted == 255
    scaled = source.at_scale(scale, None, None)
    assert (len(scaled), scaled.sizes, scaled.tensors) == (len(source.test), source.test.sizes, None)
    ((images, masks),) = scaled.batches([[1, 0]])
    for row, index in enumerate([1, 0]):
        image, mask = (np.array(Image.open(tmp_path / part)) for part in _files(data, index))
        np.testing.assert_allclose(images[row, 0], rescaled_by_loops(image / 255.0, scale), atol=1e-5)
        places = [math.floor((q - 7.5) / scale + 7.5 + 0.5) for q in range(16)]
        expected = [[mask[y, x] if min(x, y) >= 0 and max(x, y) < 16 else 255 for x in places] for y in places]
        assert masks[row].tolist() == expected


def _files(data, index):
    file = data.test.files[index]
    return file.name, file.mask


def test_labels_of_whole_images_stay_at_every_scale():
    examples = Rescaled(InMemory(torch.rand(3, 1, 6, 6), torch.tensor([4, 5, 6])), 0.5)
    ((images, labels),) = examples.batches([[2, 1]])
    assert (images.shape, labels.tolist()) == ((2, 1, 6, 6), [6, 5])


def test_icons_train_at_some_sizes_and_are_tested_at_all_others_in_another_set():
    sources = Sources("cpu")
    source = sources.open(IconData(dataset="embedded", sizes=(20, 22), train=9), 0)
    assert (len(source.train), len(source.val), len(source.test)) == (9, 3 * 4, 45 * 4)
    assert (source.images, source.classes) == (Images((64, 64), 1, 4), ("square", "triangle", "frame", "disc"))
    squares = {
        name: {int(image.sum()) // 255 for image in part.images[part.labels == 0]}
        for name, part in (("train", source.train), ("val", source.val), ("test", source.test))
    }
    assert squares["val"] == {20**2, 21**2, 22**2} >= squares["train"]
    assert squares["test"] == {size**2 for size in range(17, 65)} - squares["val"]
    assert source.mean == pytest.approx((float(source.train.images.double().mean()) / 255,))
    icons = load_icons("embedded")
    assert torch.equal(source.val.images, icons.of_sizes(1, [20, 21, 22])[0])
    assert torch.equal(source.test.images, icons.of_sizes(2, [size for size in SIZES if size not in (20, 21, 22)])[0])
    half = source.at_scale(0.5, None, None)
    assert half.labels.tolist() == [0, 1, 2, 3]
    assert int(half.images[0].sum()) == 255 * 32**2
    again = sources.open(IconData(dataset="embedded", sizes=(20, 22), train=9), 1)
    assert not torch.equal(again.train.images, source.train.images)
    with pytest.raises(ValueError, match=r"`data.train` must be at most the 12 images of these sizes, got 13"):
        sources.open(IconData(dataset="embedded", sizes=(20, 22), train=13), 0)
