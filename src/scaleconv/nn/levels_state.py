"""What every Module with levels tells the tools of PyTorch that save, load and script it. Computes nothing."""

import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

from torch import nn

Numbers = tuple[Any, ...]


class LevelsState(nn.Module):
    """A Module whose `state_dict` remembers its scales or transforms, and which says why it cannot be scripted.

    They are metadata beside the version that PyTorch keeps for every Module. So the keys stay those of the parameters,
    and weights of a plain `Conv2d`, or in a file without metadata, load without a word. Into a plain `Conv2d` the
    weights of such a layer load as well, since that one does not look at the metadata.
    """

    def _levels(self) -> tuple[str, Numbers]:
        """What is remembered, and under which name; numbers alone, as a file of weights may hold nothing else."""
        raise NotImplementedError

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)  # a plain dictionary has none
        if metadata is not None:
            metadata[prefix[:-1]].update([self._levels()])

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *arguments: Any
    ) -> None:
        name, levels = self._levels()
        saved = local_metadata.get(name, levels)
        if tuple(saved) != levels:
            warnings.warn(self._other_levels(saved), stacklevel=2)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *arguments)

    def _other_levels(self, saved: Numbers) -> str:
        return f"weights that were trained with other transforms are loaded into a {type(self).__name__}"

    def __prepare_scriptable__(self) -> NoReturn:
        raise RuntimeError(
            f"torch.jit.script cannot take {type(self).__name__}; use torch.export.export or torch.compile"
        )


class ScalesState(LevelsState):
    """The same of a Module with scales."""

    scales: tuple[float, ...]

    def _levels(self) -> tuple[str, Numbers]:
        return "scales", self.scales

    def _other_levels(self, saved: Numbers) -> str:
        return (
            f"weights that were trained at scales {scales_as_text(saved)} are loaded into a {type(self).__name__} "
            f"with scales {scales_as_text(self.scales)}"
        )


def scales_as_text(scales: Iterable[float]) -> str:
    """
    Example:
        >>> scales_as_text((1, 2 ** (1 / 3)))
        '(1, 1.26)'
    """
    return f"({', '.join(f'{scale:.3g}' for scale in scales)})"
