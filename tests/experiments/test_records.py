"""A record is read back as written; one that is damaged, repeated or contradicts itself is refused by its line."""

import errno
import multiprocessing
import pathlib
import random
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from helpers.records import config, record
from helpers.tasks import write_records
from scaleconv.experiments import Epoch, Series, read_records
from scaleconv.experiments.checkpoint import Checkpoint, write_checkpoint
from scaleconv.experiments.records import checksum, records_file, run_file, run_name, write_record

RESULTS = Path(__file__).parents[2] / "results"
HISTORY = [
    Epoch(1, 2.302585093, 80.0, 0.0123456),
    Epoch(2, 1.23456789e-7, None, 1.0, 7.7777777),
    Epoch(3, 0.5, 5.0, 2.0),
]


@pytest.fixture
def folder(tmp_path):
    """A record of three epochs."""
    write_record(tmp_path / "item", record("convnet", history=HISTORY))
    return tmp_path / "item"


def lines(folder):
    return [msgspec.json.decode(line) for line in records_file(folder).read_bytes().splitlines()]


def test_a_record_is_read_back_rounded_to_what_is_significant(folder):
    (found,) = read_records(folder)
    assert found.history == [
        Epoch(1, 2.3026, 80.0, 0.0123),
        Epoch(2, 1.2346e-7, None, 1.0, 7.77778),
        Epoch(3, 0.5, 5.0, 2.0),
    ]
    assert replace(found, history=HISTORY) == record("convnet", history=HISTORY)


def test_settings_are_not_rounded_and_all_else_is(tmp_path):
    made = record("convnet", x=1 / 3, series={"a": ([1 / 3], [2e9 / 3])})
    scales = [2 ** (1 / 3), 1.0]
    made = replace(made, config={**made.config, "network": {"scales": scales}}, cost={"ms": 1 / 3}, seconds=1 / 3)
    write_record(tmp_path / "item", made)
    (found,) = read_records(tmp_path / "item")
    assert found.config["network"]["scales"] == scales
    assert (found.x, found.seconds, found.cost, found.series) == (
        0.333333,
        0.333333,
        {"ms": 0.333333},
        {"a": Series([0.333333], [666667000.0])},
    )


def test_the_history_is_stored_as_columns_under_a_checksum(folder):
    (values,) = lines(folder)
    assert values["history"] == {
        "train_loss": [2.3026, 1.2346e-7, 0.5],
        "seconds": [0.0123, 1.0, 2.0],
        "tested": [1, 3],
        "test_error": [80.0, 5.0],
        "validated": [2],
        "val_error": [7.77778],
    }
    assert len(values["checksum"]) == 64


def test_names_of_runs_and_files():
    assert run_name("convnet", "", 2, 3) == "convnet-fold2-seed3"
    assert record("convnet", 2, point="maps9").name == run_name("convnet", "maps9", 2, 0) == "convnet-maps9-fold2-seed0"
    assert records_file(Path("results/table1-1.5")).as_posix() == "results/table1-1.5.jsonl"
    assert run_file(Path("a"), "b", "checkpoints").as_posix() == "a/checkpoints/b.safetensors"
    assert run_file(Path("a"), "b", "logs").as_posix() == "a/logs/b.csv"


def test_records_are_sorted_in_the_file_and_the_same_run_is_replaced(tmp_path):
    """By model, x, point, fold and seed, whatever order they are written in; x is a number, not text."""
    wanted = [
        record("convnet"),
        record("convnet", 2),
        record("convnet", 10),
        record("convnet", 0, point="x2", x=2.0),
        record("convnet", 0, point="x10", x=10.0),
        record("si_convnet"),
        replace(record("si_convnet"), seed=1),
    ]
    for made in random.Random(0).sample(wanted, len(wanted)):
        write_record(tmp_path / "item", made)
    assert read_records(tmp_path / "item") == wanted
    write_record(tmp_path / "item", record("convnet", 2, error=7.0))
    wanted[1] = record("convnet", 2, error=7.0)
    assert read_records(tmp_path / "item") == wanted
    assert [values["fold"] for values in lines(tmp_path / "item")] == [0, 2, 10, 0, 0, 0, 0]
    records_file(tmp_path / "item").write_bytes(
        b"".join(line + b"\n" for line in reversed(records_file(tmp_path / "item").read_bytes().splitlines()))
    )
    assert read_records(tmp_path / "item") == wanted
    assert read_records(tmp_path / "nothing") == []


def test_two_processes_that_write_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    other = context.Process(target=write_records, args=(tmp_path / "item", "si_convnet", 20, start))
    other.start()
    write_records(tmp_path / "item", "convnet", 20, start)
    other.join(60)
    assert other.exitcode == 0
    assert [(found.model, found.fold) for found in read_records(tmp_path / "item")] == [
        (model, fold) for model in ("convnet", "si_convnet") for fold in range(20)
    ]


def write_some_checkpoint(folder, made):
    write_checkpoint(folder / "state", Checkpoint({"model": made.model}, [], {}))


@pytest.mark.parametrize(("write", "name"), [(write_record, "item.jsonl"), (write_some_checkpoint, "item/state")])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(write, name, tmp_path, monkeypatch):
    write(tmp_path / "item", record("convnet"))
    before = (tmp_path / name).read_bytes()

    def full(path, data):
        with path.open("wb") as file:
            file.write(data[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "write_bytes", full)
        with pytest.raises(OSError, match=rf"{name}.*No space left on device"):
            write(tmp_path / "item", record("si_convnet"))
    assert (tmp_path / name).read_bytes() == before
    assert not list(tmp_path.rglob("*.part"))
    write(tmp_path / "item", record("si_convnet"))
    assert (tmp_path / name).read_bytes() != before


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "item.jsonl").mkdir()
    with pytest.raises(OSError, match=r"item\.jsonl"):
        read_records(tmp_path / "item")
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match=r"gone\.jsonl"):  # and not taken for no records
        read_records(tmp_path / "gone")


def test_no_flipped_bit_of_a_record_passes(folder):
    path, dice = records_file(folder), random.Random(0)
    data = path.read_bytes()
    for _ in range(200):
        place, bit = dice.randrange(len(data) - 1), dice.randrange(8)  # the last byte is the end of the line
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
        with pytest.raises(ValueError, match=r"line \d of .*item\.jsonl"):
            read_records(folder)


def columns(count=3, **changes):
    """A history of so many epochs, the last one tested."""
    column = {"train_loss": [0.5] * count, "seconds": [1.0] * count, "tested": [count], "test_error": [5.0]}
    return {**column, **changes}


SETTLED = {**config("convnet"), "training": {"epochs": 20, "settled": 0.5, "cosine": False}}
CONTRADICTIONS = {
    "key": ({"error": 5.0}, "`error` is unknown"),
    "type": ({"fold": "0"}, "`fold` must be .*got '0'"),
    "missing": ({"fold": ...}, "`fold` is missing"),
    "above": ({"test_error": 101}, "`test_error` must be a percentage, got 101"),
    "below": ({"test_error": -1}, "`test_error` must be a percentage, got -1"),
    "on the way": ({"history": columns(tested=[1, 3], test_error=[101, 5.0])}, "`test_error` must be a perc.*got 101"),
    "not last": ({"test_error": 4.9}, r"`test_error` \(=4.9\) must be .*\(=5.0\)"),
    "not tested": ({"history": columns(tested=[], test_error=[])}, r"`test_error` \(=5.0\) must be .*\(=None\)"),
    "no error": ({"test_error": None}, "`test_error` must be there"),
    "mean": ({"series": {"test_error": {"x": [1, 2], "y": [5.0, 7.0]}}}, r"`test_error` \(=5.0\) must be .*\(=6.0\)"),
    "series": ({"series": {"a": {"x": [1], "y": []}}}, "`series` .*got 0 for 1 in a"),
    "history": ({"history": {}}, "`train_loss` is missing"),
    "seconds": ({"history": columns(seconds=[1.0])}, "`history` must have seconds for each epoch"),
    "tested": ({"history": columns(tested=[7])}, "`history` must have .*an error for each that was tested"),
    "validated": ({"history": columns(validated=[1])}, "`history` must have .*an error for each"),
    "short": ({"history": columns(2)}, "`history` must have the 3 epochs .*got 2"),
    "long": ({"history": columns(4)}, "`history` must have the 3 epochs .*got 4"),
    "not settled": ({"config": SETTLED, "history": columns(10, train_loss=[0.6] * 10)}, "20 epochs .*got 10"),
    "settled early": ({"config": SETTLED, "history": columns(9)}, "20 epochs .*got 9"),
    "config": ({"config": {}}, r"`config` must have the section data, got \[\]"),
    "setting": ({"config": {**config("convnet"), "network": {"maps": [0]}}}, "`network.maps` must be .*got 0"),
    "together": ({"runs_together": 0}, "`runs_together` must be from 1 to 1000, got 0"),
    "all together": ({"runs_together": 1001}, "`runs_together` must be from 1 to 1000, got 1001"),
    "device": ({"environment": {}}, "`environment` must name the device, got None"),
    "two lines": ({"a\nb\x1b[31m" + 10_000 * "x": 1}, r"`a b\\x1b\[31mxxx"),
}


def write_line(path, values, changes):
    """Append a line with other values and the checksum that belongs to them."""
    values = {key: value for key, value in {**values, **changes}.items() if key != "checksum" and value is not ...}
    line = msgspec.json.encode({**values, "checksum": checksum(values)})
    path.write_bytes(path.read_bytes() + line + b"\n")


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_record_that_contradicts_itself_is_refused_by_line(changes, message, folder):
    (values,) = lines(folder)
    write_line(records_file(folder), {**values, "model": "si_convnet"}, changes)
    with pytest.raises(ValueError, match=rf"^line 2 of .*item\.jsonl .*{message}") as refusal:
        read_records(folder)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 600
    with pytest.raises(ValueError, match=rf"^line 2 of .*item\.jsonl .*{message}"):
        write_record(folder, record("convnet", 1))  # nor is it overwritten


def test_a_history_may_end_early_where_the_loss_has_settled(folder):
    (values,) = lines(folder)
    write_line(records_file(folder), values, {"fold": 1, "config": SETTLED, "history": columns(10)})
    assert [len(found.history) for found in read_records(folder)] == [3, 10]


@pytest.mark.parametrize(
    "line", [b"[]", b"{}", b"", b"[" * 100_000, b'{"fold":0}', b"\xff"], ids=lambda line: line[:10]
)
def test_a_line_that_is_no_record_is_refused_by_its_number(line, folder):
    path = records_file(folder)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(ValueError, match=r"^line 2 of .*item\.jsonl"):
        read_records(folder)


def test_a_run_that_stands_twice_is_refused_by_the_later_line(folder):
    path = records_file(folder)
    (values,) = lines(folder)
    write_line(path, values, {"fold": 1})
    write_line(path, values, {"parameters": 11})
    with pytest.raises(ValueError, match=r"^line 3 of .*convnet-fold0-seed0, as line 1 "):
        read_records(folder)


def test_the_committed_records_can_be_read_and_are_small():
    names = {path.stem for path in RESULTS.glob("*.jsonl")}
    assert names >= {"table1", "fig4a", "compare-cifar"}
    for name in ("fig5a", "cost", "compare-cifar"):
        assert len(read_records(RESULTS / name)) >= 12
    assert max(len(line) for path in RESULTS.glob("*.jsonl") for line in path.read_bytes().splitlines()) < 20_000
