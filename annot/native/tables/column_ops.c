/* Arguments, results and types of the column operations. */
#include "column_ops.h"

#include <stdlib.h>
#include <time.h>

int read_columns(PyObject *args, const char *function, const Expected *expected, int count, Input *inputs) {
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
        if (inputs[i].length > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "%s must have fewer than 2^31 rows", column->name);
            free_all(inputs, i + 1);
            return -1;
        }
    }
    return 0;
}

int read_all(PyObject *args, const char *function, const Expected *expected, int count, Input *inputs) {
    if (read_columns(args, function, expected, count, inputs) < 0)
        return -1;
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

int check_values(const Input *input, const char *name, int64_t least, int64_t most) {
    for (int64_t row = 0; row < input->length; row++)
        if (ints(input)[row] < least || ints(input)[row] > most) {
            PyErr_Format(PyExc_ValueError, "%s must be from %lld to %lld, got %d at row %lld", name, (long long)least,
                         (long long)most, ints(input)[row], (long long)row);
            return -1;
        }
    return 0;
}

int check_parents(const Input *input, const char *name) {
    for (int64_t row = 0; row < input->length; row++)
        if (ints(input)[row] < NONE || ints(input)[row] >= row) {
            PyErr_Format(PyExc_ValueError, "%s must be a row before its row or -1, got %d at row %lld", name,
                         ints(input)[row], (long long)row);
            return -1;
        }
    return 0;
}

void *new_values(int64_t length, size_t size) { return malloc((size_t)length * size + 1); }

void *grow_values(void *values, int64_t *room, size_t size) {
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

int add_type(PyObject *module, const char *name, PyType_Spec *spec) {
    PyObject *type = PyType_FromSpec(spec);
    int failed = !type || PyModule_AddObjectRef(module, name, type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

void *new_object(PyTypeObject *type) { return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0); }

void free_object(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}
