/* Nodes: the topmost nodes of each key, and the heavy paths of the tree. At most log2(n) paths lie above a node. */
#include "layer_chains.h"

#include <stdlib.h>
#include <string.h>

static int check_nodes(const Input *inputs, long long keys) {
    if (keys < 0 || keys > INT32_MAX || inputs[0].length > INT32_MAX - keys) {
        PyErr_SetString(PyExc_ValueError, "the nodes and keys together must be fewer than 2^31");
        return -1;
    }
    return check_parents(&inputs[0], "node_parent") < 0 ? -1 : check_values(&inputs[1], "node_key", 0, keys - 1);
}

static int32_t *filled(int64_t count, int byte) {
    int32_t *values = malloc((size_t)(count + 1) * sizeof *values);
    if (values)
        memset(values, byte, (size_t)(count + 1) * sizeof *values);
    return values;
}

/* Sets `topmost` for nodes outside all other nodes of their key, in a depth-first walk. `first` and `next` (children)
 * must hold NONE; `within` (open nodes per key) and `topmost` must hold 0. */
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

static void find_shared(Nodes *self, const int32_t *topmost, int32_t *several) {
    const int32_t *parent = self->parent, *key = self->key;
    for (int64_t node = 0; node < self->count; node++)
        if (topmost[node] && !several[key[node]]) {
            several[key[node]] = self->single[key[node]] != NONE;
            self->single[key[node]] = several[key[node]] ? NONE : (int32_t)node;
        }
    for (int64_t node = 0; node < self->count; node++)
        self->shared[node] = topmost[node] && several[key[node]] ? (int32_t)node
                             : parent[node] == NONE              ? NONE
                                                                 : self->shared[parent[node]];
}

/* A path continues with the child that has the largest subtree. */
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
        int continues = parent[node] != NONE && heavy[parent[node]] == node;
        self->head[node] = continues ? self->head[parent[node]] : (int32_t)node;
        self->position[node] = continues ? self->position[parent[node]] + 1 : 0;
    }
}

static int prepare(Nodes *self, int64_t keys) {
    int64_t count = self->count;
    self->single = filled(keys, 0xFF);
    self->shared = filled(count, 0xFF);
    self->head = filled(count, 0xFF);
    self->position = filled(count, 0);
    int32_t *first = filled(count, 0xFF), *next = filled(count, 0xFF), *topmost = filled(count, 0);
    int32_t *of_key = filled(keys, 0), *size = filled(count, 0);
    int failed = !self->single || !self->shared || !self->head || !self->position || !first || !next || !topmost ||
                 !of_key || !size;
    if (!failed) {
        find_topmost(self, first, next, of_key, topmost); /* leaves of_key at 0 */
        find_shared(self, topmost, of_key);
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
    if (prepare(nodes, keys) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

void free_nodes(Nodes *nodes) {
    free_all(nodes->columns, 2);
    free(nodes->single);
    free(nodes->shared);
    free(nodes->head);
    free(nodes->position);
}
