"""What is measured on trained networks, worked out by loops on small ones."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from helpers import reference
from helpers.sources import make_source, random_examples
from scaleconv import SIConv2d
from scaleconv.data import load_folder, make_scaled
from scaleconv.experiments.measures import MEASURES, Trained, check_measure, register, score
from scaleconv.experiments.records import Series
from scaleconv.experiments.settings import MeasureSettings
from scaleconv.experiments.sources import InMemory, Rescaled, Sources, folder_data
from scaleconv.metrics import equivariance_error, invariance_scores, top_mean
from scaleconv.models import Classifier

SIZE, COUNT, NAMES = (9, 9), 12, ("class0", "class1", "class2")


def at_scale(scale, count=None, size=None):
    """Images that differ from scale to scale, of labels that do not."""
    side = size or SIZE[0]
    whole = random_examples(COUNT, (side, side), seed=round(10 * scale), masks=False)
    labels = torch.arange(COUNT) % 3
    images = whole.images * (whole.images > 0.5) + scale * labels.view(-1, 1, 1, 1) / 9
    return InMemory(images.clamp(0, 1)[:count], labels[:count])


def small_network(conv=nn.Conv2d, seed=23):
    """With norms and dropout, which respond otherwise in training; its predictions vary."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        *(conv(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2), conv(2, 3, 3), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(3, 3)),
    )
    network = Classifier(layers, (0.3,), (0.7,), NAMES).train()
    with torch.no_grad():
        network.network[8].bias.zero_()
        network.network[2].running_mean.fill_(0.1)
    return network


def measure(network, kind, untrained=None, source=None, **settings):
    """The series of a measure; it leaves a network as it was."""
    source = source or make_source(at_scale(1.0), at_scale=at_scale)
    chosen = MeasureSettings(kind=kind, scales=settings.pop("scales", (0.5, 1.0, 2.0)), **settings)
    state, training = {name: tensor.clone() for name, tensor in network.state_dict().items()}, network.training
    found = MEASURES[kind](Trained(network, untrained or small_network, source, chosen, score))
    assert all(torch.equal(state[name], tensor) for name, tensor in network.state_dict().items())
    assert network.training == training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    return found


def outputs(network, scale, **more):
    training = network.training
    with torch.no_grad():
        found = network.eval()(at_scale(scale, **more).images)
    network.train(training)
    return found


@pytest.mark.parametrize(("digits", "size"), [(0, 0), (7, 0), (7, 11)])
def test_errors_at_test_scales_are_those_of_the_images_at_each_scale(digits, size):
    network = small_network()
    found = measure(network, "test_scales", digits=digits, size=size)
    count = digits or COUNT
    expected = []
    for scale in (0.5, 1.0, 2.0):
        predicted = outputs(network, scale, count=count, size=size or None).argmax(1)
        expected.append(100 * sum(int(p != k % 3) for k, p in enumerate(predicted)) / count)
    assert found == {"test_error": Series([0.5, 1.0, 2.0], pytest.approx(expected))}
    assert len(set(expected)) > 1


def test_accuracy_is_of_all_images_at_each_scale():
    network, asked = small_network(), []
    source = make_source(at_scale(1.0), at_scale=lambda *given: asked.append(given) or at_scale(given[0]))
    found = measure(network, "accuracy", source=source)
    expected = [100 * (outputs(network, s).argmax(1) == torch.arange(COUNT) % 3).double().mean() for s in (0.5, 1, 2)]
    assert found == {"accuracy by scale": Series([0.5, 1.0, 2.0], pytest.approx([float(e) for e in expected]))}
    assert asked == [(0.5, None, None), (1.0, None, None), (2.0, None, None)]


def test_mean_iou_is_of_the_masks_at_each_scale():
    torch.manual_seed(0)
    network = Classifier(nn.Conv2d(1, 3, 1), (0.0,), (1.0,), NAMES)
    examples = random_examples(4, masks=True)
    source = make_source(examples, task="segmentation", uncounted=255, at_scale=lambda s, *_: Rescaled(examples, s))
    chosen = Trained(
        network,
        None,
        source,
        MeasureSettings(kind="accuracy", scales=(0.5, 1.0)),
        lambda *given: score(*given, uncounted=255),
    )
    found = MEASURES["accuracy"](chosen)
    for k, scale in enumerate((0.5, 1.0)):
        ((images, masks),) = Rescaled(examples, scale).batches([range(4)])
        with torch.no_grad():
            predicted = network(images).argmax(1)
        overlaps = []
        for label in (0, 1, 2):
            there, said = masks == label, (predicted == label) & (masks != 255)
            overlaps.append(100 * (there & said).sum().item() / (there | said).sum().item())
        right = (predicted == masks).sum().item() / (masks != 255).sum().item()
        assert found["mean IoU by scale"].y[k] == pytest.approx(np.mean(overlaps))
        assert found["accuracy by scale"].y[k] == pytest.approx(100 * right)


class Bright(nn.Module):
    """Tells light images from dark ones."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images):
        light = images.mean((1, 2, 3)) - 0.5
        return torch.stack([-light, light], 1) * self.weight


def test_accuracy_by_size_is_of_the_files_as_they_were(tmp_path):
    """Files of sides 20 are labelled wrongly; all are brought to one size, and divided by their own."""
    for index in range(40):
        side, light = (20, 30)[index % 2], index % 4 < 2
        path = tmp_path / ("light" if light == (side == 30) else "dark") / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((side, side + 5), index + (200 if light else 10), np.uint8)).save(path)
    data = load_folder(tmp_path, resize=16)
    source = Sources("cpu", folder=data).open(folder_data(data), 0)
    network = Classifier(Bright(), (0.0,), (1.0,), ("dark", "light"))
    found = measure(network, "accuracy", source=source, scales=(1.0,))
    assert found["accuracy by size"] == Series([20.0, 30.0], [0.0, 100.0])
    assert "accuracy by size" not in measure(network, "accuracy", source=source, scales=(2.0,))
    with pytest.raises(ValueError, match="`kind` must be accuracy for images of your own, got 'test_scales'"):
        measure(network, "test_scales", source=source, scales=(2.0,))


@pytest.mark.parametrize(("neuron", "digits_at"), [("position", 0.0), ("channel", 0.0), ("centre", 2.0)])
def test_invariance_is_the_mean_of_the_best_neurons_before_and_after_training(neuron, digits_at):
    layers, shares = ("1", "4"), {"firing": 0.2, "top": 0.4}
    options = {"layers": layers, "neuron": neuron, "digits_at": digits_at, "scales": (0.6, 1.2), "digits": 10}
    network = small_network(seed=17)
    found = measure(network, "invariance", **options, **shares)
    images = at_scale(digits_at or 1.0).images[:10]

    def rescaled(some, factor):
        return make_scaled(some, factor, 9, truncate="allow")

    for name, subject in (("trained", network), ("random", small_network())):
        names = [f"network.{layer}" for layer in layers]
        scores = invariance_scores(subject.eval(), images, names, rescaled, (0.6, 1.2), neuron=neuron, firing=0.2)
        expected = [top_mean(scores[layer], 0.4) for layer in names]
        assert found[name] == Series([1.0, 2.0], pytest.approx(expected, rel=1e-6))
    assert found["trained"] != found["random"]


def test_the_level_of_the_strongest_response_of_each_filter_wins():
    scales = (0.5, 1.0, 2.0)

    def layer(channels, maps, kernel):
        return SIConv2d(channels, maps, kernel, scales=scales)

    network = small_network(layer).eval()
    found = measure(network, "winners", scales=(0.5, 1.0), digits=6)
    assert set(found) == {f"{name} {scale:.3g}" for name in ("0", "3") for scale in scales}
    for index, scale in enumerate((0.5, 1.0)):
        seen = {}
        for name in ("0", "3"):
            conv = network.network[int(name)]
            handle = conv.register_forward_pre_hook(
                lambda _, given, name=name, seen=seen: seen.update({name: given[0]})
            )
            outputs(network, scale, count=6)
            images = seen[name]
            with torch.no_grad():
                network(torch.zeros(1, 1, *SIZE))
            blank = seen[name]
            handle.remove()
            arrays = [tensor.detach().double().numpy() for tensor in (conv.weight, conv.bias)]
            call = ((1, 1), ((0, 0), (0, 0)), (1, 1), 1, scales)
            responses, empty = (reference.si_conv2d(x.double().numpy(), *arrays, *call) for x in (images, blank))
            votes = [0, 0, 0]
            for image in range(6):
                for k in range(len(arrays[0])):
                    levels = [responses[level, image, k].max() for level in range(3)]
                    if max(levels) > empty[:, 0, k].max() + 1e-6:
                        votes[int(np.argmax(levels))] += 1
            assert sum(votes) > 0
            shares = [found[f"{name} {s:.3g}"].y[index] for s in scales]
            assert shares == pytest.approx([100 * count / sum(votes) for count in votes])


def test_filters_that_respond_no_more_than_to_an_empty_image_have_no_winner():
    network = small_network(lambda *sizes: SIConv2d(*sizes, scales=(1.0, 2.0)))
    with torch.no_grad():
        network.network[0].weight.zero_()
    found = measure(network, "winners")
    assert found["0 1"].y == found["0 2"].y == [0.0, 0.0, 0.0]


def test_equivariance_compares_the_images_at_a_scale_with_those_at_scale_one():
    network = small_network()
    found = measure(network, "equivariance", layers=("1", "6"), digits=8, scales=(0.5, 1.0))
    names, blank = ["network.1", "network.6"], torch.zeros(1, 1, *SIZE)
    images, half = (at_scale(scale, 8).images for scale in (1.0, 0.5))
    expected = equivariance_error(network.eval(), images, half, 0.5, names, blank)
    assert found == {
        "1": Series([0.5, 1.0], [pytest.approx(expected["network.1"]), pytest.approx(0, abs=1e-6)]),
        "6": Series([0.5, 1.0], [pytest.approx(expected["network.6"]), pytest.approx(0, abs=1e-6)]),
    }


def test_consistency_is_the_share_of_images_that_keep_their_class():
    network = small_network()
    found = measure(network, "consistency", scales=(0.5, 2.0, 0.7), digits=11)
    scales = (0.5, 0.7, 1.0, 2.0)
    answers = {scale: outputs(network, scale, count=11) for scale in scales}
    same = {
        scale: [int(a == b) for a, b in zip(answers[scale].argmax(1), answers[1.0].argmax(1), strict=True)]
        for scale in scales
    }
    assert 0 < sum(same[0.5]) < 11
    assert found["same class"] == Series(list(scales), pytest.approx([100 * sum(same[scale]) / 11 for scale in scales]))
    always = [sum(all(same[s][k] for s in scales if s >= scale) for k in range(11)) for scale in scales]
    assert found["same class at all scales so far"].y == pytest.approx([100 * count / 11 for count in always])
    there = answers[1.0]
    far = [100 * ((answers[s] - there).square().sum() / there.square().sum()).sqrt().item() for s in scales]
    assert found["distance"].y == pytest.approx(far, abs=1e-4)


def test_what_cannot_be_measured_on_a_network_is_refused():
    network = small_network().network
    check_measure(MeasureSettings(), "convnet", network)
    check_measure(MeasureSettings(kind="equivariance", scales=(1.0,), layers=("1",)), "convnet", network)
    for settings, message in [
        ({"kind": "beauty"}, "`measure.kind` must be one of .*accuracy.*, got 'beauty'"),
        ({"kind": "equivariance", "layers": ("nose",)}, r"`measure.layers` must be layers of convnet .*got 'nose'"),
        ({"kind": "winners"}, "`models` must have scale-invariant layers for winners, got 'convnet'"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_measure(MeasureSettings(scales=(1.0,), **settings), "convnet", network)
    with pytest.raises(ValueError, match="`name` of a measure must be new, got 'winners'"):
        register("winners")(lambda trained: {})
