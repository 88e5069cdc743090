/* Shared by the hot path of module calls in PyTorch: torch_notes.c, torch_events.c, torch_calls.c, torch_walk.c and
 * torch_graph.c.
 *
 * annot/torch/module_calls.py is the reference implementation and documents the design. PyTorch's headers are not
 * needed: shapes come from the DLPack C exchange API of tensors, everything else from Python attributes. Rare cases
 * (the first call with new shapes, an unknown module, an output other than a plain tensor) call the Python functions.
 * All functions run with the GIL held. */
#ifndef ANNOT_TORCH_CALLS_H
#define ANNOT_TORCH_CALLS_H

#include "client.h"

/* ---------------------------------------------------------------- torch_notes.c: calls of each thread */

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
/* Methods of Calls; see calls_methods. */
PyObject *annot_note_switch(PyObject *calls, PyObject *unused);
PyObject *annot_has_lost(PyObject *calls, PyObject *unused);
PyObject *annot_drop_notes(PyObject *calls, PyObject *unused);
/* Locates autograd's sequence counter and the thread number in nodes; -1 with an exception set. */
int annot_prepare_notes(void);
int annot_add_notes(void);

/* Objects of PyTorch and annot/torch, and interned attribute names; looked up once. */
typedef struct {
    PyObject *current_node, *function, *any_autocast, *tensor, *parameter, *plain_call;
    PyObject *signature, *remember, *if_recomputed, *is_node, *current_thread, *grad_mode, *device_of, *visit, *bury;
    PyObject *by_id, *dead, *near, *cache, *elsewhere, *events, *layer, *shapes, *compiled_call, *call_impl, *grad_fn,
        *metadata, *edges, *hooked, *next_functions, *sequence, *register_dict, *register_prehook, *discover, *roots;
} Names;

extern Names annot_its;

/* ---------------------------------------------------------------- torch_events.c: the events of a call */

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

/* ---------------------------------------------------------------- torch_calls.c: forward */

typedef struct Memo Memo;

typedef struct {
    PyObject_HEAD
    PyObject *sites;   /* annot.torch.module_sites.Sites; owned */
    PyObject *by_id;   /* sites.by_id: id of a module -> Site; owned */
    PyObject *dead;    /* sites.dead: list of modules that were deleted; owned */
    PyObject *owners;  /* dict: hooked node -> Invocation or None; owned */
    PyObject *shared;  /* dict: node of several backward runs -> number of runs beyond the first; owned */
    PyObject *hook;    /* bound method on_node; owned */
    PyObject *carrier; /* tensor with the hooks {0: hook}; owned */
    PyObject *engine;  /* the autograd engine; owned */
    int forward, backward;
    Memo *memos;
} Calls;

/* New reference to a nested attribute of a module: annot_get("torch", "nn.Parameter"). */
PyObject *annot_get(const char *module_name, const char *path);
/* New reference to a function of annot/torch, by its name in the dict passed to `bind`. */
PyObject *annot_bound(const char *name);

/* ---------------------------------------------------------------- torch_walk.c: nodes of an autograd graph */

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
    size_t *seen; /* open addressing: 1 + index in `visits`; 0: free */
    size_t seen_size;
    uint64_t thread; /* creator of the previous node; 0 at first */
    int unordered;   /* the engine may run the nodes in an order other than by descending number */
} Walk;

/* Fills an empty walk with the nodes, latest first. -1 with an exception set or when out of memory. The walk must be
 * freed in any case. */
int annot_walk(Walk *walk, PyObject *roots);
void annot_free_walk(Walk *walk);

/* ---------------------------------------------------------------- torch_graph.c: backward */

/* Creates the hook and the tensor that carries it; -1 with an exception set. */
int annot_prepare_hooks(Calls *self);
PyObject *annot_begin(PyObject *calls, PyObject *args, PyObject *kwargs);
PyObject *annot_open_runs(PyObject *calls, PyObject *unused);
PyObject *annot_finish(PyObject *calls, PyObject *count);
/* Number of backward runs that are open on threads of this process; nested runs count separately. */
extern int annot_runs;
/* Borrowed reference to the call whose backward range is open on this thread, or NULL. */
Invocation *annot_open_layer(void);

#endif
