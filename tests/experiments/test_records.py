"""A record is read back as it was written, and one that was damaged or contradicts itself is refused by name."""

import json
import random
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from helpers.records import record
from scaleconv.experiments import Epoch, read_records
from scaleconv.experiments.records import checksum, describe_environment, read_record, write_record

ROOT = Path(__file__).parents[2]
FIRST_FORMAT = sorted((ROOT / "tests" / "golden" / "first_format").glob("*.json"))
HISTORY = [Epoch(1, 2.302585093, 80.0, 0.0123456), Epoch(2, 1.23456789e-7, None, 1.0), Epoch(3, 0.5, 5.0, 2.0)]


@pytest.fixture
def path(tmp_path):
    """A record of three epochs."""
    return write_record(tmp_path, record("convnet", history=HISTORY))


def test_a_record_is_read_back_rounded_to_what_is_significant(path):
    found = read_record(path)
    assert found.history == [Epoch(1, 2.3026, 80.0, 0.0123), Epoch(2, 1.2346e-7, None, 1.0), Epoch(3, 0.5, 5.0, 2.0)]
    assert replace(found, history=HISTORY) == record("convnet", history=HISTORY)


def test_the_history_is_stored_as_columns_and_the_keys_that_readers_need_are_there(path):
    values = json.loads(path.read_text())
    assert values["history"]["epoch"] == [1, 2, 3]
    assert (values["history"]["tested"], values["history"]["test_error"]) == ([1, 3], [80.0, 5.0])
    needed = {"experiment", "model", "fold", "seed", "test_error", "config", "environment", "history", "checksum"}
    assert needed <= set(values)


def test_settings_are_not_rounded(tmp_path):
    scales = [2 ** (1 / 3), 1.0]
    made = record("convnet")
    made = replace(made, config={**made.config, "network": {"maps": [2, 3], "scales": scales}})
    assert read_record(write_record(tmp_path, made)).config["network"]["scales"] == scales


@pytest.mark.parametrize("kept", FIRST_FORMAT, ids=lambda path: path.stem)
def test_records_of_the_first_format_are_still_read(kept, tmp_path):
    assert isinstance(json.loads(kept.read_text())["history"], list)
    found = read_record(kept)
    again = read_record(write_record(tmp_path, found))
    assert asdict(again)["config"] == asdict(found)["config"]
    for before, after in zip(found.history, again.history, strict=True):
        assert (after.epoch, after.test_error) == (before.epoch, before.test_error)
        assert after.train_loss == pytest.approx(before.train_loss, rel=1e-4)
    for name, series in found.series.items():
        assert again.series[name].y == pytest.approx(series.y, rel=1e-5)


def test_there_are_records_of_the_first_format_with_and_without_a_history():
    assert len(FIRST_FORMAT) >= 3
    assert {bool(read_record(path).history) for path in FIRST_FORMAT} == {True, False}


def test_every_committed_record_has_a_checksum():
    committed = [path for path in (ROOT / "results").glob("*/*.json") if path.parent.name not in ("bench", "trust")]
    assert len(committed) > 450
    assert [path for path in committed if "checksum" not in json.loads(path.read_text())] == []


def test_the_committed_records_are_small():
    folders = [
        path for path in (ROOT / "results").iterdir() if not re.search("^bench$|^trust$|^train$|-quick$", path.name)
    ]
    sizes = [path.stat().st_size for folder in folders for path in folder.glob("*.json")]
    assert sum(sizes) / len(sizes) < 6_000
    assert max(sizes) < 20_000


def test_no_flipped_bit_of_a_record_passes(path):
    """Of 120 that were tried in the first format, 36 did."""
    data, dice = path.read_bytes(), random.Random(0)
    for _ in range(300):
        place, bit = dice.randrange(len(data) - 1), dice.randrange(8)  # the last byte is the end of the line
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        with pytest.raises(ValueError, match=f"{path.name} is not a valid record"):
            read_record(path)


def changed(text, **changes):
    """A record with other values and the checksum that belongs to them."""
    values = {**json.loads(text), **changes}
    del values["checksum"]
    return json.dumps({**values, "checksum": checksum(values)})


def columns(**changes):
    return {"epoch": [1], "train_loss": [2.0], "seconds": [1.0], "tested": [1], "test_error": [5.0], **changes}


def epochs(count, loss=0.5):
    """The columns of so many epochs, the last one tested."""
    every = list(range(1, count + 1))
    return columns(epoch=every, train_loss=[loss] * count, seconds=[1.0] * count, tested=[count])


@pytest.mark.parametrize(("count", "loss", "valid"), [(10, 0.5, True), (10, 0.6, False), (9, 0.5, False)])
def test_a_history_may_end_early_only_where_the_loss_has_settled(count, loss, valid, path):
    config = json.loads(path.read_text())["config"]
    settled = {**config, "training": {**config["training"], "epochs": 20, "settled": 0.5}}
    path.write_text(changed(path.read_text(), config=settled, history=epochs(count, loss)))
    if valid:
        assert len(read_record(path).history) == count
    else:
        with pytest.raises(ValueError, match=f"or end where the loss has settled, got {count}"):
            read_record(path)


DAMAGE = {
    "cut": (lambda text: text[:-20], "line"),
    "list": (lambda text: "[]", "the record must be a table"),
    "nested": (lambda text: "[" * 100_000, "recursion"),
    "checksum": (lambda text: text.replace('"fold": 0', '"fold": 1'), "its checksum does not agree"),
    "no checksum": (lambda text: text.replace('"checksum":', '"label":'), "its checksum does not agree"),
    "key": (lambda text: changed(text, error=5.0), "`error` in the record is unknown"),
    "type": (lambda text: changed(text, fold="0"), "`fold` in the record must be int, got '0'"),
    "error": (lambda text: changed(text, test_error=101), "`test_error` must be a percentage, got 101"),
    "below 0": (lambda text: changed(text, test_error=-1), "`test_error` must be a percentage, got -1"),
    "not last": (
        lambda text: changed(text, test_error=4.9),
        r"`test_error` \(=4.9\) must be the last of its history \(=5.0\)",
    ),
    "no error": (
        lambda text: changed(text, test_error=None),
        "`test_error` must be there where no `series` is, got None",
    ),
    "NaN": (lambda text: text.replace('"seconds": 1.0', '"seconds": NaN'), "NaN is not a number"),
    "fold": (lambda text: changed(text, fold=1), "it is of convnet-fold1-seed0"),
    "point": (lambda text: changed(text, point="maps9"), "it is of convnet-maps9-fold0-seed0"),
    "series": (lambda text: changed(text, series={"a": {"x": [1], "y": []}}), "a value for each x, got 0 for 1 in a"),
    "mean": (
        lambda text: changed(text, series={"test_error": {"x": [1, 2], "y": [5.0, 7.0]}}),
        r"`test_error` \(=5.0\) must be the mean of its series \(=6.0\)",
    ),
    "history": (lambda text: changed(text, history={}), r"`history` must have the columns epoch, .*, got \{\}"),
    "old history": (lambda text: changed(text, history=[{"epoch": 1}]), "is missing"),
    "empty": (lambda text: changed(text, history=[]), "`history` must have the 3 epochs of `config`, .* got 0"),
    "short": (lambda text: changed(text, history=columns()), "or end where the loss has settled, got 1"),
    "long": (lambda text: changed(text, history=epochs(4)), "`history` must have the 3 epochs of `config`, .* got 4"),
    "columns": (lambda text: changed(text, history=columns(seconds=[])), "a value for each epoch, .*'seconds': 0"),
    "tested": (lambda text: changed(text, history=columns(tested=[7])), "an error for each that was tested"),
    "order": (
        lambda text: changed(text, history=columns(epoch=[2], tested=[2])),
        r"must count from 1 without a gap, got \[2\]",
    ),
    "config": (lambda text: changed(text, config={}), r"`config` must have the section data, got \[\]"),
    "setting": (
        lambda text: changed(text, config={"data": 3, "network": {}, "training": {}}),
        "must be a table, got 3",
    ),
    "together": (lambda text: changed(text, runs_together=0), "`runs_together` must be from 1 to 1000, got 0"),
    "all together": (lambda text: changed(text, runs_together=10**400), "`runs_together` must be from 1 to 1000"),
    "large": (lambda text: changed(text, seconds=10**400), "`seconds` in the record must be float, got 1000"),
    "device": (lambda text: changed(text, environment={}), "`environment` must name the device, got None"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_is_refused_by_name(change, message, path):
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=rf"(?s){path.name} is not a valid record .*{message}"):
        read_records(path.parent)


@pytest.mark.parametrize("key", ["a\nb", "\x1b[31m", "x" * 10_000])
def test_what_a_record_holds_does_not_spoil_the_message(key, path):
    """Not a second line, not an escape sequence for the terminal, not pages of text."""
    path.write_text(changed(path.read_text(), **{key: 1}))
    with pytest.raises(ValueError, match=f"{path.name} is not a valid record") as refusal:
        read_record(path)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 600


def test_a_record_that_is_a_directory_is_named(tmp_path):
    (tmp_path / "convnet-fold0-seed0.json").mkdir()
    with pytest.raises(OSError, match=r"cannot read the record .*convnet-fold0-seed0.json \(Is a directory\)"):
        read_records(tmp_path)


def test_what_killed_runs_left_of_a_file_is_removed_when_it_is_written(tmp_path):
    made = record("convnet")
    left, other = (tmp_path / f".{name}.abc.part" for name in (made.name, "another.json"))
    for part in (left, other):
        part.mkdir()
    write_record(tmp_path, made)
    assert (left.exists(), other.exists()) == (False, True)


def test_a_tree_with_changes_is_marked(monkeypatch):
    from types import SimpleNamespace

    from scaleconv import environment

    monkeypatch.delenv("SCALECONV_COMMIT", raising=False)
    for changes, expected in (("", "abc"), (" M src/scaleconv/cli.py", "abc+")):
        answers = {"rev-parse": "abc\n", "status": changes}
        monkeypatch.setattr(
            environment.subprocess,
            "run",
            lambda command, answers=answers, **_: SimpleNamespace(stdout=answers[command[1]]),
        )
        assert environment._commit() == expected
    monkeypatch.setenv("SCALECONV_COMMIT", "named")
    assert environment._commit() == "named"
    monkeypatch.undo()  # what else describes the machine may ask other programs
    assert {"torch", "device", "commit"} <= set(describe_environment("cpu"))
