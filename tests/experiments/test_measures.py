"""What a network gets right, what it costs, and what items measure on it: by loops and counts by hand on small ones."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from helpers import reference
from helpers.sources import Streamed, make_source, random_examples
from scaleconv import SIConv2d, macs
from scaleconv.data import load_folder, make_scaled
from scaleconv.experiments import measures
from scaleconv.experiments.measures import (
    MEASURES,
    Tally,
    Trained,
    by_size,
    check_measure,
    count_macs,
    kept_bytes,
    measure_cost,
    register,
    score,
    step_time,
)
from scaleconv.experiments.records import Series
from scaleconv.experiments.settings import MeasureSettings
from scaleconv.experiments.sources import InMemory, Rescaled, Sources, folder_data
from scaleconv.metrics import equivariance_error, invariance_scores, top_mean
from scaleconv.models import Classifier
from scaleconv.models.controls import add_branches
from scaleconv.nn import ScaleInvariant

SIZES = [(4, 4), (6, 5), (4, 4), (4, 4), (6, 5), (2, 9), (4, 4)]


class Reader(nn.Module):
    """Sees the class of a pixel in its value: 0.0, 0.1, 0.2, …; of an image in its first pixel."""

    classes = ("a", "b", "c")

    def __init__(self, dense):
        super().__init__()
        self.dense, self.seen = dense, []
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images):
        self.seen.append((len(images), self.training, torch.is_grad_enabled()))
        values = images[:, 0] if self.dense else images[:, 0, 0, 0]
        read = (values * 10).round().long()
        return nn.functional.one_hot(read, 3).movedim(-1, 1).float() * self.weight


def several_sizes(masks):
    """Images that show a class, and labels that often agree."""
    random = torch.Generator().manual_seed(1)
    images = [torch.randint(3, (1, *size), generator=random) / 10 for size in SIZES]
    labels = [torch.randint(3, size if masks else (), generator=random) for size in SIZES]
    return Streamed(images, labels)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_the_label_of_each_image_is_found_or_not_whatever_the_sizes(batch, monkeypatch):
    monkeypatch.setattr(measures, "BATCH", batch)
    monkeypatch.setattr(measures, "PIXELS", 16)  # batches of images of 4×4, fewer where they are larger
    examples, network = several_sizes(masks=False), Reader(dense=False)
    found = score(network, examples, workers=3)
    right = [
        int(round(image[0, 0, 0].item() * 10) == label)
        for image, label in zip(examples.images, examples.labels, strict=True)
    ]
    assert found.right.tolist() == right
    assert found.counted.tolist() == [1] * 7
    assert 0 < sum(right) < 7
    assert found.error() == pytest.approx(100 * (7 - sum(right)) / 7)
    assert found.error(torch.tensor([True, False, False, True, False, False, False])) == 50 * (2 - right[0] - right[3])
    sizes = {1: [1] * 7, 2: [2, 2, 1, 1, 1], 100: [4, 2, 1]}[batch]
    assert [count for count, *_ in network.seen] == sizes
    assert {mode for _, *modes in network.seen for mode in modes} == {False}
    assert network.training
    assert examples.workers == {3}


@pytest.mark.parametrize("uncounted", [None, 2])
def test_labels_of_pixels_and_their_confusion_are_counted_by_loops(uncounted):
    examples = several_sizes(masks=True)
    found = score(Reader(dense=True), examples, uncounted=uncounted)
    confusion = torch.zeros(7, 3, 3, dtype=torch.long)
    for index, (image, labels) in enumerate(zip(examples.images, examples.labels, strict=True)):
        right = counted = 0
        for y in range(labels.shape[0]):
            for x in range(labels.shape[1]):
                label, read = int(labels[y, x]), round(image[0, y, x].item() * 10)
                if label != uncounted:
                    counted, right = counted + 1, right + (label == read)
                    confusion[index, label, read] += 1
        assert (found.right[index], found.counted[index]) == (right, counted)
    assert torch.equal(found.confusion, confusion)
    confusion = confusion.sum(0)
    total = confusion.sum().item()
    assert found.error() == pytest.approx(100 * (total - confusion.trace().item()) / total)
    overlaps = []
    for k in range(3 if uncounted is None else 2):  # of the classes that have pixels
        union = confusion[k].sum() + confusion[:, k].sum() - confusion[k, k]
        overlaps.append(confusion[k, k] / union)
    assert found.mean_iou() == pytest.approx(100 * sum(overlaps).item() / len(overlaps))


def test_nothing_counted_is_no_error():
    assert Tally(torch.zeros(2), torch.zeros(2), torch.zeros(0, 0)).error() == 0


def test_overlaps_of_some_images_are_those_of_their_pixels_together():
    first = [[5, 1, 0], [2, 4, 0], [0, 0, 0]]
    second = [[3, 0, 2], [0, 2, 0], [1, 0, 4]]
    background = [[7, 1, 0], [0, 0, 0], [0, 0, 0]]
    tally = Tally(torch.zeros(3), torch.zeros(3), torch.tensor([first, second, background]))

    def found(*chosen):
        images = torch.tensor([index in chosen for index in range(3)])
        return tally.mean_iou(images), tally.dice(images)

    # Of class 1 in the first image 4 pixels are found, 1 is wrongly taken for it and 2 are missed.
    assert found(0) == pytest.approx((100 * (5 / 8 + 4 / 7) / 2, 100 * 8 / 11))
    assert found(1) == pytest.approx((100 * (3 / 6 + 2 / 2 + 4 / 7) / 3, 100 * (4 / 4 + 8 / 11) / 2))
    assert found(0, 1) == pytest.approx((100 * (8 / 14 + 6 / 9 + 4 / 7) / 3, 100 * (12 / 15 + 8 / 11) / 2))
    assert found(2) == pytest.approx((100 * 7 / 8, float("nan")), nan_ok=True)
    assert (tally.mean_iou(), tally.dice()) == found(0, 1, 2)
    assert tally.dice() == pytest.approx(100 * (12 / 16 + 8 / 11) / 2)  # one more pixel is wrongly taken for class 1


def test_the_confusion_of_labels_of_images_is_not_counted():
    assert score(Reader(dense=False), several_sizes(masks=False)).confusion.numel() == 0


def test_processes_share_the_batches_and_add_up_what_they_find(monkeypatch):
    monkeypatch.setattr(measures, "BATCH", 1)
    monkeypatch.setattr(measures, "PIXELS", 16)
    examples, asked = several_sizes(masks=True), []
    parts = []
    for rank in (0, 1):
        reduce = lambda tensor, reduce_op: asked.append(reduce_op) or tensor  # noqa: E731
        network = Reader(dense=True)
        parts.append(
            score(network, examples, fabric=SimpleNamespace(global_rank=rank, world_size=2, all_reduce=reduce))
        )
        assert len(network.seen) == (4, 3)[rank]
    whole = score(Reader(dense=True), examples)
    for name in ("right", "counted", "confusion"):
        assert torch.equal(sum(getattr(part, name) for part in parts), getattr(whole, name))
    assert asked == ["sum"] * 6


def accuracies(tally, sizes, **options):
    groups = by_size(sizes, **options)
    return [size for size, _ in groups], [tally.accuracy(images) for _, images in groups]


def test_accuracy_by_size_is_that_of_quarters_of_the_images():
    sides = [10, 20, 30, 40, 50, 60, 70, 80]
    right = torch.tensor([1, 1, 1, 0, 0, 0, 1, 0])
    tally = Tally(right, torch.ones(8, dtype=torch.long), torch.zeros(0, 0))
    shuffled = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    mixed = Tally(right[shuffled], tally.counted, tally.confusion)
    expected = [10, 30, 50, 70], [100, 50, 0, 50]
    assert accuracies(tally, sides) == accuracies(mixed, [sides[k] for k in shuffled]) == expected
    assert accuracies(tally, sides, groups=2) == ([20, 60], [75, 25])
    # Of few sides there are fewer groups; pixels weigh, not images.
    weighed = Tally(torch.tensor([3, 0, 1]), torch.tensor([4, 4, 2]), torch.zeros(0, 0))
    assert accuracies(weighed, [5, 5, 9], groups=2) == ([5], [40.0])
    assert accuracies(weighed, [5, 8, 9], groups=2) == ([5, 9], [37.5, 50.0])


# What a network costs.


def tiny():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


def test_operations_are_counted_by_hand_for_every_call_of_a_layer():
    assert count_macs(tiny(), torch.rand(1, 1, 6, 6)) == 2 * 16 * 9 + 32 * 3
    grouped = nn.Conv2d(4, 6, (3, 2), stride=2, groups=2, bias=False)
    assert count_macs(grouped, torch.rand(2, 4, 9, 8)) == 2 * 6 * (4 * 4) * (2 * 3 * 2)
    shared = nn.Linear(3, 3)
    assert count_macs(nn.Sequential(shared, shared), torch.rand(1, 3)) == 18
    pyramid = ScaleInvariant(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), scales=(0.5, 1, 2), size="input")
    assert count_macs(pyramid.eval(), torch.rand(1, 1, 6, 6)) == 3 * 2 * 16 * 9
    branches = nn.Conv2d(1, 2, 3, padding=1)
    add_branches([branches])  # two convolutions in one layer
    assert count_macs(branches, torch.rand(1, 1, 6, 6)) == 2 * (2 * 36 * 9)
    layer = SIConv2d(2, 3, 3, stride=2, padding=1, groups=1, scales=(0.5, 1, 2))
    counted = macs((1, 2, 9, 8), (3, 2, 3, 3), 2, 1, 1, 1, scales=(0.5, 1, 2))
    assert count_macs(layer, torch.rand(1, 2, 9, 8)) == counted.planned.total


def test_what_a_step_keeps_is_counted_by_hand_and_the_network_stays_as_it_was():
    network = tiny().eval()
    images, labels = torch.rand(5, 1, 6, 6), torch.zeros(5, dtype=torch.long)
    # The input of the convolution, of the ReLU its output, which the linear layer shares, the log-probabilities; the
    # labels and the sum of their weights.
    assert kept_bytes(network, images, labels) == 4 * 5 * (36 + 32 + 3) + 8 * 5 + 4
    frozen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(32, 3))
    frozen[1].eval()
    frozen[0].weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}
    kept_bytes(frozen, images, labels)
    assert all(torch.equal(before[name], tensor) for name, tensor in frozen.state_dict().items())
    assert [module.training for module in frozen] == [True, False, True, True, True]
    assert [parameter.requires_grad for parameter in frozen.parameters()] == [False] + [True] * 5
    assert all(parameter.grad is None for parameter in frozen.parameters())


@pytest.mark.parametrize("batch", [4, 100])
def test_cost_is_of_one_image_in_a_batch_of_the_size_in_training(batch, monkeypatch):
    network, seen, clock = tiny(), [], iter([40.0, 10.0, 5000.0, 20.0, 30.0, 5.0, 1.0, 3.0, 2.0, 900.0])
    network.register_forward_pre_hook(lambda module, given: seen.append((len(given[0]), module.training)))

    def timed(call, device):
        call()
        return next(clock)

    monkeypatch.setattr(measures, "milliseconds", timed)
    cost = measure_cost(network, random_examples(9), batch)
    count = min(9, batch)
    assert cost == {
        "macs": 384.0,
        "kept_mib": pytest.approx((4 * (36 + 32 + 3) + 8 + 4 / count) / 2**20),
        "ms": pytest.approx(30 / count),
        "step_ms": 3.0,
    }
    steps = [(count, True)] * 7  # for the memory, warm, and timed five times
    assert seen == [(1, False), *[(count, False)] * 6, *steps]  # counted, warm, timed five times
    assert network.training


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_timed_step_is_in_the_precision_of_training_and_leaves_nothing(precision, dtype, monkeypatch):
    network, seen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)).eval(), []
    network[0].register_forward_hook(lambda module, given, output: seen.append((output.dtype, module.training)))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    clock = iter([1.0, 9.0, 2.0, 8.0, 3.0])
    monkeypatch.setattr(measures, "milliseconds", lambda call, device: (call(), next(clock))[1])
    assert step_time(network, torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.long), precision) == 3.0
    assert seen == [(dtype, True)] * 6
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert not any(module.training for module in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


# The measures of items.

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


def test_mean_iou_and_accuracy_are_those_of_the_masks_at_each_scale():
    torch.manual_seed(0)
    network = Classifier(nn.Conv2d(1, 3, 1), (0.0,), (1.0,), NAMES)
    examples = random_examples(4, masks=True)
    source = make_source(examples, task="segmentation", at_scale=lambda scale, *_: Rescaled(examples, scale))
    chosen = MeasureSettings(kind="accuracy", scales=(0.5, 1.0))
    scored = partial(score, uncounted=255)
    found = MEASURES["accuracy"](Trained(network, None, source, chosen, scored))
    tallies = [scored(network, Rescaled(examples, scale)) for scale in (0.5, 1.0)]
    assert found["mean IoU by scale"] == Series([0.5, 1.0], [tally.mean_iou() for tally in tallies])
    assert found["accuracy by scale"] == Series([0.5, 1.0], [100 - tally.error() for tally in tallies])
    assert found["Dice by scale"] == Series([0.5, 1.0], [tally.dice() for tally in tallies])
    assert len(found) == 3
    assert tallies[0].counted.sum() < tallies[1].counted.sum()  # what a smaller image does not cover has no label


class Bright(nn.Module):
    """Tells light images from dark ones."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images):
        light = images.mean((1, 2, 3)) - 0.5
        return torch.stack([-light, light], 1) * self.weight


class Marked(nn.Module):
    """Takes pixels for class 1 that are white."""

    def forward(self, images):
        return torch.cat([0.9 - images, images - 0.9], 1)


def write_square(root, name, white, labelled):
    """An image with so many white pixels from the left, and a mask with so many of class 1."""
    columns = np.arange(8)
    for kind, values in (("images", 100 + 155 * (columns < white)), ("masks", columns < labelled)):
        (root / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.repeat(values[None], 8, 0).astype(np.uint8)).save(root / kind / f"{name}.png")


def test_masks_are_measured_by_the_sizes_that_the_folder_gives(tmp_path):
    for index, (white, labelled) in enumerate([(2, 4), (4, 4), (3, 0), (5, 5)]):
        write_square(tmp_path / "test", str(index), white, labelled)
    write_square(tmp_path / "train", "a", 7, 7)
    write_square(tmp_path / "train", "b", 6, 7)
    sizes = "file,size\ntest/images/3.png,9\ntest/images/2.png,30\ntest/images/0.png,4.5\ntest/images/1.png,9\n"
    (tmp_path / "sizes.csv").write_text(sizes)
    data = load_folder(tmp_path, task="segmentation")
    source = Sources("cpu", folder=data).open(folder_data(data), 0)
    network = Classifier(nn.Sequential(Marked(), nn.Conv2d(2, 2, 1)), (0.0,), (1.0,), ("0", "1"))
    with torch.no_grad():
        network.network[1].weight.copy_(torch.eye(2).view(2, 2, 1, 1))
        network.network[1].bias.zero_()
    chosen = MeasureSettings(kind="accuracy", scales=(0.8, 1.0))
    found = MEASURES["accuracy"](Trained(network, None, source, chosen, partial(score, uncounted=255)))
    # In columns of 8: of the first image 2 are missed, of the third 3 are wrong, the others are as they should be.
    assert found["accuracy by size"] == Series([4.5, 9.0, 30.0], pytest.approx([75.0, 100.0, 62.5]))
    assert found["mean IoU by size"].y == pytest.approx([100 * (4 / 6 + 2 / 4) / 2, 100, 100 * 5 / 8])
    assert found["Dice by size"] == Series([4.5, 9.0], pytest.approx([100 * 4 / 6, 100]))  # the third has no class 1
    assert found["Dice by scale"].y[1] == pytest.approx(100 * 22 / (2 * 11 + 2 + 3))
    assert [series.x for name, series in found.items() if name.endswith("scale")] == [[0.8, 1.0]] * 3


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
