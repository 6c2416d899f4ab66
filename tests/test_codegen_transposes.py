"""Tiles load only what a tensor holds: joined tensors cover parts of the loop."""

from contracts.tensors import TensorSpec, channels_last
from engine.codegen.index import variable
from engine.codegen.transposes import _fill

SHAPE = (2, 48, 8, 8)
LAYOUT = TensorSpec(dtype="float32", shape=SHAPE, stride=channels_last(SHAPE))


def test_a_tensor_that_covers_the_loop_is_read_without_a_test() -> None:
    position = variable("i0", 2) * (48 * 64) + variable("column", 64) * 48 + variable("line", 48)

    assert _fill("tile", "x", position, LAYOUT, "int") == [
        "tile[step + threadIdx.y][threadIdx.x] = x[i0 * 3072 + column * 48 + line];"
    ]


def test_a_joined_tensor_is_not_read_outside_of_its_part() -> None:
    # The tensor is channels 16 to 63 of a join of 64: lines below 16 lie before its memory.
    position = variable("i0", 2) * (48 * 64) + variable("column", 64) * 48 + variable("line", 64) - 16

    assert _fill("tile", "x", position, LAYOUT, "int") == [
        "int const tile_place = i0 * 3072 + column * 48 + line - 16;",
        "if (tile_place >= 0 && tile_place < 6144) tile[step + threadIdx.y][threadIdx.x] = x[tile_place];",
    ]
