/* Backward ranges, which hooks on autograd nodes open and close. */
#pragma once

#include "torch_notes.h"

/* The backward part of a Calls object, which begins with it. */
typedef struct {
    PyObject_HEAD
    PyObject *owners;  /* dict: hooked node -> Invocation or None; owned */
    PyObject *shared;  /* dict: node of several backward runs -> number of runs beyond the first; owned */
    PyObject *hook;    /* bound method on_node; owned */
    PyObject *carrier; /* tensor with the hooks {0: hook}; owned */
    PyObject *engine;  /* the autograd engine; owned */
} Backward;

/* Creates the hook and the tensor that carries it; -1 with an exception set. */
int annot_prepare_hooks(Backward *self);
/* Methods of Calls. */
PyObject *annot_begin(PyObject *calls, PyObject *args, PyObject *kwargs);
PyObject *annot_open_runs(PyObject *calls, PyObject *unused);
PyObject *annot_finish(PyObject *calls, PyObject *count);
/* Number of backward runs that are open on threads of this process; nested runs count separately. */
extern int annot_runs;
/* Borrowed reference to the call whose backward range is open on this thread, or NULL. */
Invocation *annot_open_layer(void);
