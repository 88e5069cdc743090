/* Objects of PyTorch and annot/torch that the hot path of module calls uses.
 *
 * annot/torch/module_calls.py is the reference implementation of the hot path and documents the design. PyTorch's
 * headers are not needed: shapes come from the DLPack C exchange API of tensors, everything else from Python attributes.
 * Rare cases (the first call with new shapes, an unknown module, an output other than a plain tensor) call the Python
 * functions. All functions run with the GIL held. */
#ifndef ANNOT_TORCH_NAMES_H
#define ANNOT_TORCH_NAMES_H

#include <Python.h>

/* Objects of PyTorch and annot/torch, and interned attribute names; looked up once by annot_look_up. */
typedef struct {
    PyObject *current_node, *function, *any_autocast, *tensor, *parameter, *plain_call;
    PyObject *signature, *remember, *if_recomputed, *is_node, *current_thread, *grad_mode, *device_of, *visit, *bury;
    PyObject *by_id, *dead, *near, *cache, *elsewhere, *events, *layer, *shapes, *compiled_call, *call_impl, *grad_fn,
        *metadata, *edges, *hooked, *next_functions, *sequence, *register_dict, *register_prehook, *discover, *roots;
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

#endif
