"""Checks of Nsight Systems and Nsight Compute."""

from __future__ import annotations

import shlex
import sys

from annot.doctor.finding import Check, Machine
from annot.util.installed_tools import Nsys, find_ncu, has_gpu_driver, has_nsys_writer

_INSTALL_NSYS = "sudo apt install nsight-systems"


def examine(machine: Machine, nsys: Nsys | None) -> list[Check]:
    """Check NVIDIA's profilers. `nsys` is the one that `annot run` uses."""
    nsys_checks = [] if nsys is None else [_import_of(nsys), _writing_of(nsys)]
    return [_nsys(machine, nsys), *nsys_checks, _ncu(machine)]


def _nsys(machine: Machine, nsys: Nsys | None) -> Check:
    if nsys is not None:
        return Check("Nsight Systems", "ok", f"{nsys.version_text} at {nsys.path}")
    if named := machine.environ.get("ANNOT_NSYS"):
        return Check("Nsight Systems", "note", f"ANNOT_NSYS is {named}, which does not respond", "unset ANNOT_NSYS")
    text = "not found. GPU times need it or --collector torch. Ranges do not need it"
    return Check("Nsight Systems", "note", text, _INSTALL_NSYS)


def _import_of(nsys: Nsys) -> Check:
    if nsys.imports_by_itself:
        return Check("import of reports", "ok", "Nsight Systems finds its importer")
    importer = nsys.importer()
    if importer is None:
        text = "the importer, which converts captures to reports, is not installed"
        return Check("import of reports", "problem", text, _INSTALL_NSYS)
    text = f"Nsight Systems does not find its importer. annot calls {importer}"
    return Check("import of reports", "note", text, nsys.link_command())


def _writing_of(nsys: Nsys) -> Check:
    """Check the tool that `annot report --format nsys-rep` writes with."""
    name = "writing into reports"
    if has_nsys_writer():
        return Check(name, "ok", "with nsys_writer of Nsight Systems")
    importer, package = nsys.nvtxt_importer(), nsys.writer_package()
    if importer is not None:
        return Check(name, "ok", f"with {importer}")
    text = "nsys_writer and ImportNvtxt of Nsight Systems are not installed"
    remedy = _INSTALL_NSYS if package is None else shlex.join([sys.executable, "-m", "pip", "install", str(package)])
    return Check(name, "note", text, remedy)


def _ncu(machine: Machine) -> Check:
    ncu = find_ncu(machine.environ, machine.root)
    if ncu is not None:
        path, version = ncu
        return Check("Nsight Compute", "ok", f"{version} at {path}")
    if named := machine.environ.get("ANNOT_NCU"):
        return Check("Nsight Compute", "note", f"ANNOT_NCU is {named}, which does not respond", "unset ANNOT_NCU")
    if not has_gpu_driver(machine.root):
        return Check("Nsight Compute", "ok", "not found. It is not needed without a GPU")
    return Check("Nsight Compute", "note", "not found. Hardware counters need it", "sudo apt install nsight-compute")
