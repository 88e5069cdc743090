"""The operations of annot/native/tf_ops.c, registered from Python: for machines without that library and a compiler.

The same operations, with kernels that call Python: a range costs 20 to 30 microseconds instead of one or two.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from annot import emit

__all__ = ["Operations"]

_INT32, _STRING, _INT64 = 3, 7, 9  # tensorflow/c/tf_datatype.h

_P, _S, _I = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_Shape: Final = ctypes.CFUNCTYPE(None, _P, _P)
_Create: Final = ctypes.CFUNCTYPE(_P, _P)
_Compute: Final = ctypes.CFUNCTYPE(None, _P, _P)
_Delete: Final = ctypes.CFUNCTYPE(None, _P)

# From tensorflow/c/kernels.h, ops.h, tf_status.h and tf_tensor.h, with every handle as void *.
_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "TF_NewStatus": (_P,),
    "TF_DeleteStatus": (None, _P),
    "TF_GetCode": (_I, _P),
    "TF_NewOpDefinitionBuilder": (_P, _S),
    "TF_OpDefinitionBuilderAddAttr": (None, _P, _S),
    "TF_OpDefinitionBuilderAddInput": (None, _P, _S),
    "TF_OpDefinitionBuilderAddOutput": (None, _P, _S),
    "TF_OpDefinitionBuilderSetShapeInferenceFunction": (None, _P, _Shape),
    "TF_RegisterOpDefinition": (None, _P, _P),
    "TF_ShapeInferenceContextNumInputs": (ctypes.c_int64, _P),
    "TF_NewShapeHandle": (_P,),
    "TF_DeleteShapeHandle": (None, _P),
    "TF_ShapeInferenceContextScalar": (_P, _P),
    "TF_ShapeInferenceContextGetInput": (None, _P, _I, _P, _P),
    "TF_ShapeInferenceContextSetOutput": (None, _P, _I, _P, _P),
    "TF_NewKernelBuilder": (_P, _S, _S, _Create, _Compute, _Delete),
    "TF_KernelBuilder_TypeConstraint": (None, _P, _S, _I, _P),
    "TF_KernelBuilder_HostMemory": (None, _P, _S),
    "TF_KernelBuilder_Priority": (None, _P, ctypes.c_int32),
    "TF_RegisterKernelBuilder": (None, _S, _P, _P),
    "TF_OpKernelConstruction_GetAttrSize": (
        None, _P, _S, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_int32), _P,
    ),
    "TF_OpKernelConstruction_GetAttrString": (None, _P, _S, _P, ctypes.c_size_t, _P),
    "TF_NumOutputs": (_I, _P),
    "TF_GetInput": (None, _P, _I, ctypes.POINTER(_P), _P),
    "TF_SetOutput": (None, _P, _I, _P, _P),
    "TF_AllocateOutput": (_P, _P, _I, _I, _P, _I, ctypes.c_size_t, _P),
    "TF_TensorData": (_P, _P),
    "TF_DeleteTensor": (None, _P),
    "TF_OpKernelContext_Failure": (None, _P, _P),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Definition:
    """One operation: what TensorFlow is told of it."""

    name: str
    attributes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    host: tuple[str, ...]
    """Arguments in host memory."""
    follow: tuple[str, ...]
    """Arguments of type T."""
    first: int
    """The output that has the shape of the first input; a scalar stands before it."""


_DEFINITIONS: Final = (
    Definition(
        "AnnotStart",
        ("event: string", "group: int = 0", "N: int >= 0", "T: type = DT_FLOAT", "D: list(type) >= 0"),
        ("tensors: N * T", "deps: D"),
        ("token: int64", "outputs: N * T"),
        ("token",),
        ("tensors", "outputs"),
        1,
    ),
    Definition(
        "AnnotEnd",
        ("grad_event: string = ''", "group: int = 0", "N: int >= 0", "T: type = DT_FLOAT", "D: list(type) >= 0"),
        ("tensors: N * T", "token: int64", "deps: D"),
        ("done: int64", "outputs: N * T"),
        ("token", "done"),
        ("tensors", "outputs"),
        1,
    ),
    Definition(
        "AnnotGate",
        ("grad_event: string = ''", "group: int = 0", "role: string = ''", "T: type"),
        ("tensor: T", "token: int64"),
        ("output: T",),
        ("token",),
        ("tensor", "output"),
        0,
    ),
)


class Operations:
    """The operations for one TensorFlow.

    Args:
        library: TensorFlow's library that holds the C API for kernels.

    Raises:
        AttributeError: a function is missing there.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._events: dict[bytes, int] = {}
        self._by_number: list[Any] = [None]
        self._open: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        self._kept: list[Any] = []  # what TensorFlow calls must outlive every graph
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def know(self, key: str, event: Any) -> None:
        """Have operations whose attribute is `key` open the range of `event`."""
        self._by_number.append(event)
        self._events[key.encode("utf-8", "replace")] = len(self._by_number) - 1

    def close_all(self) -> int:
        """Close all ranges that are open; return how many."""
        closed = 0
        for number in tuple(self._open):
            closed += self._close(number)
        return closed

    def register(self) -> None:
        """Register the operations.

        Raises:
            RuntimeError: TensorFlow refuses one.
        """
        computes = {"AnnotStart": self._start, "AnnotEnd": self._end, "AnnotGate": self._gate}
        for definition in _DEFINITIONS:
            with self._status(f"it refused {definition.name}") as status:
                self._define(definition, status)
                create = self._find_event if definition.name == "AnnotStart" else _no_kernel
                self._add_kernels(definition, self._keep(_Create(create)), computes[definition.name], status)

    # ---------------------------------------------------------------- registration

    def _define(self, definition: Definition, status: Any) -> None:
        builder = self.TF_NewOpDefinitionBuilder(definition.name.encode())
        for add, specs in (
            (self.TF_OpDefinitionBuilderAddAttr, definition.attributes),
            (self.TF_OpDefinitionBuilderAddInput, definition.inputs),
            (self.TF_OpDefinitionBuilderAddOutput, definition.outputs),
        ):
            for spec in specs:
                add(builder, spec.encode())
        shapes = self._keep(_Shape(lambda context, result: self._shapes(definition.first, context, result)))
        self.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, shapes)
        self.TF_RegisterOpDefinition(builder, status)

    def _add_kernels(self, definition: Definition, create: Any, compute: Callable[..., None], status: Any) -> None:
        run, free = self._keep(_Compute(compute)), self._keep(_Delete(_forget))
        # On a GPU these two types live in the host's memory.
        for device, host_type in ((b"CPU", 0), (b"GPU", 0), (b"GPU", _INT32), (b"GPU", _STRING)):
            builder = self.TF_NewKernelBuilder(definition.name.encode(), device, create, run, free)
            if host_type:
                self.TF_KernelBuilder_TypeConstraint(builder, b"T", host_type, status)
                self.TF_KernelBuilder_Priority(builder, 1)
            for name in (*definition.host, *(definition.follow if host_type else ())):
                self.TF_KernelBuilder_HostMemory(builder, name.encode())
            self.TF_RegisterKernelBuilder(definition.name.encode(), builder, status)

    def _keep(self, callback: Any) -> Any:
        self._kept.append(callback)
        return callback
