"""Records written by hand, for tests of what is made of records."""

from scaleconv.experiments import Epoch, Record, Series

CONFIG = {"data": {"train": 60, "dataset": "embedded"}, "network": {"maps": [2, 3]}, "cost": {"calls": 3, "batch": 16}}


def record(model, fold=0, error=5.0, point="", x=None, label="", series=None):
    """A finished run; `series` are pairs of x and y by name."""
    return Record(
        experiment="item",
        model=model,
        fold=fold,
        seed=0,
        test_error=error,
        config=CONFIG,
        environment={"device": "a device"},
        history=[Epoch(1, 2.3, error, 1.0)],
        parameters=10,
        seconds=1.0,
        seconds_per_epoch=1.0,
        runs_together=1,
        point=point,
        x=x,
        label=label,
        series={name: Series(*map(list, values)) for name, values in (series or {}).items()},
    )
