/* Pages of an SQLite file, and the errors of a scan.
 *
 * File format: https://sqlite.org/fileformat2.html. The file is not trusted: every offset, count and page number is
 * checked before use, and a table that visits a page twice is rejected. All of this works without the GIL. */
#pragma once

#include <stddef.h>
#include <stdint.h>

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

/* Big-endian integers. Compilers make one load of each; macOS lacks the functions of endian.h. */
static inline uint32_t big16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

static inline uint32_t big32(const uint8_t *at) { return big16(at) << 16 | big16(at + 2); }

static inline uint64_t big64(const uint8_t *at) { return (uint64_t)big32(at) << 32 | big32(at + 4); }

const uint8_t *read_long_varint(const uint8_t *at, const uint8_t *end, uint64_t *value);

/* Reads a varint of 1 to 9 bytes. Returns the byte after it, or NULL if it runs past `end`. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    return read_long_varint(at, end, value);
}
