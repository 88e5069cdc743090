/* Threads, sessions and forks. */
#pragma once

#include "file.h"

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

typedef struct depth {
    uint32_t level, floor; /* open ranges of a domain, and their minimum while events were lost */
} depth;

typedef struct thread {
    record *next, *end;
    uint32_t session, domains;
    depth *depths;
    chunk *chunk;
    uint32_t patience, sections, serial;
    int32_t id;
    int gap, copies; /* `copies`: `finish` copies each event to the file, because the chunk is not mapped */
    struct thread *before, *after;
} thread;

/* State that forked children do not inherit. The kernel clears it (MADV_WIPEONFORK): pthread_atfork handlers do not run
 * in children of clone or _Fork. */
typedef union own {
    struct {
        uint32_t active;   /* number of the running session, or 0 */
        uint32_t original; /* 0 in a forked child until `in_child` has run */
    };
    char page[PAGE];
} own;

extern own own_page; /* changed with the mutex held, read without it */
extern __thread thread *mine;

int start_session(const char *folder, int must_open); /* returns an errno */
void stop_session(void);
int is_recorded(void);
int adopt_process(void); /* in a forked child: sets up the recorder; returns whether that succeeded */
thread *enter(void);
depth *deeper(thread *t, uint32_t domain);
record *more_room(thread *t, uint32_t slots);
void save_event(thread *t);

static inline int is_copy(void) { return UNLIKELY(!own_page.original); }

static inline uint32_t active(void) { return __atomic_load_n(&own_page.active, __ATOMIC_RELAXED); }

/* Publishes an event of a thread, whose other records are complete. */
static inline void finish(thread *t, record *r, enum kind kind) {
    publish(r, kind);
    if (UNLIKELY(t->copies))
        save_event(t);
}

/* Returns NULL when out of memory. */
static inline thread *self(void) {
    thread *t = mine;
    return UNLIKELY(!t) ? enter() : t;
}

/* Returns NULL when out of memory. */
static inline depth *depth_of(thread *t, uint32_t domain) {
    return UNLIKELY(domain >= t->domains) ? deeper(t, domain) : t->depths + domain;
}

/* Returns space for the next records of this thread. Returns NULL if no session is running or the records are lost. */
static inline record *room(thread *t, uint32_t slots) {
    record *r = t->next;
    if (UNLIKELY(t->session != active() || t->end - r < (ptrdiff_t)slots))
        return more_room(t, slots);
    t->next = r + slots;
    return r;
}
