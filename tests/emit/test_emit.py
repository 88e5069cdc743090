"""When annot emits, to whom, and what it never does; each case in a process of its own, under the real recorder."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from captured import Captured

import annot
from annot import native
from annot.emit import client
from annot.emit.client import IS_NATIVE
from annot.errors import warn
from annot.read.recording.export import assemble

LIBRARY = native.recorder_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the recorder was not built: no C compiler")


def run(code: str, **environment: str) -> str:
    """Run code in a new process without any tool; return what it printed."""
    switches = ("ANNOT_ENABLE", "ANNOT_DISABLE", "NVTX_DISABLE", "NVTX_INJECTION64_PATH", "ANNOT_RECORD_DIR")
    clean = {name: value for name, value in os.environ.items() if name not in switches}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_recorded(folder: Path, code: str, **environment: str) -> Captured:
    """Run code in a new process under the recorder; return what was recorded."""
    parts = folder / "parts"
    parts.mkdir()
    run(code, NVTX_INJECTION64_PATH=str(LIBRARY), ANNOT_RECORD_DIR=str(parts), **environment)
    recording = assemble(parts, folder / "out.sqlite")
    return Captured(folder / "out.sqlite", recording.open_ranges, recording.unmatched_pops)


CODE = "import annot\n@annot.trace('f')\ndef f(): pass\nf()\nwith annot.trace('block'): annot.mark('point')\n"


def test_a_tool_of_the_process_sees_everything(tmp_path: Path) -> None:
    """Under a tool, ranges and marks arrive."""
    captured = run_recorded(tmp_path, CODE)
    assert captured.texts == ["f", "block"]
    assert [text for _, text, _ in captured.marks] == ["point"]


@pytest.mark.parametrize("switch", ["ANNOT_DISABLE", "NVTX_DISABLE"])
def test_switches_turn_everything_off(tmp_path: Path, switch: str) -> None:
    """With a switch set, a tool sees nothing and `enabled` is false."""
    assert run_recorded(tmp_path, CODE + "assert not annot.enabled()", **{switch: "1"}).texts == []


def test_enable_by_environment() -> None:
    """`ANNOT_ENABLE=1` keeps ranges ready without a tool."""
    code = "import annot\ndef f(): pass\nprint(annot.enabled(), annot.trace(f) is f)"
    assert run(code, ANNOT_ENABLE="1").split() == ["True", "False"]
    assert run(code, ANNOT_ENABLE="0").split() == ["False", "True"]


def test_import_loads_no_framework_and_no_tables() -> None:
    """`import annot` loads neither a framework nor what the read wing needs."""
    code = "import annot, sys; print(*{'torch', 'tensorflow', 'polars', 'numpy', 'nvtx', 'rich'} & set(sys.modules))"
    assert run(code).split() == []


def test_dir_lists_the_public_names_and_loads_nothing() -> None:
    """Completion sees the functions and the packages of frameworks, and neither modules nor helpers."""
    code = """
import sys, annot, rlcompleter
public = dir(annot)
print(set(annot.__all__) | {'tf', 'torch'} == set(public), public == sorted(public))
print(*dir(annot.torch), *dir(annot.tf)[:2])
print(*{'torch', 'tensorflow', 'polars', 'keras'} & set(sys.modules))
words = rlcompleter.Completer({'annot': annot}).attr_matches('annot.')
print({word.rstrip('()') for word in words} == {f'annot.{name}' for name in public})
"""
    assert run(code).splitlines() == [
        "True True",
        "AnnotCallback AnnotProfiler AnnotTrainerCallback EmitRanges emit_ranges AnnotCallback EmitRanges",
        "",
        "True",
    ]


def test_emit_ranges_has_the_options_of_its_frameworks() -> None:
    """Names, order, types and defaults are those of `annot.torch.emit_ranges` and of `annot.tf.emit_ranges`."""
    pytest.importorskip("torch")
    import annot.torch

    options = inspect.signature(annot.emit_ranges).parameters
    source = ast.parse(Path(annot.__file__).with_name("tf").joinpath("ranges.py").read_text())
    (function,) = (node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == "emit_ranges")
    names = (argument.arg for argument in function.args.kwonlyargs)
    of_tensorflow = dict(zip(names, function.args.kw_defaults, strict=True))
    of_torch = dict(inspect.signature(annot.torch.emit_ranges).parameters)
    assert set(options) == set(of_torch) | set(of_tensorflow)
    for name, option in options.items():
        if name in of_torch and name != "model":
            assert (of_torch[name].annotation, of_torch[name].default) == (option.annotation, option.default)
        if name in of_tensorflow:
            assert ast.literal_eval(of_tensorflow[name]) == option.default


def test_options_of_another_framework_and_unknown_options_are_type_errors() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match="the option mode of emit_ranges is for models of TensorFlow only"):
        annot.emit_ranges(model, mode="ops")
    with pytest.raises(TypeError, match="unexpected keyword argument 'backwards'"):
        annot.emit_ranges(model, backwards=True)  # type: ignore[call-arg]


@pytest.mark.slow
def test_type_checkers_know_the_options(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "code.py").write_text(
        "import annot\n"
        "with annot.emit_ranges(object(), depth=2, memory=True) as block:\n    block.pause()\n"
        "annot.emit_ranges(object(), depht=2)\n"
        "annot.emit_ranges(object(), depth='2')\n"
    )
    # Without the types of PyTorch and polars, which take mypy most of its time, the options have the same types.
    options = ["--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent", "--no-site-packages"]
    found, _, _ = api.run([*options, str(tmp_path / "code.py")])
    errors = [line.split("error: ")[1] for line in found.splitlines() if "error: " in line]
    assert len(errors) == 2
    assert errors[0].startswith('Unexpected keyword argument "depht" for "emit_ranges"; did you mean "depth"?')
    assert errors[1].startswith('Argument "depth" to "emit_ranges" has incompatible type "str"')


def test_record_after_an_early_nvtx_call(tmp_path: Path) -> None:
    """Somebody called NVTX before the recorder started: annot's own ranges come, and the others' loss is said."""
    pytest.importorskip("nvtx")
    out = tmp_path / "run.sqlite"
    code = f"""
import warnings, nvtx, annot
with nvtx.annotate("too early"): pass
annot.enable()
with annot.trace("early"): pass
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with annot.record({str(out)!r}):
        with annot.trace("ours"), nvtx.annotate("theirs"): pass
print([str(one.message) for one in caught])
"""
    printed = run(code)
    expected = ["ours"] if IS_NATIVE else []
    assert Captured(out, 0, 0).texts == expected
    assert "nvtx" in printed


def test_annot_makes_no_early_call() -> None:
    """Decorating, entering and asking without a tool leaves NVTX undecided: a later recorder sees everybody."""
    code = """
import tempfile, annot
@annot.trace
def f(): pass
with annot.trace("a"), annot.epoch(1): annot.mark("x")
for _ in annot.epochs(1): list(annot.batches([1]))
annot.enabled(); f()
annot.enable()
with annot.trace("b"): pass
import nvtx
with annot.record(tempfile.mkdtemp() + "/x.sqlite") as recorder:
    with nvtx.annotate("theirs"): pass
print(recorder.recording.ranges)
"""
    assert run(code).split() == ["1"]


def test_the_number_of_registered_texts_is_bounded() -> None:
    """However many shapes and messages come, no more than the bound is registered; the Python fallback warns."""
    code = """
import warnings, annot
from annot.emit import client
annot.enable()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    client.MAX_TEXTS = 500
    class Tensor:
        dtype = "float32"
        def __init__(self, n): self.shape = (n,)
    @annot.trace("layer", shapes=True)
    def layer(x): pass
    for n in range(3 * client.MAX_TEXTS):
        layer(Tensor(n))
    for n in range(100):
        with annot.trace(f"message {n}"): pass
print(len(client.texts()) <= client.MAX_TEXTS + 2, len(caught))  # two more: the layer without shapes, and the warning
"""
    bounded, warnings = run(code).split()
    assert bounded == "True"
    assert int(warnings) == (0 if IS_NATIVE else 1)


VARYING = """
import torch, annot
from annot.emit import client
from annot.util import lru_cache
from annot.torch import ranges
client.MAX_TEXTS, lru_cache.MAX_RECENT = 50, 60
model = torch.nn.Sequential(torch.nn.ReLU())
with annot.emit_ranges(model):
    for n in [*range(1, 200), 199, 3]:
        model(torch.ones(n, requires_grad=True)).sum().backward()
    for site in ranges._INSTALLED._sites.by_id.values():
        assert len(site.events) <= 60, len(site.events)
    assert len(client.texts()) <= 56, len(client.texts())
"""


@pytest.mark.skipif(not IS_NATIVE, reason="the nvtx package can only register texts")
def test_shapes_go_on_with_ever_new_lengths(tmp_path: Path) -> None:
    """Every length is shown, forward and backward, also an earlier one; texts and events that are kept are bounded."""
    pytest.importorskip("torch")
    texts = run_recorded(tmp_path, VARYING).texts
    lengths = [*range(1, 200), 199, 3]
    assert [text for text in texts if text.startswith("0 ") and text.endswith("|fwd")] == [
        f"0 ReLU [{n}]f32 |fwd" for n in lengths
    ]
    assert [text for text in texts if text.startswith("0 ") and text.endswith("|bwd")] == [
        f"0 ReLU [{n}]f32 |bwd" for n in lengths
    ]


def test_a_warning_is_not_raised_in_the_users_step(tmp_path: Path) -> None:
    """Where warnings are errors, and where the nvtx package shows no further shapes, the step goes on."""
    pytest.importorskip("torch")
    code = f"import warnings\n{VARYING}\n".replace("with annot", "warnings.simplefilter('error')\nwith annot")
    texts = run_recorded(tmp_path, code, ANNOT_DISABLE_NATIVE="1").texts
    calls = [text for text in texts if text.startswith("0 ReLU") and text.endswith("|fwd")]
    assert len(calls) == 201
    assert [calls[0], calls[-2], calls[-1]] == ["0 ReLU [1]f32 |fwd", "0 ReLU |fwd", "0 ReLU [3]f32 |fwd"]


def test_a_warning_as_an_error_is_a_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`warn` never raises its own warning, also where there is no stderr; a closed one is no error either."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn("one")
        client.warn_once("two, as an error")
        monkeypatch.setattr(sys, "stderr", None)
        warn("three")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["annot: warning: one", "annot: warning: two, as an error"]
    assert captured.out.splitlines() == ["annot: warning: three"]
    with pytest.warns(RuntimeWarning, match="four") as caught:
        warn("four")
    assert caught[0].filename == __file__


def test_colours_categories_and_payloads_arrive(tmp_path: Path) -> None:
    """What the user chose for a range is in the file."""
    import sqlite3

    pytest.importorskip("nvtx")
    code = """
import annot
with annot.trace("a", domain="mine", category="layer", color="green", payload=7): pass
with annot.trace("b", color=0x80112233, payload=2.5): pass
with annot.trace("c", domain=""): pass
"""
    run_recorded(tmp_path, code)
    with sqlite3.connect(tmp_path / "out.sqlite") as database:
        rows = database.execute(
            """select coalesce(r.text, value), r.color, r.int64Value, r.doubleValue, d.text, c.text from NVTX_EVENTS r
               left join StringIds on id = r.textId
               left join NVTX_EVENTS d on d.eventType = 75 and d.domainId = r.domainId
               left join NVTX_EVENTS c on c.eventType = 33 and c.domainId = r.domainId and c.category = r.category
               where r.eventType = 59 order by r.start"""
        ).fetchall()
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert rows[0][2:] == (7, None, "mine", "layer")
    assert rows[0][1] & 0xFFFFFF == 0x008000
    assert rows[1][1] & 0xFFFFFFFF == 0x80112233
    assert rows[1][3:5] == (2.5, "annot")
    assert rows[2][4] is None


def test_torch_profiler_sees_the_same_ranges() -> None:
    """While torch.profiler runs, the ranges are in its trace, with or without an NVTX tool."""
    pytest.importorskip("torch")
    code = """
import torch, annot
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
with torch.profiler.profile() as profile:
    @annot.trace("decorated")
    def step():
        with annot.emit_ranges(model):
            model(torch.ones(1, 2)).sum().backward()
    for _ in annot.batches([1]): step()
step()
names = [event.name for event in profile.events()]
layer = "0 Linear [1,2]f32 out=2"
for name in ("decorated", f"{layer} |fwd", f"{layer} grad=weight |bwd", "Backward |bwd", "Data |data"):
    print(names.count(name), name)
"""
    lines = run(code).splitlines()
    assert lines == [
        "1 decorated",
        "1 0 Linear [1,2]f32 out=2 |fwd",
        "1 0 Linear [1,2]f32 out=2 grad=weight |bwd",
        "1 Backward |bwd",
        "2 Data |data",
    ]


def test_public_names_are_functions_whatever_was_imported_before() -> None:
    """Modules that share a name with a public function do not take its place."""
    code = """
import annot.attribution, annot.emit.trace, annot.emit.schedule, annot.collect.record, annot.read, annot.cli.report
import annot
print(*[callable(getattr(annot, name)) for name in annot.__all__ if name != "AnnotError"])
"""
    assert set(run(code).split()) == {"True"}
