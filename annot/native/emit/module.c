/* annot.native._emit: annot's own NVTX client, with minimal overhead per range, and the hot path of module calls.
 *
 * Built against the limited API: one binary works with CPython 3.11 and later. */
#include "parts.h"

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "annot.native._emit", "annot's own NVTX client.", -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__emit(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (annot_add_client(module) < 0 || annot_add_around(module) < 0 || annot_add_torch_calls(module) < 0))
        Py_CLEAR(module);
    return module;
}
