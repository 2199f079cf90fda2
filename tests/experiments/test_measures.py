"""What is measured on trained networks: the series in the records, and networks taken over from another item."""

import pytest
import torch
from scaleconv.experiments.config import MEASURES
from scaleconv.experiments.train import divide

from scaleconv.data import embedded_digits, make_scaled
from scaleconv.experiments import load_experiment, plan_runs, read_records, run, run_experiment
from scaleconv.experiments.measures import measure, register
from scaleconv.experiments.records import Series
from scaleconv.metrics import invariance_scores, top_mean

TINY = {
    "network.maps": [2, 3],
    "network.hidden": 8,
    "training.epochs": 1,
    "training.batch": 50,
    "data.train": 100,
    "data.sets": 4,
    "measure.digits": 60,
    "folds": [0, 1],
}
DRAWN = {**TINY, "data.test": 100, "measure.scales": [0.5, 1.0, 1.6]}


pytestmark = pytest.mark.usefixtures("digits")


def awake(one):
    """A network whose answers depend on the image, without training: its weights are large."""
    network = one.network()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(30)
    return network


def test_errors_at_each_scale_are_those_of_the_digits_rescaled_by_hand(digits):
    (one,) = plan_runs(load_experiment("fig5a", "quick", {**DRAWN, "models": ["convnet"], "folds": [1]}))
    network, seen, originals = awake(one), digits.of(one.settings.data, 1), embedded_digits()
    found = measure(one, network, seen)["test_error"]
    assert found.x == [0.5, 1.0, 1.6]
    chosen = divide(originals.labels, one.settings.data, 1).test[:60]
    for scale, error in zip(found.x, found.y, strict=True):
        images = make_scaled(originals.images[chosen], scale, 40, truncate="allow") - seen.mean
        with torch.no_grad():
            wrong = (network(images).argmax(1) != originals.labels[chosen]).sum().item()
        assert error == pytest.approx(100 * wrong / 60)
    assert len(set(found.y)) > 1


def test_the_digits_of_a_measure_may_have_a_canvas_of_their_own(digits):
    (one,) = plan_runs(load_experiment("fig5a", "quick", {**DRAWN, "measure.size": 90, "folds": [1]}))[:1]
    seen, originals, met = digits.of(one.settings.data, 1), embedded_digits(), []

    class Witness(torch.nn.Module):
        def forward(self, images):
            met.append(images)
            return torch.zeros(len(images), 10)

    measure(one, Witness(), seen)
    assert seen.train.shape[2:] == (40, 40)
    chosen = divide(originals.labels, one.settings.data, 1).test[:60]
    for scale, images in zip((0.5, 1.0, 1.6), torch.cat(met).split(60), strict=True):
        assert torch.equal(images, make_scaled(originals.images[chosen], scale, 90) - seen.mean)


def test_the_error_of_a_run_tested_at_many_scales_is_their_mean(tmp_path):
    loaded = load_experiment("fig5a", "quick", {**DRAWN, "models": ["convnet"], "folds": [1]})
    (record,) = run_experiment(loaded, tmp_path / "fig5a-tiny")
    assert record.test_error == pytest.approx(sum(record.series["test_error"].y) / 3)
    assert record.history[-1].test_error is not None  # at scales as in training


def test_a_network_used_again_for_another_measure_has_its_error_of_training(tmp_path):
    changes = {**DRAWN, "models": ["si_convnet"], "folds": [1]}
    run_experiment(load_experiment("fig5a", "quick", changes), tmp_path / "fig5a-quick")
    other = load_experiment("fig5a", "quick", {**changes, "measure.kind": "winners", "reuse": ["fig5a"]})
    (record,) = run_experiment(other, tmp_path / "winners-tiny")
    assert record.test_error == record.history[-1].test_error
    assert "test_error" not in record.series


@pytest.fixture(scope="module")
def results(tmp_path_factory, digits):
    """A table 1 of which others take networks."""
    folder = tmp_path_factory.mktemp("results")
    changes = {key: value for key, value in TINY.items() if not key.startswith("measure")}
    run_experiment(
        load_experiment("table1", "quick", {**changes, "models": ["convnet", "si_convnet"]}), folder / "table1-quick"
    )
    return folder


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*_):
        raise AssertionError("a network was trained again")

    monkeypatch.setattr(run, "PROCEDURES", dict.fromkeys(run.PROCEDURES, refuse))


@pytest.mark.parametrize("item", ["fig3", "winners", "equivariance"])
def test_networks_of_table_1_are_measured_not_trained_again(item, results, no_training):
    loaded = load_experiment(item, "quick", TINY)
    records = run_experiment(loaded, results / f"{item}-quick")
    table = {(record.model, record.fold): record for record in read_records(results / "table1-quick")}
    for record in records:
        source = table[record.model, record.fold]
        assert record.experiment == f"{item}-quick"
        assert record.config["measure"]["kind"] == loaded.settings.measure.kind
        assert (record.test_error, record.history) == (source.test_error, source.history)
    assert len(records) == 2 * len(loaded.models)


def test_networks_of_other_settings_are_not_taken_over(results, no_training):
    loaded = load_experiment("fig3", "quick", {**TINY, "training.momentum": 0.5})
    with pytest.raises(AssertionError, match="trained again"):
        run_experiment(loaded, results / "fig3-other")


def test_an_item_without_trained_networks_trains_its_own_and_finishes_after_an_interruption(tmp_path, monkeypatch):
    """Interrupted between training and measuring, nothing that was finished is lost."""
    loaded = load_experiment("fig3", "quick", {**TINY, "models": ["convnet"]})

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "measure", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(loaded, tmp_path / "fig3-quick")
    assert not read_records(tmp_path / "fig3-quick")
    assert len(run_experiment(loaded, tmp_path / "fig3-quick")) == 2


def test_invariance_has_a_score_per_layer_trained_and_random(results):
    (convnet, _, si, _) = run_experiment(load_experiment("fig3", "quick", TINY), results / "fig3-quick")
    for record in (convnet, si):
        assert set(record.series) == {"trained", "random"}
        assert record.series["trained"].x == record.series["random"].x == [1, 2, 3, 4, 5]
        for series in record.series.values():
            assert len({round(score, 6) for score in series.y}) == 5  # every layer has its own
    assert convnet.series["random"].y != si.series["random"].y


@pytest.mark.parametrize(("neuron", "at"), [("position", 0.0), ("channel", 0.0), ("centre", 1.0)])
def test_invariance_is_that_of_test_digits_rescaled_with_their_mean_put_back(digits, neuron, at):
    """Worked out from the metric itself, with other shares of images and neurons than the defaults."""
    changes = {**TINY, "measure.firing": 0.1, "measure.top": 0.5, "measure.scales": [0.5, 1.2], "folds": [1]}
    changes |= {"measure.neuron": neuron, "measure.digits_at": at}
    one = plan_runs(load_experiment("fig3", "quick", changes))[-1]
    seen = digits.of(one.settings.data, 1)
    network, layers = awake(one), one.settings.measure.layers
    images = seen.test[:60]
    if at:
        chosen = divide(embedded_digits().labels, one.settings.data, 1).test[:60]
        images = make_scaled(embedded_digits().images[chosen], at, 28) - seen.mean

    def rescale(some, factor):
        return make_scaled((some + seen.mean).clamp(0, 1), factor, 28, truncate="allow") - seen.mean

    scores = invariance_scores(network, images, layers, rescale, (0.5, 1.2), firing=0.1, neuron=neuron)
    expected = [top_mean(scores[layer], 0.5) for layer in layers]
    assert measure(one, network, seen)["trained"].y == pytest.approx(expected, abs=1e-6)


def test_filters_that_answer_no_more_than_to_a_blank_image_have_no_winners(digits):
    one = plan_runs(load_experiment("winners", "quick", {**TINY, "measure.scales": [0.5, 1.0]}))[0]
    network = one.network()
    with torch.no_grad():
        network.stages.conv1.weight.zero_()  # whatever the image, its bias is all it answers
    found = measure(one, network, digits.of(one.settings.data, one.fold))
    assert {value for name, series in found.items() if "conv1" in name for value in series.y} == {0.0}


def test_random_scores_are_those_of_the_network_before_training(digits):
    one = plan_runs(load_experiment("fig3", "quick", TINY))[-1]
    seen = digits.of(one.settings.data, one.fold)
    network = one.network()
    with torch.no_grad():
        network.stages.conv1.weight.neg_()
    fresh, changed = measure(one, one.network(), seen), measure(one, network, seen)
    assert fresh["trained"] == fresh["random"] == changed["random"] != changed["trained"]


def test_the_level_that_undoes_the_scale_of_a_digit_wins(digits):
    """A filter that answers to a ring of one radius: the level that brings the digit's scale back to it wins."""
    one = plan_runs(
        load_experiment("winners", "quick", {**TINY, "network.maps": [1, 1], "measure.scales": [0.35, 1.0]})
    )[0]
    network = one.network()
    y, x = torch.meshgrid(*[torch.arange(7.0) - 3] * 2, indexing="ij")
    ring = torch.exp(-(((x**2 + y**2).sqrt() - 2.5) ** 2) * 4)
    with torch.no_grad():
        network.stages.conv1.weight.copy_((ring - ring.mean()).view(1, 1, 7, 7))
    seen = digits.of(one.settings.data, one.fold)
    zeros = (seen.test_labels == 0).nonzero().flatten()[:40]
    seen = type(seen)(**{**vars(seen), "originals": seen.originals[zeros], "test_labels": seen.test_labels[zeros]})
    found = measure(one, network, seen)
    scales = network.stages.conv1.scales
    shares = [[found[f"stages.conv1 {scale:.3g}"].y[k] for scale in scales] for k in (0, 1)]
    assert [sum(row) for row in shares] == [pytest.approx(100), pytest.approx(100)]
    small, large = (sum(share * scale for share, scale in zip(row, scales, strict=True)) / 100 for row in shares)
    assert small > 1.3 * large
    assert {name.rpartition(" ")[0] for name in found} == {"stages.conv1", "stages.conv2"}


@pytest.mark.parametrize(
    ("item", "changes", "words"),
    [
        ("winners", {"models": ["convnet"]}, "`models` must have scale-invariant layers for winners, got 'convnet'"),
        ("equivariance", {"measure.layers": ["nose"]}, r"`measure.layers` must be layers of convnet .* got 'nose'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_is_trained(tmp_path, item, changes, words):
    experiment = load_experiment(item, "quick", {**TINY, **changes})
    with pytest.raises(ValueError, match=words):
        run_experiment(experiment, tmp_path / "results")
    assert list(tmp_path.iterdir()) == []


def test_equivariance_is_0_where_nothing_is_rescaled_and_grows_from_there(results):
    loaded = load_experiment("equivariance", "quick", TINY)
    for record in run_experiment(loaded, results / "equivariance-quick"):
        for series in record.series.values():
            errors = dict(zip(series.x, series.y, strict=True))
            assert errors[1.0] == pytest.approx(0, abs=1e-6)
            assert 0 < errors[0.9] < errors[0.4]


def test_every_measure_leaves_the_network_without_hooks(digits):
    for item in ("fig3", "winners", "equivariance"):
        one = plan_runs(load_experiment(item, "quick", TINY))[-1]
        network = one.network()
        measure(one, network, digits.of(one.settings.data, 0))
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_a_new_measure_is_one_registered_function(results):
    before = dict(MEASURES)
    try:

        @register("brightness")
        def brightness(one, network, digits):
            return {"mean": Series(list(one.settings.measure.scales), [digits.mean] * 10)}

        loaded = load_experiment("fig3", "quick", {**TINY, "measure.kind": "brightness", "folds": [0]})
        records = run_experiment(loaded, results / "brightness-quick")
        assert [record.config["measure"]["kind"] for record in records] == ["brightness"] * 2
        assert all(record.series["mean"].y[0] > 0 for record in records)
        with pytest.raises(ValueError, match="`name` of a measure must be new, got 'brightness'"):
            register("brightness")(brightness)
    finally:
        MEASURES.clear()
        MEASURES.update(before)


def test_consistency_is_the_share_of_digits_that_keep_their_class(digits):
    changes = {"models": ["cnn"], "folds": [1], "measure.scales": [0.4, 0.7], "measure.digits": 50}
    (one,) = plan_runs(load_experiment("consistency", "quick", changes))
    network, seen = one.network().eval(), digits.of(one.settings.data, 1)
    found = measure(one, network, seen)
    with torch.no_grad():
        answers = {scale: network(seen.at_scale(scale, 50)[0]) for scale in (0.4, 0.7, 1.0)}
    same = {scale: answers[scale].argmax(1) == answers[1.0].argmax(1) for scale in answers}
    assert 0 < same[0.4].sum() < 50
    assert found["same class"].x == [0.4, 0.7, 1.0]
    assert found["same class"].y == pytest.approx([2.0 * same[scale].sum().item() for scale in (0.4, 0.7, 1.0)])
    both = [(same[0.4] & same[0.7]).sum().item(), same[0.7].sum().item(), 50]
    assert found["same class at all scales so far"].y == pytest.approx([2.0 * count for count in both])
    norms = [(answers[scale] - answers[1.0]).norm() / answers[1.0].norm() for scale in (0.4, 0.7, 1.0)]
    assert found["distance"].y == pytest.approx([100 * float(norm) for norm in norms], abs=1e-3)


def test_a_network_of_the_same_point_in_another_item_is_used_again(tmp_path):
    changes = {"models": ["cnn"], "folds": [1], "training.epochs": 1, "training.drops": []}
    field = load_experiment("field", "quick", changes)
    trained = {record.point: record for record in run_experiment(field, tmp_path / "field-quick")}
    other = load_experiment("consistency", "quick", {**changes, "measure.digits": 20})
    (record,) = run_experiment(other, tmp_path / "consistency-quick")
    assert record.point == "28"
    assert record.history == trained["28"].history
    assert record.history != trained["28p"].history
