"""Make a converted network answer as the plain one did, from images without labels: statistics first, then weights.

The maximum over scales raises every response and makes it denser, so the layers behind see what they were not trained
on. First the mean and the deviation of every channel are brought back (`match`). Then the weights are fitted: a few
steps of regression to the outputs of all plain layers. A tenth of the images is held out: whichever network answers
those most like the plain one is returned, the converted, the matched or a fitted one. So few images do no harm.
"""

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.checks import check_count, check_flag
from ..ops.torch_private import BatchNorm, tree_map
from .convert import Network, copy_network, revert
from .layers import SIConv2d
from .match import LEAST, match_statistics
from .observe import Call, batches_of, check_call, describe, evaluating, find_layers, images_of, remedy
from .paired import Pair, Seen

DEAD = 0.01  # relative to the mean square of its layer; a channel that varies less counts less in the regression
RATE = 0.06  # of a step, relative to the root mean square of the parameter
MEASURED = 4  # batches for the statistics
FEW, FITTED = 32, 16  # images; with fewer than these there is a warning, and the weights are not fitted
KEPT = 4096  # images of a DataLoader that are kept in memory
HELD_OUT = (8, 128)  # a tenth of the images, within these limits, and at most half of them
CHECKED = 20  # steps from one look at the held-out images to the next
PATIENCE = 80  # steps without a smaller error on them, after which no more are made


def calibrate(
    model: Network,
    images: Any,
    *,
    reference: nn.Module | None = None,
    steps: int = 300,
    batch: int = 32,
    call: Call | None = None,
    inplace: bool = False,
    quiet: bool = False,
) -> Network:
    """Return the converted network with its layers fitted to the answers of the plain one.

    A network that was trained before it was converted needs this, fine-tuning, or both: see docs/calibration.md.

    Args:
        model: what `convert` returned, in float32 or float64; half precision comes after this.
        images: (N, C, H, W), as the network takes them, or a `DataLoader` or another iterable of batches, of which the
            first 4,096 images are kept in memory. A thousand will do, without labels. Fewer than 32 give a warning, and
            fewer than 16 only match the statistics.
        reference: the plain network; None for `revert(model)`, which is right as long as the network was not changed
            since it was converted.
        steps: of the regression, at most; 0 matches the statistics only. It ends when the outputs for the held-out
            images, a tenth of all, come no nearer to the plain ones.
        batch: images of a step. The statistics are taken from four times as many at once.
        call: a function of the model and a batch that returns the tensor to compare, for a network that takes or
            returns more than a tensor. Without it, the network is given the images of a batch, and if it returns no
            tensor, only its layers are compared.
        inplace: change the network itself instead of a copy.
        quiet: without progress on standard error: a bar in a terminal or a notebook, else a line every ten seconds.

    Returns:
        The network, with other weights and biases in its scale-invariant layers, other statistics in its BatchNorm, and
        nothing else changed. `revert` does not bring back the plain weights: keep the plain network or its state_dict.
        On the held-out images its answers are at least as near to the plain ones as those of `model`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument that breaks its rule, a network without `SIConv2d`, or a reference without its layers.

    Example:
        >>> from scaleconv import convert
        >>> plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        >>> network, images = convert(plain, include="*"), torch.rand(64, 3, 20, 20)
        >>> calibrated = calibrate(network, images, steps=60, quiet=True)
        >>> def error(other):
        ...     return (other(images) - plain(images)).square().mean()
        >>> bool(error(calibrated) < error(network))
        True
    """
    find_layers(model)
    check_count("steps", steps, least=0)
    check_count("batch", batch)
    check_call(call)
    check_flag("inplace", inplace)
    check_flag("quiet", quiet)
    if not isinstance(reference, nn.Module | None):
        raise TypeError(f"`reference` must be a torch.nn.Module, got {type(reference).__name__}")
    with torch.inference_mode(False):  # a caller's would make copies that take no gradients
        network = copy_network(model)  # running a network may change it, so those given are never run
        pair = Pair(revert(model) if reference is None else copy_network(reference), network, call)
        with evaluating(pair.plain, network), Progress(steps, quiet) as progress:
            pair.check()
            found = _search(pair, _gather(images, batch, call), steps, batch, progress)
            progress.end(found + ("" if inplace else "; returned in a copy, the network given is unchanged"))
    if not inplace:
        return network
    for ours, theirs in zip(_adjusted(model), _adjusted(network), strict=True):
        with torch.inference_mode(ours.is_inference()), torch.no_grad():
            ours.copy_(theirs)
    return model


@dataclass(frozen=True)
class Examples:
    """Images one by one, to be joined to batches; or, where they cannot be, batches as they came."""

    fitted: list[Any]
    held_out: list[Any]
    single: bool
    few: bool  # too few to fit weights to, and too few held out to notice that

    def batches(self, parts: list[Any], size: int) -> list[Any]:
        starts = range(0, len(parts), size)
        return [torch.cat(parts[start : start + size]) for start in starts] if self.single else parts

    def drawn(self, size: int, draws: torch.Generator) -> Any:
        """A batch of the images to fit, drawn at random."""
        places = torch.randint(len(self.fitted), (size,), generator=draws, device="cpu").tolist()
        return self.batches([self.fitted[place] for place in places], size)[0]


def _gather(images: Any, batch: int, call: Call | None) -> Examples:
    """Keep the batches, and hold out a tenth of the images, drawn at random: a set may be sorted by class."""
    parts: list[Any] = []
    count, shapes = 0, set()
    for each in batches_of(images, batch):
        part = images_of(each) if call is None else each
        try:
            found = images_of(part)
        except (TypeError, ValueError):  # such as a list of images of many sizes, which is for `call` to understand
            found = None
        if found is not None and not found.isfinite().all():
            raise ValueError("`images` must hold finite numbers, got NaN or infinity")
        shapes.add(None if found is None or found is not part else found.shape[1:])
        parts.append(tree_map(_usable, part))
        count += batch if found is None else len(found)
        if count >= KEPT and not isinstance(images, Tensor):
            break
    single = len(shapes) == 1 and None not in shapes
    if single:
        parts = [image for part in parts for image in part.split(1)]
    if count < FEW or len(parts) == 1:
        given = "one batch" if count >= FEW else f"{count} image{'s' * (count > 1)}"
        done = "weights fitted to them may be poor" if count >= FITTED else "only statistics are matched"
        done = done if len(parts) > 1 else "nothing is changed"
        warnings.warn(f"`images` holds {given}, too few: {done}. About a thousand will do", stacklevel=3)
    share = min(max(count / 10, HELD_OUT[0]), HELD_OUT[1]) / count
    held_out = min(max(round(share * len(parts)), 1), len(parts) // 2)
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(0), device="cpu").tolist()
    shuffled = [parts[place] for place in order]
    return Examples(shuffled[held_out:], shuffled[:held_out], single, few=count < FITTED)


def _usable(leaf: Any) -> Any:
    """A tensor of inference mode takes no part in derivatives; a copy does."""
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf


def _fitted(network: nn.Module) -> list[nn.Parameter]:
    """The parameters of the scale-invariant layers; one that several share is there once."""
    return list(dict.fromkeys(each for layer in find_layers(network).values() for each in layer.parameters()))


def _adjusted(network: nn.Module) -> list[Tensor]:
    """All that calibration changes."""
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    statistics = [statistic for norm in norms for statistic in (norm.running_mean, norm.running_var)]
    return [*_fitted(network), *(statistic for statistic in statistics if statistic is not None)]


class Best:
    """The state of a network in which it answers the held-out images most like the plain one.

    It is the answer that a user sees. Where that cannot be compared, it is the outputs of the layers.
    """

    def __init__(self, pair: Pair, held_out: list[Any]) -> None:
        self.pair, self.held_out, self.tensors = pair, held_out, _adjusted(pair.network)
        self.error, self.title, self.state = inf, "", [tensor.clone() for tensor in self.tensors]

    def look(self, title: str) -> bool:
        """Measure the network as it is now, and say whether it is the best so far."""
        compared = [_compare(self.pair, batch) for batch in self.held_out]
        errors = [float(layers if answer is None else answer) for layers, answer in compared]
        error = sum(errors) / len(errors)
        if not error < self.error:  # nor is NaN
            return False
        self.error, self.title, self.state = error, title, [tensor.clone() for tensor in self.tensors]
        return True

    def restore(self) -> None:
        for tensor, best in zip(self.tensors, self.state, strict=True):
            tensor.copy_(best)


def _search(pair: Pair, examples: Examples, steps: int, batch: int, progress: "Progress") -> str:
    """Leave the network in the best state of three kinds: converted, statistics matched, weights fitted."""
    if not examples.held_out:
        return "nothing is changed"
    size = batch if examples.single else 1
    best = Best(pair, examples.batches(examples.held_out, MEASURED * size))
    _check_answers(pair, best.held_out[0])
    if not best.look("converted") or not isfinite(best.error):
        raise ValueError("`images` must not be so large that the networks overflow, got such images")
    before = best.error
    match_statistics(pair, examples.batches(examples.fitted[: MEASURED * size], MEASURED * size))
    best.look("statistics matched")
    _fit(pair, examples, 0 if examples.few else steps, size, best, progress)
    best.restore()
    missed = [name for name in find_layers(pair.network) if name not in pair.called]
    if missed:
        warnings.warn(f"left as converted, since no image came to them: {', '.join(missed)}", stacklevel=3)
    return f"{best.title}: error on held-out images {best.error:.3g}, {before:.3g} before"


def _check_answers(pair: Pair, batch: Any) -> None:
    """Say what of the network cannot be compared with the plain one."""
    expected, found = pair.run(batch, lambda *_: None)
    if not pair.called.intersection(find_layers(pair.network)):
        raise ValueError(f"`{'model' if pair.call is None else 'call'}` must run an SIConv2d, but calls none")
    if not _is_compared(found) or not _is_compared(expected):
        got = f"a tensor of {found.dtype}" if isinstance(found, Tensor) else describe(found)
        if pair.call is not None:
            raise TypeError(f"`call` must return a tensor of a floating-point type, got {got}")
        way = f"give `call`, such as {remedy(found)}, for its answer"
        warnings.warn(f"`model` returns {got}, so only its layers are compared: {way}", stacklevel=4)


def _is_compared(answer: Any) -> bool:
    return isinstance(answer, Tensor) and (answer.is_floating_point() or answer.is_complex())


def _compare(pair: Pair, batch: Any, fitting: bool = False) -> tuple[Tensor, Tensor | None]:
    """The error of all layers together, and that of the answer if it can be compared.

    Every channel counts in units of its deviation in the plain network.
    """
    terms: list[tuple[Tensor, Tensor, list[int]]] = []

    def compare(_: str, seen: Seen) -> None:
        output, layer = seen.output, seen.layer
        with torch.set_grad_enabled(fitting):
            if fitting and not output.requires_grad:  # in a checkpoint that keeps no graph: the layer by itself
                output = layer.forward(seen.input.detach())
            error = output - seen.plain_output  # no square yet: within a checkpoint it would be kept, which it forbids
            if isinstance(layer, SIConv2d) and layer.bias is None:  # what follows sees to the mean
                error = error - error.mean(seen.dims, keepdim=True)
        terms.append((error, _units(seen.plain_output, seen.dims), seen.dims))

    expected, found = pair.run(batch, compare)
    layers = torch.stack([_loss(*term) for term in terms]).sum()
    if not _is_compared(found) or not _is_compared(expected):
        return layers, None
    if found.shape != expected.shape:
        shapes = f"{tuple(found.shape)}, not {tuple(expected.shape)}"
        raise ValueError(f"`model` must answer in the shape of the plain network, got {shapes}: give another `call`")
    expected, found = (torch.view_as_real(each) if each.is_complex() else each for each in (expected, found))
    dims = [dim for dim in range(found.ndim) if dim != 1]
    return layers, _loss(found - expected, _units(expected, dims), dims)


def _units(plain: Tensor, dims: list[int]) -> Tensor:
    return plain.var(dims, correction=0).clamp(min=DEAD * plain.square().mean() + LEAST)


def _loss(error: Tensor, units: Tensor, dims: list[int]) -> Tensor:
    return (error.square().mean(dims) / units).mean()


def _fit(pair: Pair, examples: Examples, steps: int, size: int, best: Best, progress: "Progress") -> None:
    """Regress the outputs of all layers, and of the network, on those of the plain ones, as long as that helps."""
    draws, parameters, found = torch.Generator().manual_seed(0), _fitted(pair.network), 0
    with _only_trainable(pair.network, parameters):
        groups = [{"params": [each], "lr": RATE * float(each.detach().square().mean().sqrt())} for each in parameters]
        optimiser = torch.optim.Adam(groups, betas=(0.9, 0.99))
        rates = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / max(steps, 1))
        for step in range(1, steps + 1):
            batch = examples.drawn(size, draws)
            with torch.enable_grad():
                layers, answer = _compare(pair, batch, fitting=True)
                (layers if answer is None else layers + answer).backward()
            optimiser.step()
            optimiser.zero_grad()
            rates.step()
            progress.show(step)
            if step % CHECKED == 0 or step == steps:
                if best.look(f"weights fitted in {step} steps"):
                    found = step
                elif step - found >= PATIENCE:
                    return


@contextmanager
def _only_trainable(network: nn.Module, parameters: list[nn.Parameter]) -> Iterator[None]:
    """Only these parameters take gradients; afterwards all are as they were, without gradients."""
    before, chosen = {each: each.requires_grad for each in network.parameters()}, set(parameters)
    for parameter in before:
        parameter.requires_grad_(parameter in chosen)
    try:
        yield
    finally:
        for parameter, trainable in before.items():
            parameter.requires_grad_(trainable)


class Progress:
    """How far it is, on standard error: a bar in a terminal or a notebook, else a line every ten seconds."""

    def __init__(self, steps: int, quiet: bool) -> None:
        stream: Any = sys.stderr
        notebook = type(stream).__module__.startswith("ipykernel")
        self.live = notebook or (stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb")
        self.every = inf if quiet or stream is None else 0.1 if self.live else 10.0
        self.start = self.shown = time.perf_counter()
        self.steps, self.open = steps, False

    def show(self, done: int) -> None:
        now = time.perf_counter()
        if now - self.shown < self.every:
            return
        self.shown, seconds, filled = now, now - self.start, 20 * done // self.steps
        left = f"{done / seconds:.3g} steps/s  at most {seconds / done * (self.steps - done):.0f} s left"
        self._print(f"calibrating [{'#' * filled}{'.' * (20 - filled)}] {done}/{self.steps}  {left}", not self.live)

    def end(self, text: str) -> None:
        if self.every < inf:
            self._print(f"calibrated in {time.perf_counter() - self.start:.0f} s, {text}", True)

    def _print(self, text: str, ends: bool) -> None:
        print(("\r" if self.live else "") + text.ljust(79 * self.live), end="\n" * ends, file=sys.stderr, flush=True)
        self.open = not ends

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.open:  # an error is reported below the bar
            print(file=sys.stderr)
