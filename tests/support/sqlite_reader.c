/* Prints the rows of a table with annot's reader of SQLite files. Words: the file, the root page of the table, and a
 * letter per column: i (integer), a (INTEGER PRIMARY KEY) or t (text). */
#include "sqlite_records.h"

#include <stdio.h>
#include <stdlib.h>

static int print_value(const Selected *selected, const uint8_t *record, int64_t rowid, Trouble *trouble) {
    const uint8_t *text;
    size_t length;
    int64_t value;
    if (selected->kind == TEXT) {
        int failed = layout_text(selected, record, &text, &length, trouble);
        if (!failed)
            printf("%.*s", (int)length, (const char *)text);
        return failed;
    }
    int found = layout_integer(selected, record, rowid, &value, trouble);
    if (found > 0)
        printf("%lld", (long long)value);
    return found < 0 ? -1 : 0;
}

static int print_rows(Pages *pages, Layout *layout) {
    Cell cell;
    int found;
    while ((found = pages_next(pages, &cell)) > 0) {
        const uint8_t *record = layout_find(layout, pages, &cell);
        for (int i = 0; i < layout->selected_count; i++) {
            if (!record || print_value(&layout->selected[i], record, cell.rowid, pages->trouble) < 0)
                return -1;
            putchar(i + 1 < layout->selected_count ? '|' : '\n');
        }
    }
    return found;
}

int main(int count, char **words) {
    static Selected selected[16];
    Layout layout = {.selected = selected};
    Trouble trouble = {0};
    Pages pages = {.file = -1};
    if (count != 4)
        return 2;
    for (const char *kind = words[3]; *kind && layout.selected_count < 16; kind++, layout.selected_count++)
        selected[layout.selected_count] = (Selected){
            .index = layout.selected_count,
            .kind = *kind == 't'   ? TEXT
                    : *kind == 'a' ? ALIAS
                                   : INTEGER,
        };
    int failed =
        pages_open(&pages, words[1], (uint32_t)atoi(words[2]), &trouble) < 0 || print_rows(&pages, &layout) < 0;
    if (failed)
        fprintf(stderr, "%s\n", trouble.message);
    pages_close(&pages);
    free(layout.joined);
    return failed;
}
