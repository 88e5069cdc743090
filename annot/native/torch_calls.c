/* Forward calls: from a module that is being called to its site, its events and its invocation. */
#include "torch_calls.h"

#include <stdlib.h>
#include <string.h>

#define MAX_KEY 64
#define MAX_DEPTH 2

Names annot_its;
static PyTypeObject *cache_type = NULL;

/* ---------------------------------------------------------------- DLPack, as its specification lays it out */

typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *previous;
    void *allocate, *managed_from_object, *managed_to_object;
    int (*borrow)(void *object, DLTensor *out);
    void *current_stream;
} DLPackExchange;

/* Static in PyTorch; NULL if it has none, and then the twin reads the shapes. */
static const DLPackExchange *dlpack = NULL;

/* ---------------------------------------------------------------- Cache: the events of a site, by shapes */

typedef struct {
    PyObject_HEAD
    int64_t key[MAX_KEY]; /* of the last call */
    uint32_t length;
    int shapes, elsewhere; /* as the site says */
    PyObject *last;        /* the events of the last call: (forward, backward); owned */
    PyObject *events;      /* the site's own, key -> events; owned */
} Cache;

static void cache_dealloc(PyObject *self) {
    Cache *cache = (Cache *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(cache->last);
    Py_XDECREF(cache->events);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

/* -1 with an exception set; else whether the attribute is true, or is not None. */
static int attribute_holds(PyObject *object, PyObject *name, int is_not_none) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (!value)
        return -1;
    int holds = is_not_none ? value != Py_None : PyObject_IsTrue(value);
    Py_DECREF(value);
    return holds;
}

static Cache *new_cache(PyObject *site) {
    Cache *made = PyObject_New(Cache, cache_type);
    if (!made)
        return NULL;
    made->length = 0;
    made->last = NULL;
    made->events = PyObject_GetAttr(site, annot_its.events);
    made->shapes = attribute_holds(site, annot_its.shapes, 0);
    made->elsewhere = attribute_holds(site, annot_its.elsewhere, 1);
    if (!made->events || made->shapes < 0 || made->elsewhere < 0 ||
        PyObject_SetAttr(site, annot_its.cache, (PyObject *)made) < 0) {
        Py_DECREF((PyObject *)made);
        return NULL;
    }
    return made;
}

/* New reference. */
static Cache *cache_of(PyObject *site) {
    PyObject *found = PyObject_GetAttr(site, annot_its.cache);
    if (found != Py_None)
        return (Cache *)found;
    Py_DECREF(found);
    return new_cache(site);
}

typedef struct {
    int64_t values[MAX_KEY];
    uint32_t length;
} Key;

/* 1: added; 0: the twin must make the key; sizes of plain tensors only, so nothing is traced or synchronised. */
static int add_tensor(Key *key, PyObject *tensor) {
    DLTensor view;
    if (!dlpack || dlpack->borrow(tensor, &view) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (view.ndim < 0 || key->length + 1 + (uint32_t)view.ndim > MAX_KEY)
        return 0;
    key->values[key->length++] = (int64_t)view.code << 48 | (int64_t)view.bits << 40 | view.ndim;
    for (int i = 0; i < view.ndim; i++)
        key->values[key->length++] = view.shape[i];
    return 1;
}

static int add_value(Key *key, PyObject *value, int depth) {
    PyObject *type = (PyObject *)Py_TYPE(value);
    if (type == annot_its.tensor || type == annot_its.parameter)
        return add_tensor(key, value);
    if (depth && PyTuple_Check(value)) {
        for (Py_ssize_t i = 0; i < PyTuple_Size(value); i++)
            if (!add_value(key, PyTuple_GetItem(value, i), depth - 1))
                return 0;
    } else if (depth && PyList_Check(value)) {
        for (Py_ssize_t i = 0; i < PyList_Size(value); i++)
            if (!add_value(key, PyList_GetItem(value, i), depth - 1))
                return 0;
    } else if (depth && PyDict_Check(value)) {
        Py_ssize_t place = 0;
        PyObject *name, *item;
        while (PyDict_Next(value, &place, &name, &item))
            if (!add_value(key, item, depth - 1))
                return 0;
    } else {
        return !PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)annot_its.tensor);
    }
    return 1;
}

/* New reference to the (forward, backward) events of a call that was not seen before. */
static PyObject *ask_twin(PyObject *site, PyObject *key, PyObject *args, PyObject *kwargs) {
    PyObject *made = key ? Py_NewRef(key) : PyObject_CallFunctionObjArgs(annot_its.signature, args, kwargs, NULL);
    PyObject *events = made ? PyObject_CallFunctionObjArgs(annot_its.remember, site, made, args, kwargs, NULL) : NULL;
    Py_XDECREF(made);
    return events;
}

/* New reference to the (forward, backward) events of a call. */
static PyObject *events_of(PyObject *site, Cache *cache, PyObject *args, PyObject *kwargs) {
    Key key;
    key.length = 0;
    if (!cache->shapes && cache->last)
        return Py_NewRef(cache->last);
    if (cache->shapes && !(add_value(&key, args, MAX_DEPTH + 1) &&
                           (PyDict_Size(kwargs) == 0 || add_value(&key, kwargs, MAX_DEPTH + 1))))
        return ask_twin(site, NULL, args, kwargs);
    size_t size = key.length * sizeof(int64_t);
    if (cache->last && cache->length == key.length && memcmp(cache->key, key.values, size) == 0)
        return Py_NewRef(cache->last);
    PyObject *name = PyBytes_FromStringAndSize((char *)key.values, (Py_ssize_t)size);
    PyObject *events = name ? Py_XNewRef(PyDict_GetItemWithError(cache->events, name)) : NULL;
    if (name && !events && !PyErr_Occurred())
        events = ask_twin(site, name, args, kwargs);
    int kept = events && PyDict_GetItemWithError(cache->events, name) == events;
    Py_XDECREF(name);
    if (!kept)
        return events;
    memcpy(cache->key, key.values, size);
    cache->length = key.length;
    PyObject *old = cache->last;
    cache->last = Py_NewRef(events);
    Py_XDECREF(old);
    return events;
}

/* ---------------------------------------------------------------- Calls */

/* The module that was last called from here, as long as no site has come or gone since. */
struct Memo {
    PyObject *module; /* not owned: only compared */
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

/* To be called whenever a module gets a site or loses it. */
static PyObject *calls_forget(PyObject *self_object, PyObject *unused) {
    (void)unused;
    Calls *self = (Calls *)self_object;
    for (size_t i = 0; self->memos && i < MEMOS; i++)
        set_memo(&self->memos[i], NULL, NULL, NULL);
    Py_RETURN_NONE;
}

/* Whether torch.compile made this module; it may stand for one that has a site. */
static int is_optimized(PyObject *module) {
    PyObject *name = PyType_GetName(Py_TYPE(module));
    int same = name && PyUnicode_CompareWithASCIIString(name, "OptimizedModule") == 0;
    Py_XDECREF(name);
    return same;
}

/* New reference to the site of the module that is being called; NULL without an exception if it has none. */
static PyObject *site_of(Calls *self, PyObject *module, Notes *notes) {
    PyObject *id = PyLong_FromVoidPtr(module);
    PyObject *site = id ? PyDict_GetItemWithError(self->by_id, id) : NULL;
    Py_XDECREF(id);
    if (site)
        return Py_NewRef(site);
    if (PyErr_Occurred() || (!notes->current && !is_optimized(module)))
        return NULL;
    PyObject *caller = notes->current ? notes->current->site : Py_None;
    PyObject *found = PyObject_CallMethodObjArgs(self->sites, annot_its.discover, module, caller, NULL);
    if (found == Py_None)
        Py_CLEAR(found);
    return found;
}

/* Steals `site`, returns a new reference. */
static PyObject *site_below(PyObject *site, Notes *notes) {
    PyObject *layer = PyObject_GetAttr(notes->current->site, annot_its.layer);
    PyObject *found = layer ? PyObject_CallMethodObjArgs(site, annot_its.below, layer, NULL) : NULL;
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
    if (original != annot_its.plain_call)
        return call_with_self(original, module, args, kwargs);
    PyObject *compiled = PyObject_GetAttr(module, annot_its.compiled_call);
    if (!compiled)
        return NULL;
    int is_compiled = compiled != Py_None;
    Py_DECREF(compiled);
    if (is_compiled) /* torch.compile goes by the frames around it */
        return call_with_self(original, module, args, kwargs);
    /* What Module._wrapped_call_impl then does, without a Python frame of its own. */
    PyObject *call = PyObject_GetAttr(module, annot_its.call_impl);
    PyObject *result = call ? PyObject_Call(call, args, kwargs) : NULL;
    Py_XDECREF(call);
    return result;
}

/* Lets a backward run on another thread, whose numbers mean other nodes, find the notes of this one. */
static void tag_graph(PyObject *result, Notes *notes) {
    PyObject *modes = PyObject_CallNoArgs(annot_its.mode_count); /* a mode would see us look at the tensor */
    int plain = modes && (PyObject *)Py_TYPE(result) == annot_its.tensor && PyLong_AsLong(modes) == 0;
    Py_XDECREF(modes);
    if (!plain) {
        Py_XDECREF(PyObject_CallFunctionObjArgs(annot_its.tag_graph, result, (PyObject *)notes, NULL));
    } else {
        PyObject *node = PyObject_GetAttr(result, annot_its.grad_fn);
        PyObject *metadata = node && node != Py_None ? PyObject_GetAttr(node, annot_its.metadata) : NULL;
        if (metadata)
            PyDict_SetItem(metadata, annot_its.key, (PyObject *)notes);
        Py_XDECREF(metadata);
        Py_XDECREF(node);
    }
    PyErr_Clear();
}

/* 1 with new references to the site of a call and its cache; 0, perhaps with an exception set, if it has none. */
static int find_site(Calls *self, PyObject *module, Notes *notes, PyObject **site, Cache **cache) {
    Memo *memo = memo_of(self, module);
    if (memo->module == module) {
        *site = Py_NewRef(memo->site);
        *cache = (Cache *)Py_NewRef((PyObject *)memo->cache);
        return 1;
    }
    *site = site_of(self, module, notes);
    *cache = *site ? cache_of(*site) : NULL;
    if (*cache && !(*cache)->elsewhere) {
        set_memo(memo, module, *site, *cache);
    } else if (*cache && notes->current) {
        Py_DECREF((PyObject *)*cache);
        *site = site_below(*site, notes);
        *cache = *site ? cache_of(*site) : NULL;
    }
    if (!*cache)
        Py_CLEAR(*site);
    return *cache != NULL;
}

/* Nodes that come in from outside any module may be another thread's. */
static void mark_inputs(PyObject *args, PyObject *kwargs) {
    Py_XDECREF(PyObject_CallFunctionObjArgs(annot_its.mark_inputs, args, kwargs, NULL));
    PyErr_Clear();
}

static PyObject *call_inside(Calls *self, Notes *notes, Invocation *made, PyObject *events, PyObject *const *what) {
    Invocation *parent = notes->current;
    if (!parent && self->backward && annot_thread_count() > 1)
        mark_inputs(what[2], what[3]);
    notes->current = made;
    if (self->backward)
        annot_note_now(notes, made);
    if (self->forward)
        annot_push((Event *)PyTuple_GetItem(events, 0));
    PyObject *result = run_original(what[0], what[1], what[2], what[3]);
    if (self->forward)
        annot_pop();
    notes->current = parent;
    if (self->backward) {
        annot_note_now(notes, parent);
        if (result && !parent)
            tag_graph(result, notes);
    }
    return result;
}

/* call(original, module, args, kwargs) */
static PyObject *calls_call(PyObject *self_object, PyObject *const *what, Py_ssize_t count) {
    Calls *self = (Calls *)self_object;
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "call expects 4 arguments, got %zd", count);
    Notes *notes = annot_get_notes();
    PyObject *site, *events = NULL;
    Cache *cache;
    Invocation *made = NULL;
    if (notes && find_site(self, what[1], notes, &site, &cache)) {
        events = events_of(site, cache, what[2], what[3]);
        if (events)
            made = annot_new_invocation(notes->current, site, PyTuple_GetItem(events, 1));
        Py_DECREF((PyObject *)cache);
        Py_DECREF(site);
    }
    PyObject *result = NULL;
    if (made) {
        result = call_inside(self, notes, made, events, what);
    } else if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* no site, or its range cannot be had: the call goes on without one */
        result = run_original(what[0], what[1], what[2], what[3]);
    }
    Py_XDECREF((PyObject *)made);
    Py_XDECREF(events);
    return result;
}

/* ---------------------------------------------------------------- construction */

PyObject *annot_get(const char *module_name, const char *path) {
    PyObject *found = PyImport_ImportModule(module_name);
    char part[64];
    while (found && *path) {
        size_t length = strcspn(path, ".");
        memcpy(part, path, length);
        part[length] = '\0';
        path += length + (path[length] == '.');
        PyObject *next = PyObject_GetAttrString(found, part);
        Py_DECREF(found);
        found = next;
    }
    return found;
}

static void find_dlpack(void) {
    PyObject *capsule = PyObject_GetAttrString(annot_its.tensor, "__dlpack_c_exchange_api__");
    const DLPackExchange *api = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    dlpack = api && api->major == 1 ? api : NULL; /* the capsule is static; without it the twin reads shapes */
    Py_XDECREF(capsule);
    PyErr_Clear();
}

static int look_up(void) {
    if (annot_its.discover) /* the last that is set */
        return 0;
    struct { PyObject **place; const char *module, *path; } objects[] = {
        {&annot_its.tensor, "torch", "Tensor"},
        {&annot_its.parameter, "torch", "nn.Parameter"},
        {&annot_its.plain_call, "torch", "nn.Module._wrapped_call_impl"},
        {&annot_its.current_node, "torch", "_C._current_autograd_node"},
        {&annot_its.mode_count, "torch", "_C._len_torch_function_stack"},
        {&annot_its.signature, "annot.torch.calls", "signature"},
        {&annot_its.remember, "annot.torch.calls", "remember"},
        {&annot_its.tag_graph, "annot.torch.calls", "tag_graph"},
        {&annot_its.mark_inputs, "annot.torch.calls", "mark_inputs"},
    };
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (!(*objects[i].place = annot_get(objects[i].module, objects[i].path)))
            return -1;
    struct { PyObject **place; const char *name; } names[] = {
        {&annot_its.by_id, "by_id"}, {&annot_its.below, "below"}, {&annot_its.cache, "cache"}, {&annot_its.elsewhere, "elsewhere"},
        {&annot_its.events, "events"}, {&annot_its.layer, "layer"}, {&annot_its.shapes, "shapes"},
        {&annot_its.compiled_call, "_compiled_call_impl"}, {&annot_its.call_impl, "_call_impl"}, {&annot_its.grad_fn, "grad_fn"},
        {&annot_its.metadata, "metadata"}, {&annot_its.key, "annot"}, {&annot_its.hooked, "annot hook"}, {&annot_its.next_functions, "next_functions"},
        {&annot_its.sequence, "_sequence_nr"}, {&annot_its.register_dict, "_register_hook_dict"},
        {&annot_its.register_prehook, "register_prehook"}, {&annot_its.discover, "discover"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].place = PyUnicode_InternFromString(names[i].name)))
            return -1;
    find_dlpack();
    return annot_find_peek();
}

static int calls_init(PyObject *self_object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sites", "forward", "backward", NULL};
    Calls *self = (Calls *)self_object;
    PyObject *sites;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O$pp", names, &sites, &self->forward, &self->backward) ||
        look_up() < 0)
        return -1;
    self->memos = calloc(MEMOS, sizeof *self->memos);
    if (!self->memos) {
        PyErr_NoMemory();
        return -1;
    }
    self->sites = Py_NewRef(sites);
    self->by_id = PyObject_GetAttr(sites, annot_its.by_id);
    return self->by_id ? annot_prepare_hooks(self) : -1;
}

static int calls_traverse(PyObject *self_object, visitproc visit, void *arg) {
    Calls *self = (Calls *)self_object;
    Py_VISIT(self->sites);
    Py_VISIT(self->by_id);
    Py_VISIT(self->owners);
    Py_VISIT(self->hook);
    Py_VISIT(self->carrier);
    Py_VISIT(self->engine);
    Py_VISIT((PyObject *)Py_TYPE(self_object));
    return 0;
}

static int calls_clear(PyObject *self_object) {
    Calls *self = (Calls *)self_object;
    Py_CLEAR(self->sites);
    Py_CLEAR(self->by_id);
    Py_CLEAR(self->owners);
    Py_CLEAR(self->hook);
    Py_CLEAR(self->carrier);
    Py_CLEAR(self->engine);
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

/* ---------------------------------------------------------------- types */

static PyMethodDef calls_methods[] = {
    {"call", (PyCFunction)(void (*)(void))calls_call, METH_FASTCALL, "Call a module inside its range."},
    {"begin", (PyCFunction)(void (*)(void))annot_begin, METH_VARARGS | METH_KEYWORDS,
     "Prepare a graph for a run of the engine on this thread."},
    {"current_site", annot_current_site, METH_O, "The site in whose call, or backward, this thread is."},
    {"forget", calls_forget, METH_NOARGS, "Look every module up anew: one got a site or lost it."},
    {"finish", annot_finish, METH_O, "Close what the run has open on this thread, and forget its nodes."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot cache_slots[] = {{Py_tp_dealloc, cache_dealloc}, {0, NULL}};
static PyType_Slot calls_slots[] = {
    {Py_tp_init, calls_init},         {Py_tp_dealloc, calls_dealloc}, {Py_tp_traverse, calls_traverse},
    {Py_tp_clear, calls_clear},       {Py_tp_methods, calls_methods}, {0, NULL}};

#define INTERNAL (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION)
static PyType_Spec cache_spec = {"annot.native._fast.Cache", sizeof(Cache), 0, INTERNAL, cache_slots};
static PyType_Spec calls_spec = {"annot.native._fast.Calls", sizeof(Calls), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_slots};

int annot_add_torch_calls(PyObject *module) {
    if (annot_add_notes() < 0)
        return -1;
    cache_type = (PyTypeObject *)PyType_FromSpec(&cache_spec);
    PyObject *calls = PyType_FromSpec(&calls_spec);
    int failed = !cache_type || !calls || PyModule_AddObjectRef(module, "Calls", calls) < 0;
    Py_XDECREF(calls);
    return failed ? -1 : 0;
}
