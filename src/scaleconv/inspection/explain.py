"""What a network saw: its prediction, and for each scale-invariant layer which scale won where, and by what response.

Who has won where scales tie is said by `nn.observe.winner_of`: scale 1.
"""

from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..drawing import reach_of
from ..nn.layers import SIConv2d
from ..nn.observe import Call, answer, check_call, evaluating, find_layers, images_of, watching, winner_of
from ..nn.rerouted import Reroute, arguments_of
from ..ops.call import find_call
from ..ops.geometry import Level
from ..ops.levels import rescale
from ..table import Table
from .pictures import (
    Figure,
    Tabled,
    brief,
    finish_panel,
    make_figure,
    scale_bar,
    show_image,
    show_scales,
    sizes_as_text,
)


@dataclass(frozen=True, repr=False)
class LevelView:
    """One level of a layer's pyramid.

    Attributes:
        scale: its factor.
        image: (C, h, w), the layer's input at this scale.
        response: (h', w') of the layer's strongest channel, at the level's own size.
    """

    scale: float
    image: Tensor
    response: Tensor

    def __repr__(self) -> str:
        return brief("LevelView", scale=f"{self.scale:.3g}", image=self.image, response=self.response)


@dataclass(frozen=True, repr=False)
class LayerView:
    """One scale-invariant layer, with one image before it.

    Attributes:
        scales: of the layer.
        output: (M, H', W').
        winner: (M, H', W') uint8, the index in `scales` of the level each output came from.
        channel: the channel with the strongest output of all.
        levels: those that take part, in the order of `scales`.
    """

    scales: tuple[float, ...]
    output: Tensor
    winner: Tensor
    channel: int
    levels: tuple[LevelView, ...]

    @property
    def strength(self) -> Tensor:
        """(H', W'): the strongest output at each position."""
        return self.output.amax(0)

    @property
    def winning_scale(self) -> Tensor:
        """(H', W'): at each position, the scale that won in the channel with the strongest output there."""
        index = self.winner.gather(0, self.output.argmax(0, keepdim=True))[0]
        return torch.tensor(self.scales, device=index.device)[index.long()]

    def __repr__(self) -> str:
        return brief("LayerView", output=self.output, channel=self.channel, levels=len(self.levels))


@dataclass(frozen=True, repr=False)
class Explanation(Tabled):
    """What a network made of one image. It shows itself as a table.

    Attributes:
        prediction: the class of the highest score: () for one label, (H, W) where every pixel has one. Of a network
            without classes, what it returned: (H, W) for a depth map.
        confidence: its probability by softmax, of the same shape; None without classes.
        layers: the scale-invariant layers by name, in the order in which they were called.
        image: (C, H, W), as the network was given it.
    """

    prediction: Tensor
    confidence: Tensor | None
    layers: dict[str, LayerView]
    image: Tensor | None = None

    @property
    def scales(self) -> list[float]:
        """Those of all layers, in ascending order."""
        return sorted({scale for view in self.layers.values() for scale in view.scales})

    @property
    def mean_confidence(self) -> float:
        """Over all positions; NaN without classes."""
        return nan if self.confidence is None else float(self.confidence.mean())

    def table(self) -> Table:
        """For each layer, the share of positions at which each scale won in the strongest channel there."""
        rows = []
        for name, view in self.layers.items():
            won = view.winning_scale
            shares = {scale: (won == torch.tensor(scale, dtype=won.dtype)).double().mean() for scale in view.scales}
            cells = [f"{100 * float(shares[scale]):.1f}" if scale in shares else "–" for scale in self.scales]
            rows.append((name or "(model)", sizes_as_text(view.output.shape), str(view.channel), *cells))
        header = ("layer", "output", "strongest channel", *(f"{scale:.3g}" for scale in self.scales))
        return Table(f"{self._predicted()}; positions won by each scale, percent", header, rows)

    def _predicted(self) -> str:
        if self.confidence is None:
            if not self.prediction.ndim:
                return f"Prediction {self.prediction.item():.4g}"
            return f"Prediction of {sizes_as_text(self.prediction.shape)}, without classes"
        sure = f"{100 * self.mean_confidence:.1f} %"
        if not self.prediction.ndim:
            return f"Class {int(self.prediction)}, confidence {sure}"
        return f"A class for each of {sizes_as_text(self.prediction.shape)} positions, mean confidence {sure}"

    def plot(self) -> Figure:
        """Draw the image, a prediction that is a map, and the winning scale in each layer.

        At each position of a layer the colour is that of the scale that won in the channel with the strongest output
        there. It fades to black where that output is weak: at half of the positions it is black.
        """
        pictures = [self.image] if self.image is not None else []
        mapped = self.prediction.ndim == 2
        figure, axes = make_figure(len(pictures) + mapped + len(self.layers))
        panels = iter(axes)
        for image in pictures:
            show_image(next(panels), image, "image" if mapped or self.prediction.ndim else self._predicted())
        if mapped:
            self._show_prediction(next(panels))
        reach = reach_of(self.scales)
        for axis, (name, view) in zip(panels, self.layers.items(), strict=True):
            show_scales(axis, view.winning_scale, reach, name or "(model)", view.strength)
        if self.layers:
            scale_bar(figure, axes, self.scales, reach)
        return figure

    def _show_prediction(self, axis: Any) -> None:
        """Classes in colours of their own; what is no class from dark to light."""
        colours = "gray" if self.confidence is None else "tab20"
        axis.imshow(self.prediction.detach().float().cpu().numpy(), cmap=colours, interpolation="nearest")
        finish_panel(axis, "prediction" if self.confidence is None else "predicted classes")


def explain(model: nn.Module, image: Any, *, call: Call | None = None) -> Explanation:
    """Show what a network with scale-invariant layers made of an image.

    Shapes: image (C, H, W) or (1, C, H, W); scores of the model (1, classes) or (1, classes, H, W).

    An output of another shape, such as a depth map (1, H, W), or with a single channel, such as (1, 1, H, W), or of
    integers, has no classes: it is the prediction, without the dimensions of length 1 before it, and the confidence is
    None. The model is called once, in evaluation mode. Of a layer that is called several times, the last call is shown.

    Args:
        model: a network that holds at least one `SIConv2d`, on the device of the image.
        image: as the network expects it, prepared like those it was trained on; or a batch of one image: a tuple, a
            list or a mapping, in which the first tensor like images is the image.
        call: a function of the model and a batch that returns the scores, if the network takes more than images or
            returns more than a tensor. The batch is the image as (1, C, H, W), or the batch that was given:
            `call=lambda model, batch: model(batch)["out"]`.

    Returns:
        The prediction with its confidence, and a view of each layer.

    Raises:
        TypeError: `model` is not a Module, `image` holds no tensor, or the network returns none; then the message has a
            `call` that takes one.
        ValueError: the model holds no `SIConv2d`, there is not one image, or it has not the channels of the network.

    Example:
        >>> network = nn.Sequential(SIConv2d(3, 8, 5), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        >>> found = explain(network, torch.rand(3, 32, 32))
        >>> found.prediction.shape, found.layers["0"].winning_scale.shape, len(found.layers["0"].levels)
        (torch.Size([]), torch.Size([28, 28]), 6)
    """
    layers = find_layers(model)
    check_call(call)
    batch = image.unsqueeze(0) if isinstance(image, Tensor) and image.ndim == 3 else image
    if isinstance(batch, Tensor) and (batch.ndim != 4 or len(batch) != 1):
        raise ValueError(f"`image` must be (C, H, W) or (1, C, H, W), got shape {tuple(image.shape)}")
    images = images_of(batch, "image")
    if len(images) != 1:
        raise ValueError(f"`image` must hold one image, got shape {tuple(images.shape)}")
    views: dict[str, LayerView] = {}

    def keep(name: str, layer: SIConv2d, given: Tensor, output: Tensor) -> None:
        views[name] = _view(layer, given, output)

    with watching(layers, keep), evaluating(model):
        try:
            scores = answer(model, batch, call, "image")
        except (RuntimeError, ValueError) as error:
            first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
            if call is None and images.shape[1] != first.in_channels:
                channels = f"(={images.shape[1]}) must be those of the network (={first.in_channels})"
                raise ValueError(f"`image` channels {channels}") from error
            raise
    return Explanation(*_predict(scores), views, images[0])


def _predict(scores: Tensor) -> tuple[Tensor, Tensor | None]:
    """The prediction and its confidence; None where there are no classes."""
    if not scores.ndim or len(scores) != 1:
        raise ValueError(f"`model` must return scores of one image, (1, …), got shape {tuple(scores.shape)}")
    if scores.ndim in (2, 4) and scores.shape[1] > 1 and scores.is_floating_point():
        confidence, prediction = scores.softmax(1).max(1)
        return prediction[0], confidence[0]
    alone = scores.ndim in (2, 4) and scores.shape[1] == 1
    return scores[0, 0] if alone else scores[0], None


def _view(layer: SIConv2d, given: Tensor, output: Tensor) -> LayerView:
    given, output = (each if each.ndim == 4 else each.unsqueeze(0) for each in (given, output))
    winner = winner_of(layer, given)
    channel = int(output[0].flatten(1).amax(1).argmax())
    images, weight, bias, stride, padding, dilation, groups = _convolution(layer, given)
    call = find_call(images.shape, weight.shape, stride, padding, dilation, groups, layer.scales, layer.antialias)
    pads, strides, dilations = zip(*((axis.padding, axis.stride, axis.dilation) for axis in call.axes), strict=True)
    sizes = {level.scales[0]: level.size for level in call.levels if isinstance(level, Level)}
    # The strongest channel alone: its filter, and the channels of the input that its group sees.
    width = call.in_channels // call.groups
    start = channel // (call.out_channels // call.groups) * width
    weight, bias = weight[channel : channel + 1], None if bias is None else bias[channel : channel + 1]
    levels = []
    for scale in layer.scales:
        if scale in sizes:
            image = rescale(images, scale, sizes[scale], layer.antialias) if scale != 1 else images
            padded = F.pad(image[:, start : start + width], [*pads[1], *pads[0]])
            response = F.conv2d(padded, weight, bias, strides, 0, dilations)
            levels.append(LevelView(scale, image[0], response[0, 0]))
    return LayerView(layer.scales, output[0], winner[0], channel, tuple(levels))


def _convolution(layer: SIConv2d, given: Tensor) -> tuple[Any, ...]:
    """What the layer gives to `conv2d`, once its forward has prepared input and weight, as timm's `StdConv2d` does."""
    calls: list[tuple[Any, ...]] = []

    def record(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(arguments_of(*args, **kwargs))
        return F.conv2d(*args, **kwargs)

    plain_type = getattr(layer, "plain_type", None)
    with Reroute(record):
        if plain_type is None:
            nn.Conv2d._conv_forward(layer, given, layer.weight, layer.bias)
        else:
            plain_type.forward(layer, given)
    return calls[0]
