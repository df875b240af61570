/* Decode one rectangle of a baseline JPEG with libjpeg-turbo, without the interpreter lock.
 *
 * Invariants: the pixels are those of a full decode, bit for bit (accurate DCT, smooth upsampling);
 * nothing is written outside the given buffer; whatever the bytes are, the outcome is pixels, None
 * (a kind that is not handled here: decode it in full) or a ValueError with libjpeg's words.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "libjpeg-turbo's headers are needed: other libjpegs cannot decode a region"
#endif

enum {
  CHANNELS = 3,
  LEAST_ACROSS = 16,
  ROWS_AT_A_TIME = 8,
  WIDEST = MAX_SAMP_FACTOR * DCTSIZE + LEAST_ACROSS, /* a row's pixels beyond its region at most */
};
typedef enum { DECODED, NOT_HANDLED, FAILED } Outcome;

typedef struct {
  struct jpeg_error_mgr public; /* first: libjpeg hands back a pointer to it */
  jmp_buf escape;
  char message[JMSG_LENGTH_MAX];
} Errors;

typedef struct {
  JDIMENSION width, height;             /* of the stored image, as the caller knows it */
  JDIMENSION left, top, right, bottom;  /* in pixels of the scaled image */
  unsigned int scale;
  JDIMENSION stored_across, indent;     /* found: pixels of a written row, and before the region */
} Region;

static void leave(j_common_ptr info) {
  Errors *errors = (Errors *)info->err;
  errors->public.format_message(info, errors->message);
  longjmp(errors->escape, 1);
}

static void note(j_common_ptr info, int level) {
  if (level < 0) { /* a warning: corrupt data that libjpeg would paint over */
    info->err->num_warnings++;
    leave(info);
  }
}

static Outcome refuse(Errors *errors, const char *why) {
  snprintf(errors->message, sizeof errors->message, "%s", why);
  return FAILED;
}

/* Between creation and destruction of the decompressor; any error jumps out of here. */
static Outcome decode_rows(struct jpeg_decompress_struct *info, Errors *errors,
                           Region *region, unsigned char *out, size_t room) {
  jpeg_read_header(info, TRUE);
  if (info->image_width != region->width || info->image_height != region->height)
    return refuse(errors, "the image has another size than its index says");
  if (info->progressive_mode || info->arith_code || info->data_precision != 8 ||
      jpeg_has_multiple_scans(info))
    return NOT_HANDLED;
  if (info->jpeg_color_space != JCS_YCbCr && info->jpeg_color_space != JCS_GRAYSCALE)
    return NOT_HANDLED;
  info->out_color_space = JCS_EXT_RGB;
  info->dct_method = JDCT_ISLOW;
  info->do_fancy_upsampling = TRUE;
  info->scale_num = 1;
  info->scale_denom = region->scale;
  jpeg_start_decompress(info);
  if (region->right > info->output_width || region->bottom > info->output_height)
    return refuse(errors, "the region lies outside the image");

  /* Smooth upsampling looks one pixel to each side and takes the cut for the image's edge; for
   * very few columns of colour libjpeg leaves it out. */
  JDIMENSION from = region->left ? region->left - 1 : 0;
  JDIMENSION until = region->right < info->output_width ? region->right + 1 : region->right;
  if (until - from < LEAST_ACROSS) from = until > LEAST_ACROSS ? until - LEAST_ACROSS : 0;
  if (until - from < LEAST_ACROSS)
    until = info->output_width > LEAST_ACROSS ? LEAST_ACROSS : info->output_width;
  JDIMENSION across = until - from;
  jpeg_crop_scanline(info, &from, &across);
  if (from > region->left || from + across < region->right)
    return refuse(errors, "libjpeg cut the region short");
  if (region->top && jpeg_skip_scanlines(info, region->top) != region->top)
    return refuse(errors, "libjpeg skipped fewer rows than asked");

  region->stored_across = across;
  region->indent = region->left - from;
  size_t stride = (size_t)across * CHANNELS;
  if ((size_t)(region->bottom - region->top) > room / stride)
    return refuse(errors, "the buffer is too small for the region");
  while (info->output_scanline < region->bottom) {
    /* More rows than libjpeg makes at a time, straight to their place: copying rows one by one
     * costs a fifth of a decode. */
    JSAMPROW rows[ROWS_AT_A_TIME];
    JDIMENSION left = region->bottom - info->output_scanline;
    for (JDIMENSION k = 0; k < ROWS_AT_A_TIME && k < left; k++) rows[k] = out + k * stride;
    JDIMENSION made =
        jpeg_read_scanlines(info, rows, left < ROWS_AT_A_TIME ? left : ROWS_AT_A_TIME);
    if (made == 0) return refuse(errors, "libjpeg made no row");
    out += made * stride;
  }
  return DECODED;
}

static Outcome decode(const unsigned char *data, size_t size, Region *region,
                      unsigned char *out, size_t room, Errors *errors) {
  struct jpeg_decompress_struct info;
  Outcome outcome;
  /* Rows below the region are not read: a file that was cut off there is left to the full decode,
   * which refuses it. Looked at here, without the lock: mapped bytes may wait for a disk. */
  if (data[size - 2] != 0xFF || data[size - 1] != JPEG_EOI) return NOT_HANDLED;
  memset(&info, 0, sizeof info); /* so that it may be destroyed wherever its creation failed */
  info.err = jpeg_std_error(&errors->public);
  errors->public.error_exit = leave;
  errors->public.emit_message = note;
  if (setjmp(errors->escape)) {
    jpeg_destroy_decompress(&info);
    return FAILED;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, (unsigned char *)data, (unsigned long)size);
  outcome = decode_rows(&info, errors, region, out, room);
  jpeg_destroy_decompress(&info);
  return outcome;
}

static PyObject *decode_region(PyObject *module, PyObject *args) {
  Py_buffer data, out;
  Region region = {0};
  int width, height, left, top, right, bottom, scale;
  Errors errors;
  Outcome outcome;
  (void)module;
  if (!PyArg_ParseTuple(args, "y*iiiiiiiw*", &data, &width, &height, &left, &top, &right, &bottom,
                        &scale, &out))
    return NULL;
  if (scale != 1 && scale != 2 && scale != 4 && scale != 8)
    outcome = refuse(&errors, "the scale is none of 1, 2, 4, 8");
  else if (width < 1 || height < 1 || width > JPEG_MAX_DIMENSION || height > JPEG_MAX_DIMENSION)
    outcome = refuse(&errors, "no JPEG has this size");
  else if (left < 0 || top < 0 || left >= right || top >= bottom || right > width ||
           bottom > height)
    outcome = refuse(&errors, "the region is empty or lies outside the image");
  else if (data.len < 4)
    outcome = refuse(&errors, "too few bytes for a JPEG");
  else {
    region = (Region){.width = (JDIMENSION)width,
                      .height = (JDIMENSION)height,
                      .left = (JDIMENSION)left,
                      .top = (JDIMENSION)top,
                      .right = (JDIMENSION)right,
                      .bottom = (JDIMENSION)bottom,
                      .scale = (unsigned int)scale};
    Py_BEGIN_ALLOW_THREADS
    outcome = decode(data.buf, (size_t)data.len, &region, out.buf, (size_t)out.len, &errors);
    Py_END_ALLOW_THREADS
  }
  PyBuffer_Release(&data);
  PyBuffer_Release(&out);
  if (outcome == FAILED) {
    PyErr_SetString(PyExc_ValueError, errors.message);
    return NULL;
  }
  if (outcome == NOT_HANDLED) Py_RETURN_NONE;
  return Py_BuildValue("II", region.stored_across, region.indent);
}

static PyMethodDef methods[] = {
    {"decode_region", decode_region, METH_VARARGS,
     "decode_region(data, width, height, left, top, right, bottom, scale, out)\n"
     "-> (across, indent) or None\n\n"
     "Write the rows top to bottom of a JPEG, shrunk by scale (1, 2, 4, 8), as RGB to out. A row\n"
     "holds `across` pixels, of which the first `indent` lie left of the region: libjpeg makes\n"
     "whole blocks, and what it makes outside the region is not exact. The region is in pixels of\n"
     "the shrunk image; width and height are the stored image's. Room for WIDEST more pixels a\n"
     "row is always enough. None: cut off, or a kind that is not handled: decode it in full."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "stoker_region", "Decode only a region of a JPEG.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_stoker_region(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module != NULL &&
      (PyModule_AddIntConstant(module, "WIDEST", WIDEST) < 0 ||
       PyModule_AddIntConstant(module, "LIBJPEG_TURBO", LIBJPEG_TURBO_VERSION_NUMBER) < 0)) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
