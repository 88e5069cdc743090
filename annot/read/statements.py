"""What annot's own marks say about the run: ranks, notes, scopes of layers, and whether there are figures of memory."""

from __future__ import annotations

import polars as pl

from annot import memory_text
from annot.rank_text import parse_rank
from annot.scope_text import START
from annot.tag import DOMAIN, NOTE

__all__ = ["Statements"]


class Statements:
    """What marks have said so far.

    Attributes:
        ranks: rank and world size of each process that says them, the last if it says several.
        notes: sentences for the report, each once.
        scopes: texts that say which layer a name scope belongs to, each once; see `annot.scope_text`.
        tells_memory: whether there are figures of memory among them.
    """

    def __init__(self) -> None:
        self.ranks: dict[int, tuple[int, int]] = {}
        self.notes: list[str] = []
        self.scopes: list[str] = []
        self.tells_memory = False

    def take(self, marks: pl.DataFrame) -> None:
        """Take in rows of `annot.profile.MARKS`, later ones after earlier ones."""
        own = marks.filter(pl.col("domain") == DOMAIN)
        if own.is_empty():
            return
        text = pl.col("text").cast(pl.String)
        scopes = own.select(text).filter(text.str.starts_with(START))["text"].unique(maintain_order=True)
        self.scopes = list(dict.fromkeys((*self.scopes, *scopes)))
        notes = own.select(text).filter(text.str.starts_with(NOTE))["text"].unique(maintain_order=True)
        self.notes += [note for words in notes if (note := words.removeprefix(NOTE)) not in self.notes]
        self.tells_memory |= bool(own.select(text.str.starts_with(f"{memory_text.CATEGORY} ").any()).item())
        said = own.filter(text.str.starts_with("Rank ")).sort("start")
        known = ((process, parse_rank(words)) for process, words in said.select("process", text).iter_rows())
        self.ranks |= {process: rank for process, rank in known if rank is not None}
