/* Names of strings, domains, categories and threads. The mutex must be held. */
#pragma once

#include "file.h"

void save_names(void);                                   /* writes the names that the file lacks */
void leave_names(void);                                  /* the next `save_names` writes all names to a new file */
uint32_t find_domain(const char *name, uint32_t length); /* returns 0 if the name is unknown */
/* Returns the id of a string, 1 for other kinds, or 0 when out of memory. */
uint32_t define(enum kind kind, uint32_t domain, uint32_t number, int32_t thread, const char *text, uint32_t length);
void adopt_names(int32_t thread); /* in a forked child: keeps the parent's names */
