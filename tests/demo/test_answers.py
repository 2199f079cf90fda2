"""What the page shows of digits and scenes is what the networks compute."""

import numpy as np
import pytest
import torch

from scaleconv.data import make_scaled
from scaleconv.demo import answers, rendering


@torch.no_grad()
def probabilities(network, pair, digit, scale):
    image = make_scaled(digit[None], scale, pair.size, truncate="allow")
    logits = network(image)[0].double().numpy()
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.parametrize("name", ["plain", "invariant"])
def test_label_confidence_and_curve_are_those_of_the_network(pairs, name):
    pair, digit = pairs["digits"], pairs["digits"].digits[1]
    network = getattr(pair, name)
    verdict, curve = answers.classify(pair, digit, 3, 0.7)[name], answers.curve(pair, digit, 3)
    expected = probabilities(network, pair, digit, 0.7)
    assert answers.classify(pair, digit, 3, 0.7)["truth"] == 3
    assert verdict == {"label": expected.argmax(), "confidence": pytest.approx(expected.max(), rel=1e-4)}
    assert (curve["class"], curve["known"], len(curve["scales"])) == (3, True, 18)
    for scale, chance, label in zip(curve["scales"], curve[name]["chances"], curve[name]["labels"], strict=True):
        expected = probabilities(network, pair, digit, scale)
        assert (chance, label) == (pytest.approx(expected[3], abs=1e-5), expected.argmax())


def test_a_layer_shows_its_winners_and_the_responses_of_its_strongest_channel(pairs, decode):
    pair, noise = pairs["digits"], torch.arange(784).mul(7919).remainder(256).reshape(28, 28).byte()
    found = answers.classify(pair, noise, None, 2.0)["layers"]  # fills the image: on a constant background, levels tie
    image = make_scaled(noise[None], 2.0, pair.size, truncate="allow") - 0.1  # the mean of the fixture
    layer = pair.invariant.get_submodule("network.stages.conv1")
    with torch.no_grad():
        output, winner = layer(image, return_winner=True)
        plain = torch.nn.functional.conv2d(image, layer.weight, layer.bias, padding=layer.padding)[0]
    counts = [0] * len(layer.scales)
    for y, x in np.ndindex(*output.shape[2:]):
        counts[winner[0, output[0, :, y, x].argmax(), y, x]] += 1  # of the strongest channel at each position
    assert [shown["name"] for shown in found] == ["conv1", "conv2"]
    assert [entry["share"] for entry in found[0]["legend"]] == pytest.approx([count / sum(counts) for count in counts])
    assert found[0]["channel"] == int(output[0].amax((1, 2)).argmax())
    levels = {level["name"]: level for level in found[0]["levels"]}
    assert levels["×1"]["peak"] == pytest.approx(float(plain[found[0]["channel"]].max()), rel=1e-5)
    assert {name: decode(level["image"]).shape[0] for name, level in levels.items()} == {
        f"×{scale:.2g}": int(48 * scale) for scale in layer.scales
    }
    assert all(level["image"] is None for level in found[1]["levels"])  # of many channels


def test_the_curve_of_a_drawing_is_that_of_its_prediction_at_scale_1(pairs):
    pair = pairs["digits"]
    for digit in pair.digits:
        labels = [probabilities(pair.invariant, pair, digit, scale).argmax() for scale in (0.3, 1.0, 2.0)]
        if labels[1] not in (labels[0], labels[2]):
            break
    found = answers.curve(pair, digit, None)
    assert (found["class"], found["known"]) == (labels[1], False)


@pytest.mark.parametrize(("top", "height", "width"), [(0, 4, 2), (10, 6, 12), (0, 28, 28)])
def test_a_drawing_becomes_as_large_as_the_digits_and_is_centred(top, height, width):
    drawing = torch.zeros(28, 28, dtype=torch.uint8)
    drawing[top : top + height, :width] = 255
    inked = answers.centre(drawing).nonzero()
    extent = (inked.amax(0) - inked.amin(0) + 1).tolist()
    assert max(extent) == 20
    assert extent[0] / extent[1] == pytest.approx(height / width, rel=0.1)
    assert ((inked.amax(0) + inked.amin(0)) / 2).tolist() == pytest.approx([13.5, 13.5], abs=0.5)


def test_a_scene_is_labelled_as_the_networks_label_it(pairs, decode):
    pair = pairs["scenes"]
    found = answers.label_scene(pair, 3, 4, 0.5, 1.5)
    assert found["image"] != answers.label_scene(pair, 4, 4, 0.5, 1.5)["image"]
    assert 1 <= len(found["digits"]) <= 4
    assert all(0.5 <= digit["scale"] <= 1.5 for digit in found["digits"])
    image = torch.from_numpy(decode(found["image"])[..., 0] / np.float32(255))[None, None]
    table = np.array([list(bytes.fromhex(colour[1:])) for colour in rendering.class_colours()])
    truth, *labels = (
        (decode(each)[..., None, :] == table).all(-1).argmax(-1)
        for each in (found["truth"], found["plain"]["labels"], found["invariant"]["labels"])
    )
    assert {digit["label"] for digit in found["digits"]} >= set(truth[truth != 10].tolist()) != set()
    for name, shown in zip(("plain", "invariant"), labels, strict=True):
        with torch.no_grad():
            expected = getattr(pair, name)(image)[0].argmax(0).numpy()
        assert (expected == shown).mean() > 0.95  # pixels are rounded to bytes
        assert found[name]["right"] == pytest.approx((truth == shown)[truth != 10].mean())


def test_three_test_digits_of_every_class_are_offered(pairs, decode):
    pair = pairs["digits"]
    found = answers.offer(pair, 3)
    assert [entry["label"] for entry in found] == [label for label in range(10) for _ in range(3)]
    for entry in found:
        assert entry["label"] == pair.labels[entry["index"]]
        assert np.array_equal(decode(entry["image"])[..., 0], pair.digits[entry["index"]].numpy())


def test_winners_are_black_where_the_response_is_below_the_median(decode):
    index = torch.tensor([[0, 1, 0, 1, 0]])
    shown = decode(rendering.winners(index, torch.tensor([[-1.0, 0.0, 0.0, 4.0, 1.0]]), ["#ff0000", "#0000ff"]))
    assert shown.tolist() == [[[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 255], [128, 0, 0]]]  # √¼ of red


def test_zero_is_white_and_the_responses_of_all_levels_share_their_colours(decode):
    weak, strong = torch.tensor([[0.0, 1.0, -1.0]]), torch.tensor([[0.0, 4.0, -2.0]])
    shown = rendering.levels(["a", "b"], ["#000000"] * 2, [None, None], [weak, strong])
    first, second = (decode(level["response"])[0].astype(int) for level in shown)
    assert np.abs(first[0] - 247).max() <= 2  # the middle of RdBu
    assert first[0].tolist() == second[0].tolist()
    for pixels in (first, second):
        assert pixels[1, 0] > pixels[1, 2]  # red above 0
        assert pixels[2, 0] < pixels[2, 2]  # blue below
    assert second[1, 2] < first[1, 2]  # a stronger response has more colour
    assert (shown[1]["peak"], shown[1]["image"]) == (4.0, None)


def test_the_page_opens_with_the_digit_on_which_the_invariant_network_is_ahead_by_most(pairs):
    pair = pairs["digits"]
    offered = answers.offer(pair, 2)
    ahead = {
        entry["index"]: np.subtract(
            *(
                probabilities(network, pair, pair.digits[entry["index"]], answers.START)[entry["label"]]
                for network in (pair.invariant, pair.plain)
            )
        )
        for entry in offered
    }
    assert answers.find_start(pair, offered) == {"index": max(ahead, key=ahead.get), "scale": answers.START}
