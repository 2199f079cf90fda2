"""What the page shows of digits and scenes is what the networks say."""

import json

import numpy as np
import pytest
import torch

from scaleconv import explain
from scaleconv.data import make_scaled
from scaleconv.demo import answers, rendering


def seen(pair, digit, scale):
    return make_scaled(digit[None], scale, pair.size, truncate="allow") - pair.mean


def test_a_verdict_is_that_of_the_network(pairs):
    pair = pairs["digits"]
    found = answers.classify(pair, pair.digits[1], 0.7)
    for name in ("plain", "invariant"):
        with torch.no_grad():
            chances = getattr(pair, name)(seen(pair, pair.digits[1], 0.7))[0].softmax(0)
        assert found[name]["label"] == int(chances.argmax())
        assert found[name]["confidence"] == pytest.approx(float(chances.max()))


def test_the_inside_shows_every_level_of_every_layer(pairs, decode):
    pair = pairs["digits"]
    found = answers.classify(pair, pair.digits[1], 1.0)
    views = explain(pair.invariant, seen(pair, pair.digits[1], 1.0)).layers
    assert [layer["name"] for layer in found["layers"]] == ["conv1", "conv2"]
    for layer, view in zip(found["layers"], views.values(), strict=True):
        assert decode(layer["winners"]).shape == (*view.strength.shape, 3)
        assert [level["peak"] for level in layer["levels"]] == [float(level.response.max()) for level in view.levels]
        shown = view.winner.gather(0, view.output.argmax(0, keepdim=True))  # the map, not every channel
        shares = [float((shown == place).float().mean()) for place in range(len(view.scales))]
        assert [entry["share"] for entry in layer["legend"]] == pytest.approx(shares)
    images = [level["image"] for level in found["layers"][0]["levels"]]
    assert [decode(image).shape[0] for image in images] == [int(48 * scale) for scale in views["stages.conv1"].scales]


def test_the_curve_has_the_probability_of_the_digit_at_every_scale(pairs):
    pair = pairs["digits"]
    found = answers.curve(pair, pair.digits[1], int(pair.labels[1]))
    assert found["class"] == int(pair.labels[1])
    assert (found["scales"][0], found["scales"][-1]) == (0.3, 2.0)
    for place in (0, 7, 17):
        image = seen(pair, pair.digits[1], found["scales"][place])
        for name in ("plain", "invariant"):
            with torch.no_grad():
                chances = getattr(pair, name)(image)[0].softmax(0)
            assert found[name]["chances"][place] == pytest.approx(float(chances[found["class"]]), abs=1e-5)
            assert found[name]["labels"][place] == int(chances.argmax())


def test_the_curve_of_a_drawing_is_that_of_its_name_at_scale_1(pairs):
    pair = pairs["digits"]

    def named(digit, scale):
        return answers.classify(pair, digit, scale)["invariant"]["label"]

    digit = next(each for each in pair.digits if len({named(each, scale) for scale in (0.3, 1.0, 2.0)}) > 1)
    found = answers.curve(pair, digit, None)
    assert found["class"] == named(digit, 1.0)
    assert found["known"] is False


@pytest.mark.parametrize(("top", "height", "width"), [(0, 4, 2), (10, 6, 12), (0, 28, 28)])
def test_a_drawing_becomes_as_large_as_the_digits_and_is_centred(top, height, width):
    drawing = torch.zeros(28, 28, dtype=torch.uint8)
    drawing[top : top + height, :width] = 255
    inked = answers.centred(drawing).nonzero()
    extent = (inked.amax(0) - inked.amin(0) + 1).tolist()
    assert max(extent) == 20
    assert extent[0] / extent[1] == pytest.approx(height / width, rel=0.1)
    assert ((inked.amax(0) + inked.amin(0)) / 2).tolist() == pytest.approx([13.5, 13.5], abs=0.5)


def test_an_empty_drawing_is_refused():
    with pytest.raises(ValueError, match="`drawing` must hold some ink"):
        answers.centred(torch.zeros(28, 28, dtype=torch.uint8))


def test_a_scene_is_labelled_as_the_networks_label_it(pairs, decode):
    pair = pairs["scenes"]
    found = answers.label_scene(pair, 3, 4, 0.5, 1.5)
    assert found == answers.label_scene(pair, 3, 4, 0.5, 1.5)
    assert found != answers.label_scene(pair, 4, 4, 0.5, 1.5)
    assert 1 <= len(found["digits"]) <= 4
    assert all(0.5 <= digit["scale"] <= 1.5 for digit in found["digits"])
    image = torch.from_numpy(decode(found["image"])[..., 0] / np.float32(255))[None, None] - pair.mean
    table = np.array([list(bytes.fromhex(colour[1:])) for colour in rendering.class_colours()])
    pictures = (found["truth"], found["plain"]["labels"])
    truth, plain = ((decode(each)[..., None, :] == table).all(-1).argmax(-1) for each in pictures)
    with torch.no_grad():
        assert (pair.plain(image)[0].argmax(0).numpy() == plain).mean() > 0.95  # pixels are rounded to bytes
    right = (truth == plain)[truth != 10].mean()
    assert found["plain"]["right"] == pytest.approx(right)


def test_the_share_that_is_right_leaves_out_the_background():
    predicted, truth = torch.tensor([[10, 10, 3, 4]]), torch.tensor([[10, 10, 3, 5]])
    assert answers._labelled(predicted, truth)["right"] == 0.5


def test_what_is_offered_are_digits_of_every_class(pairs, decode):
    pair = pairs["digits"]
    found = answers.offer(pair, 2)
    assert [entry["label"] for entry in found] == [label for label in range(10) for _ in range(2)]
    assert all(entry["label"] == pair.labels[entry["index"]] for entry in found)
    assert np.array_equal(decode(found[5]["image"])[..., 0], pair.digits[found[5]["index"]].numpy())


def test_answers_are_json(pairs):
    json.dumps(
        [
            answers.classify(pairs["digits"], pairs["digits"].digits[0], 1.0),
            answers.curve(pairs["digits"], pairs["digits"].digits[0], 7),
        ]
    )


def test_winners_are_black_where_the_layer_hardly_answers(decode):
    index = torch.tensor([[0, 1, 0, 1]])
    shown = decode(rendering.winners(index, torch.tensor([[-1.0, 0.0, 0.0, 4.0]]), ["#ff0000", "#0000ff"]))
    assert shown.tolist() == [[[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 255]]]


def test_the_responses_of_all_levels_share_their_shades(decode):
    weak, strong = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 4.0]])
    shown = rendering.levels(["a", "b"], ["#000000"] * 2, [None, None], [weak, strong])
    first, second = (decode(level["response"])[0].sum(-1) for level in shown)
    assert first[0] == second[0] < first[1] < second[1]
