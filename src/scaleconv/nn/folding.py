"""Methods that fold a convolution into other layers take it for a linear one; a maximum over scales is not linear.

`reparameterize` of RepVGG, MobileOne and FastViT adds the weights of branches, `fuse` of LevIT and many detectors takes
BatchNorm into the weight, `merge` of LoRA adds an adapter to it. Each would go on without a word and give another
function. So these methods refuse, on the modules that hold a scale-invariant layer, until it is reverted.
"""

import inspect
from functools import partial
from typing import Any, NoReturn

from torch import nn

from .layers import SIConv1d, SIConv2d, SIConv3d

FOLDING = ("fuse", "merge", "reparameterize", "switch_to_deploy")


def _refuse(kind: str, method: str, *_: Any, **__: Any) -> NoReturn:
    """Stands in a module in place of a method."""
    raise RuntimeError(
        f"`{method}` of {kind} would fold a scale-invariant layer into others as if it were linear: "
        "call it before `convert`, or after `revert`"
    )


def refuse_folding(network: nn.Module) -> None:
    """Let the methods refuse, on every module that holds a scale-invariant layer."""
    for module in network.modules():
        if any(isinstance(each, SIConv1d | SIConv2d | SIConv3d) for each in module.modules()):
            for name in FOLDING:
                if _folds(type(module), name):
                    vars(module)[name] = partial(_refuse, type(module).__name__, name)


def allow_folding(network: nn.Module) -> None:
    """Take the refusals away."""
    for module in network.modules():
        for name in FOLDING:
            if getattr(vars(module).get(name), "func", None) is _refuse:
                del vars(module)[name]


def _folds(kind: type, name: str) -> bool:
    """Whether a class has such a method; one that needs arguments, as `fuse(features)`, does something else."""
    method = getattr(kind, name, None)
    if not inspect.isfunction(method):
        return False
    _, *parameters = inspect.signature(method).parameters.values()
    needed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(each.default is not inspect.Parameter.empty or each.kind in needed for each in parameters)
