/* Backward runs: the walk through the graph, the hooks, and the ranges that they move along. */
#include "torch_calls.h"

#include <stdlib.h>

#define ACCUMULATE_GRAD UINT64_MAX
/* A graph of more nodes is deep: freeing it recursively takes some 150 bytes of C stack a node. */
#define DEEP 1000

/* ---------------------------------------------------------------- Frame: what a backward run has open on a thread */

typedef struct Frame {
    struct Frame *below;
    Invocation **open; /* owned, outermost first: open[i]->depth == i */
    uint32_t count, capacity;
    int creates_graph;
    PyObject *nodes, *handles; /* lists; owned */
    PyObject *device, *last;   /* of a thread of a device: this, and the node that it runs; owned */
    struct Frame *next_worker; /* of all that have a device */
} Frame;

static __thread Frame *my_frame = NULL;
static Frame *workers = NULL;
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

static void forget_worker(const Frame *frame) {
    for (Frame **place = &workers; *place; place = &(*place)->next_worker)
        if (*place == frame) {
            *place = frame->next_worker;
            return;
        }
}

/* Takes the frame off the thread. */
static void pop_frame(void) {
    Frame *frame = my_frame;
    forget_worker(frame);
    close_down_to(frame, 0);
    note_in_graph(frame, annot_my_notes() ? annot_current(annot_my_notes()) : NULL);
    my_frame = frame->below;
    annot_runs--;
    Py_XDECREF(frame->nodes);
    Py_XDECREF(frame->handles);
    Py_XDECREF(frame->device);
    Py_XDECREF(frame->last);
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

static size_t slot_of(const Walk *walk, PyObject *node) {
    size_t mask = walk->seen_size - 1;
    size_t slot = ((uintptr_t)node >> 4) * 0x9E3779B97F4A7C15ull >> 20 & mask;
    while (walk->seen[slot] && walk->visits[walk->seen[slot] - 1].node != node)
        slot = (slot + 1) & mask;
    return slot;
}

static int grow_seen(Walk *walk) {
    size_t size = walk->seen_size ? 2 * walk->seen_size : 512;
    size_t *grown = calloc(size, sizeof *grown);
    if (!grown)
        return -1;
    free(walk->seen);
    walk->seen = grown;
    walk->seen_size = size;
    for (size_t i = 0; i < walk->count; i++)
        grown[slot_of(walk, walk->visits[i].node)] = i + 1;
    return 0;
}

static int make_place(Walk *walk) {
    if (2 * (walk->count + 1) > walk->seen_size && grow_seen(walk) < 0)
        return -1;
    if (walk->count < walk->capacity)
        return 0;
    size_t capacity = walk->capacity ? 2 * walk->capacity : 256;
    Visit *grown = realloc(walk->visits, capacity * sizeof *grown);
    if (!grown)
        return -1;
    walk->visits = grown;
    walk->capacity = capacity;
    return 0;
}

/* Puts a node on the list unless it is there, and says its number; -1 with an exception set or without memory. */
static int visit(Walk *walk, PyObject *node, uint64_t *number) {
    if (make_place(walk) < 0)
        return -1;
    size_t slot = slot_of(walk, node);
    if (walk->seen[slot]) {
        *number = walk->visits[walk->seen[slot] - 1].number;
        return 0;
    }
    uint64_t thread;
    if (annot_read_node(node, number, &thread) < 0)
        return -1;
    walk->visits[walk->count] = (Visit){Py_NewRef(node), NULL, *number, thread, walk->count};
    walk->seen[slot] = ++walk->count;
    return 0;
}

static void free_walk(Walk *walk) {
    for (size_t i = 0; i < walk->count; i++) {
        Py_DECREF(walk->visits[i].node);
        Py_XDECREF((PyObject *)walk->visits[i].owner);
    }
    free(walk->visits);
    free(walk->seen);
}

static void find_owner(Walk *walk, Visit *here, Notes *own) {
    walk->unordered |= walk->thread && walk->thread != here->thread;
    walk->thread = here->thread;
    here->owner = (Invocation *)Py_XNewRef((PyObject *)annot_owner_of(own, here->thread, here->number));
}

/* Numbers do not always fall along an edge: a view whose base was written through another view gets its node when
 * somebody reads it, and this may be the operation whose node has already got its number. */
static int visit_next(Walk *walk, size_t place) {
    uint64_t number = walk->visits[place].number, below;
    PyObject *edges = PyObject_GetAttr(walk->visits[place].node, annot_its.next_functions);
    int failed = !edges;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_Size(edges); i++) {
        PyObject *next = PyTuple_GetItem(PyTuple_GetItem(edges, i), 0);
        if (next == Py_None)
            continue;
        failed = visit(walk, next, &below) < 0;
        walk->unordered |= !failed && below >= number && below != ACCUMULATE_GRAD;
    }
    Py_XDECREF(edges);
    return failed ? -1 : 0;
}

/* Only a node of autograd has the memory that `annot_read_node` reads. */
static int visit_root(Walk *walk, PyObject *root) {
    uint64_t number;
    PyObject *node = PyTuple_Check(root) ? Py_XNewRef(PyTuple_GetItem(root, 0)) : PyObject_GetAttr(root, annot_its.grad_fn);
    PyObject *known = node && node != Py_None ? PyObject_CallFunctionObjArgs(annot_its.is_node, node, NULL) : NULL;
    int failed = PyErr_Occurred() || (known == Py_True && visit(walk, node, &number) < 0);
    Py_XDECREF(known);
    Py_XDECREF(node);
    return failed ? -1 : 0;
}

/* Since 2.13 a node keeps its Python object, and nodes that have one free each other recursively: a long chain of
 * operations overflows the C stack. The containers of Python do not, for they bound their recursion (the trashcan of
 * CPython). So the metadata of a node hold its edges as Python tells them: whatever frees the node then frees the
 * nodes below it through a tuple. */
static int keep_edges(const Walk *walk) {
    int failed = 0;
    for (size_t i = 0; !failed && i < walk->count; i++) {
        PyObject *node = walk->visits[i].node;
        PyObject *edges = PyObject_GetAttr(node, annot_its.next_functions);
        PyObject *metadata = edges ? PyObject_GetAttr(node, annot_its.metadata) : NULL;
        failed = !metadata || PyDict_SetItem(metadata, annot_its.edges, edges) < 0;
        Py_XDECREF(metadata);
        Py_XDECREF(edges);
    }
    return failed ? -1 : 0;
}

static int walk_graph(Walk *walk, PyObject *roots) {
    Notes *own = annot_my_notes();
    for (Py_ssize_t i = 0; i < PyTuple_Size(roots); i++)
        if (visit_root(walk, PyTuple_GetItem(roots, i)) < 0)
            return -1;
    int failed = 0;
    for (size_t place = 0; !failed && place < walk->count; place++) {
        if (walk->visits[place].number == ACCUMULATE_GRAD)
            continue;
        find_owner(walk, &walk->visits[place], own);
        failed = visit_next(walk, place) < 0;
    }
    return walk->count > DEEP && keep_edges(walk) < 0 ? -1 : -failed;
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
    int failed = walk_graph(&walk, roots) < 0;
    if (!failed && walk.count)
        qsort(walk.visits, walk.count, sizeof(Visit), later_first);
    Invocation *previous = NULL;
    for (size_t i = 0; !failed && i < walk.count; i++) {
        Visit *here = &walk.visits[i];
        if (here->number == ACCUMULATE_GRAD)
            continue;
        if (every || walk.unordered || here->owner != previous)
            failed = hook_node(self, frame, here, keep_graph) < 0;
        previous = here->owner;
    }
    free_walk(&walk);
    if (failed && !PyErr_Occurred())
        PyErr_NoMemory();
    return failed ? -1 : 0;
}

/* `remove` is code of Python, in which a signal handler may raise: then the rest is done all the same, and the
 * exception stays set. */
static void remove_hook(PyObject *handle) {
    PyObject *type, *value, *traceback;
    PyObject *done = PyObject_CallMethod(handle, "remove", NULL);
    if (!done) {
        PyErr_Fetch(&type, &value, &traceback);
        done = PyObject_CallMethod(handle, "remove", NULL);
        PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(done);
}

static void forget_nodes(Calls *self, Frame *frame) {
    for (Py_ssize_t i = 0; frame->handles && i < PyList_Size(frame->handles); i++) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        remove_hook(PyList_GetItem(frame->handles, i));
        if (!PyErr_Occurred())
            PyErr_Restore(type, value, traceback);
        else
            Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(traceback);
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
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
    Py_RETURN_NONE;
}

static unsigned long count_frames(void) {
    unsigned long count = 0;
    for (Frame *frame = my_frame; frame; frame = frame->below)
        count++;
    return count;
}

PyObject *annot_open_runs(PyObject *self_object, PyObject *unused) {
    (void)self_object, (void)unused;
    return PyLong_FromUnsignedLong(count_frames());
}

/* The engine runs this when its task is done: on the thread that finished it. */
static PyObject *close_worker(PyObject *token, PyObject *unused) {
    (void)unused;
    if (my_frame && my_frame == PyLong_AsVoidPtr(token))
        pop_frame();
    Py_RETURN_NONE;
}

static PyMethodDef close_worker_def = {"close_worker", close_worker, METH_NOARGS, "Close what this thread has open."};

static PyObject *closer_of(Frame *frame) {
    PyObject *token = PyLong_FromVoidPtr(frame);
    PyObject *closer = token ? PyCFunction_NewEx(&close_worker_def, token, NULL) : NULL;
    Py_XDECREF(token);
    return closer;
}

static int add_closer(PyObject *tasks, Frame *frame) {
    PyObject *closer = closer_of(frame), *task = closer ? PyTuple_Pack(2, frame->device, closer) : NULL;
    int failed = !task || PyList_Append(tasks, task) < 0;
    Py_XDECREF(task);
    Py_XDECREF(closer);
    return failed ? -1 : 0;
}

/* A run that ends on one thread, or in an error, leaves the ranges that it has open on others: on those threads whose
 * last node is of no run any more. They are closed there; not from inside a node, where this may be such a thread. */
static PyObject *close_workers(Calls *self) {
    PyObject *tasks = PyList_New(0), *inside = PyObject_CallNoArgs(annot_its.current_node), *done = NULL;
    int failed = !tasks || !inside;
    for (Frame *frame = workers; !failed && inside == Py_None && frame; frame = frame->next_worker)
        if (!frame->last || !PyDict_GetItemWithError(self->owners, frame->last))
            failed = PyErr_Occurred() || add_closer(tasks, frame) < 0;
    if (!failed)
        done = PyList_Size(tasks) ? PyObject_CallFunctionObjArgs(annot_its.visit, tasks, NULL) : Py_NewRef(Py_None);
    Py_XDECREF(tasks);
    Py_XDECREF(inside);
    return done;
}

/* By number, because an interrupt may keep the caller from learning what `begin` returns. */
PyObject *annot_finish(PyObject *self_object, PyObject *count) {
    unsigned long wanted = PyLong_AsUnsignedLong(count);
    if (PyErr_Occurred())
        return NULL;
    for (unsigned long open = count_frames(); open > wanted; open--) {
        forget_nodes((Calls *)self_object, my_frame);
        pop_frame();
    }
    if (PyErr_Occurred())
        return NULL;
    return workers ? close_workers((Calls *)self_object) : Py_NewRef(Py_None);
}

/* Whether the run makes a graph: the engine then has gradients on. */
static int is_grad_on(void) {
    PyObject *on = PyObject_CallNoArgs(annot_its.grad_mode);
    int is_on = on == Py_True;
    Py_XDECREF(on);
    return is_on;
}

static Frame *worker_frame(Calls *self, PyObject *node) {
    Frame *frame = push_frame(is_grad_on());
    if (!frame)
        return NULL;
    PyObject *device = PyObject_CallFunctionObjArgs(annot_its.device_of, node, NULL);
    if (device && device != Py_None) {
        frame->device = Py_NewRef(device);
        frame->next_worker = workers;
        workers = frame;
    }
    Py_XDECREF(device);
    PyObject *closer = closer_of(frame);
    Py_XDECREF(closer ? PyObject_CallMethod(self->engine, "queue_callback", "O", closer) : NULL);
    Py_XDECREF(closer);
    return frame;
}

/* The hook: moves to the layer of the node that the engine is about to run. Never raises. */
static PyObject *on_node(PyObject *self_object, PyObject *unused) {
    (void)unused;
    Calls *self = (Calls *)self_object;
    PyObject *node = PyObject_CallNoArgs(annot_its.current_node);
    PyObject *owner = node ? PyDict_GetItemWithError(self->owners, node) : NULL;
    Frame *frame = owner ? (my_frame ? my_frame : worker_frame(self, node)) : NULL;
    if (frame && frame->device) {
        PyObject *before = frame->last;
        frame->last = Py_NewRef(node);
        Py_XDECREF(before);
    }
    if (frame)
        move_to(frame, owner == Py_None ? NULL : (Invocation *)owner);
    Py_XDECREF(node);
    PyErr_Clear();
    Py_RETURN_NONE;
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
