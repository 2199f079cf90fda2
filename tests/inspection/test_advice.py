"""The recommendation keeps what wins and drops what does not; a plain network gets what `convert` does by default."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaleconv import conversion, convert, recommend, scale_usage
from scaleconv.nn.convert import LATE_SCALES

SCALES = (0.5, 0.7, 1, 1.4, 2)
IMAGES = torch.rand(4, 2, 14, 14, generator=torch.Generator().manual_seed(0))


def network():
    torch.manual_seed(0)
    return convert(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3)), include="*", scales=SCALES)


def test_scales_that_win_less_than_the_least_share_are_dropped():
    model = network()
    shares = scale_usage(model, IMAGES).shares
    advice = recommend(model, IMAGES, least=0.2, repeats=1)
    for name, layer in advice.layers.items():
        assert layer.shares == shares[name]
        assert layer.kept == tuple(scale for scale in SCALES if scale == 1 or shares[name][scale] >= 0.2)
        assert 1 <= len(layer.kept) < len(SCALES)


def test_scale_one_is_kept_even_if_nothing_else_is():
    assert recommend(network(), IMAGES, least=1, repeats=1).scales == {"0": (1,), "2": (1,)}
    assert recommend(network(), IMAGES, least=0, repeats=1).scales == {"0": SCALES, "2": SCALES}


def test_a_scale_that_wins_just_the_least_share_is_kept():
    model = network()
    shares = scale_usage(model, IMAGES).shares["0"]
    rare = min((scale for scale in SCALES if scale != 1), key=shares.get)
    assert rare in recommend(model, IMAGES, least=shares[rare], repeats=1).layers["0"].kept
    assert rare not in recommend(model, IMAGES, least=shares[rare] + 1e-6, repeats=1).layers["0"].kept


def test_each_layer_is_timed_on_its_input_in_evaluation_mode_with_all_scales_and_with_those_kept(clock):
    """What is called is watched; the clock is made of numbers."""
    model = convert(network(), scales=SCALES, antialias=True).train()
    clock.ms = {"now": [8.0, 6.0], "then": [3.0, 2.0]}
    called = []
    watched = model[2].register_forward_hook(
        lambda layer, args, _: called.append((layer.scales, layer.antialias, layer.training, tuple(args[0].shape)))
    )
    advice = recommend(model, [IMAGES, IMAGES[:1]], least=0.2, repeats=7)
    watched.remove()
    kept = advice.layers["2"].kept
    assert kept != SCALES
    in_network, timed, cheaper = called[:2], called[2], called[3]
    assert [size for *_, size in in_network] == [(4, 4, 12, 12), (1, 4, 12, 12)]
    assert timed == (SCALES, True, False, (4, 4, 12, 12))
    assert cheaper == (kept, True, False, (4, 4, 12, 12))
    assert clock.asked == [(["now", "then"], "cpu", 7)] * 2
    assert clock.ran == [("now", False), ("then", False)] * 2
    assert {name: (layer.ms, layer.kept_ms) for name, layer in advice.layers.items()} == {"0": (8, 3), "2": (6, 2)}
    assert str(advice).splitlines()[-1].split() == ["all", "layers", "14", "5", "0.36"]
    assert [line.split()[-3:] for line in str(advice).splitlines()[3:5]] == [["8", "3", "0.38"], ["6", "2", "0.33"]]
    assert model.training


def test_the_picture_has_the_times_now_and_then(clock):
    clock.ms = {"now": [8.0, 6.0], "then": [3.0, 2.0]}
    (axis,) = recommend(network(), IMAGES).plot().axes
    assert [bar.get_height() for bar in axis.patches] == [8, 6, 3, 2]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["now", "then"]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0", "2"]


def test_names_with_the_signs_of_patterns_are_taken_by_convert():
    """The names of the second and third would be matched by the pattern of the first, and that of the last by none."""
    names = ("a?", "ab", "a*", "b[0]")
    layers = nn.ModuleDict({name: nn.Conv2d(2, 2, 3) for name in names})
    scales = {"a[?]": (0.5, 1), "ab": (1, 2), "a[*]": (1, 1.5), "b[[]0]": (0.7, 1)}

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = convert(layers, scales=scales)

        def forward(self, x):
            return [layer(x) for layer in self.layers.values()]

    model = Named()
    advice = recommend(model, IMAGES, least=0, repeats=1)
    assert list(advice.layers) == [f"layers.{name}" for name in names]
    assert advice.scales == {f"layers.{name}": each for name, each in zip(names, scales.values(), strict=True)}
    again = convert(model, scales=advice.scales)
    assert [layer.scales for layer in again.layers.values()] == list(scales.values())


def test_convert_takes_the_proposal_and_keeps_the_rest_of_each_layer():
    model = convert(network(), antialias=True, include="2", scales=SCALES)
    advice = recommend(model, IMAGES, least=0.2, repeats=1)
    cheaper = convert(model, scales=advice.scales)
    assert {name: cheaper.get_submodule(name).scales for name in advice.layers} == advice.scales
    assert [cheaper[place].antialias for place in (0, 2)] == [False, True]
    assert model[0].scales == SCALES != cheaper[0].scales


def test_the_table_names_what_is_dropped():
    advice = recommend(network(), IMAGES, least=0.2, repeats=1)
    lines = str(advice).splitlines()
    assert lines[0] == "Scales that win at least 20 % of the outputs of a layer, on 4 images"
    dropped = next(scale for scale in SCALES if scale not in advice.layers["0"].kept)
    assert f"{dropped:.3g} ({100 * advice.layers['0'].shares[dropped]:.1f})" in lines[3]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"least": 1.5}, ValueError, "`least` must be from 0 to 1, got 1.5"),
        ({"least": "5 %"}, TypeError, "`least` must be a number, got '5 %'"),
        ({"repeats": 0}, ValueError, "`repeats` must be at least 1, got 0"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        recommend(**{"model": network(), "images": IMAGES, **arguments})


class UNet(nn.Module):
    """Two convolutions at the size of the images, two at the bottom, two on the way back; and outputs of many kinds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding=1))
        self.bottom = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
        self.up = nn.Sequential(nn.Conv2d(7, 3, 3, padding=1), nn.Dropout(), nn.Conv2d(3, 1, 3, padding=1))
        self.head = nn.Linear(4, 2)

    def forward(self, images):
        large = self.down(images)
        deep = self.bottom(F.max_pool2d(large, 4))
        masks = self.up(torch.cat([F.interpolate(deep, size=large.shape[-2:]), large], 1))
        return {"masks": masks, "rest": (self.head(deep.mean((2, 3))), torch.fft.rfft2(masks), torch.arange(2))}


BOTTOM = ["bottom.0", "bottom.1"]
ON_CPU = (["now", "then"], "cpu")


def test_a_plain_network_is_proposed_what_convert_swaps_by_default():
    """Of a U-Net that is its bottom, although the last of its modules come after it."""
    model = UNet()
    expected = conversion(convert(model, images=IMAGES))
    assert list(expected) == BOTTOM
    assert expected != conversion(convert(model))
    advice = recommend(model, IMAGES, repeats=1)
    assert advice.scales == dict.fromkeys(BOTTOM, LATE_SCALES)
    assert conversion(convert(model, scales=advice.scales)) == expected


@pytest.mark.parametrize("training", [True, False])
def test_a_plain_network_and_its_layers_are_timed_as_they_are_and_as_proposed(clock, training):
    """Hooks go into the copies that are timed, and say what was called there."""
    clock.ms = {"now": [8.0, 6.0, 20.0, 1250.0], "then": [10.0, 9.0, 25.0, 2000.0]}
    model, called, backward = UNet().train(training), [], []

    def note(layer, args, output):
        called.append((type(layer).__name__, tuple(args[0].shape), layer.training, output.requires_grad))
        if output.requires_grad:
            kind = type(layer).__name__
            output.register_hook(lambda _: backward.append(kind))

    model.bottom[0].register_forward_hook(note)
    advice = recommend(model, [IMAGES, IMAGES[:1]], repeats=7)
    assert clock.asked == [(*ON_CPU, 7)] * 4
    assert clock.ran == [("now", False), ("then", False)] * 3 + [("now", True), ("then", True)]
    alone = [("Conv2d", (4, 3, 3, 3), False, False), ("SIConv2d", (4, 3, 3, 3), False, False)]
    trained = [(kind, size, True, True) for kind, size, *_ in alone]
    # First to measure maps and to keep the inputs; then layer, network, a trial step, and the training steps.
    assert called == [alone[0]] * 2 + alone + alone + trained[:1] + trained
    assert backward == ["Conv2d", "Conv2d", "SIConv2d"]
    assert {name: (layer.ms, layer.kept_ms) for name, layer in advice.layers.items()} == {
        "bottom.0": (8, 10),
        "bottom.1": (6, 9),
    }
    assert {part: (cost.ms, cost.kept_ms, cost.ratio) for part, cost in advice.network.items()} == {
        "forward pass": (20, 25, 1.25),
        "training step": (1250, 2000, 1.6),
    }
    assert str(advice).splitlines()[0] == "Layers that `convert(model, images=…)` swaps, timed on 4 images"
    assert [line.split() for line in str(advice).splitlines()[1:2] + str(advice).splitlines()[3:]] == [
        ["layer", "scales", "ms", "now", "ms", "then", "then", "/", "now"],
        ["bottom.0", "0.5,", "0.707,", "1", "8", "10", "1.25"],
        ["bottom.1", "0.5,", "0.707,", "1", "6", "9", "1.50"],
        ["all", "layers", "14", "19", "1.36"],
        ["network,", "forward", "pass", "20", "25", "1.25"],
        ["network,", "training", "step", "1,250", "2,000", "1.60"],
    ]
    layers, network = advice.plot().axes
    assert [bar.get_height() for bar in layers.patches] == [8, 6, 10, 9]
    assert [bar.get_height() for bar in network.patches] == [20, 1250, 25, 2000]
    assert [text.get_text() for text in network.get_xticklabels()] == ["forward pass", "training step"]


def test_a_training_step_goes_back_from_every_floating_output_to_the_trained_parameters():
    model, reached = UNet(), set()
    model.down.requires_grad_(False)

    def note(name, output):
        if output.requires_grad:
            output.register_hook(lambda _: reached.add(name))

    for name, layer in model.named_modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda _, __, output, name=name: note(name, output))
    recommend(model, IMAGES, repeats=1)
    assert reached == {*BOTTOM, "up.0", "up.1", "up.2", "head"}


def test_a_plain_network_is_left_as_it_was():
    model = UNet().train()
    model.up.eval()
    for parameter in list(model.parameters())[1:]:
        parameter.grad = torch.full_like(parameter, 3)
    criterion, images = nn.Conv2d(1, 1, 1), IMAGES.clone().requires_grad_()
    before, modes = copy.deepcopy(model.state_dict()), [layer.training for layer in model.modules()]
    recommend(model, images, repeats=1, call=lambda network, batch: criterion(network(batch)["masks"]))
    assert [layer.training for layer in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    first, *others = [parameter.grad for parameter in model.parameters()]
    assert first is None
    assert all((grad == 3).all() for grad in others)
    assert [each.grad for each in (images, *criterion.parameters())] == [None] * 3
    assert conversion(model) == {}
    assert not any(layer._forward_hooks for layer in model.modules())


def test_without_an_output_to_differentiate_there_is_no_training_step():
    frozen = UNet().requires_grad_(False)
    for model, images, call in (
        (UNet(), IMAGES, lambda network, batch: network(batch) and None),
        (UNet(), IMAGES, lambda network, batch: network(batch)["masks"] > 0),
        (frozen, IMAGES, None),
        (frozen, IMAGES.clone().requires_grad_(), None),
    ):
        advice = recommend(model, images, repeats=1, call=call)
        assert list(advice.scales) == BOTTOM
        assert list(advice.network) == ["forward pass"]
    with torch.no_grad():
        assert "training step" in recommend(UNet(), IMAGES, repeats=1).network


def test_a_layer_that_is_not_called_takes_no_time(clock):
    clock.ms = {"now": 2.0, "then": 3.0}
    model = nn.Conv2d(2, 3, 3)
    advice = recommend(model, IMAGES, call=lambda network, batch: batch)
    assert advice.scales == {"": LATE_SCALES}
    assert (advice.layers[""].ms, advice.layers[""].kept_ms, advice.layers[""].ratio) == (0, 0, 1)
    assert clock.asked == [(*ON_CPU, 3)]
    assert advice.network["forward pass"].ms == 2


def test_a_plain_network_that_takes_more_than_images_is_run_by_call():
    class Gained(UNet):
        def forward(self, images, gain):
            return super().forward(gain * images)

    model = Gained()
    with pytest.raises(TypeError, match="gain"):
        recommend(model, [(IMAGES, 2.0)])
    advice = recommend(model, [(IMAGES, 2.0)], repeats=1, call=lambda network, batch: network(*batch))
    assert (list(advice.scales), list(advice.network)) == (BOTTOM, ["forward pass", "training step"])


def test_of_a_plain_network_only_the_first_batch_is_read():
    def batches():
        yield {"labels": torch.arange(3), "images": IMAGES[:3]}
        raise AssertionError

    assert recommend(UNet(), batches(), repeats=1).images == 3


def test_in_a_network_with_both_kinds_of_layers_those_with_scales_are_judged():
    model = convert(UNet(), include="down.2", scales=SCALES)
    advice = recommend(model, IMAGES, least=1, repeats=1)
    assert advice.scales == {"down.2": (1,)}
    assert advice.network == {}
    assert "drop (% won)" in str(advice)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Flatten(), r"`model` \(=Flatten\) must hold a convolution"),
        (nn.Sequential(nn.Conv2d(2, 2, 1)), r"`model` \(=Sequential\) .* left alone .*: 0: 1×1 kernel"),
        (nn.Conv2d(2, 2, 17, padding=8), r"kernel of 17×17 exceeds the map of 14×14"),
        (convert(nn.Conv3d(2, 2, 3)), r"must hold an SIConv2d: it holds SIConv3d, and this is for images"),
    ],
    ids=["no convolution", "1×1", "large", "volumes"],
)
def test_a_network_without_a_layer_to_swap_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        recommend(model, IMAGES)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"call": "logits"}, TypeError, "`call` must be a function of the model and a batch, got str"),
        ({"images": "photos"}, TypeError, "`images` must be images .* or an iterable of batches, got str"),
        ({"images": ["photo.png"]}, TypeError, r"`images\[0\]` must be a tensor, got str"),
        ({"images": []}, ValueError, "`images` must hold images, got none"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named_for_a_plain_network(arguments, error, message):
    with pytest.raises(error, match=message):
        recommend(**{"model": UNet(), "images": IMAGES, **arguments})
