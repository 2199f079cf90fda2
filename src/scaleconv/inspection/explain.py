"""What a network saw: its prediction, and for each scale-invariant layer which scale won where, and by what response.

Numbers only, on torch alone; `scaleconv explain` draws them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nn.layers import SIConv2d
from ..nn.observe import evaluating, find_layers, given_to, hooked, winner_of
from ..ops.levels import level_size, rescale


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Explanation:
    """What a network made of one image.

    Attributes:
        prediction: the class of the highest score: () for one label, (H, W) where every pixel has one.
        confidence: its probability by softmax, of the same shape.
        layers: the scale-invariant layers by name, in the order in which they were called.
    """

    prediction: Tensor
    confidence: Tensor
    layers: dict[str, LayerView]


def explain(model: nn.Module, image: Tensor) -> Explanation:
    """Show what a network with scale-invariant layers made of an image.

    Shapes: image (C, H, W) or (1, C, H, W); scores of the model (1, classes) or (1, classes, H, W).

    The model is called once, in evaluation mode. Of a layer that is called several times, the last call is shown.

    Args:
        model: a network that holds at least one `SIConv2d`, on the device of the image.
        image: as the network expects it, prepared like those it was trained on.

    Returns:
        The prediction with its confidence, and a view of each layer.

    Raises:
        TypeError: `model` is not a Module, or `image` not a tensor.
        ValueError: the model holds no `SIConv2d`, or the image is not one image of as many channels as the first takes.

    Example:
        >>> network = nn.Sequential(SIConv2d(3, 8, 5), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        >>> found = explain(network, torch.rand(3, 32, 32))
        >>> found.prediction.shape, found.layers["0"].winning_scale.shape, len(found.layers["0"].levels)
        (torch.Size([]), torch.Size([28, 28]), 6)
    """
    layers = find_layers(model)
    if not isinstance(image, Tensor):
        raise TypeError(f"`image` must be a tensor, got {type(image).__name__}")
    batch = image.unsqueeze(0) if image.dim() == 3 else image
    if batch.dim() != 4 or len(batch) != 1:
        raise ValueError(f"`image` must be (C, H, W) or (1, C, H, W), got shape {tuple(image.shape)}")
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    if batch.shape[1] != first.in_channels:
        raise ValueError(f"`image` channels (={batch.shape[1]}) must be those of the network (={first.in_channels})")
    views: dict[str, LayerView] = {}
    handles = [
        layer.register_forward_hook(
            lambda layer, args, kwargs, output, name=name: views.__setitem__(
                name, _view(layer, given_to(args, kwargs), output)
            ),
            with_kwargs=True,
        )
        for name, layer in layers.items()
    ]
    with hooked(handles), evaluating(model):
        scores = model(batch)
    confidence, prediction = scores.softmax(1).max(1)
    return Explanation(prediction[0], confidence[0], views)


def _view(layer: SIConv2d, given: Tensor, output: Tensor) -> LayerView:
    winner = winner_of(layer, given)
    channel = int(output[0].flatten(1).amax(1).argmax())
    pads = layer._reversed_padding_repeated_twice
    if layer.padding_mode != "zeros":
        given, pads = F.pad(given, pads, mode=layer.padding_mode), [0] * 4
    # The strongest channel alone: its filter, and the channels of the input that its group sees.
    width = layer.in_channels // layer.groups
    start = channel // (layer.out_channels // layer.groups) * width
    weight = layer.weight[channel : channel + 1]
    bias = None if layer.bias is None else layer.bias[channel : channel + 1]
    levels = []
    for scale in layer.scales:
        size = level_size(given.shape[2:], scale)
        if min(size) < 1:
            continue
        image = rescale(given, scale, size, layer.antialias) if scale != 1 else given
        padded = F.pad(image[:, start : start + width], pads)
        kernel = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        if padded.shape[2] < kernel[0] or padded.shape[3] < kernel[1]:
            continue
        response = F.conv2d(padded, weight, bias, layer.stride, 0, layer.dilation)
        levels.append(LevelView(scale, image[0], response[0, 0]))
    return LayerView(layer.scales, output[0], winner[0], channel, tuple(levels))
