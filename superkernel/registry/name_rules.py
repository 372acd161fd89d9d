"""What the tile in a kernel's name demands of a problem: how many elements of a window, how many channels.

Model: a uni-pass kernel (`XpYc`, `Cx`) takes a window of up to X elements at once. A multi-pass one takes U in its
first pass, V in each middle pass, as many of them as possible, and the rest, at least 1 and up to W, in the last
(`UfVmWl`; a window of at least W + 1). Of a pool `CpDx` the first and middle passes take D, the last up to C. Channels
run in tiles of c; how many is told by their number rounded up to r; what is left runs in subtiles of s.

Rules of tiles by themselves, such as that the subtile divides the channel tile, are the parser's.
"""

from __future__ import annotations

from dataclasses import dataclass

from superkernel.core.errors import UserError, Violation, raise_all
from superkernel.registry.names import KernelName, format_name


@dataclass(frozen=True, slots=True)
class Passes:
    """Elements of a window by pass: `first`, then `middle` in each of `turns` passes, then `last`."""

    first: int
    middle: int = 0
    turns: int = 0
    last: int = 0

    @property
    def elements(self) -> int:
        """All of them."""
        return self.first + self.middle * self.turns + self.last


@dataclass(frozen=True, slots=True)
class ChannelRuns:
    """Runs over the channels: whole tiles, and subtiles behind them."""

    tiles: int
    subtiles: int


def passes_of(name: KernelName, elements: int) -> Passes:
    """How a kernel of this name walks a window of so many elements. Raises UserError where it cannot, and where its
    name has no tile of a window."""
    sizes = _sizes(name)
    if "first" in sizes:
        return _multi(name, elements, sizes["first"], sizes["middle"], sizes["last"])
    if "incremental" in sizes:
        return _multi(name, elements, sizes["incremental"], sizes["incremental"], sizes["primary"])
    if "primary" not in sizes:
        raise UserError("the name has no tile of a window", location=f"kernel name {format_name(name)!r}")
    if not 1 <= elements <= sizes["primary"]:
        raise_all(UserError, [_violation(name, "elements", f"1 to {sizes['primary']}", elements)])
    return Passes(elements)


def _multi(name: KernelName, elements: int, first: int, middle: int, last: int) -> Passes:
    least = max(first, last if "last" in _sizes(name) else 0) + 1
    rest = elements - first
    turns = (rest - 1) // middle
    remainder = rest - turns * middle
    if elements < least:
        raise_all(UserError, [_violation(name, "elements", f"at least {least}", elements)])
    if remainder > last:
        raise_all(UserError, [_violation(name, "elements", f"a remainder of 1 to {last}", remainder)])
    return Passes(first, middle if turns else 0, turns, remainder)


def channel_runs(name: KernelName, channels: int) -> ChannelRuns:
    """How a kernel of this name walks so many channels. Raises UserError where its name has no fixed channel tile."""
    sizes = _sizes(name)
    tile = sizes.get("channel")
    if tile is None or (name.params is not None and any(size.scalable for _, size in name.params.sizes)):
        raise UserError("the name has no fixed channel tile", location=f"kernel name {format_name(name)!r}")
    if channels < 1:
        raise_all(UserError, [_violation(name, "channels", "at least 1", channels)])
    rounding, subtile = sizes.get("round", 1), sizes.get("subtile", tile)
    rounded = -(-channels // rounding) * rounding
    tiles = rounded // tile
    return ChannelRuns(tiles, -(-(rounded - tiles * tile) // subtile))


def _sizes(name: KernelName) -> dict[str, int]:
    return {} if name.params is None else {field: size.count for field, size in name.params.sizes}


def _violation(name: KernelName, what: str, expected: str, found: int) -> Violation:
    return Violation(f"{what} that its tile does not take", f"kernel name {format_name(name)!r}", expected, str(found))
