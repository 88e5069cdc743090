"""Texts of advice: sentences, code, and changes for `annot try`, in ``texts.toml``."""

from __future__ import annotations

from functools import cache

import msgspec

from annot.util.packaged_tables import packaged_table


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Code of an advice, its changes, and its sentence; without one, the sentence of the rule stays."""

    code: str
    advice: str = ""
    changes: tuple[str, ...] = ()

    def filled(self, **values: object) -> Text:
        """Return the text with values in place of its fields, such as ``{units}``."""
        return Text(self.code.format(**values), self.advice.format(**values), self.changes)


class CopyText(Text, frozen=True, forbid_unknown_fields=True):
    """Advice on operators that copy tensors, with what they are."""

    what: str = ""


class _Texts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``texts.toml``, which explains them."""

    pytorch: dict[str, Text]
    causes: dict[str, Text]
    keras: dict[str, Text]
    cuda: dict[str, Text]
    collectives: dict[str, dict[str, Text]]
    copies: dict[str, CopyText]
    engines: dict[str, dict[str, str]]


@cache
def texts() -> _Texts:
    """Return the texts of rules and causes, and those that depend on the framework or the collective."""
    return packaged_table("annot.analyze.advice", "texts.toml", _Texts)
