"""Runs leave records; finished ones are not run again, interrupted ones resume to the same bits."""

import signal
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import asdict
from safetensors.torch import load_file

from helpers.elsewhere import Command
from helpers.runs import Diary, Stop, outcome
from scaleconv.data import embedded_digits, make_folds, make_set
from scaleconv.experiments import (
    ITEMS,
    Experiment,
    Options,
    load,
    load_experiment,
    load_item,
    plan_runs,
    read_records,
    run,
    run_experiment,
)
from scaleconv.experiments.trainer import Trainer
from scaleconv.models import Images, make_network

ROOT = Path(__file__).parents[2]
TINY = {
    "data.train": 100,
    "data.tested": 300,
    "network.maps": [2, 3],
    "network.scales": [0.8, 1.0, 1.25],
    "network.hidden": 8,
    "training.epochs": 4,
    "training.batch": 40,  # 2 steps in an epoch
    "training.evaluate_every": 2,
    "folds": [0, 1],
    "models": ["convnet", "si_convnet"],
}
POINTS = [
    {"name": "maps2", "x": 2, "label": "few", "set": {"network.maps": [2, 2]}},
    {"name": "maps3", "x": 3, "label": "more", "set": {"network.maps": [3, 2]}},
]
pytestmark = pytest.mark.usefixtures("digits")


def experiment(item="table1", **changes):
    return load_experiment(item, "quick", {**TINY, **changes})


def curve(**changes):
    small = {key: value for key, value in TINY.items() if key != "network.maps"}
    return load_experiment(
        "fig4a", "quick", {**small, "data.test": 100, "training.epochs": 1, "points": POINTS, **changes}
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("finished") / "table1-quick"
    run_experiment(experiment(), folder)
    return folder


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr(Trainer, "learn", lambda *_: pytest.fail("was trained again"))


def error_of(network, fold, count=300):
    """The test error of a network for 28×28 digits, from the digits as published."""
    scaled = make_set(embedded_digits())
    test = make_folds(scaled.labels, 100, count=10, seed=0)[fold].test[:count]
    with torch.no_grad():
        right = (network(scaled.images[test]).argmax(1) == scaled.labels[test]).sum()
    return 100 * (count - int(right)) / count


def test_a_record_says_what_was_run_and_its_weights_make_its_error(finished):
    records = read_records(finished)
    methods = [(record.model, record.fold) for record in records]
    assert methods == [("convnet", 0), ("convnet", 1), ("si_convnet", 0), ("si_convnet", 1)]
    for record in records:
        assert (record.experiment, record.point, record.runs_together) == ("table1-quick", "", 1)
        assert (record.config["training"]["batch"], record.config["data"]["train"]) == (40, 100)
        assert record.parameters == 2 * 49 + 2 + 3 * 2 * 25 + 3 + 8 * 3 * 9 + 8 + 10 * 8 + 10
        assert [entry.epoch for entry in record.history] == [1, 2, 3, 4]
        assert [entry.test_error is None for entry in record.history] == [True, False, True, False]
        assert record.seconds == pytest.approx(sum(entry.seconds for entry in record.history), rel=1e-2)
        assert {"torch", "python", "device", "cores", "commit", "scaleconv"} <= set(record.environment)
        network = load(finished / "weights" / f"{record.name}.safetensors")
        assert record.error == record.history[-1].test_error == pytest.approx(error_of(network, record.fold), abs=1e-4)
    assert len({record.error for record in records}) > 1
    assert not list((finished / "checkpoints").glob("*"))


def test_finished_runs_are_not_run_again_even_if_they_would_be_tested_more_often(finished, no_training):
    before = finished.with_suffix(".jsonl").read_bytes()
    diary = Diary()
    again = run_experiment(experiment(**{"training.evaluate_every": 1}), finished, watcher=diary)
    assert finished.with_suffix(".jsonl").read_bytes() == before
    assert (len(again), len(diary.ended), diary.begun) == (4, 4, [])


def test_the_records_of_the_repository_are_those_of_its_settings():
    """So `reproduce` repeats none of them, and refuses none."""
    for item in ITEMS:
        loaded = load_item(item)
        if isinstance(loaded, Experiment):
            runs = plan_runs(loaded)
            found = run.finished_runs(runs, ROOT / "results" / item)
            assert found <= {each.name for each in runs}
            assert not found or len(found) >= len(runs) // 2, item  # an item may wait for its first run


@pytest.mark.parametrize("folds", [[0], [2]])
def test_records_of_other_settings_are_not_mixed_with_these(finished, folds):
    with pytest.raises(ValueError, match=r"in table1-quick .*other settings \(training.epochs was 4, now 5\).*--name"):
        run_experiment(experiment(**{"training.epochs": 5, "folds": folds}), finished)


def test_every_model_runs_at_every_point_on_every_fold(tmp_path):
    records = run_experiment(curve(), tmp_path / "fig4a")
    expected = [
        (model, point, x, label, fold, first)
        for model in ("convnet", "si_convnet")
        for point, x, label, first in (("maps2", 2, "few", 2), ("maps3", 3, "more", 3))
        for fold in (0, 1)
    ]
    found = [(r.model, r.point, r.x, r.label, r.fold, r.config["network"]["maps"][0]) for r in records]
    assert found == expected
    with pytest.raises(ValueError, match=r"convnet-maps3-fold0-seed0 in fig4a is of a point that the item does not"):
        run_experiment(curve(points=POINTS[:1]), tmp_path / "fig4a")
    changed = [POINTS[0], {**POINTS[1], "set": {"network.maps": [4, 2]}}]
    with pytest.raises(ValueError, match=r"maps3.*other settings \(network.maps was \[3, 2\], now \[4, 2\]\)"):
        run_experiment(curve(points=changed), tmp_path / "fig4a")


def test_every_fold_draws_its_own_start_which_all_methods_share():
    images = Images((28, 28))

    def start(model, fold, seed=0):
        (one,) = (
            each
            for each in plan_runs(experiment(seed=seed, folds=[2, fold]))
            if (each.model, each.fold) == (model, fold)
        )
        return one.make(images).state_dict()["stages.conv1.weight"]

    torch.manual_seed(0)
    plain = make_network(images, **asdict(plan_runs(experiment())[0].settings.network))
    assert torch.equal(start("convnet", 0), plain.state_dict()["stages.conv1.weight"])  # the item's own seed
    starts = [start("convnet", fold, seed) for seed in (0, 1) for fold in (0, 1, 5)]
    assert all(not torch.equal(one, other) for one, other in combinations(starts, 2))
    for fold in (0, 1):
        assert torch.equal(start("si_convnet", fold), start("convnet", fold))


def test_weights_from_when_all_folds_had_one_start_are_not_used_again():
    first, second = (one.identity() for one in plan_runs(experiment(models=["convnet"])))
    assert "start" not in first
    assert second["start"] == plan_runs(experiment(models=["convnet"]))[1].start != 0


def test_folds_of_an_rbm_start_from_filters_of_their_own(tmp_path):
    changes = {"models": ["rbm"], "rbm.hidden": 4, "epochs": 1, "rbm.learning_rate": 0.0, "softmax.penalties": [0.1]}
    run_experiment(experiment(**changes), tmp_path / "still")
    names = [tmp_path / "still" / "weights" / f"rbm-fold{fold}-seed0.safetensors" for fold in (0, 1)]
    first, second = (load_file(name)["rbm.weight"] for name in names)
    assert not torch.equal(first, second)


def test_seeds_are_run_one_after_the_other_and_differ(tmp_path):
    several = msgspec.structs.replace(experiment(models=["convnet"], folds=[0]), seeds=(3, 5))
    assert [each.seed for each in plan_runs(several)] == [3, 5]
    run_experiment(several, tmp_path / "seeds")
    first, second = (weights["network.stages.conv1.weight"] for _, weights in outcome(tmp_path / "seeds").values())
    assert first != second


# Interruptions.


# An epoch has two steps and its end, which is saved; the last step of an epoch is saved with its end.
@pytest.mark.parametrize(("step", "saved"), [(1, 0), (2, 1), (3, 1), (4, 3), (5, 4), (12, 10)])
def test_a_run_that_was_interrupted_resumes_to_the_same_bits(finished, tmp_path, step, saved):
    folder, one = tmp_path / "table1-quick", experiment(models=["si_convnet"], folds=[1])
    with pytest.raises(Stop):
        run_experiment(one, folder, watcher=Diary(stop=step))
    diary = Diary()
    run_experiment(one, folder, watcher=diary)
    assert outcome(folder)["si_convnet-fold1-seed0"] == outcome(finished)["si_convnet-fold1-seed0"]
    assert len(diary.advanced) == 12 - saved
    assert not list((folder / "checkpoints").iterdir())


def test_an_interrupted_experiment_keeps_what_is_finished(finished, tmp_path):
    folder = tmp_path / "table1-quick"
    with pytest.raises(Stop):
        run_experiment(experiment(), folder, watcher=Diary(stop=20))
    assert [record.name for record in read_records(folder)] == ["convnet-fold0-seed0"]
    diary = Diary()
    run_experiment(experiment(), folder, watcher=diary)
    assert [title for title, _, _ in diary.begun] == ["ConvNet, fold 1", "SI-ConvNet, fold 0", "SI-ConvNet, fold 1"]
    assert outcome(folder) == outcome(finished)


class Interrupting(Diary):
    def advance(self, *what):
        super().advance(*what)
        if len(self.advanced) == 12:  # the end of the first run, which is tested
            signal.raise_signal(signal.SIGINT)


def test_a_run_that_ends_when_it_is_interrupted_is_kept_and_the_next_is_not_begun(finished, tmp_path):
    before, watcher, folder = signal.getsignal(signal.SIGINT), Interrupting(), tmp_path / "table1-quick"
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment(), folder, watcher=watcher)
    assert signal.getsignal(signal.SIGINT) is before
    assert [title for title, *_ in watcher.begun] == ["ConvNet, fold 0"]
    name = "convnet-fold0-seed0"
    assert outcome(folder) == {name: outcome(finished)[name]}


COMMAND = ["reproduce", "table1", *(f"--set={key}={value}" for key, value in TINY.items() if "." in key)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_signalled_in_its_fifth_step_resumes_to_the_same_bits(finished, tmp_path, number):
    """Ctrl-C and SIGTERM leave a checkpoint of that step and a line; after SIGKILL the last checkpoint counts."""
    command = Command([*COMMAND, "--models", "convnet", "--folds", "0"], tmp_path, end=(number, 5))
    code, _, errors = command.wait()
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        resumes = "what was finished is kept, and the same command goes on from there"
        assert (code, errors) == (130, f"scaleconv: interrupted; {resumes}\n")
    folder = tmp_path / "results" / "table1-quick"
    (checkpoint,) = (folder / "checkpoints").glob("*.safetensors")
    assert int(load_file(checkpoint)["cursor"]) == (2 if number == signal.SIGKILL else 1)  # of 2 in an epoch
    diary = Diary()
    run_experiment(experiment(models=["convnet"], folds=[0]), folder, watcher=diary)
    assert diary.begun == [("ConvNet, fold 0", 4, 2)]
    assert outcome(folder)["convnet-fold0-seed0"] == outcome(finished)["convnet-fold0-seed0"]


def test_two_processes_on_one_folder_lose_nothing(finished, tmp_path):
    options = ("--models", "convnet,si_convnet", "--results", tmp_path / "results", "--folds")
    both = [Command([*COMMAND, *options, folds], tmp_path / folds) for folds in ("0,1", "1,0")]
    assert [command.wait()[0] for command in both] == [0, 0]
    assert outcome(tmp_path / "results" / "table1-quick") == outcome(finished)


def test_checkpoints_are_apart_by_ten_seconds_and_take_a_small_share_of_the_time(monkeypatch):
    now = [100.0]
    monkeypatch.undo()
    monkeypatch.setattr(run.time, "perf_counter", lambda: now[0])
    clock = run._Clock()
    for seconds, due in ((9.9, False), (0.2, True)):
        now[0] += seconds
        assert clock.due() is due
    with clock.writing():
        now[0] += 2.0  # 2 % of 100 seconds
    for seconds, due in ((99.0, False), (1.1, True)):
        now[0] += seconds
        assert clock.due() is due
    with clock.writing():
        now[0] += 0.1
    for seconds, due in ((9.9, False), (0.2, True)):
        now[0] += seconds
        assert clock.due() is due


def test_what_killed_runs_left_is_removed(finished):
    (weights, *_) = sorted((finished / "weights").iterdir())
    left = [finished / kind / f".{weights.name}.abcd.part" for kind in ("checkpoints", "weights")]
    other = finished / "weights" / ".someone-elses.safetensors.abcd.part"
    for folder in (*left, other):
        folder.mkdir(parents=True)
    left.append(finished / "checkpoints" / weights.name)  # killed when the run had just finished
    left[-1].write_bytes(weights.read_bytes())
    run_experiment(experiment(), finished)
    assert [path for path in (*left, other) if path.exists()] == [other]
    other.rmdir()


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
    def full(self, *_):
        raise OSError(28, "No space left on device", str(self))

    folder, one = tmp_path / "table1-quick", experiment(models=["convnet"], folds=[0])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match=r"convnet-fold0-seed0.safetensors.*No space left on device"):
            run_experiment(one, folder)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(run_experiment(one, folder)) == 1


def test_a_run_that_diverges_says_so(tmp_path):
    with pytest.raises(
        ValueError, match=r"ConvNet, fold 0 diverged: its loss is nan in epoch .*learning rate \(=1e\+30"
    ):
        run_experiment(experiment(**{"training.learning_rate": 1e30}), tmp_path / "table1-quick")


# What a run does.


VALIDATED = {
    **{"data.train": 60, "data.val": 100, "data.test": 150, "data.tested": 150, "training.epochs": 6},
    **{"training.batch": 10, "training.optimizer": "adamw", "training.learning_rate": 0.3, "training.average": 0.9},
    **{"models": ["convnet"], "folds": [0]},
}


@pytest.mark.parametrize("keep", ["last", "best", "average"])
def test_the_saved_network_is_the_one_that_was_tested_and_validated(keep, tmp_path):
    kept = experiment(**VALIDATED, **{"training.keep": keep, "training.evaluate_every": 1})
    (record,) = run_experiment(kept, tmp_path / "item")
    network = load(tmp_path / "item" / "weights" / "convnet-fold0-seed0.safetensors")
    assert not network.training
    source = run.Sources("cpu").open(kept.settings.data, 0)

    def error(examples):
        with torch.no_grad():
            return 100 * (network(examples.images).argmax(1) != examples.labels).double().mean().item()

    validated = [entry.val_error for entry in record.history]
    assert record.test_error == record.history[-1].test_error == pytest.approx(error(source.test), abs=1e-4)
    assert len({entry.test_error for entry in record.history}) > 1
    if keep == "best":
        assert validated.index(min(validated)) < 5  # else it could not be told from the last
        assert error(source.val) == pytest.approx(min(validated))
    else:
        assert error(source.val) == pytest.approx(validated[-1])


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_is_tested_in_the_precision_that_it_is_trained_in(precision, tmp_path, monkeypatch):
    kinds, score = [], run.score

    def spy(network, *arguments, **options):
        handle = network.network.stages.conv1.register_forward_hook(lambda *given: kinds.append(given[2].dtype))
        found = score(network, *arguments, **options)
        handle.remove()
        return found

    monkeypatch.setattr(run, "score", spy)
    measured = {"measure.kind": "test_scales", "measure.scales": [1.0], "training.precision": precision}
    run_experiment(experiment(**{**VALIDATED, **measured, "training.epochs": 1}), tmp_path / "item")
    assert set(kinds) == {getattr(torch, precision)}
    assert len(kinds) >= 5  # validation, test and measure


def test_training_ends_when_the_loss_has_settled(tmp_path):
    changes = {"training.settled": 100.0, "training.epochs": 20, "models": ["convnet"], "folds": [0]}
    (record,) = run_experiment(experiment(**changes), tmp_path / "settled")
    assert (len(record.history), record.history[-1].test_error) == (10, record.error)


def test_the_folds_of_an_rbm_are_trained_at_once_and_tested_once(tmp_path):
    diary = Diary()
    changes = {"models": ["rbm", "pixels"], "rbm.hidden": 4, "epochs": 2, "softmax.penalties": [0.1, 0.01]}
    records = {
        record.name: record for record in run_experiment(experiment(**changes), tmp_path / "features", watcher=diary)
    }
    assert list(records) == ["pixels-fold0-seed0", "pixels-fold1-seed0", "rbm-fold0-seed0", "rbm-fold1-seed0"]
    rbm, pixels = records["rbm-fold1-seed0"], records["pixels-fold1-seed0"]
    assert sorted(diary.begun) == [
        *((f"RBM, fold {fold}", 2, 0) for fold in (0, 1)),
        *((f"Softmax on pixels, fold {fold}", 1, 0) for fold in (0, 1)),
    ]
    assert {(title, epoch) for title, epoch, _ in diary.advanced} == {
        (f"RBM, fold {k}", n) for k in (0, 1) for n in (1, 2)
    }
    assert [entry.test_error for entry in rbm.history] == [None, rbm.error]
    assert rbm.seconds > sum(entry.seconds for entry in rbm.history)  # with the choice of its classifier
    assert (rbm.runs_together, rbm.parameters, len(pixels.history), pixels.runs_together) == (
        2,
        784 * 4 + 784 + 4 + 10 * 5,
        1,
        1,
    )
    assert rbm.series["held_out_loss"].x == [0.1, 0.01]
    assert set(rbm.config) == {"data", "rbm", "softmax"}
    assert load_file(tmp_path / "features" / "weights" / "rbm-fold1-seed0.safetensors")["samples"].shape[-1] == 784


def grouped(loaded, shared=True):
    return [[(one.model, one.point.name, one.fold) for one in group] for group in run._groups(loaded, shared)]


def test_on_a_gpu_runs_of_a_shape_are_trained_at_once_up_to_a_limit_and_on_a_cpu_rbms_alone():
    runs = plan_runs(curve())
    assert [{run[:2] for run in group} for group in grouped(runs)] == [
        {(model, point)} for model in ("convnet", "si_convnet") for point in ("maps2", "maps3")
    ]
    assert [len(group) for group in grouped(runs, shared=False)] == [1] * 8
    few = grouped(plan_runs(load_experiment("fig5b", "paper", {"folds": [0, 1, 2]})))
    assert few[0] == [("convnet", f"width{width}", fold) for width in (0.15, 0.3) for fold in (0, 1, 2)]
    mixed = plan_runs(experiment(models=["convnet", "rbm"], folds=[0, 1, 2, 3, 4, 5, 6]))
    assert [len(group) for group in grouped(mixed, shared=False)] == [1] * 7 + [6, 1]
    assert [len(group) for group in grouped(mixed)] == [6, 1, 6, 1]
    held_out = [{"name": f"held{n}", "x": n, "set": {"data.held_out": n}} for n in (0, 20)]
    unequal = grouped(plan_runs(curve(points=held_out, models=["convnet"])))
    assert [{point for _, point, _ in group} for group in unequal] == [{"held0"}, {"held20"}]


# Networks that another item has trained.

WINNERS = {"models": ["si_convnet"], "measure.digits": 20, "measure.scales": [0.5, 1.0]}


def test_a_network_that_another_item_has_trained_is_measured_and_not_trained(finished, tmp_path, no_training):
    folder = finished.with_name("winners-quick")
    records = run_experiment(experiment("winners", **WINNERS), folder)
    there = {record.name: record for record in read_records(finished)}
    for record in records:
        assert (record.experiment, record.config["measure"]["kind"]) == ("winners-quick", "winners")
        assert (record.history, record.error) == (there[record.name].history, there[record.name].error)
        shares = [series.y for name, series in record.series.items() if name.startswith("stages.conv1 ")]
        assert [sum(each) for each in zip(*shares, strict=True)] == pytest.approx([100, 100], abs=1e-3)
        assert outcome(folder)[record.name][1] == outcome(finished)[record.name][1]


@pytest.mark.parametrize(
    "changes",
    [{"training.batch": 50}, {"seed": 1}, {"network.scales": [1.0, 1.25]}, {"folds": [2]}, {"data.seed": 1}],
    ids=lambda change: next(iter(change)),
)
def test_a_network_of_another_run_is_not_taken_for_it(finished, tmp_path, no_training, changes):
    folder = finished.with_name("winners-other")
    with pytest.raises(pytest.fail.Exception, match="was trained again"):
        run_experiment(experiment("winners", **{**WINNERS, "folds": [0], **changes}), folder)


def test_a_measure_that_the_network_does_not_allow_is_refused_before_the_training(tmp_path, no_training):
    with pytest.raises(ValueError, match="`models` must have scale-invariant layers for winners, got 'convnet'"):
        run_experiment(experiment("winners", **{**WINNERS, "models": ["convnet"]}), tmp_path / "winners")
    layers = {"models": ["convnet"], "measure.layers": ["stages.conv9"]}
    with pytest.raises(ValueError, match=r"`measure.layers` must be layers of convnet \(.*got 'stages.conv9'"):
        run_experiment(experiment("equivariance", **layers), tmp_path / "equivariance", Options())
    assert not list(tmp_path.iterdir())
