/* Shared by the parts of the PyTorch wing's hot path: torch_notes.c, torch_events.c, torch_calls.c,
 * torch_graph.c.
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
} Invocation;

typedef struct {
    uint64_t number;
    Invocation *owner; /* owned, may be NULL */
} Note;

/* From which sequence number on which invocation was innermost; one per thread, kept alive by its graphs too. */
typedef struct {
    PyObject_HEAD
    Note *notes;
    uint32_t count, capacity;
    Invocation *current; /* borrowed: the call that is open keeps it */
} Notes;

extern PyTypeObject *annot_notes_type;

Invocation *annot_new_invocation(Invocation *parent, PyObject *site, PyObject *backward);
/* The notes of this thread, borrowed; NULL with an exception set without memory. */
Notes *annot_get_notes(void);
/* The same, but NULL if it has none yet. */
Notes *annot_my_notes(void);
/* How many threads ever had notes. */
int annot_thread_count(void);
/* Nodes that are made from now on belong to `owner`; keeps the error indicator. */
void annot_note_now(Notes *notes, Invocation *owner);
/* The invocation that was innermost when the node of this number was made, borrowed; may be NULL. */
Invocation *annot_owner_of(const Notes *notes, uint64_t number);
/* Finds autograd's counter of sequence numbers; -1 with an exception set. */
int annot_find_peek(void);
int annot_add_notes(void);

/* Objects and names of PyTorch and of the twin, looked up once. */
typedef struct {
    PyObject *current_node, *mode_count, *any_autocast, *tensor, *parameter, *plain_call, *loss;
    PyObject *signature, *remember, *if_recomputed, *tag_graph, *mark_inputs;
    PyObject *by_id, *near, *cache, *elsewhere, *events, *layer, *shapes, *compiled_call, *call_impl, *grad_fn,
        *metadata, *key, *hooked, *next_functions, *sequence, *register_dict, *register_prehook, *discover;
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
    PyObject *owners;  /* dict: node with a hook -> Invocation or None; owned */
    PyObject *hook;    /* on_node, bound; owned */
    PyObject *carrier; /* a tensor whose hooks are {0: hook}; owned */
    PyObject *engine;  /* autograd's engine; owned */
    int forward, backward;
    Memo *memos;
} Calls;

/* An attribute of an attribute … of a module: get("torch", "nn.Parameter"). New reference. */
PyObject *annot_get(const char *module_name, const char *path);

/* ---------------------------------------------------------------- torch_graph.c: backward */

/* Makes the hook and what carries it; -1 with an exception set. */
int annot_prepare_hooks(Calls *self);
PyObject *annot_begin(PyObject *calls, PyObject *args, PyObject *kwargs);
PyObject *annot_finish(PyObject *calls, PyObject *token);
/* On how many threads of this process a backward runs; one that runs inside another counts by itself. */
extern int annot_runs;
/* The call whose backward is open on this thread, borrowed; NULL if there is none. */
Invocation *annot_open_layer(void);
/* The site of the module in whose call (backward: in whose backward) this thread is, or None. */
PyObject *annot_current_site(PyObject *calls, PyObject *backward);

#endif
