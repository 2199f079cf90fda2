"""How many images the kernels take at a time, so that what is made of them takes a bounded amount of memory."""

from collections.abc import Iterator

from torch import Tensor

from .kernels.call import Call
from .kernels.patch_tables import PatchTables
from .signature import Signature

# What is made for a chunk of images takes at most so many times the memory of input and output, unless that is little.
WORKSPACE = 2.0
LITTLE = 16 * 2**20
SIDE_BY_SIDE = 64  # images from which the kernels take those of one position together
ENOUGH = 64 * 2**20  # bytes that so many may take where fewer, which are slower, would need less
LARGEST = 2**31 - 1  # the kernels count elements in 32 bits

Chunks = Iterator[tuple[slice, slice, int]]


def chunk_pyramids(input: Tensor, signature: Signature, tables: PatchTables, parts: int) -> Chunks:
    """Images whose pyramids to make at a time, enough of them to lie side by side unless they take much memory.

    What a pyramid is made of counts, too, as it is laid out anew.
    """
    per_image = (tables.pyramid.pixels + signature.height.length * signature.width.length) * signature.in_channels
    enough = SIDE_BY_SIDE if 2 * SIDE_BY_SIDE * per_image * input.element_size() <= ENOUGH else 1
    return chunk_images(input, signature, per_image, parts, enough)


def chunk_images(input: Tensor, signature: Signature, per_image: int, parts: int, least: int = 1) -> Chunks:
    """Images to take at a time, at least so many if there are, the filters they meet, and how many parts they are."""
    outputs = len(input) * signature.out_channels * signature.height.output_size * signature.width.output_size
    allowed = max(int(WORKSPACE * (input.numel() + outputs)), LITTLE // input.element_size())
    pieces = max(-(-len(input) * per_image // min(allowed, LARGEST)), -(-outputs // LARGEST))
    if len(input) >= least:
        pieces = min(pieces, len(input) // least)
    return _pieces(len(input), signature.out_channels, pieces, parts)


def chunk_for_local_filters(input: Tensor, signature: Signature, call: Call, parts: int) -> Chunks:
    """The same for local filters, which are made anew for each chunk: as few as can be counted."""
    outputs = len(input) * signature.out_channels * signature.height.output_size * signature.width.output_size
    cells = max(tables.cells for tables in call.local)
    filters = parts * cells * signature.out_channels * signature.in_channels
    pieces = max(-(-count // LARGEST) for count in (outputs, input.numel(), filters))
    return _pieces(len(input), signature.out_channels, pieces, parts)


def _pieces(images: int, filters: int, pieces: int, parts: int) -> Chunks:
    """A batch in about so many pieces; those of several parts are whole parts."""
    units = images if parts == 1 else parts
    step = max(1, -(-units // max(pieces, 1)))
    for start in range(0, units, step):
        count = min(step, units - start)
        size = images // units
        rows = slice(0, filters) if parts == 1 else slice(start * filters, (start + count) * filters)
        yield slice(start * size, (start + count) * size), rows, 1 if parts == 1 else count
