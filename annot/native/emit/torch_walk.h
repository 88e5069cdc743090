/* The nodes of an autograd graph, with the calls that created them. */
#pragma once

#include "torch_notes.h"

#define ANNOT_ACCUMULATE_GRAD UINT64_MAX

typedef struct {
    PyObject *node;    /* owned */
    Invocation *owner; /* owned, may be NULL */
    uint64_t number, thread;
    size_t order;
} Visit;

typedef struct {
    Visit *visits;
    size_t count;
    size_t *seen; /* open addressing: 1 + index in `visits`; 0: free */
    size_t seen_size;
    uint64_t thread; /* creator of the previous node; 0 at first */
    int unordered;   /* the engine may run the nodes in an order other than by descending number */
} Walk;

/* Fills an empty walk with the nodes, latest first. -1 with an exception set or when out of memory. The walk must be
 * freed in any case. */
int annot_walk(Walk *walk, PyObject *roots);
void annot_free_walk(Walk *walk);
