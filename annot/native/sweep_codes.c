/* The place of each value in a list of distinct ones. */
#include "sweep.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const int64_t *known;
    int32_t *slots; /* a row of `known`, or NONE */
    size_t mask;
    uint64_t seed;
} Places;

static inline size_t slot_for(const Places *places, int64_t value) {
    size_t at = (size_t)mix((uint64_t)value ^ places->seed) & places->mask;
    while (places->slots[at] != NONE && places->known[places->slots[at]] != value)
        at = (at + 1) & places->mask;
    return at;
}

static int note_known(Places *places, int64_t count) {
    size_t capacity = 8;
    while (capacity < 2 * (size_t)count)
        capacity *= 2;
    if (!(places->slots = malloc(capacity * sizeof *places->slots)))
        return -1;
    memset(places->slots, 0xFF, capacity * sizeof *places->slots);
    places->mask = capacity - 1;
    for (int64_t row = count - 1; row >= 0; row--) /* of equal values the first counts */
        places->slots[slot_for(places, places->known[row])] = (int32_t)row;
    return 0;
}

static void find_codes(const Places *places, const Input *values, int32_t *codes) {
    int64_t last = 0;
    int32_t code = places->slots[slot_for(places, last)];
    for (int64_t row = 0; row < values->length; row++) {
        int64_t value = longs(values)[row];
        if (value != last) { /* they come in runs */
            last = value;
            code = places->slots[slot_for(places, value)];
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
    Places places = {.known = longs(&known), .seed = hash_seed()};
    int32_t *found = too_many ? NULL : new_values(values.length, sizeof *found);
    Py_BEGIN_ALLOW_THREADS
    if (found && note_known(&places, known.length) == 0) {
        find_codes(&places, &values, found);
        column = column_of("i", values.length, found);
        found = NULL;
    }
    Py_END_ALLOW_THREADS
    free(found);
    free(places.slots);
    arrow_free(&values);
    arrow_free(&known);
    if (too_many)
        return PyErr_Format(PyExc_ValueError, "known must have less than 2^31 values");
    return arrow_array(column);
}

/* ---------------------------------------------------------------- module */

static PyMethodDef functions[] = {
    {"codes", codes, METH_VARARGS, "The place of each value in a list of known ones, -1 if it has none: values, known."},
    {NULL, NULL, 0, NULL},
};

int annot_add_codes(PyObject *module) { return PyModule_AddFunctions(module, functions); }
