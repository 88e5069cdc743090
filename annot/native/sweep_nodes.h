/* Nodes: chains of keys as a tree, and how to go up it in few steps. */
#ifndef ANNOT_SWEEP_NODES_H
#define ANNOT_SWEEP_NODES_H

#include "sweep.h"

typedef struct {
    Input columns[2];
    const int32_t *parent, *key; /* of each node; a parent has the smaller number */
    int64_t count;
    int32_t *lone;  /* of each key its topmost node; NONE: it has none or several */
    int32_t *told;  /* the nearest node from each up that is one of several topmost ones of its key */
    int32_t *head;  /* the top of the heavy path of each node */
    int32_t *place; /* how far below it the node lies */
} Nodes;

/* Reads parent and key of each node; -1 with an exception set. */
int read_nodes(PyObject *columns, long long keys, Nodes *nodes);
void free_nodes(Nodes *nodes);

#endif
