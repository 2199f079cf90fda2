"""What RBMs cannot use is refused by name: images, arguments, parameters to load."""

import math
import re

import numpy as np
import pytest
import torch

from helpers.small_rbms import IMAGES, QUICK, kinds, make
from scaleconv.models.contrastive import Recipe
from scaleconv.models.rbm import RBM
from scaleconv.models.si_rbm import SIRBM

NAN = IMAGES.clone()
NAN[3, 4] = math.nan
WRONG_IMAGES = {
    "above 1": (IMAGES + 0.5, ValueError, "`images` must lie in [0, 1], got values from 0.5"),
    "below 0": (IMAGES - 0.5, ValueError, "`images` must lie in [0, 1], got values from -0.5"),
    "NaN": (NAN, ValueError, "`images` must lie in [0, 1], got values from nan to nan"),
    "array": (IMAGES.numpy(), TypeError, "`images` must be a tensor, got ndarray"),
    "integers": (IMAGES.long(), TypeError, "`images` must be of a floating-point type, got torch.int64"),
    "one image": (IMAGES[0], ValueError, "`images` must be of shape (N, V) or (R, N, V), none of them 0, got (64,)"),
    "no images": (IMAGES[:0], ValueError, "none of them 0, got (0, 64)"),
    "no pixels": (IMAGES[:, :0], ValueError, "none of them 0, got (100, 0)"),
    "with channels": (IMAGES.view(100, 1, 8, 8), ValueError, "(N, V) or (R, N, V), none of them 0, got (100, 1, 8, 8)"),
}


@kinds
@pytest.mark.parametrize(("images", "error", "message"), WRONG_IMAGES.values(), ids=WRONG_IMAGES)
def test_wrong_images_are_refused_by_every_method(kind, images, error, message):
    fitted = make(kind).fit(IMAGES)
    for method in (make(kind).fit, fitted.transform, fitted.free_energy, fitted.reconstruct, fitted.pseudo_likelihood):
        with pytest.raises(error, match=re.escape(message)):
            method(images)


@kinds
def test_images_that_do_not_fit_what_was_learned_are_refused(kind):
    model = make(kind).fit(IMAGES)
    for method in (model.transform, model.free_energy, model.reconstruct, model.pseudo_likelihood):
        with pytest.raises(ValueError, match=re.escape("`images` must be of shape (N, 64), as learned, got (100, 63)")):
            method(IMAGES[:, 1:])
        with pytest.raises(ValueError, match=re.escape("(N, 64), as learned, got (2, 100, 64)")):
            method(torch.stack([IMAGES, IMAGES]))
        with pytest.raises(ValueError, match=re.escape("must be torch.float32 on cpu, as learned, got torch.float64")):
            method(IMAGES.double())
    with pytest.raises(ValueError, match=re.escape("`start` must be of shape (2, 64), got (3, 64)")):
        model.sample(2, start=IMAGES[:3])
    with pytest.raises(ValueError, match=re.escape("`start` must lie in [0, 1], got values from 1")):
        model.sample(3, start=IMAGES[:3] + 1)
    zeros = torch.zeros(100)
    for pixels in (zeros.long() + 64, zeros.long() - 1, zeros[1:].long(), zeros, zeros.bool(), [0] * 100):
        with pytest.raises(ValueError, match="`pixels` must be 100 indices below 64, got"):
            model.pseudo_likelihood(IMAGES, pixels=pixels)


WRONG_ARGUMENTS = {
    "zero units": (lambda: RBM(0), ValueError, "`hidden` must be at least 1, got 0"),
    "fraction of a unit": (lambda: RBM(1.5), TypeError, "`hidden` must be an integer, got 1.5"),
    "boolean units": (lambda: SIRBM(True, 8), TypeError, "`hidden` must be an integer, got True"),
    "zero size": (lambda: SIRBM(3, (8, 0)), ValueError, "`size` must be at least 1, got 0"),
    "size of three": (lambda: SIRBM(3, (8, 8, 8)), ValueError, "`size` must be an integer or (height, width), got"),
    "size of text": (lambda: SIRBM(3, "88"), TypeError, "`size` must be an integer, got '88'"),
    "zero filter": (lambda: SIRBM(3, 8, filter_size=0), ValueError, "`filter_size` must be at least 1, got 0"),
    "scales": (lambda: SIRBM(3, 8, scales=(2,)), ValueError, "`scales` must contain 1, got (2.0,)"),
    "wrong size": (
        lambda: SIRBM(3, 9, QUICK).fit(IMAGES),
        ValueError,
        "`images` must have 9×9 pixels, got 64",
    ),
    "large batch": (
        lambda: RBM(3, Recipe(batch=101)).fit(IMAGES),
        ValueError,
        "`batch` (=101) must not exceed the 100 images",
    ),
    "zero epochs": (lambda: Recipe(epochs=0), ValueError, "`epochs` must be at least 1, got 0"),
    "zero steps": (lambda: Recipe(steps=0), ValueError, "`steps` must be at least 1, got 0"),
    "fraction of a batch": (lambda: Recipe(batch=0.5), TypeError, "`batch` must be an integer, got 0.5"),
    "negative rate": (lambda: Recipe(learning_rate=-1), ValueError, "`learning_rate` must be at least 0, got -1"),
    "NaN decay": (lambda: Recipe(weight_decay=math.nan), ValueError, "`weight_decay` must be at least 0, got nan"),
    "infinite rate": (lambda: Recipe(learning_rate=math.inf), ValueError, "`learning_rate` must be finite, got inf"),
    "rate beyond floats": (lambda: Recipe(learning_rate=10**400), ValueError, "`learning_rate` must be finite, got 10"),
    "rate of text": (lambda: Recipe(learning_rate="a"), TypeError, "`learning_rate` must be a number, got 'a'"),
    "momentum": (lambda: Recipe(momentum=1.5), ValueError, "`momentum` must be below 1, got 1.5"),
    "target of text": (lambda: Recipe(sparsity_target="a"), TypeError, "`sparsity_target` must be a number, got 'a'"),
    "persistent": (lambda: Recipe(persistent="no"), TypeError, "`persistent` must be True or False, got 'no'"),
    "recipe": (lambda: RBM(3, {"epochs": 2}), TypeError, "`recipe` must be a Recipe, got {'epochs': 2}"),
    "seed": (lambda: RBM(3, seed=1.5), TypeError, "`seed` must be an integer, got 1.5"),
    "negative seed": (lambda: RBM(3, seed=-1), ValueError, "`seed` must be at least 0, got -1"),
    "one of a single machine": (lambda: make("rbm").fit(IMAGES).run(0), ValueError, "`run` must be asked of machines"),
    "target of 0": (lambda: Recipe(sparsity_target=0), ValueError, "`sparsity_target` must lie between 0 and 1, got 0"),
    "no samples": (lambda: make("rbm").fit(IMAGES).sample(0), ValueError, "`count` must be at least 1, got 0"),
    "no Gibbs steps": (lambda: make("rbm").fit(IMAGES).sample(1, 0), ValueError, "`steps` must be at least 1, got 0"),
    "bias to load": (
        lambda: make("si_rbm").load(torch.zeros(7, 64), torch.zeros(1, 7), torch.zeros(64)),
        ValueError,
        "`hidden_bias` must be of shape (2, 7), got (1, 7)",
    ),
    "NaN to load": (
        lambda: make("rbm").load(torch.full((7, 64), math.nan), torch.zeros(1, 7), torch.zeros(64)),
        ValueError,
        "`weight` must be finite, got NaN",
    ),
    "types to load": (
        lambda: make("rbm").load(torch.zeros(7, 64), torch.zeros(1, 7).double(), torch.zeros(64)),
        ValueError,
        "`hidden_bias` must be torch.float32 on cpu, as `weight` is, got torch.float64 on cpu",
    ),
    "integers to load": (
        lambda: make("rbm").load(torch.zeros(7, 64).long(), torch.zeros(1, 7), torch.zeros(64)),
        TypeError,
        "`weight` must be of a floating-point type, got torch.int64",
    ),
    "array to load": (
        lambda: make("rbm").load(np.zeros((7, 64)), torch.zeros(1, 7), torch.zeros(64)),
        TypeError,
        "`weight` must be a tensor, got ndarray",
    ),
    "number to load": (
        lambda: make("rbm").load(torch.zeros(7, 64), torch.zeros(1, 7), torch.tensor(0.0)),
        ValueError,
        "`visible_bias` must have at least 1 dimensions, got shape ()",
    ),
    "width to load": (
        lambda: make("si_rbm").load(torch.zeros(7, 64), torch.zeros(2, 7), torch.zeros(63)),
        ValueError,
        "`visible_bias` must have 8×8 pixels, got 63",
    ),
    "before fit": (lambda: RBM(3).transform(IMAGES), RuntimeError, "this RBM has not learned anything: call `fit`"),
}


@pytest.mark.parametrize(("call", "error", "message"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
