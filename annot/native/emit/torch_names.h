/* Objects of PyTorch and annot/torch that the hot path of module calls uses.
 *
 * annot/torch/module_calls.py is the reference implementation of the hot path and documents the design. PyTorch's
 * headers are not needed: shapes come from the DLPack C exchange API of tensors, everything else from Python attributes.
 * Rare cases (the first call with new shapes, an unknown module, an output other than a plain tensor) call the Python
 * functions. All functions run with the GIL held. */
#pragma once

#include <Python.h>

/* PyTorch's objects, by path in the module torch. */
#define ANNOT_OBJECTS(X)                                                                                               \
    X(tensor, "Tensor")                                                                                                \
    X(parameter, "nn.Parameter")                                                                                       \
    X(plain_call, "nn.Module._wrapped_call_impl")                                                                      \
    X(current_node, "_C._current_autograd_node")                                                                       \
    X(function, "_C._FunctionBase")                                                                                    \
    X(any_autocast, "_C._is_any_autocast_enabled")                                                                     \
    X(grad_mode, "is_grad_enabled")

/* Functions of annot/torch, by their names in the dict passed to `bind`. */
#define ANNOT_BOUND(X)                                                                                                 \
    X(signature) X(remember) X(if_recomputed) X(bury) X(is_node) X(device_of) X(visit) X(current_thread)

/* Interned attribute names and keys. */
#define ANNOT_ATTRIBUTES(X)                                                                                            \
    X(by_id, "by_id")                                                                                                  \
    X(dead, "dead")                                                                                                    \
    X(near, "near")                                                                                                    \
    X(cache, "cache")                                                                                                  \
    X(elsewhere, "elsewhere")                                                                                          \
    X(events, "events")                                                                                                \
    X(layer, "layer")                                                                                                  \
    X(shapes, "shapes")                                                                                                \
    X(discover, "discover")                                                                                            \
    X(roots, "roots")                                                                                                  \
    X(compiled_call, "_compiled_call_impl")                                                                            \
    X(call_impl, "_call_impl")                                                                                         \
    X(grad_fn, "grad_fn")                                                                                              \
    X(metadata, "metadata")                                                                                            \
    X(edges, "annot edges")                                                                                            \
    X(hooked, "annot hook")                                                                                            \
    X(next_functions, "next_functions")                                                                                \
    X(sequence, "_sequence_nr")                                                                                        \
    X(register_dict, "_register_hook_dict")                                                                            \
    X(register_prehook, "register_prehook")

#define ANNOT_FIELD(name, ...) PyObject *name;
/* Looked up once by annot_look_up. */
typedef struct {
    ANNOT_OBJECTS(ANNOT_FIELD) ANNOT_BOUND(ANNOT_FIELD) ANNOT_ATTRIBUTES(ANNOT_FIELD)
} Names;

extern Names annot_its;

/* New reference to a nested attribute of a module: annot_get("torch", "nn.Parameter"). */
PyObject *annot_get(const char *module_name, const char *path);
/* Sets the functions of annot/torch: a dict by name. A function of the Python module. */
PyObject *annot_bind(PyObject *module, PyObject *functions);
/* New reference to a function of annot/torch, by its name in the dict passed to `bind`. */
PyObject *annot_bound(const char *name);
/* Fills annot_its; -1 with an exception set. */
int annot_look_up(void);
