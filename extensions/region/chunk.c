/* Read, decode and show the images of a chunk, one after the other.
 *
 * Invariants: an image is shown in full or counts as not shown; what its place in `out` holds then
 * does not matter, because the caller shows it in another way. A row is not trusted: nothing is
 * read or written outside the buffers, whatever its numbers are.
 */

#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST_JPEG = 65500 };

static double seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int is_box(const Box *box) {
  const int64_t edges[] = {box->left, box->top, box->right, box->bottom};
  for (size_t k = 0; k < sizeof edges / sizeof *edges; k++)
    if (edges[k] < INT_MIN || edges[k] > INT_MAX) return 0;
  return box->left < box->right && box->top < box->bottom;
}

/* Where the stored bytes of a row are, or are to be read to; NULL for a row that makes no sense. */
static uint8_t *place_of(const Chunk *chunk, const Row *row) {
  uint8_t *bytes = chunk->stored;
  size_t size = chunk->stored_bytes;
  int64_t place = row->place;
  if (row->width < 1 || row->height < 1 || row->width > INT_MAX || row->height > INT_MAX ||
      row->length < 1 || row->offset < 0)
    return NULL;
  if (chunk->shards != NULL) {
    if (row->file < 0 || row->file >= chunk->shards_count) return NULL;
    bytes = (uint8_t *)chunk->shards[row->file].bytes; /* only read: see fill_one */
    size = chunk->shards[row->file].size;
    place = row->offset;
  }
  if (place < 0 || (uint64_t)row->length > size || (uint64_t)place > size - (uint64_t)row->length)
    return NULL;
  return bytes + place;
}

/* Make room for decoded pixels; 0 without memory. */
static int make_room(Chunk *chunk, size_t bytes) {
  if (bytes <= chunk->room_bytes) return 1;
  free(chunk->room);
  chunk->room = malloc(bytes);
  chunk->room_bytes = chunk->room == NULL ? 0 : bytes;
  return chunk->room != NULL;
}

static int read_all(const Row *row, uint8_t *into) {
  int64_t done = 0;
  while (done < row->length) {
    ssize_t got = pread((int)row->file, into + done, (size_t)(row->length - done),
                        (off_t)(row->offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    done += got;
  }
  return 1;
}

static int64_t floor_of(int64_t number, int64_t divisor) {
  return number >= 0 ? number / divisor : -((-number + divisor - 1) / divisor);
}

/* The largest power of two, at most 8, that leaves both sides of a box `size` pixels. */
static int64_t shrink_factor(Box box, int64_t size) {
  int64_t across = box.right - box.left, down = box.bottom - box.top, scale = 1;
  int64_t times = (across < down ? across : down) / size;
  while (scale < 8 && 2 * scale <= times) scale *= 2;
  return scale;
}

static Outcome show_jpeg(Chunk *chunk, Resizer *resizer, const Row *row, const uint8_t *data,
                         uint8_t *out) {
  char message[MESSAGE_BYTES];
  int64_t scale = shrink_factor(row->box, chunk->size);
  int64_t width = (row->width + scale - 1) / scale, height = (row->height + scale - 1) / scale;
  Box box = {floor_of(row->box.left, scale), floor_of(row->box.top, scale),
             floor_of(row->box.right, scale), floor_of(row->box.bottom, scale)};
  if (row->width > LARGEST_JPEG || row->height > LARGEST_JPEG ||
      !is_shown(box.right - box.left, box.bottom - box.top, chunk->size))
    return NOT_HANDLED;
  /* A box that reaches outside needs the whole image, which is mirrored there. */
  int inside = row->box.left >= 0 && row->box.top >= 0 && row->box.right <= row->width &&
               row->box.bottom <= row->height;
  Region region = {.width = row->width,
                   .height = row->height,
                   .box = inside ? box : (Box){0, 0, width, height},
                   .scale = scale,
                   .use_table = inside};
  Image image = {.width = region.box.right - region.box.left,
                 .height = region.box.bottom - region.box.top};
  if (inside) box = (Box){0, 0, image.width, image.height};
  size_t region_bytes = (size_t)((image.width + WIDEST) * image.height) * CHANNELS;
  if (!make_room(chunk, region_bytes + room_of(image, box))) return NOT_HANDLED;
  Outcome outcome = decode_region(data, (size_t)row->length, &region, chunk->room,
                                  chunk->room_bytes, message);
  if (outcome != DONE) return outcome;
  image.first = chunk->room + region.indent * CHANNELS;
  image.stride = (size_t)region.across * CHANNELS;
  return write_box(resizer, image, box, row->flip != 0, chunk->room + region_bytes,
                   chunk->room_bytes - region_bytes, out);
}

static Outcome show_raw(Chunk *chunk, Resizer *resizer, const Row *row, const uint8_t *data,
                        uint8_t *out) {
  /* The pixels are the last bytes of the stored ones. */
  if (row->width > row->length / CHANNELS / row->height) return NOT_HANDLED;
  int64_t bytes = row->width * row->height * CHANNELS;
  Image image = {.first = data + (row->length - bytes),
                 .stride = (size_t)row->width * CHANNELS,
                 .width = row->width,
                 .height = row->height};
  if (!is_shown(row->box.right - row->box.left, row->box.bottom - row->box.top, chunk->size) ||
      !make_room(chunk, room_of(image, row->box)))
    return NOT_HANDLED;
  return write_box(resizer, image, row->box, row->flip != 0, chunk->room, chunk->room_bytes, out);
}

static Outcome fill_one(Chunk *chunk, Resizer *resizer, const Row *row, uint8_t *out) {
  uint8_t *data = place_of(chunk, row);
  if (data == NULL) return NOT_HANDLED;
  if (chunk->steps & READ && chunk->shards == NULL) {
    double began = seconds(CLOCK_MONOTONIC), cpu_began = seconds(CLOCK_THREAD_CPUTIME_ID);
    int whole = read_all(row, data);
    chunk->read_s += seconds(CLOCK_MONOTONIC) - began;
    chunk->read_cpu_s += seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_began;
    if (!whole) return FAILED;
  }
  if (!(chunk->steps & SHOW)) return DONE;
  Row shown = *row;
  if (chunk->view != NULL) draw_box(chunk->view, chunk->size, &shown);
  if (!is_box(&shown.box)) return NOT_HANDLED;
  return (chunk->raw ? show_raw : show_jpeg)(chunk, resizer, &shown, data, out);
}

static void sleep_instead(Chunk *chunk) {
  int64_t ns = chunk->count * chunk->pause_ns;
  struct timespec pause = {ns / 1000000000, ns % 1000000000};
  while (nanosleep(&pause, &pause) < 0 && errno == EINTR) continue;
  memset(chunk->outcomes, DONE, (size_t)chunk->count);
}

void fill_chunk(Chunk *chunk) {
  if (chunk->steps & SLEEP) {
    sleep_instead(chunk);
    return;
  }
  size_t image_bytes = (size_t)(chunk->size * chunk->size) * CHANNELS;
  Resizer *resizer = chunk->steps & SHOW ? new_resizer(chunk->size) : NULL;
  for (int64_t k = 0; k < chunk->count; k++) {
    if (chunk->steps & SHOW && resizer == NULL) {
      chunk->outcomes[k] = NOT_HANDLED;
    } else {
      uint8_t *out = chunk->out + (size_t)k * image_bytes;
      chunk->outcomes[k] = (uint8_t)fill_one(chunk, resizer, chunk->rows + k, out);
    }
  }
  free(chunk->room);
  free_resizer(resizer);
}
