/* Shared by the parts of annot.native._emit: events, push and pop. */
#pragma once

#include <Python.h>
#include <pthread.h>
#include <stdint.h>

typedef struct Event Event;

/* Opens the range of `event` on this thread: in NVTX while a tool is attached, in torch.profiler while it runs. Never
 * fails and preserves the error indicator. Returns the number of open ranges of the thread. */
uint32_t annot_push(Event *event);
/* Closes exactly what the matching annot_push of this thread opened. */
void annot_pop(void);

/* Guards what threads without the GIL change. fork() waits until it is free, so that the child finds complete data. While
 * it is held, call no function of another library, such as NVTX: their locks have handlers of fork() in any order. */
extern pthread_mutex_t annot_lock;

/* Whether torch.profiler is running. */
int annot_profiler_runs(void);

/* The type Event. */
extern PyTypeObject *annot_event_type;

/* Creates a key with a function that frees the values of threads that end; -1 with ImportError set if no key is free. */
int annot_new_key(pthread_key_t *key, void (*at_thread_exit)(void *));
