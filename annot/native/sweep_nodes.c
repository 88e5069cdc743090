/* Nodes: which of a key are topmost, and the heavy paths of the tree, of which few lead from any node to the top. */
#include "sweep_nodes.h"

#include <stdlib.h>
#include <string.h>

static int check_nodes(const Input *inputs, long long keys) {
    if (keys < 0 || keys > INT32_MAX || inputs[0].length > INT32_MAX - keys) {
        PyErr_SetString(PyExc_ValueError, "there must be fewer than 2^31 nodes and keys");
        return -1;
    }
    for (int64_t node = 0; node < inputs[0].length; node++) {
        int32_t parent = ints(&inputs[0])[node], key = ints(&inputs[1])[node];
        if (parent < NONE || parent >= node || key < 0 || key >= keys) {
            PyErr_Format(PyExc_ValueError, "node %lld has the parent %d and the key %d of %lld", (long long)node,
                         parent, key, keys);
            return -1;
        }
    }
    return 0;
}

static int32_t *numbers(int64_t count, int byte) {
    int32_t *values = malloc((size_t)(count + 1) * sizeof *values);
    if (values)
        memset(values, byte, (size_t)(count + 1) * sizeof *values);
    return values;
}

/* Writes which nodes lie in no other of their key; all arrays of NONE but `within`, which is 0 for each key. */
static void find_topmost(const Nodes *self, int32_t *first, int32_t *next, int32_t *within, int32_t *topmost) {
    const int32_t *parent = self->parent, *key = self->key;
    for (int64_t node = self->count - 1; node >= 0; node--) {
        next[node] = first[parent[node] + 1];
        first[parent[node] + 1] = (int32_t)node;
    }
    for (int32_t at = first[0]; at != NONE;) {
        topmost[at] = within[key[at]]++ == 0;
        if (first[at + 1] != NONE) {
            at = first[at + 1];
            continue;
        }
        while (at != NONE) {
            within[key[at]]--;
            if (next[at] != NONE) {
                at = next[at];
                break;
            }
            at = parent[at];
        }
    }
}

static void find_told(Nodes *self, const int32_t *topmost, int32_t *several) {
    const int32_t *parent = self->parent, *key = self->key;
    for (int64_t node = 0; node < self->count; node++)
        if (topmost[node] && !several[key[node]]) {
            several[key[node]] = self->lone[key[node]] != NONE;
            self->lone[key[node]] = several[key[node]] ? NONE : (int32_t)node;
        }
    for (int64_t node = 0; node < self->count; node++)
        self->told[node] = topmost[node] && several[key[node]] ? (int32_t)node
                           : parent[node] == NONE              ? NONE
                                                               : self->told[parent[node]];
}

/* A path goes on to the child with the most nodes below; from any node, few paths lead to the top. */
static void find_paths(Nodes *self, int32_t *size, int32_t *heavy) {
    const int32_t *parent = self->parent;
    for (int64_t node = self->count - 1; node >= 0; node--) {
        int32_t above = parent[node];
        size[node]++;
        if (above == NONE)
            continue;
        size[above] += size[node];
        if (heavy[above] == NONE || size[node] > size[heavy[above]])
            heavy[above] = (int32_t)node;
    }
    for (int64_t node = 0; node < self->count; node++) {
        int goes_on = parent[node] != NONE && heavy[parent[node]] == node;
        self->head[node] = goes_on ? self->head[parent[node]] : (int32_t)node;
        self->place[node] = goes_on ? self->place[parent[node]] + 1 : 0;
    }
}

static int climb(Nodes *self, int64_t keys) {
    int64_t count = self->count;
    self->lone = numbers(keys, 0xFF);
    self->told = numbers(count, 0xFF);
    self->head = numbers(count, 0xFF);
    self->place = numbers(count, 0);
    int32_t *first = numbers(count, 0xFF), *next = numbers(count, 0xFF), *topmost = numbers(count, 0);
    int32_t *of_key = numbers(keys, 0), *size = numbers(count, 0);
    int failed = !self->lone || !self->told || !self->head || !self->place || !first || !next || !topmost || !of_key ||
                 !size;
    if (!failed) {
        find_topmost(self, first, next, of_key, topmost); /* leaves 0 for each key */
        find_told(self, topmost, of_key);
        memset(first, 0xFF, (size_t)count * sizeof *first);
        find_paths(self, size, first);
    }
    free(first);
    free(next);
    free(topmost);
    free(of_key);
    free(size);
    return failed ? -1 : 0;
}

int read_nodes(PyObject *columns, long long keys, Nodes *nodes) {
    static const Expected expected[] = {{"i", "node_parent", 0}, {"i", "node_key", 0}};
    if (read_all(columns, "Busy", expected, 2, nodes->columns) < 0 || check_nodes(nodes->columns, keys) < 0)
        return -1;
    nodes->parent = ints(&nodes->columns[0]);
    nodes->key = ints(&nodes->columns[1]);
    nodes->count = nodes->columns[0].length;
    if (climb(nodes, keys) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

void free_nodes(Nodes *nodes) {
    free_all(nodes->columns, 2);
    free(nodes->lone);
    free(nodes->told);
    free(nodes->head);
    free(nodes->place);
}
