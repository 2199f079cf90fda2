"""Block sizes by trial: only where they are asked for, once for a layer, and never for a wrong result."""

import json

import pytest
import torch

from kernel_calls import by_kernels, leaves_of, random
from tolerance import assert_close

pytest.importorskip("triton")
from triton.errors import TritonError

from scaleconv.ops import chunks
from scaleconv.ops.cache import BoundedCache
from scaleconv.ops.kernels import call as call_module
from scaleconv.ops.kernels import trial

CALL = {"scales": (1.0, 1.5)}
SHAPES = ((3, 2, 8, 7), (4, 2, 3, 3))


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """The file that is written, in place of the user's."""
    path = tmp_path / "cache" / "blocks.json"
    monkeypatch.setattr(trial, "file", lambda: path)
    monkeypatch.setattr(trial, "_chosen", {})
    return path


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


@pytest.fixture
def tried(monkeypatch):
    """The tables' blocks of every trial; each ends with the first of the others."""
    tables = []

    def first(candidates, prepare, _):
        tables.append(candidates[0])
        assert all(result.isfinite().all() for result in prepare()(candidates[0]))
        return next(blocks for blocks in candidates if blocks != candidates[0])

    monkeypatch.setattr(trial, "fastest", first)
    return tables


def train(leaves, images=None):
    leaves = leaves if images is None else [leaves[0].detach()[:images].requires_grad_(), *leaves[1:]]
    output = by_kernels(leaves, CALL)
    return [output, *torch.autograd.grad(output, leaves, random(*output.shape, seed=9))]


def test_nothing_is_tried_unless_asked_for(tried, kept):
    train(leaves_of(*SHAPES))
    assert not tried
    assert not kept.exists()


@pytest.mark.usefixtures("asked")
def test_each_kernel_of_a_layer_is_tried_once_whatever_the_batch(tried, kept, whole_float32):
    leaves = leaves_of(*SHAPES)
    torch.backends.cudnn.benchmark = False
    expected = train(leaves)
    torch.backends.cudnn.benchmark = True
    for got, true in zip(train(leaves), expected, strict=True):
        assert_close(got.cpu().double(), true.cpu().double(), torch.float32)
    assert len(tried) == 2  # forward, and the gradient of the weight
    train(leaves, images=2)
    assert len(tried) == 2
    found = json.loads(kept.read_text())
    assert [key.split()[0] for key in found] == ["respond", "weight_grad"]


@pytest.mark.usefixtures("asked", "local_filters")
def test_so_are_the_kernels_of_local_filters(tried, kept, whole_float32):
    leaves = leaves_of(*SHAPES)
    got = train(leaves)
    kernels = {key.split()[0] for key in json.loads(kept.read_text())}
    assert kernels == {"add_back_locally", "respond_locally", "weight_grad"}
    torch.backends.cudnn.benchmark = False
    for mine, true in zip(got, train(leaves), strict=True):
        assert_close(mine.cpu().double(), true.cpu().double(), torch.float32)


@pytest.mark.usefixtures("asked")
def test_a_trial_leaves_no_trace_where_levels_compete_with_what_is_there(monkeypatch):
    """The identity is taken whole, so that the kernel starts from responses, which a wrong trial could raise."""
    monkeypatch.setattr(call_module, "library_form", lambda _, level: "whole" if level.scale == 1 else None)
    monkeypatch.setattr(call_module, "CALLS", BoundedCache(entries=8, nbytes=2**30))
    assert_leaves_no_trace(monkeypatch)


@pytest.mark.usefixtures("asked", "local_filters")
def test_nor_among_local_filters(monkeypatch):
    assert_leaves_no_trace(monkeypatch)


def assert_leaves_no_trace(monkeypatch):
    random_state, tried = torch.random.get_rng_state(), []

    def spoil(candidates, prepare, _):
        tried.append([result.fill_(9) for result in prepare()(candidates[0])])
        return candidates[0]

    monkeypatch.setattr(trial, "fastest", spoil)
    leaves = leaves_of(*SHAPES)
    got = train(leaves)
    assert tried
    assert torch.equal(torch.random.get_rng_state(), random_state)
    torch.backends.cudnn.benchmark = False
    assert all(torch.equal(mine, true) for mine, true in zip(got, train(leaves), strict=True))


@pytest.mark.usefixtures("asked")
def test_blocks_that_read_more_zeros_behind_the_taps_agree(monkeypatch):
    agree = []

    def compare(candidates, prepare, _):
        launch = prepare()
        expected = [result.clone() for result in launch(candidates[0])]
        assert len({blocks[2] for blocks in candidates}) > 1  # taps at a time
        for blocks in candidates:
            agree.extend(map(trial._agree, launch(blocks), expected))
        return candidates[0]

    monkeypatch.setattr(trial, "fastest", compare)
    train(leaves_of(*SHAPES))
    assert len(agree) > 10
    assert all(agree)


@pytest.mark.usefixtures("asked")
def test_another_process_knows_what_was_found(tried, kept, monkeypatch):
    train(leaves_of(*SHAPES))
    monkeypatch.setattr(trial, "_chosen", {})
    train(leaves_of(*SHAPES))
    assert len(tried) == 2


@pytest.mark.usefixtures("asked")
def test_what_other_processes_found_meanwhile_stays(kept, monkeypatch):
    monkeypatch.setattr(trial, "fastest", lambda candidates, *_: (kept.write_text('{"other": [1]}'), candidates[0])[1])
    kept.parent.mkdir()
    train(leaves_of(*SHAPES))
    assert "other" in json.loads(kept.read_text())


KEY = ("kernel", (1, torch.float32), torch.device("cpu"))
OTHERS = {
    "kernel": ("another", *KEY[1:]),
    "layer": (KEY[0], (1, torch.bfloat16), KEY[2]),
    "device": (*KEY[:2], torch.device("meta")),
}


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("changed", [*OTHERS, "triton", "kernels"])
def test_what_was_found_counts_for_the_same_only(changed, tried, monkeypatch):
    def choose(kernel, layer, device):
        return trial.choose(kernel, layer, device, (64,), lambda _: [(32,)], lambda: lambda _: ())

    assert choose(*KEY) == choose(*KEY) == (32,)
    assert len(tried) == 1
    if changed == "triton":
        monkeypatch.setattr(trial.triton, "__version__", "0")
    if changed == "kernels":
        monkeypatch.setattr(trial, "VERSION", 0)
    choose(*OTHERS.get(changed, KEY))
    assert len(tried) == 2


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("entry", [None, 5, [1, 2], ["a"] * 6, [63, 16, 63, 4, 1, None]])
def test_an_entry_that_is_none_of_the_candidates_is_found_again(tried, kept, entry, monkeypatch):
    train(leaves_of(*SHAPES))
    kept.write_text(json.dumps(dict.fromkeys(json.loads(kept.read_text()), entry)))
    monkeypatch.setattr(trial, "_chosen", {})
    train(leaves_of(*SHAPES))
    assert len(tried) == 4


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("damage", ["{", "[]"])
def test_a_damaged_file_is_made_again(tried, kept, damage):
    kept.parent.mkdir()
    kept.write_text(damage)
    train(leaves_of(*SHAPES))
    assert len(json.loads(kept.read_text())) == len(tried) == 2


@pytest.mark.usefixtures("asked")
def test_without_a_place_to_write_the_process_remembers(tried, kept):
    kept.parent.write_text("a file where the directory should be")
    train(leaves_of(*SHAPES))
    train(leaves_of(*SHAPES))
    assert len(tried) == 2
    assert not list(kept.parent.parent.glob("*.part"))


@pytest.mark.usefixtures("asked")
def test_deterministic_algorithms_are_those_of_the_tables(tried):
    torch.use_deterministic_algorithms(True)
    try:
        train(leaves_of(*SHAPES))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not tried


@pytest.mark.usefixtures("asked")
def test_nothing_is_tried_while_a_graph_is_captured(tried, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(trial, "_name", str)
    table = (64, 4)
    assert trial.choose("kernel", (1,), torch.device("cuda"), table, lambda _: [(32, 4)], dict) == table
    assert not tried


TABLE, RIGHT, CLOSE, WRONG, OTHER_WINNERS, NOTHING = (1,), (2,), (3,), (4,), (5,), (6,)
BROKEN = {(7,): TritonError("out of resources"), (8,): RuntimeError("PassManager::run failed")}
TIMES = {TABLE: 100.0, RIGHT: 90.0, CLOSE: 98.0, WRONG: 10.0, OTHER_WINNERS: 10.0, NOTHING: 10.0}


def launch(blocks):
    if blocks in BROKEN:
        raise BROKEN[blocks]
    result, winner = torch.arange(-50.0, 50.0), torch.arange(100, dtype=torch.uint8)
    winner[0] += blocks != TABLE  # rounding decides a few
    winner[50:] += blocks == OTHER_WINNERS
    return result * {WRONG: 1.1, NOTHING: torch.nan}.get(blocks, 1 + 1e-3), winner


@pytest.fixture
def clock(monkeypatch):
    """Every launch takes its time of `TIMES`."""
    monkeypatch.setattr(trial, "_milliseconds", lambda call, _: (call(), TIMES[call.args[0]])[1])


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("others", "best"),
    [
        ([RIGHT, CLOSE], RIGHT),
        ([CLOSE], TABLE),  # not enough to leave what is known
        ([WRONG, RIGHT], RIGHT),
        ([OTHER_WINNERS, RIGHT], RIGHT),
        ([*BROKEN, NOTHING], TABLE),
        ([], TABLE),
    ],
)
def test_the_fastest_that_is_right_is_taken(others, best):
    assert trial.fastest([TABLE, *others], lambda: launch, torch.device("cpu")) == best


def test_a_launch_knows_nothing_of_the_one_before_it():
    codes, inputs = torch.tensor([3, 5], dtype=torch.int32), (torch.zeros(50), torch.zeros(50, dtype=torch.uint8))
    given = torch.zeros(50)

    def launch(blocks, numbers, winners, total):
        total += numbers * winners

    attempt = trial.on_random_numbers(launch, codes, inputs, (given,))
    (first,) = (result.clone() for result in attempt((1,)))
    assert torch.equal(attempt((1,))[0], first)
    assert first.unique().numel() > 40
    assert not given.any()


@pytest.mark.usefixtures("asked")
def test_without_room_for_a_trial_the_table_counts_in_this_process(kept):
    prepared = []

    def prepare():
        prepared.append(1)
        raise torch.OutOfMemoryError

    for _ in range(2):
        assert trial.choose("kernel", (1,), torch.device("cpu"), TABLE, lambda _: [RIGHT], prepare) == TABLE
    assert len(prepared) == 1
    assert not kept.exists()


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("name", ["respond", "weight_grad"])
def test_zeros_of_a_layer_tell_a_trial_nothing(name, monkeypatch):
    """Weights or gradients that are zero at first would let any blocks pass."""
    largest = []

    def look(candidates, prepare, _):
        largest.extend(float(result.abs().max()) for result in prepare()(candidates[0]) if result.is_floating_point())

    monkeypatch.setattr(trial, "fastest", look)
    leaves = [torch.zeros_like(leaf).requires_grad_() for leaf in leaves_of(*SHAPES)]
    output = by_kernels(leaves, CALL)
    if name == "weight_grad":
        torch.autograd.grad(output, leaves, torch.zeros_like(output))
    assert len(largest) == {"respond": 1, "weight_grad": 2}[name]
    assert min(largest) > 0


def test_a_timing_waits_for_the_device_and_is_of_one_launch(monkeypatch):
    events, now = [], iter(range(0, 1000, 8))
    monkeypatch.setattr(trial, "_wait", lambda _: events.append("wait"))
    monkeypatch.setattr(trial.time, "perf_counter", lambda: (events.append("clock"), next(now))[1])
    assert trial._milliseconds(lambda: events.append("launch"), torch.device("cpu")) == 8000 / trial.LAUNCHES
    assert events == trial.TIMINGS * ["wait", "clock", *trial.LAUNCHES * ["launch"], "wait", "clock"]


def test_every_alternative_gives_the_same(whole_float32, monkeypatch):
    leaves, expected = leaves_of((2, 1, 5, 6), (3, 1, 3, 3)), None
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(chunks, "SIDE_BY_SIDE", 1)
    monkeypatch.setattr(trial, "_read", dict)
    for index in (0, 1, -1):
        monkeypatch.setattr(trial, "_chosen", {})
        monkeypatch.setattr(trial, "fastest", lambda candidates, *_, at=index: candidates[at])
        got = train(leaves)
        expected = expected or got
        for mine, true in zip(got, expected, strict=True):
            assert_close(mine.cpu().double(), true.cpu().double(), torch.float32)
