/* paths: the trie of the chains of keys. */
#include "column_ops.h"
#include "pair_table.h"
#include "parts.h"

#include <stdlib.h>

/* Sets the node of each row; -1 when out of memory. */
static int find_paths(PairTable *nodes, const int32_t *parent, const int32_t *key, int64_t count, int32_t *path) {
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
static void copy_nodes(const PairTable *nodes, Column **parents, Column **keys) {
    int32_t *parent = new_values(nodes->count, sizeof *parent), *key = new_values(nodes->count, sizeof *key);
    for (int64_t node = 0; parent && key && node < nodes->count; node++) {
        parent[node] = (int32_t)nodes->pairs[node].first;
        key[node] = nodes->pairs[node].second;
    }
    *parents = column_of("i", nodes->count, parent);
    *keys = column_of("i", nodes->count, key);
}

static PyObject *paths(PyObject *module, PyObject *args) {
    static const Expected expected[] = {{"i", "parent", 0}, {"i", "key", 0}};
    Input inputs[2];
    if (read_all(args, "paths", expected, 2, inputs) < 0)
        return NULL;
    if (check_parents(&inputs[0], "parent") < 0) {
        free_all(inputs, 2);
        return NULL;
    }
    int64_t count = inputs[0].length;
    Column *columns[3] = {NULL};
    PairTable nodes = {.seed = hash_seed()};
    int32_t *path = new_values(count, sizeof *path);
    Py_BEGIN_ALLOW_THREADS
    if (path && find_paths(&nodes, ints(&inputs[0]), ints(&inputs[1]), count, path) == 0) {
        copy_nodes(&nodes, &columns[1], &columns[2]);
        columns[0] = column_of("i", count, path);
        path = NULL;
    }
    Py_END_ALLOW_THREADS
    free(path);
    free_pairs(&nodes);
    free_all(inputs, 2);
    return arrow_tuple(columns, 3);
}

static PyMethodDef functions[] = {
    {"paths", paths, METH_VARARGS,
     "paths(parent, key): return the trie of the chains of keys: node of each row, parent and key of each node."},
    {NULL, NULL, 0, NULL},
};

int annot_add_paths(PyObject *module) { return PyModule_AddFunctions(module, functions); }
