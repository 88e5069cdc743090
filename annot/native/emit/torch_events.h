/* The events of a call, by the shapes of its arguments. */
#pragma once

#include <Python.h>
#include <stdint.h>

#define ANNOT_MAX_KEY 64

/* Events of a site, with those of the last call. */
typedef struct {
    PyObject_HEAD
    int64_t key[ANNOT_MAX_KEY]; /* key of the last call */
    uint32_t length;            /* of `key` */
    int shapes, elsewhere;      /* attributes of the site: shapes are in texts; the module has several sites */
    PyObject *last;             /* events of the last call: (forward, backward); owned */
    PyObject *events;           /* dict of the site: key -> events; owned */
} Cache;

/* New reference; NULL with an exception set. */
Cache *annot_cache_of(PyObject *site);
/* New reference to the (forward, backward) events of a call. */
PyObject *annot_events_of(PyObject *site, Cache *cache, PyObject *args, PyObject *kwargs);
/* Steals `events`. New reference to the events of a recomputation if a backward node runs on this thread, otherwise to
 * `events`. */
PyObject *annot_if_recomputed(PyObject *site, PyObject *events, PyObject *args, PyObject *kwargs);
/* Locates PyTorch's C functions. */
void annot_prepare_events(void);
int annot_add_events(void);
