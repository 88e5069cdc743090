/* What a thread has called: the notes from which a backward run knows whose node is whose. */
#include "torch_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NOTES (1u << 16)

PyTypeObject *annot_notes_type = NULL;
static PyTypeObject *invocation_type = NULL;

/* ---------------------------------------------------------------- Invocation */

Invocation *annot_new_invocation(Invocation *parent, PyObject *site, PyObject *backward) {
    Invocation *made = PyObject_New(Invocation, invocation_type);
    if (!made)
        return NULL;
    made->parent = (Invocation *)Py_XNewRef((PyObject *)parent);
    made->site = Py_NewRef(site);
    made->backward = (Event *)Py_NewRef(backward);
    made->depth = parent ? parent->depth + 1 : 0;
    return made;
}

static void invocation_dealloc(PyObject *self) {
    Invocation *invocation = (Invocation *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF((PyObject *)invocation->parent);
    Py_XDECREF(invocation->site);
    Py_XDECREF((PyObject *)invocation->backward);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

/* ---------------------------------------------------------------- Notes: one per thread */

static void drop_notes(Notes *self, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; i++)
        Py_XDECREF((PyObject *)self->notes[i].owner);
}

static void notes_dealloc(PyObject *self) {
    Notes *notes = (Notes *)self;
    PyTypeObject *type = Py_TYPE(self);
    drop_notes(notes, 0, notes->count);
    free(notes->notes);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static void add_note(Notes *self, uint64_t number, Invocation *owner) {
    if (self->count && self->notes[self->count - 1].number == number) {
        Note *last = &self->notes[self->count - 1];
        PyObject *old = (PyObject *)last->owner;
        last->owner = (Invocation *)Py_XNewRef((PyObject *)owner);
        Py_XDECREF(old);
        return;
    }
    if (self->count == MAX_NOTES) {
        drop_notes(self, 0, MAX_NOTES / 2);
        memmove(self->notes, self->notes + MAX_NOTES / 2, MAX_NOTES / 2 * sizeof(Note));
        self->count = MAX_NOTES / 2;
    }
    if (self->count == self->capacity) {
        uint32_t capacity = self->capacity ? 2 * self->capacity : 256;
        Note *grown = realloc(self->notes, capacity * sizeof(Note));
        if (!grown)
            return; /* the nodes count as the previous owner's */
        self->notes = grown;
        self->capacity = capacity;
    }
    self->notes[self->count++] = (Note){number, (Invocation *)Py_XNewRef((PyObject *)owner)};
}

Invocation *annot_owner_of(const Notes *self, uint64_t number) {
    uint32_t low = 0, high = self->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (self->notes[middle].number <= number)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? self->notes[low - 1].owner : NULL;
}

static PyObject *peek_in_python = NULL;
/* The same without the way through Python; NULL if this build of PyTorch has no such symbol. */
static uint64_t (*peek_directly)(void) = NULL;

int annot_find_peek(void) {
    if (peek_in_python)
        return 0;
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
    if (peek(&number) == 0)
        add_note(notes, number, owner);
    PyErr_Restore(type, value, traceback);
}

/* A thread that ends cannot free its notes, for want of the GIL: it leaves them here. */
typedef struct Orphan {
    Notes *notes;
    struct Orphan *next;
} Orphan;

static __thread Notes *my_notes = NULL;
static pthread_key_t leave_orphan;
static pthread_mutex_t orphans_lock = PTHREAD_MUTEX_INITIALIZER;
static Orphan *orphans = NULL;
static int thread_count = 0; /* threads that ever had notes */

static void on_thread_exit(void *orphan) {
    pthread_mutex_lock(&orphans_lock);
    ((Orphan *)orphan)->next = orphans;
    orphans = orphan;
    pthread_mutex_unlock(&orphans_lock);
}

static void bury_orphans(void) {
    pthread_mutex_lock(&orphans_lock);
    Orphan *list = orphans;
    orphans = NULL;
    pthread_mutex_unlock(&orphans_lock);
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
    bury_orphans();
    Orphan *orphan = malloc(sizeof *orphan);
    Notes *made = orphan ? PyObject_New(Notes, annot_notes_type) : NULL;
    if (!made) {
        free(orphan);
        PyErr_NoMemory();
        return NULL;
    }
    made->notes = NULL;
    made->count = made->capacity = 0;
    made->current = NULL;
    orphan->notes = made;
    pthread_setspecific(leave_orphan, orphan);
    thread_count++;
    return my_notes = made;
}

Notes *annot_my_notes(void) { return my_notes; }

int annot_thread_count(void) { return thread_count; }

/* ---------------------------------------------------------------- types */

static PyType_Slot invocation_slots[] = {{Py_tp_dealloc, invocation_dealloc}, {0, NULL}};
static PyType_Slot notes_slots[] = {{Py_tp_dealloc, notes_dealloc}, {0, NULL}};

#define INTERNAL (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION)
static PyType_Spec invocation_spec = {"annot.native._fast.Invocation", sizeof(Invocation), 0, INTERNAL,
                                      invocation_slots};
static PyType_Spec notes_spec = {"annot.native._fast.Notes", sizeof(Notes), 0, INTERNAL, notes_slots};

int annot_add_notes(void) {
    if (pthread_key_create(&leave_orphan, on_thread_exit) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    invocation_type = (PyTypeObject *)PyType_FromSpec(&invocation_spec);
    annot_notes_type = (PyTypeObject *)PyType_FromSpec(&notes_spec);
    return invocation_type && annot_notes_type ? 0 : -1;
}
