/* Shared by operations.c and graphs.c. */
#pragma once

#define EXPORT __attribute__((visibility("default")))

/* Whether graphs get ranges and their operations open them. */
extern __attribute__((visibility("hidden"))) volatile int ranges_on;

/* Sets a TF_Status. Requires an earlier successful call of annot_tf_register. */
void set_status(void *status, int code, const char *message);
