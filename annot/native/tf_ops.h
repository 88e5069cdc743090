/* What the two parts of the library for TensorFlow share. */
#ifndef ANNOT_TF_OPS_H
#define ANNOT_TF_OPS_H

#define EXPORT __attribute__((visibility("default")))

/* Sets a TF_Status; to be called after `annot_tf_register` has found TensorFlow's functions. */
void set_status(void *status, int code, const char *message);

#endif
