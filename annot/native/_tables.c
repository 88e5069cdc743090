/* annot.native._tables: the loops over every row of a big profile, on Arrow columns.
 *
 * Built against the limited API, so that one binary serves every CPython from 3.11 on. annot/read/sqlite.py and
 * annot/correlate/sweep.py hold the Python twins. */
#include "scan.h"
#include "sweep.h"

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "annot.native._tables", "Big tables, read and swept.", -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tables(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (annot_add_arrow(module) < 0 || annot_add_scan(module) < 0 || annot_add_sweeps(module) < 0))
        Py_CLEAR(module);
    return module;
}
