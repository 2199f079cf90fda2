"""Sizes of grids and blocks. Triton has the first two as well, but called from the host they take long."""

import torch


def cdiv(count: int, size: int) -> int:
    """Blocks of this size that hold so many."""
    return -(-count // size)


def next_power_of_2(count: int) -> int:
    return 1 << (count - 1).bit_length()


def vector_width(channels: int, dtype: torch.dtype) -> int:
    """How many neighbouring channels one access of 16 bytes takes, all of the same pixel."""
    width = 16 // dtype.itemsize
    while channels % width:
        width //= 2
    return width
