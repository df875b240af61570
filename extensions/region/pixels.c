/* A box of an image: mirrored outside the image's edges, resized, mirrored as a whole.
 *
 * Invariant: the bytes are those of OpenCV's copyMakeBorder (BORDER_REFLECT_101), resize
 * (INTER_LINEAR, 8 bits, its fixed-point arithmetic) and flip. A weight has 11 bits; a row is
 * resized to 15 bits, then two rows are added, each rounded down, and rounded to 8 bits.
 */

#include "region.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define X86 1
#endif

enum { WEIGHT_ONE = 2048, LARGEST_SIZE = 1 << 15, LOADED = 11 };

struct Resizer {
  int64_t size;
  int32_t *at;       /* of each output column: the byte of its left pixel in a row of the box */
  int16_t *weights;  /* of each output column: for that pixel and the next one */
  int16_t *rows[2];  /* two resized rows of the box */
  int64_t row_of[2]; /* which ones; -1: none */
};

static int portable_only = 0;
void use_portable_code(int only) { portable_only = only; }

Resizer *new_resizer(int64_t size) {
  if (size < 1 || size > LARGEST_SIZE) return NULL;
  Resizer *resizer = calloc(1, sizeof *resizer);
  if (resizer == NULL) return NULL;
  /* Eight more values: a vector may be written at the end of a row. */
  size_t values = (size_t)size * CHANNELS + 8;
  resizer->size = size;
  resizer->at = malloc((size_t)size * sizeof *resizer->at);
  resizer->weights = malloc(2 * (size_t)size * sizeof *resizer->weights);
  for (int k = 0; k < 2; k++) resizer->rows[k] = malloc(values * sizeof **resizer->rows);
  if (!resizer->at || !resizer->weights || !resizer->rows[0] || !resizer->rows[1]) {
    free_resizer(resizer);
    return NULL;
  }
  return resizer;
}

void free_resizer(Resizer *resizer) {
  if (resizer == NULL) return;
  free(resizer->at);
  free(resizer->weights);
  free(resizer->rows[0]);
  free(resizer->rows[1]);
  free(resizer);
}

/* The source position and weights of one output position, as OpenCV computes them. */
static int64_t source_of(int64_t number, double scale, float *share) {
  float position = (float)(((double)number + 0.5) * scale - 0.5);
  int64_t whole = (int64_t)floorf(position);
  *share = position - (float)whole;
  return whole;
}

static int16_t weight(float share) { return (int16_t)lrintf(share * WEIGHT_ONE); }

/* Mirrored columns are read from the other end, so that mirroring costs nothing. Returns in from
 * and until the columns for which LOADED bytes may be read from a row of the box. */
static void plan_columns(Resizer *resizer, int64_t across, int flip, int64_t *from,
                         int64_t *until) {
  int64_t size = resizer->size, inside = 0;
  double scale = 1.0 / ((double)size / (double)across);
  for (int64_t x = 0; x < size; x++) {
    float share;
    int64_t column = source_of(x, scale, &share);
    if (column < 0) column = 0, share = 0;
    if (column >= across - 1) column = across - 1, share = 0;
    int64_t place = flip ? size - 1 - x : x;
    resizer->at[place] = (int32_t)(column * CHANNELS);
    resizer->weights[2 * place] = weight(1.f - share);
    resizer->weights[2 * place + 1] = weight(share);
    if (column * CHANNELS + LOADED <= across * CHANNELS) inside = x + 1;
  }
  *from = flip ? size - inside : 0;
  *until = flip ? size : inside;
}

static void resize_row(const Resizer *resizer, const uint8_t *row, int64_t from, int64_t until,
                       int16_t *out) {
  for (int64_t x = from; x < until; x++) {
    const uint8_t *pixel = row + resizer->at[x];
    int left = resizer->weights[2 * x], right = resizer->weights[2 * x + 1];
    for (int c = 0; c < CHANNELS; c++) {
      /* The last column has no neighbour, and its weight is 0. */
      int sum = pixel[c] * left + (right ? pixel[c + CHANNELS] * right : 0);
      out[x * CHANNELS + c] = (int16_t)(sum >> 4);
    }
  }
}

static void add_rows(const int16_t *above, const int16_t *below, int weight_above,
                     int weight_below, int64_t from, int64_t values, uint8_t *out) {
  for (int64_t k = from; k < values; k++)
    out[k] = (uint8_t)((((above[k] * weight_above) >> 16) + ((below[k] * weight_below) >> 16) + 2) >> 2);
}

#ifdef __SSE2__
/* Two output columns at a time. Writes one value too many behind each: the next column's, or the
 * spare ones at the end of a row. */
static int64_t resize_row_sse2(const Resizer *resizer, const uint8_t *row, int64_t from,
                               int64_t until, int16_t *out) {
  const __m128i zero = _mm_setzero_si128();
  for (; from + 2 <= until; from += 2) {
    __m128i sums[2];
    for (int k = 0; k < 2; k++) {
      const uint8_t *pixel = row + resizer->at[from + k];
      int32_t both;
      memcpy(&both, resizer->weights + 2 * (from + k), sizeof both);
      /* r r' g g' b b': each channel beside the next pixel's. */
      __m128i pairs = _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)pixel),
                                        _mm_loadl_epi64((const __m128i *)(pixel + CHANNELS)));
      __m128i wide = _mm_unpacklo_epi8(pairs, zero);
      sums[k] = _mm_srai_epi32(_mm_madd_epi16(wide, _mm_set1_epi32(both)), 4);
    }
    __m128i packed = _mm_packs_epi32(sums[0], sums[1]);
    _mm_storel_epi64((__m128i *)(out + from * CHANNELS), packed);
    _mm_storel_epi64((__m128i *)(out + (from + 1) * CHANNELS), _mm_srli_si128(packed, 8));
  }
  return from;
}

static int64_t add_rows_sse2(const int16_t *above, const int16_t *below, int weight_above,
                             int weight_below, int64_t values, uint8_t *out) {
  const __m128i first = _mm_set1_epi16((short)weight_above);
  const __m128i second = _mm_set1_epi16((short)weight_below);
  const __m128i two = _mm_set1_epi16(2);
  int64_t k = 0;
  for (; k + 16 <= values; k += 16) {
    __m128i halves[2];
    for (int half = 0; half < 2; half++) {
      __m128i a = _mm_loadu_si128((const __m128i *)(above + k + 8 * half));
      __m128i b = _mm_loadu_si128((const __m128i *)(below + k + 8 * half));
      __m128i sum = _mm_add_epi16(_mm_mulhi_epi16(a, first), _mm_mulhi_epi16(b, second));
      halves[half] = _mm_srai_epi16(_mm_add_epi16(sum, two), 2);
    }
    _mm_storeu_si128((__m128i *)(out + k), _mm_packus_epi16(halves[0], halves[1]));
  }
  return k;
}
#endif

static const int16_t *resized_row(Resizer *resizer, const uint8_t *box, size_t stride, int64_t row,
                                  int64_t from, int64_t until) {
  int slot = (int)(row & 1); /* neighbours are in different slots */
  if (resizer->row_of[slot] != row) {
    const uint8_t *source = box + (size_t)row * stride;
    int16_t *out = resizer->rows[slot];
    int64_t done = from;
#ifdef __SSE2__
    if (!portable_only) done = resize_row_sse2(resizer, source, from, until, out);
#endif
    resize_row(resizer, source, done, until, out);
    /* Last: what a vector wrote beyond its columns is written again. */
    resize_row(resizer, source, until, resizer->size, out);
    resize_row(resizer, source, 0, from, out);
    resizer->row_of[slot] = row;
  }
  return resizer->rows[slot];
}

static void resize(Resizer *resizer, const uint8_t *box, size_t stride, int64_t across,
                   int64_t down, int flip, uint8_t *out) {
  int64_t size = resizer->size, values = size * CHANNELS, from, until;
  double scale = 1.0 / ((double)size / (double)down);
  plan_columns(resizer, across, flip, &from, &until);
  resizer->row_of[0] = resizer->row_of[1] = -1;
  for (int64_t y = 0; y < size; y++, out += values) {
    float share;
    int64_t above = source_of(y, scale, &share), below = above + 1, done = 0;
    if (above < 0) above = 0;
    if (below < 0) below = 0;
    if (above > down - 1) above = down - 1;
    if (below > down - 1) below = down - 1;
    const int16_t *first = resized_row(resizer, box, stride, above, from, until);
    const int16_t *second = resized_row(resizer, box, stride, below, from, until);
    int weight_above = weight(1.f - share), weight_below = weight(share);
#ifdef __SSE2__
    if (!portable_only)
      done = add_rows_sse2(first, second, weight_above, weight_below, values, out);
#endif
    add_rows(first, second, weight_above, weight_below, done, values, out);
  }
}

static void reverse_row_portable(const uint8_t *row, int64_t from, int64_t pixels, uint8_t *out) {
  for (int64_t x = from; x < pixels; x++)
    memcpy(out + (pixels - 1 - x) * CHANNELS, row + x * CHANNELS, CHANNELS);
}

#ifdef X86
/* Five pixels at a time. The byte before them is written too and belongs to the next five; the last
 * ones are written with some of those before them. Returns how many are written. */
__attribute__((target("ssse3"))) static int64_t reverse_row_ssse3(const uint8_t *row,
                                                                  int64_t pixels, uint8_t *out) {
  const __m128i order = _mm_setr_epi8(-1, 12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2);
  int64_t x = 0;
  for (; x + 6 <= pixels; x += 5) {
    __m128i five = _mm_loadu_si128((const __m128i *)(row + x * CHANNELS));
    uint8_t *place = out + (pixels - 5 - x) * CHANNELS;
    _mm_storeu_si128((__m128i *)(place - 1), _mm_shuffle_epi8(five, order));
  }
  if (x == 0) return 0;
  const __m128i last = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
  __m128i five = _mm_shuffle_epi8(
      _mm_loadu_si128((const __m128i *)(row + pixels * CHANNELS - 16)), last);
  /* The sixteenth byte is there already. */
  _mm_storel_epi64((__m128i *)out, five);
  _mm_storel_epi64((__m128i *)(out + 7), _mm_srli_si128(five, 7));
  return pixels;
}
#endif

static void reverse_row(const uint8_t *row, int64_t pixels, uint8_t *out) {
  int64_t done = 0;
#ifdef X86
  if (!portable_only && __builtin_cpu_supports("ssse3")) done = reverse_row_ssse3(row, pixels, out);
#endif
  reverse_row_portable(row, done, pixels, out);
}

static int64_t reflected(int64_t index, int64_t side) {
  if (index < 0) index = -index;
  if (index < side) return index;
  if (index < 2 * side - 1) return 2 * side - 2 - index; /* without a division */
  if (side == 1) return 0;
  index %= 2 * side - 2;
  return index < side ? index : 2 * side - 2 - index;
}

/* The columns of a row that lie outside the image, from the mirrored ones inside. */
static void fill_outside(const uint8_t *row, int64_t side, int64_t left, int flip, uint8_t *out) {
  int64_t from = left < 0 ? 0 : side - left, until = left < 0 ? -left : side;
  for (int64_t x = from; x < until; x++) {
    int64_t place = flip ? side - 1 - x : x;
    memcpy(out + place * CHANNELS, row + reflected(x + left, side) * CHANNELS, CHANNELS);
  }
}

/* A box as large as the image, which is a square without gaps, moved by less than its side. */
static void shift_image(const uint8_t *image, int64_t side, int64_t left, int64_t top, int flip,
                        uint8_t *out) {
  int64_t row_bytes = side * CHANNELS, all = side * row_bytes;
  int64_t apart = left < 0 ? -left : left;
  if (!flip) {
    /* The rows inside as one block; the columns that come from a neighbouring row are wrong, and
     * are written again below. */
    int64_t from = top * row_bytes + left * CHANNELS;
    int64_t begin = from > 0 ? from : 0, end = from + all < all ? from + all : all;
    memcpy(out + (begin - from), image + begin, (size_t)(end - begin));
  }
  for (int64_t y = 0; y < side; y++, out += row_bytes) {
    int is_outside = y + top < 0 || y + top >= side;
    if (!flip && !apart && !is_outside) continue;
    const uint8_t *row = image + reflected(y + top, side) * row_bytes;
    const uint8_t *inside = row + (left > 0 ? left : 0) * CHANNELS;
    if (flip)
      reverse_row(inside, side - apart, out + (left > 0 ? left : 0) * CHANNELS);
    else if (is_outside)
      memcpy(out + (left < 0 ? -left : 0) * CHANNELS, inside, (size_t)(side - apart) * CHANNELS);
    if (apart) fill_outside(row, side, left, flip, out);
  }
}

static void copy_with_edges(Image image, Box box, uint8_t *room) {
  int64_t begin = box.left > 0 ? box.left : 0;
  int64_t end = box.right < image.width ? box.right : image.width;
  for (int64_t y = box.top; y < box.bottom; y++) {
    const uint8_t *row = image.first + (size_t)reflected(y, image.height) * image.stride;
    for (int64_t x = box.left; x < box.right; x++, room += CHANNELS) {
      if (x == begin && end > begin) {
        memcpy(room, row + x * CHANNELS, (size_t)(end - begin) * CHANNELS);
        room += (end - begin - 1) * CHANNELS;
        x = end - 1;
      } else {
        memcpy(room, row + reflected(x, image.width) * CHANNELS, CHANNELS);
      }
    }
  }
}

static int is_inside(Image image, Box box) {
  return box.left >= 0 && box.top >= 0 && box.right <= image.width && box.bottom <= image.height;
}

size_t room_of(Image image, Box box) {
  if (is_inside(image, box)) return 0;
  return (size_t)((box.right - box.left) * (box.bottom - box.top)) * CHANNELS;
}

static int is_shifted(Image image, Box box, int64_t size) {
  return image.width == size && image.height == size &&
         image.stride == (size_t)size * CHANNELS && box.left > -size && box.left < size &&
         box.top > -size && box.top < size;
}

int is_shown(int64_t across, int64_t down, int64_t size) {
  int64_t shorter = across < down ? across : down;
  if (shorter < 1 || across > LARGEST_SIZE || down > LARGEST_SIZE) return 0;
  return (across == size && down == size) || shorter < 2 * size;
}

Outcome write_box(Resizer *resizer, Image image, Box box, int flip, uint8_t *room,
                  size_t room_bytes, uint8_t *out) {
  int64_t size = resizer->size, across = box.right - box.left, down = box.bottom - box.top;
  const uint8_t *first = image.first;
  size_t stride = image.stride;
  if (!is_shown(across, down, size)) return NOT_HANDLED;
  if (across == size && down == size && is_shifted(image, box, size)) {
    shift_image(first, size, box.left, box.top, flip, out);
    return DONE;
  }
  if (!is_inside(image, box)) {
    if (room_of(image, box) > room_bytes) return NOT_HANDLED;
    copy_with_edges(image, box, room);
    first = room;
    stride = (size_t)across * CHANNELS;
  } else {
    first += (size_t)box.top * stride + (size_t)box.left * CHANNELS;
  }
  if (across != size || down != size) {
    resize(resizer, first, stride, across, down, flip, out);
    return DONE;
  }
  for (int64_t y = 0; y < size; y++, first += stride, out += size * CHANNELS) {
    if (flip)
      reverse_row(first, size, out);
    else
      memcpy(out, first, (size_t)size * CHANNELS);
  }
  return DONE;
}
