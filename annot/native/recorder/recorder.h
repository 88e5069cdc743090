/* Shared by the parts of the recorder: the file format, chunks and threads. */
#ifndef ANNOT_RECORDER_H
#define ANNOT_RECORDER_H

#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE 4096u
#define MAX_TEXT 65535u
#define MAX_DOMAIN 65535u
#define TEXT_ROOM 31u /* bytes of text in a TEXT record */
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

enum kind {
    NONE, CHUNK, THREAD, LEVEL, TEXT, PUSH, POP, STRAY_POP, START, END, MARK, EXTRA,
    STRING, DOMAIN_NAME, DOMAIN_END, CATEGORY, THREAD_NAME,
};
enum flag { HAS_COLOR = 0x08, HAS_TEXT = 0x10, HAS_EXTRA = 0x20, GAP = 0x40 }; /* the low three bits: payload type */

typedef struct record {
    uint8_t kind, flags;
    uint16_t domain;
    uint32_t text; /* HAS_TEXT: bytes of text in the following TEXT records; else the id of a STRING, or 0 */
    uint64_t time;
    uint32_t category, color;
    uint64_t payload;
} record;

/* The first page of the file. */
typedef struct header {
    char magic[8];
    uint32_t version, pid;
    uint64_t started, started_utc, stopped; /* ns; `started` and `stopped` on the monotonic clock */
    uint64_t lost_events, lost_names;
    char program[PATH_MAX / 2 - 4];
    uint32_t error; /* errno of the first failure, or 0 */
    uint32_t retired; /* set by the reader: the file will be deleted, and the process must stop recording */
} header;

typedef struct chunk {
    record *base, *next, *end;
    record *saved; /* NULL: the file is mapped here. Otherwise, records before it are copied to the file */
    off_t offset;
    struct chunk *link;
} chunk;

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
        uint32_t active; /* number of the running session, or 0 */
        uint32_t original; /* 0 in a forked child until `in_child` has run */
    };
    char page[PAGE];
} own;

extern pthread_mutex_t mutex; /* guards everything declared here; `own` is also read without it */
extern own own_page;
extern __thread thread *mine;

/* file.c; with the mutex held, except `lost` and `now` */
uint64_t now(void); /* ns on the monotonic clock */
void put_text(record *r, const char *text, uint32_t length);
int have_file(const char *folder); /* returns an errno */
void leave_file(int inherited); /* the next `have_file` creates a new file */
int is_retired(void);
int map_chunk(chunk *c, size_t bytes); /* returns 0 without space */
int save_chunk(chunk *c, record *end); /* copies records before `end` unless the file is mapped; returns whether it failed */
void unmap_chunk(chunk *c);
void detach_chunk(chunk *c); /* replaces the file mapping by memory; another thread may be writing to it */
void lost(uint64_t events);
void note_failure(int error); /* keeps the errno of the first failure of a recording */
int first_error(void); /* returns it, or 0 */
void save_names(void);

/* names.c; with the mutex held */
uint32_t write_names(void); /* returns the number of names not written for lack of space */
void leave_names(void); /* the next `write_names` writes all names to a new file */
uint32_t find_domain(const char *name, uint32_t length); /* returns 0 if the name is unknown */
/* Returns the id of a string, 1 for other kinds, or 0 when out of memory. */
uint32_t define(enum kind kind, uint32_t domain, uint32_t number, int32_t thread, const char *text, uint32_t length);
void adopt_names(int32_t thread); /* in a forked child: keeps the parent's names */

/* thread.c */
int start_session(const char *folder, int must_open); /* returns an errno */
void stop_session(void);
int is_recorded(void);
int adopt_process(void); /* in a forked child: sets up the recorder; returns whether that succeeded */
thread *enter(void);
depth *deeper(thread *t, uint32_t domain);
record *more_room(thread *t, uint32_t slots);
void save_event(thread *t);

static inline int is_copy(void)
{
    return UNLIKELY(!own_page.original);
}

static inline uint32_t active(void)
{
    return __atomic_load_n(&own_page.active, __ATOMIC_RELAXED);
}

static inline void publish(record *r, enum kind kind)
{
    __atomic_store_n(&r->kind, (uint8_t)kind, __ATOMIC_RELEASE);
}

/* Publishes an event of a thread, whose other records are complete. */
static inline void finish(thread *t, record *r, enum kind kind)
{
    publish(r, kind);
    if (UNLIKELY(t->copies))
        save_event(t);
}

static inline uint32_t text_records(uint32_t length)
{
    return (length + TEXT_ROOM - 1) / TEXT_ROOM;
}

static inline size_t page_up(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* Returns NULL when out of memory. */
static inline thread *self(void)
{
    thread *t = mine;
    return UNLIKELY(!t) ? enter() : t;
}

/* Returns NULL when out of memory. */
static inline depth *depth_of(thread *t, uint32_t domain)
{
    return UNLIKELY(domain >= t->domains) ? deeper(t, domain) : t->depths + domain;
}

/* Returns space for the next records of this thread. Returns NULL if no session is running or the records are lost. */
static inline record *room(thread *t, uint32_t slots)
{
    record *r = t->next;
    if (UNLIKELY(t->session != active() || t->end - r < (ptrdiff_t)slots))
        return more_room(t, slots);
    t->next = r + slots;
    return r;
}

#endif
