"""What a user does with a converted network, step by step; each step raises `FailedError`, or whatever goes wrong.

A step is a function of a `Case`. Most make sense for the plain network, too: what fails there as well is not ours.
"""

import copy
import io
import logging
import pickle
import re
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

import scaleconv
from scaleconv import ScaleInvariant, SIConv1d, SIConv2d, SIConv3d, calibrate, convert, revert, skipped
from zoo.networks import ENTRIES, Entry

SCALES = (1, 0.7, 1.5)
TRACED = (1, 0.7)  # where the network is traced, which takes long
LAYERS = (SIConv1d, SIConv2d, SIConv3d)
SECONDS = 180  # of processor time, for a step
OURS = str(Path(scaleconv.__file__).parent)

PASSED, LEFT_OUT, FAILED, FAILED_PLAIN = "✓", "–", "✗", "plain ✗"


class FailedError(Exception):
    """A step ran, and found something wrong."""


class LeftOutError(Exception):
    """A step does not apply, for the reason given."""


@dataclass(frozen=True)
class Outcome:
    """What became of a step: a mark, and the reason or what there is to say about it."""

    mark: str
    note: str = ""


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        name: the head of its column.
        run: does it with a case, and may return a note.
        plain: whether it makes sense for a plain network.
    """

    name: str
    run: Callable[["Case"], str | None]
    plain: bool


STEPS: dict[str, Step] = {}


def step(name, plain=True):
    """Add a function to the steps."""

    def add(run):
        STEPS[name] = Step(name, run, plain)
        return run

    return add


class Called(nn.Module):
    """A network that takes and returns one tensor: another one with its `call`."""

    def __init__(self, network, call):
        super().__init__()
        self.network, self.call = network, call

    def forward(self, batch):
        return self.call(self.network, batch)


class Case:
    """A network, converted or plain, for one step after the other: each takes a fresh copy.

    Args:
        entry: the network.
        converted: False for the plain one.
    """

    def __init__(self, entry: Entry, converted: bool = True):
        self.entry, self.converted = entry, converted

    @cached_property
    def plain(self):
        return self.entry.build()

    @cached_property
    def expected(self):
        """What the plain network answers."""
        return self.answer(self.plain)

    def network(self, scales=SCALES):
        """A fresh copy."""
        if not self.converted:
            return copy.deepcopy(self.plain)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of layers that are left alone; the first step tells of them
            return convert(self.plain, include=self.entry.include, scales=scales)

    def single(self):
        """A fresh copy that takes and returns one tensor."""
        network = self.network(TRACED)
        return network if self.entry.call is None else Called(network, self.entry.call).eval()

    def batch(self, images=2):
        return self.entry.batch(images)

    def answer(self, network, batch=None):
        """What a network answers in evaluation."""
        with torch.no_grad():
            return self.entry.run(network.eval(), self.batch() if batch is None else batch)

    def called_layers(self, network):
        """The names of the scale-invariant layers that a pass enters."""
        names = []
        layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, LAYERS)}
        handles = [
            layer.register_forward_hook(lambda *_, name=name: names.append(name)) for name, layer in layers.items()
        ]
        self.answer(network)
        for handle in handles:
            handle.remove()
        return set(names)

    def tool(self, function, *arguments, **options):
        """Call a tool of ours; with `call` where the network needs it."""
        if self.entry.call is not None:
            options["call"] = self.entry.call
        try:
            return function(*arguments, **options)
        except (TypeError, ValueError) as error:
            # Tools for images may refuse other inputs, if they say so; it is no answer that nothing was converted.
            if len(self.entry.size) != 3 and is_message(error) and "convert it first" not in str(error):
                raise LeftOutError(first_line(error).split(", got")[0]) from None
            raise


def require(holds, otherwise):
    if not holds:
        raise FailedError(otherwise)


def distance(found, expected):
    """Relative, of all numbers together."""
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm().clamp(min=1e-12))


def require_close(found, expected, most, what):
    require(found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, not {tuple(expected.shape)}")
    away = distance(found, expected)
    require(away <= most, f"{what}: off by {away:.1e}")  # also if it is NaN


def first_line(error):
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip()  # without colours
    return text.splitlines()[0] if text else ""


def is_message(error):
    """Whether it is a message of ours that names an argument, not somebody's crash."""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ValueError | TypeError) and "`" in str(error) and raised_in.startswith(OURS)


# The steps, in the order of the columns.


@step("convert", plain=False)
def convert_it(case):
    """Same shape, other numbers; what is left alone is told."""
    before = copy.deepcopy(case.plain.state_dict())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        network = convert(case.plain, include=case.entry.include, scales=SCALES)
    require(any(isinstance(layer, LAYERS) for layer in network.modules()), "no layer is scale-invariant")
    found = case.answer(network)
    require(found.shape == case.expected.shape, f"shape {tuple(found.shape)}, not {tuple(case.expected.shape)}")
    require(found.isfinite().all(), "the answer is not finite")
    require(distance(found, case.expected) > 1e-6, "answers as the plain network does")
    after = case.plain.state_dict()
    require(all(torch.equal(before[name], after[name]) for name in before), "the plain network changed")
    reasons = sorted({reason for reason in skipped(network).values() if not re.match("1(×1)* kernel", reason)})
    require(bool(reasons) or not any("left alone" in str(each.message) for each in seen), "warns without a reason")
    return f"left alone: {'; '.join(reasons)}" if reasons else None


def loss_of(output):
    """A number that depends on every output: the length of an output may be 1 by construction, as in a descriptor."""
    return (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).square().mean()


def with_gradient(run, network, batch):
    """What the network answers, and the gradient of a loss by all parameters that have one."""
    output = run(network, batch)
    loss_of(output).backward()
    grads = [parameter.grad for parameter in network.parameters()]
    return output.detach(), torch.cat([grad.flatten() for grad in grads if grad is not None])


def train_two_steps(case, layout):
    torch.manual_seed(0)
    network = case.network().train().to(memory_format=layout)
    batch = case.batch().contiguous(memory_format=layout)
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3)
    for _ in range(2):
        optimiser.zero_grad()
        loss = loss_of(case.entry.run(network, batch))
        require(loss.isfinite(), "the loss is not finite")
        loss.backward()
        grads = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        require(all(grad.isfinite().all() for grad in grads), "a gradient is not finite")
        optimiser.step()
    kinds = LAYERS if case.converted else nn.modules.conv._ConvNd
    weights = [layer.weight for layer in network.modules() if isinstance(layer, kinds)]
    require(any(w.grad is not None and w.grad.abs().sum() > 0 for w in weights), "no layer has a gradient")
    require(case.answer(network).isfinite().all(), "the answer is not finite")


@step("train")
def train(case):
    train_two_steps(case, torch.contiguous_format)


@step("channels_last")
def train_channels_last(case):
    """Trains; and answers and derives as the contiguous network does."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(case.batch().ndim)
    if layout is None:
        raise LeftOutError("there is no such layout of sequences")
    train_two_steps(case, layout)
    layouts = [{"memory_format": each} for each in (layout, torch.contiguous_format)]
    found, expected = (
        with_gradient(case.entry.run, case.network().to(**each), case.batch().contiguous(**each)) for each in layouts
    )
    require_close(found[0], expected[0], 1e-4, "the answer in the other layout")
    require_close(found[1], expected[1], 1e-2, "the gradient in the other layout")


@step("state_dict")
def save_and_load(case):
    """A file of the converted network goes into a fresh one, and into the plain one."""
    first, stream = case.network(), io.BytesIO()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.mul_(1.05)  # else a fresh one would be right without loading anything
    torch.save(first.state_dict(), stream)
    stream.seek(0)
    state = torch.load(stream, weights_only=True)
    require(list(state) == list(case.plain.state_dict()), "other names than those of the plain network")
    second = case.network()
    second.load_state_dict(state)
    require(torch.equal(case.answer(second), case.answer(first)), "answers otherwise after loading")
    plain = copy.deepcopy(case.plain)
    plain.load_state_dict(state)
    require(torch.equal(case.answer(plain), case.answer(revert(first))), "the plain network answers otherwise")


@step("copy")
def copy_and_pickle(case):
    network = case.network()
    expected = case.answer(network)
    require(torch.equal(case.answer(copy.deepcopy(network)), expected), "a copy answers otherwise")
    again = pickle.loads(pickle.dumps(network))
    require(torch.equal(case.answer(again), expected), "answers otherwise after pickling")


@step("revert", plain=False)
def revert_it(case):
    back = revert(case.network())
    # A parametrization makes a class of its own for each layer, so names and bases count.
    found, expected = ([type(module) for module in each.modules()] for each in (back, case.plain))
    found, expected = ([(kind.__name__, kind.__mro__[1:]) for kind in kinds] for kinds in (found, expected))
    require(found == expected, "other classes than the plain network")
    require(torch.equal(case.answer(back), case.expected), "answers otherwise than the plain network")


@step("calibrate", plain=False)
def calibrate_it(case):
    """Few steps, which bring the answers no farther from the plain ones."""
    network, images = case.network(), case.batch(32)  # fewer give a warning
    before = copy.deepcopy(network.state_dict())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "left as converted", UserWarning)  # layers that the network does not use
        found = case.tool(calibrate, network, images, steps=2, batch=8, quiet=True)
    require(all(torch.equal(before[name], value) for name, value in network.state_dict().items()), "not in a copy")
    expected = case.answer(case.plain, images)
    now, then = (distance(case.answer(each, images), expected) for each in (found, network))
    require(now <= 1.1 * then, f"off by {now:.2g}, and by {then:.2g} before")  # also if it is NaN


@step("explain", plain=False)
def explain_it(case):
    network = case.network()
    found = case.tool(scaleconv.explain, network, case.batch(1))
    called = case.called_layers(network)
    require(set(found.layers) == called, f"{len(found.layers)} of {len(called)} layers shown")


@step("winners", plain=False)
def look_at_winners(case):
    """Which scale won; how often; and which are not needed, which `convert` takes."""
    network, images = case.network(), case.batch()
    called = case.called_layers(network)
    require(set(case.tool(scaleconv.winners, network, images).maps) == called, "not all layers in `winners`")
    shares = case.tool(scaleconv.scale_usage, network, images).shares
    require({name for name, won in shares.items() if any(won.values())} == called, "not all layers in `scale_usage`")
    if case.batch().ndim != 4:
        return
    advice = case.tool(scaleconv.recommend, network, images, least=0.3, repeats=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cheaper = convert(network, scales=advice.scales)
    layers = dict(cheaper.named_modules())
    taken = {name: layers[name].scales for name in advice.layers}
    require(taken == advice.scales, "`convert` does not take what `recommend` says")


@step("check_scale", plain=False)
def check_scale_of_it(case):
    found = case.tool(scaleconv.check_scale, case.network(), case.batch(), scales=(1, 0.7))
    if case.expected.shape[1] > 1:  # a single map has no predictions
        require(found.consistency[1] == 1, "other predictions at scale 1")
    require(found.distance[1] < 1e-2, f"moved by {found.distance[1]:.1e} at scale 1")


@step("summary", plain=False)
def summarise(case):
    """Of a size, and of images."""
    network, images = case.network(), case.batch()
    layers = sum(isinstance(layer, LAYERS) for layer in network.modules())
    for given in (tuple(images.shape), images):
        found = case.tool(scaleconv.summary, network, given, repeats=0)
        require(sum(bool(row.scales) for row in found.layers) == layers, "not all layers are told of")
        if case.batch().ndim == 4:
            require(found.plain_macs > 0, "no operations counted")
            require(found.macs > found.plain_macs, "no more operations than the plain network")


@step("ScaleInvariant", plain=False)
def pyramid_of_it(case):
    """The plain network in a pyramid: it works, or a message of ours says why not, and what else to do."""
    plain = copy.deepcopy(case.plain)
    module = plain if case.entry.call is None else Called(plain, case.entry.call).eval()
    expected, note, sizes = case.expected, None, ["own", "input"]
    for size in sizes:
        try:
            with torch.no_grad():
                found = ScaleInvariant(module, SCALES, size=size).eval()(case.batch())
            require(found.isfinite().all(), "the answer is not finite")
            require(found.shape == expected.shape, f"shape {tuple(found.shape)}, not {tuple(expected.shape)}")
            break
        except (TypeError, ValueError) as error:
            if not is_message(error):
                raise
            note = first_line(error)
            if size == sizes[-1] or "size='input'" not in str(error):
                raise LeftOutError(note) from None
    require(torch.equal(case.answer(plain), expected), "the network in it is damaged")
    return f"with `size='input'`: {note}" if note else None


@step("export")
def export_it(case):
    network, batch = case.single(), case.batch()
    expected = network(batch)
    with torch.no_grad():
        exported = torch.export.export(network, (batch,))
    require_close(exported.module()(batch), expected, 1e-4, "the exported network")


@step("compile")
def compile_it(case):
    """Traced by dynamo and aot_autograd; forward and backward as without."""
    torch.compiler.reset()
    expected, found = (
        with_gradient(lambda network, batch: network(batch), wrap(case.single()), case.batch())
        for wrap in (lambda network: network, lambda network: torch.compile(network, backend="aot_eager"))
    )
    torch.compiler.reset()
    require_close(found[0], expected[0], 1e-4, "the compiled network")
    require_close(found[1], expected[1], 1e-2, "the gradient of the compiled network")


@step("onnx")
def export_to_onnx(case):
    """Also run, by onnxruntime."""
    if len(case.entry.size) != 3:
        raise LeftOutError("not tried: signals and volumes are exported for all sizes, which takes minutes")
    import onnxruntime

    network, batch = case.single(), case.batch()
    program = torch.onnx.export(network, (batch,), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (name,) = (each.name for each in session.get_inputs())
    found = torch.from_numpy(session.run(None, {name: batch.numpy()})[0])
    require_close(found, network(batch).detach(), 1e-4, "onnxruntime")


# Running them.


@contextmanager
def time_limit(seconds):
    """Raise `FailedError` after so many seconds of processor time; only a main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_):
        raise FailedError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(each, case):
    """One step with one network."""
    try:
        with time_limit(SECONDS):
            return Outcome(PASSED, each.run(case) or "")
    except LeftOutError as reason:
        return Outcome(LEFT_OUT, str(reason))
    except FailedError as reason:
        return Outcome(FAILED, str(reason))
    except Exception as error:
        return Outcome(FAILED, f"{type(error).__name__}: {first_line(error)}")


def run_step(each, entry, case):
    """One step with a converted network; if it fails, with the plain one too."""
    if each.name in entry.without:
        return Outcome(LEFT_OUT, entry.without[each.name])
    outcome = attempt(each, case)
    if outcome.mark == FAILED and each.plain and attempt(each, Case(entry, converted=False)).mark == FAILED:
        return Outcome(FAILED_PLAIN, outcome.note)
    return outcome


def run_network(entry, steps):
    """All these steps with one network, by name; without a converted network there is none to go on with."""
    case, outcomes = Case(entry), {}
    for each in steps:
        if outcomes.get("convert", Outcome(PASSED)).mark == FAILED:
            outcomes[each.name] = Outcome(LEFT_OUT, "not converted")
        else:
            outcomes[each.name] = run_step(each, entry, case)
    return outcomes


def run_by_name(name, steps):
    """The same in a process of its own, and how many seconds of processor time it took."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    start = time.process_time()
    outcomes = run_network(ENTRIES[name], [STEPS[each] for each in steps])
    return outcomes, time.process_time() - start
