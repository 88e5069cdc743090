/* Records of one table: location and values of the selected columns. Works without the GIL. */
#pragma once

#include "sqlite_pages.h"

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
    /* SLACK makes it safe to load eight bytes. */
    *value = (int64_t)big64(record + selected->offset) >> (64 - 8 * sizes[selected->type]);
    return 1;
}
/* Reads a text column; the length is 0 for NULL. Returns -1 on failure. */
int layout_text(const Selected *selected, const uint8_t *record, const uint8_t **text, size_t *length,
                Trouble *trouble);
