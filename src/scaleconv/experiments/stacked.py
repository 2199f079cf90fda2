"""Several networks of one shape trained as one: their weights lie stacked, and every operation serves all of them.

The trainers keep their own state, as views into the stacks, so each can still be tested, saved and restored. A network
learns nothing of the others: `torch.vmap` runs it once per slice, and the gradient of a sum of losses is that of each.
"""

from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ..models.pyramid import HierarchicalConvNet
from ..nn import SIConv2d
from ..ops import library
from ..ops.first_layer import MOST_WINNERS, first_layer
from ..ops.relu_pool import LARGEST_KERNEL, relu_pool
from .training import Trainer, make_optimiser


class Stack:
    """Trainers of equal networks and recipes, whose steps are taken at once."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        first = trainers[0]
        self.recipe = first.recipe
        self.template = deepcopy(first.network)
        if first.images.is_cuda and self.recipe.precision == "float32":
            _take_first_layers_at_once(self.template)
            _convolve_in_parts(self.template)
            _pool_in_one_pass(self.template)
            _take_columns_at_once(self.template)
        self.images = torch.cat([trainer.images for trainer in trainers])
        self.labels = torch.cat([trainer.labels for trainer in trainers])
        starts = list(accumulate((len(trainer.images) for trainer in trainers), initial=0))[:-1]
        self.starts = torch.tensor(starts, device=self.images.device).unsqueeze(1)
        self.order = torch.stack([trainer.order for trainer in trainers])  # (runs, batches, batch)
        self.loss = torch.stack([trainer.loss for trainer in trainers])
        self.cursor = first.cursor
        self.parameters, momenta = _stack_state(trainers)
        self.optimiser = make_optimiser(self.parameters, self.recipe, fused=self.images.is_cuda)
        for name, parameter in self.parameters.items():
            self.optimiser.state[parameter]["momentum_buffer"] = momenta[name]
        for index, trainer in enumerate(trainers):
            trainer.order, trainer.loss, trainer.cursor = self.order[index], self.loss[index], self.cursor

    def step(self) -> None:
        """Learn from the next batch, each network from its own."""
        chosen = self.order.index_select(1, self.cursor).squeeze(1) + self.starts  # (runs, batch)
        images = self.images.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        labels = self.labels.index_select(0, chosen.flatten())
        self.optimiser.zero_grad(set_to_none=True)
        mixed = self.recipe.precision == "bfloat16"
        with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
            # The gradients from all streams meet in a view, on the stream of the optimiser.
            views = {name: parameter.view_as(parameter) for name, parameter in self.parameters.items()}
            logits = torch.vmap(self._answer)(views, images).flatten(0, 1)
        losses = F.cross_entropy(logits.float() if mixed else logits, labels, reduction="none")
        means = losses.unflatten(0, chosen.shape).mean(1)
        means.sum().backward()
        self.optimiser.step()
        self.loss += means.detach()
        self.cursor += 1

    def _answer(self, parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.template, parameters, (images,))
        return logits


def _stack_state(trainers: Sequence[Trainer]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and momenta in stacks, of which those of the trainers become views."""
    named = [dict(trainer.network.named_parameters()) for trainer in trainers]
    weights, momenta = {}, {}
    for name in named[0]:
        weights[name] = torch.stack([parameters[name].detach() for parameters in named]).requires_grad_()
        momenta[name] = torch.zeros_like(weights[name], requires_grad=False)
        for index, (trainer, parameters) in enumerate(zip(trainers, named, strict=True)):
            state = trainer.optimiser.state[parameters[name]]
            if "momentum_buffer" in state:
                momenta[name][index].copy_(state["momentum_buffer"])
            state["momentum_buffer"] = momenta[name][index]
            parameters[name].data = weights[name].detach()[index]
    return weights, momenta


class _FirstConv2d(nn.Conv2d):
    """A convolution of images, which learn nothing, at some scales, with the ReLU and the pooling behind it."""

    scales: tuple[float, ...]
    pool: int

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        results: tuple[Tensor, Tensor] = first_layer(input, weight, bias, list(self.scales), self.pool, 1)
        return results[0]


def _take_first_layers_at_once(network: nn.Module) -> None:
    """Let a convolution that begins a sequence, and so sees the images, do the work of the two layers behind it."""
    for stages in [module for module in network.modules() if isinstance(module, nn.Sequential) and len(module) > 2]:
        conv, relu, pool = stages[0], stages[1], stages[2]
        scales, window = _scales_of(conv), _window(pool)
        if type(relu) is nn.ReLU and 0 < len(scales) * window**2 <= MOST_WINNERS:
            conv.__class__ = _FirstConv2d
            vars(conv).update(scales=scales, pool=window)
            stages[1], stages[2] = nn.Identity(), nn.Identity()


def _scales_of(conv: nn.Module) -> tuple[float, ...]:
    """Those of a convolution that a first layer can be, and none of any other."""
    if type(conv) not in (nn.Conv2d, SIConv2d) or getattr(conv, "antialias", False):
        return ()
    simple = conv.stride == conv.dilation == (1, 1) and conv.padding == (0, 0) and conv.groups == 1
    return getattr(conv, "scales", (1.0,)) if simple else ()


class _PartsConv2d(nn.Conv2d):
    """`Conv2d` by the kernel of the layer, which under `vmap` takes all slices in one launch; cuDNN would not."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        stride, padding, dilation = (list(map(int, pair)) for pair in (self.stride, self.padding, self.dilation))
        around = [padding[0], padding[0], padding[1], padding[1]]
        results: tuple[Tensor, Tensor] = library.si_conv2d(
            input, weight, bias, stride, around, dilation, self.groups, 1, [1.0], antialias=False
        )
        return results[0]


def _convolve_in_parts(network: nn.Module) -> None:
    for module in network.modules():
        if type(module) is nn.Conv2d and not isinstance(module.padding, str) and module.padding_mode == "zeros":
            module.__class__ = _PartsConv2d


class _ReLUMaxPool2d(nn.MaxPool2d):
    """`MaxPool2d` of the ReLU of its input, in one pass over it."""

    def forward(self, input: Tensor) -> Tensor:
        results: tuple[Tensor, Tensor] = relu_pool(input, self.kernel_size)
        return results[0]


def _pool_in_one_pass(network: nn.Module) -> None:
    """Let pooling that follows a ReLU do its work, too; both keep their places, so the names stay."""
    for stages in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        for index, (relu, pool) in enumerate(pairwise(stages)):
            if type(relu) is nn.ReLU and (window := _window(pool)):
                stages[index] = nn.Identity()
                stages[index + 1] = _ReLUMaxPool2d(window, ceil_mode=True)


class _ColumnsAtOnce(HierarchicalConvNet):
    """The hierarchical network with a stream for each column, as a small one leaves most of a GPU idle."""

    streams: list[torch.cuda.Stream]

    def columns(self, images: Tensor) -> list[Tensor]:
        here, features = torch.cuda.current_stream(), []
        for index, stream in enumerate(self.streams):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                features.append(self.column(images, index))
        for stream in self.streams:
            here.wait_stream(stream)
        return features


def _take_columns_at_once(network: nn.Module) -> None:
    if type(network) is HierarchicalConvNet:
        network.__class__ = _ColumnsAtOnce
        vars(network).update(streams=[torch.cuda.Stream() for _ in network.scales])


def _window(pool: nn.Module) -> int:
    """The side of the windows, if each pixel belongs to exactly one and a byte tells a window's winner; or else 0."""
    if type(pool) is not nn.MaxPool2d or not isinstance(side := pool.kernel_size, int):
        return 0
    beside = pool.stride == side and pool.ceil_mode and pool.padding == 0 and pool.dilation == 1
    return side if beside and side <= LARGEST_KERNEL and not pool.return_indices else 0
