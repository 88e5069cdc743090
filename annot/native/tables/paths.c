/* paths, fold: the trie of the chains of keys, and sums over subtrees. */
#include "column_ops.h"
#include "pair_ids.h"
#include "parts.h"

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

/* Sets the node of each row; -1 when out of memory. */
static int find_paths(PairIds *nodes, const int32_t *parent, const int32_t *key, int64_t count, int32_t *path) {
    for (int64_t row = 0; row < count; row++) {
        path[row] = parent[row] == NONE ? NONE : path[parent[row]];
        if (key[row] == NONE)
            continue;
        int64_t node = pair_id(nodes, path[row], key[row]);
        if (node == NONE)
            return -1;
        path[row] = (int32_t)node;
    }
    return 0;
}

/* Copies the nodes to columns of their parents and keys; a column is NULL when out of memory. */
static void copy_nodes(const PairIds *nodes, Column **parents, Column **keys) {
    int32_t *parent = new_values(nodes->count, sizeof *parent), *key = new_values(nodes->count, sizeof *key);
    for (int64_t node = 0; parent && key && node < nodes->count; node++) {
        parent[node] = nodes->pairs[node].first;
        key[node] = nodes->pairs[node].second;
    }
    *parents = column_of("i", nodes->count, parent);
    *keys = column_of("i", nodes->count, key);
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
    Column *columns[3] = {NULL};
    PairIds nodes = {.seed = hash_seed()};
    int32_t *path = new_values(count, sizeof *path);
    Py_BEGIN_ALLOW_THREADS
    if (path && find_paths(&nodes, ints(&inputs[0]), ints(&inputs[1]), count, path) == 0) {
        copy_nodes(&nodes, &columns[1], &columns[2]);
        columns[0] = column_of("i", count, path);
        path = NULL;
    }
    Py_END_ALLOW_THREADS
    free(path);
    free_pair_ids(&nodes);
    free_all(inputs, 2);
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

/* ---------------------------------------------------------------- module */

static PyMethodDef functions[] = {
    {"paths", paths, METH_VARARGS,
     "paths(parent, key): return the trie of the chains of keys: node of each row, parent and key of each node."},
    {"fold", fold, METH_VARARGS,
     "fold(parent, values): return the sum of the values of each row and all rows below it."},
    {NULL, NULL, 0, NULL},
};

int annot_add_paths(PyObject *module) { return PyModule_AddFunctions(module, functions); }
