"""Every tool takes networks that need or return more than a tensor, and images in any kind of batch."""

import copy
import math
import re
from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scaleconv import check_scale, convert, explain, recommend, scale_usage, summary, winners
from scaleconv.nn.observe import batches_of, describe, images_of, with_images

IMAGES = torch.rand(5, 2, 12, 11, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(5)
Pair = namedtuple("Pair", ["images", "labels"])


class Feature(UserDict):
    """As the `BatchFeature` of transformers: a mapping that is no dict, and has its keys as attributes."""

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class ModelOutput(OrderedDict):
    """As that of transformers: what is in it by name, by attribute and by place."""

    def __getitem__(self, key):
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


class Packed(nn.Module):
    """A network that multiplies its images by `gain`, and returns its answer packed."""

    def __init__(self, pack, gain=None):
        super().__init__()
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.body, self.pack, self.gain = convert(plain, include="*", scales=(0.7, 1, 1.5)), pack, gain

    def forward(self, pixel_values, gain=None):
        gain = self.gain if gain is None else gain
        return self.pack(self.body(pixel_values * gain))


def bare():
    return Packed(lambda scores: scores, gain=2.0)


def measured(model, images, **options):
    """What each tool finds, as plain values; but times."""
    usage, advice = scale_usage(model, images, **options), recommend(model, images, repeats=1, **options)
    assert {name: layer.shares for name, layer in advice.layers.items()} == usage.shares
    maps = winners(model, images, **options).maps
    return {
        "check": vars(check_scale(model, images, scales=(0.5, 2), **options)),
        "usage": usage.shares,
        "images": (usage.images, advice.images),
        "kept": advice.scales,
        "maps": {name: found.tolist() for name, found in maps.items()},
    }


def test_networks_with_further_arguments_and_packed_answers_are_measured_as_bare_ones():
    packed = Packed(lambda scores: {"loss": None, "scores": [scores]})
    batches = [{"id": LABELS[:3], "pixel_values": IMAGES[:3], "gain": 2.0}, {"pixel_values": IMAGES[3:], "gain": 2.0}]

    def call(model, batch):
        return model(batch["pixel_values"], gain=batch["gain"])["scores"][0]

    assert measured(packed, batches, call=call) == measured(bare(), [IMAGES[:3], IMAGES[3:]])
    one = {"pixel_values": IMAGES[:1], "gain": 2.0}
    found, expected = explain(packed, one, call=call), explain(bare(), IMAGES[0])
    assert (found.prediction, found.confidence) == (expected.prediction, expected.confidence)
    assert torch.equal(found.image, IMAGES[0])
    assert summary(packed, one, repeats=1, call=call).macs == summary(bare(), (1, 2, 12, 11), repeats=0).macs > 0


@pytest.mark.parametrize("tool", [winners, scale_usage, recommend, summary])
def test_tools_that_need_no_answer_take_a_call_that_returns_anything(tool):
    seen = []
    tool(bare(), IMAGES, call=lambda model, batch: seen.append(model(batch)))
    assert seen


BATCHES = {
    "loader": DataLoader(TensorDataset(IMAGES, LABELS), batch_size=2),
    "lists": [[LABELS[:4], IMAGES[:4]], [LABELS[4:], IMAGES[4:]]],
    "dicts": [{"labels": LABELS, "inputs": {"pixels": IMAGES}}],
    "dict": {"labels": LABELS, "pixels": IMAGES},
    "feature": [Feature(labels=LABELS, pixels=IMAGES)],
    "read-only": [MappingProxyType({"pixels": IMAGES})],
    "namedtuple": [Pair(IMAGES, LABELS)],
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_batches_of_all_kinds_are_measured_as_their_images(batches):
    found, expected = measured(bare(), batches), measured(bare(), IMAGES)
    assert found["check"].pop("distance") == pytest.approx(expected["check"].pop("distance"))
    assert found == expected


def test_batches_are_read_once():
    assert scale_usage(bare(), iter([IMAGES[:2], IMAGES[2:]])).images == 5
    assert recommend(bare(), iter([IMAGES[:2], IMAGES[2:]]), repeats=1).images == 5
    assert check_scale(bare(), iter([IMAGES[:2], IMAGES[2:]]), scales=[1]).images == 5


@pytest.mark.parametrize(
    "batch",
    [
        (LABELS, IMAGES, "rest"),
        [LABELS, IMAGES],
        Pair(IMAGES, LABELS),
        {"labels": LABELS, "inputs": [IMAGES, IMAGES]},
        Feature(labels=LABELS, pixels=IMAGES),
        MappingProxyType({"pixels": IMAGES}),
        IMAGES,
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_other_images_take_the_place_of_the_first_ones_in_a_batch_of_the_same_kind(batch):
    changed = with_images(batch, torch.zeros(5, 2, 1, 1))
    assert type(changed) is (dict if isinstance(batch, MappingProxyType) else type(batch))
    assert images_of(changed).shape == (5, 2, 1, 1)
    assert torch.equal(images_of(batch), IMAGES)
    if isinstance(batch, Feature):
        assert changed.pixels.shape == (5, 2, 1, 1)
        assert changed.labels is LABELS
    if isinstance(batch, dict):
        assert changed["inputs"][1] is IMAGES


PACKS = {
    "dict": lambda scores: {"loss": 1.5, "out": scores},
    "ModelOutput": lambda scores: ModelOutput(loss=None, logits=scores),
    "tuple": lambda scores: (None, scores),
    "list of dicts": lambda scores: [{"a": 1}, {"scores": scores}],
    "object": lambda scores: SimpleNamespace(loss=None, parts=[scores]),
}


@pytest.mark.parametrize("given", ["tensor", "lists", "feature"])
@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_a_packed_answer_is_refused_with_a_call_that_works(pack, given):
    model, images = Packed(pack, gain=2.0), {**BATCHES, "tensor": IMAGES}[given]
    tools = {check_scale: images} | ({explain: IMAGES[0]} if given == "tensor" else {})
    for tool, batches in tools.items():
        with pytest.raises(TypeError, match=r"`model` must return a tensor, got \w+.*: give `call`, such as") as no:
            tool(model, batches)
        call = eval(str(no.value).partition("such as ")[2])
        assert str(tool(model, batches, call=call)) == str(tool(bare(), batches))


def test_what_is_inside_an_answer_is_named():
    assert describe(ModelOutput(loss=1, logits=2)) == "ModelOutput with 'loss', 'logits'"
    assert describe(SimpleNamespace(mask=1)) == "SimpleNamespace with 'mask'"
    assert describe((1, 2, 3)) == "tuple of 3"
    assert describe({}) == "dict without anything"
    assert describe(7) == "int"
    assert describe(dict.fromkeys("abcdefghijk")).endswith("'g', 'h', …")


@pytest.mark.parametrize("tool", [check_scale, explain])
def test_a_call_without_a_tensor_is_named(tool):
    given = IMAGES[:1]
    with pytest.raises(TypeError, match=r"`call` must return a tensor, got tuple of 1$"):
        tool(bare(), given, call=lambda model, batch: (model(batch),))
    with pytest.raises(TypeError, match=r"`model` must return a tensor, got dict with 'a': .* model\(batch\)…"):
        tool(Packed(lambda _: {"a": 1}, gain=1.0), given)


TOOLS = (check_scale, explain, recommend, scale_usage, summary, winners)


@pytest.mark.parametrize("tool", TOOLS)
def test_wrong_networks_and_calls_are_named(tool):
    with pytest.raises(TypeError, match="`call` must be a function of the model and a batch, got str"):
        tool(bare(), IMAGES[:1], call="logits")
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module, got str"):
        tool("resnet", IMAGES[:1])
    if tool not in (check_scale, recommend, summary):  # which are for plain networks, too
        with pytest.raises(ValueError, match=r"`model` \(=ReLU\) must hold an SIConv2d: convert it first"):
            tool(nn.ReLU(), IMAGES[:1])


@pytest.mark.parametrize("tool", TOOLS)
def test_the_network_is_left_as_it_was(tool):
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 3, 3)))
    model = convert(plain, include="*").train()
    model[2].eval()
    before = copy.deepcopy(model)
    tool(model, IMAGES[:1])
    assert [layer.training for layer in model.modules()] == [layer.training for layer in before.modules()]
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in model.state_dict().items())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


@pytest.mark.parametrize("tool", [check_scale, recommend, scale_usage, winners])
@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        ([IMAGES, "photo.png"], TypeError, r"`images\[1\]` must be a tensor, got str"),
        ([(IMAGES.byte(), LABELS)], TypeError, r"`images\[0\]` must hold a floating-point tensor .*, got tuple of 2"),
        ({"labels": LABELS}, TypeError, r"`images` must hold a floating-point tensor .*, got dict with 'labels'"),
        ([IMAGES[:0]], ValueError, r"`images\[0\]` must be \(N, C, H, W\), N at least 1, got shape \(0, 2, 12, 11\)"),
        (IMAGES[0], ValueError, r"`images` must be \(N, C, H, W\), N at least 1, got shape \(2, 12, 11\)"),
        ("photos", TypeError, "`images` must be images .* or an iterable of batches, got str"),
        (5, TypeError, "`images` must be images .* or an iterable of batches, got int"),
        ([], ValueError, "`images` must hold images, got none"),
    ],
    ids=["str", "bytes", "no images", "none", "one", "name", "number", "empty"],
)
def test_batches_without_images_are_named(tool, images, error, message):
    with pytest.raises(error, match=message):
        tool(bare(), images)


def test_a_tensor_is_split_as_asked():
    assert [len(batch) for batch in batches_of(IMAGES, 2)] == [2, 2, 1]
    assert [len(batch) for batch in batches_of(IMAGES)] == [5]


def test_winners_of_batches_of_different_sizes_are_refused():
    message = re.escape("`images` must be of one size in all batches, got (2, 12, 11) and (2, 9, 11)")
    with pytest.raises(ValueError, match=message):
        winners(bare(), [IMAGES, IMAGES[:, :, :9]])


def test_winners_of_a_layer_that_some_batches_skip_are_left_out():
    class Sometimes(Packed):
        def forward(self, images):
            return images if len(images) == 3 else super().forward(images)

    model = nn.Sequential(convert(nn.Conv2d(2, 2, 3)), Sometimes(lambda scores: scores, gain=1.0))
    assert list(winners(model, [IMAGES[:3], IMAGES[3:]]).maps) == ["0"]


class Depth(nn.Module):
    """One map of an image's size, as (N, H, W) or with a channel."""

    def __init__(self, shape):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.shape = convert(nn.Conv2d(2, 1, 3, padding=1)), shape

    def forward(self, images):
        return self.conv(images).reshape(len(images), *self.shape)


@pytest.mark.parametrize("shape", [(12, 11), (1, 12, 11)], ids=["NHW", "N1HW"])
def test_a_depth_map_is_the_prediction_itself_without_confidence(shape):
    model = Depth(shape)
    found = explain(model, IMAGES[0])
    torch.testing.assert_close(found.prediction, model.conv(IMAGES[:1])[0, 0].detach())
    assert found.confidence is None
    assert math.isnan(found.mean_confidence)
    assert [axis.get_title() for axis in found.plot().axes[:3]] == ["image", "prediction", "conv"]
    assert str(found).startswith("Prediction of 12 × 11, without classes; ")


def test_one_number_and_labels_have_no_classes_either():
    regression = nn.Sequential(Depth((1, 12, 11)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    found = explain(regression, IMAGES[0])
    assert (found.prediction, found.confidence) == (regression(IMAGES[:1])[0, 0], None)
    assert str(found).startswith(f"Prediction {float(found.prediction):.4g}; ")
    labels = explain(bare(), IMAGES[0], call=lambda model, batch: model(batch).argmax(1))
    assert (labels.prediction, labels.confidence) == (bare()(IMAGES[:1]).argmax(), None)


def test_an_answer_of_no_single_image_is_refused():
    with pytest.raises(ValueError, match=r"`model` must return scores of one image, \(1, …\), got shape \(3, 1\)"):
        explain(bare(), IMAGES[0], call=lambda model, batch: model(batch).T)
    with pytest.raises(ValueError, match=r"got shape \(\)"):
        explain(bare(), IMAGES[0], call=lambda model, batch: model(batch).sum())
    with pytest.raises(ValueError, match=r"`image` must hold one image, got shape \(5, 2, 12, 11\)"):
        explain(bare(), {"pixels": IMAGES})


def test_without_classes_no_prediction_is_compared():
    found = check_scale(Depth((1, 12, 11)), IMAGES, scales=[1])
    assert math.isnan(found.consistency[1])
    assert found.distance[1] == pytest.approx(0, abs=1e-5)
    message = r"got shape \(5, 12, 11\) \(give `call`: a map \(N, H, W\) becomes one by unsqueeze\(1\)\)"
    with pytest.raises(ValueError, match=message):
        check_scale(Depth((12, 11)), IMAGES, scales=[1])


def test_signals_and_volumes_are_refused_as_what_they_are():
    for make, found in ((nn.Conv1d, "SIConv1d"), (nn.Conv3d, "SIConv3d")):
        network = convert(nn.Sequential(make(1, 2, 3)))
        with pytest.raises(ValueError, match=f"must hold an SIConv2d: it holds {found}, and this is for images"):
            winners(network, torch.rand(1, 1, 8, 8))
