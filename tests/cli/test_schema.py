"""`annot schema`: the schemas hold for the JSON of profiles, comparisons, baselines and commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matrices import every_third
from shared_data import shared
from sqlite_profile import training

from annot.analyze.comparison.runs import SUBJECTS
from annot.cli.main import main
from annot.cli.schema import all_schemas, schema_of
from annot.report.export.json_csv_parquet import as_json
from annot.report.views import views
from annot.runs.run import Run

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")


def document(run: Run, view: str) -> Any:
    """Return the JSON of a view."""
    return json.loads("".join(as_json(run.view(view, total=True, draw=False))))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A training on a GPU."""
    return Run(training(device=True).write(tmp_path_factory.mktemp("schema") / "gpu.sqlite"))


def check(run: Run, view: str, more: set[str]) -> None:
    """Check that the schema holds, and that it has all columns but `more`."""
    schema, written = schema_of(view), document(run, view)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(written, schema)
    (rows,) = written.keys() - {"meta"}
    columns = schema["properties"][rows]["items"]["properties"]
    assert {name for row in written[rows] for name in row} - columns.keys() == more


@pytest.mark.parametrize("view", every_third(views()))
def test_json_of_every_view_fits_its_schema(view: str, run: Run) -> None:
    """An empty profile, from which schemas come, has the columns and types of a real one."""
    check(run, view, set())


def test_json_of_a_real_profile_fits() -> None:
    """Only columns that the guide calls optional are not in the schema."""
    traced = Run(shared("kineto/tracelens_h100_bert_small_nnmodule.json"))
    for view, more in (("layer", {"source"}), ("op_work", set()), ("advice", set()), ("summary", set())):
        check(traced, view, more)


@pytest.mark.parametrize("change", ["type", "column", "version", "rows"])
def test_other_json_does_not_fit(change: str, run: Run) -> None:
    written = document(run, "layer")
    if change == "type":
        written["layers"][0]["gpu_ns"] = "12"
    elif change == "column":
        del written["layers"][0]["phase"]
    elif change == "version":
        written["meta"]["schema"] += 1
    else:
        written["rows"] = written.pop("layers")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, schema_of("layer"))


def test_descriptions_are_those_of_the_guide() -> None:
    """A name that is both a column and a key of `meta` has the text of its table."""
    schema = schema_of("layer")["properties"]
    column = schema["layers"]["items"]["properties"]["gpu_by_time_ns"]["description"]
    assert (column[:24], schema["meta"]["properties"]["gpu_by_time_ns"]["description"]) == (
        "part of `gpu_self_ns` at",
        "part attributed by time",
    )


def test_command_prints_a_schema_or_lists_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "kind"]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of("kind")
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.split() == [*all_schemas()]
    assert main(["schema", "kinds"]) == 2
    assert "NAME must be one of layer, " in capsys.readouterr().err


def printed(capfdbinary: pytest.CaptureFixture[bytes], *words: str) -> Any:
    """Return the JSON that a command prints."""
    capfdbinary.readouterr()
    main([*words, "--format", "json"])
    return json.loads(capfdbinary.readouterr().out)


@pytest.mark.parametrize("by", SUBJECTS)
def test_comparisons_fit(by: str, run: Run, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """All columns of a comparison are in its schema, and a column with another type does not fit."""
    path = str(run.source.meta["source"])
    answer, schema = printed(capfdbinary, "compare", path, path, "--by", by), schema_of(f"compare_{by}")
    jsonschema.validate(answer, schema)
    (rows,) = answer.keys() - {"meta"}
    assert {*answer[rows][0]} == {*schema["properties"][rows]["items"]["properties"]}
    answer[rows][0]["share"] = "all"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(answer, schema)


def test_baselines_fit(run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    store = ["--store", str(tmp_path)]
    assert main(["baseline", "save", "nightly", str(run.source.meta["source"]), *store]) == 0
    for words in (["list"], ["show", "nightly"]):
        answer = printed(capfdbinary, "baseline", *words, *store)
        (rows,) = answer.keys() - {"meta"}
        assert len(answer[rows]) == 1
        schema = schema_of(f"baseline_{words[0]}")
        jsonschema.validate(answer, schema)
        assert {*answer[rows][0]} == {*schema["properties"][rows]["items"]["properties"]}


@pytest.mark.parametrize("name", ["bisect", "doctor", "try", "try_layers"])
def test_schemas_of_commands_are_valid(name: str) -> None:
    """They come from the types that the commands write; tests of bisect, doctor and try check that these fit."""
    jsonschema.Draft202012Validator.check_schema(schema_of(name))
