/* codes: position of each value in a list of known values. */
#include "column_ops.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const int64_t *known;
    int32_t *slots; /* open addressing: rows of `known`; NONE: free */
    size_t mask;
    uint64_t seed;
} Lookup;

static inline size_t slot_for(const Lookup *lookup, int64_t value) {
    size_t at = (size_t)mix((uint64_t)value ^ lookup->seed) & lookup->mask;
    while (lookup->slots[at] != NONE && lookup->known[lookup->slots[at]] != value)
        at = (at + 1) & lookup->mask;
    return at;
}

static int index_known(Lookup *lookup, int64_t count) {
    size_t capacity = 8;
    while (capacity < 2 * (size_t)count)
        capacity *= 2;
    if (!(lookup->slots = malloc(capacity * sizeof *lookup->slots)))
        return -1;
    memset(lookup->slots, 0xFF, capacity * sizeof *lookup->slots);
    lookup->mask = capacity - 1;
    for (int64_t row = count - 1; row >= 0; row--) /* backwards: the first of equal values wins */
        lookup->slots[slot_for(lookup, lookup->known[row])] = (int32_t)row;
    return 0;
}

static void find_codes(const Lookup *lookup, const Input *values, int32_t *codes) {
    int64_t last = 0;
    int32_t code = lookup->slots[slot_for(lookup, last)];
    for (int64_t row = 0; row < values->length; row++) {
        int64_t value = longs(values)[row];
        if (value != last) { /* equal values are mostly adjacent */
            last = value;
            code = lookup->slots[slot_for(lookup, value)];
        }
        codes[row] = is_null(values, row) ? NONE : code;
    }
}

static PyObject *codes(PyObject *module, PyObject *args) {
    Input values, known;
    PyObject *value_column, *known_column;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:codes", &value_column, &known_column) ||
        arrow_read(value_column, "l", "values", 1, &values) < 0)
        return NULL;
    if (arrow_read(known_column, "l", "known", 0, &known) < 0) {
        arrow_free(&values);
        return NULL;
    }
    Column *column = NULL;
    int too_many = known.length > INT32_MAX;
    Lookup lookup = {.known = longs(&known), .seed = hash_seed()};
    int32_t *found = too_many ? NULL : new_values(values.length, sizeof *found);
    Py_BEGIN_ALLOW_THREADS
    if (found && index_known(&lookup, known.length) == 0) {
        find_codes(&lookup, &values, found);
        column = column_of("i", values.length, found);
        found = NULL;
    }
    Py_END_ALLOW_THREADS
    free(found);
    free(lookup.slots);
    arrow_free(&values);
    arrow_free(&known);
    if (too_many)
        return PyErr_Format(PyExc_ValueError, "known must have fewer than 2^31 values");
    return arrow_array(column);
}

/* ---------------------------------------------------------------- module */

static PyMethodDef functions[] = {
    {"codes", codes, METH_VARARGS,
     "codes(values, known): return the position of each value in known; -1 for unknown values and nulls."},
    {NULL, NULL, 0, NULL},
};

int annot_add_codes(PyObject *module) { return PyModule_AddFunctions(module, functions); }
