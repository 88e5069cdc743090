/* annot.native._tables: per-row operations on large profiles. Arguments and results are Arrow columns.
 *
 * Built against the limited API: one binary works with CPython 3.11 and later. The Python fallbacks are in
 * annot/read/sqlite.py and annot/attribution (column_ops.py, gpu_time.py). */
#include "parts.h"

static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                 "annot.native._tables",
                                 "Read SQLite tables and process their columns.",
                                 -1,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL};

PyMODINIT_FUNC PyInit__tables(void) {
    static int (*const adds[])(PyObject *) = {
        annot_add_arrow,          annot_add_scan, annot_add_nesting,  annot_add_paths,
        annot_add_process_ranges, annot_add_tree, annot_add_launches, annot_add_busy,
    };
    PyObject *module = PyModule_Create(&definition);
    for (size_t i = 0; module && i < sizeof adds / sizeof *adds; i++)
        if (adds[i](module) < 0)
            Py_CLEAR(module);
    return module;
}
