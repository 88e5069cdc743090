/* Dense ids of pairs of 32-bit integers, in order of appearance. */
#ifndef ANNOT_PAIR_IDS_H
#define ANNOT_PAIR_IDS_H

#include "column_ops.h"

typedef struct {
    int32_t first, second;
} Pair;

typedef struct {
    Pair *pairs; /* by id */
    int64_t count, room;
    int64_t *slots; /* open addressing; NONE: free */
    size_t capacity;
    uint64_t seed; /* of `hash_seed`; set by the owner */
} PairIds;

/* Adds a pair that is missing. Returns its id, or NONE when out of memory. */
int64_t add_pair(PairIds *ids, int32_t first, int32_t second);
void free_pair_ids(PairIds *ids);

/* Returns the slot of a pair, or the free slot for it. */
static inline int64_t *slot_of_pair(const PairIds *ids, int32_t first, int32_t second) {
    uint64_t name = (uint64_t)(uint32_t)first << 32 | (uint32_t)second;
    size_t at = (size_t)mix(name ^ ids->seed) & (ids->capacity - 1);
    for (int64_t id; (id = ids->slots[at]) != NONE; at = (at + 1) & (ids->capacity - 1))
        if (ids->pairs[id].first == first && ids->pairs[id].second == second)
            break;
    return &ids->slots[at];
}

/* Returns the id of a pair, which it adds if missing, or NONE when out of memory. */
static inline int64_t pair_id(PairIds *ids, int32_t first, int32_t second) {
    int64_t id = ids->capacity ? *slot_of_pair(ids, first, second) : NONE;
    return id != NONE ? id : add_pair(ids, first, second);
}

#endif
