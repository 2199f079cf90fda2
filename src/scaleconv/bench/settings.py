"""What a bench measures: the shapes, the contenders and how often, checked before anything is run."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..experiments.devices import choose_device
from ..ops.signature import DEFAULT_SCALES, LARGEST_SCALE, check_scales

CONTENDERS = ("conv2d", "conv2d_wide", "direct", "si_torch", "si")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class LayerShape:
    """One convolution of a network.

    Attributes:
        in_channels, out_channels, kernel, padding: as `Conv2d` takes them.
        size: side of the input.
        batch: images, on a GPU.
        cpu_batch: images, on a CPU.
        input_grad: whether the input needs a gradient; the image itself does not.
    """

    in_channels: int
    out_channels: int
    size: int
    kernel: int
    padding: int
    batch: int
    cpu_batch: int
    input_grad: bool = True


SHAPES = {
    "mnist1": LayerShape(1, 36, 28, kernel=7, padding=0, batch=768, cpu_batch=128, input_grad=False),
    "mnist2": LayerShape(36, 64, 11, kernel=5, padding=0, batch=768, cpu_batch=128),
    "res56": LayerShape(64, 64, 56, kernel=3, padding=1, batch=64, cpu_batch=4),
    "res14": LayerShape(256, 256, 14, kernel=3, padding=1, batch=64, cpu_batch=4),
}


@dataclass(frozen=True)
class Settings:
    """A checked request.

    Attributes:
        device: where to measure.
        name: of the files that are written.
        shapes, dtypes, layouts: names in `SHAPES`, `DTYPES` and `LAYOUTS`; every combination is measured.
        contenders: names in `CONTENDERS`.
        peers: further layers, as MODULE:CLASS.
        scales: of the layers that have any.
        batch: images in every shape, instead of the shape's own number.
        repeats: timings of each contender, of which the median counts.
        graph: time replays of a captured CUDA graph instead of calls.
        layers: measure single layers.
        wide: measure `direct` and `si` at the squares of the scales as well, as many but further apart.
        end_to_end: measure whole networks in training.
    """

    device: str = "cpu"
    name: str = "cpu"
    shapes: tuple[str, ...] = tuple(SHAPES)
    dtypes: tuple[str, ...] = tuple(DTYPES)
    layouts: tuple[str, ...] = ("contiguous",)
    contenders: tuple[str, ...] = CONTENDERS
    peers: tuple[str, ...] = ()
    scales: tuple[float, ...] = DEFAULT_SCALES
    batch: int | None = None
    repeats: int = 5
    graph: bool = False
    layers: bool = True
    wide: bool = True
    end_to_end: bool = True

    def __post_init__(self) -> None:
        if not self.name or Path(self.name).name != self.name:
            raise ValueError(f"`name` must be a file's name without a directory, got {self.name!r}")
        known: dict[str, Collection[str]] = {
            "shapes": SHAPES,
            "dtypes": DTYPES,
            "layouts": LAYOUTS,
            "contenders": CONTENDERS,
        }
        for key, names in known.items():
            _check_names(key, getattr(self, key), names)
        for peer in self.peers:
            module, colon, name = peer.partition(":")
            if not (module and colon and name.isidentifier()):
                raise ValueError(f"`peer` must be MODULE:CLASS, got {peer!r}")
        if len(set(self.peers)) < len(self.peers):
            raise ValueError(f"`peer` must not name a class twice, got {', '.join(self.peers)}")
        check_scales(self.scales)
        if self.wide and max(self.wide_scales) > LARGEST_SCALE:
            raise ValueError(
                f"`scales` must have squares of at most {LARGEST_SCALE}, or `wide` be left out, got {max(self.scales)}"
            )
        for name, value in (("repeats", self.repeats), ("batch", self.batch)):
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}")
        if self.graph and not self.on_gpu:
            raise ValueError(f"`graph` needs a CUDA device, got `device` {self.device!r}")
        if not (self.layers or self.end_to_end):
            raise ValueError("`layers` or `end_to_end` must be measured, got neither")

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @property
    def wide_scales(self) -> tuple[float, ...]:
        """The squares: 4^(k/3) for the default 2^(k/3)."""
        return tuple(scale**2 for scale in self.scales)

    def batch_of(self, shape: LayerShape) -> int:
        return self.batch or (shape.batch if self.on_gpu else shape.cpu_batch)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "wide_scales": self.wide_scales, "flags": _flags()}


def make_settings(
    device: str = "auto",
    name: str | None = None,
    *,
    shapes: str | None = None,
    dtypes: str | None = None,
    layouts: Sequence[str] = (),
    contenders: str | None = None,
    scales: str | None = None,
    repeats: int | None = None,
    **others: Any,
) -> Settings:
    """Settings from texts with commas; what is None or empty is the default, on a GPU with more repeats."""
    device = choose_device(device)
    lists = {"shapes": shapes, "dtypes": dtypes, "layouts": ",".join(layouts), "contenders": contenders}
    named: dict[str, Any] = {
        key: tuple(part.strip() for part in text.split(",")) for key, text in lists.items() if text
    }
    if scales is not None:
        named["scales"] = _numbers(scales)
    if repeats is None:
        repeats = 11 if torch.device(device).type == "cuda" else 5
    if name is None:
        name = torch.device(device).type + ("-graph" if others.get("graph") else "")
    return Settings(device=device, name=name, repeats=repeats, **named, **others)


def _check_names(key: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"`{key}` must be among {', '.join(known)}, got {name!r}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"`{key}` must name at least one, and none twice, got {', '.join(names) or 'nothing'}")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"`scales` must be numbers separated by commas, got {text!r}") from None


def _flags() -> dict[str, Any]:
    """What PyTorch was set to: it decides how precise, and so how fast, products of float32 are."""
    return {
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
