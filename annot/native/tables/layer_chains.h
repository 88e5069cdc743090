/* Nodes: the tree of the chains of keys, with its heavy paths (heavy-light decomposition). */
#pragma once

#include "column_ops.h"

typedef struct {
    Input columns[2];
    const int32_t *parent, *key; /* per node; parents precede their children */
    int64_t count;
    int32_t *single;   /* per key: its only topmost node; NONE if it has zero or several */
    int32_t *shared;   /* per node: the nearest, of itself and its ancestors, that is one of several topmost nodes
                        * of its key; NONE if there is none */
    int32_t *head;     /* per node: top node of its heavy path */
    int32_t *position; /* per node: distance from `head` along the path */
} Nodes;

/* Reads the parent and the key of each node from a tuple of two columns; -1 with an exception set. */
int read_nodes(PyObject *columns, long long keys, Nodes *nodes);
void free_nodes(Nodes *nodes);
