"""The form in which a collective and the matmul next to it are written."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

from lagom_jax.errors import DecomposeError

Kind = Literal["ring", "direct", "chunks", "whole"]
KINDS: Final[tuple[Kind, ...]] = ("ring", "direct", "chunks", "whole")


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """A way to cut a collective and the matmul next to it.

    Attributes:
        kind: `ring`: messages between neighbours, each hidden behind the matmul of one
            slice. `direct`: each rank sends to every other itself, for links between
            all. `chunks`: collectives as they are, each for a part of the rows; with
            one slice, the plain form. `whole`: the collective as it is, but of rows in
            the order of the ranks, as XLA's collectives have them in memory: where
            examples stand before rows, nothing is transposed for it.
        slices: Parts that each rank's rows are cut into; the last ones are smaller
            where that does not divide.
        both_ways: Whether half of the slices go around the ring the other way, so that
            both directions of each link are used.
        keep_gathered: Whether what was gathered is kept for the backward pass, as the
            plain form does; otherwise it is gathered again there, for less memory.
        wide_sums: Whether what the ranks add up is added in float32 where the type is
            shorter; otherwise it is rounded to the type at every rank, as NCCL does.
        sums_in_matmul: Whether a matmul adds what has arrived to what it makes, in
            place of a kernel of its own. It then waits for that message, which has to
            hide behind other work: finer slices, or gradients of weights.
        whole_weights: Whether the gradient of a weight is one matmul, of all slices put
            together; otherwise each slice's matmul adds to that of the one before it,
            in float32, and nothing is put together. Its work stands between messages.

    Example:
        >>> Form("ring", slices=2).label
        'ring, 2 slices'
        >>> Form("ring", both_ways=True).parts
        2
    """

    kind: Kind = "ring"
    slices: int = 1
    both_ways: bool = False
    keep_gathered: bool = True
    wide_sums: bool = True
    sums_in_matmul: bool = False
    whole_weights: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise DecomposeError(f"no form {self.kind!r}; known are {', '.join(KINDS)}")
        if self.slices < 1:
            raise DecomposeError(f"slices must be 1 or more, not {self.slices}")
        if self.kind == "whole" and self.slices > 1:
            raise DecomposeError(
                "a whole collective has one slice; chunks have several"
            )
        for name in ("keep_gathered", "wide_sums", "whole_weights"):
            if not getattr(self, name) and self.kind == "whole":
                raise DecomposeError(
                    f"{name} is about what is cut; leave it out of a form of whole"
                )
        for name in ("both_ways", "sums_in_matmul"):
            if getattr(self, name) and self.kind != "ring":
                raise DecomposeError(
                    f"{name} is about rings; leave it out of a form of {self.kind}"
                )

    @property
    def parts(self) -> int:
        """Parts of each rank's rows that travel by themselves."""
        return self.slices * (2 if self.both_ways else 1)

    @property
    def by_collectives(self) -> bool:
        """True if collectives stay what they are; False for messages in their place.

        Example:
            >>> Form("chunks", slices=2).by_collectives, Form("ring").by_collectives
            (True, False)
        """
        return self.kind in ("chunks", "whole")

    @property
    def label(self) -> str:
        """Display label."""
        if self.kind == "chunks" and self.slices == 1:
            return "plain"
        cut = f", {self.slices} slices" if self.slices > 1 else ""
        said = {
            "both ways": self.both_ways,
            "sums in matmuls": self.sums_in_matmul,
            "weights in slices": not self.whole_weights,
        }
        return self.kind + cut + "".join(f", {one}" for one in said if said[one])

    @property
    def code(self) -> str:
        """The form as it is written, without what is left as it is.

        Example:
            >>> Form("chunks", slices=4, whole_weights=False).code
            'Form("chunks", slices=4, whole_weights=False)'
        """
        given = [f'"{self.kind}"']
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                given.append(f"{field.name}={value}")
        return f"Form({', '.join(given)})"
