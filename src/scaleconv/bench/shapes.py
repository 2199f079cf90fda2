"""What a bench measures: the shapes, the layers and how often. Checked before anything is run."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..environment import choose_device
from ..ops.call import DEFAULT_SCALES, check_scales
from ..ops.transforms import LARGEST_SCALE

Tick = Callable[[str], None]  # called after every repeat with what was timed; for display only

COMPARED = ("conv2d", "conv2d_wide", "direct", "si")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
SMALLEST_IMAGE = 32  # the networks halve an image five times


@dataclass(frozen=True)
class LayerShape:
    """One convolution of a network.

    Attributes:
        in_channels, out_channels, kernel, padding, stride, groups: as `Conv2d` takes them.
        size: side of the input.
        batch: images, on a GPU.
        cpu_batch: images, on a CPU.
    """

    in_channels: int
    out_channels: int
    size: int
    kernel: int
    padding: int
    batch: int
    cpu_batch: int
    stride: int = 1
    groups: int = 1

    @property
    def output_size(self) -> int:
        """Side of the output."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1


SHAPES = {
    "mnist1": LayerShape(1, 36, 28, kernel=7, padding=0, batch=768, cpu_batch=128),
    "mnist2": LayerShape(36, 64, 11, kernel=5, padding=0, batch=768, cpu_batch=128),
    "res56": LayerShape(64, 64, 56, kernel=3, padding=1, batch=64, cpu_batch=4),
    "res14": LayerShape(256, 256, 14, kernel=3, padding=1, batch=64, cpu_batch=4),
    "stem": LayerShape(3, 64, 224, kernel=7, padding=3, batch=32, cpu_batch=2, stride=2),
    "res28": LayerShape(128, 128, 28, kernel=3, padding=1, batch=64, cpu_batch=4),
    "res7": LayerShape(512, 512, 7, kernel=3, padding=1, batch=64, cpu_batch=4),
    "down56": LayerShape(64, 128, 56, kernel=3, padding=1, batch=64, cpu_batch=4, stride=2),
    "conv31": LayerShape(48, 96, 31, kernel=5, padding=2, batch=128, cpu_batch=4),
    "depthwise": LayerShape(96, 96, 56, kernel=7, padding=3, batch=64, cpu_batch=2, groups=96),
    "single56": LayerShape(64, 64, 56, kernel=3, padding=1, batch=1, cpu_batch=1),
    "large512": LayerShape(32, 32, 512, kernel=3, padding=1, batch=2, cpu_batch=1),
}


@dataclass(frozen=True)
class Settings:
    """A checked request.

    Attributes:
        device: where to measure.
        name: of the files that are written.
        shapes, dtypes, layouts: names in `SHAPES`, `DTYPES` and `LAYOUTS`; every combination is measured.
        compare: the layers to measure, names in `COMPARED`.
        peers: further layers, as MODULE:CLASS.
        scales: of the layers that have any.
        batch: images in every shape and training step, instead of their own numbers.
        image_size: side of the images that ResNet-18 and the depthwise network see; the paper's networks see 28×28.
        repeats: timings of each layer and network; the median counts.
        layers: measure single layers.
        wide: measure `direct` and `si` with the squares of the scales as well: as many levels, further apart.
        end_to_end: measure whole networks.
    """

    device: str = "cpu"
    name: str = "cpu"
    shapes: tuple[str, ...] = tuple(SHAPES)
    dtypes: tuple[str, ...] = tuple(DTYPES)
    layouts: tuple[str, ...] = ("contiguous",)
    compare: tuple[str, ...] = COMPARED
    peers: tuple[str, ...] = ()
    scales: tuple[float, ...] = DEFAULT_SCALES
    batch: int | None = None
    image_size: int = 224
    repeats: int = 5
    layers: bool = True
    wide: bool = True
    end_to_end: bool = True

    def __post_init__(self) -> None:
        if not self.name or Path(self.name).name != self.name:
            raise ValueError(f"`name` must be a file's name without a directory, got {self.name!r}")
        for key, known in (("shapes", SHAPES), ("dtypes", DTYPES), ("layouts", LAYOUTS), ("compare", COMPARED)):
            names: tuple[str, ...] = getattr(self, key)
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"`{key}` must be among {', '.join(known)}, got {unknown[0]!r}")
            if not names or len(set(names)) < len(names):
                raise ValueError(f"`{key}` must name at least one, and none twice, got {', '.join(names) or 'nothing'}")
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
        for name, least in (("repeats", 1), ("batch", 1), ("image_size", SMALLEST_IMAGE)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"`{name}` must be at least {least}, got {value}")
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
        """The request, the squares of the scales, and the flags of PyTorch that speed depends on."""
        flags = {
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        return {**asdict(self), "wide_scales": self.wide_scales, "flags": flags}


def make_settings(
    device: str = "auto",
    name: str | None = None,
    *,
    shapes: str | None = None,
    dtypes: str | None = None,
    layouts: Sequence[str] = (),
    compare: str | None = None,
    scales: str | None = None,
    repeats: int | None = None,
    **options: Any,
) -> Settings:
    """Settings from comma-separated texts; None or empty is the default, with more repeats on a GPU."""
    device = choose_device(device)
    kind = torch.device(device).type
    lists = {"shapes": shapes, "dtypes": dtypes, "layouts": ",".join(layouts), "compare": compare}
    for key, text in lists.items():
        if text:
            options[key] = tuple(part.strip() for part in text.split(","))
    if scales is not None:
        try:
            options["scales"] = tuple(float(part) for part in scales.split(","))
        except ValueError:
            raise ValueError(f"`scales` must be numbers separated by commas, got {scales!r}") from None
    repeats = (11 if kind == "cuda" else 5) if repeats is None else repeats
    return Settings(device, kind if name is None else name, repeats=repeats, **options)
