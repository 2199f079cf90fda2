"""RBMs and the control on pixels are runs of table 1 like the others."""

import io
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from made_records import record
from scaleconv.experiments import ITEMS, Epoch, load_experiment, plan_runs, read_records, run_experiment
from scaleconv.experiments.claims import check_claims
from scaleconv.experiments.config import OF_FEATURES, Settings
from scaleconv.experiments.figures import draw_errors
from scaleconv.experiments.notes import footnotes
from scaleconv.experiments.pages import write_pages
from scaleconv.experiments.progress import Board
from scaleconv.experiments.report import write_report
from scaleconv.experiments.schema import build
from scaleconv.models import RBM, SIRBM, UNSUPERVISED

ROOT = Path(__file__).parents[2]
EAGER = {"batch": 10, "sparsity_target": 0.2, "sparsity_cost": 0, "initial_std": 0.1}  # learns something in 3 epochs
TINY = {
    "data.train": 300,
    "epochs": 3,
    "rbm.hidden": 30,
    "si_rbm.hidden": 30,
    **{f"{model}.{key}": value for model in ("rbm", "si_rbm") for key, value in EAGER.items()},
    "si_rbm.scales": [1.0, 2.0],
    "softmax.penalties": [1e-2, 1e-3],
    "folds": [0, 1],
    "models": ["rbm", "si_rbm", "pixels"],
}


def experiment(**changes):
    return load_experiment("table1", "quick", {**TINY, **changes})


class Diary:
    """A watcher that writes down what it is told."""

    def __init__(self):
        self.begun, self.epochs, self.ended = [], [], []

    def plan(self, *_): ...

    def begin(self, run, done):
        self.begun.append((run.model, run.fold, done))

    def epoch(self, run, entry):
        self.epochs.append((run.model, run.fold, entry))

    def end(self, title):
        self.ended.append(title)


pytestmark = pytest.mark.usefixtures("digits")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, digits):
    """A folder of finished runs, and what a watcher was told meanwhile."""
    folder = tmp_path_factory.mktemp("results") / "table1-tiny"
    diary = Diary()
    run_experiment(experiment(), folder, watcher=diary)
    return folder, diary


def test_every_run_leaves_a_record_like_the_others(finished):
    folder, _ = finished
    records = read_records(folder)
    assert {(r.model, r.fold) for r in records} == {(model, fold) for model in UNSUPERVISED for fold in (0, 1)}
    for found in records:
        assert [entry.epoch for entry in found.history] == ([1] if found.model == "pixels" else [1, 2, 3])
        assert [entry.test_error for entry in found.history[:-1]] == [None] * (len(found.history) - 1)
        assert found.test_error == found.history[-1].test_error
        assert 0 < found.test_error < 85  # guessing is 90
        assert found.seconds >= sum(entry.seconds for entry in found.history)
        assert found.runs_together == (1 if found.model == "pixels" else 2)
        assert set(found.series) == {"held_out_loss", "held_out_error"}
        assert found.series["held_out_loss"].x == [1e-2, 1e-3]
        assert {"torch", "device", "commit"} <= set(found.environment)


def test_records_hold_the_settings_of_their_model_only(finished):
    folder, _ = finished
    for found in read_records(folder):
        assert tuple(found.config) == OF_FEATURES[found.model]
    config = {found.model: found.config for found in read_records(folder)}
    assert (config["rbm"]["rbm"]["hidden"], config["rbm"]["rbm"]["epochs"]) == (30, 3)
    assert config["si_rbm"]["si_rbm"]["scales"] == [1.0, 2.0]
    assert "scales" not in config["rbm"]["rbm"]


def test_the_test_error_is_that_of_the_written_weights(finished, digits):
    folder, _ = finished
    machines = {"rbm": RBM(30), "si_rbm": SIRBM(30, 28, scales=[1.0, 2.0])}
    for found in read_records(folder):
        weights = load_file(folder / "weights" / f"{found.model}-fold{found.fold}-seed0.safetensors")
        assert found.parameters == sum(tensor.numel() for name, tensor in weights.items() if name != "samples")
        seen = digits.of(experiment().settings.data, found.fold)
        features = seen.pixels(seen.test).flatten(1)
        if machine := machines.get(found.model):
            parts = {name: weights[f"rbm.{name}"] for name in ("weight", "hidden_bias", "visible_bias")}
            features = machine.load(**parts).transform(features)
        scores = features @ weights["classifier.weight"] + weights["classifier.bias"]
        wrong = (scores.argmax(1) != seen.test_labels).double().mean()
        assert found.test_error == pytest.approx(100 * wrong.item(), abs=0.05)


def test_pixels_are_those_of_the_digits_before_the_mean_was_subtracted(digits):
    seen = digits.of(experiment().settings.data, 0)
    pixels = seen.pixels(seen.train)
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert pixels.mean().item() == pytest.approx(seen.mean, rel=1e-4)


def test_all_folds_of_a_model_go_together_and_every_epoch_is_told(finished):
    _, diary = finished
    assert diary.begun[:2] == [("rbm", 0, 0), ("rbm", 1, 0)]
    told = [(model, fold, entry.epoch) for model, fold, entry in diary.epochs]
    assert told[:6] == [("rbm", fold, epoch) for epoch in (1, 2, 3) for fold in (0, 1)]
    assert told[-2:] == [("pixels", 0, 1), ("pixels", 1, 1)]
    assert [entry.test_error is None for _, _, entry in diary.epochs[:6]] == [True] * 4 + [False] * 2
    assert diary.ended[0] == "RBM, fold 0"
    assert len(diary.ended) == 6


def test_finished_runs_are_skipped_and_a_lost_one_is_made_again_alone(finished, tmp_path):
    folder = tmp_path / "table1-tiny"
    folder.mkdir()
    source, _ = finished
    for path in source.glob("*.json"):
        if path.name != "si_rbm-fold1-seed0.json":
            (folder / path.name).write_text(path.read_text())
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    diary = Diary()
    records = run_experiment(experiment(), folder, watcher=diary)
    assert diary.begun == [("si_rbm", 1, 0)]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    before = {(r.model, r.fold): r.test_error for r in read_records(source)}
    assert {(r.model, r.fold): r.test_error for r in records} == pytest.approx(before, abs=2)


class Interrupted(Diary):
    def epoch(self, run, entry):
        raise KeyboardInterrupt


def test_an_interrupted_run_leaves_nothing_and_starts_again(tmp_path):
    folder = tmp_path / "table1-tiny"
    small = experiment(models=["rbm"], folds=[0])
    with pytest.raises(KeyboardInterrupt):
        run_experiment(small, folder, watcher=Interrupted())
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert len(run_experiment(small, folder)) == 1


def test_records_of_other_settings_of_the_same_model_are_refused_and_those_of_others_do_not_matter(finished):
    folder, _ = finished
    with pytest.raises(ValueError, match=r"rbm-fold0-seed0.json was made with .*\(rbm.hidden was 30, now 31\)"):
        run_experiment(experiment(**{"rbm.hidden": 31}), folder)
    run_experiment(experiment(**{"training.batch": 7, "network.maps": [1, 1]}), folder)


def test_the_committed_records_of_networks_are_still_of_these_settings():
    folder = ROOT / "results" / "table1-100"
    now = load_experiment("table1", "paper", {"training.epochs": 100}).settings
    networks = [found for found in read_records(folder) if found.model not in UNSUPERVISED]
    assert len(networks) >= 24
    for found in networks:
        assert build(Settings, found.config, "the record").deciding(found.model) == now.deciding(found.model)


def test_epochs_of_the_command_line_reach_every_method_unless_one_is_set():
    settings = load_experiment("table1", "quick", {"epochs": 4, "rbm.epochs": 7}).settings
    assert [settings.epochs(model) for model in ("convnet", "rbm", "si_rbm", "pixels")] == [4, 7, 4, 1]


def test_divergence_names_the_method_and_where_to_set_it(tmp_path):
    with pytest.raises(ValueError, match=r"^Scale-invariant RBM: training diverged .*learning_rate.*\[si_rbm\]"):
        run_experiment(experiment(**{"models": ["si_rbm"], "si_rbm.learning_rate": 1e30}), tmp_path / "table1-tiny")


def test_nothing_is_measured_on_what_is_no_network():
    with pytest.raises(ValueError, match="`models` must be networks where something is measured on them, got 'rbm'"):
        load_experiment("fig3", "quick", {"models": ["convnet", "rbm"]})


def test_the_report_shows_filters_and_samples_of_both_beside_the_table(finished, tmp_path):
    folder, _ = finished
    names = ["table.md", "table.csv", "figure.png", "figure.svg"]
    names += ["filters-rbm.png", "filters-si_rbm.png"]
    records = read_records(folder)
    paths = write_report(experiment(), records, folder)
    assert [path.name for path in paths] == names
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_report(experiment(), records, folder)] == before
    # without weights there is nothing to draw
    assert [path.name for path in write_report(experiment(), records, tmp_path)] == names[:4]


def table_records():
    errors = {"convnet": [4.0, 4.0], "rbm": [8.0, 6.0], "si_rbm": [6.0, 5.5], "pixels": [20.0, 20.0]}
    made = []
    for model, values in errors.items():
        for fold, error in enumerate(values):
            values = asdict(record(model, fold, error))
            if model != "convnet":
                values["config"] = {"data": values["config"]["data"], model: {"hidden": 30}}
            made.append(
                type(record(model))(**{**values, "history": [Epoch(1, 1.0, None, 1.0), Epoch(2, 1.0, error, 1.0)]})
            )
    return made


def test_rbms_are_compared_with_each_other_too():
    item = load_experiment("table1")
    notes = footnotes(item, table_records())
    assert "RBMs: 30 hidden units, 2 epochs without labels, then a softmax classifier." in notes
    assert "Scale-invariant RBM lies 17.9 % under RBM (p = 0.500)." in notes
    claims = {claim.paper: (claim.ours, claim.holds) for claim in check_claims(item, table_records())}
    assert claims["Scale-invariant RBM 9.8 % under RBM"] == ("17.9 %", True)
    assert claims["RBM: 6.10 %"] == ("7.00 % (n = 2)", True)  # within our own deviation


def test_the_figure_draws_one_error_of_each_across_all_epochs(tmp_path):
    path = tmp_path / "errors.svg"
    draw_errors(table_records(), "title", "", [path])
    text = path.read_text()
    for label in ("RBM: 7.00 % (n = 2)", "Scale-invariant RBM: 5.75 % (n = 2)", "Softmax on pixels: 20.00 % (n = 2)"):
        assert label in text


def test_show_has_them_in_json(finished, run):
    folder, _ = finished
    code, output, _ = run("show", folder.name, "--json", "--results", folder.parent)
    assert code == 0
    assert set(json.loads(output)) == set(UNSUPERVISED)
    assert json.loads(output)["si_rbm"]["n"] == 2


def test_a_terminal_sees_the_epochs_of_an_rbm():
    stream = io.StringIO()
    first, *_, last = plan_runs(experiment())
    with Board(Console(file=stream, force_terminal=True, width=140)) as board:
        board.begin(first, 0)
        board.epoch(first, Epoch(2, 0.1, None, 0.5))
        board.begin(last, 0)
    assert "2/3" in stream.getvalue()
    assert "0/1" in stream.getvalue()


def test_the_page_keeps_the_pictures_of_what_was_learned_when_the_weights_are_gone(finished, tmp_path):
    results, docs = tmp_path / "results", tmp_path / "docs"
    shutil.copytree(finished[0], results / "table1")
    docs.mkdir()
    blocks = "".join(f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in ("claims", *ITEMS))
    (docs / "reproduction.md").write_text(blocks)
    written = {path.name for path in write_pages(results, docs)}
    assert {"table1-rbm.png", "table1-si_rbm.png"} <= written
    page = (docs / "reproduction.md").read_text()
    assert "![Scale-invariant RBM: filters and samples](figures/table1-si_rbm.png)" in page
    shutil.rmtree(results / "table1" / "weights")
    assert "table1-rbm.png" not in {path.name for path in write_pages(results, docs)}
    assert (docs / "reproduction.md").read_text() == page
