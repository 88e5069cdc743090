/* Calls to Python functions: inside a range, with exceptions collected, or repeated until not interrupted. The Python
 * fallbacks are in annot/emit/nvtx_package.py and annot/emit/guard.py. */
#include "client.h"
#include "parts.h"

/* ---------------------------------------------------------------- the wrapper of a traced function */

/* In CPython 3.11, C calls count towards the recursion limit: each call of a traced function counts three times, for
 * wrapt's wrapper, this wrapper and the function. Deep calls therefore take the two wrappers out of the count, which
 * costs 20 ns, up to a depth that fits on the C stack. */
#define RECURSION_OF_A_CALL 2
#define MIN_UNCOUNTED 8
#define MAX_UNCOUNTED 2000
static int counts_c_calls = 0;

static PyObject *call_uncounted(PyObject *function, PyObject *args, PyObject *kwargs) {
    for (int i = 0; i < RECURSION_OF_A_CALL; i++)
        Py_LeaveRecursiveCall();
    PyObject *result = PyObject_Call(function, args, kwargs);
    for (int i = 0; i < RECURSION_OF_A_CALL; i++)
        if (Py_EnterRecursiveCall(" in a traced function"))
            Py_CLEAR(result);
    return result;
}

/* Wrapper function for wrapt (wrapped, instance, args, kwargs). Its `self` is the event. */
static PyObject *call_traced(PyObject *event, PyObject *const *args, Py_ssize_t count) {
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "expected 4 arguments, got %zd", count);
    uint32_t open = annot_push((Event *)event);
    int uncounted = open > MIN_UNCOUNTED && open < MAX_UNCOUNTED && counts_c_calls;
    PyObject *result = (uncounted ? call_uncounted : PyObject_Call)(args[0], args[2], args[3]);
    annot_pop();
    return result;
}

static PyMethodDef call_traced_def = {"call_traced", (PyCFunction)(void (*)(void))call_traced, METH_FASTCALL,
                                      "Call wrapped(*args, **kwargs) inside the range of the event."};

static PyObject *wrapper(PyObject *module, PyObject *event) {
    if (Py_TYPE(event) != annot_event_type)
        return PyErr_Format(PyExc_TypeError, "wrapper expects an Event, got %R", event);
    return PyCFunction_NewEx(&call_traced_def, event, NULL);
}

/* inside(event, function, args, kwargs). Signal handlers run only in Python code, so each push has its pop. */
static PyObject *inside(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 4 || Py_TYPE(args[0]) != annot_event_type || !PyTuple_Check(args[2]) || !PyDict_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "inside expects an Event, a function, a tuple and a dict");
        return NULL;
    }
    annot_push((Event *)args[0]);
    PyObject *result = PyObject_Call(args[1], args[2], args[3]);
    annot_pop();
    return result;
}

/* ---------------------------------------------------------------- calls that an interrupt must not cut short */

#define TRIES 3 /* several signals may follow each other */

/* Calls work(*args) until it returns, at most TRIES times. Then raises the first exception again. */
static PyObject *run_to_the_end(PyObject *work, PyObject *args) {
    PyObject *result = NULL, *type = NULL, *value = NULL, *traceback = NULL;
    for (int i = 0; !result && i < TRIES; i++) {
        result = PyObject_CallObject(work, args);
        if (!result && i == 0)
            PyErr_Fetch(&type, &value, &traceback);
        else if (!result)
            PyErr_Clear(); /* the next call must not begin with an exception set */
    }
    if (type) {
        Py_CLEAR(result);
        PyErr_Restore(type, value, traceback);
    }
    return result;
}

static PyObject *to_the_end(PyObject *module, PyObject *args) {
    PyObject *rest = PyTuple_GetSlice(args, 1, PyTuple_Size(args));
    PyObject *work = rest ? PyTuple_GetItem(args, 0) : NULL;
    PyObject *result = work ? run_to_the_end(work, rest) : NULL;
    Py_XDECREF(rest);
    return result;
}

/* caught(errors, work, *args): calls work(*args). On an exception, appends it to the list `errors` and returns 0.
 * TensorFlow's calls into annot must not raise, not even for an interrupt before the first line of `work`. */
static PyObject *caught(PyObject *module, PyObject *args) {
    PyObject *errors = PyTuple_GetItem(args, 0), *work = errors ? PyTuple_GetItem(args, 1) : NULL;
    PyObject *rest = work ? PyTuple_GetSlice(args, 2, PyTuple_Size(args)) : NULL;
    PyObject *result = rest ? PyObject_CallObject(work, rest) : NULL;
    Py_XDECREF(rest);
    if (result || !work)
        return result;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value && traceback)
        PyException_SetTraceback(value, traceback);
    if (value && PyList_Append(errors, value) < 0)
        PyErr_Clear(); /* out of memory: the exception is lost */
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return PyLong_FromLong(0);
}

/* An `__exit__` method for any class: calls self._exit(done, kind, error, traceback), where `done` is a list that is
 * empty at first and the same for each try. */
static PyObject *leave(PyObject *self, PyObject *exception) {
    PyObject *done = PyList_New(0);
    PyObject *all = done ? Py_BuildValue("(O)", done) : NULL;
    PyObject *args = all ? PySequence_Concat(all, exception) : NULL;
    PyObject *method = args ? PyObject_GetAttrString(self, "_exit") : NULL;
    PyObject *result = method ? run_to_the_end(method, args) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(args);
    Py_XDECREF(all);
    Py_XDECREF(done);
    return result;
}

static PyMethodDef leave_def = {"__exit__", leave, METH_VARARGS, "Leave the block even if an interrupt arrives."};

static PyMethodDef functions[] = {
    {"wrapper", wrapper, METH_O, "Return a wrapper function for wrapt that calls inside the range of an event."},
    {"inside", (PyCFunction)(void (*)(void))inside, METH_FASTCALL,
     "inside(event, function, args, kwargs): call function(*args, **kwargs) inside the range of an event."},
    {"caught", caught, METH_VARARGS,
     "caught(errors, work, *args): call work(*args); on an exception, append it to errors and return 0."},
    {"to_the_end", to_the_end, METH_VARARGS,
     "to_the_end(work, *args): call work(*args), and again if it raises; then raise the first exception."},
    {NULL, NULL, 0, NULL},
};

int annot_add_around(PyObject *module) {
    counts_c_calls = Py_Version < 0x030C0000;
    PyObject *method = PyDescr_NewMethod(&PyBaseObject_Type, &leave_def);
    int failed = !method || PyModule_AddObjectRef(module, "exit_method", method) < 0;
    Py_XDECREF(method);
    return failed ? -1 : PyModule_AddFunctions(module, functions);
}
