"""One drawn call each: what is called with what, and what must come out."""

import copy
import math
from functools import partial
from itertools import compress, pairwise
from random import Random

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fuzz.matrices import aligned_responses, read_matrix
from helpers.tolerance import TOLERANCE
from scaleconv import ScaleInvariant, SIConv2d, affine, convert, revert, rotation, scaling, shear, si_conv2d, ti_conv2d

DTYPES = (torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16)
SCALES = (0.5, 2.0, 3.0, 0.25, 4.0, 1.5)


def run(seed, number, device="cpu", kinds=None):
    """Run a case of one of the kinds, or of all; return its kind, and raise what is wrong with it."""
    kinds, dice = kinds or KINDS, Random(f"{seed} {number}")
    kind = dice.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
    kinds[kind][1](dice, device)
    return kind


class Call:
    """Arguments of a convolution, every axis of its own."""

    def __init__(self, dice):
        self.groups = dice.choice([1, 1, 1, 2, 3])
        per_group = dice.choice([1, 1, 2, 3, 16, 17])
        filters = self.groups * dice.choice([1, 2, 3])
        if dice.random() < 0.15:  # depthwise
            self.groups, per_group = dice.choice([2, 5, 8]), 1
            filters = self.groups
        self.kernel = [dice.randint(1, 5) for _ in "hw"]
        self.stride = [dice.choice([1, 1, 2, 3]) for _ in "hw"]
        self.dilation = [dice.choice([1, 1, 1, 2, 3]) for _ in "hw"]
        self.padding = [dice.choice([0, 0, 1, 2]) for _ in "hw"]
        if dice.random() < 0.1:
            self.padding = dice.choice(["same", "valid"])
            self.stride = [1, 1] if self.padding == "same" else self.stride
        extent = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        least = [max(1, n - 2 * p) for n, p in zip(extent, self.pads(first=True), strict=True)]
        size = [n + dice.choice([0, 0, 1, 2, 3, 5, 8]) for n in least]
        self.images_shape = [dice.choice([0, 1, 1, 2, 3]), self.groups * per_group, *size]
        self.weight_shape = [filters, per_group, *self.kernel]
        self.has_bias = dice.random() < 0.7

    def pads(self, first=False):
        """Before and after each axis; or only before."""
        total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True)]
        by_name = {"valid": [(0, 0)] * 2, "same": [(t // 2, t - t // 2) for t in total]}
        pads = by_name[self.padding] if isinstance(self.padding, str) else [(p, p) for p in self.padding]
        return [pad[0] for pad in pads] if first else pads

    def arguments(self):
        names = ("stride", "padding", "dilation", "groups")
        return {name: value if isinstance(value := getattr(self, name), (int, str)) else tuple(value) for name in names}

    def tensors(self, dice, dtype, device):
        """Images, weight and bias in drawn layouts; the bias may be None."""
        shapes = [self.images_shape, self.weight_shape, self.weight_shape[:1] if self.has_bias else None]
        return [None if shape is None else draw_tensor(dice, shape, dtype).to(device) for shape in shapes]


def draw_tensor(dice, shape, dtype):
    """Numbers of one of several kinds in one of several layouts."""
    random = torch.Generator().manual_seed(dice.getrandbits(40))
    values = torch.randn(shape, generator=random, dtype=torch.float64)
    kind = dice.choice(["normal"] * 4 + ["whole", "zero", "positive"])
    values = {"normal": values, "whole": values.round(), "zero": values * 0, "positive": values.abs()}[kind].to(dtype)
    layout = dice.choice(["contiguous", "contiguous", "channels_last", "transposed", "sliced", "expanded"])
    if layout == "channels_last" and len(shape) == 4:
        return values.to(memory_format=torch.channels_last)
    if layout == "transposed":
        return values.mT.contiguous().mT if len(shape) > 1 else values
    if layout == "sliced":
        wider = values.repeat_interleave(2, -1)
        return wider[..., ::2]
    if layout == "expanded" and shape[0] > 1:
        return values[:1].expand(shape)
    return values


def draw_scales(dice):
    count = dice.choice([0, 1, 2, 3, 4])
    drawn = {
        dice.choice([*SCALES, dice.uniform(0.2, 1), dice.uniform(1, 3), 1 + dice.uniform(-1e-3, 1e-3)])
        for _ in range(count)
    }
    scales = [1.0, *(drawn - {1.0})]
    dice.shuffle(scales)
    return tuple(scales)


def maps_of(scales):
    return [((s, 0.0), (0.0, s)) for s in scales]


def fitting(scales, size, least):
    """1, and the scales at which a level has so many pixels at least: the module takes no fewer."""
    return tuple(
        s for s in scales if s == 1 or all(n >= few for n, few in zip(level_size(size, s), least, strict=True))
    )


def level_size(size, scale):
    return [n if scale == 1 else math.floor(scale * n + 1e-6) for n in size]


def draw_transform(dice):
    kind = dice.choice(["rotation", "quarter", "scales", "shear", "mirror"])
    if kind == "rotation":
        return rotation(dice.uniform(-180, 180))
    if kind == "quarter":
        return rotation(dice.choice([45, 90, 135, 180, 270]))
    if kind == "scales":
        return scaling(dice.choice([0.5, 0.8, 1.7, 2.0]), dice.uniform(0.4, 2.2))
    if kind == "shear":
        return shear(dice.uniform(-1, 1), dice.uniform(-0.7, 0.7))
    return affine(dice.choice([((1, 0), (0, -1)), ((-1, 0), (0, 2)), ((0, 1), (1, 0))]))


def eager(function):
    return function


def compiled(function, backend="inductor"):
    """By the compiler, which here cannot fall back to eager calls."""
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


def captured(function):
    """As a compiler sees the call, forward and backward, without the minutes that its code takes to make."""
    return compiled(function, "aot_eager")


def mapped(function):
    """`torch.vmap` over the images, of which it needs one at least."""

    def call(images, *others, **arguments):
        if images.ndim == 3 or not len(images):
            return function(images, *others, **arguments)
        return torch.vmap(lambda image: function(image, *others, **arguments))(images)

    return call


def transformed(function):
    """Inside `torch.func.vjp`, where plain operations evaluate the call."""

    def call(*tensors, **arguments):
        given = [tensor for tensor in tensors if tensor is not None]
        output, _, winner = torch.func.vjp(lambda *some: function(*some, **arguments), *given, has_aux=True)
        return output, winner

    return call


def check_si_conv2d(dice, device, way=eager):
    call, scales, antialias = Call(dice), draw_scales(dice), dice.random() < 0.2
    options = {"scales": scales, "antialias": antialias}
    check_call(dice, device, call, way(si_conv2d), maps_of(scales), options, antialias=antialias)


def check_ti_conv2d(dice, device, way=eager):
    call = Call(dice)
    if isinstance(call.padding, str):
        call.padding = [0, 0] if call.padding == "valid" else call.padding
    drawn = [draw_transform(dice) for _ in range(dice.choice([1, 2, 3]))]
    transforms = [each for each in {each.numbers: each for each in drawn}.values() if each != rotation(0)]
    transforms.insert(dice.randint(0, len(transforms)), rotation(0))
    interpolation, border = dice.choice(["bilinear", "nearest"]), dice.choice(["zeros", "clamp", "reflect"])
    reading = {"interpolation": interpolation, "border": border}
    maps = [each.matrix for each in transforms]
    check_call(dice, device, call, way(ti_conv2d), maps, {"transforms": tuple(transforms), **reading}, **reading)


def check_call(dice, device, call, function, maps, options, dtypes=DTYPES, **reading):
    """Output, winner and gradients of a call against the matrices."""
    dtype = dice.choice(dtypes)
    tensors = call.tensors(dice, dtype, device)
    unbatched = call.images_shape[0] == 1 and dice.random() < 0.1
    graded = [tensor is not None and dice.random() < 0.8 for tensor in tensors]
    leaves = require_grads([tensor if tensor is None else tensor.detach() for tensor in tensors], graded)
    arguments = {**call.arguments(), **options}
    given = [leaves[0][0] if unbatched else leaves[0], *leaves[1:]]
    if function in (si_conv2d, ti_conv2d) and any(graded) and not unbatched and dice.random() < 0.2:
        keep = {"use_reentrant": dice.random() < 0.5, "preserve_rng_state": False}
        output, winner = checkpoint(partial(function, **arguments, return_winner=True), *given, **keep)
    else:
        output, winner = function(*given, **arguments, return_winner=True)
    if unbatched:
        output, winner = output[None], winner[None]
    exact = require_grads([tensor if tensor is None else tensor.double().cpu() for tensor in tensors], graded)
    aligned = aligned_responses(*exact, call.stride, call.pads(), call.dilation, call.groups, maps, **reading)
    assert output.dtype == dtype
    assert output.shape == aligned.shape[1:]
    assert winner.dtype == torch.uint8
    close(output, aligned.detach().amax(0), dtype, "output")
    won = aligned.gather(0, winner.cpu().long()[None])[0]
    close(won.detach(), aligned.detach().amax(0), dtype, "winner")
    if not (any(graded) and output.numel()):
        return
    if dice.random() < 0.4:
        output, factor = change_in_place(dice, output)
        won = won * factor.double().cpu()
    sent = draw_tensor(dice, output.shape, dtype)
    output.backward(sent.to(device))  # which reentrant checkpointing wants
    true = iter(torch.autograd.grad(won, list(compress(exact, graded)), sent.double()))
    for leaf, name in compress(zip(leaves, ("input", "weight", "bias"), strict=True), graded):
        close(leaf.grad, next(true), dtype, f"gradient of {name}")


def require_grads(tensors, graded):
    return [tensor.requires_grad_() if wanted else tensor for tensor, wanted in zip(tensors, graded, strict=True)]


def change_in_place(dice, output):
    """The output after a drawn operation in place, on all of it or on a view, and what it was multiplied by."""
    factor = torch.ones_like(output)
    kind = dice.choice(["relu_", "mul_", "channels", "corner", "transposed", "+="])
    if kind == "relu_":
        factor.copy_(output.detach() > 0)
        output.relu_()
    elif kind == "+=":
        output += 3
    else:
        views = {
            "mul_": lambda tensor: tensor,
            "channels": lambda tensor: tensor[:, ::2],
            "corner": lambda tensor: tensor[..., :1, -1:],
            "transposed": lambda tensor: tensor.permute(0, 2, 3, 1)[..., -1],
        }
        for tensor in (output, factor):
            views[kind](tensor).mul_(2)
    return output, factor


class Checkpointed(nn.Sequential):
    """A block that is computed again in the backward pass by one of two ways, or not (None)."""

    def __init__(self, block, reentrant):
        super().__init__(*block)
        self.reentrant = reentrant

    def forward(self, x):
        forward = super().forward
        return forward(x) if self.reentrant is None else checkpoint(forward, x, use_reentrant=self.reentrant)


def check_norms(dice, device):
    """`ScaleInvariant` around blocks with BatchNorm in training: checkpointing changes no output and no gradient."""
    scales, layout = draw_scales(dice), dice.choice([torch.contiguous_format, torch.channels_last])
    size = [dice.randint(7, 14) for _ in "hw"]
    scales = fitting(scales, size, (3, 3))
    torch.manual_seed(dice.getrandbits(30))
    channels = [2, *(dice.choice([2, 3]) for _ in range(dice.randint(1, 3)))]
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=dice.random() < 0.5))
        for a, b in pairwise(channels)
    ]
    reentrant = [dice.choice([None, True, False]) for _ in blocks]
    images = draw_tensor(dice, [dice.randint(2, 4), 2, *size], torch.float64).to(device, memory_format=layout)
    pool, found = dice.choice(["max", "mean"]), []
    for kinds in ([None] * len(blocks), reentrant):
        module = nn.Sequential(*map(Checkpointed, copy.deepcopy(blocks), kinds)).double().to(device)
        pyramid = ScaleInvariant(module, scales, pool=pool)
        leaf = images.detach().requires_grad_()
        output = pyramid(leaf)
        output.square().sum().backward()
        found.append([output.detach(), leaf.grad, *(parameter.grad for parameter in module.parameters())])
    for plain, checkpointed in zip(*found, strict=True):
        close(checkpointed, plain.cpu(), torch.float64, f"checkpointing {reentrant}")


def close(actual, expected, dtype, what):
    if not expected.numel():
        assert actual.shape == expected.shape, what
        return
    limit = 2 * TOLERANCE[dtype] * max(1.0, expected.abs().max().item())
    error = (actual.double().cpu() - expected).abs().max().item()
    assert error <= limit, f"{what}: off by {error:.3g}, allowed {limit:.3g}"


def check_vectors(dice, device):
    """`ScaleInvariant` around a module with vector output, its levels at their own size, that of the input or any."""
    scales, pool = draw_scales(dice), dice.choice(["max", "logsumexp", "mean"])
    size = [dice.randint(9, 20) for _ in "hw"]
    scales = fitting(scales, size, (5, 5))
    torch.manual_seed(dice.getrandbits(30))
    module = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().to(device)
    images = draw_tensor(dice, [dice.randint(1, 3), 2, *size], torch.float64).to(device)
    window = dice.choice(["own", "own", "input", (dice.randint(5, 24), dice.randint(5, 24))])
    answers = []
    for s in scales:
        level = {"own": level_size(size, s), "input": size}.get(window) or list(window)
        grid = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in level)).numpy()
        places = (grid - [(n - 1) / 2 for n in level]) / s + [(n - 1) / 2 for n in size]
        matrix = torch.from_numpy(read_matrix(places.clip(0, [n - 1 for n in size]), size)[0]).to(device)
        answers.append(module((images.flatten(2) @ matrix.T).unflatten(2, level)))
    every = torch.stack(answers)
    expected = {"max": every.amax(0), "mean": every.mean(0), "logsumexp": every.logsumexp(0)}[pool]
    actual = ScaleInvariant(module, scales, pool=pool, size=window)(images).detach()
    close(actual, expected.detach().cpu(), torch.float64, f"{pool}, {window}")


def check_maps(dice, device):
    """`ScaleInvariant` around a convolution is `si_conv2d`: output, winner and gradients."""
    call, scales = Call(dice), draw_scales(dice)
    call.images_shape[0] = max(1, call.images_shape[0])
    call.stride = [1, 1]  # the module is PyTorch's, which is wrong, or crashes, in corners of other strides
    extent = [d * (k - 1) + 1 for d, k in zip(call.dilation, call.kernel, strict=True)]
    pads, sizes = call.pads(), call.images_shape[2:]
    offset = tuple((n - 1) / 2 - pad[0] for n, pad in zip(extent, pads, strict=True))
    scales = fitting(
        scales, sizes, [max(1, n - sum(p), 2 * o + 1) for n, p, o in zip(extent, pads, offset, strict=True)]
    )

    def invariant(images, weight, bias, return_winner, **arguments):
        plain = nn.Conv2d(images.shape[-3], len(weight), tuple(weight.shape[2:]), **arguments, bias=bias is not None)
        wrapped = ScaleInvariant(plain.to(weight), scales, stride=tuple(call.stride), offset=offset)
        given = {"module.weight": weight} | ({} if bias is None else {"module.bias": bias})
        batch = images if images.ndim == 4 else images[None]
        found = torch.func.functional_call(wrapped, given, (batch,), {"return_winner": return_winner})
        return found if images.ndim == 4 else tuple(each[0] for each in found)

    check_call(dice, device, call, invariant, maps_of(scales), {}, dtypes=(torch.float64, torch.float32))


def check_long_strides(dice, device):
    """Steps that leave one output, or few."""
    call, scales = Call(dice), draw_scales(dice)
    if call.padding != "same":
        call.stride = [dice.choice([1, 7, 20, 1000, 2**31 - 1]) for _ in "hw"]
    check_call(dice, device, call, si_conv2d, maps_of(scales), {"scales": scales})


def check_convert(dice, device):
    """A converted chain of layers is the chain of their functions, and reverts bit for bit."""
    layers, channels = [], 3
    for _ in range(dice.randint(1, 3)):
        filters = dice.choice([2, 3, 4])
        kernel, stride, padding = dice.choice([2, 3]), dice.choice([1, 2]), dice.choice([0, 1])
        layers.append(nn.Conv2d(channels, filters, kernel, stride, padding, bias=dice.random() < 0.7))
        layers.append(dice.choice([nn.ReLU, nn.Tanh])())
        channels = filters
    plain, scales = nn.Sequential(*layers).double().to(device), draw_scales(dice)
    images = draw_tensor(dice, [2, 3, dice.randint(15, 20), dice.randint(15, 20)], torch.float64).to(device)
    converted, value = convert(plain, scales=scales, where=lambda *_: True), images
    assert list(converted.state_dict()) == list(plain.state_dict())
    for layer in plain:
        if isinstance(layer, nn.Conv2d):
            tensors = [None if each is None else each.cpu() for each in (value, layer.weight, layer.bias)]
            pads = [(p, p) for p in layer.padding]
            aligned = aligned_responses(*tensors, layer.stride, pads, layer.dilation, 1, maps_of(scales))
            value = aligned.amax(0).to(device)
        else:
            value = layer(value)
    close(converted(images).detach(), value.detach().cpu(), torch.float64, "converted")
    assert sum(isinstance(layer, SIConv2d) for layer in converted) == len(plain) // 2
    assert torch.equal(revert(converted)(images), plain(images))


# What is wrong, and the name that the message must give.
WRONG = {
    "stride": [0, -1, 1.5, "2", (1, 2, 3), None, True],
    "padding": [-1, 0.5, "full", (1, 2, 3), None, True],
    "dilation": [0, -2, 2.0, (1, 1, 1), None],
    "groups": [0, -1, 7, 1.0, None, "1"],
    "scales": [
        *((), (2.0,), (1.0, 1.0), (1.0, -2.0), (1.0, 0.0), (1.0, math.nan), (1.0, math.inf), (1.0, 1e9)),
        *("12", 1.0, None, (1.0, "2"), {1.0, 2.0}, (1.0, True)),
    ],
}

WRONG_TRANSFORMS = {
    "transforms": [(), (rotation(90),), (rotation(0), rotation(0)), (rotation(0), 2.0), "r", 3, None, {rotation(0)}],
    "interpolation": ["bicubic", None, 1],
    "border": ["repeat", None, 0],
}
WRONG_PYRAMID = {
    "module": [None, "conv", nn.Conv2d],
    "scales": WRONG["scales"],
    "pool": ["min", None, 1],
    "keep": ["some", (2.0, 3.0), (1.0,), 1.0],
    "size": ["half", None, 0, 2.5, (3,)],
    "norm": ["batch", None],
    "antialias": ["yes", 1, None],
    "stride": [-1.0, 0],
}
WRONG_CONVERSION = {
    "model": [None, 3, [nn.Conv2d(1, 1, 1)]],
    "scales": WRONG["scales"],
    "antialias": ["yes", 1],
    "inplace": ["yes", 1, None],
    "exclude": [3, 1.5],
}


def spoiled(dice, wrong):
    """The name of an argument and a value that it must not have."""
    name = dice.choice(list(wrong))
    return name, dice.choice(wrong[name])


def refused(name):
    """What is raised names the argument."""
    return pytest.raises((ValueError, TypeError), match=f"`{name}`")


def check_refused_transforms(dice, device):
    call = Call(dice)
    tensors = call.tensors(dice, torch.float32, device)
    name, value = spoiled(dice, {key: WRONG[key] for key in ("stride", "padding", "dilation")} | WRONG_TRANSFORMS)
    arguments = {**call.arguments(), "transforms": (rotation(0), rotation(dice.uniform(1, 179))), name: value}
    with refused(name):
        ti_conv2d(*tensors, **arguments)


def check_refused_pyramid(dice, device):
    name, value = spoiled(dice, WRONG_PYRAMID)
    arguments = {"module": nn.Conv2d(1, 2, 3).to(device), "scales": draw_scales(dice), name: value}
    with refused(name):
        ScaleInvariant(**arguments, **({"offset": 0} if name == "stride" else {}))


def check_refused_conversion(dice, device):
    name, value = spoiled(dice, WRONG_CONVERSION)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3)).to(device)
    with refused(name):
        convert(**{"model": plain, "scales": draw_scales(dice), name: value})
    assert not any(isinstance(layer, SIConv2d) for layer in plain)


def check_refused(dice, device):
    """One argument of a valid call is spoiled: an error that names it."""
    call = Call(dice)
    tensors = call.tensors(dice, torch.float32, device)
    arguments = {**call.arguments(), "scales": draw_scales(dice)}
    name = dice.choice([*WRONG, "input", "weight", "bias", "dtype"])
    if name in WRONG:
        value = dice.choice(WRONG[name])
        if name == "groups" and value == 7 and call.images_shape[1] == 7 * call.weight_shape[1]:
            return
        arguments[name] = value
    elif name == "input":
        tensors[0] = dice.choice([tensors[0][..., 0, 0], tensors[0].new_zeros(1, 1), None, [[1.0]], tensors[0][:, :0]])
    elif name == "weight":
        tensors[1] = dice.choice([tensors[1][0], tensors[1][:0], None, tensors[1].repeat(1, 2, 1, 1)])
    elif name == "bias":
        tensors[2] = dice.choice([tensors[1], torch.zeros(call.weight_shape[0] + 1, device=device), 3.0])
    else:
        tensors[1] = tensors[1].double()
    with refused({"dtype": "weight"}.get(name, name)):
        si_conv2d(*tensors, **arguments)


def _by(way, weight):
    checks = {"si_conv2d": check_si_conv2d, "ti_conv2d": check_ti_conv2d}
    return {f"{name}, {way.__name__}": (weight, partial(check, way=way)) for name, check in checks.items()}


# How often each is drawn, and its check.
QUICK = {
    "si_conv2d": (50, check_si_conv2d),
    "ti_conv2d": (25, check_ti_conv2d),
    "refused": (15, check_refused),
    "refused, ti_conv2d": (2, check_refused_transforms),
    "refused, ScaleInvariant": (2, check_refused_pyramid),
    "refused, convert": (2, check_refused_conversion),
    "ScaleInvariant": (5, check_vectors),
    "ScaleInvariant, maps": (5, check_maps),
    "ScaleInvariant, BatchNorm": (3, check_norms),
    "convert": (5, check_convert),
    "si_conv2d, long strides": (1, check_long_strides),
    **_by(mapped, 1),
    **_by(transformed, 1),
}
KINDS = {
    **QUICK,
    **_by(captured, 0.4),  # half a second each
    **_by(compiled, 0.02),  # ten seconds each
}
