/* The Python side of the extra: checks arguments, lets go of the interpreter lock once a call. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "region.h"

enum { MOST_IMAGES = 1 << 20, MOST_PIXELS = 1 << 15, BOX_NUMBERS = 5 };

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

static PyObject *fill_py(PyObject *module, PyObject *args) {
  Py_buffer rows, stored, room, out;
  PyObject *result = NULL;
  int size, steps, raw;
  long long pause_ns = 0;
  (void)module;
  if (!PyArg_ParseTuple(args, "y*w*w*w*iii|L", &rows, &stored, &room, &out, &size, &steps, &raw,
                        &pause_ns))
    return NULL;
  Py_ssize_t count = images_in(&out, size);
  PyObject *outcomes = NULL;
  if (count >= 0 && holds(&rows, count * (Py_ssize_t)(sizeof(Row) / sizeof(int64_t)), "rows"))
    outcomes = PyByteArray_FromStringAndSize(NULL, count);
  if (outcomes != NULL) {
    Chunk chunk = {.rows = rows.buf,
                   .count = count,
                   .size = size,
                   .steps = steps,
                   .raw = raw,
                   .pause_ns = pause_ns > 0 ? pause_ns : 0,
                   .stored = stored.buf,
                   .room = room.buf,
                   .out = out.buf,
                   .stored_bytes = (size_t)stored.len,
                   .room_bytes = (size_t)room.len,
                   .outcomes = (uint8_t *)PyByteArray_AsString(outcomes)};
    Py_BEGIN_ALLOW_THREADS
    fill_chunk(&chunk);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("Ndd", outcomes, chunk.read_s, chunk.read_cpu_s);
  }
  PyBuffer_Release(&rows);
  PyBuffer_Release(&stored);
  PyBuffer_Release(&room);
  PyBuffer_Release(&out);
  return result;
}

/* The buffers of a tuple of shards; the number that is held, fewer than asked with an error set. */
static Py_ssize_t hold_shards(PyObject *tuple, Py_ssize_t count, Py_buffer *held, Shard *shards) {
  for (Py_ssize_t k = 0; k < count; k++) {
    PyObject *shard = PyTuple_GetItem(tuple, k); /* borrowed */
    if (shard == NULL || PyObject_GetBuffer(shard, &held[k], PyBUF_SIMPLE) < 0) return k;
    shards[k] = (Shard){held[k].buf, (size_t)held[k].len};
  }
  return count;
}

static PyObject *run_gather(PyObject *tuple, Gather *job) {
  Py_ssize_t count = PyTuple_Size(tuple);
  Py_buffer *held = calloc((size_t)count + 1, sizeof *held);
  Shard *shards = calloc((size_t)count + 1, sizeof *shards);
  PyObject *outcomes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)job->count);
  Py_ssize_t ready = 0;
  if (held == NULL || shards == NULL)
    PyErr_NoMemory();
  else if (outcomes != NULL)
    ready = hold_shards(tuple, count, held, shards);
  if (outcomes != NULL && !PyErr_Occurred()) {
    job->shards = shards;
    job->shards_count = count;
    job->outcomes = (uint8_t *)PyByteArray_AsString(outcomes);
    Py_BEGIN_ALLOW_THREADS
    gather(job);
    Py_END_ALLOW_THREADS
  } else {
    Py_CLEAR(outcomes);
  }
  for (Py_ssize_t k = 0; k < ready; k++) PyBuffer_Release(&held[k]);
  free(held);
  free(shards);
  return outcomes;
}

static PyObject *gather_py(PyObject *module, PyObject *args) {
  PyObject *tuple, *result = NULL;
  Py_buffer numbers, offsets, boxes, out;
  int side, size;
  (void)module;
  if (!PyArg_ParseTuple(args, "O!y*y*iy*w*i", &PyTuple_Type, &tuple, &numbers, &offsets, &side,
                        &boxes, &out, &size))
    return NULL;
  Py_ssize_t count = images_in(&out, size);
  if (side < 1 || side > MOST_PIXELS)
    PyErr_SetString(PyExc_ValueError, "no image has this side");
  else if (count >= 0 && holds(&numbers, count, "numbers") && holds(&offsets, count, "offsets") &&
           holds(&boxes, count * BOX_NUMBERS, "boxes")) {
    Gather job = {.count = count, .side = side, .size = size, .numbers = numbers.buf,
                  .offsets = offsets.buf, .boxes = boxes.buf, .out = out.buf};
    result = run_gather(tuple, &job);
  }
  PyBuffer_Release(&numbers);
  PyBuffer_Release(&offsets);
  PyBuffer_Release(&boxes);
  PyBuffer_Release(&out);
  return result;
}

static PyObject *gather_drawn_py(PyObject *module, PyObject *args) {
  PyObject *tuple, *result = NULL;
  Py_buffer numbers, offsets, samples, epochs, out;
  int side, size, corner, across, limit, mirrored;
  unsigned long long seed;
  (void)module;
  if (!PyArg_ParseTuple(args, "O!y*y*iKy*y*iiiiw*i", &PyTuple_Type, &tuple, &numbers, &offsets,
                        &side, &seed, &samples, &epochs, &corner, &across, &limit, &mirrored, &out,
                        &size))
    return NULL;
  Py_ssize_t count = images_in(&out, size);
  if (side < 1 || side > MOST_PIXELS)
    PyErr_SetString(PyExc_ValueError, "no image has this side");
  else if (count >= 0 && holds(&numbers, count, "numbers") && holds(&offsets, count, "offsets") &&
           holds(&samples, count, "samples") && holds(&epochs, count, "epochs")) {
    Gather job = {.count = count, .side = side, .size = size, .numbers = numbers.buf,
                  .offsets = offsets.buf, .out = out.buf};
    job.draws = (Draws){.seed = seed, .samples = samples.buf, .epochs = epochs.buf,
                        .corner = corner, .across = across, .limit = limit, .mirrored = mirrored};
    result = run_gather(tuple, &job);
  }
  PyBuffer_Release(&numbers);
  PyBuffer_Release(&offsets);
  PyBuffer_Release(&samples);
  PyBuffer_Release(&epochs);
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
     "fill(rows, stored, room, out, size, steps, raw, pause_ns=0)\n"
     "-> (outcomes, seconds of reading, their CPU time)\n\n"
     "Read (steps & READ) and show (steps & SHOW) one image for each row of 64-bit numbers: file,\n"
     "offset, length, place in `stored`, width, height, left, top, right, bottom, flip. Images are\n"
     "JPEGs, or raw pixels. `room` is for decoded pixels. An outcome other than 0: the image is\n"
     "not shown. steps == SLEEP: nothing is done, and an image takes `pause_ns` nanoseconds."},
    {"gather", gather_py, METH_VARARGS,
     "gather(shards, numbers, offsets, side, boxes, out, size) -> outcomes\n\n"
     "Show square raw images of shards in memory; `boxes` has left, top, right, bottom and flip."},
    {"gather_drawn", gather_drawn_py, METH_VARARGS,
     "gather_drawn(shards, numbers, offsets, side, seed, samples, epochs, corner, across, limit,\n"
     "mirrored, out, size) -> outcomes\n\n"
     "Show them with boxes that are drawn here: a square from (corner, corner), moved by up to\n"
     "`limit` pixels, and mirrored half of the time where `mirrored` is set."},
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
