"""A conversion is a plain dictionary, can be kept beside a checkpoint, and made again."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from scaleconv import SIConv2d, conversion, convert, load, revert, save


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 3))


def converted():
    first = convert(plain(), include="0", scales=(0.5, 1))
    return convert(first, include="3", scales=(1, 2 ** (1 / 3)), antialias=True)


EXPECTED = {"0": {"scales": [0.5, 1.0], "antialias": False}, "3": {"scales": [1.0, 2 ** (1 / 3)], "antialias": True}}


def test_a_network_converted_like_another_is_the_same_function():
    images, network = torch.rand(2, 3, 16, 16), converted()
    assert (conversion(network), conversion(plain())) == (EXPECTED, {})
    for like in (network, json.loads(json.dumps(conversion(network)))):
        again = convert(plain(), like=like)
        assert conversion(again) == EXPECTED
        assert torch.equal(again(images), network(images))


def test_a_kept_conversion_is_made_again_beside_any_checkpoint(tmp_path):
    network, images = converted(), torch.rand(2, 3, 16, 16)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    assert save(network, tmp_path) == tmp_path / "scaleconv.json"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["scaleconv.json", "weights.pt"]
    again = plain()
    again.load_state_dict(torch.load(tmp_path / "weights.pt"))
    changed = load(again, tmp_path, inplace=True)
    assert changed is again
    assert torch.equal(again(images), network(images))
    assert type(load(plain(), save(network, tmp_path / "deep" / "other.json"))[0]) is SIConv2d


def test_a_network_that_is_converted_otherwise_gets_the_kept_layers_alone(tmp_path):
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    save(convert(plain, include="1", scales=(1, 2)), tmp_path)
    other = convert(plain, include="*", scales=(0.5, 1))
    assert conversion(load(other, tmp_path)) == conversion(convert(plain, include="1", scales=(1, 2)))
    assert len(conversion(other)) == 2
    assert load(other, tmp_path, inplace=True) is other
    assert list(conversion(other)) == ["1"]


def test_a_layer_that_like_names_is_swapped_whatever_the_rule_says():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 2, stride=2))
    again = convert(network, like={name: {"scales": [1, 2]} for name in ("0", "1")})
    assert conversion(again) == {key: {"scales": [1.0, 2.0], "antialias": False} for key in ("0", "1")}


class Twice(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) + super().forward(x)


WRONG = {
    "missing layer": ({"9": {"scales": [1]}}, ValueError, "`like` must name convolutions of the network, got '9'; it"),
    "no convolution": ({"1": {"scales": [1]}}, ValueError, "got '1'; it has '0', '2', '3'"),
    "no scales": ({"0": {"antialias": True}}, ValueError, "`like` must give the `scales` of each layer"),
    "wrong scales": ({"0": {"scales": [2]}}, ValueError, "`scales` must contain 1"),
    "wrong antialias": ({"0": {"scales": [1], "antialias": 1}}, TypeError, "`antialias` must be True or False"),
    "a list": (["0"], TypeError, "`like` must be a network or what `conversion` returns, got list"),
}


@pytest.mark.parametrize(("like", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_made_again_is_named_and_changes_nothing(like, error, message):
    network = convert(plain(), last=1)
    before = conversion(network)
    with pytest.raises(error, match=re.escape(message)):
        convert(network, like=like, inplace=True)
    assert conversion(network) == before != {}


def test_like_stands_alone_and_unfit_layers_are_refused():
    with pytest.raises(ValueError, match="give it without other choices"):
        convert(plain(), like=EXPECTED, scales=(1, 2))
    with pytest.raises(ValueError, match="give it without other choices"):
        convert(plain(), like=EXPECTED, include="*")
    with pytest.raises(ValueError, match="`like` must name layers that can be swapped, got '0': Twice calls conv2d 2"):
        convert(nn.Sequential(Twice(3, 4, 3)), like={"0": {"scales": [1]}})


def test_files_that_hold_no_conversion_are_named(tmp_path):
    with pytest.raises(ValueError, match="must hold a scale-invariant layer"):
        save(revert(converted()), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"`path` must hold scaleconv\.json"):
        load(plain(), tmp_path)
    for text in ("{", "[]", "{}", "3"):
        (tmp_path / "scaleconv.json").write_text(text)
        with pytest.raises(ValueError, match=r"must be a file of `scaleconv\.save`"):
            load(plain(), tmp_path)


def test_an_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    save(converted(), tmp_path)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save(convert(plain()), tmp_path)
    monkeypatch.undo()
    assert conversion(load(plain(), tmp_path)) == EXPECTED
    assert [file.name for file in tmp_path.iterdir()] == ["scaleconv.json"]
