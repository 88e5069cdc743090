"""What `--help` says: every verb with examples that its parser takes."""

from __future__ import annotations

import re
import shlex

import pytest

from annot.cli.guide import CHAPTERS, chapter
from annot.cli.main import main, make_parser, with_command

VERBS = (
    "run", "report", "compare", "baseline", "roofline", "sweep", "try", "bisect", "mcp", "doctor", "schema",
    "guide", "completion",
)  # fmt: skip


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `annot … --help` prints."""
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


def examples(text: str) -> list[list[str]]:
    """The commands under "examples:"; what stands behind two spaces is a remark."""
    section = text.partition("\nexamples:\n")[2].partition("\n\n")[0]
    return [shlex.split(re.split(r"\s{2,}|>", line.strip())[0]) for line in section.splitlines()]


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_every_example_is_understood(verb, capsys):
    """Help has at least three examples, each of the verb it stands under, and the parser takes each."""
    found = examples(help_of(capsys, *([verb] if verb else [])))
    assert len(found) >= 3
    for program, *words in found:
        assert program == "annot"
        own, *_ = words = with_command(words)
        assert verb in (None, own)
        assert make_parser(own).parse_args(words).verb == own


def test_parser_refuses_what_is_no_option():
    """The parser that examples are held against does refuse: a misspelt option ends with status 2."""
    with pytest.raises(SystemExit) as refused:
        make_parser("report").parse_args(["report", "run.sqlite", "--bye", "layer"])
    assert refused.value.code == 2


def test_help_lists_every_verb(capsys):
    """Each verb has its line, and all fit 120 columns."""
    shown = help_of(capsys)
    assert [verb for verb in VERBS if not re.search(rf"^    {verb}\b", shown, re.MULTILINE)] == []
    for verb in VERBS:
        assert max(map(len, help_of(capsys, verb).splitlines())) <= 160


def test_guide_lists_its_chapters(capsys):
    """Without a name the guide says what there is to read, a line each."""
    assert main(["guide"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == list(CHAPTERS)


@pytest.mark.parametrize("name", CHAPTERS)
def test_guide_in_a_pipe_is_markdown(name, capsys):
    """Into a pipe goes the chapter's file, to the byte; there is a title and nothing is wider than 120 columns."""
    assert main(["guide", name]) == 0
    shown = capsys.readouterr().out
    assert shown == chapter(name).read_text(encoding="utf-8")
    assert shown.startswith("# ")
    prose = re.sub(r"^\|.*$", "", shown, flags=re.MULTILINE)
    assert max(map(len, prose.splitlines())) <= 120


def test_guide_on_a_terminal_is_laid_out(capsys, monkeypatch):
    """On a terminal a chapter has no Markdown any more, and goes through the pager that the user has."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("MANPAGER", "cat")
    assert main(["guide", "tags"]) == 0
    shown = capsys.readouterr().out
    assert "grammar" in shown
    assert "# The grammar" not in shown
    assert "```" not in shown


def test_no_such_chapter(capsys):
    """A name that is none ends with status 2 and the names that are."""
    assert main(["guide", "jax"]) == 2
    assert "'pytorch'" in capsys.readouterr().err
