/* Texts of a table in Arrow's layout. Works without the GIL. */
#pragma once

#include "arrow.h"

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
