from __future__ import annotations

import os
import pty
import select
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ANNOT, COLLECTORS, NO_NSYS, annot, last_line, needs_recorder, without_native, write_script
from matrices import every_third

import annot.collect.run as runner
from annot import load
from annot.cli.main import main
from annot.cli.run import _print_report
from annot.util import installed_tools

pytest_plugins = ["small_disks"]

every_collector = pytest.mark.parametrize("collector", COLLECTORS)


def texts_in(profile: Path) -> list[str]:
    return load(profile).ranges.sort("start")["text"].to_list()


# A report takes as long as all the rest of a run: those that no test looks at are left out.
QUIET = ("--no-report",)


def run(collector: str, *command: object, cwd: Path, stdin: bytes = b"", options: tuple[str, ...] = QUIET):
    words = ["run", "-o", "out.sqlite", "--collector", collector, *options, "--", *command]
    return annot(*words, cwd=cwd, stdin=stdin)


@every_collector
@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('broken')", 1),
    ],
)
def test_status_is_the_scripts_own_and_the_profile_is_there(collector, ending, status, tmp_path):
    """However the script ends, its status comes through and what it did before is in the profile."""
    done = run(collector, sys.executable, write_script(tmp_path, ending), cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert texts_in(tmp_path / "out.sqlite") == ["outer", "inner"]
    assert not (tmp_path / "out.sqlite.parts").exists()
    said = f"annot: the command ended with status {status}. out.sqlite has the ranges recorded until then\n"
    assert (said in done.stderr.decode()) is (status != 0)


@every_collector
@pytest.mark.parametrize("number", every_third([signal.SIGKILL, signal.SIGTERM]))
def test_killed_script_gives_the_shells_status(collector, number, tmp_path):
    """A script that a signal ends is 128+n; the recorder has all of it, Nsight Systems at least says what it lacks."""
    ending = f"import os; os.kill(os.getpid(), {int(number)})"
    done = run(collector, sys.executable, write_script(tmp_path, ending), cwd=tmp_path)
    assert done.returncode == 128 + number
    if collector == "recorder":
        assert texts_in(tmp_path / "out.sqlite") == ["outer", "inner"]
    else:
        said = done.stderr.decode()
        assert f"signal {int(number)} ended the command" in said
        lost = "and Nsight Systems recorded no range of it. No profile was written\n" in said
        assert lost is not (tmp_path / "out.sqlite").exists()


@every_collector
def test_arguments_and_streams_are_untouched(collector, tmp_path):
    """The script sees its own arguments and input, and its output arrives byte for byte, without a word of annot's."""
    script = write_script(
        tmp_path,
        "import os\nos.write(1, repr(sys.argv[1:]).encode() + sys.stdin.buffer.read())\nos.write(2, b'own error')\n",
    )
    sent = bytes(range(256)) * 300
    words = ["a b", "--force", "-o", "", "%p", "é", "--"]
    done = run(collector, sys.executable, script, *words, cwd=tmp_path, stdin=sent)
    assert done.returncode == 0, done.stderr
    assert done.stdout == repr(words).encode() + sent
    assert b"own error" in done.stderr


@every_collector
def test_terminal_stays_a_terminal(collector, tmp_path):
    """In a terminal the script still finds one on all three streams."""
    script = write_script(tmp_path, "import os; print('TTY', [os.isatty(n) for n in range(3)], input())")
    command = [*ANNOT, "run", "--collector", collector, "--no-report", "--", sys.executable, str(script)]
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(command[0], command)
    os.write(terminal, b"typed\n")
    shown = b""
    try:
        while select.select([terminal], [], [], 60)[0] and (more := os.read(terminal, 4096)):
            shown += more
    except OSError:  # how Linux says that nobody has the terminal any more
        pass
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status == 0, shown
    assert b"TTY [True, True, True] typed" in shown


# Signals are waited for with them blocked: one that came just before signal.pause() would leave that waiting.
COUNTING = """
import signal
waited_for = {signal.SIGINT, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
print("ready", flush=True)
count = 0
while signal.sigwait(waited_for) == signal.SIGINT:
    count += 1
print(f"interrupted {count} times", flush=True)
with trace("tidying up"):
    sys.exit(5)
"""


@every_collector
@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["to the group", "to annot alone"])
def test_interrupt_arrives_once(collector, send, tmp_path):
    """Ctrl-C and `kill -INT` both reach the script exactly once, and the profile is complete."""
    script = write_script(tmp_path, COUNTING)
    words = ["run", "-o", "out.sqlite", "--collector", collector, *QUIET, "--", sys.executable, str(script)]
    with subprocess.Popen(
        [*ANNOT, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        send(process.pid, signal.SIGINT)
        # Passed on after what came before it, so that the script answers when every SIGINT has arrived.
        os.kill(process.pid, signal.SIGUSR1)
        said, errors = process.communicate(timeout=60)
    assert said == b"interrupted 1 times\n", errors
    assert process.returncode == 5
    assert texts_in(tmp_path / "out.sqlite") == ["outer", "inner", "tidying up"]


@every_collector
def test_ctrl_c_ends_a_script_that_does_not_care(collector, tmp_path):
    """A script that ends by KeyboardInterrupt gives the shell's status and leaves a readable profile."""
    script = write_script(tmp_path, "print('ready', flush=True)\nwhile True: pass")
    words = ["run", "-o", "out.sqlite", "--collector", collector, *QUIET, "--", sys.executable, str(script)]
    with subprocess.Popen(
        [*ANNOT, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"KeyboardInterrupt" in errors
    assert last_line(errors).startswith("annot: next: annot report out.sqlite")
    expected = ["outer", "inner"] if collector == "recorder" else ["outer"]
    assert texts_in(tmp_path / "out.sqlite")[: len(expected)] == expected


@every_collector
@pytest.mark.parametrize("number", every_third([signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2]))
def test_other_signals_are_passed_on(collector, number, tmp_path):
    """What a batch system sends to annot run ends the script as it would without annot."""
    script = write_script(tmp_path, "print('ready', flush=True)\nwhile True: pass")
    words = ["run", "-o", "out.sqlite", "--collector", collector, *QUIET, "--", sys.executable, str(script)]
    with subprocess.Popen(
        [*ANNOT, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # the tests may run under nohup
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    if collector == "recorder":
        assert texts_in(tmp_path / "out.sqlite") == ["outer", "inner"]


@every_collector
def test_module_and_shell_forms(collector, tmp_path):
    """`python -m` and a shell around Python work like a script."""
    package = tmp_path / "package"
    package.mkdir()
    write_script(package, "print(__name__)", "__main__.py")
    done = run(collector, sys.executable, "-m", "package", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"__main__\n"), done.stderr
    assert texts_in(tmp_path / "out.sqlite") == ["outer", "inner"]
    shell = f"{sys.executable} -m package; {sys.executable} -m package; exit 9"
    done = run(collector, "sh", "-c", shell, cwd=tmp_path, options=("--force", *QUIET))
    assert (done.returncode, done.stdout) == (9, b"__main__\n" * 2), done.stderr
    assert sorted(texts_in(tmp_path / "out.sqlite")) == ["inner", "inner", "outer", "outer"]


@every_collector
def test_open_files_are_passed_on(collector, tmp_path):
    """A file that the shell opened for the script (`9>log`) is open there."""
    script = write_script(tmp_path, "import os; os.write(9, b'logged')")
    shell = f'exec "$@" 9>{tmp_path}/log'
    words = ["run", "--collector", collector, "--no-report", "--", sys.executable, str(script)]
    subprocess.run(["sh", "-c", shell, "sh", *ANNOT, *words], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "log").read_bytes() == b"logged"


@every_collector
def test_no_ranges_is_said_and_is_no_failure(collector, tmp_path):
    """A command without ranges keeps its status and leaves no profile; one sentence names `annot doctor`."""
    done = run(collector, "sh", "-c", "echo hello", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert "no ranges were recorded, so out.sqlite was not written. Wrap training in" in last_line(done.stderr)
    assert "annot doctor" in last_line(done.stderr)
    assert not list(tmp_path.iterdir())
    layers = run(collector, "true", cwd=tmp_path, options=("--layers",))
    assert layers.returncode == 0
    assert "No Python process that can import annot called a PyTorch or Keras model" in last_line(layers.stderr)


@every_collector
@pytest.mark.parametrize("option", ["-I", "-uE", ("-X", "utf8", "-S")])
def test_a_python_that_skips_start_up_code_is_named(collector, option, tmp_path):
    """Python with -I and -E does not read PYTHONPATH, and with -S it imports no start-up module."""
    words = (option,) if isinstance(option, str) else option
    done = run(collector, "env", sys.executable, *words, "-c", "", cwd=tmp_path, options=("--layers",))
    assert done.returncode == 0
    said = f"annot: python -{words[-1][-1]} skips the start-up code of annot: layers have no ranges. Remove the option"
    assert said in done.stderr.decode().splitlines()


def test_other_options_of_python_are_no_cause():
    """Letters of a value, of the script and of its arguments are none."""
    for command in (
        ["python3.12", "-u", "train.py", "-I"], ["python", "-c", "pass", "-E"], ["python", "-mEIS"], ["train", "-I"],
        ["python", "-WIgnore", "x.py"], ["python", "-X", "-I", "x.py"], ["python", "-", "-I"], ["python", "--", "-I"],
    ):  # fmt: skip
        assert runner.isolating_option(command) == ""


@every_collector
@pytest.mark.parametrize(
    ("command", "status", "ended"),
    [
        (["sh", "-c", "exit 4"], 4, "4 before it opened a range"),
        ([sys.executable, "missing.py"], 2, "2 before it called a model"),
        (["sh", "-c", "kill -9 $$"], 137, "137 (SIGKILL, as when memory runs out) before it called a model"),
    ],
    ids=["status", "missing script", "killed"],
)
def test_a_command_that_fails_early_leaves_no_profile(collector, command, status, ended, tmp_path):
    """The last line says that it failed; an older profile stays. Nsight Systems loses ranges of killed processes."""
    (tmp_path / "out.sqlite").write_text("older")
    options = ("--force", "--layers") if "model" in ended else ("--force",)
    done = run(collector, *command, cwd=tmp_path, options=options)
    assert done.returncode == status
    if collector == "nsys" and "SIGKILL" in ended:
        ended = ended.replace("before it called a model", "and Nsight Systems recorded no range of it")
    assert last_line(done.stderr) == f"annot: the command ended with status {ended}. No profile was written"
    assert {path.name for path in tmp_path.iterdir()} == {"out.sqlite"}
    assert (tmp_path / "out.sqlite").read_text() == "older"


@needs_recorder
@pytest.mark.parametrize("status", [0, 5])
def test_the_status_of_the_script_survives_a_full_disk(status, tmp_path, small_disk):
    """The script writes its ranges until the disk is full, so that no profile can be written."""
    script = write_script(tmp_path, f"for _ in range(20_000):\n    with trace('x'): pass\nsys.exit({status})")
    done = run("recorder", sys.executable, script, cwd=small_disk)
    assert done.returncode == status
    ended = f"the command ended with status {status}, and " if status else ""
    assert last_line(done.stderr).startswith(f"annot: error: {ended}out.sqlite cannot be written: ")
    assert "the recorded data is in" in last_line(done.stderr)
    assert (small_disk / "out.sqlite.parts").is_dir()


@needs_recorder
@pytest.mark.parametrize("status", [0, 5])
def test_messages_that_cannot_be_written_change_nothing(status, tmp_path):
    """The script runs, and its status is passed on, although standard error is full."""
    script = write_script(tmp_path, f"print('ran')\nsys.exit({status})")
    shell = 'exec "$@" 2>/dev/full'
    words = ["run", "-o", "out.sqlite", "--collector", "recorder", "--", sys.executable, str(script)]
    done = subprocess.run(["sh", "-c", shell, "sh", *ANNOT, *words], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (status, b"ran\n")
    assert texts_in(tmp_path / "out.sqlite") == ["outer", "inner"]


@needs_recorder
def test_a_recording_that_lacks_events_says_so_above_its_verdict(tmp_path):
    """The script may write 200 kB per file, as on a disk that is full for a while."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
    script = write_script(tmp_path, f"{limit}for _ in range(20_000):\n    with trace('x'): pass\nsys.exit(6)")
    done = run("recorder", sys.executable, script, cwd=tmp_path, options=())
    assert done.returncode == 6
    assert b"The recording is cut: " in done.stderr
    shown = annot("out.sqlite", cwd=tmp_path).stdout.decode().splitlines()
    assert shown[0].startswith("The recording is cut: ")
    assert shown[0].endswith(" events could not be written: File too large.")
    assert "on CPU" in shown[1]


@needs_recorder
def test_a_folder_that_cannot_be_written_stops_the_run(tmp_path, small_disk):
    """Before the script starts, in one sentence."""
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    script = write_script(tmp_path, "open('ran', 'w')")
    done = run("recorder", sys.executable, script, cwd=small_disk)
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert b"out.sqlite cannot be written" in done.stderr
    assert b"Read-only file system" in done.stderr


@every_collector
def test_report_and_next_step_go_to_stderr(collector, tmp_path):
    """Away from a terminal the report leaves standard output to the script; the last line is what to type next."""
    done = run(collector, sys.executable, write_script(tmp_path, ""), cwd=tmp_path, options=())
    assert done.stdout == b""
    assert b"outer" in done.stderr
    assert last_line(done.stderr) == "annot: next: annot report out.sqlite --by advice"
    quiet = run(collector, sys.executable, tmp_path / "script.py", cwd=tmp_path, options=("--force", *QUIET))
    assert b"outer" not in quiet.stderr
    twice = f"{sys.executable} script.py && {sys.executable} script.py"
    several = run(collector, "sh", "-c", twice, cwd=tmp_path, options=("--force",))
    assert last_line(several.stderr) == "annot: next: annot report out.sqlite --by-process"


@needs_recorder
@pytest.mark.parametrize(
    ("driver", "collector", "said"), [(True, "auto", 1), (False, "auto", 0), (True, "recorder", 0)]
)
def test_a_run_without_gpu_times_says_how_to_get_them(driver, collector, said, tmp_path, monkeypatch, capfd):
    """On a machine with a GPU but without Nsight Systems, the line before the next step says what records GPU times."""
    monkeypatch.setattr(installed_tools, "_DRIVER_FILES", (str(tmp_path),) if driver else ())
    monkeypatch.setenv("ANNOT_NSYS", NO_NSYS)
    words = ["-o", str(tmp_path / "out.sqlite"), "--collector", collector, "--no-report"]
    assert main(["run", *words, "--", sys.executable, str(write_script(tmp_path, ""))]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert sum("--collector torch" in line for line in lines) == said
    assert ("--collector torch" in lines[-2]) == bool(said)


@needs_recorder
def test_default_names_count_up(tmp_path):
    """Without -o each run takes the first free annotN.sqlite."""
    script = write_script(tmp_path, "")
    for _ in range(2):
        done = annot("run", "--", sys.executable, script, cwd=tmp_path, ANNOT_NSYS=NO_NSYS)
        assert done.returncode == 0, done.stderr
    assert b"annot report annot2.sqlite" in done.stderr
    (tmp_path / "annot1.sqlite").unlink()
    annot("run", "--no-report", "--", sys.executable, script, cwd=tmp_path, ANNOT_NSYS=NO_NSYS)
    assert {path.name for path in tmp_path.glob("annot*")} == {"annot1.sqlite", "annot2.sqlite"}


@needs_recorder
def test_existing_output_is_refused_before_anything_runs(tmp_path):
    """An existing OUT stops the run at once and stays; --force replaces it."""
    script = write_script(tmp_path, "open('ran', 'w')")
    (tmp_path / "out.sqlite").write_text("precious")
    done = run("recorder", sys.executable, script, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert b"out.sqlite exists" in done.stderr
    assert (tmp_path / "out.sqlite").read_text() == "precious"
    assert not (tmp_path / "ran").exists()
    assert run("recorder", sys.executable, script, cwd=tmp_path, options=("--force", *QUIET)).returncode == 0
    assert texts_in(tmp_path / "out.sqlite") == ["outer", "inner"]


@needs_recorder
def test_parts_of_another_run_are_not_touched(tmp_path):
    """A run that still writes to OUT, or was killed while it did, is not overwritten."""
    parts = tmp_path / "out.sqlite.parts"
    parts.mkdir()
    (parts / "data").write_text("of another run")
    done = run("recorder", sys.executable, write_script(tmp_path, ""), cwd=tmp_path)
    assert done.returncode == 1
    assert b"out.sqlite.parts exists" in done.stderr
    assert (parts / "data").read_text() == "of another run"


@needs_recorder
@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("missing/out.sqlite", "missing: No such file or directory"),
        ("file/out.sqlite", "file: Not a directory"),
        ("/proc/out.sqlite", "/proc/out.sqlite cannot be written"),
        (".", ". is a folder"),
        ("x" * 300, "File name too long"),
        ("out.nsys-rep", "out.sqlite"),
    ],
)
def test_output_that_cannot_be_written_is_one_sentence(out, said, tmp_path):
    """An OUT that cannot be written stops the run before the script starts."""
    (tmp_path / "file").touch()
    script = write_script(tmp_path, "open('ran', 'w')")
    done = annot("run", "-o", out, "--collector", "recorder", "--", sys.executable, script, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert said in done.stderr.decode()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("no-such-command", 127, "command 'no-such-command' not found"),
        ("./no-such-file", 127, "command './no-such-file' not found"),
        ("", 127, "command '' not found"),
        ("train.py", 127, "command 'train.py' not found; run the file as python train.py"),
        ("my tool", 127, "command 'my tool' not found; run the file as './my tool'"),
        ("./plain", 126, "./plain is not executable"),
        ("./folder", 126, "./folder is a folder"),
        pytest.param("./binary", 126, "./binary cannot be executed", marks=needs_recorder),
    ],
)
def test_command_that_cannot_run_gives_the_shells_status(command, status, said, tmp_path):
    """No such command is 127, not executable 126, each with a sentence, and no profile is left."""
    for name in ("plain", "train.py", "my tool"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\x00not a program")
    (tmp_path / "binary").chmod(stat.S_IRWXU)
    done = annot("run", "--collector", "recorder", "--", command, cwd=tmp_path)
    assert done.returncode == status
    assert said in last_line(done.stderr)
    assert not list(tmp_path.glob("annot*"))


def test_no_command_is_wrong_usage(tmp_path):
    """`annot run` alone is status 2 and shows how it goes."""
    done = annot("run", cwd=tmp_path)
    assert done.returncode == 2
    assert b"annot run -- python train.py" in done.stderr


def test_recorder_that_was_not_built_says_what_to_install(tmp_path):
    """Without the C part the recorder ends in one sentence, and the script does not run."""
    done = annot("run", "--collector", "recorder", "--", "touch", "ran", cwd=without_native(tmp_path))
    assert done.returncode == 1
    assert "apt install gcc" in last_line(done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["annot"]


@needs_recorder
def test_ignored_interrupt_stays_ignored(tmp_path):
    """Under nohup or in a background job the script ignores what it would ignore without annot."""
    script = write_script(tmp_path, "import signal; print(signal.getsignal(signal.SIGINT).name)")
    command = [*ANNOT, "run", "--collector", "recorder", "--no-report", "--", sys.executable, str(script)]
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    assert subprocess.run(shell, cwd=tmp_path, capture_output=True, check=True).stdout == b"SIG_IGN\n"


@needs_recorder
def test_profile_says_where_it_comes_from(tmp_path):
    """The recording keeps the command, its status, and what recorded it."""
    run("recorder", sys.executable, write_script(tmp_path, "sys.exit(6)"), "a b", cwd=tmp_path)
    with sqlite3.connect(tmp_path / "out.sqlite") as database:
        meta = dict(database.execute("SELECT name, value FROM META_DATA_CAPTURE"))
    assert meta["ANNOT_COMMAND"].endswith("script.py 'a b'")
    assert (meta["ANNOT_EXIT_STATUS"], meta["ANNOT_COLLECTOR"]) == ("6", "recorder")
    assert meta["ANNOT_FOLDER"] == str(tmp_path)


def test_shell_status():
    """Return codes of children become what a shell shows."""
    assert [runner.shell_status(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]


def test_an_unexpected_error_of_the_report_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The exit status stays that of the command, whatever fails in the report."""

    def fail(*_: object) -> int:
        raise RuntimeError("a column is missing")

    monkeypatch.setattr("annot.cli.report.print_report", fail)
    assert _print_report(tmp_path / "run.sqlite") == 0
    assert "no report: RuntimeError: a column is missing. annot report " in capsys.readouterr().err
