"""Make a converted network answer as the plain one did, from images without labels: statistics first, then weights.

The maximum over scales raises every response and makes it denser, so the layers behind see what they were not trained
on. First the mean and the deviation of every channel are brought back, layer after layer in the order of the calls.
Then the weights are fitted: a few steps of regression to the outputs of all plain layers.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..ops.checks import check_count, check_flag
from .convert import Network, copy_network, revert
from .layers import SIConv2d
from .observe import check_images, evaluating, find_layers, given_to, hooked

PIXELS = (0, 2, 3)  # all dimensions but the channels
LEAST = 1e-10  # a smaller variance is none
DEAD = 0.01  # relative to the mean square of its layer; a channel that varies less counts less in the regression
RATE = 0.06  # of a step, relative to the root mean square of the parameter
MEASURED = 4  # batches for the statistics
ERASE = "\x1b[K"  # the rest of the line, on a terminal


@dataclass(frozen=True)
class Call:
    """A call of a layer in the converted network, and that of the plain layer in the same place."""

    plain_input: Tensor
    plain_output: Tensor
    input: Tensor
    output: Tensor


Correction = Callable[[nn.Module, Call], Tensor | None]


def calibrate(
    model: Network,
    images: Tensor,
    *,
    reference: nn.Module | None = None,
    steps: int = 300,
    batch: int = 32,
    inplace: bool = False,
    quiet: bool = False,
) -> Network:
    """Return the converted network with its layers fitted to the answers of the plain one.

    A network that was trained before it was converted needs this, or fine-tuning, or both. docs/networks.md says what
    to expect.

    Args:
        model: what `convert` returned, in float32 or float64; half precision comes after this.
        images: (N, C, H, W), as the network takes them; a thousand will do. Labels are not needed.
        reference: the plain network; None for `revert(model)`, which is right as long as the network was not changed
            since it was converted.
        steps: of the regression; 0 matches the statistics only.
        batch: images of a step. The statistics are taken from four times as many at once.
        inplace: change the network itself instead of a copy.
        quiet: without the line on standard error that says how far it is; there is none without a terminal either.

    Returns:
        The network, with other weights and biases in its scale-invariant layers, other statistics in its BatchNorm, and
        nothing else changed. `revert` does not bring back the plain weights: keep the plain network or its state_dict.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an argument that breaks its rule, a network without `SIConv2d`, or a reference without its layers.

    Example:
        >>> from scaleconv import convert
        >>> plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        >>> network, images = convert(plain), torch.rand(64, 3, 20, 20)
        >>> calibrated = calibrate(network, images, steps=60)
        >>> def error(other):
        ...     return (other(images) - plain(images)).square().mean()
        >>> bool(error(calibrated) < error(network))
        True
    """
    layers = find_layers(model)
    check_images(images)
    if not images.isfinite().all():
        raise ValueError("`images` must hold finite numbers, got NaN or infinity")
    check_count("steps", steps, least=0)
    check_count("batch", batch)
    check_flag("inplace", inplace)
    check_flag("quiet", quiet)
    for name, layer in layers.items():
        if layer.weight.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"`model` must be float32 or float64, got {layer.weight.dtype} in {name!r}")
    plain = revert(model) if reference is None else reference
    _check_reference(plain, layers)
    network = copy_network(model)
    with evaluating(plain, network):
        _match_statistics(plain, network, images[: MEASURED * batch])
        _fit(plain, network, images, steps, batch, quiet)
    if not all(tensor.isfinite().all() for tensor in network.state_dict().values()):
        raise ValueError("`images` must not be so large that a fit of the weights overflows, got such images")
    if not inplace:
        return network
    model.load_state_dict(network.state_dict())
    return model


def _match_statistics(plain: nn.Module, network: nn.Module, images: Tensor) -> None:
    """Give every channel of every layer the mean and the deviation that it has in the plain network.

    All in one pass: a layer is corrected as it is called, and the next one sees the corrected output.
    """

    normed = any(isinstance(module, _BatchNorm) for module in network.modules())

    def correct(module: nn.Module, call: Call) -> Tensor:
        if isinstance(module, SIConv2d):
            _match_layer(module, call, normed)
        elif isinstance(module, _BatchNorm):
            _match_norm(module, call)
        corrected: Tensor = module.forward(call.input)
        return corrected

    with _comparing(plain, network, _compared(network), correct):
        plain(images)
        network(images)


def _compared(network: nn.Module) -> list[str]:
    """The names of the layers that are compared with the plain ones."""
    return [name for name, module in network.named_modules() if isinstance(module, SIConv2d | _BatchNorm)]


def _match_layer(layer: SIConv2d, call: Call, normed: bool) -> None:
    """By factors a and shifts c of the channels: a · max z + c = max (a · z + c), so weight and bias take them in.

    Where neither a bias nor BatchNorm takes the shift, the factor is that of the least squared error.
    """
    weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
    if weight is not None:  # else it is computed from something, such as a direction and a length
        factor = (_projection if bias is None and not normed else _ratio)(call.plain_output, call.output)
        weight.mul_(factor.view(-1, 1, 1, 1))
        if bias is not None:
            bias.mul_(factor)
    if bias is not None:
        bias.add_((call.plain_output - layer.forward(call.input)).mean(PIXELS))


def _match_norm(norm: _BatchNorm, call: Call) -> None:
    """By other running statistics: those with which the normalised input has the plain mean and deviation."""
    if norm.running_mean is None or norm.running_var is None or call.input.ndim != 4:
        return
    factor = _ratio(call.input, call.plain_input)
    norm.running_mean.copy_(call.input.mean(PIXELS) - factor * (call.plain_input.mean(PIXELS) - norm.running_mean))
    norm.running_var.copy_((factor.square() * (norm.running_var + norm.eps) - norm.eps).clamp(min=0))


def _ratio(first: Tensor, second: Tensor) -> Tensor:
    """The ratio of the deviations of each channel; 1 where there is none."""
    above, below = first.var(PIXELS, correction=0), second.var(PIXELS, correction=0)
    return torch.where((above > LEAST) & (below > LEAST), above / below.clamp(min=LEAST), 1.0).sqrt()


def _projection(first: Tensor, second: Tensor) -> Tensor:
    """The factor of each channel that brings the second nearest to the first; 1 where it would not be above 0."""
    above, below = (first * second).sum(PIXELS), second.square().sum(PIXELS)
    return torch.where((above > 0) & (below > LEAST), above / below.clamp(min=LEAST), 1.0)


def _fit(plain: nn.Module, network: nn.Module, images: Tensor, steps: int, batch: int, quiet: bool) -> None:
    """Regress the outputs of all layers, and of the network, on those of the plain ones.

    Every channel counts in units of its deviation in the plain network.
    """
    losses: list[Tensor] = []

    def compare(layer: nn.Module, call: Call) -> None:
        if not isinstance(call.output, Tensor) or call.output.ndim < 2:
            return  # the answer of a network may be anything
        dims = [dim for dim in range(call.output.ndim) if dim != 1]
        error = call.output - call.plain_output
        if isinstance(layer, SIConv2d) and layer.bias is None:  # what follows sees to the mean
            error = error - error.mean(dims, keepdim=True)
        least = DEAD * call.plain_output.square().mean() + LEAST
        losses.append((error.square().mean(dims) / call.plain_output.var(dims, correction=0).clamp(min=least)).mean())

    drawn = torch.Generator().manual_seed(0)
    parameters = [parameter for layer in find_layers(network).values() for parameter in layer.parameters()]
    with _comparing(plain, network, [*_compared(network), ""], compare), _only_trainable(network, parameters):
        groups = [{"params": [each], "lr": RATE * float(each.detach().square().mean().sqrt())} for each in parameters]
        optimiser = torch.optim.Adam(groups, betas=(0.9, 0.99))
        rates = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / max(steps, 1))
        for _ in _shown(steps, quiet):
            chosen = torch.randint(len(images), (min(batch, len(images)),), generator=drawn)
            some = images[chosen.to(images.device)]
            losses.clear()
            plain(some)
            with torch.enable_grad():
                network(some)
                torch.stack(losses).sum().backward()
            optimiser.step()
            optimiser.zero_grad()
            rates.step()


def _shown(steps: int, quiet: bool) -> Iterator[int]:
    """Count the steps; a terminal shows how many are done, the rate and the time left, from the first second on."""
    shown = not quiet and sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    start = time.perf_counter()
    try:
        for done in range(1, steps + 1):
            yield done
            seconds = time.perf_counter() - start
            if shown and seconds > 1:
                left = f"{done / seconds:.3g} steps/s  {seconds / done * (steps - done):.0f} s left"
                print(f"\rcalibrating {done}/{steps}  {left}{ERASE}", end="", file=sys.stderr, flush=True)
    finally:
        if shown:
            print(f"\r{ERASE}", end="", file=sys.stderr, flush=True)


@contextmanager
def _comparing(plain: nn.Module, network: nn.Module, names: Iterable[str], correct: Correction) -> Iterator[None]:
    """Hand every call of these layers to `correct`; what it returns, unless None, takes the place of the output.

    The plain network is to be called first, with the same images. The name of the network itself is empty.
    """
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}
    handles = []

    def remember(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            calls.setdefault(name, []).append((_copy(given_to(args, kwargs)), _copy(output)))

        return hook

    def compare(name: str) -> Callable[..., Tensor | None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
            return correct(module, Call(*calls[name].pop(0), given_to(args, kwargs), output))

        return hook

    for name in set(names):  # a single layer is the network, too
        for each, hook in ((plain, remember(name)), (network, compare(name))):
            handles.append(each.get_submodule(name).register_forward_hook(hook, with_kwargs=True))
    with hooked(handles):
        yield


def _copy(value: Any) -> Any:
    """A tensor as it is now: what follows may work in place, as `ReLU(inplace=True)` does."""
    return value.clone() if isinstance(value, Tensor) else value


@contextmanager
def _only_trainable(network: nn.Module, parameters: list[nn.Parameter]) -> Iterator[None]:
    """Only these parameters take gradients; afterwards all are as they were, without gradients."""
    before = {parameter: parameter.requires_grad for parameter in network.parameters()}
    for parameter in before:
        parameter.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, trainable in before.items():
            parameter.requires_grad_(trainable)


def _check_reference(plain: nn.Module, layers: dict[str, SIConv2d]) -> None:
    if not isinstance(plain, nn.Module):
        raise TypeError(f"`reference` must be a torch.nn.Module, got {type(plain).__name__}")
    for name, layer in layers.items():
        try:
            found = plain.get_submodule(name)
        except AttributeError:
            raise ValueError(f"`reference` must have the layers of `model`, but has no {name!r}") from None
        if not isinstance(found, nn.Conv2d) or found.weight.shape != layer.weight.shape:
            raise ValueError(f"`reference` must have the layers of `model`, but {name!r} is {found}")
