"""One damaged file each: it is refused in a line that names it, or read as if it were whole.

A damaged file differs from a whole one in its bytes. A forged one is whole, with the right checksum, and says something
that no program has written: it may be read if what is read is what it says. Both are read with bounded memory and time.
"""

import gzip
import hashlib
import io
import json
import resource
import signal
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from unittest import mock

import msgspec
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from fuzz.damage import damaged_table, write_damaged
from helpers.records import record
from helpers.sources import make_source, random_examples
from helpers.toml import to_toml
from scaleconv.data import embedded_digits, make_set, read_folder, read_image, read_mask, read_masked_images, read_set
from scaleconv.data.decoding import decode, decode_mask
from scaleconv.data.idx import IdxFile, read_idx
from scaleconv.data.sets import _seal, write_set
from scaleconv.experiments import Epoch, NetworkSettings, Settings, TrainingSettings, load
from scaleconv.experiments import items as items_module
from scaleconv.experiments.checkpoint import Checkpoint, _checksum, load_checkpoint, read_checkpoint, write_checkpoint
from scaleconv.experiments.compare import own_settings
from scaleconv.experiments.explanation import load_network
from scaleconv.experiments.items import CONFIGS, Point, Run, load_item, read_items
from scaleconv.experiments.processes import make_fabric
from scaleconv.experiments.records import Columns, checksum, read_records, records_file, write_record
from scaleconv.experiments.settings import FolderData
from scaleconv.experiments.sources import images_of
from scaleconv.experiments.tables import make_rows
from scaleconv.experiments.trainer import Trainer
from scaleconv.models import Classifier

MOST_BYTES = 2**30  # of address space, beyond what the process has already
MOST_SECONDS = 20  # of the processor; ten times as many by the clock, where other work goes on beside
LONGEST_MESSAGE = 600
MODES = {
    "png": ("L", "RGB", "RGBA", "P", "1", "I;16"),
    "jpg": ("L", "RGB", "CMYK"),
    "bmp": ("L", "RGB", "P"),
    "webp": ("RGB", "RGBA"),
}


def run(seed, number, device="cpu"):
    """Run a case; return its kind, and raise what is wrong with it."""
    dice = Random(f"{seed} {number}")
    kind = dice.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    with tempfile.TemporaryDirectory(prefix="scaleconv-fuzz-") as folder, limited():
        KINDS[kind][1](dice, Path(folder))
    return kind


@contextmanager
def limited():
    """Memory and time are bounded: what takes more ends in an error that no reader may raise."""

    def late(*_):
        raise AssertionError("took too long")

    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    timers = {signal.ITIMER_PROF: (signal.SIGPROF, 1), signal.ITIMER_REAL: (signal.SIGALRM, 10)}
    before = {number: signal.signal(number, late) for number, _ in timers.values()}
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, limits[1]))
    for timer, (_, times) in timers.items():
        signal.setitimer(timer, times * MOST_SECONDS)
    try:
        yield
    finally:
        for timer, (number, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
        resource.setrlimit(resource.RLIMIT_AS, limits)


def read_or_refuse(read, path, *others):
    """What a file is read as; None if it is refused as it should be."""
    try:
        return read(path, *others)
    except (ValueError, OSError) as error:
        check_message(str(error), path.name)
    return None


def check_message(text, name):
    assert name in text, f"does not name {name}: {text[:300]}"
    assert text.isprintable(), f"is not one line of text: {text[:300]!r}"
    assert len(text) <= LONGEST_MESSAGE, f"is {len(text)} characters long: {text[:300]}"


def same(found, expected, what):
    """Tensors equal in name, type, shape and every bit."""
    assert found.keys() == expected.keys(), f"{what}: other names"
    for name, tensor in expected.items():
        other = found[name]
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), f"{what}: another {name}"
        assert other.numpy().tobytes() == tensor.numpy().tobytes(), f"{what}: another {name}"


def check_idx(dice, folder):
    values = np.random.default_rng(dice.randrange(8)).integers(0, 10, dice.choice([(40,), (5, 7, 6)]), dtype=np.uint8)
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    plain = bytes((0, 0, 8, values.ndim)) + sizes + values.tobytes()
    packed = gzip.compress(plain, mtime=0)
    stored = dice.choice([plain, packed])
    expected = IdxFile("digits", values.shape, hashlib.md5(plain).hexdigest())
    path = folder / "digits-idx-ubyte"
    write_damaged(dice, path, stored, dice.choice([plain, packed]))
    found = read_or_refuse(read_idx, path, expected)
    if found is not None:
        assert np.array_equal(found[0], values), "other values were read"


HISTORY = [Epoch(1, 2.3, 40.0, 1.0), Epoch(2, 1.0, None, 1.0, 30.5), Epoch(3, 0.5, 12.5, 1.0)]
RECORDS = (  # of all kinds
    record("convnet", error=12.5, history=HISTORY),
    record("si_convnet", error=20.0, series={"test_error": ((0.5, 1.0), (30.0, 10.0))}, kind="test_scales"),
    record("rbm", fold=2, error=12.5, history=HISTORY),
    record("conv2d", error=None, point="layer1", x=1.5, series={"operations": ((1, 2), (1, 8))}),
)


@cache
def whole_records(numbers):
    """A file of records as bytes, and as it is read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "item"
        for number in numbers:
            write_record(folder, RECORDS[number])
        return records_file(folder).read_bytes(), read_records(folder)


def draw_records(dice):
    return whole_records(tuple(dice.sample(range(4), dice.choice([1, 1, 2, 4]))))


def check_record(dice, folder):
    """A file may lose whole lines unnoticed; each line that is read must have been written."""
    data, expected = draw_records(dice)
    other, others = draw_records(dice)
    write_damaged(dice, folder / "item.jsonl", data, other)
    found = read_or_refuse(lambda path: read_records(path.with_suffix("")), folder / "item.jsonl")
    for each in found or ():
        assert each in (*expected, *others), "another record was read"


def check_forged_record(dice, folder):
    data, (expected,) = whole_records((dice.randrange(4),))
    table = json.loads(data)
    if forged := dice.random() < 0.7:
        del table["checksum"]
    table = damaged_table(dice, table)
    if forged:
        table["checksum"] = forged_checksum(table)
    path = folder / "item.jsonl"
    path.write_text(json.dumps(table) + "\n", encoding="utf-8")
    found = read_or_refuse(lambda path: read_records(path.with_suffix("")), path)
    if found is None:
        return
    (found,) = found
    assert forged or found == expected, "another record was read"
    assert [entry.train_loss for entry in found.history] == table["history"]["train_loss"], "not the file's history"
    assert found.config == table["config"], "not the settings of the file"
    if found.test_error is not None:
        (row,) = make_rows([found], {}, found.model)
        assert row.ours.mean == found.test_error


def forged_checksum(table):
    """The right one, where there can be one: not every text or number can be written."""
    try:
        return checksum(msgspec.json.decode(json.dumps(table)))
    except (ValueError, OverflowError, RecursionError):
        return ""


NETWORK = NetworkSettings(name="convnet", variant="converted", scales=(0.7, 1.0), maps=(2, 3), hidden=4)
DATA = FolderData(fingerprint="0", train=4, val=0, test=1, classes=("cat", "dog"), channels=1, size=(20, 20))
RECIPE = TrainingSettings(epochs=3, batch=2, optimizer="adamw")
RUNS = {
    "method": Run("si_convnet", Point(Settings(network=NetworkSettings(maps=(2, 3), hidden=4))), 0, 0),
    "weights": Run("converted", Point(own_settings(DATA, NETWORK, RECIPE)), 0, 0),
}
RUNS["training"] = RUNS["weights"]


@cache
def whole_checkpoint(kind):
    """A checkpoint as bytes, and as it is read: of anything, of the weights of a run, of a run in training."""
    history = [Epoch(1, 2.3, None, 1.0), Epoch(2, 1.0, 12.5, 1.0)]
    if kind == "plain":
        torch.manual_seed(0)
        tensors = {"a": torch.randn(3, 2), "b": torch.arange(4), "c": torch.tensor(float("nan"))}
        made = Checkpoint({"model": "convnet", "fold": 0}, history, tensors)
    elif kind == "training":
        made = Checkpoint(RUNS[kind].identity(), history, trained().state())
    else:
        made = Checkpoint(RUNS[kind].identity(), history, classifier(RUNS[kind]).state_dict())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.safetensors"
        write_checkpoint(path, made)
        return path.read_bytes(), load_checkpoint(path)


def classifier(run):
    images, classes = images_of(run.settings.data)
    return Classifier(run.make(images), (0.5,), (0.25,), classes)


def trained(steps=2):
    source = make_source(random_examples(4, (20, 20), 2), classes=2)
    training = Trainer(classifier(RUNS["training"]), source, RECIPE, make_fabric("cpu"), seed=0, fold=0)
    training.begin_epoch(1)
    for _ in range(steps):
        training.step()
    return training


def check_checkpoint(dice, folder):
    kind = dice.choice(["plain", "plain", "plain", "method", "weights", "training"])
    data, expected = whole_checkpoint(kind)
    path = folder / "run.safetensors"
    other = whole_checkpoint("plain")[0] if dice.random() < 0.5 else whole_set()[0]
    write_damaged(dice, path, data, other)
    found = read_or_refuse(load_checkpoint, path)
    if found is not None and path.read_bytes() != other:  # a whole file of another run is one
        assert (found.run, found.history) == (expected.run, expected.history), "another run was read"
        same(found.tensors, expected.tensors, "checkpoint")
    if kind != "plain":
        check_use(path, kind, expected)


def check_use(path, kind, expected):
    """What a checkpoint is read for: a network, or the state of one in training."""
    if kind == "training":
        training = trained(0)
        found = read_or_refuse(read_checkpoint, path, expected.run)
        if found is None or read_or_refuse(lambda path: training.load_state(path, found.tensors) or True, path) is None:
            return
        state = training.state()
        for name in state.keys() - found.tensors.keys():
            assert name.partition(".")[0] in ("step", "exp_avg", "exp_avg_sq", "random"), f"{name} was missing"
            assert name == "random" or not state[name].any(), f"{name} is not as before the first step"
        stored = {name: tensor for name, tensor in found.tensors.items() if name != "random"}
        same({name: state[name] for name in stored}, stored, "training")
        return
    found = read_or_refuse(load if kind == "weights" else lambda path: load_network(path)[0], path)
    if found is not None:
        same(found.state_dict(), load_checkpoint(path).tensors, "network")


def check_forged_checkpoint(dice, folder):
    kind = dice.choice(["method", "weights", "training"])
    _, whole = whole_checkpoint(kind)
    tensors = dict(whole.tensors)
    header = {"run": whole.run, "history": msgspec.to_builtins(Columns.of(whole.history))}
    if dice.random() < 0.5:
        damage_tensors(dice, tensors)
    else:
        header = damaged_table(dice, header)
    stored = {name: json.dumps(value) for name, value in header.items()}
    if dice.random() < 0.05:
        stored[dice.choice(list(stored))] = "[" * 100_000
    path = folder / "run.safetensors"
    path.write_bytes(save(tensors, metadata={**stored, "checksum": _checksum(stored, tensors)}))
    found = read_or_refuse(load_checkpoint, path)
    if found is not None:
        same(found.tensors, tensors, "checkpoint")
        assert json.dumps(found.run) == json.dumps(header["run"]), "another run was read"
    check_use(path, kind, whole)


def damage_tensors(dice, tensors):
    """Another shape, type or name of one of them, or none."""
    name = dice.choice(list(tensors))
    tensor, kind = tensors[name], dice.choice(["gone", "renamed", "smaller", "flat", "one", "type", "nan", "more"])
    if kind == "gone":
        del tensors[name]
    elif kind == "renamed":
        tensors[dice.choice(["x", "network.x", "exp_avg.x", "exp_avg", ""])] = tensors.pop(name)
    elif kind == "more":
        tensors[dice.choice(["x", "network.x", "step.x", "exp_avg.network"])] = torch.zeros(2)
    else:
        tensors[name] = {
            "smaller": lambda: tensor[:1].clone() if tensor.dim() else tensor[None],
            "flat": lambda: tensor.flatten().clone(),
            "one": lambda: torch.zeros(1, 1, dtype=tensor.dtype),
            "type": lambda: tensor.to(dice.choice([torch.float64, torch.int32, torch.bool, torch.float16])),
            "nan": lambda: tensor * float("nan") if tensor.is_floating_point() else -tensor,
        }[kind]()


@cache
def whole_set():
    made = make_set(embedded_digits().first(3), size=28)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "set.safetensors"
        write_set(made, path)
        return path.read_bytes(), made


def tensors_of(made):
    return {"images": made.images, "labels": made.labels, "scales": made.scales}


def check_set(dice, folder):
    data, made = whole_set()
    path, forged = folder / "set.safetensors", dice.random() < 0.4
    if forged:
        tensors, parameters = dict(tensors_of(made)), made.parameters.as_dict()
        if dice.random() < 0.5:
            damage_tensors(dice, tensors)
        else:
            parameters = damaged_table(dice, json.loads(json.dumps(parameters)))
        text = json.dumps(parameters)
        if dice.random() < 0.1:
            text = dice.choice(["[" * 100_000, "1" * 5000, "NaN", "[[]]"])
        about = {"format": "scaleconv scaled set 1", "checksum": made.checksum(), "parameters": text}
        path.write_bytes(save(tensors, metadata={**about, "seal": _seal(made.checksum(), text)}))
    else:
        write_damaged(dice, path, data, whole_checkpoint("plain")[0])
    found = read_or_refuse(read_set, path)
    if found is not None:
        same(tensors_of(found), tensors_of(made), "set")
        assert forged or found.parameters == made.parameters, "other parameters were read"


WHOLE_ITEMS = read_items(CONFIGS)


def check_item(dice, folder):
    """An item's file among the others; it has no checksum, so a valid value may be any."""
    files = WHOLE_ITEMS
    name = dice.choice([name for name in files if name not in items_module.STUDIES])
    text = to_toml(files[name])
    path = folder / f"{name}.toml"
    for other, table in files.items():
        if other != name:
            (folder / f"{other}.toml").write_text(to_toml(table), encoding="utf-8")
    if dice.random() < 0.5:
        write_damaged(dice, path, text.encode(), b"x = 1\n")
    else:
        path.write_text(to_toml(damaged_table(dice, files[name])), encoding="utf-8", errors="replace")
    found = read_or_refuse(lambda _: read_items(folder), path)
    if found is None or name not in found:
        return
    with mock.patch.object(items_module, "_FILES", found):
        for preset in ("paper", "quick"):
            read_or_refuse(lambda _, preset=preset: load_item(name, preset), path)


@cache
def whole_image(kind, mode, number, size=(12, 10)):
    random = np.random.default_rng(number)
    image = Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8))
    image = image.convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 1 + number % 8
    stream, options = io.BytesIO(), {"exif": exif} if kind != "bmp" and number % 2 else {}
    image.save(stream, {"jpg": "jpeg"}.get(kind, kind), **options)
    return stream.getvalue()


@cache
def whole_mask(number, size=(12, 10)):
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 3, size, dtype=np.uint8)).save(stream, "png")
    return stream.getvalue()


def draw_image(dice):
    kind = dice.choice(list(MODES))
    return kind, whole_image(kind, dice.choice(MODES[kind]), dice.randrange(10))


def check_image(dice, folder):
    kind, data = draw_image(dice)
    path = folder / f"photo.{kind}"
    write_damaged(dice, path, data, draw_image(dice)[1])
    pixels = read_or_refuse(read_image, path)
    if pixels is not None:
        assert pixels.dtype == torch.float32
        assert pixels.shape[0] in (1, 3)
        assert (pixels >= 0).all()
        assert (pixels <= 1).all()
    path = folder / "mask.png"
    write_damaged(dice, path, whole_mask(dice.randrange(10)), data)
    numbers = read_or_refuse(read_mask, path)
    assert numbers is None or (numbers.dtype == torch.int64 and numbers.dim() == 2 and (numbers >= 0).all())


def check_folder(dice, folder):
    """One damaged image in a folder is left out with its reason, or decoded later as it was announced."""
    root = folder / "photos"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for number in range(4):
            (root / name / f"{number}.png").write_bytes(whole_image("png", "L", 2 * number, (8 + (name == "cat"), 8)))
    kind, data = draw_image(dice)
    path = root / "cat" / f"damaged.{kind}"
    write_damaged(dice, path, data, draw_image(dice)[1])
    found = read_folder(root)
    if not path.is_dir():
        check_left_out(found, str(path.relative_to(root)), root)
    assert len(found.images) - any(image.name == "cat/" + path.name for image in found.images) == 8


def check_left_out(found, name, root):
    for each in found.skipped:
        check_message(str(each), Path(name).name)
    for image in found.images:
        if name in (image.name, image.mask):
            decoded = decode(root / image.name, 3, None, "crop")
            assert tuple(decoded.shape) == (3, *image.size), "another size than announced"
            assert not image.mask or tuple(decode_mask(root / image.mask).shape) == image.size
        else:
            assert image.name not in [each.name for each in found.skipped]
    assert bool(found.skipped) != any(name in (image.name, image.mask) for image in found.images)


def check_masked_folder(dice, folder):
    root = folder / "photos"
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    for number in range(5):
        (root / "images" / f"{number}.png").write_bytes(whole_image("png", "L", 2 * number))
        (root / "masks" / f"{number}.png").write_bytes(whole_mask(number))
    part = dice.choice(["images", "masks"])
    path = root / part / "3.png"
    path.unlink()
    write_damaged(dice, path, whole_mask(3) if part == "masks" else whole_image("png", "L", 6), draw_image(dice)[1])
    try:
        found = read_masked_images(root)
    except ValueError as error:  # a mask of classes that no one has
        check_message(str(error), "3.png")
        return
    if not path.is_dir():
        check_left_out(found, f"{part}/3.png", root)
    assert len(found.images) >= 4


KINDS = {
    "idx": (3, check_idx),
    "record": (3, check_record),
    "forged record": (3, check_forged_record),
    "checkpoint": (3, check_checkpoint),
    "forged checkpoint": (3, check_forged_checkpoint),
    "set": (3, check_set),
    "item": (2, check_item),
    "image": (3, check_image),
    "folder": (1, check_folder),
    "masked folder": (1, check_masked_folder),
}
