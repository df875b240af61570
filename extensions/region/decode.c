/* Decode one rectangle of a baseline JPEG with libjpeg-turbo.
 *
 * Invariants: the pixels are those of a full decode, bit for bit (accurate DCT, smooth upsampling);
 * nothing is written outside the given buffer; whatever the bytes are, the outcome is pixels,
 * NOT_HANDLED (a kind that needs the full decode) or FAILED with libjpeg's words.
 */

#include "region.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "libjpeg-turbo's headers are needed: other libjpegs cannot decode a region"
#endif

enum {
  LEAST_ACROSS = 16,
  ROWS_AT_A_TIME = 8,
  /* Of the table of restart markers (stoker.data.images.jpeg_rows). */
  TABLE_AT = 20,
  TABLE_BYTES = 22,
  LONGEST_HEADER = 4096,
  SPARE_ROWS = 16, /* smooth upsampling reads up to eight pixels further */
};
const int WIDEST = MAX_SAMP_FACTOR * DCTSIZE + LEAST_ACROSS; /* pixels of a row beyond its box */
const int LIBJPEG_VERSION = LIBJPEG_TURBO_VERSION_NUMBER;

typedef struct {
  struct jpeg_error_mgr public; /* first: libjpeg hands back a pointer to it */
  jmp_buf escape;
  char *message;
} Errors;

/* A JPEG without the intervals above a box: its header with a smaller height, then the rest. */
typedef struct {
  struct jpeg_source_mgr public; /* first, as above */
  uint8_t header[LONGEST_HEADER];
  size_t header_bytes;
  const uint8_t *rest;
  size_t rest_bytes;
  int first; /* the number of the first interval: restart markers are counted from it */
  JDIMENSION first_row, height;
} Source;

static void leave(j_common_ptr info) {
  Errors *errors = (Errors *)info->err;
  char text[JMSG_LENGTH_MAX];
  errors->public.format_message(info, text);
  snprintf(errors->message, MESSAGE_BYTES, "%.*s", MESSAGE_BYTES - 1, text);
  longjmp(errors->escape, 1);
}

static void note(j_common_ptr info, int level) {
  if (level < 0) { /* a warning: corrupt data that libjpeg would paint over */
    info->err->num_warnings++;
    leave(info);
  }
}

static Outcome refuse(char *message, const char *why) {
  snprintf(message, MESSAGE_BYTES, "%s", why);
  return FAILED;
}

static uint32_t number_at(const uint8_t *at, int bytes) {
  uint32_t number = 0;
  for (int k = 0; k < bytes; k++) number = number << 8 | at[k];
  return number;
}

/* Whether the file has a table of restart markers by which the rows above the box can be left out;
 * fills `source`. The table of a file that we did not write is checked as far as reading it safely
 * needs; libjpeg refuses what is wrong beyond that, and the image is then decoded in full. */
static int cut_rows(const uint8_t *data, size_t size, const Region *region, Source *source) {
  static const uint8_t name[] = {'s', 't', 'o', 'k', 'e', 'r', 0, 1};
  if (size < TABLE_AT + TABLE_BYTES || data[TABLE_AT] != 0xFF || data[TABLE_AT + 1] != 0xEF ||
      memcmp(data + TABLE_AT + 4, name, sizeof name) != 0)
    return 0;
  const uint8_t *table = data + TABLE_AT;
  size_t table_bytes = number_at(table + 2, 2) + 2;
  size_t frame = number_at(table + 12, 4), scan = number_at(table + 16, 4);
  int64_t step = number_at(table + 20, 2);
  if (table_bytes < TABLE_BYTES || step < DCTSIZE || step % DCTSIZE) return 0;
  int64_t count = (int64_t)(table_bytes - TABLE_BYTES) / 4;
  size_t table_end = TABLE_AT + TABLE_BYTES + 4 * (size_t)count;
  if (count != (region->height + step - 1) / step || table_end >= frame || frame + 2 >= scan ||
      scan > LONGEST_HEADER || scan > size)
    return 0;
  int64_t top = region->box.top * region->scale - SPARE_ROWS;
  int64_t first = top > 0 ? top / step : 0;
  if (first < 1) return 0; /* what lies below the box is not read in any case */
  size_t begin = number_at(table + TABLE_BYTES + 4 * first, 4);
  if (begin < scan || begin >= size || data[begin - 2] != 0xFF ||
      data[begin - 1] != (JPEG_RST0 | ((first - 1) & 7)) ||
      (int64_t)number_at(data + frame, 2) != region->height)
    return 0;
  source->first = (int)first;
  source->first_row = (JDIMENSION)(first * step);
  source->height = (JDIMENSION)(region->height - first * step);
  memcpy(source->header, data, scan);
  source->header[frame] = (uint8_t)(source->height >> 8);
  source->header[frame + 1] = (uint8_t)(source->height & 255);
  source->header_bytes = scan;
  source->rest = data + begin;
  source->rest_bytes = size - begin;
  return 1;
}

static void do_nothing(j_decompress_ptr info) { (void)info; }

static boolean next_part(j_decompress_ptr info) {
  Source *source = (Source *)info->src;
  if (source->rest == NULL) ERREXIT(info, JERR_INPUT_EOF);
  source->public.next_input_byte = source->rest;
  source->public.bytes_in_buffer = source->rest_bytes;
  source->rest = NULL;
  return TRUE;
}

static void skip(j_decompress_ptr info, long bytes) {
  struct jpeg_source_mgr *source = info->src;
  if (bytes <= 0) return;
  while ((size_t)bytes > source->bytes_in_buffer) {
    bytes -= (long)source->bytes_in_buffer;
    next_part(info);
  }
  source->next_input_byte += bytes;
  source->bytes_in_buffer -= (size_t)bytes;
}

static boolean accept_restart(j_decompress_ptr info, int expected) {
  Source *source = (Source *)info->src;
  if (info->unread_marker != JPEG_RST0 + ((expected + source->first) & 7))
    ERREXIT(info, JERR_INPUT_EOF);
  info->unread_marker = 0;
  return TRUE;
}

/* `first_row` has no effect on the box: it is in rows of the whole image. */
static void set_source(j_decompress_ptr info, Source *source) {
  source->public = (struct jpeg_source_mgr){
      .next_input_byte = source->header,
      .bytes_in_buffer = source->header_bytes,
      .init_source = do_nothing,
      .fill_input_buffer = next_part,
      .skip_input_data = skip,
      .resync_to_restart = accept_restart,
      .term_source = do_nothing,
  };
  info->src = &source->public;
}

/* Widen a region so that its pixels are exact: smooth upsampling looks one pixel to each side and
 * takes the cut for the image's edge; for very few columns of colour libjpeg leaves it out. */
static void widen(const Region *region, JDIMENSION width, JDIMENSION *from, JDIMENSION *across) {
  JDIMENSION left = (JDIMENSION)region->box.left, right = (JDIMENSION)region->box.right;
  JDIMENSION begin = left ? left - 1 : 0;
  JDIMENSION until = right < width ? right + 1 : right;
  if (until - begin < LEAST_ACROSS) begin = until > LEAST_ACROSS ? until - LEAST_ACROSS : 0;
  if (until - begin < LEAST_ACROSS) until = width > LEAST_ACROSS ? LEAST_ACROSS : width;
  *from = begin;
  *across = until - begin;
}

/* Between creation and destruction of the decompressor; any error jumps out of here. `above` rows
 * of the whole image, in pixels of the shrunk one, are missing from what is decoded. */
static Outcome decode_rows(j_decompress_ptr info, Region *region, JDIMENSION height,
                           JDIMENSION above, uint8_t *out, size_t room, char *message) {
  jpeg_read_header(info, TRUE);
  if (info->image_width != region->width || info->image_height != height)
    return refuse(message, "the image has another size than its index says");
  if (info->progressive_mode || info->arith_code || info->data_precision != 8 ||
      jpeg_has_multiple_scans(info))
    return NOT_HANDLED;
  if (info->jpeg_color_space != JCS_YCbCr && info->jpeg_color_space != JCS_GRAYSCALE)
    return NOT_HANDLED;
  info->out_color_space = JCS_EXT_RGB;
  info->dct_method = JDCT_ISLOW;
  info->do_fancy_upsampling = TRUE;
  info->scale_num = 1;
  info->scale_denom = (unsigned int)region->scale;
  jpeg_start_decompress(info);
  JDIMENSION left = (JDIMENSION)region->box.left, right = (JDIMENSION)region->box.right;
  JDIMENSION top = (JDIMENSION)region->box.top - above;
  JDIMENSION bottom = (JDIMENSION)region->box.bottom - above;
  if (right > info->output_width || bottom > info->output_height)
    return refuse(message, "the region lies outside the image");
  JDIMENSION from, across;
  widen(region, info->output_width, &from, &across);
  jpeg_crop_scanline(info, &from, &across);
  if (from > left || from + across < right)
    return refuse(message, "libjpeg cut the region short");
  if (top && jpeg_skip_scanlines(info, top) != top)
    return refuse(message, "libjpeg skipped fewer rows than asked");

  region->across = across;
  region->indent = left - from;
  size_t stride = (size_t)across * CHANNELS;
  if ((size_t)(bottom - top) > room / stride)
    return refuse(message, "the buffer is too small for the region");
  while (info->output_scanline < bottom) {
    /* More rows than libjpeg makes at a time, straight to their place: copying rows one by one
     * costs a fifth of a decode. */
    JSAMPROW rows[ROWS_AT_A_TIME];
    JDIMENSION rest = bottom - info->output_scanline;
    for (JDIMENSION k = 0; k < ROWS_AT_A_TIME && k < rest; k++) rows[k] = out + k * stride;
    JDIMENSION made =
        jpeg_read_scanlines(info, rows, rest < ROWS_AT_A_TIME ? rest : ROWS_AT_A_TIME);
    if (made == 0) return refuse(message, "libjpeg made no row");
    out += made * stride;
  }
  return DONE;
}

static const char *trouble(size_t size, const Region *region) {
  const Box *box = &region->box;
  int64_t scale = region->scale;
  if (scale != 1 && scale != 2 && scale != 4 && scale != 8)
    return "the scale is none of 1, 2, 4, 8";
  if (region->width < 1 || region->height < 1 || region->width > JPEG_MAX_DIMENSION ||
      region->height > JPEG_MAX_DIMENSION)
    return "no JPEG has this size";
  if (box->left < 0 || box->top < 0 || box->left >= box->right || box->top >= box->bottom ||
      box->right > region->width || box->bottom > region->height)
    return "the region is empty or lies outside the image";
  if (size < 4) return "too few bytes for a JPEG";
  return NULL;
}

Outcome decode_region(const uint8_t *data, size_t size, Region *region, uint8_t *out, size_t room,
                      char *message) {
  /* A new decompressor for each image: one that is used again keeps the tables of the image before,
   * and would decode a file that lacks its own. */
  struct jpeg_decompress_struct info;
  Errors errors = {.message = message};
  Source source;
  const char *why = trouble(size, region);
  if (why != NULL) return refuse(message, why);
  /* Rows below the region are not read: a file that was cut off there is left to the full decode,
   * which refuses it. */
  if (data[size - 2] != 0xFF || data[size - 1] != JPEG_EOI) return NOT_HANDLED;
  memset(&info, 0, sizeof info); /* so that it may be destroyed wherever its creation failed */
  info.err = jpeg_std_error(&errors.public);
  errors.public.error_exit = leave;
  errors.public.emit_message = note;
  if (setjmp(errors.escape)) {
    jpeg_destroy_decompress(&info);
    return FAILED;
  }
  jpeg_create_decompress(&info);
  JDIMENSION above = 0, height = (JDIMENSION)region->height;
  if (region->use_table && cut_rows(data, size, region, &source)) {
    set_source(&info, &source);
    above = source.first_row / (JDIMENSION)region->scale;
    height = source.height;
  } else {
    jpeg_mem_src(&info, (unsigned char *)data, (unsigned long)size);
  }
  Outcome outcome = decode_rows(&info, region, height, above, out, room, message);
  jpeg_destroy_decompress(&info);
  return outcome;
}
