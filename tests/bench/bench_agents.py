"""Calls and characters that an agent reads until the planted cause of a slow run is in its hands, by tool.

Run by hand: ``python tests/bench/bench_agents.py FOLDER``, with `nsys` and PyTorch, and `tests/support` on the path.
Each program of `agent_programs` runs once under each profiler, which takes minutes. A recording that FOLDER has is
kept, so that another version of annot reads the same files within a minute. `agent_profiles.toml` has the profiles and
what was planted in each. The cause is in the text read so far if the patterns of its kind and of its place are. An
agent stops there, or at the end of its policy. It reads whole answers. A name in a long table counts as a name in a
sentence.

Policies, each of someone who knows the tool:

- annot Markdown: ``annot FILE --format markdown --max-chars 2000``, then the commands and options for FILE that this
  answer names, in order.
- annot MCP: `open`, `summary`, `advice`, `rows`, and `explain_row` of the row with the most self time. The descriptions
  of the tools, which the client reads once, do not count.
- nsys stats: its default reports that have data, in its order, a call each. The profile is the one that annot reads,
  so that programs have a range for each layer, and their shapes.
- torch.profiler: `key_averages().table()` with the 10 rows of most self time, as in PyTorch's tutorial, then the same
  by input shape, then by five lines of the stack. Shapes and stacks are recorded.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Final

from shared_data import shared

from annot.agents.folders import Folders
from annot.agents.tools import Tools
from annot.cli.main import main as run_annot
from annot.errors import AnnotError

HERE: Final = Path(__file__).parent
PROGRAMS: Final = HERE / "agent_programs"
ROWS: Final = 10
"""Rows of a table of torch.profiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A profile with a planted cause.

    Args:
        name: name of the case.
        cause: what was planted.
        kind, place: patterns of text that names the kind and the place of the cause.
        program: a program of `agent_programs`, or "".
        file: a profile of `../shared/data`, or "".
    """

    name: str
    cause: str
    kind: str
    place: str
    program: str = ""
    file: str = ""

    @property
    def profile(self) -> str:
        """Name of the profile in the folder."""
        return f"{self.name}.json" if ".json" in self.file else f"{self.name}.sqlite"

    def found(self, text: str) -> str:
        """Return whether a text has the cause. The name of the file, which may be that of the cause, does not count."""
        plain = text.replace("\\_", "_")
        nameless = plain.replace(self.name, "")
        place = self.place.removesuffix("|LINES")
        has_place = re.search(place, nameless) or (place != self.place and re.search(self._lines(), plain))
        if re.search(self.kind, nameless):
            return "yes" if has_place else "only the kind"
        return "only the place" if has_place else "no"

    def _lines(self) -> str:
        lines = (PROGRAMS / self.program).read_text(encoding="utf-8").splitlines()
        numbers = (str(number) for number, line in enumerate(lines, 1) if line.endswith("# planted"))
        return rf"{re.escape(self.program)}[:(](?:{'|'.join(numbers)})\b"


@dataclass(frozen=True, slots=True)
class Reading:
    """What an agent reads with a tool until it stops."""

    calls: int
    characters: int
    found: str

    def __str__(self) -> str:
        return f"{self.found}: {self.calls} {'call' if self.calls == 1 else 'calls'}, {self.characters:,}"


def read(case: Case, texts: Iterator[str]) -> Reading:
    """Read answers until the cause is in them."""
    text, calls = "", 0
    for answer in texts:
        text, calls = text + answer, calls + 1
        if case.found(text) == "yes":
            break
    return Reading(calls, len(text), case.found(text))


def annot_markdown(case: Case) -> Iterator[str]:
    """Yield the short answer, then the output of the commands that it names."""
    summary = _printed(case.profile, "--format", "markdown", "--max-chars", "2000")
    yield summary
    for command in dict.fromkeys(re.findall(r"`(?:annot )?([^`]*)`", summary)):
        words = [case.profile, *shlex.split(command)] if command.startswith("--") else command.split()
        if case.profile in words and words[0] not in ("try", "run"):
            yield _printed(*words)


def _printed(*words: str) -> str:
    """The output of a command of annot."""
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8") as out:
        with redirect_stdout(out):
            run_annot([*words])
        out.seek(0)
        return out.read()


def annot_mcp(case: Case) -> Iterator[str]:
    """Yield the answers of the tools in their order."""
    tools, profile = Tools(Folders(["."], largest=1 << 32)), case.profile
    yield tools.open(profile)
    yield tools.summary(profile)
    yield tools.advice(profile)
    rows = tools.rows(profile)
    yield rows
    if listed := json.loads(rows)["rows"]:
        key = {name: listed[0].get(name) for name in ("layer", "module", "phase")}
        try:
            yield tools.explain_row(profile, **key)
        except (AnnotError, ValueError) as error:
            yield str(error)


def nsys_stats(case: Case) -> Iterator[str]:
    """Yield the default reports."""
    done = subprocess.run(["nsys", "stats", case.profile], capture_output=True, text=True, check=True)
    reports = re.split(r"(?m)^(?=Processing \[)", done.stdout)[1:]
    yield from (report for report in reports if not re.search("^SKIPPED|no data was returned", report, re.MULTILINE))


def torch_tables(case: Case) -> Iterator[str]:
    """Yield the tables that were printed when the program ran."""
    yield from json.loads(_tables(case).read_bytes())


def _tables(case: Case) -> Path:
    return Path(f"{case.name}.tables")


def record_tables(cases: Sequence[Case]) -> None:
    """Run programs under torch.profiler, in this process, and write its tables."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    for case in cases:
        path = PROGRAMS / case.program
        program, names = compile(path.read_bytes(), case.program, "exec"), {"__name__": "__main__"}
        # Without this run the profiler sees imports. It reads the names of their code later, when they are freed, and
        # fails with UnicodeDecodeError (PyTorch 2.13).
        exec(program, names)
        verbose = _ExperimentalConfig(verbose=True)
        with profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True, experimental_config=verbose
        ) as profiler:
            exec(program, names)
        averages = [
            profiler.key_averages(),
            profiler.key_averages(group_by_input_shape=True),
            profiler.key_averages(group_by_stack_n=5),
        ]
        tables = [each.table(sort_by="self_cpu_time_total", row_limit=ROWS) for each in averages]
        _tables(case).write_text(json.dumps(tables))


def record(cases: Sequence[Case]) -> None:
    """Record what the working folder lacks."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for case in cases:
        path = Path(case.profile)
        if path.exists():
            continue
        if case.file:
            path.write_bytes(gzip.decompress(shared(case.file).read_bytes()))
            continue
        words = [sys.executable, "-m", "annot", "run", "--layers", "--collector", "nsys", "--force", "-o", str(path)]
        program = [sys.executable, str(PROGRAMS / case.program)]
        subprocess.run([*words, "--", *program], env=environment, stdout=subprocess.DEVNULL, check=True)
    if missing := [case.name for case in cases if case.program and not _tables(case).exists()]:
        subprocess.run([sys.executable, __file__, ".", "--tables", *missing], env=environment, check=True)


TOOLS: Final[Mapping[str, Callable[[Case], Iterator[str]]]] = {
    "annot Markdown": annot_markdown,
    "annot MCP": annot_mcp,
    "nsys stats": nsys_stats,
    "torch.profiler": torch_tables,
}


def reads(tool: str, case: Case) -> bool:
    """Return whether a tool can read a profile: nsys no traces of torch.profiler, torch.profiler only its own run."""
    return {"nsys stats": ".json" not in case.file, "torch.profiler": bool(case.program)}.get(tool, True)


def print_table(cases: Sequence[Case]) -> None:
    """Print the readings as Markdown."""
    nsys = subprocess.run(["nsys", "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    print(f"{date.today()}, annot {version('annot-nvtx')}, nsys {nsys}, PyTorch {version('torch')}\n")
    print(f"| planted cause | {' | '.join(TOOLS)} |\n|---|{'---|' * len(TOOLS)}")
    for case in cases:
        cells = [str(read(case, texts(case))) if reads(tool, case) else "–" for tool, texts in TOOLS.items()]
        print(f"| {case.name}: {case.cause} | {' | '.join(cells)} |", flush=True)


def print_texts(case: Case) -> None:
    """Print what each tool says about a profile."""
    for tool, texts in TOOLS.items():
        for number, text in enumerate(texts(case) if reads(tool, case) else (), 1):
            print(f"===== {tool}, call {number}: {case.found(text)}, {len(text):,} characters\n{text}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/agents"), help="where recordings are")
    parser.add_argument("--show", help="print the texts of this case instead of the table")
    parser.add_argument("--tables", nargs="+", default=(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = {name: Case(name=name, **case) for name, case in tomllib.loads(_labels()).items()}
    options.folder.mkdir(parents=True, exist_ok=True)
    with chdir(options.folder):
        if options.tables:
            record_tables([cases[name] for name in options.tables])
            return
        if not shutil.which("nsys"):
            raise SystemExit("bench_agents needs nsys, as .ci/run installs it")
        record([*cases.values()])
        if options.show:
            print_texts(cases[options.show])
        else:
            print_table([*cases.values()])


def _labels() -> str:
    return (HERE / "agent_profiles.toml").read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
