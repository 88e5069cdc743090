/* The file of the recorder: its format, and chunks of records. The mutex must be held, except for `now`, `lost` and the
 * inline functions. */
#pragma once

#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PAGE 4096u
#define MAX_TEXT 65535u
#define MAX_DOMAIN 65535u
#define TEXT_ROOM 31u /* bytes of text in a TEXT record */

enum kind {
    NONE,
    CHUNK,
    THREAD,
    LEVEL,
    TEXT,
    PUSH,
    POP,
    STRAY_POP,
    START,
    END,
    MARK,
    EXTRA,
    STRING,
    DOMAIN_NAME,
    DOMAIN_END,
    CATEGORY,
    THREAD_NAME,
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
    uint32_t error;   /* errno of the first failure, or 0 */
    uint32_t retired; /* set by the reader: the file will be deleted, and the process must stop recording */
} header;

typedef struct chunk {
    record *base, *next, *end;
    record *saved; /* NULL: the file is mapped here. Otherwise, records before it are copied to the file */
    off_t offset;
    struct chunk *link;
} chunk;

/* Guards the state of file.c, names.c and thread.c. */
extern pthread_mutex_t mutex;

uint64_t now(void); /* ns on the monotonic clock */
void put_text(record *r, const char *text, uint32_t length);
int have_file(const char *folder); /* returns an errno */
int is_open(void);
void end_file(void);            /* notes the end of the recording in the file */
void leave_file(int inherited); /* the next `have_file` creates a new file */
int is_retired(void);
int map_chunk(chunk *c, size_t bytes); /* returns 0 without space */
int save_chunk(chunk *c,
               record *end); /* copies records before `end` unless the file is mapped; returns whether it failed */
void unmap_chunk(chunk *c);
void detach_chunk(chunk *c); /* replaces the file mapping by memory; another thread may be writing to it */
void lost(uint64_t events);
void note_lost_names(uint32_t names);
void note_failure(int error); /* keeps the errno of the first failure of a recording */
int first_error(void);        /* returns it, or 0 */

static inline void publish(record *r, enum kind kind) { __atomic_store_n(&r->kind, (uint8_t)kind, __ATOMIC_RELEASE); }

static inline uint32_t text_records(uint32_t length) { return (length + TEXT_ROOM - 1) / TEXT_ROOM; }

static inline size_t page_up(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
