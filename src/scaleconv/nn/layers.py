"""The layer as a Module: `torch.nn.Conv2d` whose one call goes to `si_conv2d`. No maths here."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.si_conv import si_conv2d
from ..ops.signature import DEFAULT_SCALES, Padding, check_scales
from .scales_state import ScalesState

torch.fx.wrap("si_conv2d")  # a symbolic trace keeps the call whole


class SIConv2d(ScalesState, nn.Conv2d):
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
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self.scales = check_scales(scales)
        self.antialias = antialias

    def forward(self, input: Tensor, return_winner: bool = False) -> Tensor | tuple[Tensor, Tensor]:  # type: ignore[override]
        return self._conv_forward(input, self.weight, self.bias, return_winner)

    def _conv_forward(  # type: ignore[override]
        self, input: Tensor, weight: Tensor, bias: Tensor | None, return_winner: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        padding: Padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return si_conv2d(
            input,
            weight,
            bias,
            self.stride,
            padding,
            self.dilation,
            self.groups,
            scales=self.scales,
            antialias=self.antialias,
            return_winner=return_winner,
        )

    def extra_repr(self) -> str:
        scales = ", ".join(f"{scale:.3g}" for scale in self.scales)
        antialias = ", antialias=True" if self.antialias else ""
        return f"{super().extra_repr()}, scales=({scales}){antialias}"
