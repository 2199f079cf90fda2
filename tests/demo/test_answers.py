"""What the page shows of digits, photographs and scenes is what the networks compute."""

from itertools import product

import numpy as np
import pytest
import torch

from scaleconv.data import Uniform, make_scaled, make_scenes
from scaleconv.data.rescale import rescale
from scaleconv.demo import answers, rendering
from scaleconv.inspection import explain


@torch.no_grad()
def probabilities(network, pair, image, scale):
    """Of an image as the network was trained on it: a digit on black; a photograph with its edge repeated."""
    if image.dim() == 2:
        shown = make_scaled(image[None], scale, pair.size, truncate="allow")
    else:
        shown = rescale(image[None] / 255, scale * 32 / 96, 32, antialias=True, border="edge")
    logits = network(shown)[0].double().numpy()
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.parametrize("of", ["digits", "photographs"])
@pytest.mark.parametrize("name", ["plain", "invariant"])
def test_label_confidence_and_curve_are_those_of_the_network(pairs, of, name):
    pair, image = pairs[of], pairs[of].images[1]
    network, classes = getattr(pair, name), getattr(pair, name).classes
    verdict, curve = answers.classify(pair, image, 2, 0.7)[name], answers.curve(pair, image, 2)
    expected = probabilities(network, pair, image, 0.7)
    assert answers.classify(pair, image, 2, 0.7)["truth"] == classes[2]
    assert verdict == {"label": classes[expected.argmax()], "confidence": pytest.approx(expected.max(), rel=1e-3)}
    assert (curve["class"], curve["known"], len(curve["scales"])) == (classes[2], True, 18)
    for scale, chance, label in zip(curve["scales"], curve[name]["chances"], curve[name]["labels"], strict=True):
        expected = probabilities(network, pair, image, scale)
        assert (chance, label) == (pytest.approx(expected[2], abs=1e-4), classes[expected.argmax()])


def test_a_photograph_fills_its_canvas_at_scale_1_and_repeats_its_edge_when_it_shrinks(pairs, decode):
    image = torch.zeros(3, 96, 96, dtype=torch.uint8)
    image[0, :, 48:] = 255  # red on the right
    whole, half = (decode(answers.classify(pairs["photographs"], image, None, s)["image"]) for s in (1.0, 0.5))
    for shown in (whole, half):
        assert shown.shape == (32, 32, 3)
        assert (shown[:, :15] == 0).all()
        assert (shown[:, 17:] == [255, 0, 0]).all()


def test_the_converted_layers_of_a_resnet_are_shown(pairs):
    pair = pairs["photographs"]
    found = answers.classify(pair, pair.images[0], 0, 1.0)["layers"]
    assert [layer["name"] for layer in found] == ["2.0.conv2", "2.1.conv1", "2.1.conv2"]
    for layer in found:
        assert [entry["name"] for entry in layer["legend"]] == ["×0.5", "×0.71", "×1"]
        assert sum(entry["share"] for entry in layer["legend"]) == pytest.approx(1)


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
    for digit in pair.images:
        labels = [probabilities(pair.invariant, pair, digit, scale).argmax() for scale in (0.3, 1.0, 2.0)]
        if labels[1] not in (labels[0], labels[2]):
            break
    found = answers.curve(pair, digit, None)
    assert (found["class"], found["known"]) == (str(labels[1]), False)


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


def test_a_scene_shows_in_every_layer_which_scale_won(pairs):
    pair = pairs["scenes"]
    found = answers.label_scene(pair, 3, 4, 0.5, 1.5)["layers"]
    made = make_scenes(pair.images, pair.labels, Uniform(0.5, 1.5), 1, answers.SCENE, digits=4, pieces=0, seed=3)
    views = explain(pair.invariant, made.images).layers
    assert [layer["name"] for layer in found] == ["conv1", "conv2", "conv3", "conv4"]
    for layer, view in zip(found, views.values(), strict=True):
        shares = [float((view.winning_scale == torch.tensor(scale)).double().mean()) for scale in view.scales]
        assert [entry["share"] for entry in layer["legend"]] == pytest.approx(shares)
        assert len({round(share, 3) for share in shares}) > 1


def test_so_many_images_of_every_class_are_offered(pairs, decode):
    for name, each, classes in (("digits", 3, "0123456789"), ("photographs", 2, ("airplane", "cat", "ship"))):
        pair = pairs[name]
        found = answers.offer(pair, each)
        assert [entry["label"] for entry in found] == [label for label in classes for _ in range(each)]
        for entry in found:
            assert entry["label"] == classes[pair.labels[entry["index"]]]
            shown, image = decode(entry["image"]), pair.images[entry["index"]]
            assert np.array_equal(shown.transpose(2, 0, 1), image.expand(3, *image.shape[-2:]).numpy())


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


def compare_networks(pair, offered, scales):
    """For each image and scale, whether the plain network alone is wrong, and how much less sure it is of the label."""
    found = {}
    for index, scale in product((entry["index"] for entry in offered), scales):
        label, image = int(pair.labels[index]), pair.images[index]
        plain, invariant = (probabilities(network, pair, image, scale) for network in (pair.plain, pair.invariant))
        found[index, scale] = bool(invariant.argmax() == label != plain.argmax()), invariant[label] - plain[label]
    return found


@pytest.mark.parametrize("name", ["digits", "photographs"])
def test_a_tab_opens_where_the_plain_network_alone_is_wrong_by_most(pairs, name):
    pair, scales = pairs[name], (0.5, 1.0, 1.9)
    offered = answers.offer(pair, 2)
    found = compare_networks(pair, offered, scales)
    index, scale = max(found, key=found.get)
    assert answers.find_start(pair, offered, scales) == {"index": index, "scale": scale}


def test_a_larger_lead_counts_less_than_an_error_of_the_plain_network_alone(pairs):
    pair = pairs["digits"]
    found = compare_networks(pair, answers.offer(pair, 20), [1.9])
    (ahead, leading), (lead, wrong) = (
        choose((lead, index) for (index, _), (alone, lead) in found.items() if alone == wanted)
        for choose, wanted in ((max, False), (min, True))
    )
    assert ahead > lead
    offered = [{"index": leading}, {"index": wrong}]
    assert answers.find_start(pair, offered, [1.9]) == {"index": wrong, "scale": 1.9}
    assert answers.find_start(pair, offered[:1], [1.9]) == {"index": leading, "scale": 1.9}
