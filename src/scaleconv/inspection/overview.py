"""What was converted in a network, what not and why, and what it costs: operations, time, parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from ..nn.convert import revert, skipped
from ..nn.layers import SIConv2d, TIConv2d
from ..nn.observe import Call, check_call, check_module, evaluating, find_path, hooked, images_of, run
from ..nn.rerouted import Reroute, arguments_of
from ..ops.checks import check_count
from ..ops.macs import macs
from ..ops.torch_private import ConvNd
from ..table import Table
from ..timing import repeated, time_interleaved
from .pictures import Tabled, sizes_as_text


@dataclass(frozen=True)
class LayerRow:
    """One convolution of a network.

    Attributes:
        name: as the network calls it.
        kind: the name of its class.
        scales: of a scale-invariant layer; empty for any other.
        reason: why it is not scale-invariant; empty if it is.
        parameters: how many it has.
        plain_macs, macs: multiply-accumulate operations of all its calls, as the plain convolution and as it is; None
            if it is not a Conv2d, or has transforms other than scales.
    """

    name: str
    kind: str
    scales: tuple[float, ...]
    reason: str
    parameters: int
    plain_macs: int | None
    macs: int | None


@dataclass(frozen=True, repr=False)
class Overview(Tabled):
    """What `summary` found. It shows itself as a table.

    Attributes:
        layers: the convolutions, in the order of `named_modules`.
        input_size: of the images.
        parameters, plain_parameters: of the network and of the plain one.
        ms, plain_ms: milliseconds of a forward pass, the median; None where time was not asked for.
    """

    layers: list[LayerRow]
    input_size: tuple[int, ...]
    parameters: int
    plain_parameters: int
    ms: float | None
    plain_ms: float | None

    @property
    def macs(self) -> int:
        """Of all convolutions."""
        return sum(layer.macs or 0 for layer in self.layers)

    @property
    def plain_macs(self) -> int:
        return sum(layer.plain_macs or 0 for layer in self.layers)

    def tables(self) -> list[Table]:
        return [self.layer_table(), self.total_table()]

    def layer_table(self) -> Table:
        rows = [
            (
                layer.name or "(model)",
                layer.kind,
                ", ".join(f"{scale:.3g}" for scale in layer.scales) or "–",
                layer.reason,
                f"{layer.parameters:,}",
                _millions(layer.plain_macs),
                _millions(layer.macs),
            )
            for layer in self.layers
        ]
        header = ("layer", "kind", "scales", "left alone", "parameters", "MMACs plain", "MMACs now")
        return Table(f"Convolutions, input {sizes_as_text(self.input_size)}", header, rows)

    def total_table(self) -> Table:
        converted = sum(1 for layer in self.layers if layer.scales)
        rows = [
            ("scale-invariant layers", "0", str(converted), f"of {len(self.layers)}"),
            ("parameters", f"{self.plain_parameters:,}", f"{self.parameters:,}", ""),
            (
                "MMACs of convolutions",
                _millions(self.plain_macs),
                _millions(self.macs),
                _ratio(self.macs, self.plain_macs),
            ),
        ]
        if self.ms is not None and self.plain_ms is not None:
            rows.append(("ms, forward pass", f"{self.plain_ms:.3g}", f"{self.ms:.3g}", _ratio(self.ms, self.plain_ms)))
        return Table("The network", ("", "plain", "now", "now / plain"), rows)


def summary(model: nn.Module, images: Any, *, repeats: int = 3, call: Call | None = None) -> Overview:
    """Say what was converted in a network, what not and why, and what it costs beside the plain one.

    Operations are counted by `macs`; they are those of the convolutions alone. Time is that of a forward pass in
    evaluation mode, plain and converted interleaved.

    Args:
        model: a network, converted or not.
        images: (N, C, H, W); or their four sizes, for random images on the device of the parameters; or a batch with
            images: a tuple, a list or a mapping.
        repeats: timings of each, of which the median counts; 0 measures no time.
        call: a function of the model and a batch that runs the network, if it takes more than images. What it returns
            does not matter. It is called with the plain network, too.

    Raises:
        TypeError: `model` is not a Module, `images` neither images nor sizes, or a size not an integer.
        ValueError: not four sizes, a size below 1, `repeats` below 0, or a lazy layer that was never called.

    Example:
        >>> from scaleconv import convert
        >>> network = convert(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)), scales=(1, 2))
        >>> print(summary(network, (1, 3, 32, 32), repeats=0))
        Convolutions, input 1 × 3 × 32 × 32
        layer  kind      scales  left alone  parameters  MMACs plain  MMACs now
        ───────────────────────────────────────────────────────────────────────
        0      SIConv2d    1, 2                     224        0.194      0.458
        1      Conv2d         –  1×1 kernel          72       0.0576     0.0576
        <BLANKLINE>
        The network
                                plain    now  now / plain
        ─────────────────────────────────────────────────
        scale-invariant layers      0      1         of 2
        parameters                296    296
        MMACs of convolutions   0.252  0.516         2.05
    """
    check_module(model)
    check_call(call)
    batch = _batch(model, images)
    pictures = images_of(batch)
    check_count("repeats", repeats, least=0)
    plain = revert(model)
    convolutions = {name: layer for name, layer in model.named_modules() if isinstance(layer, ConvNd)}
    for name, layer in convolutions.items():
        if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():
            raise ValueError(
                f"`model` must know the sizes of its layers, got {name!r} (={type(layer).__name__}): "
                "call the network once before"
            )
    reasons = skipped(model, batch, call=call)
    with evaluating(model, plain):
        calls = _calls(plain, list(convolutions), partial(run, plain, batch, call))
        times = {}
        if repeats:
            networks = {"plain": plain, "now": model}
            work = {name: repeated(partial(run, each, batch, call)) for name, each in networks.items()}
            times = time_interleaved(work, str(pictures.device), repeats)
    rows = []
    for name, layer in convolutions.items():
        scales = layer.scales if isinstance(layer, SIConv2d) else ()
        costs = [macs(*call, scales=scales or (1,), gpu=pictures.is_cuda) for call in calls[name]]
        known = isinstance(layer, nn.Conv2d) and (bool(scales) or not isinstance(layer, TIConv2d))
        rows.append(
            LayerRow(
                name,
                type(layer).__name__,
                scales,
                reasons.get(name, ""),
                _count(layer),
                sum(cost.conv2d.total for cost in costs) if known else None,
                sum(cost.planned.total for cost in costs) if known else None,
            )
        )
    now, before = (times[name].median_ms if times else None for name in ("now", "plain"))
    return Overview(rows, tuple(pictures.shape), _count(model), _count(plain), now, before)


def _calls(plain: nn.Module, names: Sequence[str], forward: Callable[[], Any]) -> dict[str, list[tuple[Any, ...]]]:
    """For each convolution the calls of `conv2d` in a forward pass, with shapes for tensors, as `macs` takes them."""
    calls: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
    entered: list[str] = []

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: entered.append(name)

    def leave(*_: Any) -> None:
        entered.pop()

    def convolution(*args: Any, **kwargs: Any) -> Tensor:
        images, weight, _, *settings = arguments_of(*args, **kwargs)
        if entered and not images.is_meta:  # as where a pyramid looks for its grid
            calls[entered[-1]].append((tuple(images.shape), tuple(weight.shape), *settings))
        return nn.functional.conv2d(*args, **kwargs)

    handles = []
    for name in names:
        layer = plain.get_submodule(name)
        handles.append(layer.register_forward_pre_hook(enter(name)))
        handles.append(layer.register_forward_hook(leave))
    with hooked(handles), Reroute(convolution):
        forward()
    return calls


def _batch(model: nn.Module, images: Any) -> Any:
    """The images as they were given; of four sizes, random ones."""
    if isinstance(images, Tensor) or find_path(images, lambda part: isinstance(part, Tensor)) is not None:
        return images
    rule = "`images` must be images (N, C, H, W) or their four sizes"
    if not isinstance(images, Sequence) or isinstance(images, str):
        raise TypeError(f"{rule}, got {type(images).__name__}")
    sizes = tuple(check_count("images", each) for each in images)
    if len(sizes) != 4:
        raise ValueError(f"{rule}, got {images!r}")
    parameter = next(model.parameters(), torch.empty(0))
    return torch.rand(sizes, dtype=parameter.dtype, device=parameter.device)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _millions(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e6:.3g}"


def _ratio(now: float, before: float) -> str:
    return f"{now / before:.2f}" if before else "–"
