/* Shared by the parts of annot.native._fast: events, and pushing and popping them. */
#ifndef ANNOT_FAST_H
#define ANNOT_FAST_H

#include <Python.h>
#include <stdint.h>

typedef struct Event Event;

/* Opens the range of `event` on this thread: in NVTX while a tool is attached, in torch.profiler while it runs.
 * Never fails and leaves the error indicator as it was. Returns how many ranges the thread has open. */
uint32_t annot_push(Event *event);
/* Closes what the matching annot_push of this thread opened, and only that. */
void annot_pop(void);

/* Whether a torch.profiler runs. */
int annot_profiler_runs(void);

extern PyTypeObject *annot_event_type;

/* Adds what around.c has to the module; -1 with an exception set on failure. */
int annot_add_around(PyObject *module);
/* Adds the types and functions of torch_calls.c to the module; -1 with an exception set on failure. */
int annot_add_torch_calls(PyObject *module);
/* Of torch_notes.c: from now on each greenlet has its own calls; the argument is greenlet.getcurrent. */
PyObject *annot_watch_greenlets(PyObject *module, PyObject *getcurrent);

#endif
