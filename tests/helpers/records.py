"""Records written by hand, for tests of what is made of records."""

from scaleconv.experiments import Epoch, Record, Series
from scaleconv.experiments.methods import TITLES
from scaleconv.models import UNSUPERVISED

DATA = {"source": "digits", "train": 60, "dataset": "embedded"}


def config(model, epochs=1, kind=""):
    """The least that a record of a model must say about its settings."""
    if model not in TITLES:
        return {"cost": {"calls": 3, "batch": 16}}
    if model == "pixels":
        return {"data": DATA, "softmax": {}}
    if model in UNSUPERVISED:
        return {"data": DATA, model: {"hidden": 30, "epochs": epochs}, "softmax": {}}
    measure = {"kind": kind, "scales": [1.0]} if kind else {}
    return {"data": DATA, "network": {"maps": [2, 3]}, "training": {"epochs": epochs}, "measure": measure}


def record(model, fold=0, error=5.0, point="", x=None, label="", series=None, history=None, kind=""):
    """A finished run; `series` are pairs of x and y by name."""
    history = history or [Epoch(1, 2.3, error, 1.0)]
    return Record(
        experiment="item",
        model=model,
        fold=fold,
        seed=0,
        test_error=error,
        config=config(model, len(history), kind),
        environment={"device": "a device"},
        history=history,
        parameters=10,
        seconds=1.0,
        seconds_per_epoch=1.0,
        runs_together=1,
        point=point,
        x=x,
        label=label,
        series={name: Series(*map(list, values)) for name, values in (series or {}).items()},
    )


def sweep(convnet, si_convnet, xs=(0.25, 1.0), labels=("", "")):
    """For each x the errors of the folds."""
    found = []
    for model, errors in (("convnet", convnet), ("si_convnet", si_convnet)):
        for x, label, folds in zip(xs, labels, errors, strict=True):
            found += [record(model, fold, error, f"x{x:g}", x, label) for fold, error in enumerate(folds)]
    return found


# Of every item that is a set of curves.
CURVES = {
    "fig4a": sweep([[8, 10], [4, 6]], [[6, 6], [4, 4]], labels=("9, 16", "36, 64")),
    "fig4b": sweep([[8, 10], [4, 6]], [[6, 6], [4, 4]], (1000, 50_000)),
    "fig5a": [
        record(model, fold, sum(errors) / 3, series={"test_error": ((0.4, 1.0, 1.6), errors)}, kind="test_scales")
        for model, fold, errors in [
            ("convnet", 0, (50, 2, 30)),
            ("convnet", 1, (50, 2, 10)),
            ("si_convnet", 0, (40, 1, 15)),
            ("si_convnet", 1, (40, 1, 5)),
        ]
    ],
    "fig5b": sweep([[2, 2], [8, 8]], [[1, 1], [4, 4]], (0.1, 0.6)),
    "fig3": [
        record(
            model, fold, series={"trained": ((1, 2, 3), scores), "random": ((1, 2, 3), (5, 5, 5))}, kind="invariance"
        )
        for model, scores in (("convnet", (10, 20, 30)), ("si_convnet", (15, 25, 35)))
        for fold in (0, 1)
    ],
    "winners": [
        record(
            "si_convnet",
            fold,
            series={f"stages.conv{k} {s}": ((0.3, 1), (20, 80)) for k in (1, 2) for s in (1, 2)},
            kind="winners",
        )
        for fold in (0, 1)
    ],
    "equivariance": [
        record(
            model,
            series=dict.fromkeys(("stages.relu1", "classifier.relu3"), ((0.5, 1), (0.4, 0.0))),
            kind="equivariance",
        )
        for model in ("convnet", "si_convnet")
    ],
    "cost": [
        record(model, fold, None, layer, series={f"operations {s}": ((1, 2), (1, 8)) for s in ("largest", "count")})
        for model in ("conv2d", "formula", "direct", "si_conv2d")
        for layer in ("layer1", "layer2")
        for fold in (0, 1)
    ],
}


def table_records(errors):
    """Records of table 1 with three epochs each: for each model the errors of the folds. RBMs are tested at the end."""

    def history(model, error):
        first = None if model in UNSUPERVISED else 2 * error
        epochs = [Epoch(1, 2.3, first, 1.0), Epoch(2, 1.0, None, 1.0), Epoch(3, 0.5, error, 1.0)]
        return epochs if model != "pixels" else None

    return [
        record(model, fold, error, history=history(model, error))
        for model, folds in errors.items()
        for fold, error in enumerate(folds)
    ]
