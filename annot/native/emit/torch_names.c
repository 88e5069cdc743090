/* Objects of PyTorch and annot/torch. Owns annot_its. */
#include "torch_names.h"

#include <string.h>

Names annot_its;

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

/* Functions of annot/torch by name, set by `bind`. */
static PyObject *functions = NULL;

PyObject *annot_bind(PyObject *self, PyObject *mapping) {
    if (!PyDict_Check(mapping)) {
        PyErr_Format(PyExc_TypeError, "functions must be a dict, got %R", (PyObject *)Py_TYPE(mapping));
        return NULL;
    }
    PyObject *before = functions;
    functions = Py_NewRef(mapping);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

PyObject *annot_bound(const char *name) {
    PyObject *found = functions ? PyDict_GetItemString(functions, name) : NULL;
    if (!found)
        PyErr_Format(PyExc_RuntimeError, "bind() did not receive %s", name);
    return Py_XNewRef(found);
}

int annot_look_up(void) {
    static int done = 0; /* set at the end only: an interrupt during an import may stop this function early */
    if (done)
        return 0;
#define LOOK_UP(name, value)                                                                                           \
    if (!(annot_its.name = value))                                                                                     \
        return -1;
#define OBJECT(name, path) LOOK_UP(name, annot_get("torch", path))
#define BOUND(name) LOOK_UP(name, annot_bound(#name))
#define ATTRIBUTE(name, text) LOOK_UP(name, PyUnicode_InternFromString(text))
    ANNOT_OBJECTS(OBJECT)
    ANNOT_BOUND(BOUND)
    ANNOT_ATTRIBUTES(ATTRIBUTE)
    done = 1;
    return 0;
}
