"""The maps of a canvas as the kernels read them, on the GPU: for each row and each column, what is read and its weight.

Tables are small, made when a canvas first needs them, and kept with it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..plan import Canvas
from ..resampling import AxisMap

MOST_UNROLLED = 4  # entries of a column that a kernel reads without a loop


@dataclass(frozen=True)
class Tables:
    """What a kernel reads, and where. Places are in elements of memory.

    A kernel that writes a canvas takes the rows of all strips one below the other, and for each row the columns of its
    strip. A kernel that reads a canvas takes the rows and columns of its result once for every strip.

    Attributes:
        size: rows and columns of the result.
        row_index, row_weight: (rows, entries) or (strips, rows, entries).
        col_index, col_weight: (strips, columns, entries).
        row_at, col_at: places in the result, for each row and each column.
        row_strip: (rows), the strip of each row of a canvas.
        codes: (strips), twice the code in the winner map, plus 1 if the strip wins ties.
    """

    size: tuple[int, int]
    row_index: Tensor
    row_weight: Tensor
    col_index: Tensor
    col_weight: Tensor
    row_at: Tensor
    col_at: Tensor
    row_strip: Tensor
    codes: Tensor
    entries: tuple[int, int]

    @property
    def unrolled(self) -> int:
        return self.entries[1] if self.entries[1] <= MOST_UNROLLED else 0


def find_tables(canvas: Canvas, step: str, pixels: Tensor, start: bool = False) -> Tables:
    """The tables of one step.

    Args:
        canvas, step: whose.
        pixels: (images, H, W, channels), the images or the output, whichever is not on the canvas.
        start: whether the step begins its result, and so has to write all of it.
    """
    key = (step, pixels.shape[3], start, pixels.get_device())
    tables: Tables | None = canvas.made.get(key)
    if tables is None:
        # In a thread of its own: a CUDA graph in the making would keep what is allocated in this one.
        with ThreadPoolExecutor(1) as thread:
            tables = thread.submit(_make_tables, canvas, step, tuple(pixels.shape), start, pixels.device).result()
        canvas.made[key] = tables
    return tables


def _make_tables(canvas: Canvas, step: str, shape: tuple[int, ...], start: bool, device: torch.device) -> Tables:
    image, channels = canvas.grid((shape[1], shape[2])), shape[3]
    size, response = canvas.grid(canvas.size), canvas.grid(canvas.response)
    on_image = _by_rows(image, channels)
    sampled, responses = canvas.offsets(channels), _by_rows(response, channels)
    if step == "sample":
        made = _to_canvas([s.sample for s in canvas.strips], [s.top for s in canvas.strips], on_image, sampled)
    elif step == "spread":
        maps = [
            tuple(
                axis.transposed.shifted(-part.start, length)
                for axis, part, length in zip(strip.align, strip.outputs, image, strict=True)
            )
            for strip in canvas.strips
        ]
        made = _to_canvas(maps, [s.response_top for s in canvas.strips], on_image, responses)
    elif step == "compete":
        part = canvas.strips[0].outputs[0] if len(canvas.strips) == 1 else slice(None)
        maps = [
            (
                _placed(strip.align[0].shifted(-strip.response_top, response[0]), strip.outputs[0], image[0]).rows(
                    part
                ),
                _placed(strip.align[1].shifted(0, response[1]), strip.outputs[1], image[1]),
            )
            for strip in canvas.strips
        ]
        made = _from_canvas(maps, responses, (on_image[0][part], on_image[1]))
    else:
        part = slice(None) if start or len(canvas.strips) > 1 else canvas.strips[0].inputs
        maps = [
            (
                _placed(s.sample[0], slice(s.top, s.top + len(s.sample[0])), size[0]).transposed.rows(part),
                _placed(s.sample[1], slice(0, len(s.sample[1])), size[1]).transposed,
            )
            for s in canvas.strips
        ]
        made = _from_canvas(maps, sampled, (on_image[0][part], on_image[1]))
    made["codes"] = torch.tensor([2 * strip.code + strip.wins_ties for strip in canvas.strips])
    placed = {
        name: table.to(device, torch.float32 if table.is_floating_point() else torch.int32)
        for name, table in made.items()
    }
    result = (len(made["row_at"]), len(made["col_at"]))
    return Tables(result, **placed, entries=(made["row_index"].shape[-1], made["col_index"].shape[-1]))


Places = tuple[Tensor, Tensor]


def _to_canvas(
    maps: Sequence[tuple[AxisMap, ...]], tops: Sequence[int], read: Places, written: Places
) -> dict[str, Tensor]:
    bottoms = [*tops[1:], len(written[0])]
    rows = [axes[0].framed(0, end - top - len(axes[0])) for axes, top, end in zip(maps, tops, bottoms, strict=True)]
    columns = [axes[1].framed(0, len(written[1]) - len(axes[1])) for axes in maps]
    row_index, row_weight, col_index, col_weight = _stack(rows, columns)
    return {
        "row_index": read[0][torch.cat(row_index)],
        "row_weight": torch.cat(row_weight),
        "col_index": read[1][torch.stack(col_index)],
        "col_weight": torch.stack(col_weight),
        "row_at": written[0],
        "col_at": written[1],
        "row_strip": torch.arange(len(maps)).repeat_interleave(torch.tensor([len(each) for each in rows])),
    }


def _from_canvas(maps: Sequence[tuple[AxisMap, ...]], read: Places, written: Places) -> dict[str, Tensor]:
    stacks = _stack([axes[0] for axes in maps], [axes[1] for axes in maps])
    row_index, row_weight, col_index, col_weight = (torch.stack(tables) for tables in stacks)
    return {
        "row_index": read[0][row_index],
        "row_weight": row_weight,
        "col_index": read[1][col_index],
        "col_weight": col_weight,
        "row_at": written[0],
        "col_at": written[1],
        "row_strip": torch.zeros(1),
    }


def _stack(rows: Sequence[AxisMap], columns: Sequence[AxisMap]) -> list[list[Tensor]]:
    """Indices and weights of maps; entries without weight come last.

    Few entries become 1, 2 or 4, so that few kernels are compiled: rows as well as columns if none has more than 2.
    """
    rows, columns = [each.compact() for each in rows], [each.compact() for each in columns]
    counts = [max(each.index.shape[1] for each in axes) for axes in (rows, columns)]
    if max(counts) <= 2:
        counts = [max(counts)] * 2
    elif counts[1] <= MOST_UNROLLED:
        counts[1] = MOST_UNROLLED
    stacks = []
    for axes, count in zip((rows, columns), counts, strict=True):
        more = [(0, count - each.index.shape[1]) for each in axes]
        stacks.append([F.pad(each.index, pad) for each, pad in zip(axes, more, strict=True)])
        stacks.append([F.pad(each.weight, pad) for each, pad in zip(axes, more, strict=True)])
    return stacks


def _placed(axis: AxisMap, part: slice, length: int) -> AxisMap:
    """With rows of zeros around, so that it has this many rows."""
    return axis.framed(part.start, length - part.stop)


def _by_rows(size: tuple[int, int], channels: int) -> Places:
    return torch.arange(size[0]) * size[1] * channels, torch.arange(size[1]) * channels


def next_power_of_2(count: int) -> int:
    """Triton has it as well, but called from the host it takes long."""
    return 1 << (count - 1).bit_length()
