"""MNIST-Scale as a whole: pinned to the bit, and its preprocessing."""

import numpy as np
import pytest
import torch

from scaleconv.data import MNIST_SCALE, Uniform, load_digits, make_scaled, make_set, scalar_mean, subtract_mean

EMBEDDED_MD5 = "e2d1b0b28af6f98f6c1d426db916d816"
MNIST_MD5 = "843e642e50c05a3c269ca61572cfd9cf"


@pytest.fixture(scope="module")
def full_mnist():
    """The 60,000 training digits, if this machine has them; the fixture `cache` hides where from the other tests."""
    try:
        return load_digits("mnist", "train", download=False)
    except OSError as error:
        pytest.skip(f"full MNIST is not to be had: {error}")


def test_the_default_set_is_pinned(embedded):
    made = make_set(embedded)
    assert made.checksum() == EMBEDDED_MD5
    assert Uniform(0.3, 1) == MNIST_SCALE
    assert made.parameters.as_dict() == {
        "dataset": "embedded",
        "part": "test",
        "checksums": ("2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"),
        "scales": "uniform:0.3,1",
        "seed": 0,
        "size": (28, 28),
        "interpolation": "bilinear",
        "antialias": False,
        "truncate": "error",
    }


def test_the_default_set_of_full_mnist_is_pinned(full_mnist):
    assert make_set(full_mnist).checksum() == MNIST_MD5


def test_which_digits_of_full_mnist_the_papers_large_canvas_cuts(full_mnist):
    from scaleconv.data import cut_off

    assert int((cut_off(full_mnist.images, 1.6, 40) > 0).sum()) == 813
    assert not cut_off(full_mnist.images, 1.6, 44).any()


def test_the_set_is_its_digits_scaled_by_what_was_drawn(embedded):
    made = make_set(embedded, Uniform(0.5, 1.2), (40, 36), seed=5)
    assert torch.equal(made.scales, torch.from_numpy(Uniform(0.5, 1.2).draw(10_000, 5)))
    assert torch.equal(made.labels, embedded.labels)
    assert torch.equal(made.images, make_scaled(embedded.images, made.scales, (40, 36)))
    assert made.parameters.size == (40, 36)
    assert len(made) == 10_000
    assert 0 <= float(made.images.min()) < float(made.images.max()) <= 1


def test_the_checksum_sees_every_tensor(embedded):
    from dataclasses import replace

    made = make_set(replace(embedded, images=embedded.images[:50], labels=embedded.labels[:50]))
    sums = {made.checksum()}
    for name in ("images", "labels", "scales"):
        changed = getattr(made, name).clone()
        changed.view(-1)[-1] += 1
        sums.add(replace(made, **{name: changed}).checksum())
    assert len(sums) == 4


def test_the_mean_is_one_number_of_the_training_images():
    images = torch.rand(20, 1, 6, 5, generator=torch.Generator().manual_seed(0))
    train, test = images[:15], images[15:]
    mean = float(np.mean(train.numpy().astype(np.float64)))
    assert scalar_mean(train) == pytest.approx(mean, abs=1e-12)
    centred, tested = subtract_mean(train, test)
    assert torch.equal(centred, train - mean)
    assert torch.equal(tested, test - mean)
    assert len(torch.unique(train - centred)) <= 4  # one number, to rounding: not a mean image
    with pytest.raises(ValueError, match="empty"):
        scalar_mean(images[:0])
