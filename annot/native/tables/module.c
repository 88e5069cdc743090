/* annot.native._tables: per-row operations on large profiles. Arguments and results are Arrow columns.
 *
 * Built against the limited API: one binary works with CPython 3.11 and later. The Python fallbacks are in
 * annot/read/sqlite.py and annot/attribution (column_ops.py, process_column_ops.py, busy_time.py). */
#include "sqlite_scan.h"
#include "column_ops.h"

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "annot.native._tables",
    "Read SQLite tables and process their columns.",
    -1,
    NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tables(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && (annot_add_arrow(module) < 0 || annot_add_scan(module) < 0 || annot_add_column_ops(module) < 0))
        Py_CLEAR(module);
    return module;
}
