/* Shared by the parts of the PyTorch wing's hot path: torch_notes.c, torch_events.c, torch_calls.c,
 * torch_walk.c, torch_graph.c.
 *
 * annot/torch/calls.py is the twin of all of them, and says what they do and why. No header of PyTorch is needed:
 * shapes come through the DLPack C exchange API that tensors offer, everything else through Python attributes. What
 * is rare (a first call with new shapes, a module without a site, an output that is no plain tensor) is left to the
 * functions of the twin. All functions run with the GIL held. */
#ifndef ANNOT_TORCH_CALLS_H
#define ANNOT_TORCH_CALLS_H

#include "_fast.h"

/* ---------------------------------------------------------------- torch_notes.c: what a thread has called */

/* One call of one module: the parent of the calls inside it, and the owner of the nodes it made. */
typedef struct Invocation {
    PyObject_HEAD
    struct Invocation *parent; /* owned */
    PyObject *site;            /* owned */
    Event *backward;           /* owned */
    uint32_t depth;
    uint32_t closed;
} Invocation;

typedef struct {
    uint64_t number;
    Invocation *owner; /* owned, may be NULL */
} Note;

/* From which sequence number on which invocation was innermost; one per thread. */
typedef struct Notes {
    PyObject_HEAD
    Note *notes;
    uint32_t count, capacity;
    int dropped;         /* whether the oldest ones are gone */
    Invocation *current; /* owned; see annot_current */
    uint64_t thread;     /* as PyTorch counts threads; 0 if that is not known */
    struct Notes *next;  /* of all that are kept; owned */
} Notes;

Invocation *annot_new_invocation(Invocation *parent, PyObject *site, PyObject *backward);
/* The notes of this thread, borrowed; NULL with an exception set without memory. */
Notes *annot_get_notes(void);
/* The same, but NULL if it has none yet. */
Notes *annot_my_notes(void);
/* Not NULL where greenlets take turns on the threads, each with calls of its own open. */
extern PyObject *annot_greenlet;
Invocation *annot_current_of_greenlet(void);

/* The innermost call that is open on this thread, or in this greenlet; borrowed. */
static inline Invocation *annot_current(const Notes *notes) {
    return annot_greenlet ? annot_current_of_greenlet() : notes->current;
}

Invocation *annot_enter_in_greenlet(Invocation *made);
void annot_leave_out_of_order(Notes *notes, Invocation *made, Invocation *parent);

/* Makes `made` the current call; returns the reference to the call around it, for annot_leave. */
static inline Invocation *annot_enter(Notes *notes, Invocation *made) {
    if (annot_greenlet)
        return annot_enter_in_greenlet(made);
    Invocation *parent = notes->current;
    notes->current = (Invocation *)Py_NewRef((PyObject *)made);
    return parent;
}

/* Ends a call: takes the reference to the call around it back. */
static inline void annot_leave(Notes *notes, Invocation *made, Invocation *parent) {
    made->closed = 1;
    if (annot_greenlet || notes->current != made || (parent && parent->closed)) {
        annot_leave_out_of_order(notes, made, parent);
        return;
    }
    notes->current = parent;
    Py_DECREF((PyObject *)made);
}

/* Nodes that are made from now on belong to `owner`; keeps the error indicator. */
void annot_note_now(Notes *notes, Invocation *owner);
/* Reads the sequence number of a node of autograd, and which thread made it, as PyTorch counts threads, 0 if that is
 * not known; -1 with an exception set. */
int annot_read_node(PyObject *node, uint64_t *number, uint64_t *thread);
/* The invocation that was innermost when this thread made the node of this number, borrowed; NULL if there was none,
 * or if it is not known. `own`: the notes of the thread that asks, or NULL. */
Invocation *annot_owner_of(const Notes *own, uint64_t thread, uint64_t number);
/* A method of Calls: no block is open whose backward would ask for what threads have called. */
PyObject *annot_note_switch(PyObject *calls, PyObject *unused);
/* Whether a walk since the last call has met nodes that are older than the notes. */
PyObject *annot_has_lost(PyObject *calls, PyObject *unused);
PyObject *annot_drop_notes(PyObject *calls, PyObject *unused);
/* Finds autograd's counter of sequence numbers, and where nodes say their thread; -1 with an exception set. */
int annot_prepare_notes(void);
int annot_add_notes(void);

/* Objects and names of PyTorch and of the twin, looked up once. */
typedef struct {
    PyObject *current_node, *function, *any_autocast, *tensor, *parameter, *plain_call, *loss;
    PyObject *signature, *remember, *if_recomputed, *is_node, *current_thread, *grad_mode, *device_of, *visit, *bury;
    PyObject *by_id, *dead, *near, *cache, *elsewhere, *events, *layer, *shapes, *compiled_call, *call_impl, *grad_fn,
        *metadata, *edges, *hooked, *next_functions, *sequence, *register_dict, *register_prehook, *discover;
} Names;

extern Names annot_its;

/* ---------------------------------------------------------------- torch_events.c: the events of a call */

#define ANNOT_MAX_KEY 64

/* The events of a site, and which of them the last call had. */
typedef struct {
    PyObject_HEAD
    int64_t key[ANNOT_MAX_KEY]; /* of the last call */
    uint32_t length;
    int shapes, elsewhere; /* as the site says */
    PyObject *last;        /* the events of the last call: (forward, backward); owned */
    PyObject *events;      /* the site's own, key -> events; owned */
} Cache;

/* New reference; NULL with an exception set. */
Cache *annot_cache_of(PyObject *site);
/* New reference to the (forward, backward) events of a call. */
PyObject *annot_events_of(PyObject *site, Cache *cache, PyObject *args, PyObject *kwargs);
/* Steals `events`, returns a new reference: to those of a recomputation if a node of a backward runs here. */
PyObject *annot_if_recomputed(PyObject *site, PyObject *events, PyObject *args, PyObject *kwargs);
/* Finds what PyTorch offers without the way through Python. */
void annot_prepare_events(void);
int annot_add_events(void);

/* ---------------------------------------------------------------- torch_calls.c: forward */

typedef struct Memo Memo;

typedef struct {
    PyObject_HEAD
    PyObject *sites;   /* annot.torch.sites.Sites; owned */
    PyObject *by_id;   /* its dict: id of a module -> Site; owned */
    PyObject *dead;    /* its list of modules that have died; owned */
    PyObject *owners;  /* dict: node with a hook -> Invocation or None; owned */
    PyObject *shared;  /* dict: node of several runs -> how many more than one; owned */
    PyObject *hook;    /* on_node, bound; owned */
    PyObject *carrier; /* a tensor whose hooks are {0: hook}; owned */
    PyObject *engine;  /* autograd's engine; owned */
    int forward, backward;
    Memo *memos;
} Calls;

/* An attribute of an attribute … of a module: get("torch", "nn.Parameter"). New reference. */
PyObject *annot_get(const char *module_name, const char *path);

/* ---------------------------------------------------------------- torch_walk.c: the nodes of a graph */

#define ANNOT_ACCUMULATE_GRAD UINT64_MAX

typedef struct {
    PyObject *node;    /* owned */
    Invocation *owner; /* owned, may be NULL */
    uint64_t number, thread;
    size_t order;
} Visit;

typedef struct {
    Visit *visits;
    size_t count, capacity;
    size_t *seen; /* open addressing: places in `visits`, counted from 1 */
    size_t seen_size;
    uint64_t thread; /* that made the node before; 0 at first */
    int unordered;   /* the engine may run the nodes in another order than by falling numbers */
} Walk;

/* Fills an empty walk, later nodes first; -1 with an exception set or without memory. To be freed in any case. */
int annot_walk(Walk *walk, PyObject *roots);
void annot_free_walk(Walk *walk);

/* ---------------------------------------------------------------- torch_graph.c: backward */

/* Makes the hook and what carries it; -1 with an exception set. */
int annot_prepare_hooks(Calls *self);
PyObject *annot_begin(PyObject *calls, PyObject *args, PyObject *kwargs);
PyObject *annot_open_runs(PyObject *calls, PyObject *unused);
PyObject *annot_finish(PyObject *calls, PyObject *count);
/* On how many threads of this process a backward runs; one that runs inside another counts by itself. */
extern int annot_runs;
/* The call whose backward is open on this thread, borrowed; NULL if there is none. */
Invocation *annot_open_layer(void);

#endif
