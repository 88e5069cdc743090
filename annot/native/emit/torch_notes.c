/* Notes: the calls of each thread by autograd sequence number. A backward run looks up the call that created a node. */
#include "torch_notes.h"
#include "torch_names.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NOTES (1u << 16)
/* Limit on nested calls. Real calls never reach it; calls in coroutines that switch stacks may appear to. */
#define MAX_OPEN (1u << 16)

/* Number of ended threads whose notes are kept, for graphs that outlive the thread that created them. */
#define MAX_ENDED 256

static PyTypeObject *notes_type = NULL;
static PyTypeObject *invocation_type = NULL;

/* ---------------------------------------------------------------- Invocation */

Invocation *annot_new_invocation(Invocation *parent, PyObject *site, PyObject *backward) {
    Invocation *made = PyObject_New(Invocation, invocation_type);
    if (!made)
        return NULL;
    if (parent && parent->depth >= MAX_OPEN)
        parent = NULL;
    made->parent = (Invocation *)Py_XNewRef((PyObject *)parent);
    made->site = Py_NewRef(site);
    made->backward = (Event *)Py_NewRef(backward);
    made->depth = parent ? parent->depth + 1 : 0;
    made->closed = 0;
    return made;
}

static void free_invocation(Invocation *one) {
    PyTypeObject *type = Py_TYPE((PyObject *)one);
    Py_XDECREF((PyObject *)one->parent);
    Py_XDECREF(one->site);
    Py_XDECREF((PyObject *)one->backward);
    PyObject_Free(one);
    Py_DECREF((PyObject *)type);
}

/* Frees a chain of parents in a loop, because recursion would take C stack per parent. The thread that runs the loop
 * also frees invocations that other threads add while it has released the GIL. */
static void invocation_dealloc(PyObject *self) {
    static Invocation *waiting = NULL; /* linked through `site`, whose reference is released first */
    static int frees = 0;
    Invocation *one = (Invocation *)self;
    if (frees) {
        PyObject *site = one->site;
        one->site = (PyObject *)waiting;
        waiting = one;
        Py_XDECREF(site);
        return;
    }
    frees = 1;
    free_invocation(one);
    while ((one = waiting)) {
        waiting = (Invocation *)one->site;
        one->site = NULL;
        free_invocation(one);
    }
    frees = 0;
}

/* ---------------------------------------------------------------- Notes: one per thread */

/* Notes removed from their thread before their owners are released. A release may run finalizers, which may enter this
 * file again. */
typedef struct {
    Note *notes;
    uint32_t count;
} Detached;

static Detached detach(Notes *self) {
    Detached detached = {self->notes, self->count};
    self->notes = NULL;
    self->count = self->capacity = 0;
    self->dropped = 0;
    return detached;
}

static void release(Detached detached) {
    for (uint32_t i = 0; i < detached.count; i++)
        Py_XDECREF((PyObject *)detached.notes[i].owner);
    free(detached.notes);
}

static void notes_dealloc(PyObject *self) {
    Notes *notes = (Notes *)self;
    PyTypeObject *type = Py_TYPE(self);
    release(detach(notes));
    Py_XDECREF((PyObject *)notes->current);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static void drop_older_half(Notes *self) {
    uint32_t kept = self->count - self->count / 2;
    Note *copy = malloc(MAX_NOTES * sizeof(Note));
    if (!copy)
        return;
    Detached detached = detach(self);
    detached.count -= kept;
    memcpy(copy, detached.notes + detached.count, kept * sizeof(Note));
    self->notes = copy;
    self->count = kept;
    self->capacity = MAX_NOTES;
    self->dropped = 1;
    release(detached);
}

static void add_note(Notes *self, uint64_t number, Invocation *owner) {
    if (self->count && self->notes[self->count - 1].number == number) {
        Note *last = &self->notes[self->count - 1];
        PyObject *old = (PyObject *)last->owner;
        last->owner = (Invocation *)Py_XNewRef((PyObject *)owner);
        Py_XDECREF(old);
        return;
    }
    if (self->count == MAX_NOTES)
        return; /* drop_older_half is out of memory */
    if (self->count == self->capacity) {
        uint32_t capacity = self->capacity ? 2 * self->capacity : 256;
        Note *grown = realloc(self->notes, capacity * sizeof(Note));
        if (!grown)
            return; /* the nodes stay assigned to the previous owner */
        self->notes = grown;
        self->capacity = capacity;
    }
    self->notes[self->count++] = (Note){number, (Invocation *)Py_XNewRef((PyObject *)owner)};
}

static int lost = 0;

PyObject *annot_has_lost(PyObject *calls, PyObject *unused) {
    int had = lost;
    lost = 0;
    return PyBool_FromLong(had);
}

static Invocation *owner_in(const Notes *self, uint64_t number) {
    uint32_t low = 0, high = self->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (self->notes[middle].number <= number)
            low = middle + 1;
        else
            high = middle;
    }
    lost |= !low && self->dropped;
    return low ? self->notes[low - 1].owner : NULL;
}

static Notes *all_notes = NULL; /* newest first; owned */

Invocation *annot_owner_of(const Notes *own, uint64_t thread, uint64_t number) {
    if (!thread) /* unknown: unambiguous only if this is the one thread with notes */
        return own && own == all_notes && !own->next ? owner_in(own, number) : NULL;
    const Notes *made = own && own->thread == thread ? own : all_notes;
    while (made && made->thread != thread)
        made = made->next;
    return made ? owner_in(made, number) : NULL;
}

PyObject *annot_drop_notes(PyObject *calls, PyObject *unused) {
    size_t count = 0;
    for (Notes *one = all_notes; one; one = one->next)
        count++;
    Detached *detached = malloc((count + 1) * sizeof *detached);
    if (!detached)
        return PyErr_NoMemory();
    count = 0;
    for (Notes *one = all_notes; one; one = one->next)
        detached[count++] = detach(one);
    for (size_t i = 0; i < count; i++)
        release(detached[i]);
    free(detached);
    Py_RETURN_NONE;
}

/* Frees the oldest notes of ended threads. Notes with one reference, that of the list, belong to ended threads. */
static void forget_ended(void) {
    uint32_t ended = 0;
    Notes *gone = NULL;
    for (Notes **link = &all_notes; *link;) {
        Notes *one = *link;
        if (Py_REFCNT((PyObject *)one) > 1 || ++ended <= MAX_ENDED) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        one->next = gone;
        gone = one;
    }
    while (gone) {
        Notes *one = gone;
        gone = one->next;
        Py_DECREF((PyObject *)one);
    }
}

PyObject *annot_note_switch(PyObject *calls, PyObject *unused) {
    if (annot_my_notes())
        annot_note_now(annot_my_notes(), annot_current(annot_my_notes()));
    Py_RETURN_NONE;
}

/* Memory offsets in nodes, from annot/torch/autograd_nodes.py; all 0 if it did not find them. */
static struct {
    Py_ssize_t cpp, python, number, thread;
} layout;

static int ask_number(PyObject *node, uint64_t *number) {
    PyObject *value = PyObject_CallMethodObjArgs(node, annot_its.sequence, NULL);
    *number = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

int annot_read_node(PyObject *node, uint64_t *number, uint64_t *thread) {
    const char *made = NULL;
    int in_python = PyObject_TypeCheck(node, (PyTypeObject *)annot_its.function);
    *thread = 0;
    if (layout.thread)
        memcpy(&made, (const char *)node + (in_python ? layout.python : layout.cpp), sizeof made);
    if (!made)
        return ask_number(node, number);
    memcpy(number, made + layout.number, sizeof *number);
    memcpy(thread, made + layout.thread, sizeof *thread);
    return 0;
}

static int find_layout(void) {
    PyObject *find = annot_bound("find_layout");
    PyObject *found = find ? PyObject_CallNoArgs(find) : NULL;
    int known = found && found != Py_None;
    int failed = !found || (known && !PyArg_ParseTuple(found, "nnnn", &layout.cpp, &layout.python, &layout.number,
                                                       &layout.thread));
    Py_XDECREF(found);
    Py_XDECREF(find);
    return failed ? -1 : 0;
}

static uint64_t current_thread(void) {
    PyObject *value = PyObject_CallNoArgs(annot_its.current_thread);
    uint64_t thread = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    if (PyErr_Occurred())
        PyErr_Clear();
    return layout.thread ? thread : 0;
}

static PyObject *peek_in_python = NULL;
/* PyTorch's at::sequence_number::peek, the faster way; NULL if this build lacks the symbol. */
static uint64_t (*peek_directly)(void) = NULL;

int annot_prepare_notes(void) {
    if (peek_in_python)
        return 0;
    if (find_layout() < 0)
        return -1;
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, "_ZN2at15sequence_number4peekEv") : NULL;
    memcpy(&peek_directly, &symbol, sizeof symbol);
    PyObject *autograd = PyImport_ImportModule("torch.autograd");
    peek_in_python = autograd ? PyObject_GetAttrString(autograd, "_get_sequence_nr") : NULL;
    Py_XDECREF(autograd);
    return peek_in_python ? 0 : -1;
}

static int peek(uint64_t *number) {
    if (peek_directly) {
        *number = peek_directly();
        return 0;
    }
    PyObject *value = PyObject_CallNoArgs(peek_in_python);
    if (!value)
        return -1;
    *number = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

void annot_note_now(Notes *notes, Invocation *owner) {
    uint64_t number;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (notes->count == MAX_NOTES)
        drop_older_half(notes);
    if (peek(&number) == 0)
        add_note(notes, number, owner);
    PyErr_Restore(type, value, traceback);
}

/* A thread that ends does not hold the GIL and cannot free its notes. It adds them to this list. */
typedef struct Orphan {
    Notes *notes;
    struct Orphan *next;
} Orphan;

static __thread Notes *my_notes = NULL;
static pthread_key_t leave_orphan;
static Orphan *orphans = NULL;

static void on_thread_exit(void *orphan) {
    pthread_mutex_lock(&annot_lock);
    ((Orphan *)orphan)->next = orphans;
    orphans = orphan;
    pthread_mutex_unlock(&annot_lock);
}

/* Follows greenlet switches of this thread. */
static int follow_switches(void) {
    PyObject *follow = annot_bound("follow_switches");
    PyObject *done = follow ? PyObject_CallNoArgs(follow) : NULL;
    Py_XDECREF(follow);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static void free_orphans(void) {
    pthread_mutex_lock(&annot_lock);
    Orphan *list = orphans;
    orphans = NULL;
    pthread_mutex_unlock(&annot_lock);
    while (list) {
        Orphan *next = list->next;
        Py_DECREF((PyObject *)list->notes);
        free(list);
        list = next;
    }
}

Notes *annot_get_notes(void) {
    if (my_notes)
        return my_notes;
    free_orphans();
    forget_ended();
    if (annot_greenlet && follow_switches() < 0)
        return NULL;
    if (my_notes) /* set by a finalizer that called a module */
        return my_notes;
    Orphan *orphan = malloc(sizeof *orphan);
    Notes *made = orphan ? PyObject_New(Notes, notes_type) : NULL;
    if (!made) {
        free(orphan);
        PyErr_NoMemory();
        return NULL;
    }
    made->notes = NULL;
    made->count = made->capacity = 0;
    made->dropped = 0;
    made->current = NULL;
    made->thread = current_thread();
    made->next = all_notes;
    all_notes = (Notes *)Py_NewRef((PyObject *)made);
    orphan->notes = made;
    (void)pthread_setspecific(leave_orphan, orphan); /* on failure, the notes stay until the process ends */
    return my_notes = made;
}

Notes *annot_my_notes(void) { return my_notes; }

/* ---------------------------------------------------------------- open calls */

/* greenlet.getcurrent; NULL until greenlet is imported. Each greenlet has separate open calls; its __dict__ stores the
 * current one. */
PyObject *annot_greenlet = NULL;
static PyObject *call_key = NULL;

/* New reference; NULL with an exception set. */
static PyObject *dict_of_greenlet(void) {
    PyObject *greenlet = PyObject_CallNoArgs(annot_greenlet);
    PyObject *own = greenlet ? PyObject_GenericGetDict(greenlet, NULL) : NULL;
    Py_XDECREF(greenlet);
    return own;
}

Invocation *annot_current_of_greenlet(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *own = dict_of_greenlet();
    PyObject *found = own ? PyDict_GetItemWithError(own, call_key) : NULL;
    Py_XDECREF(own);
    PyErr_Restore(type, value, traceback);
    return found && Py_TYPE(found) == invocation_type ? (Invocation *)found : NULL;
}

static void set_current(Notes *notes, Invocation *call) {
    if (!annot_greenlet) {
        PyObject *old = (PyObject *)notes->current;
        notes->current = (Invocation *)Py_XNewRef((PyObject *)call);
        Py_XDECREF(old);
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *own = dict_of_greenlet();
    if (own)
        PyDict_SetItem(own, call_key, call ? (PyObject *)call : Py_None);
    Py_XDECREF(own);
    PyErr_Restore(type, value, traceback);
}

PyObject *annot_watch_greenlets(PyObject *module, PyObject *getcurrent) {
    if (!call_key && !(call_key = PyUnicode_InternFromString("annot call")))
        return NULL;
    PyObject *old = annot_greenlet;
    annot_greenlet = Py_NewRef(getcurrent);
    Py_XDECREF(old);
    if (my_notes && my_notes->current) { /* imported inside a call, which belongs to the running greenlet */
        Invocation *open = my_notes->current;
        my_notes->current = NULL;
        set_current(my_notes, open);
        Py_DECREF((PyObject *)open);
    }
    Py_RETURN_NONE;
}

Invocation *annot_enter_in_greenlet(Invocation *made) {
    Invocation *parent = (Invocation *)Py_XNewRef((PyObject *)annot_current_of_greenlet());
    set_current(NULL, made);
    return parent;
}

/* Handles calls that end out of order, as in coroutines unknown to annot that switch stacks. The innermost call that
 * is still open becomes current; closed calls are skipped. */
void annot_leave_out_of_order(Notes *notes, Invocation *made, Invocation *parent) {
    if (annot_current(notes) == made) {
        Invocation *open = parent;
        while (open && open->closed)
            open = open->parent;
        set_current(notes, open);
    }
    Py_XDECREF((PyObject *)parent);
}

static PyType_Slot invocation_slots[] = {{Py_tp_dealloc, invocation_dealloc}, {0, NULL}};
static PyType_Slot notes_slots[] = {{Py_tp_dealloc, notes_dealloc}, {0, NULL}};

#define INTERNAL (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION)
static PyType_Spec invocation_spec = {"annot.native._emit.Invocation", sizeof(Invocation), 0, INTERNAL,
                                      invocation_slots};
static PyType_Spec notes_spec = {"annot.native._emit.Notes", sizeof(Notes), 0, INTERNAL, notes_slots};

int annot_add_notes(void) {
    if (annot_new_key(&leave_orphan, on_thread_exit) < 0)
        return -1;
    invocation_type = (PyTypeObject *)PyType_FromSpec(&invocation_spec);
    notes_type = (PyTypeObject *)PyType_FromSpec(&notes_spec);
    return invocation_type && notes_type ? 0 : -1;
}
