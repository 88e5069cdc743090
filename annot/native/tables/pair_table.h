/* Values of pairs of integers, which get dense ids in order of appearance. */
#pragma once

#include "column_ops.h"

#include <string.h>

typedef struct {
    int64_t first;
    int32_t second;
} Pair;

typedef struct {
    Pair *pairs; /* by id */
    int64_t count, pair_room;
    int64_t *slots; /* open addressing; NONE: free */
    size_t capacity;
    uint64_t seed; /* of `hash_seed`; set by the owner */
    void *values;  /* by id */
    int64_t value_room;
} PairTable;

/* Adds a pair that is missing. Returns its id, or NONE when out of memory. */
int64_t add_pair(PairTable *table, int64_t first, int32_t second);
/* Frees all but the values. */
void free_pairs(PairTable *table);

/* Returns the slot of a pair, or the free slot for it. */
static inline int64_t *slot_of_pair(const PairTable *table, int64_t first, int32_t second) {
    size_t at = (size_t)mix((uint64_t)first ^ mix((uint32_t)second ^ table->seed)) & (table->capacity - 1);
    for (int64_t id; (id = table->slots[at]) != NONE; at = (at + 1) & (table->capacity - 1))
        if (table->pairs[id].first == first && table->pairs[id].second == second)
            break;
    return &table->slots[at];
}

/* Returns the id of a pair, or NONE if it is missing. */
static inline int64_t find_pair(const PairTable *table, int64_t first, int32_t second) {
    return table->capacity ? *slot_of_pair(table, first, second) : NONE;
}

/* Returns the id of a pair, which it adds if missing, or NONE when out of memory. */
static inline int64_t pair_id(PairTable *table, int64_t first, int32_t second) {
    int64_t id = find_pair(table, first, second);
    return id != NONE ? id : add_pair(table, first, second);
}

/* Returns the value of `size` bytes of a pair, which it adds with zeros if missing; NULL when out of memory. */
static inline void *value_of(PairTable *table, int64_t first, int32_t second, size_t size) {
    void *values = make_room(table->values, table->count, &table->value_room, size);
    if (!values)
        return NULL;
    table->values = values;
    int64_t count = table->count, id = pair_id(table, first, second);
    if (id == NONE)
        return NULL;
    char *value = (char *)values + (size_t)id * size;
    return id == count ? memset(value, 0, size) : value;
}
