/* The NVTX client: events, push and pop, start and end, marks. The Python fallback is annot/emit/nvtx_package.py;
 * annot/emit/client.py selects between the two. All functions except start_range and end_range run with the GIL held. */
#include "client.h"
#include "parts.h"

#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

#define GLOBALS NVTX_VERSIONED_IDENTIFIER(nvtxGlobals)

/* ---------------------------------------------------------------- the client and its tool */

typedef struct {
    char *name;
    nvtxDomainHandle_t handle;
    uint32_t generation;
} Domain;

struct Event {
    PyObject_HEAD
    nvtxEventAttributes_t attributes;
    PyObject *text; /* str, for torch.profiler */
    char *utf8;
    Domain *domain;
    uint32_t generation; /* of the tool for which `attributes` was prepared */
    int registered;      /* register the text with the tool; otherwise, pass it with every call */
};

/* 0 while no tool is attached, otherwise a number unique to the attached tool. It identifies stale handles. */
static uint32_t generation = 0;
static uint32_t last_generation = 0;
/* State of the NVTX library at load time. Its first call looks for a tool once; restoring this state repeats that. */
static nvtxGlobals_t pristine;
static Domain **domains = NULL;
static size_t domain_count = 0;
PyTypeObject *annot_event_type = NULL;

static Domain *find_domain(const char *name) {
    for (size_t i = 0; i < domain_count; i++)
        if (strcmp(domains[i]->name, name) == 0)
            return domains[i];
    Domain **grown = realloc(domains, (domain_count + 1) * sizeof *domains);
    Domain *domain = calloc(1, sizeof *domain);
    char *copy = strdup(name);
    if (grown)
        domains = grown;
    if (!grown || !domain || !copy) {
        free(domain);
        free(copy);
        PyErr_NoMemory();
        return NULL;
    }
    domain->name = copy;
    domains[domain_count++] = domain;
    return domain;
}

/* TensorFlow's threads prepare events without the GIL. If several threads prepare the same one, the first handle stays. */
pthread_mutex_t annot_lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) { pthread_mutex_lock(&annot_lock); }
static void after_fork(void) { pthread_mutex_unlock(&annot_lock); }
static int is_prepared(const uint32_t *for_generation, uint32_t now) {
    return __atomic_load_n(for_generation, __ATOMIC_ACQUIRE) == now;
}

static nvtxDomainHandle_t domain_handle(Domain *domain, uint32_t now) {
    if (is_prepared(&domain->generation, now))
        return domain->handle;
    nvtxDomainHandle_t handle = domain->name[0] ? nvtxDomainCreateA(domain->name) : NULL;
    pthread_mutex_lock(&annot_lock);
    if (domain->generation != now) {
        domain->handle = handle;
        __atomic_store_n(&domain->generation, now, __ATOMIC_RELEASE);
    }
    handle = domain->handle;
    pthread_mutex_unlock(&annot_lock);
    return handle;
}

static void register_event(Event *event, uint32_t now) {
    nvtxDomainHandle_t domain = domain_handle(event->domain, now);
    nvtxStringHandle_t text = event->registered ? nvtxDomainRegisterStringA(domain, event->utf8) : NULL;
    pthread_mutex_lock(&annot_lock);
    if (event->generation != now) {
        if (event->registered) {
            event->attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
            event->attributes.message.registered = text;
        }
        __atomic_store_n(&event->generation, now, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&annot_lock);
}

/* Prepares an event for the tool of generation `now`. */
static inline void prepare(Event *event, uint32_t now) {
    if (!is_prepared(&event->generation, now))
        register_event(event, now);
}

/* ---------------------------------------------------------------- torch.profiler */

static PyObject *profiler_globals = NULL; /* namespace with _is_profiler_enabled */
static PyObject *profiler_flag = NULL;
static PyObject *profiler_range = NULL; /* torch._C._profiler._RecordFunctionFast */

int annot_profiler_runs(void) {
    return profiler_globals && PyDict_GetItemWithError(profiler_globals, profiler_flag) == Py_True;
}

static PyObject *profiler_enter(Event *event) {
    if (!annot_profiler_runs())
        return NULL;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *range = PyObject_CallFunctionObjArgs(profiler_range, event->text, NULL);
    PyObject *entered = range ? PyObject_CallMethod(range, "__enter__", NULL) : NULL;
    if (!entered)
        Py_CLEAR(range);
    Py_XDECREF(entered);
    PyErr_Restore(type, value, traceback);
    return range;
}

static void profiler_exit(PyObject *range) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    Py_XDECREF(PyObject_CallMethod(range, "__exit__", "OOO", Py_None, Py_None, Py_None));
    PyErr_Clear();
    Py_DECREF(range);
    PyErr_Restore(type, value, traceback);
}

/* ---------------------------------------------------------------- push and pop */

typedef struct {
    Domain *domain;
    PyObject *profiler;  /* the range of torch.profiler, or NULL */
    uint32_t generation; /* of the tool that received the push; 0: no tool */
} Open;

/* One struct: looking up a thread-local variable costs as much as using it. */
typedef struct {
    Open *ranges;
    uint32_t count, capacity;
    uint32_t hidden; /* ranges dropped because memory ran out; their pops must not close other ranges */
} Stack;

static __thread Stack my_stack;
static pthread_key_t free_at_thread_exit;

int annot_new_key(pthread_key_t *key, void (*at_thread_exit)(void *)) {
    int error = pthread_key_create(key, at_thread_exit);
    if (error)
        PyErr_Format(PyExc_ImportError, "annot cannot create a thread-specific key: %s", strerror(error));
    return error ? -1 : 0;
}

static int make_room(Stack *stack) {
    uint32_t capacity = stack->capacity ? 2 * stack->capacity : 64;
    Open *grown = realloc(stack->ranges, capacity * sizeof *grown);
    if (!grown)
        return 0;
    stack->ranges = grown;
    stack->capacity = capacity;
    (void)pthread_setspecific(free_at_thread_exit, grown); /* on failure, the thread leaves its stack allocated */
    return 1;
}

/* In CPython 3.11, creating an object may run the garbage collector. Its finalizers may open and close ranges, so the
 * stack may move, and a finalizer may even have closed this range. */
static void push_profiler(Stack *stack, uint32_t index, Event *event) {
    PyObject *range = profiler_enter(event);
    if (!range)
        return;
    if (index < stack->count && !stack->ranges[index].profiler)
        stack->ranges[index].profiler = range;
    else
        profiler_exit(range);
}

uint32_t annot_push(Event *event) {
    Stack *stack = &my_stack;
    if (stack->hidden || (stack->count == stack->capacity && !make_room(stack))) {
        stack->hidden++;
        return stack->count;
    }
    uint32_t index = stack->count++;
    stack->ranges[index] = (Open){event->domain, NULL, generation};
    if (generation) {
        prepare(event, generation);
        nvtxDomainRangePushEx(event->domain->handle, &event->attributes);
    }
    if (profiler_globals)
        push_profiler(stack, index, event);
    return index + 1;
}

void annot_pop(void) {
    Stack *stack = &my_stack;
    if (stack->hidden) {
        stack->hidden--;
        return;
    }
    if (stack->count == 0)
        return;
    Open open = stack->ranges[--stack->count]; /* a copy: finalizers run by profiler_exit may open ranges */
    if (open.profiler)
        profiler_exit(open.profiler);
    if (open.generation && open.generation == generation)
        nvtxDomainRangePop(open.domain->handle);
}

static PyObject *push(PyObject *module, PyObject *event) {
    if (Py_TYPE(event) != annot_event_type)
        return PyErr_Format(PyExc_TypeError, "push expects an Event, got %R", event);
    annot_push((Event *)event);
    Py_RETURN_NONE;
}

static PyObject *pop(PyObject *module, PyObject *unused) {
    annot_pop();
    Py_RETURN_NONE;
}

static PyObject *depth(PyObject *module, PyObject *unused) {
    return PyLong_FromUnsignedLong((unsigned long)my_stack.count + my_stack.hidden);
}

static PyObject *pop_to(PyObject *module, PyObject *target) {
    unsigned long count = PyLong_AsUnsignedLong(target);
    if (PyErr_Occurred())
        return NULL;
    while ((unsigned long)my_stack.count + my_stack.hidden > count)
        annot_pop();
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- start, end, mark */

/* Returns the argument of `end`: (event, generation, range id, range of torch.profiler or None). */
static PyObject *start(PyObject *module, PyObject *arg) {
    if (Py_TYPE(arg) != annot_event_type)
        return PyErr_Format(PyExc_TypeError, "start expects an Event, got %R", arg);
    Event *event = (Event *)arg;
    nvtxRangeId_t id = 0;
    if (generation) {
        prepare(event, generation);
        id = nvtxDomainRangeStartEx(event->domain->handle, &event->attributes);
    }
    PyObject *profiler = profiler_enter(event);
    if (!profiler)
        profiler = Py_NewRef(Py_None);
    return Py_BuildValue("OIKN", arg, (unsigned int)generation, (unsigned long long)id, profiler);
}

static PyObject *end(PyObject *module, PyObject *arg) {
    Event *event;
    unsigned int started;
    unsigned long long id;
    PyObject *profiler;
    if (!PyArg_ParseTuple(arg, "O!IKO", annot_event_type, &event, &started, &id, &profiler))
        return NULL;
    if (profiler != Py_None)
        profiler_exit(Py_NewRef(profiler));
    if (started && started == generation)
        nvtxDomainRangeEnd(event->domain->handle, id);
    Py_RETURN_NONE;
}

/* start and end for threads without the GIL. Returns the generation of the tool, or 0 if no tool is attached. */
static uint32_t start_range(Event *event, uint64_t *id) {
    uint32_t now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
    if (!now)
        return 0;
    prepare(event, now);
    *id = nvtxDomainRangeStartEx(event->domain->handle, &event->attributes);
    return now;
}

static void end_range(Event *event, uint32_t started, uint64_t id) {
    if (started == __atomic_load_n(&generation, __ATOMIC_ACQUIRE))
        nvtxDomainRangeEnd(event->domain->handle, id);
}

static PyObject *range_functions(PyObject *module, PyObject *unused) {
    return Py_BuildValue("KK", (unsigned long long)(uintptr_t)start_range, (unsigned long long)(uintptr_t)end_range);
}

static PyObject *mark(PyObject *module, PyObject *arg) {
    if (Py_TYPE(arg) != annot_event_type)
        return PyErr_Format(PyExc_TypeError, "mark expects an Event, got %R", arg);
    Event *event = (Event *)arg;
    if (generation) {
        prepare(event, generation);
        nvtxDomainMarkEx(event->domain->handle, &event->attributes);
    }
    PyObject *profiler = profiler_enter(event);
    if (profiler)
        profiler_exit(profiler);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- Event */

static int set_payload(nvtxEventAttributes_t *attributes, PyObject *payload) {
    if (payload == Py_None)
        return 0;
    if (PyFloat_Check(payload)) {
        attributes->payloadType = NVTX_PAYLOAD_TYPE_DOUBLE;
        attributes->payload.dValue = PyFloat_AsDouble(payload);
    } else {
        attributes->payloadType = NVTX_PAYLOAD_TYPE_INT64;
        attributes->payload.llValue = PyLong_AsLongLong(payload);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *event_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"text", "domain", "category", "color", "payload", "registered", NULL};
    PyObject *text, *payload = Py_None;
    const char *domain = "";
    unsigned int category = 0, color = 0;
    int registered = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|sIIOp", names, &text, &domain, &category, &color, &payload,
                                     &registered))
        return NULL;
    Event *event = (Event *)PyType_GenericAlloc(type, 0);
    PyObject *bytes = event ? PyUnicode_AsEncodedString(text, "utf-8", "replace") : NULL;
    char *utf8 = bytes ? PyBytes_AsString(bytes) : NULL;
    if (utf8) {
        event->text = Py_NewRef(text);
        event->utf8 = strdup(utf8); /* NVTX texts are NUL-terminated */
        event->domain = find_domain(domain);
    }
    Py_XDECREF(bytes);
    if (!utf8 || !event->utf8 || !event->domain || set_payload(&event->attributes, payload) < 0) {
        Py_XDECREF((PyObject *)event);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    event->registered = registered;
    event->attributes.version = NVTX_VERSION;
    event->attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event->attributes.category = category;
    event->attributes.colorType = color ? NVTX_COLOR_ARGB : NVTX_COLOR_UNKNOWN;
    event->attributes.color = color;
    event->attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event->attributes.message.ascii = event->utf8;
    return (PyObject *)event;
}

static void event_dealloc(PyObject *self) {
    Event *event = (Event *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(event->text);
    free(event->utf8);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *event_text(PyObject *self, void *closure) { return Py_NewRef(((Event *)self)->text); }

static PyObject *event_domain(PyObject *self, void *closure) {
    return PyUnicode_FromString(((Event *)self)->domain->name);
}

static PyObject *event_number(PyObject *self, void *offset) {
    return PyLong_FromUnsignedLong(*(uint32_t *)((char *)self + (uintptr_t)offset));
}

static PyGetSetDef event_getset[] = {
    {"text", event_text, NULL, "Text of the range.", NULL},
    {"domain", event_domain, NULL, "Name of the domain; empty for the default domain.", NULL},
    {"category", event_number, NULL, "Number of the category in the domain.",
     (void *)offsetof(Event, attributes.category)},
    {"color", event_number, NULL, "Color as 0xAARRGGBB; 0 for the color of the tool.",
     (void *)offsetof(Event, attributes.color)},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot event_slots[] = {
    {Py_tp_new, event_new},
    {Py_tp_dealloc, event_dealloc},
    {Py_tp_getset, event_getset},
    {Py_tp_doc, "Event(text, domain='', category=0, color=0, payload=None, registered=True): NVTX attributes.\n\n"
                "Prepared once per tool. registered: register the text with the tool."},
    {0, NULL},
};
static PyType_Spec event_spec = {"annot.native._emit.Event", sizeof(Event), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, event_slots};

/* ---------------------------------------------------------------- attaching */

static PyObject *attach(PyObject *module, PyObject *unused) {
    __atomic_store_n(&generation, 0, __ATOMIC_SEQ_CST); /* stops calls from threads without the GIL */
    GLOBALS = pristine;                                 /* look again, even if an earlier call did not find a tool */
    nvtxInitialize(NULL);
    int found = GLOBALS.nvtxDomainRangePushEx_impl_fnptr != NULL;
    __atomic_store_n(&generation, found ? ++last_generation : 0, __ATOMIC_RELEASE);
    return PyBool_FromLong(found);
}

static PyObject *detach(PyObject *module, PyObject *unused) {
    __atomic_store_n(&generation, 0, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

static PyObject *name_category(PyObject *module, PyObject *args) {
    const char *domain_name, *name;
    unsigned int id;
    if (!PyArg_ParseTuple(args, "sIs", &domain_name, &id, &name))
        return NULL;
    Domain *domain = find_domain(domain_name);
    if (!domain)
        return NULL;
    if (generation)
        nvtxDomainNameCategoryA(domain_handle(domain, generation), id, name);
    Py_RETURN_NONE;
}

static PyObject *watch_profiler(PyObject *module, PyObject *args) {
    PyObject *profiler, *range;
    if (!PyArg_ParseTuple(args, "O!O", &PyModule_Type, &profiler, &range))
        return NULL;
    Py_XDECREF(profiler_range);
    profiler_range = Py_NewRef(range);
    Py_XDECREF(profiler_globals);
    profiler_globals = Py_NewRef(PyModule_GetDict(profiler));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"attach", attach, METH_NOARGS,
     "Look for an NVTX tool, even after an earlier attempt. Return whether one is attached."},
    {"detach", detach, METH_NOARGS, "Stop sending ranges to NVTX until the next attach."},
    {"name_category", name_category, METH_VARARGS, "name_category(domain, number, name): name a category of a domain."},
    {"watch_profiler", watch_profiler, METH_VARARGS,
     "watch_profiler(profiler, range): send ranges to torch.profiler while it runs. profiler is the module\n"
     "torch.autograd.profiler, range the type torch._C._profiler._RecordFunctionFast."},
    {"push", push, METH_O, "Open the range of an event on this thread."},
    {"pop", pop, METH_NOARGS, "Close the innermost open range of this thread."},
    {"depth", depth, METH_NOARGS, "Return the number of open ranges of this thread."},
    {"pop_to", pop_to, METH_O, "Close ranges of this thread until the given number remains open."},
    {"start", start, METH_O,
     "Open a range that may end on another thread or out of order. Return the argument of `end`."},
    {"end", end, METH_O, "Close a range opened by `start`."},
    {"range_functions", range_functions, METH_NOARGS,
     "Return the addresses of C functions that open and close ranges without the GIL:\n"
     "uint32_t start(Event *, uint64_t *id) and void end(Event *, uint32_t started, uint64_t id)."},
    {"mark", mark, METH_O, "Emit a mark (an instantaneous event)."},
    {NULL, NULL, 0, NULL},
};

int annot_add_client(PyObject *module) {
    pristine = GLOBALS;
    if (annot_new_key(&free_at_thread_exit, free) < 0)
        return -1;
    if (pthread_atfork(before_fork, after_fork, after_fork) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    profiler_flag = PyUnicode_InternFromString("_is_profiler_enabled");
    annot_event_type = (PyTypeObject *)PyType_FromSpec(&event_spec);
    if (!profiler_flag || !annot_event_type || PyModule_AddObjectRef(module, "Event", (PyObject *)annot_event_type) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
