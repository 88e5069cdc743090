/* Arguments and results of the column operations. */
#include "column_ops.h"

#include <stdlib.h>
#include <time.h>

int read_all(PyObject *args, const char *function, const Expected *expected, int count, Input *inputs) {
    if (PyTuple_Size(args) != count) {
        PyErr_Format(PyExc_TypeError, "%s takes %d columns, got %zd", function, count, PyTuple_Size(args));
        return -1;
    }
    for (int i = 0; i < count; i++) {
        const Expected *column = &expected[i];
        if (arrow_read(PyTuple_GetItem(args, i), column->format, column->name, column->nulls, &inputs[i]) < 0) {
            free_all(inputs, i);
            return -1;
        }
    }
    if (same_lengths(inputs, count) < 0) {
        free_all(inputs, count);
        return -1;
    }
    return 0;
}

void free_all(Input *inputs, int count) {
    for (int i = 0; i < count; i++)
        arrow_free(&inputs[i]);
}

void *new_values(int64_t length, size_t size) { return malloc((size_t)length * size + 1); }

void *make_room(void *values, int64_t count, int64_t *room, size_t size) {
    if (count < *room)
        return values;
    int64_t more = *room ? 2 * *room : 2;
    void *grown = realloc(values, (size_t)more * size);
    if (grown)
        *room = more;
    return grown;
}

PyObject *arrow_tuple(Column **columns, int count) {
    PyObject *tuple = PyTuple_New(count);
    int failed = !tuple;
    for (int i = 0; i < count; i++) {
        PyObject *array = failed ? NULL : arrow_array(columns[i]);
        if (failed)
            column_drop(columns[i]);
        else if (array)
            PyTuple_SetItem(tuple, i, array);
        else
            failed = 1;
    }
    if (failed)
        Py_CLEAR(tuple);
    return tuple;
}

uint64_t hash_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return mix((uint64_t)now.tv_nsec ^ (uint64_t)(uintptr_t)&now);
}

int annot_add_column_ops(PyObject *module) {
    static int (*const adds[])(PyObject *) = {annot_add_codes,          annot_add_nesting, annot_add_sums,
                                              annot_add_process_ranges, annot_add_tree,    annot_add_launches,
                                              annot_add_busy};
    for (size_t i = 0; i < sizeof adds / sizeof *adds; i++)
        if (adds[i](module) < 0)
            return -1;
    return 0;
}
