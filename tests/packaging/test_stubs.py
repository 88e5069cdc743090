"""The stubs of the C modules list the names of the built modules."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from annot import native

MODULES = [("_emit", native.emitter()), ("_tables", native.tables())]


def stub_of(name: str) -> ast.Module:
    return ast.parse((Path(native.__file__).parent / f"{name}.pyi").read_text())


def defined(body: list[ast.stmt]) -> set[str]:
    """Names of the functions, classes and annotated variables in a block of a stub."""
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return names | {
        node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize(("name", "module"), MODULES, ids=[name for name, _ in MODULES])
def test_stub_lists_what_the_module_has(name: str, module: ModuleType | None) -> None:
    if module is None:
        pytest.skip("the C extensions are not built or are disabled")
    stub = stub_of(name)
    assert public(defined(stub.body)) == public(vars(module))
    assert {key for key, value in vars(module).items() if callable(value)} - {"__loader__"} <= defined(stub.body)
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and hasattr(module, node.name):
            assert public(defined(node.body)) == public(vars(getattr(module, node.name))), node.name
            assert ast.get_docstring(node), node.name


@pytest.mark.parametrize("name", [name for name, _ in MODULES])
def test_every_function_of_a_stub_has_types(name: str) -> None:
    functions = [node for node in ast.walk(stub_of(name)) if isinstance(node, ast.FunctionDef)]
    assert functions
    for function in functions:
        assert function.returns is not None, function.name
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        assert not [one.arg for one in arguments if one.annotation is None and one.arg not in ("self", "cls")]
