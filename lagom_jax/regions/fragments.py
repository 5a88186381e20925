"""Fragments of a tree of parameters: which part of which leaf belongs to which.

Layers are found by numbers in the names of the leaves, or by a leading dimension that
counts them. What belongs to no layer (embeddings, the last norm, the head) has a
fragment of its own. A tree without layers is cut into parts of about the same size.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from lagom_jax.errors import RegionError

Name: TypeAlias = str | int
Rule: TypeAlias = Callable[[tuple[Name, ...], tuple[int, ...]], int | Sequence[int]]
"""From a leaf's names and its shape to its fragment, or to one for each of its rows."""
Pattern: TypeAlias = Literal["strided", "sequential"]

_STACKED = ("layers", "layer", "blocks", "block", "h", "stages", "decoder")


@dataclasses.dataclass(frozen=True, slots=True)
class LeafPart:
    """A leaf's part in a fragment."""

    leaf: int
    rows: tuple[int, ...] | None
    """First, end and step of its rows, or each of them; None for the whole leaf."""
    regular: bool
    """True if `rows` are first, end and step."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers in it."""
        return math.prod(self.shape)

    def take(self, leaf: Any) -> Any:
        """This part of the leaf."""
        return leaf if self.rows is None else leaf[self._index()]

    def put(self, leaf: jax.Array, part: jax.Array) -> jax.Array:
        """The leaf with this part replaced."""
        part = part.astype(leaf.dtype)
        return part if self.rows is None else leaf.at[self._index()].set(part)

    def _index(self) -> Any:
        assert self.rows is not None
        return slice(*self.rows) if self.regular else np.array(self.rows)


@dataclasses.dataclass(frozen=True, slots=True)
class Fragments:
    """All parameters, each in exactly one fragment.

    Example:
        >>> import numpy as np
        >>> tree = {"embed": np.ones((9, 2)), "layers": {"w": np.ones((4, 2, 2))}}
        >>> found = Fragments.of(tree, 3)
        >>> found.sizes
        (18, 8, 8)
        >>> [piece.rows for piece in found.parts[1]]
        [(0, 3, 2)]
    """

    parts: tuple[tuple[LeafPart, ...], ...]

    @classmethod
    def of(
        cls,
        params: Any,
        count: int,
        pattern: Pattern = "strided",
        rule: Rule | None = None,
    ) -> Fragments:
        """Cuts a tree of parameters.

        Args:
            params: The parameters, or their shapes.
            count: How many fragments there are to be.
            pattern: `strided`: every so many layers one of the same fragment;
                `sequential`: neighbours together.
            rule: Says for each leaf, by its names and its shape, which fragment it
                belongs to, or for each of its rows; by default layers, as above.

        Raises:
            RegionError: There are not so many parts, or the rule leaves one empty.
        """
        leaves = [
            (_names(path), tuple(leaf.shape))
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        ]
        if not leaves:
            raise RegionError("there are no parameters to exchange")
        if pattern not in ("strided", "sequential"):
            raise RegionError(f"pattern={pattern!r} is neither strided nor sequential")
        if rule is None:
            chosen = _by_layers(leaves, count, pattern) or _by_size(leaves, count)
        else:
            chosen = [rule(names, shape) for names, shape in leaves]
        parts: list[list[LeafPart]] = [[] for _ in range(count)]
        for number, ((names, shape), owner) in enumerate(
            zip(leaves, chosen, strict=True)
        ):
            for fragment, piece in _pieces(number, names, shape, owner):
                if not 0 <= fragment < count:
                    raise RegionError(
                        f"the rule puts {_path(names)} into fragment {fragment}, and "
                        f"there are only 0 to {count - 1}"
                    )
                parts[fragment].append(piece)
        for fragment, pieces in enumerate(parts):
            if not pieces:
                raise RegionError(
                    f"the rule leaves fragment {fragment} of {count} empty: take "
                    "fewer fragments"
                )
        return cls(tuple(map(tuple, parts)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each fragment."""
        return tuple(sum(piece.size for piece in part) for part in self.parts)


def _names(path: tuple[Any, ...]) -> tuple[Name, ...]:
    found: list[Name] = []
    for key in path:
        for attribute in ("key", "idx", "name"):
            if hasattr(key, attribute):
                found.append(getattr(key, attribute))
                break
    return tuple(found)


def _path(names: tuple[Name, ...]) -> str:
    return ".".join(map(str, names)) or "the only leaf"


def _number(names: tuple[Name, ...]) -> int | None:
    """The layer that a leaf belongs to, by its names."""
    for name in names:
        if isinstance(name, int):
            return name
        if match := re.search(r"(?:^|[a-zA-Z]_?)(\d+)$", str(name)):
            return int(match[1])
    return None


def _by_layers(
    leaves: list[tuple[tuple[Name, ...], tuple[int, ...]]], count: int, pattern: Pattern
) -> list[int | Sequence[int]] | None:
    if count == 1:
        return [0 for _ in leaves]
    stacked = [any(name in _STACKED for name in names) for names, _ in leaves]
    numbers = [_number(names) for names, _ in leaves]
    depths = {
        shape[0]
        for (_, shape), inside, number in zip(leaves, stacked, numbers, strict=True)
        if inside and number is None and shape
    }
    depth = depths.pop() if len(depths) == 1 else 0
    rows = [
        range(depth)
        if inside and number is None and shape[:1] == (depth,) and depth > 1
        else None
        for (_, shape), inside, number in zip(leaves, stacked, numbers, strict=True)
    ]
    layers = {n for n in numbers if n is not None} | set(
        range(depth if any(r is not None for r in rows) else 0)
    )
    if len(layers) < 2:
        return None
    apart = int(
        any(n is None and r is None for n, r in zip(numbers, rows, strict=True))
    )
    kinds = count - apart
    if kinds > len(layers):
        raise RegionError(
            f"{count} fragments are too many: there are {len(layers)} layers"
            f"{' and what belongs to none' if apart else ''}, so at most "
            f"{len(layers) + apart}"
        )
    rank = {layer: place for place, layer in enumerate(sorted(layers))}

    def fragment(layer: int) -> int:
        place = rank[layer]
        turn = place % kinds if pattern == "strided" else place * kinds // len(rank)
        return apart + turn

    return [
        fragment(n) if n is not None else 0 if r is None else [fragment(x) for x in r]
        for n, r in zip(numbers, rows, strict=True)
    ]


def _by_size(
    leaves: list[tuple[tuple[Name, ...], tuple[int, ...]]], count: int
) -> list[int | Sequence[int]]:
    if count > len(leaves):
        raise RegionError(
            f"{count} fragments are too many for {len(leaves)} arrays without layers: "
            "take fewer, or give a rule that divides their rows"
        )
    sizes = [max(1, math.prod(shape)) for _, shape in leaves]
    chosen: list[int | Sequence[int]] = []
    before, last = 0.0, -1
    for number, size in enumerate(sizes):
        middle = int((before + size / 2) / sum(sizes) * count)
        # In order, none left out, and enough leaves for those that come.
        least = max(last, 0, count - len(sizes) + number)
        last = min(max(middle, least), last + 1)
        chosen.append(last)
        before += size
    return chosen


def _pieces(
    leaf: int,
    names: tuple[Name, ...],
    shape: tuple[int, ...],
    owner: int | Sequence[int],
) -> list[tuple[int, LeafPart]]:
    if isinstance(owner, int):
        return [(owner, LeafPart(leaf, None, False, shape))]
    if not shape or len(owner) != shape[0]:
        raise RegionError(
            f"the rule gives {len(owner)} fragments for the rows of {_path(names)}, "
            f"whose shape is {shape}"
        )
    found: list[tuple[int, LeafPart]] = []
    for fragment in sorted(set(owner)):
        rows = [row for row, at in enumerate(owner) if at == fragment]
        found.append((fragment, _rows(leaf, rows, shape)))
    return found


def _rows(leaf: int, rows: Sequence[int], shape: tuple[int, ...]) -> LeafPart:
    inner = (len(rows), *shape[1:])
    if len(rows) == shape[0]:
        return LeafPart(leaf, None, False, shape)
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    regular = list(rows) == list(range(rows[0], rows[-1] + 1, step))
    index = (rows[0], rows[-1] + 1, step) if regular else tuple(rows)
    return LeafPart(leaf, index, regular, inner)
