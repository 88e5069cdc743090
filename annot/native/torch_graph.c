/* Backward runs: the walk through the graph, the hooks, and the ranges that they move along. */
#include "torch_calls.h"

#include <stdlib.h>

#define ACCUMULATE_GRAD UINT64_MAX

/* ---------------------------------------------------------------- Frame: what a backward run has open on a thread */

typedef struct Frame {
    struct Frame *below;
    Invocation **open; /* owned, outermost first: open[i]->depth == i */
    uint32_t count, capacity;
    int creates_graph;
    PyObject *nodes, *handles; /* lists; owned */
} Frame;

static __thread Frame *my_frame = NULL;
int annot_runs = 0;

Invocation *annot_open_layer(void) { return my_frame && my_frame->count ? my_frame->open[my_frame->count - 1] : NULL; }

static Frame *push_frame(int creates_graph) {
    Frame *frame = calloc(1, sizeof *frame);
    if (!frame) {
        PyErr_NoMemory();
        return NULL;
    }
    frame->creates_graph = creates_graph;
    frame->nodes = PyList_New(0);
    frame->handles = PyList_New(0);
    frame->below = my_frame;
    annot_runs++;
    return my_frame = frame;
}

static void close_down_to(Frame *frame, uint32_t count) {
    while (frame->count > count) {
        Py_DECREF((PyObject *)frame->open[--frame->count]);
        annot_pop();
    }
}

static int open_range(Frame *frame, Invocation *invocation) {
    if (frame->count == frame->capacity) {
        uint32_t capacity = frame->capacity ? 2 * frame->capacity : 32;
        Invocation **grown = realloc(frame->open, capacity * sizeof *grown);
        if (!grown)
            return -1;
        frame->open = grown;
        frame->capacity = capacity;
    }
    frame->open[frame->count++] = (Invocation *)Py_NewRef((PyObject *)invocation);
    annot_push(invocation->backward);
    return 0;
}

static void note_in_graph(Frame *frame, Invocation *owner) {
    Notes *notes = frame->creates_graph ? annot_get_notes() : NULL;
    if (notes)
        annot_note_now(notes, owner);
}

/* Takes the frame off the thread. */
static void pop_frame(void) {
    Frame *frame = my_frame;
    close_down_to(frame, 0);
    note_in_graph(frame, annot_my_notes() ? annot_my_notes()->current : NULL);
    my_frame = frame->below;
    annot_runs--;
    Py_XDECREF(frame->nodes);
    Py_XDECREF(frame->handles);
    free(frame->open);
    free(frame);
}

static int open_down_to(Frame *frame, Invocation *owner) {
    if (owner->depth >= frame->count + 1 && open_down_to(frame, owner->parent) < 0)
        return -1;
    return open_range(frame, owner);
}

static void move_to(Frame *frame, Invocation *owner) {
    Invocation *keep = owner;
    while (keep && (keep->depth >= frame->count || frame->open[keep->depth] != keep))
        keep = keep->parent;
    close_down_to(frame, keep ? keep->depth + 1 : 0);
    if (owner != keep)
        open_down_to(frame, owner);
    note_in_graph(frame, owner);
}

/* ---------------------------------------------------------------- the walk through the graph */

typedef struct {
    PyObject *node;    /* owned */
    Notes *notes;      /* owned, may be NULL: whose numbers the nodes below have */
    uint64_t number;
    uint32_t order;
    Invocation *owner; /* borrowed from the notes */
} Visit;

typedef struct {
    Visit *visits;
    size_t count, capacity;
    PyObject **seen; /* open addressing, borrowed from the visits */
    size_t seen_size;
    int mixed;
} Walk;

static size_t slot_of(const Walk *walk, PyObject *node) {
    size_t mask = walk->seen_size - 1;
    size_t slot = ((uintptr_t)node >> 4) * 0x9E3779B97F4A7C15ull >> 20 & mask;
    while (walk->seen[slot] && walk->seen[slot] != node)
        slot = (slot + 1) & mask;
    return slot;
}

static int grow_seen(Walk *walk) {
    size_t size = walk->seen_size ? 2 * walk->seen_size : 512;
    PyObject **old = walk->seen;
    PyObject **grown = calloc(size, sizeof *grown);
    if (!grown)
        return -1;
    walk->seen = grown;
    walk->seen_size = size;
    for (size_t i = 0; i < walk->count; i++)
        grown[slot_of(walk, walk->visits[i].node)] = walk->visits[i].node;
    free(old);
    return 0;
}

/* Puts a node on the list unless it is there; -1 without memory. */
static int visit(Walk *walk, PyObject *node, Notes *notes) {
    if (2 * (walk->count + 1) > walk->seen_size && grow_seen(walk) < 0)
        return -1;
    size_t slot = slot_of(walk, node);
    if (walk->seen[slot])
        return 0;
    if (walk->count == walk->capacity) {
        size_t capacity = walk->capacity ? 2 * walk->capacity : 256;
        Visit *grown = realloc(walk->visits, capacity * sizeof *grown);
        if (!grown)
            return -1;
        walk->visits = grown;
        walk->capacity = capacity;
    }
    walk->seen[slot] = node;
    walk->visits[walk->count] = (Visit){Py_NewRef(node), (Notes *)Py_XNewRef((PyObject *)notes), 0,
                                        (uint32_t)walk->count, NULL};
    walk->count++;
    return 0;
}

static void free_walk(Walk *walk) {
    for (size_t i = 0; i < walk->count; i++) {
        Py_DECREF(walk->visits[i].node);
        Py_XDECREF((PyObject *)walk->visits[i].notes);
    }
    free(walk->visits);
    free(walk->seen);
}

/* A node may carry the notes of the thread that made it, or None where nobody knows. */
static int take_notes(Walk *walk, size_t place) {
    Visit *here = &walk->visits[place];
    PyObject *metadata = PyObject_GetAttr(here->node, annot_its.metadata);
    if (!metadata)
        return -1;
    PyObject *found = PyDict_GetItemWithError(metadata, annot_its.key);
    if (found && found != (PyObject *)here->notes) {
        Py_XDECREF((PyObject *)here->notes);
        here->notes = Py_TYPE(found) == annot_notes_type ? (Notes *)Py_NewRef(found) : NULL;
        walk->mixed = 1;
    }
    Py_DECREF(metadata);
    return PyErr_Occurred() ? -1 : 0;
}

static int read_number(Visit *here) {
    PyObject *number = PyObject_CallMethodObjArgs(here->node, annot_its.sequence, NULL);
    if (!number)
        return -1;
    here->number = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    if (here->number != ACCUMULATE_GRAD && here->notes)
        here->owner = annot_owner_of(here->notes, here->number);
    return PyErr_Occurred() ? -1 : 0;
}

static int visit_next(Walk *walk, size_t place) {
    PyObject *edges = PyObject_GetAttr(walk->visits[place].node, annot_its.next_functions);
    Notes *notes = walk->visits[place].notes;
    int failed = !edges;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_Size(edges); i++) {
        PyObject *next = PyTuple_GetItem(PyTuple_GetItem(edges, i), 0);
        failed = next != Py_None && visit(walk, next, notes) < 0;
    }
    Py_XDECREF(edges);
    return failed ? -1 : 0;
}

static int walk_graph(Walk *walk, PyObject *roots, int several_threads) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(roots); i++) {
        PyObject *root = PyTuple_GetItem(roots, i);
        PyObject *node = PyTuple_Check(root) ? Py_XNewRef(PyTuple_GetItem(root, 0))
                                             : PyObject_GetAttr(root, annot_its.grad_fn);
        int failed = !node || (node != Py_None && visit(walk, node, annot_my_notes()) < 0);
        Py_XDECREF(node);
        if (failed)
            return -1;
    }
    for (size_t place = 0; place < walk->count; place++) {
        if ((several_threads && take_notes(walk, place) < 0) || read_number(&walk->visits[place]) < 0)
            return -1;
        if (walk->visits[place].number != ACCUMULATE_GRAD && visit_next(walk, place) < 0)
            return -1;
    }
    return 0;
}

static int later_first(const void *left, const void *right) {
    const Visit *a = left, *b = right;
    if (a->number != b->number)
        return a->number < b->number ? 1 : -1;
    return a->order < b->order ? 1 : -1;
}

/* ---------------------------------------------------------------- a backward run */

/* A tenth of the price of register_prehook. It cannot be removed, but finds no owner once the run is over; and a node
 * whose graph is run again, as one that saves nothing may be, is not hooked again. */
static int hook_once(Calls *self, PyObject *node) {
    PyObject *metadata = PyObject_GetAttr(node, annot_its.metadata);
    if (!metadata)
        return -1;
    int failed = 0;
    if (PyDict_GetItemWithError(metadata, annot_its.hooked) != self->carrier) {
        PyObject *done = PyObject_CallMethodObjArgs(node, annot_its.register_dict, self->carrier, NULL);
        failed = !done || PyDict_SetItem(metadata, annot_its.hooked, self->carrier) < 0;
        Py_XDECREF(done);
    }
    Py_DECREF(metadata);
    return failed ? -1 : 0;
}

static int hook_node(Calls *self, Frame *frame, const Visit *here, int keep_graph) {
    PyObject *owner = here->owner ? (PyObject *)here->owner : Py_None;
    if (PyDict_SetItem(self->owners, here->node, owner) < 0 || PyList_Append(frame->nodes, here->node) < 0)
        return -1;
    if (!keep_graph) {
        int done = hook_once(self, here->node);
        if (done >= 0 || !PyErr_ExceptionMatches(PyExc_AttributeError))
            return done < 0 ? -1 : 0;
        PyErr_Clear();
    }
    PyObject *handle = PyObject_CallMethodObjArgs(here->node, annot_its.register_prehook, self->hook, NULL);
    int failed = !handle || PyList_Append(frame->handles, handle) < 0;
    Py_XDECREF(handle);
    return failed ? -1 : 0;
}

static int hook_graph(Calls *self, Frame *frame, PyObject *roots, int keep_graph, int every) {
    Walk walk = {0};
    int failed = walk_graph(&walk, roots, annot_thread_count() > 1 || !annot_my_notes()) < 0;
    if (!failed)
        qsort(walk.visits, walk.count, sizeof(Visit), later_first);
    Invocation *previous = NULL;
    for (size_t i = 0; !failed && i < walk.count; i++) {
        Visit *here = &walk.visits[i];
        if (here->number == ACCUMULATE_GRAD)
            continue;
        if (every || walk.mixed || here->owner != previous)
            failed = hook_node(self, frame, here, keep_graph) < 0;
        previous = here->owner;
    }
    free_walk(&walk);
    if (failed && !PyErr_Occurred())
        PyErr_NoMemory();
    return failed ? -1 : 0;
}

static void forget_nodes(Calls *self, Frame *frame) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    for (Py_ssize_t i = 0; frame->handles && i < PyList_Size(frame->handles); i++)
        Py_XDECREF(PyObject_CallMethod(PyList_GetItem(frame->handles, i), "remove", NULL));
    for (Py_ssize_t i = 0; frame->nodes && i < PyList_Size(frame->nodes); i++)
        if (PyDict_DelItem(self->owners, PyList_GetItem(frame->nodes, i)) < 0)
            PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

PyObject *annot_begin(PyObject *self_object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"roots", "keep_graph", "create_graph", "every", NULL};
    Calls *self = (Calls *)self_object;
    PyObject *roots;
    int keep_graph, create_graph, every;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!$ppp", names, &PyTuple_Type, &roots, &keep_graph,
                                     &create_graph, &every))
        return NULL;
    Frame *frame = push_frame(create_graph);
    if (!frame)
        return NULL;
    if (hook_graph(self, frame, roots, keep_graph, every) < 0) {
        forget_nodes(self, frame);
        pop_frame();
        return NULL;
    }
    return PyLong_FromVoidPtr(frame);
}

PyObject *annot_finish(PyObject *self_object, PyObject *token) {
    void *last = PyLong_AsVoidPtr(token);
    for (int more = 1; more && my_frame;) {
        more = my_frame != last;
        forget_nodes((Calls *)self_object, my_frame);
        pop_frame();
    }
    Py_RETURN_NONE;
}

/* The engine runs this when its task is done: on the thread that finished it. */
static PyObject *close_worker(PyObject *token, PyObject *unused) {
    (void)unused;
    if (my_frame && my_frame == PyLong_AsVoidPtr(token))
        pop_frame();
    Py_RETURN_NONE;
}

static PyMethodDef close_worker_def = {"close_worker", close_worker, METH_NOARGS, "Close what this thread has open."};

static Frame *worker_frame(Calls *self) {
    Frame *frame = push_frame(0);
    PyObject *token = frame ? PyLong_FromVoidPtr(frame) : NULL;
    PyObject *callback = token ? PyCFunction_NewEx(&close_worker_def, token, NULL) : NULL;
    Py_XDECREF(callback ? PyObject_CallMethod(self->engine, "queue_callback", "O", callback) : NULL);
    Py_XDECREF(callback);
    Py_XDECREF(token);
    return frame;
}

/* The hook: moves to the layer of the node that the engine is about to run. Never raises. */
static PyObject *on_node(PyObject *self_object, PyObject *unused) {
    (void)unused;
    Calls *self = (Calls *)self_object;
    PyObject *node = PyObject_CallNoArgs(annot_its.current_node);
    PyObject *owner = node ? PyDict_GetItemWithError(self->owners, node) : NULL;
    Frame *frame = owner ? (my_frame ? my_frame : worker_frame(self)) : NULL;
    if (frame)
        move_to(frame, owner == Py_None ? NULL : (Invocation *)owner);
    Py_XDECREF(node);
    PyErr_Clear();
    Py_RETURN_NONE;
}

PyObject *annot_current_site(PyObject *self_object, PyObject *backward) {
    (void)self_object;
    Notes *notes = annot_my_notes();
    Invocation *current = NULL;
    if (PyObject_IsTrue(backward) == 1)
        current = annot_open_layer();
    else if (notes)
        current = notes->current;
    return Py_NewRef(current ? current->site : Py_None);
}

static PyMethodDef on_node_def = {"on_node", on_node, METH_O, "Move to the layer of the node that comes next."};

static int make_carrier(Calls *self) {
    PyObject *zeros = annot_get("torch", "zeros");
    PyObject *hooks = PyDict_New(), *zero = PyLong_FromLong(0);
    self->carrier = zeros ? PyObject_CallFunction(zeros, "i", 1) : NULL;
    int failed = !self->carrier || !hooks || !zero || PyDict_SetItem(hooks, zero, self->hook) < 0 ||
                 PyObject_SetAttrString(self->carrier, "_backward_hooks", hooks) < 0;
    Py_XDECREF(zeros);
    Py_XDECREF(hooks);
    Py_XDECREF(zero);
    return failed ? -1 : 0;
}

int annot_prepare_hooks(Calls *self) {
    self->owners = PyDict_New();
    self->hook = PyCFunction_NewEx(&on_node_def, (PyObject *)self, NULL);
    self->engine = annot_get("torch", "autograd.Variable._execution_engine");
    return self->owners && self->hook && self->engine ? make_carrier(self) : -1;
}
