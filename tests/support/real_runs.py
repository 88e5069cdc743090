"""pytest plugin: the run of a real profile, which tests that take it share."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_data import shared, shared_names, unpacked

from annot.errors import AnnotError
from annot.runs.run import Run

_OWN = Path(__file__).parents[1] / "data"
_NAMES = sorted({
    *shared_names("kineto", ".json.gz"), *shared_names("nsys", ".sqlite.gz"), *shared_names("xplane", ".xplane.pb"),
    *(path.name for pattern in ("*.csv", "*.pb") for path in _OWN.glob(pattern)),
})  # fmt: skip


def with_each_profile(*quick: str) -> pytest.MarkDecorator:
    """Run a test with the fixture `real_run` of each profile. All but the quick ones have the marker `slow`."""
    names = [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in _NAMES]
    return pytest.mark.parametrize("real_run", names, indirect=True)


@pytest.fixture(scope="session")
def real_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Open a profile. pytest runs the tests of a profile one after the other."""
    name = request.param
    if name.endswith("execution.json.gz"):
        for capture in shared_names(str(Path(name).parent), ".json.gz"):
            shared(capture)  # beside the trace
    run = Run(str(unpacked(name, tmp_path_factory.mktemp("real")) if name.startswith("nsys") else shared(name)))
    try:
        _ = run.meta
    except AnnotError as error:
        pytest.skip(str(error))
    return run
