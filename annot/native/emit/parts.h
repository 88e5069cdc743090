/* What module.c registers: each function adds the functions and types of one file to the module. They return -1 with an
 * exception set on failure. */
#pragma once

#include <Python.h>

int annot_add_client(PyObject *module);      /* client.c: Event, push, pop, … */
int annot_add_around(PyObject *module);      /* around.c: wrapper, inside, caught, to_the_end, exit_method */
int annot_add_torch_calls(PyObject *module); /* torch_calls.c: Calls, bind, watch_greenlets */
