/* paths, fold, Sums: the trie of the chains of keys, sums over subtrees, and sums per row. */
#include "column_ops.h"

#include <stdlib.h>
#include <string.h>

static int check_parents(const int32_t *parent, int64_t count) {
    if (count > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "at most 2^31 rows are supported, got %lld", (long long)count);
        return -1;
    }
    for (int64_t row = 0; row < count; row++)
        if (parent[row] < NONE || parent[row] >= row) {
            PyErr_Format(PyExc_ValueError, "a parent must come before its row, got %d at row %lld", parent[row],
                         (long long)row);
            return -1;
        }
    return 0;
}

/* ---------------------------------------------------------------- paths */

typedef struct {
    int32_t *parent, *key; /* per node */
    int32_t count;
    int64_t room;
    int32_t *slots; /* open addressing; NONE: free */
    size_t capacity;
    uint64_t seed;
} Trie;

static size_t slot_of(const Trie *trie, int32_t parent, int32_t key) {
    return (size_t)mix(((uint64_t)(uint32_t)parent << 32 | (uint32_t)key) ^ trie->seed) & (trie->capacity - 1);
}

static int grow_slots(Trie *trie) {
    size_t capacity = trie->capacity ? 2 * trie->capacity : 1024;
    int32_t *slots = malloc(capacity * sizeof *slots);
    if (!slots)
        return -1;
    memset(slots, 0xFF, capacity * sizeof *slots);
    free(trie->slots);
    trie->slots = slots;
    trie->capacity = capacity;
    for (int32_t node = 0; node < trie->count; node++) {
        size_t at = slot_of(trie, trie->parent[node], trie->key[node]);
        while (slots[at] != NONE)
            at = (at + 1) & (capacity - 1);
        slots[at] = node;
    }
    return 0;
}

static int grow_nodes(Trie *trie) {
    int64_t room = trie->room ? 2 * trie->room : 512;
    int32_t *parent = realloc(trie->parent, (size_t)room * sizeof *parent);
    if (parent)
        trie->parent = parent;
    int32_t *key = realloc(trie->key, (size_t)room * sizeof *key);
    if (key)
        trie->key = key;
    if (!parent || !key)
        return -1;
    trie->room = room;
    return 0;
}

/* Returns the child of `parent` with this key, which it adds if missing; -2 when out of memory. */
static int32_t node_of(Trie *trie, int32_t parent, int32_t key) {
    if (2 * (size_t)trie->count >= trie->capacity && grow_slots(trie) < 0)
        return -2;
    size_t at = slot_of(trie, parent, key);
    for (int32_t node; (node = trie->slots[at]) != NONE; at = (at + 1) & (trie->capacity - 1))
        if (trie->parent[node] == parent && trie->key[node] == key)
            return node;
    if (trie->count == trie->room && grow_nodes(trie) < 0)
        return -2;
    trie->parent[trie->count] = parent;
    trie->key[trie->count] = key;
    return trie->slots[at] = trie->count++;
}

static int find_paths(Trie *trie, const int32_t *parent, const int32_t *key, int64_t count, int32_t *path) {
    for (int64_t row = 0; row < count; row++) {
        int32_t around = parent[row] == NONE ? NONE : path[parent[row]];
        path[row] = key[row] == NONE ? around : node_of(trie, around, key[row]);
        if (path[row] == -2)
            return -1;
    }
    return 0;
}

static PyObject *paths(PyObject *module, PyObject *args) {
    static const Expected expected[] = {{"i", "parent", 0}, {"i", "key", 0}};
    Input inputs[2];
    (void)module;
    if (read_all(args, "paths", expected, 2, inputs) < 0)
        return NULL;
    if (check_parents(ints(&inputs[0]), inputs[0].length) < 0) {
        free_all(inputs, 2);
        return NULL;
    }
    int64_t count = inputs[0].length;
    Trie trie = {.seed = hash_seed()};
    int32_t *path = new_values(count, sizeof *path);
    int failed = !path || grow_nodes(&trie) < 0;
    Py_BEGIN_ALLOW_THREADS
    failed = failed || find_paths(&trie, ints(&inputs[0]), ints(&inputs[1]), count, path) < 0;
    Py_END_ALLOW_THREADS
    free(trie.slots);
    free_all(inputs, 2);
    if (failed) {
        free(path);
        free(trie.parent);
        free(trie.key);
        return PyErr_NoMemory();
    }
    Column *columns[] = {
        column_of("i", count, path), column_of("i", trie.count, trie.parent), column_of("i", trie.count, trie.key)};
    return arrow_tuple(columns, 3);
}

/* ---------------------------------------------------------------- fold */

static PyObject *fold(PyObject *module, PyObject *args) {
    static const Expected expected[] = {{"i", "parent", 0}, {"l", "values", 0}};
    Input inputs[2];
    (void)module;
    if (read_all(args, "fold", expected, 2, inputs) < 0)
        return NULL;
    int64_t count = inputs[0].length;
    const int32_t *parent = ints(&inputs[0]);
    Column *column = NULL;
    int failed = check_parents(parent, count);
    int64_t *totals = failed ? NULL : new_values(count, sizeof *totals);
    if (totals) {
        if (count)
            memcpy(totals, inputs[1].values, (size_t)count * sizeof *totals);
        for (int64_t row = count - 1; row >= 0; row--)
            if (parent[row] != NONE)
                totals[parent[row]] = add_wrapping(totals[parent[row]], totals[row]);
        column = column_of("l", count, totals);
    }
    free_all(inputs, 2);
    return failed ? NULL : arrow_array(column);
}

/* ---------------------------------------------------------------- Sums */

typedef struct {
    PyObject_HEAD
    int64_t count;
    int64_t *sums;
} Sums;

static PyObject *sums_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"count", NULL};
    long long count;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "L", names, &count))
        return NULL;
    if (count < 0 || count > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "count must be from 0 to 2^31 - 1, got %lld", count);
        return NULL;
    }
    Sums *self = (Sums *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        self->count = count;
        if (!(self->sums = calloc((size_t)count + 1, sizeof *self->sums))) {
            Py_DECREF(self);
            return PyErr_NoMemory();
        }
    }
    return (PyObject *)self;
}

static void sums_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    free(((Sums *)object)->sums);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *sums_add(PyObject *object, PyObject *args) {
    static const Expected expected[] = {{"i", "row", 0}, {"l", "value", 0}};
    Sums *self = (Sums *)object;
    Input inputs[2];
    if (read_all(args, "add", expected, 2, inputs) < 0)
        return NULL;
    const int32_t *row = ints(&inputs[0]);
    const int64_t *value = longs(&inputs[1]);
    int64_t count = inputs[0].length, i = 0;
    while (i < count && row[i] >= NONE && row[i] < self->count)
        i++;
    if (i < count)
        PyErr_Format(PyExc_ValueError, "row must be from -1 to %lld, got %d", (long long)self->count - 1, row[i]);
    else
        for (i = 0; i < count; i++)
            if (row[i] != NONE)
                self->sums[row[i]] = add_wrapping(self->sums[row[i]], value[i]);
    free_all(inputs, 2);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *sums_result(PyObject *object, PyObject *ignored) {
    Sums *self = (Sums *)object;
    (void)ignored;
    int64_t *copy = new_values(self->count, sizeof *copy);
    if (!copy)
        return PyErr_NoMemory();
    memcpy(copy, self->sums, (size_t)self->count * sizeof *copy);
    return arrow_array(column_of("l", self->count, copy));
}

/* ---------------------------------------------------------------- module */

static PyMethodDef functions[] = {
    {"paths", paths, METH_VARARGS,
     "paths(parent, key): return the trie of the chains of keys: node of each row, parent and key of each node."},
    {"fold", fold, METH_VARARGS,
     "fold(parent, values): return the sum of the values of each row and all rows below it."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef sums_methods[] = {
    {"add", sums_add, METH_VARARGS, "add(row, value): add int64 values to int32 rows; row -1 is skipped."},
    {"result", sums_result, METH_NOARGS, "Return the sums (int64)."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot sums_slots[] = {
    {Py_tp_doc, "Sums(count): running sums of `count` rows, filled in batches."},
    {Py_tp_new, sums_new},
    {Py_tp_dealloc, sums_dealloc},
    {Py_tp_methods, sums_methods},
    {0, NULL},
};

static PyType_Spec sums_spec = {"annot.native._tables.Sums", sizeof(Sums), 0, Py_TPFLAGS_DEFAULT, sums_slots};

int annot_add_sums(PyObject *module) {
    PyObject *type = PyType_FromSpec(&sums_spec);
    if (!type || PyModule_AddObjectRef(module, "Sums", type) < 0)
        return -1;
    Py_DECREF(type);
    return PyModule_AddFunctions(module, functions);
}
