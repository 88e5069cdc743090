/* Objects of PyTorch and annot/torch. Owns annot_its. */
#include "torch_names.h"

#include <string.h>

Names annot_its;

PyObject *annot_get(const char *module_name, const char *path) {
    PyObject *found = PyImport_ImportModule(module_name);
    char part[64];
    while (found && *path) {
        size_t length = strcspn(path, ".");
        memcpy(part, path, length);
        part[length] = '\0';
        path += length + (path[length] == '.');
        PyObject *next = PyObject_GetAttrString(found, part);
        Py_DECREF(found);
        found = next;
    }
    return found;
}

/* Functions of annot/torch by name, set by `bind`. */
static PyObject *functions = NULL;

PyObject *annot_bind(PyObject *self, PyObject *mapping) {
    (void)self;
    if (!PyDict_Check(mapping)) {
        PyErr_Format(PyExc_TypeError, "functions must be a dict, got %R", (PyObject *)Py_TYPE(mapping));
        return NULL;
    }
    PyObject *before = functions;
    functions = Py_NewRef(mapping);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

PyObject *annot_bound(const char *name) {
    PyObject *found = functions ? PyDict_GetItemString(functions, name) : NULL;
    if (!found)
        PyErr_Format(PyExc_RuntimeError, "bind() did not receive %s", name);
    return Py_XNewRef(found);
}

int annot_look_up(void) {
    static int done = 0; /* set at the end only: an interrupt during an import may stop this function early */
    if (done)
        return 0;
    struct { PyObject **target; const char *module, *path; } objects[] = {
        {&annot_its.tensor, "torch", "Tensor"},
        {&annot_its.parameter, "torch", "nn.Parameter"},
        {&annot_its.plain_call, "torch", "nn.Module._wrapped_call_impl"},
        {&annot_its.current_node, "torch", "_C._current_autograd_node"},
        {&annot_its.function, "torch", "_C._FunctionBase"},
        {&annot_its.any_autocast, "torch", "_C._is_any_autocast_enabled"},
        {&annot_its.grad_mode, "torch", "is_grad_enabled"},
    };
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (!(*objects[i].target = annot_get(objects[i].module, objects[i].path)))
            return -1;
    struct { PyObject **target; const char *name; } bound[] = {
        {&annot_its.signature, "signature"}, {&annot_its.remember, "remember"},
        {&annot_its.if_recomputed, "if_recomputed"}, {&annot_its.bury, "bury"}, {&annot_its.is_node, "is_node"},
        {&annot_its.device_of, "device_of"}, {&annot_its.visit, "visit"},
        {&annot_its.current_thread, "current_thread"},
    };
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++)
        if (!(*bound[i].target = annot_bound(bound[i].name)))
            return -1;
    struct { PyObject **target; const char *name; } names[] = {
        {&annot_its.by_id, "by_id"}, {&annot_its.dead, "dead"}, {&annot_its.near, "near"},
        {&annot_its.cache, "cache"}, {&annot_its.elsewhere, "elsewhere"}, {&annot_its.events, "events"},
        {&annot_its.layer, "layer"}, {&annot_its.shapes, "shapes"},
        {&annot_its.compiled_call, "_compiled_call_impl"}, {&annot_its.call_impl, "_call_impl"},
        {&annot_its.grad_fn, "grad_fn"}, {&annot_its.metadata, "metadata"}, {&annot_its.edges, "annot edges"},
        {&annot_its.hooked, "annot hook"}, {&annot_its.next_functions, "next_functions"},
        {&annot_its.sequence, "_sequence_nr"}, {&annot_its.register_dict, "_register_hook_dict"},
        {&annot_its.register_prehook, "register_prehook"}, {&annot_its.discover, "discover"},
        {&annot_its.roots, "roots"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].target = PyUnicode_InternFromString(names[i].name)))
            return -1;
    done = 1;
    return 0;
}
