/* What module.c registers: each function adds the functions and types of one file to the module. They return -1 with an
 * exception set on failure. */
#pragma once

#include <Python.h>

int annot_add_arrow(PyObject *module);          /* arrow.c: Column */
int annot_add_scan(PyObject *module);           /* sqlite_scan.c: Scan, Unsupported */
int annot_add_nesting(PyObject *module);        /* nesting.c: crossing, parents */
int annot_add_paths(PyObject *module);          /* paths.c: paths */
int annot_add_process_ranges(PyObject *module); /* process_ranges.c: enclosing, innermost */
int annot_add_tree(PyObject *module);           /* range_tree.c: Tree */
int annot_add_launches(PyObject *module);       /* launches.c: LaunchTable */
int annot_add_busy(PyObject *module);           /* busy_time.c: Busy */
