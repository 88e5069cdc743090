"""Documents for language models: the guide, the skill, AGENTS.md and llms.txt."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from documents import ROOT

from annot.agents.tools import Tools
from annot.changes.registry import all_changes
from annot.cli.guide import CHAPTERS, SKILL, chapter
from annot.cli.main import main, make_parser, with_command

SKILL_FOLDER = ROOT / "annot/skills" / SKILL
FILES = [ROOT / "AGENTS.md", ROOT / "llms.txt", *sorted(SKILL_FOLDER.rglob("*.md"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Each link to a file names one that is there."""
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_skill_has_the_frontmatter_that_agents_read() -> None:
    """Name and description in YAML, with the name of the folder and within the limits of the Agent Skills format."""
    text = (SKILL_FOLDER / "SKILL.md").read_text(encoding="utf-8")
    found = re.match(r"---\nname: (\S+)\ndescription: ([^\n]+)\n---\n\n# ", text)
    assert found
    assert found[1] == SKILL_FOLDER.name
    assert 100 < len(found[2]) <= 1024
    assert ": " not in found[2]  # YAML would read a mapping


def test_commands_of_the_documents_exist() -> None:
    """Each command of the guide and of the skill is one that the parser takes, with changes that annot has."""
    texts = [path.read_text(encoding="utf-8") for path in [chapter("agents"), *SKILL_FOLDER.rglob("*.md")]]
    commands = [line for text in texts for line in re.findall(r"^ *\$ (annot .*)$|`(annot .*?)`", text, re.M)]
    words = [shlex.split((shown or inline).replace("…", "...")) for shown, inline in commands]
    parsed = 0
    for _, *arguments in (one for one in words if len(one) > 2):
        known = with_command([word.replace("FILE", "./FILE") for word in arguments])
        known = ["layer" if word == "ROW" else "time" if word == "WHAT" else word for word in known]
        make_parser(known[0]).parse_args(known)
        parsed += 1
        if "--change" in known:
            assert {*known[known.index("--change") + 1].split(",")} <= {*all_changes(), "list"}
    assert parsed > 15


def test_guide_names_every_tool_and_is_one_page() -> None:
    """The table has a row for each tool with its arguments' names."""
    text = chapter("agents").read_text(encoding="utf-8")
    tools = {name for name in vars(Tools) if not name.startswith("_")}
    assert set(re.findall(r"^\| `(\w+)\(", text, re.M)) == tools
    assert len(text.splitlines()) <= 80


def test_llms_txt_lists_every_chapter() -> None:
    """With the words of `annot guide`."""
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert dict(re.findall(r"^- \[([\w-]+)\]\(annot/guide/\1\.md\): (.*)$", text, re.M)) == CHAPTERS
    assert text.startswith("# annot\n\n> ")


def test_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The skill is copied with its references; an existing one is replaced only on request."""
    words = ["guide", "agents", "--install", str(tmp_path / "skills")]
    assert main(words) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/skills/{SKILL}\n"
    copied = {path.relative_to(tmp_path / "skills" / SKILL): path.read_text() for path in tmp_path.rglob("*.md")}
    assert copied == {path.relative_to(SKILL_FOLDER): path.read_text() for path in SKILL_FOLDER.rglob("*.md")}
    assert main(words) == 1
    assert "use --force to replace it" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    assert main(["guide", "tags", "--install", str(tmp_path)]) == 2
    (tmp_path / "file").touch()
    assert main(["guide", "agents", "--install", str(tmp_path / "file")]) == 1
