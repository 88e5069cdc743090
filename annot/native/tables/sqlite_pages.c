/* Pages of an SQLite file: the file header, a read window that slides over the file, and iteration over the leaf pages
 * of a table. */
#include "sqlite_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIN_AHEAD ((size_t)16 << 10)
#define MAX_AHEAD ((size_t)512 << 10)

#define TABLE_INTERIOR 5
#define TABLE_LEAF 13
#define INDEX_INTERIOR 2
#define INDEX_LEAF 10

int scan_fail(Trouble *trouble, Verdict verdict, const char *format, ...) {
    if (trouble->verdict == FINE) {
        trouble->verdict = verdict;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(trouble->message, sizeof trouble->message, format, arguments);
        va_end(arguments);
    }
    return -1;
}

const uint8_t *read_long_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    uint64_t result = 0;
    for (int i = 0; i < 9 && at < end; i++, at++) {
        if (i == 8) {
            *value = result << 8 | *at;
            return at + 1;
        }
        result = result << 7 | (*at & 0x7F);
        if (*at < 0x80) {
            *value = result;
            return at + 1;
        }
    }
    return NULL;
}

/* ---------------------------------------------------------------- the file */

static int read_fully(Pages *pages, uint8_t *into, size_t size, uint64_t at) {
    while (size) {
        ssize_t got = pread(pages->file, into, size, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return scan_fail(pages->trouble, UNREADABLE, "read");
        if (got == 0)
            return scan_fail(pages->trouble, DAMAGED, "the file was truncated while it was read");
        into += got;
        at += (uint64_t)got;
        size -= (size_t)got;
    }
    return 0;
}

static int check_header(Pages *pages, const uint8_t *header) {
    if (memcmp(header, "SQLite format 3", 16) != 0)
        return scan_fail(pages->trouble, DAMAGED, "the file does not start with an SQLite header");
    uint32_t page_size = big16(header + 16) == 1 ? 65536 : big16(header + 16);
    if (page_size < 512 || (page_size & (page_size - 1)))
        return scan_fail(pages->trouble, DAMAGED, "the page size of %u bytes is invalid", page_size);
    if (page_size - header[20] < 480)
        return scan_fail(pages->trouble, DAMAGED, "too many bytes of each page are reserved (%u)", header[20]);
    if (header[18] > 1 || header[19] > 1)
        return scan_fail(pages->trouble, UNSUPPORTED, "the file uses a write-ahead log");
    if (big32(header + 56) != 1)
        return scan_fail(pages->trouble, UNSUPPORTED, "the text encoding is not UTF-8");
    pages->page_size = page_size;
    pages->usable = page_size - header[20];
    pages->page_count = (uint32_t)(pages->size / page_size > UINT32_MAX ? UINT32_MAX : pages->size / page_size);
    return 0;
}

/* Returns the first byte of a page, followed by SLACK. Invalidates earlier results for the same window. */
static const uint8_t *window_page(Pages *pages, Window *window, uint32_t number) {
    if (number == 0 || number > pages->page_count) {
        scan_fail(pages->trouble, DAMAGED, "page %u is not in the file", number);
        return NULL;
    }
    if (++pages->visited > pages->page_count) {
        scan_fail(pages->trouble, DAMAGED, "page %u is used twice in the table", number);
        return NULL;
    }
    uint64_t begin = (uint64_t)(number - 1) * pages->page_size, end = begin + pages->page_size;
    if (begin < window->begin || end > window->end) {
        /* Read far ahead while the pages are consecutive, and little while they are scattered. */
        int follows = window->end && begin >= window->begin && begin - window->begin < 2 * window->ahead;
        window->ahead = !follows ? MIN_AHEAD : window->ahead < MAX_AHEAD ? 2 * window->ahead : MAX_AHEAD;
        size_t size = window->ahead > pages->page_size ? window->ahead : pages->page_size;
        if (size > pages->size - begin)
            size = (size_t)(pages->size - begin);
        window->begin = window->end = 0;
        if (read_fully(pages, window->bytes, size, begin) < 0)
            return NULL;
        window->begin = begin;
        window->end = begin + size;
    }
    return window->bytes + (begin - window->begin);
}

int pages_overflow(Pages *pages, uint32_t number, const uint8_t **content, uint32_t *after) {
    const uint8_t *page = window_page(pages, &pages->overflow, number);
    if (!page)
        return -1;
    *after = big32(page);
    *content = page + 4;
    return 0;
}

/* ---------------------------------------------------------------- the tree */

static int enter_leaf(Pages *pages, uint32_t number, const uint8_t *page, uint32_t begin) {
    pages->leaf = page;
    pages->leaf_number = number;
    pages->cell_count = big16(page + begin + 3);
    pages->next_cell = 0;
    pages->cell_bytes = begin + 8 + 2 * pages->cell_count;
    if (pages->cell_bytes > pages->usable)
        return scan_fail(pages->trouble, DAMAGED, "page %u cannot hold %u rows", number, pages->cell_count);
    return 0;
}

static int enter_interior(Pages *pages, uint32_t number, const uint8_t *page, uint32_t begin) {
    uint32_t count = big16(page + begin + 3);
    if (begin + 12 + 2 * count > pages->usable)
        return scan_fail(pages->trouble, DAMAGED, "page %u cannot hold %u children", number, count);
    if (pages->depth == MAX_DEPTH)
        return scan_fail(pages->trouble, DAMAGED, "page %u is nested too deeply", number);
    Level *level = &pages->levels[pages->depth];
    uint32_t *children = realloc(level->children, (count + 1) * sizeof *children);
    if (!children)
        return scan_fail(pages->trouble, NO_MEMORY, "memory");
    *level = (Level){.children = children, .count = count + 1};
    pages->depth++;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = big16(page + begin + 12 + 2 * i);
        if (at > pages->usable - 4)
            return scan_fail(pages->trouble, DAMAGED, "page %u has a child pointer outside the page", number);
        children[i] = big32(page + at);
    }
    children[count] = big32(page + begin + 8);
    return 0;
}

static int enter(Pages *pages, uint32_t number) {
    const uint8_t *page = window_page(pages, &pages->tree, number);
    if (!page)
        return -1;
    uint32_t begin = number == 1 ? 100 : 0;
    uint8_t type = page[begin];
    if (type == TABLE_LEAF)
        return enter_leaf(pages, number, page, begin);
    if (type == TABLE_INTERIOR)
        return enter_interior(pages, number, page, begin);
    if ((type == INDEX_INTERIOR || type == INDEX_LEAF) && pages->depth == 0)
        return scan_fail(pages->trouble, UNSUPPORTED, "the table is a WITHOUT ROWID table");
    return scan_fail(pages->trouble, DAMAGED, "page %u is not a table page", number);
}

/* Moves to the next leaf page. Returns 1, 0 at the end, -1 on failure. */
static int next_leaf(Pages *pages) {
    pages->leaf = NULL;
    while (pages->depth) {
        Level *level = &pages->levels[pages->depth - 1];
        if (level->next == level->count) {
            pages->depth--;
            continue;
        }
        if (enter(pages, level->children[level->next++]) < 0)
            return -1;
        if (pages->leaf)
            return 1;
    }
    return 0;
}

int pages_open(Pages *pages, const char *path, uint32_t root, Trouble *trouble) {
    uint8_t header[100];
    struct stat status;
    pages->trouble = trouble;
    pages->file = open(path, O_RDONLY | O_CLOEXEC);
    if (pages->file < 0 || fstat(pages->file, &status) < 0)
        return scan_fail(trouble, UNREADABLE, "open");
    pages->size = (uint64_t)status.st_size;
    if (pages->size < sizeof header)
        return scan_fail(trouble, DAMAGED, "the file has only %u bytes", (unsigned)pages->size);
    if (read_fully(pages, header, sizeof header, 0) < 0 || check_header(pages, header) < 0)
        return -1;
    pages->tree.bytes = calloc(1, MAX_AHEAD + SLACK);
    pages->overflow.bytes = calloc(1, MAX_AHEAD + SLACK);
    if (!pages->tree.bytes || !pages->overflow.bytes)
        return scan_fail(trouble, NO_MEMORY, "memory");
    return enter(pages, root);
}

void pages_close(Pages *pages) {
    if (pages->file >= 0)
        close(pages->file);
    pages->file = -1;
    free(pages->tree.bytes);
    free(pages->overflow.bytes);
    pages->tree.bytes = pages->overflow.bytes = NULL;
    for (int i = 0; i < MAX_DEPTH; i++) {
        free(pages->levels[i].children);
        pages->levels[i].children = NULL;
    }
}

/* ---------------------------------------------------------------- cells */

/* Bytes of a record on the leaf page itself, by the rule of the file format for table leaf cells. */
static uint32_t local_size(uint64_t size, uint32_t usable) {
    if (size <= usable - 35)
        return (uint32_t)size;
    uint32_t least = (usable - 12) * 32 / 255 - 23;
    uint32_t local = least + (uint32_t)((size - least) % (usable - 4));
    return local <= usable - 35 ? local : least;
}

static int read_cell(Pages *pages, Cell *cell) {
    uint32_t begin = pages->leaf_number == 1 ? 100 : 0;
    uint32_t at = big16(pages->leaf + begin + 8 + 2 * pages->next_cell);
    const uint8_t *end = pages->leaf + pages->usable, *start = pages->leaf + at;
    uint64_t rowid;
    const uint8_t *next = at < pages->usable ? read_varint(start, end, &cell->size) : NULL;
    next = next ? read_varint(next, end, &rowid) : NULL;
    if (!next)
        return scan_fail(pages->trouble, DAMAGED, "page %u has a row outside the page", pages->leaf_number);
    cell->rowid = (int64_t)rowid;
    cell->payload = next;
    cell->local = local_size(cell->size, pages->usable);
    uint32_t after = cell->local < cell->size ? 4 : 0; /* page number of the first overflow page */
    if (cell->local + after > (size_t)(end - next))
        return scan_fail(pages->trouble, DAMAGED, "page %u has a row that runs past its end", pages->leaf_number);
    pages->cell_bytes += (uint32_t)(next - start) + cell->local + after;
    if (pages->cell_bytes > pages->usable)
        return scan_fail(pages->trouble, DAMAGED, "the rows of page %u overlap", pages->leaf_number);
    pages->next_cell++;
    return 1;
}

int pages_next(Pages *pages, Cell *cell) {
    while (!pages->leaf || pages->next_cell == pages->cell_count) {
        int found = next_leaf(pages);
        if (found <= 0)
            return found;
    }
    return read_cell(pages, cell);
}
