"""The recommendation keeps what wins, drops what does not, and `convert` takes it."""

import pytest
import torch
from torch import nn

from scaleconv import convert, recommend, scale_usage

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
    assert str(advice).splitlines()[-1].split() == ["all", "layers", "14", "5"]
    assert [line.split()[-2:] for line in str(advice).splitlines()[3:5]] == [["8", "3"], ["6", "2"]]
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
