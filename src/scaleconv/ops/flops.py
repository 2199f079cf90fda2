"""How many floating-point operations the operator takes, for the counters of PyTorch: `FlopCounterMode` and its users.

To import the counter imports Triton, 70 MB of it. So the formulas are registered when somebody counts, which is when
the operator is called while the counter is imported.
"""

import sys
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from .custom_op import find_plan
from .macs import Macs, count_planned
from .plan import Plan
from .signature import Settings

COUNTER = "torch.utils.flop_counter"


def tell_counters() -> None:
    """Register the formulas once the counter is imported, also with a counter that counts already."""
    if COUNTER not in sys.modules or torch.ops.scaleconv.ti_conv2d in sys.modules[COUNTER].flop_registry:
        return
    formulas = {torch.ops.scaleconv.ti_conv2d: _forward, torch.ops.scaleconv.ti_conv2d_backward: _backward}
    for operator, formula in formulas.items():
        sys.modules[COUNTER].register_flop_formula(operator, get_raw=True)(formula)
    for mode in _get_current_dispatch_mode_stack():
        known = getattr(getattr(mode, "counter", None), "flop_registry", None)  # a copy of what was there when it began
        if isinstance(known, dict):
            known.update(formulas)


def _forward(input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any, out_val: Any = None) -> int:
    """Two operations for each multiply-accumulate, as for PyTorch's own convolution."""
    return 2 * len(input) * _count(input, weight, arguments).total


def _backward(grad: Tensor, input: Tensor, weight: Tensor, winner: Tensor, *arguments: Any, out_val: Any = None) -> int:
    *settings, needed = arguments
    return 2 * len(input) * _count(input, weight, settings).backward(*needed[:2])


def _count(input: Tensor, weight: Tensor, arguments: Any) -> Macs:
    return _of_plan(find_plan(input.shape, weight.shape, Settings.of_arguments(*arguments), not input.is_cpu))


@lru_cache(maxsize=1024)
def _of_plan(plan: Plan) -> Macs:
    return count_planned(plan)
