/* Backward runs: hooks on autograd nodes, which open and close the backward ranges. */
#include "torch_graph.h"
#include "torch_names.h"
#include "torch_walk.h"

#include <stdlib.h>

/* ---------------------------------------------------------------- Frame: open ranges of a backward run on a thread */

typedef struct Frame {
    struct Frame *below;
    Invocation **open; /* owned, outermost first: open[i]->depth == i */
    uint32_t count, capacity;
    uint64_t serial; /* unique, never reused */
    int creates_graph;
    PyObject *nodes, *handles; /* lists; owned */
    PyObject *device, *last;   /* on a device thread of the engine: the device, and the last hooked node; owned */
    struct Frame *next_worker; /* list of frames with a device */
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
    static uint64_t made = 0;
    frame->serial = ++made;
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
    for (Frame **link = &workers; *link; link = &(*link)->next_worker)
        if (*link == frame) {
            *link = frame->next_worker;
            return;
        }
}

/* Closes the frame of this thread. */
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

/* Hooks a node through _register_hook_dict, at a tenth of the cost of register_prehook. This hook cannot be removed,
 * but after the run it finds no owner. A node that runs again, as without saved tensors, is not hooked twice. */
static int hook_once(Backward *self, PyObject *node) {
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

/* Adds `by` to the number of runs of a node. A node can belong to several runs: a hook may start a run over nodes
 * of the outer run, and two threads may run one graph. `shared` counts the runs beyond the first. */
static int add_run(Backward *self, PyObject *node, long by) {
    PyObject *known = PyDict_GetItemWithError(self->shared, node);
    long count = (known ? PyLong_AsLong(known) : 0) + by;
    if (PyErr_Occurred())
        return -1;
    if (!count)
        return PyDict_DelItem(self->shared, node);
    PyObject *number = PyLong_FromLong(count);
    int failed = !number || PyDict_SetItem(self->shared, node, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

static int add_node(Backward *self, PyObject *node, PyObject *owner) {
    int known = PyDict_Contains(self->owners, node);
    if (known < 0 || (known && add_run(self, node, 1) < 0))
        return -1;
    return PyDict_SetItem(self->owners, node, owner);
}

static int remove_node(Backward *self, PyObject *node) {
    int is_shared = PyDict_Contains(self->shared, node);
    if (is_shared < 0)
        return -1;
    return is_shared ? add_run(self, node, -1) : PyDict_DelItem(self->owners, node);
}

static int hook_node(Backward *self, Frame *frame, const Visit *here, int keep_graph) {
    PyObject *owner = here->owner ? (PyObject *)here->owner : Py_None;
    if (add_node(self, here->node, owner) < 0 || PyList_Append(frame->nodes, here->node) < 0)
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

/* The walk gives each node a Python object. In a graph of 10,000 nodes these would start a full garbage collection every
 * few steps. They go away with the graph, so no collection runs meanwhile. */
static int hook_graph(Backward *self, Frame *frame, PyObject *roots, int keep_graph, int every) {
    Walk walk = {0};
    int collects = PyGC_Disable();
    int failed = annot_walk(&walk, roots) < 0;
    Invocation *previous = NULL;
    for (size_t i = 0; !failed && i < walk.count; i++) {
        Visit *here = &walk.visits[i];
        if (here->number == ANNOT_ACCUMULATE_GRAD)
            continue;
        if (every || walk.unordered || here->owner != previous)
            failed = hook_node(self, frame, here, keep_graph) < 0;
        previous = here->owner;
    }
    annot_free_walk(&walk);
    if (collects)
        PyGC_Enable();
    if (failed && !PyErr_Occurred())
        PyErr_NoMemory();
    return failed ? -1 : 0;
}

/* `remove` is Python code, where a signal handler may raise. On an exception, calls it once more and keeps the
 * exception set. */
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

static void forget_nodes(Backward *self, Frame *frame) {
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
        if (remove_node(self, PyList_GetItem(frame->nodes, i)) < 0)
            PyErr_Clear();
    PyErr_Restore(type, value, traceback);
}

PyObject *annot_begin(PyObject *self_object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"roots", "keep_graph", "create_graph", "every", NULL};
    Backward *self = (Backward *)self_object;
    PyObject *roots;
    int keep_graph, create_graph, every;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!$ppp", names, &PyTuple_Type, &roots, &keep_graph, &create_graph,
                                     &every))
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

PyObject *annot_open_runs(PyObject *self_object, PyObject *unused) { return PyLong_FromUnsignedLong(count_frames()); }

/* Runs on the thread that finished the engine's task, when the task is done. */
static PyObject *close_worker(PyObject *token, PyObject *unused) {
    if (my_frame && my_frame->serial == PyLong_AsUnsignedLongLong(token))
        pop_frame();
    Py_RETURN_NONE;
}

static PyMethodDef close_worker_def = {"close_worker", close_worker, METH_NOARGS, "Close the ranges of this thread."};

static PyObject *closer_of(uint64_t serial) {
    PyObject *token = PyLong_FromUnsignedLongLong(serial);
    PyObject *closer = token ? PyCFunction_NewEx(&close_worker_def, token, NULL) : NULL;
    Py_XDECREF(token);
    return closer;
}

/* Adds a task that closes the frame, unless its last node belongs to an active run. Python code may free the frame
 * meanwhile, so all uses of it come first. */
static int add_if_stale(Backward *self, PyObject *tasks, const Frame *frame) {
    PyObject *device = Py_NewRef(frame->device), *last = Py_XNewRef(frame->last), *closer = NULL, *task = NULL;
    uint64_t serial = frame->serial;
    int stale = !(last && PyDict_GetItemWithError(self->owners, last));
    if (stale && !PyErr_Occurred())
        closer = closer_of(serial);
    if (closer)
        task = PyTuple_Pack(2, device, closer);
    int failed = stale && (!task || PyList_Append(tasks, task) < 0);
    Py_XDECREF(task);
    Py_XDECREF(closer);
    Py_XDECREF(last);
    Py_DECREF(device);
    return failed ? -1 : 0;
}

/* Returns the newest frame that is older than `serial`; the list is sorted from new to old. */
static const Frame *worker_before(uint64_t serial) {
    const Frame *frame = workers;
    while (frame && frame->serial >= serial)
        frame = frame->next_worker;
    return frame;
}

/* A run that ends here, or fails, leaves ranges open on the engine's device threads whose last node belongs to a
 * finished run. Closes them on those threads. Skipped inside a node, where this thread may be one of them. */
static PyObject *close_workers(Backward *self) {
    PyObject *tasks = PyList_New(0), *inside = PyObject_CallNoArgs(annot_its.current_node), *done = NULL;
    int failed = !tasks || !inside;
    const Frame *frame = inside == Py_None ? workers : NULL;
    for (uint64_t serial; !failed && frame; frame = worker_before(serial)) {
        serial = frame->serial;
        failed = add_if_stale(self, tasks, frame) < 0;
    }
    if (!failed)
        done = PyList_Size(tasks) ? PyObject_CallFunctionObjArgs(annot_its.visit, tasks, NULL) : Py_NewRef(Py_None);
    Py_XDECREF(tasks);
    Py_XDECREF(inside);
    return done;
}

/* Takes a number of runs, because an interrupt may prevent the caller from receiving the result of `begin`. */
PyObject *annot_finish(PyObject *self_object, PyObject *count) {
    unsigned long remaining = PyLong_AsUnsignedLong(count);
    if (PyErr_Occurred())
        return NULL;
    for (unsigned long open = count_frames(); open > remaining; open--) {
        forget_nodes((Backward *)self_object, my_frame);
        pop_frame();
    }
    if (PyErr_Occurred())
        return NULL;
    return workers ? close_workers((Backward *)self_object) : Py_NewRef(Py_None);
}

/* Whether the run creates a graph (create_graph=True): the engine then enables gradients. */
static int is_grad_on(void) {
    PyObject *on = PyObject_CallNoArgs(annot_its.grad_mode);
    int is_on = on == Py_True;
    Py_XDECREF(on);
    return is_on;
}

static Frame *worker_frame(Backward *self, PyObject *node) {
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
    PyObject *closer = closer_of(frame->serial);
    Py_XDECREF(closer ? PyObject_CallMethod(self->engine, "queue_callback", "O", closer) : NULL);
    Py_XDECREF(closer);
    return frame;
}

/* The hook: opens the backward range of the node that the engine runs next. Never raises. */
static PyObject *on_node(PyObject *self_object, PyObject *unused) {
    Backward *self = (Backward *)self_object;
    PyObject *node = PyObject_CallNoArgs(annot_its.current_node);
    PyObject *owner = node ? PyDict_GetItemWithError(self->owners, node) : NULL;
    Frame *frame = owner ? (my_frame ? my_frame : worker_frame(self, node)) : NULL;
    if (frame && frame->device) {
        PyObject *before = frame->last;
        frame->last = Py_NewRef(node);
        Py_XDECREF(before);
    }
    Py_XINCREF(owner);
    if (frame)
        move_to(frame, owner == Py_None ? NULL : (Invocation *)owner);
    Py_XDECREF(owner);
    Py_XDECREF(node);
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef on_node_def = {"on_node", on_node, METH_O, "Open the backward range of the node that runs next."};

static int make_carrier(Backward *self) {
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

int annot_prepare_hooks(Backward *self) {
    self->owners = PyDict_New();
    self->shared = PyDict_New();
    self->hook = PyCFunction_NewEx(&on_node_def, (PyObject *)self, NULL);
    self->engine = annot_get("torch", "autograd.Variable._execution_engine");
    return self->owners && self->shared && self->hook && self->engine ? make_carrier(self) : -1;
}
