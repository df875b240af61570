/* The Python side of the extra: checks arguments, lets go of the interpreter lock once a call. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "region.h"

static const long long MOST_PAUSE_NS = 1000000000;
enum { MOST_IMAGES = 1 << 20, MOST_PIXELS = 1 << 15 };

static PyObject *decode_region_py(PyObject *module, PyObject *args) {
  Py_buffer data, out;
  int width, height, left, top, right, bottom, scale;
  char message[MESSAGE_BYTES] = "";
  Outcome outcome;
  (void)module;
  if (!PyArg_ParseTuple(args, "y*iiiiiiiw*", &data, &width, &height, &left, &top, &right, &bottom,
                        &scale, &out))
    return NULL;
  Region region = {
      .width = width, .height = height, .box = {left, top, right, bottom}, .scale = scale};
  Py_BEGIN_ALLOW_THREADS
  outcome = decode_region(data.buf, (size_t)data.len, &region, out.buf, (size_t)out.len, message);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&data);
  PyBuffer_Release(&out);
  if (outcome == FAILED) {
    PyErr_SetString(PyExc_ValueError, message);
    return NULL;
  }
  if (outcome == NOT_HANDLED) Py_RETURN_NONE;
  return Py_BuildValue("LL", (long long)region.across, (long long)region.indent);
}

/* Whether a buffer holds `count` numbers of 64 bits; sets ValueError. */
static int holds(const Py_buffer *buffer, Py_ssize_t count, const char *name) {
  if (buffer->len == count * (Py_ssize_t)sizeof(int64_t) &&
      (uintptr_t)buffer->buf % sizeof(int64_t) == 0)
    return 1;
  PyErr_Format(PyExc_ValueError, "%s: %zd bytes are not %zd aligned numbers of 64 bits", name,
               buffer->len, count);
  return 0;
}

/* The number of images that fit into `out`, which must be whole ones; -1 with ValueError set. */
static Py_ssize_t images_in(const Py_buffer *out, int size) {
  if (size < 1 || size > MOST_PIXELS) {
    PyErr_SetString(PyExc_ValueError, "no image has this size");
    return -1;
  }
  Py_ssize_t image = (Py_ssize_t)size * size * CHANNELS;
  if (out->len % image || out->len / image > MOST_IMAGES) {
    PyErr_SetString(PyExc_ValueError, "the output does not hold a number of whole images");
    return -1;
  }
  return out->len / image;
}

/* A tuple's shards, held while the chunk is filled. */
typedef struct {
  Py_buffer *held;
  Shard *shards;
  Py_ssize_t count;
} Shards;

static void release_shards(Shards *all) {
  for (Py_ssize_t k = 0; k < all->count; k++) PyBuffer_Release(&all->held[k]);
  free(all->held);
  free(all->shards);
}

/* Hold the buffers of a tuple, if it is one; 0 with an error set. */
static int hold_shards(PyObject *tuple, Shards *all) {
  memset(all, 0, sizeof *all);
  if (tuple == Py_None) return 1;
  Py_ssize_t count = PyTuple_Size(tuple);
  if (count < 0) return 0;
  all->held = calloc((size_t)count + 1, sizeof *all->held);
  all->shards = calloc((size_t)count + 1, sizeof *all->shards);
  if (all->held == NULL || all->shards == NULL) {
    PyErr_NoMemory();
    return 0;
  }
  for (; all->count < count; all->count++) {
    PyObject *shard = PyTuple_GetItem(tuple, all->count); /* borrowed */
    Py_buffer *held = &all->held[all->count];
    if (shard == NULL || PyObject_GetBuffer(shard, held, PyBUF_SIMPLE) < 0) return 0;
    all->shards[all->count] = (Shard){held->buf, (size_t)held->len};
  }
  return 1;
}

/* crop, mirrored, crop_scale, crop_pad, crop_pct, seed; 0 with an error set. */
static int parse_view(PyObject *tuple, View *view) {
  unsigned long long seed;
  if (tuple == Py_None) return 1;
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "a view is a tuple");
    return 0;
  }
  if (!PyArg_ParseTuple(tuple, "ipdddK", &view->crop, &view->mirrored, &view->crop_scale,
                        &view->crop_pad, &view->crop_pct, &seed))
    return 0;
  view->seed = seed;
  return 1;
}

static PyObject *fill_checked(Chunk *chunk) {
  PyObject *outcomes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)chunk->count);
  if (outcomes == NULL) return NULL;
  chunk->outcomes = (uint8_t *)PyByteArray_AsString(outcomes);
  Py_BEGIN_ALLOW_THREADS
  fill_chunk(chunk);
  Py_END_ALLOW_THREADS
  return Py_BuildValue("Ndd", outcomes, chunk->read_s, chunk->read_cpu_s);
}

static PyObject *fill_py(PyObject *module, PyObject *args) {
  Py_buffer rows, stored, out;
  PyObject *result = NULL, *drawn, *tuple;
  int size, steps, raw;
  long long pause_ns = 0;
  View view;
  Shards shards;
  (void)module;
  if (!PyArg_ParseTuple(args, "y*Ow*Ow*iii|L", &rows, &drawn, &stored, &tuple, &out, &size, &steps,
                        &raw, &pause_ns))
    return NULL;
  Py_ssize_t count = images_in(&out, size);
  int ready = hold_shards(tuple, &shards);
  if (count >= 0 && ready && parse_view(drawn, &view) &&
      holds(&rows, count * (Py_ssize_t)(sizeof(Row) / sizeof(int64_t)), "rows")) {
    Chunk chunk = {.rows = rows.buf,
                   .count = count,
                   .size = size,
                   .view = drawn == Py_None ? NULL : &view,
                   .steps = steps,
                   .raw = raw,
                   .pause_ns = pause_ns > 0 && pause_ns < MOST_PAUSE_NS ? pause_ns : 0,
                   .stored = stored.buf,
                   .stored_bytes = (size_t)stored.len,
                   .shards = shards.shards,
                   .shards_count = shards.count,
                   .out = out.buf};
    result = fill_checked(&chunk);
  }
  release_shards(&shards);
  PyBuffer_Release(&rows);
  PyBuffer_Release(&stored);
  PyBuffer_Release(&out);
  return result;
}

static PyObject *portable_py(PyObject *module, PyObject *args) {
  int only;
  (void)module;
  if (!PyArg_ParseTuple(args, "p", &only)) return NULL;
  use_portable_code(only);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"decode_region", decode_region_py, METH_VARARGS,
     "decode_region(data, width, height, left, top, right, bottom, scale, out)\n"
     "-> (across, indent) or None\n\n"
     "Write the rows top to bottom of a JPEG, shrunk by scale (1, 2, 4, 8), as RGB to out. A row\n"
     "holds `across` pixels, of which the first `indent` lie left of the region: libjpeg makes\n"
     "whole blocks, and what it makes outside the region is not exact. The region is in pixels of\n"
     "the shrunk image; width and height are the stored image's. Room for WIDEST more pixels a\n"
     "row is always enough. None: cut off, or a kind that is not handled: decode it in full."},
    {"fill", fill_py, METH_VARARGS,
     "fill(rows, view, stored, shards, out, size, steps, raw, pause_ns=0)\n"
     "-> (outcomes, seconds of reading, their CPU time)\n\n"
     "Read (steps & READ) and show (steps & SHOW) one image for each row of 64-bit numbers: file,\n"
     "offset, length, place in `stored`, width, height, sample, epoch, left, top, right, bottom,\n"
     "flip. Images are JPEGs, or raw pixels. `view`, a tuple of crop (0 centre, 1 pad, 2 resized),\n"
     "mirrored, crop_scale, crop_pad, crop_pct and seed, draws the boxes; None: those of the rows.\n"
     "With a tuple of `shards` nothing is read: `file` is the number of one, in memory. An outcome\n"
     "other than 0: the image is not shown. steps == SLEEP, for benchmarks: sleep for `pause_ns`\n"
     "an image and do nothing else."},
    {"_use_portable_code", portable_py, METH_VARARGS, "For tests: do without vector instructions."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "stoker_region", "Make batches of images without the interpreter lock.",
    -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_stoker_region(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module != NULL && (PyModule_AddIntConstant(module, "WIDEST", WIDEST) < 0 ||
                         PyModule_AddIntConstant(module, "READ", READ) < 0 ||
                         PyModule_AddIntConstant(module, "SHOW", SHOW) < 0 ||
                         PyModule_AddIntConstant(module, "SLEEP", SLEEP) < 0 ||
                         PyModule_AddIntConstant(module, "LIBJPEG_TURBO", LIBJPEG_VERSION) < 0)) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
