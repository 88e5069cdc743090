/* Shared by the parts of the scan: pages of an SQLite file, records of one table, and texts.
 *
 * File format: https://sqlite.org/fileformat2.html. The file is not trusted: every offset, count and page number is
 * checked before use, and a table that visits a page twice is rejected. All of this works without the GIL. */
#ifndef ANNOT_SQLITE_SCAN_H
#define ANNOT_SQLITE_SCAN_H

#include "arrow.h"

#include <endian.h>
#include <string.h>

/* ---------------------------------------------------------------- errors */

typedef enum {
    FINE,
    UNSUPPORTED, /* a valid file that must be read through SQLite */
    DAMAGED,
    UNREADABLE, /* see errno */
    NO_MEMORY,
} Verdict;

typedef struct {
    Verdict verdict;
    char message[120];
} Trouble;

/* Stores the first error; always returns -1. */
int scan_fail(Trouble *trouble, Verdict verdict, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---------------------------------------------------------------- pages (sqlite_pages.c) */

/* Bytes that may be read beyond the end of a page or record; their values are unspecified. */
#define SLACK 16

typedef struct {
    uint8_t *bytes;
    uint64_t begin, end; /* file offsets of `bytes` */
    size_t ahead;        /* size of the last read */
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
    Level levels[MAX_DEPTH]; /* interior pages from the root to the leaf */
    int depth;
    const uint8_t *leaf; /* first byte of the page, or NULL before the first leaf */
    uint32_t leaf_number, cell_count, next_cell;
    uint32_t cell_bytes; /* total size of the cells read so far; exceeds the page if cells overlap */
    Trouble *trouble;
} Pages;

/* Cell of a leaf page: its record, of which `local` bytes are on the page and the others on overflow pages. */
typedef struct {
    int64_t rowid;
    const uint8_t *payload;
    uint64_t size;
    uint32_t local;
} Cell;

int pages_open(Pages *pages, const char *path, uint32_t root, Trouble *trouble);
void pages_close(Pages *pages);
/* Reads the next cell in order of the rowid, valid until the next call. Returns 1, 0 at the end, -1 on failure. */
int pages_next(Pages *pages, Cell *cell);
/* Reads overflow page `number`: its content, and the number of the page after it (0: none); -1 on failure. */
int pages_overflow(Pages *pages, uint32_t number, const uint8_t **content, uint32_t *after);

const uint8_t *read_long_varint(const uint8_t *at, const uint8_t *end, uint64_t *value);

/* Reads a varint of 1 to 9 bytes. Returns the byte after it, or NULL if it runs past `end`. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    return read_long_varint(at, end, value);
}

/* ---------------------------------------------------------------- texts (sqlite_texts.c) */

/* Text in Arrow's string view layout ("vu"). */
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

/* Distinct texts so far. Texts too long for a view are stored once, in an arena that columns share. */
typedef struct {
    Arena *arena;
    View *slots; /* length 0: free */
    uint32_t *hashes;
    size_t capacity, used;
    uint64_t seed;
    char *repaired;
    size_t repaired_room;
} Texts;

/* Sets `view` to the text. Replaces invalid UTF-8 by U+FFFD, as Python's "replace" error handler does. -1 when out of
 * memory. */
int texts_view(Texts *texts, const uint8_t *bytes, size_t length, View *view);
/* Returns a column of views and takes ownership of `views`; NULL when out of memory. */
Column *texts_column(Texts *texts, View *views, int64_t length);
/* Starts a new arena if the current one is large. */
void texts_refresh(Texts *texts);
void texts_free(Texts *texts);

/* ---------------------------------------------------------------- records (sqlite_records.c) */

typedef enum { INTEGER, ALIAS /* INTEGER PRIMARY KEY: stored as NULL, value is the rowid */, TEXT } Kind;

#define ROWID (-1)

typedef struct {
    int index; /* of the column in the table, or ROWID */
    Kind kind;
    int output;      /* column of the batch; -1: read for the filter only */
    uint64_t type;   /* serial type in the current record */
    uint64_t offset; /* in the current record */
} Selected;

typedef struct {
    uint8_t header[120]; /* header that `selected` describes; most records of a table have equal headers */
    size_t header_size;
    uint64_t needed; /* bytes of the record up to the end of the last selected column */
    uint8_t *joined; /* a record copied together from overflow pages */
    size_t joined_room;
    Selected *selected; /* sorted by index */
    int selected_count;
} Layout;

/* Locates the selected columns of a cell. Returns the start of its record, or NULL on failure. */
const uint8_t *layout_find(Layout *layout, Pages *pages, const Cell *cell);
int layout_rare_integer(const Selected *selected, int64_t rowid, int64_t *value, Trouble *trouble);

/* Reads an integer column. Returns 1, 0 for NULL, -1 on failure. */
static inline int layout_integer(const Selected *selected, const uint8_t *record, int64_t rowid, int64_t *value,
                                 Trouble *trouble) {
    static const uint8_t sizes[] = {0, 1, 2, 3, 4, 6, 8};
    if (selected->type == 0 || selected->type >= sizeof sizes) /* NULL, which may mean the rowid, and rare types */
        return layout_rare_integer(selected, rowid, value, trouble);
    uint64_t raw; /* big-endian; SLACK makes it safe to load eight bytes */
    memcpy(&raw, record + selected->offset, 8);
    *value = (int64_t)be64toh(raw) >> (64 - 8 * sizes[selected->type]);
    return 1;
}
/* Reads a text column; the length is 0 for NULL. Returns -1 on failure. */
int layout_text(const Selected *selected, const uint8_t *record, const uint8_t **text, size_t *length,
                Trouble *trouble);

/* ---------------------------------------------------------------- the Python type (sqlite_scan.c) */

int annot_add_scan(PyObject *module);

#endif
