"""Facts about the run in the marks of annot: ranks, notes, name scopes of layers, and the presence of memory marks."""

from __future__ import annotations

import polars as pl

from annot.labels import memory_marks
from annot.labels.rank_marks import parse_rank
from annot.labels.scope_marks import START
from annot.labels.tag import DOMAIN, NOTE

__all__ = ["AnnotMarks"]


class AnnotMarks:
    """Facts in the marks that were added so far.

    Attributes:
        ranks: rank and world size of each process. The last mark of a process counts.
        notes: sentences for the report, without repetitions.
        scopes: texts that map name scopes to layers, without repetitions; see `annot.labels.scope_marks`.
        has_memory: whether the marks include memory marks; see `annot.labels.memory_marks`.
    """

    def __init__(self) -> None:
        self.ranks: dict[int, tuple[int, int]] = {}
        self.notes: list[str] = []
        self.scopes: list[str] = []
        self.has_memory = False

    def add(self, marks: pl.DataFrame) -> None:
        """Add rows of `annot.profile.MARKS`, in the order of the file."""
        own = marks.filter(pl.col("domain") == DOMAIN)
        if own.is_empty():
            return
        text = pl.col("text").cast(pl.String)
        scopes = own.select(text).filter(text.str.starts_with(START))["text"].unique(maintain_order=True)
        self.scopes = list(dict.fromkeys((*self.scopes, *scopes)))
        notes = own.select(text).filter(text.str.starts_with(NOTE))["text"].unique(maintain_order=True)
        self.notes += [note for mark in notes if (note := mark.removeprefix(NOTE)) not in self.notes]
        self.has_memory |= bool(own.select(text.str.starts_with(f"{memory_marks.CATEGORY} ").any()).item())
        ranks = own.filter(text.str.starts_with("Rank ")).sort("start")
        known = ((process, parse_rank(mark)) for process, mark in ranks.select("process", text).iter_rows())
        self.ranks |= {process: rank for process, rank in known if rank is not None}
