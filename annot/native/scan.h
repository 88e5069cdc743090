/* Shared by the parts of the scan: pages of an SQLite file, texts, and the records of one table.
 *
 * The layout is that of https://sqlite.org/fileformat2.html. Nobody vouches for the file: every offset, count
 * and page number in it is checked before it is used, and no page serves twice. Nothing here needs the GIL. */
#ifndef ANNOT_SCAN_H
#define ANNOT_SCAN_H

#include "arrow.h"

#include <endian.h>
#include <string.h>

/* ---------------------------------------------------------------- what went wrong */

typedef enum {
    FINE,
    UNSUPPORTED, /* a valid file that SQLite itself had better read */
    DAMAGED,
    UNREADABLE, /* errno says why */
    NO_MEMORY,
} Verdict;

typedef struct {
    Verdict verdict;
    char message[120];
} Trouble;

/* Notes the first thing that goes wrong; always returns -1. */
int scan_fail(Trouble *trouble, Verdict verdict, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---------------------------------------------------------------- pages (scan_pages.c) */

/* How many bytes may be read beyond the end of what a page or a record holds; their value means nothing. */
#define SLACK 16

typedef struct {
    uint8_t *bytes;
    uint64_t begin, end; /* what part of the file it holds */
    size_t ahead;        /* how much was read at once last time */
} Window;

#define MAX_DEPTH 20

typedef struct {
    uint32_t *children;
    uint32_t next, count;
} Level;

typedef struct {
    int file;
    uint64_t size;
    uint32_t page_size, usable, page_count;
    uint32_t visited;
    Window tree, overflow;
    Level levels[MAX_DEPTH]; /* the way down to the leaf */
    int depth;
    const uint8_t *leaf; /* its first byte, or NULL before the first leaf */
    uint32_t leaf_number, cell_count, next_cell;
    uint32_t cell_bytes; /* of the cells that were read; cells that overlap would be more than a page holds */
    Trouble *trouble;
} Pages;

/* A cell of a leaf: where its record begins, and how much of it is there and not on overflow pages. */
typedef struct {
    int64_t rowid;
    const uint8_t *payload;
    uint64_t size;
    uint32_t local;
} Cell;

int pages_open(Pages *pages, const char *path, uint32_t root, Trouble *trouble);
void pages_close(Pages *pages);
/* The next cell in order of the rowid: 1, 0 at the end, -1 on failure. It is valid until the next call. */
int pages_next(Pages *pages, Cell *cell);
/* The page after `number` in a chain of overflow pages, and where its content is; -1 on failure. */
int pages_overflow(Pages *pages, uint32_t number, const uint8_t **content, uint32_t *after);

const uint8_t *read_long_varint(const uint8_t *at, const uint8_t *end, uint64_t *value);

/* Reads a number of 1 to 9 bytes; the byte after it, or NULL when it does not end before `end`. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    return read_long_varint(at, end, value);
}

/* ---------------------------------------------------------------- texts (scan_texts.c) */

/* A text as Arrow's layout "vu" has it. */
typedef struct {
    int32_t length;
    union {
        char all[12];
        struct {
            char prefix[4];
            int32_t chunk, offset;
        } far;
    };
} View;

typedef struct Arena Arena;

/* The distinct texts so far; those longer than a view holds are kept once, in an arena that columns share. */
typedef struct {
    Arena *arena;
    View *slots; /* length 0: free */
    uint32_t *hashes;
    size_t capacity, used;
    uint64_t seed;
    char *repaired;
    size_t repaired_room;
} Texts;

/* Makes `view` stand for the text, with U+FFFD for what is no UTF-8, as Python's "replace" does; -1 when out of
 * memory. */
int texts_view(Texts *texts, const uint8_t *bytes, size_t length, View *view);
/* A column of views, which it takes over; NULL when out of memory. */
Column *texts_column(Texts *texts, View *views, int64_t length);
/* Begins a new arena when there is much in the present one. */
void texts_refresh(Texts *texts);
void texts_free(Texts *texts);

/* ---------------------------------------------------------------- records (scan_records.c) */

typedef enum { INTEGER, ALIAS /* the INTEGER PRIMARY KEY: NULL stands for the rowid */, TEXT } Kind;

#define ROWID (-1)

typedef struct {
    int index; /* in the table, or ROWID */
    Kind kind;
    int output; /* of the batch; -1: only looked at by the filter */
    uint64_t type;   /* serial type in the present record */
    uint64_t offset; /* from the beginning of the present record */
} Wanted;

typedef struct {
    uint8_t header[120]; /* of the record that `wanted` was last set for; most records look alike */
    size_t header_size;
    uint64_t needed; /* how much of the record holds all that is wanted */
    uint8_t *joined; /* a record that goes on on overflow pages */
    size_t joined_room;
    Wanted *wanted;     /* by index */
    int wanted_count;
} Layout;

/* Finds where the wanted columns of a cell are; the beginning of its record, or NULL on failure. */
const uint8_t *layout_find(Layout *layout, Pages *pages, const Cell *cell);
int layout_rare_integer(const Wanted *wanted, int64_t rowid, int64_t *value, Trouble *trouble);

/* 1, 0 for NULL, -1 on failure. */
static inline int layout_integer(const Wanted *wanted, const uint8_t *record, int64_t rowid, int64_t *value,
                                 Trouble *trouble) {
    static const uint8_t sizes[] = {0, 1, 2, 3, 4, 6, 8};
    if (wanted->type == 0 || wanted->type >= sizeof sizes) /* NULL, which stands for a rowid too, and what is rare */
        return layout_rare_integer(wanted, rowid, value, trouble);
    uint64_t raw; /* big-endian, and SLACK allows to load eight bytes */
    memcpy(&raw, record + wanted->offset, 8);
    *value = (int64_t)be64toh(raw) >> (64 - 8 * sizes[wanted->type]);
    return 1;
}
/* The text and its length, which is 0 for NULL; -1 on failure. */
int layout_text(const Wanted *wanted, const uint8_t *record, const uint8_t **text, size_t *length, Trouble *trouble);

/* ---------------------------------------------------------------- the Python type (scan.c) */

int annot_add_scan(PyObject *module);

#endif
