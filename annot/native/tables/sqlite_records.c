/* Records of a table: location and values of the selected columns. */
#include "sqlite_records.h"

#include <stdlib.h>
#include <string.h>

/* Serial types (section 2.1 of the file format). */
#define NOTHING 0
#define REAL 7
#define ZERO 8
#define ONE 9
#define FIRST_RESERVED 10
#define FIRST_BLOB 12

static const uint8_t sizes[FIRST_BLOB] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};

static uint64_t size_of(uint64_t type) { return type < FIRST_BLOB ? sizes[type] : (type - FIRST_BLOB) / 2; }

/* ---------------------------------------------------------------- overflow */

static int make_room(Layout *layout, size_t size, Trouble *trouble) {
    if (size <= layout->joined_room)
        return 0;
    size_t room = size > 2 * layout->joined_room ? size : 2 * layout->joined_room;
    uint8_t *grown = realloc(layout->joined, room + SLACK);
    if (!grown)
        return scan_fail(trouble, NO_MEMORY, "memory");
    layout->joined = grown;
    layout->joined_room = room;
    return 0;
}

typedef struct {
    uint64_t have;
    uint32_t next; /* overflow page; 0: none */
} Chain;

/* Appends overflow pages to the start of the record until `needed` bytes are present. Memory grows with the bytes read,
 * because the size in the record may be wrong. */
static int join(Layout *layout, Pages *pages, const Cell *cell, uint64_t needed, Chain *chain) {
    while (chain->have < needed) {
        const uint8_t *content;
        uint64_t left = cell->size - chain->have, size = pages->usable - 4;
        size = left < size ? left : size;
        if (chain->next == 0)
            return scan_fail(pages->trouble, DAMAGED, "a row of page %u is truncated", pages->leaf_number);
        if (pages_overflow(pages, chain->next, &content, &chain->next) < 0 ||
            make_room(layout, (size_t)(chain->have + size), pages->trouble) < 0)
            return -1;
        memcpy(layout->joined + chain->have, content, (size_t)size);
        chain->have += size;
    }
    return 0;
}

static int begin_chain(Layout *layout, Pages *pages, const Cell *cell, Chain *chain) {
    if (make_room(layout, cell->local, pages->trouble) < 0)
        return -1;
    memcpy(layout->joined, cell->payload, cell->local);
    *chain = (Chain){cell->local, big32(cell->payload + cell->local)};
    return 0;
}

/* ---------------------------------------------------------------- the header of a record */

static int lay_out(Layout *layout, Pages *pages, const uint8_t *header, uint64_t header_size, uint64_t size) {
    const uint8_t *at, *end = header + header_size;
    uint64_t type, offset = header_size;
    Selected *selected = layout->selected, *last = selected + layout->selected_count;
    at = read_varint(header, end, &type);
    while (selected < last && selected->index == ROWID)
        selected++;
    for (int index = 0; selected < last; index++) {
        if (at == end)
            type = NOTHING; /* the column was added after the row was written */
        else if (!at || !(at = read_varint(at, end, &type)))
            return scan_fail(pages->trouble, DAMAGED, "a row of page %u has an invalid header", pages->leaf_number);
        for (; selected < last && selected->index == index; selected++) {
            selected->type = type;
            selected->offset = offset;
        }
        if (size_of(type) > size - offset)
            return scan_fail(pages->trouble, DAMAGED, "a row of page %u has values beyond its end", pages->leaf_number);
        offset += size_of(type);
    }
    layout->needed = offset;
    return 0;
}

static void remember(Layout *layout, const uint8_t *header, uint64_t header_size) {
    layout->header_size = 0;
    if (header_size <= sizeof layout->header) {
        memcpy(layout->header, header, (size_t)header_size);
        layout->header_size = (size_t)header_size;
    }
}

static const uint8_t *find_in_chain(Layout *layout, Pages *pages, const Cell *cell, uint64_t header_size) {
    Chain chain;
    layout->header_size = 0;
    if (begin_chain(layout, pages, cell, &chain) < 0 || join(layout, pages, cell, header_size, &chain) < 0 ||
        lay_out(layout, pages, layout->joined, header_size, cell->size) < 0 ||
        join(layout, pages, cell, layout->needed, &chain) < 0)
        return NULL;
    return layout->joined;
}

const uint8_t *layout_find(Layout *layout, Pages *pages, const Cell *cell) {
    const uint8_t *record = cell->payload;
    size_t known = layout->header_size;
    if (known && known <= cell->local && layout->needed <= cell->local && memcmp(record, layout->header, known) == 0)
        return record;
    uint64_t header_size;
    if (!read_varint(record, record + cell->local, &header_size) || header_size > cell->size || header_size == 0) {
        scan_fail(pages->trouble, DAMAGED, "a row of page %u lacks a header", pages->leaf_number);
        return NULL;
    }
    if (header_size > cell->local)
        return find_in_chain(layout, pages, cell, header_size);
    layout->header_size = 0;
    if (lay_out(layout, pages, record, header_size, cell->size) < 0)
        return NULL;
    if (layout->needed > cell->local)
        return find_in_chain(layout, pages, cell, header_size);
    remember(layout, record, header_size);
    return record;
}

int layout_rare_integer(const Selected *selected, int64_t rowid, int64_t *value, Trouble *trouble) {
    uint64_t type = selected->type;
    if (selected->index == ROWID || (type == NOTHING && selected->kind == ALIAS)) {
        *value = rowid;
        return 1;
    }
    if (type == NOTHING)
        return 0;
    if (type == ZERO || type == ONE) {
        *value = type == ONE;
        return 1;
    }
    if (type == FIRST_RESERVED || type == FIRST_RESERVED + 1)
        return scan_fail(trouble, DAMAGED, "a row holds a value of an unknown type");
    return scan_fail(trouble, UNSUPPORTED, "an integer column holds %s",
                     type == REAL ? "a real number" : "a text or a blob");
}

int layout_text(const Selected *selected, const uint8_t *record, const uint8_t **text, size_t *length,
                Trouble *trouble) {
    *text = record + selected->offset;
    *length = (size_t)size_of(selected->type);
    if (selected->type == NOTHING || selected->type >= FIRST_BLOB)
        return 0;
    if (selected->type >= FIRST_RESERVED)
        return scan_fail(trouble, DAMAGED, "a row holds a value of an unknown type");
    return scan_fail(trouble, UNSUPPORTED, "a text column holds a number");
}
