"""The layers as Modules: `torch.nn.Conv2d` and its like, whose one call goes to `scaleconv.ops`. No maths here."""

import warnings
from collections.abc import Iterable
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.call import DEFAULT_SCALES, Padding, check_layer, check_reading, check_scales, check_transforms
from ..ops.checks import check_flag
from ..ops.conv import si_conv1d, si_conv2d, si_conv3d, ti_conv2d
from ..ops.torch_private import ConvNd
from ..ops.transforms import Transform, scaling

for name in ("si_conv1d", "si_conv2d", "si_conv3d", "ti_conv2d"):
    torch.fx.wrap(name)  # a symbolic trace keeps the call whole


class LevelsState(nn.Module):
    """A Module whose `state_dict` remembers its scales or transforms, and which says why it cannot be scripted.

    They are metadata beside the version that PyTorch keeps for every Module. So the keys stay those of the parameters,
    and weights of a plain `Conv2d`, or in a file without metadata, load without a word. Into a plain `Conv2d` the
    weights of such a layer load as well, since that one does not look at the metadata.
    """

    remembered = "scales"

    def _levels(self) -> tuple[Any, ...]:
        """What is remembered: numbers alone, as a file of weights may hold nothing else."""
        return tuple(getattr(level, "matrix", level) for level in getattr(self, self.remembered))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)  # a plain dictionary has none
        if metadata is not None:
            metadata[prefix[:-1]][self.remembered] = self._levels()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        levels = self._levels()
        saved = local_metadata.get(self.remembered, levels)
        if tuple(saved) != levels:
            trained, own = "with other transforms", ""
            if self.remembered == "scales":
                trained, own = f"at scales {scales_as_text(saved)}", f" with scales {scales_as_text(levels)}"
            kind = type(self).__name__
            warnings.warn(f"weights that were trained {trained} are loaded into a {kind}{own}", stacklevel=2)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)

    def __prepare_scriptable__(self) -> NoReturn:
        raise RuntimeError(
            f"torch.jit.script cannot take {type(self).__name__}; use torch.export.export or torch.compile"
        )


def scales_as_text(scales: Iterable[float]) -> str:
    """
    Example:
        >>> scales_as_text((1, 2 ** (1 / 3)))
        '(1, 1.26)'
    """
    return f"({', '.join(f'{scale:.3g}' for scale in scales)})"


class _Convolution(LevelsState, ConvNd):
    """A convolution of `torch.nn` whose call, once the input is padded, is that of `_convolve`."""

    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        convolution = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        check_layer(*convolution, self.axes)
        super().__init__(*convolution, *args, **kwargs)  # type: ignore[arg-type]  # of Conv1d, Conv2d or Conv3d

    def forward(self, input: Tensor, return_winner: bool = False) -> Any:
        """The output, or (output, winner) as the function of the layer returns it."""
        return self._conv_forward(input, self.weight, self.bias, return_winner)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None, return_winner: bool = False) -> Any:
        padding: Padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        call = (input, weight, bias, self.stride, padding, self.dilation, self.groups)
        return self._convolve(*call, return_winner=return_winner)

    def _convolve(self, *call: Any, **options: Any) -> Any:
        raise NotImplementedError


class TIConv2d(_Convolution, nn.Conv2d):
    """A locally transformation-invariant convolution: `Conv2d` that finds its patterns turned, sheared or rescaled.

    Takes the arguments of `torch.nn.Conv2d`, has its parameters, its output shape and its `state_dict`, so that weights
    load in either direction. See `scaleconv.ti_conv2d` for what is computed. A `state_dict` remembers the transforms.
    Loaded into a layer with other ones, it warns.

    `padding_mode` works as in `Conv2d`: anything but 'zeros' extends the input before the layer sees it.

    Args:
        in_channels … dtype: those of `torch.nn.Conv2d`.
        transforms: the maps under which the filters are applied; distinct, the identity among them.
        interpolation: 'bilinear' or 'nearest'.
        border: what lies beyond the image, and beyond the responses: 'zeros' (which take no part), 'clamp', 'reflect'.

    Example:
        >>> from scaleconv import rotation
        >>> layer = TIConv2d(3, 16, 3, padding=1, transforms=[rotation(degrees) for degrees in range(0, 360, 90)])
        >>> layer(torch.rand(2, 3, 8, 8)).shape
        torch.Size([2, 16, 8, 8])
        >>> layer
        TIConv2d(3, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), transforms=4)
    """

    axes = 2
    remembered = "transforms"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        transforms: Iterable[Transform],
        interpolation: Literal["bilinear", "nearest"] = "bilinear",
        border: Literal["zeros", "clamp", "reflect"] = "zeros",
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )
        check_reading(interpolation, border)
        self.transforms = check_transforms(transforms)
        self.interpolation = interpolation
        self.border = border

    def _convolve(self, *call: Any, **options: Any) -> Any:
        options |= {"interpolation": self.interpolation, "border": self.border}
        return ti_conv2d(*call, transforms=self.transforms, **options)

    def extra_repr(self) -> str:
        options = (("interpolation", self.interpolation, "bilinear"), ("border", self.border, "zeros"))
        named = "".join(f", {name}={value}" for name, value, usual in options if value != usual)
        return f"{super().extra_repr()}, transforms={len(self.transforms)}{named}"


class SIConv2d(TIConv2d):
    """A locally scale-invariant convolution: `Conv2d` that finds its patterns at many scales.

    Takes the arguments of `torch.nn.Conv2d`, has its parameters, its output shape and its `state_dict`, so that weights
    load in either direction. See `scaleconv.si_conv2d` for what is computed and what is invariant. Called with
    `return_winner=True` it returns (output, winner).

    A `state_dict` remembers the scales. Loaded into a layer with other ones, it warns.

    `padding_mode` works as in `Conv2d`: anything but 'zeros' extends the input before the layer sees it.

    Args:
        in_channels … dtype: those of `torch.nn.Conv2d`.
        scales: the factors at which the filters are applied; distinct, positive, 1 among them.
        antialias: average pixels when the input is shrunk. The paper does not.

    Example:
        >>> layer = SIConv2d(3, 16, 3, padding=1)
        >>> layer.load_state_dict(nn.Conv2d(3, 16, 3, padding=1).state_dict())
        <All keys matched successfully>
        >>> layer
        SIConv2d(3, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), scales=(0.63, 0.794, 1, 1.26, 1.59, 2))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        scales: Iterable[float] = DEFAULT_SCALES,
        antialias: bool = False,
    ) -> None:
        super(TIConv2d, self).__init__(  # its transforms follow from its scales
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )
        self.scales = check_scales(scales)
        self.antialias = check_flag("antialias", antialias)

    remembered = "scales"
    interpolation = "bilinear"
    border = "zeros"

    @property
    def transforms(self) -> tuple[Transform, ...]:  # type: ignore[override]
        """The scales as transforms."""
        return tuple(scaling(scale) for scale in self.scales)

    def _convolve(self, *call: Any, **options: Any) -> Any:
        return si_conv2d(*call, scales=self.scales, antialias=self.antialias, **options)

    def extra_repr(self) -> str:
        return f"{nn.Conv2d.extra_repr(self)}, {_named(self.scales, self.antialias)}"


class _SIConv(_Convolution):
    """What `SIConv1d` and `SIConv3d` have in common."""

    def __init__(
        self, *args: Any, scales: Iterable[float] = DEFAULT_SCALES, antialias: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.scales, self.antialias = check_scales(scales), check_flag("antialias", antialias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {_named(self.scales, self.antialias)}"


class SIConv1d(_SIConv, nn.Conv1d):
    """`SIConv2d` for signals: `Conv1d` that finds its patterns at many scales. See `scaleconv.si_conv1d`.

    Args:
        args, kwargs: those of `torch.nn.Conv1d`.
        scales, antialias: as in `SIConv2d`.

    Example:
        >>> SIConv1d(1, 8, 5, padding=2, scales=(1, 2))(torch.rand(4, 1, 50)).shape
        torch.Size([4, 8, 50])
    """

    axes = 1

    def _convolve(self, *call: Any, **options: Any) -> Any:
        return si_conv1d(*call, scales=self.scales, antialias=self.antialias, **options)


class SIConv3d(_SIConv, nn.Conv3d):
    """`SIConv2d` for volumes: `Conv3d` that finds its patterns at many scales. See `scaleconv.si_conv3d`.

    Args:
        args, kwargs: those of `torch.nn.Conv3d`.
        scales, antialias: as in `SIConv2d`.

    Example:
        >>> SIConv3d(1, 2, 3, padding=1, scales=(1, 0.7))(torch.rand(1, 1, 6, 7, 8)).shape
        torch.Size([1, 2, 6, 7, 8])
    """

    axes = 3

    def _convolve(self, *call: Any, **options: Any) -> Any:
        return si_conv3d(*call, scales=self.scales, antialias=self.antialias, **options)


def _named(scales: Iterable[float], antialias: bool) -> str:
    """The scales of a layer as its text names them."""
    return f"scales={scales_as_text(scales)}{', antialias=True' if antialias else ''}"
