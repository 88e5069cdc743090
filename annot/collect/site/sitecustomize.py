"""Startup module of `annot run` with `--collector torch` or `--layers`, and of `annot try`.

Python imports it from PYTHONPATH. It removes its folder from the module path, so that the script does not see it, and
from the environment, unless children of the script search for models too, or may be the process that trains. Then it
sets up the profiler, the measurement of steps and the search for models, and runs the user's own `sitecustomize`, if
there is one.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _remove_from_path() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    if "ANNOT_LAYERS" in os.environ or "ANNOT_TRY" in os.environ:  # annot.live.environment.leave_environment removes it
        return
    before = os.environ.pop("ANNOT_PYTHONPATH", None)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before


def _run_original() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    original = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = original
    spec.loader.exec_module(original)


def _prepare_profiler() -> None:
    output = os.environ.pop("ANNOT_TORCH_TRACE", None)
    if output is None:
        return
    try:
        from annot.collect.torch_session import profile_when_imported
    except ImportError as error:
        print(f"annot: torch.profiler was not started in {sys.executable}: {error}", file=sys.stderr)
        return
    profile_when_imported(output)


def _prepare_measurement() -> None:
    request = os.environ.get("ANNOT_TRY")
    if request is None:
        return
    try:
        from annot.live.start import measure_when_imported
    except ImportError as error:
        if error.name != "annot":  # tools with a Python of their own do not need it
            print(f"annot: steps are not measured in {sys.executable}: {error}", file=sys.stderr)
        return
    measure_when_imported(request)


def _prepare_search() -> None:
    if "ANNOT_LAYERS" not in os.environ:
        return
    try:
        from annot.collect.model_search import search_when_imported
    except ModuleNotFoundError as error:
        if error.name != "annot":  # tools with a Python of their own do not need it
            print(f"annot: layers have no ranges in {sys.executable}: {error}", file=sys.stderr)
        return
    search_when_imported()


_remove_from_path()
_prepare_profiler()
_prepare_measurement()
_prepare_search()
_run_original()
