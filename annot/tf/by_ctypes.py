"""The operations of annot/native/tf_ops.c, registered from Python: for machines without that library and a compiler.

The same operations, with kernels that call Python: a range costs about ten microseconds instead of one or two.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from annot import emit
from annot.tf import sizes

__all__ = ["DEFINITIONS", "FUNCTIONS", "Definition", "Operations"]

_INT32, _STRING = 3, 7  # tensorflow/c/tf_datatype.h

_P, _S, _I = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_Shape: Final = ctypes.CFUNCTYPE(None, _P, _P)
_Create: Final = ctypes.CFUNCTYPE(_P, _P)
_Compute: Final = ctypes.CFUNCTYPE(None, _P, _P)
_Delete: Final = ctypes.CFUNCTYPE(None, _P)

# From tensorflow/c/kernels.h, ops.h, tf_status.h and tf_tensor.h, with every handle as void *.
FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "TF_NewStatus": (_P,),
    "TF_DeleteStatus": (None, _P),
    "TF_GetCode": (_I, _P),
    "TF_NewOpDefinitionBuilder": (_P, _S),
    "TF_OpDefinitionBuilderAddAttr": (None, _P, _S),
    "TF_OpDefinitionBuilderAddInput": (None, _P, _S),
    "TF_OpDefinitionBuilderAddOutput": (None, _P, _S),
    "TF_OpDefinitionBuilderSetIsStateful": (None, _P, ctypes.c_bool),
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
    "TF_OpKernelConstruction_GetAttrInt32": (None, _P, _S, ctypes.POINTER(ctypes.c_int32), _P),
    "TF_NumInputs": (_I, _P),
    "TF_GetInput": (None, _P, _I, ctypes.POINTER(_P), _P),
    "TF_SetOutput": (None, _P, _I, _P, _P),
    "TF_AllocateTensor": (_P, _I, _P, _I, ctypes.c_size_t),
    "TF_TensorData": (_P, _P),
    "TF_TensorByteSize": (ctypes.c_size_t, _P),
    "TF_DeleteTensor": (None, _P),
    "TF_OpKernelContext_Failure": (None, _P, _P),
}  # fmt: skip
"""The functions of TensorFlow's C API that are called: what each returns, and takes."""


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
    stateful: bool = False
    """Runs though nothing needs its outputs, in the order of what works on the same resource."""


DEFINITIONS: Final = (
    Definition(
        "AnnotStart",
        ("event: string", "group: int = 0", "N: int >= 0", "T: type = DT_FLOAT", "A: int >= 0", "S: int >= 0"),
        ("tensors: N * T", "after: A * int32", "shapes: S * int32"),
        ("token: int32", "outputs: N * T"),
        ("after", "shapes", "token"),
        ("tensors", "outputs"),
        1,
    ),
    Definition(
        "AnnotEnd",
        ("grad_event: string = ''", "group: int = 0", "N: int >= 0", "T: type = DT_FLOAT", "D: list(type) >= 0"),
        ("tensors: N * T", "token: int32", "deps: D"),
        ("done: int32", "outputs: N * T"),
        ("token", "done"),
        ("tensors", "outputs"),
        1,
    ),
    Definition(
        "AnnotGate",
        ("grad_event: string = ''", "group: int = 0", "role: string = ''", "T: type"),
        ("tensor: T", "token: int32"),
        ("output: T",),
        ("token",),
        ("tensor", "output"),
        0,
    ),
    Definition(
        "AnnotEnter", ("event: string", "D: list(type) >= 0"), ("deps: D",), ("token: int32",), ("token",), (), 1, True
    ),
    Definition(
        "AnnotLeave", ("D: list(type) >= 0",), ("token: int32", "deps: D"), ("done: int32",), ("token", "done"), (), 1,
        True,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One operation of a graph that opens or closes ranges."""

    event: Any
    """What it opens; None for nothing."""
    tensors: int
    """How many tensors pass through, none or one."""
    shapes: int
    """How many inputs, the last ones, are shapes that the text of the event leaves open."""


class Operations:
    """The operations for one TensorFlow.

    Args:
        library: TensorFlow's library that holds the C API for kernels.

    Raises:
        AttributeError: a function is missing there.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._c = _functions_of(library)
        self._events: dict[bytes, Any] = {}
        self._kernels: list[_Kernel] = []
        self._thread = _Thread()
        self._lock = threading.Lock()
        self._open: dict[int, Any] = {}
        self._tokens = itertools.count(1)
        self._kept: list[Any] = []  # what TensorFlow calls must outlive every graph

    def know(self, key: str, event: Any) -> None:
        """Have operations whose attribute is `key` open the range of `event`."""
        self._events[key.encode("utf-8", "replace")] = event

    def close_all(self) -> int:
        """Close all ranges that are open; return how many."""
        return sum(map(self._close, tuple(self._open)))

    def register(self) -> None:
        """Register the operations.

        Raises:
            RuntimeError: TensorFlow refuses one.
        """
        start, end = (self._create_start, self._start), (self._create_end, self._end)
        kernels = {"AnnotStart": start, "AnnotEnter": start, "AnnotEnd": end, "AnnotLeave": end}
        for definition in DEFINITIONS:
            status = self._c.TF_NewStatus()
            self._define(definition, status)
            create, compute = kernels.get(definition.name, (None, self._gate))
            self._add_kernels(definition, self._keep(_Create(create or 0)), self._keep(_Compute(compute)), status)
            refused = self._c.TF_GetCode(status)
            self._c.TF_DeleteStatus(status)
            if refused:
                raise RuntimeError(f"it refused {definition.name}")

    # ---------------------------------------------------------------- registration

    def _define(self, definition: Definition, status: Any) -> None:
        builder = self._c.TF_NewOpDefinitionBuilder(definition.name.encode())
        for add, specs in (
            (self._c.TF_OpDefinitionBuilderAddAttr, definition.attributes),
            (self._c.TF_OpDefinitionBuilderAddInput, definition.inputs),
            (self._c.TF_OpDefinitionBuilderAddOutput, definition.outputs),
        ):
            for spec in specs:
                add(builder, spec.encode())
        if definition.stateful:
            self._c.TF_OpDefinitionBuilderSetIsStateful(builder, True)  # which sets the flag whatever it is given
        shapes = self._keep(_Shape(lambda context, result: self._follow_inputs(definition.first, context, result)))
        self._c.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, shapes)
        self._c.TF_RegisterOpDefinition(builder, status)

    def _add_kernels(self, definition: Definition, create: Any, compute: Any, status: Any) -> None:
        # On a GPU the last two types live in the host's memory.
        devices = ((b"CPU", 0), (b"GPU", 0), (b"GPU", _INT32), (b"GPU", _STRING))
        for device, host_type in devices if definition.follow else devices[:2]:
            # Nothing is called when a kernel goes, which may be after the interpreter.
            builder = self._c.TF_NewKernelBuilder(definition.name.encode(), device, create, compute, _Delete())
            if host_type:
                self._c.TF_KernelBuilder_TypeConstraint(builder, b"T", host_type, status)
                self._c.TF_KernelBuilder_Priority(builder, 1)
            for name in (*definition.host, *(definition.follow if host_type else ())):
                self._c.TF_KernelBuilder_HostMemory(builder, name.encode())
            self._c.TF_RegisterKernelBuilder(definition.name.encode(), builder, status)

    def _keep(self, callback: Any) -> Any:
        self._kept.append(callback)
        return callback

    # ---------------------------------------------------------------- what TensorFlow calls

    def _follow_inputs(self, first: int, context: Any, status: Any) -> None:
        c = self._c
        if first:
            scalar = c.TF_ShapeInferenceContextScalar(context)
            c.TF_ShapeInferenceContextSetOutput(context, 0, scalar, status)
            c.TF_DeleteShapeHandle(scalar)
        shape, beyond = c.TF_NewShapeHandle(), c.TF_NewStatus()
        for i in range(c.TF_ShapeInferenceContextNumInputs(context)):
            c.TF_ShapeInferenceContextGetInput(context, i, shape, status)
            if c.TF_GetCode(status) == 0:
                c.TF_ShapeInferenceContextSetOutput(context, first + i, shape, beyond)
        c.TF_DeleteStatus(beyond)
        c.TF_DeleteShapeHandle(shape)

    def _create_start(self, construction: Any) -> int:
        status = self._own_status()
        event = self._event(construction, status)
        tensors, shapes = (self._number(construction, name, status) for name in (b"N", b"S"))
        return self._kernel(_Kernel(event, tensors, shapes), status)

    def _create_end(self, construction: Any) -> int:
        status = self._own_status()
        return self._kernel(_Kernel(None, self._number(construction, b"N", status), 0), status)

    def _kernel(self, kernel: _Kernel, status: Any) -> int:
        self._renew_if_bad(status)
        with self._lock:
            self._kernels.append(kernel)
            return len(self._kernels)

    def _event(self, construction: Any, status: Any) -> Any:
        """Return the event, or None where another process made the graph."""
        c, items, size = self._c, ctypes.c_int32(), ctypes.c_int32()
        c.TF_OpKernelConstruction_GetAttrSize(construction, b"event", items, size, status)
        key = ctypes.create_string_buffer(max(size.value, 0) + 1)
        c.TF_OpKernelConstruction_GetAttrString(construction, b"event", key, max(size.value, 0), status)
        return None if c.TF_GetCode(status) else self._events.get(key.value)

    def _number(self, construction: Any, name: bytes, status: Any) -> int:
        """Return an attribute; 0 where an operation has none of this name."""
        number = ctypes.c_int32()
        self._c.TF_OpKernelConstruction_GetAttrInt32(construction, name, number, status)
        return number.value

    def _start(self, number: int, context: Any) -> None:
        kernel, status, token = self._kernels[number - 1], self._own_status(), 0
        if kernel.tensors:
            self._pass_through(context, 1, status)
        if kernel.event is not None:
            event = self._sized(kernel, context, status) if kernel.shapes else kernel.event
            token = next(self._tokens) & 0x7FFFFFFF
            self._open[token] = emit.start(event)
        self._put_token(context, token, status)
        self._renew_if_bad(status)

    def _sized(self, kernel: _Kernel, context: Any, status: Any) -> Any:
        c, shapes, tensor = self._c, [], ctypes.c_void_p()
        inputs = c.TF_NumInputs(context)
        for i in range(inputs - kernel.shapes, inputs):
            c.TF_GetInput(context, i, tensor, status)
            rank = c.TF_TensorByteSize(tensor) // 4
            shapes.append(tuple((ctypes.c_int32 * rank).from_address(c.TF_TensorData(tensor))))
            c.TF_DeleteTensor(tensor)
        return sizes.sized(kernel.event, tuple(shapes))

    def _end(self, number: int, context: Any) -> None:
        c, tensors, status = self._c, self._kernels[number - 1].tensors, self._own_status()
        token = ctypes.c_void_p()
        c.TF_GetInput(context, tensors, token, status)
        if token:
            self._close(ctypes.c_int32.from_address(c.TF_TensorData(token)).value)
            c.TF_SetOutput(context, 0, token, status)  # its value says nothing once the range is closed
            c.TF_DeleteTensor(token)
        if tensors:
            self._pass_through(context, 1, status)
        self._renew_if_bad(status)

    def _gate(self, _number: int | None, context: Any) -> None:
        status = self._own_status()
        self._pass_through(context, 0, status)
        self._renew_if_bad(status)

    def _close(self, token: int) -> bool:
        started = self._open.pop(token, None)
        if started is not None:
            emit.end(started)
        return started is not None

    def _pass_through(self, context: Any, output: int, status: Any) -> None:
        """Give the first input on."""
        c, tensor = self._c, ctypes.c_void_p()
        c.TF_GetInput(context, 0, tensor, status)
        if tensor:
            c.TF_SetOutput(context, output, tensor, status)
            c.TF_DeleteTensor(tensor)
        if c.TF_GetCode(status):
            c.TF_OpKernelContext_Failure(context, status)

    def _put_token(self, context: Any, token: int, status: Any) -> None:
        c = self._c
        tensor = c.TF_AllocateTensor(_INT32, None, 0, 4)
        ctypes.c_int32.from_address(c.TF_TensorData(tensor)).value = token
        c.TF_SetOutput(context, 0, tensor, status)
        c.TF_DeleteTensor(tensor)
        if c.TF_GetCode(status):
            c.TF_OpKernelContext_Failure(context, status)

    def _own_status(self) -> Any:
        """Return the status of this thread, which says OK."""
        if self._thread.status is None:
            self._thread.status = self._c.TF_NewStatus()
        return self._thread.status

    def _renew_if_bad(self, status: Any) -> None:
        """Let go of a status that holds an error: with one, functions of TensorFlow do nothing."""
        if self._c.TF_GetCode(status):
            self._thread.status = None
            self._c.TF_DeleteStatus(status)


class _Thread(threading.local):
    """What one of TensorFlow's threads keeps from one kernel to the next.

    To Python, each call from a thread that it has not made is a new thread: it makes a state for it and throws it away,
    which takes more time than all of the rest. A state that is asked for once more stays as long as Python runs.
    """

    def __init__(self) -> None:
        ctypes.pythonapi.PyGILState_Ensure()
        self.status: Any = None


def _functions_of(library: ctypes.CDLL) -> Any:
    functions = SimpleNamespace()
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(functions, name, function)
    return functions
