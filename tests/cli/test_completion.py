"""The scripts of `annot completion`, in a shell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from annot.cli.main import COMMANDS, main


def test_missing_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without shtab one line says what to install."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    said = 'annot: error: annot completion needs shtab: pip install "annot-nvtx[completion]"\n'
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("annot ", set(COMMANDS)),
        ("annot rep", {"report"}),
        ("annot report --col", {"--columns"}),
        ("annot guide ar", {"architecture"}),
        ("annot report ru", {"run.sqlite"}),
        ("annot report run.sqlite -o pa", {"page.html"}),
        ("annot compare run.sqlite ru", {"run.sqlite"}),
        ("annot baseline sa", {"save"}),
        ("annot baseline save main ru", {"run.sqlite"}),
    ],
)
def test_bash(line: str, found: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bash offers commands, options, values and files."""
    pytest.importorskip("shtab", reason="needs shtab")
    for name in ("run.sqlite", "page.html"):
        (tmp_path / name).touch()
    assert main(["completion", "bash"]) == 0
    words = line.split(" ")
    ask = f"COMP_WORDS=({' '.join(word or repr('') for word in words)}); COMP_CWORD={len(words) - 1}\n"
    ask += "_shtab_annot\nprintf '%s\\n' \"${COMPREPLY[@]}\""
    script = capsys.readouterr().out + ask
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert {word for word in done.stdout.split() if not word.startswith("-") or line.endswith("--col")} == found


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The scripts of the other shells name each command."""
    pytest.importorskip("shtab", reason="needs shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in script] == []
