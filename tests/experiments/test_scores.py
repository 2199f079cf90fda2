"""Labels found, confusion and mean IoU against loops; what a network costs against counts by hand and a fixed clock."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.sources import Streamed, random_examples
from scaleconv import SIConv2d, macs
from scaleconv.experiments import measures
from scaleconv.experiments.measures import Tally, by_size, count_macs, kept_bytes, measure_cost, score
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
    confusion = torch.zeros(3, 3, dtype=torch.long)
    for index, (image, labels) in enumerate(zip(examples.images, examples.labels, strict=True)):
        right = counted = 0
        for y in range(labels.shape[0]):
            for x in range(labels.shape[1]):
                label, read = int(labels[y, x]), round(image[0, y, x].item() * 10)
                if label != uncounted:
                    counted, right = counted + 1, right + (label == read)
                    confusion[label, read] += 1
        assert (found.right[index], found.counted[index]) == (right, counted)
    assert torch.equal(found.confusion, confusion)
    total = confusion.sum().item()
    assert found.error() == pytest.approx(100 * (total - confusion.trace().item()) / total)
    overlaps = []
    for k in range(3 if uncounted is None else 2):  # of the classes that have pixels
        union = confusion[k].sum() + confusion[:, k].sum() - confusion[k, k]
        overlaps.append(confusion[k, k] / union)
    assert found.mean_iou() == pytest.approx(100 * sum(overlaps).item() / len(overlaps))


def test_nothing_counted_is_no_error():
    assert Tally(torch.zeros(2), torch.zeros(2), torch.zeros(0, 0)).error() == 0


@pytest.mark.parametrize(("precision", "kind"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_precision_is_that_of_convolutions_in_a_test(precision, kind):
    kinds, network = [], nn.Sequential(nn.Conv2d(1, 3, 6), nn.Flatten())
    network[0].register_forward_hook(lambda *given: kinds.append(given[2].dtype))
    score(network, random_examples(), precision=precision)
    assert kinds == [kind]


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


def test_accuracy_by_size_is_that_of_quarters_of_the_images():
    sides = [10, 20, 30, 40, 50, 60, 70, 80]
    right = torch.tensor([1, 1, 1, 0, 0, 0, 1, 0])
    tally = Tally(right, torch.ones(8, dtype=torch.long), torch.zeros(0, 0))
    shuffled = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    mixed = Tally(right[shuffled], tally.counted, tally.confusion)
    assert by_size(tally, sides) == by_size(mixed, [sides[k] for k in shuffled]) == ([10, 30, 50, 70], [100, 50, 0, 50])
    assert by_size(tally, sides, groups=2) == ([20, 60], [75, 25])
    # Of few sides there are fewer groups; pixels weigh, not images.
    weighed = Tally(torch.tensor([3, 0, 1]), torch.tensor([4, 4, 2]), torch.zeros(0, 0))
    assert by_size(weighed, [5, 5, 9], groups=2) == ([5], [40.0])
    assert by_size(weighed, [5, 8, 9], groups=2) == ([5, 9], [37.5, 50.0])


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
    layer = SIConv2d(2, 3, 3, stride=2, padding=1, groups=1, scales=(0.5, 1, 2))
    counted = macs((1, 2, 9, 8), (3, 2, 3, 3), 2, 1, 1, 1, scales=(0.5, 1, 2))
    assert count_macs(layer, torch.rand(1, 2, 9, 8)) == counted.planned.total
    assert not layer._forward_hooks


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
    network, seen, clock = tiny(), [], iter([40.0, 10.0, 5000.0, 20.0, 30.0])
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
    }
    assert seen == [(1, False), *[(count, False)] * 6, (count, True)]  # counted, warm, timed five times; a step
    assert network.training
