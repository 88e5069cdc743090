/* Calls of modules by thread, and the calls that own the nodes of an autograd graph. */
#pragma once

#include "client.h"

/* One call of a module: parent of the calls inside it, and owner of the autograd nodes that it creates. */
typedef struct Invocation {
    PyObject_HEAD
    struct Invocation *parent; /* owned */
    PyObject *site;            /* owned */
    Event *backward;           /* owned */
    uint32_t depth;
    uint32_t closed;
} Invocation;

/* Nodes with sequence numbers from `number` on, up to the next note, belong to `owner`. */
typedef struct {
    uint64_t number;
    Invocation *owner; /* owned, may be NULL */
} Note;

/* History of the innermost invocation of one thread, by autograd sequence number. */
typedef struct Notes {
    PyObject_HEAD
    Note *notes;
    uint32_t count, capacity;
    int dropped;         /* whether the oldest notes were dropped */
    Invocation *current; /* owned; see annot_current */
    uint64_t thread;     /* PyTorch's number of the thread; 0 if unknown */
    struct Notes *next;  /* owned; list of all notes */
} Notes;

Invocation *annot_new_invocation(Invocation *parent, PyObject *site, PyObject *backward);
/* Borrowed reference to the notes of this thread, which it creates if missing; NULL with an exception set. */
Notes *annot_get_notes(void);
/* Borrowed reference to the notes of this thread; NULL if there are none yet. */
Notes *annot_my_notes(void);
/* greenlet.getcurrent once greenlet is imported, otherwise NULL. Greenlets share a thread but have separate calls. */
extern PyObject *annot_greenlet;
Invocation *annot_current_of_greenlet(void);

/* Borrowed reference to the innermost open call of this thread or greenlet. */
static inline Invocation *annot_current(const Notes *notes) {
    return annot_greenlet ? annot_current_of_greenlet() : notes->current;
}

Invocation *annot_enter_in_greenlet(Invocation *made);
void annot_leave_out_of_order(Notes *notes, Invocation *made, Invocation *parent);

/* Makes `made` the current call. Returns an owned reference to the enclosing call, for annot_leave. */
static inline Invocation *annot_enter(Notes *notes, Invocation *made) {
    if (annot_greenlet)
        return annot_enter_in_greenlet(made);
    Invocation *parent = notes->current;
    notes->current = (Invocation *)Py_NewRef((PyObject *)made);
    return parent;
}

/* Ends a call. Takes ownership of `parent`, the result of annot_enter. */
static inline void annot_leave(Notes *notes, Invocation *made, Invocation *parent) {
    made->closed = 1;
    if (annot_greenlet || notes->current != made || (parent && parent->closed)) {
        annot_leave_out_of_order(notes, made, parent);
        return;
    }
    notes->current = parent;
    Py_DECREF((PyObject *)made);
}

/* Assigns nodes created from now on to `owner`. Preserves the error indicator. */
void annot_note_now(Notes *notes, Invocation *owner);
/* Reads the sequence number of an autograd node and PyTorch's number of the thread that created it (0: unknown). -1
 * with an exception set. */
int annot_read_node(PyObject *node, uint64_t *number, uint64_t *thread);
/* Borrowed reference to the innermost invocation when `thread` created the node with this number; NULL if there was no
 * invocation or it is unknown. `own`: notes of the calling thread, or NULL. */
Invocation *annot_owner_of(const Notes *own, uint64_t thread, uint64_t number);
/* Methods of Calls. */
PyObject *annot_note_switch(PyObject *calls, PyObject *unused);
PyObject *annot_has_lost(PyObject *calls, PyObject *unused);
PyObject *annot_drop_notes(PyObject *calls, PyObject *unused);
/* Locates autograd's sequence counter and the thread number in nodes; -1 with an exception set. */
int annot_prepare_notes(void);
/* Creates the types; -1 with an exception set. */
int annot_add_notes(void);
/* From now on, keeps the open calls of each greenlet apart. The argument is greenlet.getcurrent. */
PyObject *annot_watch_greenlets(PyObject *module, PyObject *getcurrent);
