"""Find the rows of a comparison at which a time changed: the change of a layer may be that of the layers inside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from annot.attribution import Attribution
from annot.attribution.column_ops import NONE
from annot.attribution.layer_chains import Key

__all__ = ["FLAT", "Nesting", "Times", "nesting_of"]

Times: TypeAlias = tuple[float, float]
"""Times of a row in two profiles (ns); 0: the profile lacks the row."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Rows of a comparison inside each other.

    Args:
        trees: for each profile, the row and the parent of each node of its layer paths; -1: none. A parent comes
            before its children.
    """

    trees: tuple[tuple[Sequence[int], Sequence[int]], ...]

    def at_their_place(
        self, rows: Collection[int], times: Sequence[Times], changed: Callable[[Times], bool]
    ) -> set[int]:
        """Return the rows that are still `changed` without the returned rows inside them.

        Args:
            rows: the rows that `changed`.
            times: times of all rows, including those inside.
            changed: whether times are those of a changed row.

        Example:
            >>> net_and_layer = Nesting((([0, 1], [-1, 0]),))
            >>> slower = lambda times: times[1] > 1.05 * times[0]
            >>> net_and_layer.at_their_place([0, 1], [(100, 130), (30, 60)], slower)
            {1}
        """
        inside, depths = self._inside(rows)
        kept: set[int] = set()
        covered: dict[int, Times] = {}
        for row in sorted(rows, key=lambda row: (-depths.get(row, 0), row)):
            below = [covered[one] for one in inside.get(row, ()) if one in covered]
            a, b = (sum(one[side] for one in below) for side in (0, 1))
            if not below or changed((max(times[row][0] - a, 0), max(times[row][1] - b, 0))):
                kept.add(row)
                covered[row] = times[row]
            else:
                covered[row] = a, b
        return kept

    def _inside(self, rows: Collection[int]) -> tuple[Mapping[int, set[int]], Mapping[int, int]]:
        """Return the nearest of the rows inside each of them, and their depths among each other."""
        inside: defaultdict[int, set[int]] = defaultdict(set)
        depths: dict[int, int] = {}
        wanted = set(rows)
        for of_node, parents in self.trees:
            nearest: list[int] = []
            levels: list[int] = []
            for row, parent in zip(of_node, parents, strict=True):
                above, level = (NONE, 0) if parent == NONE else (nearest[parent], levels[parent])
                if row in wanted and row != above:
                    level += 1
                    depths[row] = max(depths.get(row, 0), level)
                    if above != NONE:
                        inside[above].add(row)
                nearest.append(row if row in wanted else above)
                levels.append(level)
        return inside, depths


FLAT: Final = Nesting(())
"""No row is inside another."""


def nesting_of(sides: Sequence[tuple[Attribution, Mapping[Key, int]]]) -> Nesting:
    """Return the nesting of rows, given the profiles and the row of each of their layers."""
    trees = []
    for attribution, row_of in sides:
        forest = attribution.forest
        of_key = [row_of.get(key, NONE) for key in forest.keys.names]
        trees.append(([of_key[key] for key in forest.nodes.keys], forest.nodes.parents))
    return Nesting(tuple(trees))
