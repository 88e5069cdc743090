/* Forward calls: find the site and the events of a module call and run it inside its range. */
#include "client.h"
#include "parts.h"
#include "torch_events.h"
#include "torch_graph.h"
#include "torch_names.h"
#include "torch_notes.h"

#include <stdlib.h>

/* ---------------------------------------------------------------- Calls */

typedef struct Memo Memo;

typedef struct {
    Backward backward_part; /* the head of the object; torch_graph.c uses it */
    PyObject *sites;        /* annot.torch.module_sites.Sites; owned */
    PyObject *by_id;        /* sites.by_id: id of a module -> Site; owned */
    PyObject *dead;         /* sites.dead: list of modules that were deleted; owned */
    int forward, backward;
    Memo *memos;
} Calls;

/* Cache entry for a module and its site. `forget` clears all entries whenever sites are added or removed. */
struct Memo {
    PyObject *module; /* borrowed; compared only */
    PyObject *site;   /* owned */
    Cache *cache;     /* owned */
};

#define MEMOS 1024

static Memo *memo_of(Calls *self, PyObject *module) {
    return &self->memos[((uintptr_t)module >> 4) * 0x9E3779B97F4A7C15ull >> 54];
}

static void set_memo(Memo *memo, PyObject *module, PyObject *site, Cache *cache) {
    PyObject *old_site = memo->site, *old_cache = (PyObject *)memo->cache;
    memo->module = module;
    memo->site = Py_XNewRef(site);
    memo->cache = (Cache *)Py_XNewRef((PyObject *)cache);
    Py_XDECREF(old_site);
    Py_XDECREF(old_cache);
}

static PyObject *calls_forget(PyObject *self_object, PyObject *unused) {
    Calls *self = (Calls *)self_object;
    for (size_t i = 0; self->memos && i < MEMOS; i++)
        set_memo(&self->memos[i], NULL, NULL, NULL);
    Py_RETURN_NONE;
}

/* Borrowed reference to the enclosing call, or else to the call whose backward range is open, or NULL. */
static Invocation *caller(const Notes *notes) {
    Invocation *current = annot_current(notes);
    return current ? current : annot_open_layer();
}

/* Whether torch.compile created this module. It may wrap a module with a site. */
static int is_optimized(PyObject *module) {
    PyObject *name = PyType_GetName(Py_TYPE(module));
    int same = name && PyUnicode_CompareWithASCIIString(name, "OptimizedModule") == 0;
    Py_XDECREF(name);
    return same;
}

/* Whether a call of this module outside of all models may get a site. */
static int has_root_site(Calls *self, PyObject *module) {
    PyObject *kind = PyObject_GetAttr(self->sites, annot_its.roots);
    int is_root = kind && PyType_Check(kind) && PyObject_TypeCheck(module, (PyTypeObject *)kind);
    if (!kind)
        PyErr_Clear();
    Py_XDECREF(kind);
    return is_root;
}

/* New reference to the site of a module; NULL without an exception if there is none. */
static PyObject *site_of(Calls *self, PyObject *module, Notes *notes) {
    PyObject *id = PyLong_FromVoidPtr(module);
    PyObject *site = id ? PyDict_GetItemWithError(self->by_id, id) : NULL;
    Py_XDECREF(id);
    if (PyErr_Occurred() || site == Py_None) /* excluded by the user */
        return NULL;
    if (site)
        return Py_NewRef(site);
    Invocation *around = caller(notes);
    if (!around && !has_root_site(self, module) && !is_optimized(module))
        return NULL;
    PyObject *site_around = around ? around->site : Py_None;
    PyObject *found = PyObject_CallMethodObjArgs(self->sites, annot_its.discover, module, site_around, NULL);
    if (found == Py_None)
        Py_CLEAR(found);
    return found;
}

/* Steals `site`. New reference to the site of the same module under the layer of `around`. */
static PyObject *site_near(PyObject *site, const Invocation *around) {
    PyObject *layer = PyObject_GetAttr(around->site, annot_its.layer);
    PyObject *found = layer ? PyObject_CallMethodObjArgs(site, annot_its.near, layer, NULL) : NULL;
    Py_XDECREF(layer);
    Py_DECREF(site);
    return found;
}

static PyObject *call_with_self(PyObject *function, PyObject *module, PyObject *args, PyObject *kwargs) {
    PyObject *all = PyTuple_New(1 + PyTuple_Size(args));
    if (!all)
        return NULL;
    PyTuple_SetItem(all, 0, Py_NewRef(module));
    for (Py_ssize_t i = 0; i < PyTuple_Size(args); i++)
        PyTuple_SetItem(all, i + 1, Py_NewRef(PyTuple_GetItem(args, i)));
    PyObject *result = PyObject_Call(function, all, kwargs);
    Py_DECREF(all);
    return result;
}

static PyObject *run_original(PyObject *original, PyObject *module, PyObject *args, PyObject *kwargs) {
    if (original != annot_its.plain_call || annot_profiler_runs()) /* torch.profiler looks for this Python frame */
        return call_with_self(original, module, args, kwargs);
    PyObject *compiled = PyObject_GetAttr(module, annot_its.compiled_call);
    if (!compiled)
        return NULL;
    int is_compiled = compiled != Py_None;
    Py_DECREF(compiled);
    if (is_compiled) /* torch.compile inspects the Python frames around it */
        return call_with_self(original, module, args, kwargs);
    /* The remaining code of Module._wrapped_call_impl, without its Python frame. */
    PyObject *call = PyObject_GetAttr(module, annot_its.call_impl);
    PyObject *result = call ? PyObject_Call(call, args, kwargs) : NULL;
    Py_XDECREF(call);
    return result;
}

/* Returns 1 with new references to the site of a call and its cache; 0 if the site is missing or an exception is set. */
static int find_site(Calls *self, PyObject *module, Notes *notes, PyObject **site, Cache **cache) {
    Memo *memo = memo_of(self, module);
    if (memo->module == module) {
        *site = Py_NewRef(memo->site);
        *cache = (Cache *)Py_NewRef((PyObject *)memo->cache);
        return 1;
    }
    *site = site_of(self, module, notes);
    *cache = *site ? annot_cache_of(*site) : NULL;
    if (*cache && !(*cache)->elsewhere) {
        set_memo(memo, module, *site, *cache);
    } else if (*cache && caller(notes)) {
        Py_DECREF((PyObject *)*cache);
        *site = site_near(*site, caller(notes));
        *cache = *site ? annot_cache_of(*site) : NULL;
    }
    if (!*cache)
        Py_CLEAR(*site);
    return *cache != NULL;
}

static PyObject *run_in_range(Calls *self, Notes *notes, Invocation *made, PyObject *events, PyObject *const *what) {
    Invocation *parent = annot_enter(notes, made);
    if (self->backward)
        annot_note_now(notes, made);
    if (self->forward)
        annot_push((Event *)PyTuple_GetItem(events, 0));
    PyObject *result = run_original(what[0], what[1], what[2], what[3]);
    if (self->forward)
        annot_pop();
    annot_leave(notes, made, parent);
    if (self->backward)
        annot_note_now(notes, annot_current(notes));
    return result;
}

/* Removes deleted modules, whose ids may be reused. -1 with an exception set, for example by a signal handler. */
static int remove_dead_modules(Calls *self) {
    PyObject *done = PyObject_CallFunctionObjArgs(annot_its.bury, self->sites, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* call(original, module, args, kwargs) */
static PyObject *calls_call(PyObject *self_object, PyObject *const *what, Py_ssize_t count) {
    Calls *self = (Calls *)self_object;
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "call expects 4 arguments, got %zd", count);
    if (PyList_Size(self->dead) > 0 && remove_dead_modules(self) < 0)
        return NULL;
    Notes *notes = annot_get_notes();
    PyObject *site, *events = NULL;
    Cache *cache;
    Invocation *made = NULL;
    if (notes && find_site(self, what[1], notes, &site, &cache)) {
        events = annot_events_of(site, cache, what[2], what[3]);
        if (events == Py_None)
            Py_CLEAR(events);
        if (events && annot_runs)
            events = annot_if_recomputed(site, events, what[2], what[3]);
        if (events)
            made = annot_new_invocation(annot_current(notes), site, PyTuple_GetItem(events, 1));
        Py_DECREF((PyObject *)cache);
        Py_DECREF(site);
    }
    PyObject *result = NULL;
    if (made) {
        result = run_in_range(self, notes, made, events, what);
    } else if (!PyErr_Occurred()) { /* no site, or its range cannot be created: call the module without a range */
        result = run_original(what[0], what[1], what[2], what[3]);
    }
    Py_XDECREF((PyObject *)made);
    Py_XDECREF(events);
    return result;
}

/* Returns the site of the current call or, with `backward`, of the open backward range; None if there is none. */
static PyObject *calls_current_site(PyObject *self_object, PyObject *backward) {
    Notes *notes = annot_my_notes();
    Invocation *current = NULL;
    if (PyObject_IsTrue(backward) == 1)
        current = annot_open_layer();
    else if (notes)
        current = annot_current(notes);
    return Py_NewRef(current ? current->site : Py_None);
}

static int calls_init(PyObject *self_object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sites", "forward", "backward", NULL};
    Calls *self = (Calls *)self_object;
    PyObject *sites;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$pp", names, &sites, &self->forward, &self->backward) ||
        annot_look_up() < 0 || annot_prepare_notes() < 0)
        return -1;
    annot_prepare_events();
    self->memos = calloc(MEMOS, sizeof *self->memos);
    if (!self->memos) {
        PyErr_NoMemory();
        return -1;
    }
    self->sites = Py_NewRef(sites);
    self->by_id = PyObject_GetAttr(sites, annot_its.by_id);
    self->dead = self->by_id ? PyObject_GetAttr(sites, annot_its.dead) : NULL;
    return self->dead ? annot_prepare_hooks(&self->backward_part) : -1;
}

/* The Python objects that a Calls owns. */
#define OWNED(X)                                                                                                       \
    X(sites)                                                                                                           \
    X(by_id)                                                                                                           \
    X(dead)                                                                                                            \
    X(backward_part.owners)                                                                                            \
    X(backward_part.shared)                                                                                            \
    X(backward_part.hook)                                                                                              \
    X(backward_part.carrier)                                                                                           \
    X(backward_part.engine)

static int calls_traverse(PyObject *self_object, visitproc visit, void *arg) {
    Calls *self = (Calls *)self_object;
#define VISIT(field) Py_VISIT(self->field);
    OWNED(VISIT)
    Py_VISIT((PyObject *)Py_TYPE(self_object));
    return 0;
}

static int calls_clear(PyObject *self_object) {
    Calls *self = (Calls *)self_object;
#define CLEAR(field) Py_CLEAR(self->field);
    OWNED(CLEAR)
    return 0;
}

static void calls_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    calls_clear(self);
    Py_XDECREF(calls_forget(self, NULL));
    free(((Calls *)self)->memos);
    PyObject_GC_Del(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef calls_methods[] = {
    {"call", (PyCFunction)(void (*)(void))calls_call, METH_FASTCALL,
     "call(original, module, args, kwargs): call a module inside its range."},
    {"begin", (PyCFunction)(void (*)(void))annot_begin, METH_VARARGS | METH_KEYWORDS,
     "begin(roots, *, keep_graph, create_graph, every): hook a graph for a backward run on this thread."},
    {"current_site", calls_current_site, METH_O,
     "Return the site of the current call or, if the argument is true, of the open backward range."},
    {"note_switch", annot_note_switch, METH_NOARGS, "Record that this thread continues with another greenlet."},
    {"has_lost", annot_has_lost, METH_NOARGS,
     "Return whether a node was older than the notes since the last call of this method."},
    {"drop_notes", annot_drop_notes, METH_NOARGS, "Drop the calls recorded for all threads."},
    {"forget", calls_forget, METH_NOARGS, "Clear the cache of module sites, after a site was added or removed."},
    {"runs", annot_open_runs, METH_NOARGS, "Return the number of unfinished backward runs of this thread."},
    {"finish", annot_finish, METH_O, "Finish backward runs of this thread until the given number is left."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot calls_slots[] = {{Py_tp_init, calls_init},         {Py_tp_dealloc, calls_dealloc},
                                    {Py_tp_traverse, calls_traverse}, {Py_tp_clear, calls_clear},
                                    {Py_tp_methods, calls_methods},   {0, NULL}};

static PyType_Spec calls_spec = {"annot.native._emit.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 calls_slots};

static PyMethodDef functions[] = {
    {"bind", annot_bind, METH_O, "Set the Python functions of annot/torch that Calls uses: a dict by name."},
    {"watch_greenlets", annot_watch_greenlets, METH_O,
     "Keep the open calls of each greenlet apart. The argument is greenlet.getcurrent."},
    {NULL, NULL, 0, NULL},
};

int annot_add_torch_calls(PyObject *module) {
    if (annot_add_notes() < 0 || annot_add_events() < 0)
        return -1;
    PyObject *calls = PyType_FromSpec(&calls_spec);
    int failed = !calls || PyModule_AddObjectRef(module, "Calls", calls) < 0;
    Py_XDECREF(calls);
    return failed ? -1 : PyModule_AddFunctions(module, functions);
}
