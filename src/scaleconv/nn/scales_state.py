"""What every Module with scales tells the tools of PyTorch that save, load and script it. Computes nothing."""

import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

from torch import nn


class ScalesState(nn.Module):
    """A Module whose `state_dict` remembers its scales, and which says why it cannot be scripted.

    The scales are metadata beside the version that PyTorch keeps for every Module. So the keys stay those of the
    parameters, and weights of a plain `Conv2d`, or in a file without metadata, load without a word. Into a plain
    `Conv2d` the weights of a scale-invariant layer load as well, since that one does not look at the metadata.
    """

    scales: tuple[float, ...]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)  # a plain dictionary has none
        if metadata is not None:
            metadata[prefix[:-1]]["scales"] = self.scales

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        saved = local_metadata.get("scales", self.scales)
        if tuple(saved) != self.scales:
            warnings.warn(
                f"weights that were trained at scales {scales_as_text(saved)} are loaded into a {type(self).__name__} "
                f"with scales {scales_as_text(self.scales)}",
                stacklevel=2,
            )
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
