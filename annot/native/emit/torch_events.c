/* Events of a call: shapes and dtypes of its arguments form a key, by which each site stores its events. */
#include "torch_events.h"
#include "torch_names.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#define MAX_DEPTH 2

static PyTypeObject *cache_type = NULL;

/* ---------------------------------------------------------------- DLPack (structs of its C exchange API, version 1) */

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

/* Static in PyTorch. NULL if this PyTorch lacks it; shapes are then read in Python. */
static const DLPackExchange *dlpack = NULL;

/* ---------------------------------------------------------------- Cache: the events of a site, by shapes */

static void cache_dealloc(PyObject *self) {
    Cache *cache = (Cache *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(cache->last);
    Py_XDECREF(cache->events);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

/* Returns whether an attribute is true or, with `is_not_none`, is not None; -1 with an exception set. */
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

Cache *annot_cache_of(PyObject *site) {
    PyObject *found = PyObject_GetAttr(site, annot_its.cache);
    if (found != Py_None)
        return (Cache *)found;
    Py_DECREF(found);
    return new_cache(site);
}

typedef struct {
    int64_t values[ANNOT_MAX_KEY];
    uint32_t length;
    int device; /* DLPack device type of the first tensor */
} Key;

/* Returns 1 if added, 0 if Python must create the key. Accepts plain tensors only, so that reading the sizes neither
 * traces nor synchronizes. */
static int add_tensor(Key *key, PyObject *tensor) {
    DLTensor view;
    if (!dlpack || dlpack->borrow(tensor, &view) != 0) {
        PyErr_Clear();
        return 0;
    }
    if (key->length == 0)
        key->device = view.device_type;
    if (view.ndim < 0 || key->length + 1 + (uint32_t)view.ndim > ANNOT_MAX_KEY)
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
        Py_ssize_t position = 0;
        PyObject *name, *item;
        while (PyDict_Next(value, &position, &name, &item))
            if (!add_value(key, item, depth - 1))
                return 0;
    } else {
        return !PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)annot_its.tensor);
    }
    return 1;
}

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_ROCM = 10, TORCH_CPU = 0, TORCH_CUDA = 1 };
#define AUTOCAST ((int64_t)1 << 62)

/* PyTorch's at::autocast::is_autocast_enabled and get_autocast_dtype; NULL if this build lacks the symbols. */
static bool (*is_autocast)(int8_t device) = NULL;
static int8_t (*autocast_dtype)(int8_t device) = NULL;

static void find_autocast(void) {
    void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *on = library ? dlsym(library, "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE") : NULL;
    void *dtype = library ? dlsym(library, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE") : NULL;
    if (on && dtype) {
        memcpy(&is_autocast, &on, sizeof on);
        memcpy(&autocast_dtype, &dtype, sizeof dtype);
    }
}

/* Returns 1 if autocast is off or was added to the key, 0 if Python must create the key. */
static int add_autocast(Key *key) {
    if (key->length == 0)
        return 1;
    int on_cpu = key->device == DLPACK_CPU, on_cuda = key->device == DLPACK_CUDA || key->device == DLPACK_ROCM;
    int8_t device = on_cuda ? TORCH_CUDA : TORCH_CPU;
    if (!is_autocast || !(on_cpu || on_cuda)) {
        PyObject *any = PyObject_CallNoArgs(annot_its.any_autocast);
        int off = any == Py_False;
        Py_XDECREF(any);
        PyErr_Clear();
        return off;
    }
    if (is_autocast(device)) {
        if (key->length == ANNOT_MAX_KEY)
            return 0;
        key->values[key->length++] = AUTOCAST | autocast_dtype(device);
    }
    return 1;
}

/* New reference to the (forward, backward) events of a call with a new key, from Python. */
static PyObject *events_from_python(PyObject *site, PyObject *key, PyObject *args, PyObject *kwargs) {
    PyObject *made = key ? Py_NewRef(key) : PyObject_CallFunctionObjArgs(annot_its.signature, args, kwargs, NULL);
    PyObject *events = made ? PyObject_CallFunctionObjArgs(annot_its.remember, site, made, args, kwargs, NULL) : NULL;
    Py_XDECREF(made);
    return events;
}

PyObject *annot_events_of(PyObject *site, Cache *cache, PyObject *args, PyObject *kwargs) {
    Key key;
    key.length = 0;
    key.device = 0;
    if (!cache->shapes && cache->last)
        return Py_NewRef(cache->last);
    if (cache->shapes && !(add_value(&key, args, MAX_DEPTH + 1) &&
                           (PyDict_Size(kwargs) == 0 || add_value(&key, kwargs, MAX_DEPTH + 1)) && add_autocast(&key)))
        return events_from_python(site, NULL, args, kwargs);
    size_t size = key.length * sizeof(int64_t);
    if (cache->last && cache->length == key.length && memcmp(cache->key, key.values, size) == 0)
        return Py_NewRef(cache->last);
    PyObject *name = PyBytes_FromStringAndSize((char *)key.values, (Py_ssize_t)size);
    PyObject *events = name ? Py_XNewRef(PyDict_GetItemWithError(cache->events, name)) : NULL;
    if (name && !events && !PyErr_Occurred())
        events = events_from_python(site, name, args, kwargs);
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

PyObject *annot_if_recomputed(PyObject *site, PyObject *events, PyObject *args, PyObject *kwargs) {
    PyObject *found = PyObject_CallFunctionObjArgs(annot_its.if_recomputed, site, events, args, kwargs, NULL);
    Py_DECREF(events);
    return found;
}

static void find_dlpack(void) {
    PyObject *capsule = PyObject_GetAttrString(annot_its.tensor, "__dlpack_c_exchange_api__");
    const DLPackExchange *api = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
    dlpack = api && api->major == 1 ? api : NULL; /* the struct is static: it outlives the capsule */
    Py_XDECREF(capsule);
    PyErr_Clear();
}

void annot_prepare_events(void) {
    find_dlpack();
    find_autocast();
}

static PyType_Slot cache_slots[] = {{Py_tp_dealloc, cache_dealloc}, {0, NULL}};
static PyType_Spec cache_spec = {"annot.native._emit.Cache", sizeof(Cache), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, cache_slots};

int annot_add_events(void) {
    cache_type = (PyTypeObject *)PyType_FromSpec(&cache_spec);
    return cache_type ? 0 : -1;
}
