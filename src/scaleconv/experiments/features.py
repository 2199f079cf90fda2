"""Trains the methods that learn features without labels: RBM, scale-invariant RBM, and pixels for control.

All folds of a method go together, on any device. Nothing is kept of an unfinished run: it is a matter of minutes, and
starts over. The classifier is trained once, behind the last epoch, so only that one has a test error.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..models import Fold, UnsupervisedRun, UnsupervisedSettings, train_unsupervised
from ..models.contrastive import Progress
from .config import Settings
from .descent import Outcome
from .digits import DigitStore
from .plan import Run, Watcher
from .records import Epoch, Series
from .titles import TITLES


def learn_features(runs: Sequence[Run], store: DigitStore, folder: Path, watcher: Watcher) -> dict[Run, Outcome]:
    """Train runs of one method, settings and number of digits; the folder is not used, since nothing is kept there."""
    model, settings, seed = runs[0].model, runs[0].settings, runs[0].seed
    folds = []
    for run in runs:
        digits = store.of(run.settings.data, run.fold)
        train, test = digits.pixels(digits.train), digits.pixels(digits.test)
        folds.append(Fold(train, digits.train_labels, test, digits.test_labels))
        watcher.begin(run, 0)

    def watch(progress: Progress) -> None:
        if progress.epoch < settings.epochs(model):  # the last one is told below, with its test error
            for run, loss in zip(runs, progress.reconstruction.tolist(), strict=True):
                watcher.epoch(run, Epoch(progress.epoch, loss, None, progress.seconds))

    try:
        found = train_unsupervised(model, folds, settings_of(model, settings), seed=seed, watch=watch)
    except ValueError as error:
        raise ValueError(f"{TITLES[model]}: {error}, in the settings [{model}]") from None
    outcomes = {}
    for run, result in zip(runs, found, strict=True):
        outcomes[run] = _outcome(result, len(runs))
        watcher.epoch(run, outcomes[run].history[-1])
    return outcomes


def settings_of(model: str, settings: Settings) -> UnsupervisedSettings:
    """What `train_unsupervised` is told of a model's settings."""
    classifier = UnsupervisedSettings(penalties=settings.softmax.penalties, held_out=settings.softmax.held_out)
    if model == "rbm":
        return replace(classifier, hidden=settings.rbm.hidden, recipe=settings.rbm)
    if model == "si_rbm":
        machine = settings.si_rbm
        return replace(classifier, hidden=machine.hidden, recipe=machine, scales=machine.scales)
    return classifier


def _outcome(result: UnsupervisedRun, runs: int) -> Outcome:
    losses, errors = result.held_out_losses, result.held_out_errors
    # Kept with the weights, since drawing them takes digits, and a picture is made from the file alone.
    tensors = result.weights if result.samples is None else {**result.weights, "samples": result.samples}
    series = {
        "held_out_loss": Series(list(losses), list(losses.values())),
        "held_out_error": Series(list(errors), list(errors.values())),
    }
    pairs = zip(result.reconstruction, result.epoch_seconds, strict=True)
    epochs = [Epoch(number, loss, None, seconds) for number, (loss, seconds) in enumerate(pairs, start=1)]
    if not epochs:  # pixels: a classifier and nothing before it, timed as if alone
        history = [Epoch(1, losses[result.penalty], result.test_error, result.seconds)]
        return Outcome(tensors, history, result.parameters, 1, series=series)
    history = [*epochs[:-1], replace(epochs[-1], test_error=result.test_error)]
    beside = result.seconds - sum(result.epoch_seconds)
    return Outcome(tensors, history, result.parameters, runs, beside, series)
