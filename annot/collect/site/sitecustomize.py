"""Found by Python at its start under `annot run --collector torch`: prepares the profiler and steps aside.

It takes itself off the module path and out of the environment, so that neither the script nor what it starts
sees it, and then runs the `sitecustomize` that would have been found without it.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _step_aside() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    before = os.environ.pop("ANNOT_PYTHONPATH", None)
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before


def _run_own() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    own = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = own
    spec.loader.exec_module(own)


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


_step_aside()
_prepare_profiler()
_run_own()
