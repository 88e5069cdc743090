from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
from commands import NO_NSYS, annot, needs_nsys, needs_recorder, without_native

from annot.cli.schema import schema_of


def examine(tmp_path: Path, *words: str, **environ: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Run the doctor; return its status and the checks by name."""
    done = annot("doctor", "--format", "json", *words, cwd=tmp_path, **environ)
    assert not done.stderr
    checks = json.loads(done.stdout)
    jsonschema.validate(checks, schema_of("doctor"))
    return done.returncode, {check["name"]: check for check in checks}


@needs_recorder
def test_healthy_with_the_recorder(tmp_path):
    """Without Nsight Systems the recorder is tried, its ranges are counted, and the status is 0."""
    status, checks = examine(tmp_path, ANNOT_NSYS=NO_NSYS)
    assert status == 0
    assert checks["self-test"]["text"] == "annot run uses recorder: 3 of 3 ranges recorded"
    assert checks["Nsight Systems"]["state"] == "note"
    assert checks["recorder"]["state"] == "ok"
    assert list(tmp_path.iterdir()) == []


@needs_nsys
def test_healthy_with_nsight_systems(tmp_path):
    """With Nsight Systems that is tried: its version, its importer, and what the nvtx package loses under it."""
    from importlib.metadata import version

    from annot.util.installed_tools import find_nsys, loses_nvtx_package

    nsys = find_nsys()
    assert nsys
    status, checks = examine(tmp_path)
    assert status == 0
    assert checks["self-test"]["text"] == "annot run uses nsys: 3 of 3 ranges recorded"
    assert nsys.version_text in checks["Nsight Systems"]["text"]
    assert checks["import of reports"]["mend"] == nsys.link_command()
    lost = loses_nvtx_package(nsys, version("nvtx"))
    assert checks["nvtx package"]["state"] == ("note" if lost else "ok")
    assert ("nvtx==0.2.11" in (checks["nvtx package"]["mend"] or "")) is lost


@needs_recorder
def test_switches_are_found_and_the_self_test_feels_them(tmp_path):
    """A variable that switches ranges off is a problem with its remedy, and nothing is recorded."""
    for name in ("NVTX_DISABLE", "ANNOT_DISABLE"):
        status, checks = examine(tmp_path, "--collector", "recorder", **{name: "1"})
        assert status == 1
        assert checks["environment"]["mend"] == f"unset {name}"
        assert checks["self-test"]["state"] == "problem"
        assert "0 of 3" in checks["self-test"]["text"]


@needs_recorder
def test_tool_in_the_environment(tmp_path):
    """NVTX_INJECTION64_PATH is a problem if it names nothing, a note if it names a tool."""
    _, checks = examine(tmp_path, ANNOT_NSYS=NO_NSYS, NVTX_INJECTION64_PATH="/nonexistent.so")
    assert (checks["environment"]["state"], checks["environment"]["mend"]) == (
        "problem", "unset NVTX_INJECTION64_PATH",
    )  # fmt: skip
    _, checks = examine(tmp_path, ANNOT_NSYS=NO_NSYS, NVTX_INJECTION64_PATH=sys.executable)
    assert checks["environment"]["state"] == "note"


def test_no_collector_at_all_is_a_problem(tmp_path):
    """Neither Nsight Systems nor the recorder: status 1, and what would fail is said."""
    status, checks = examine(without_native(tmp_path), ANNOT_NSYS=NO_NSYS)
    assert status == 1
    assert checks["recorder"]["state"] == "note"
    assert "pip install --force-reinstall" in checks["recorder"]["mend"]
    assert "the recorder is not built" in checks["self-test"]["text"]


def test_asking_for_nsight_systems_where_there_is_none(tmp_path):
    """--collector nsys without one is a check that failed, not a crash."""
    status, checks = examine(tmp_path, "--collector", "nsys", ANNOT_NSYS=NO_NSYS)
    assert status == 1
    assert "Nsight Systems was not found" in checks["self-test"]["text"]


@needs_recorder
def test_table_shows_every_check_and_remedy(tmp_path):
    """The table holds a line per check and the command that mends it, at 80 columns without cutting words off."""
    environ = {"ANNOT_NSYS": NO_NSYS, "NVTX_DISABLE": "1", "COLUMNS": "80"}
    done = annot("doctor", cwd=tmp_path, **environ)
    shown = done.stdout.decode()
    assert done.returncode == 1
    _, checks = examine(tmp_path, **environ)
    for check in checks.values():
        assert f"{check['state']} " in shown
        assert check["name"] in shown
    assert "→ unset NVTX_DISABLE" in shown
    assert max(len(line) for line in shown.splitlines() if "→" not in line) <= 80


def test_commands_of_the_table_can_be_copied(tmp_path):
    """A command that mends something stands on one line, however narrow the terminal is."""
    done = annot("doctor", cwd=without_native(tmp_path), ANNOT_NSYS=NO_NSYS, COLUMNS="40")
    _, checks = examine(tmp_path, ANNOT_NSYS=NO_NSYS)
    lines = [line.strip() for line in done.stdout.decode().splitlines()]
    assert {f"→ {check['mend']}" for check in checks.values() if check["mend"]} <= set(lines)
