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
#include <time.h>
#include <unistd.h>

static double seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int is_sound(const Row *row, size_t stored_bytes) {
  const int64_t edges[] = {row->box.left, row->box.top,  row->box.right,
                           row->box.bottom, row->width, row->height};
  for (size_t k = 0; k < sizeof edges / sizeof *edges; k++)
    if (edges[k] < INT_MIN || edges[k] > INT_MAX) return 0;
  return row->length > 0 && row->place >= 0 && row->offset >= 0 && row->width > 0 &&
         row->height > 0 && row->box.left < row->box.right && row->box.top < row->box.bottom &&
         (uint64_t)row->length <= stored_bytes &&
         (uint64_t)row->place <= stored_bytes - (uint64_t)row->length;
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
  if (!is_shown(box.right - box.left, box.bottom - box.top, chunk->size)) return NOT_HANDLED;
  /* A box that reaches outside needs the whole image, which is mirrored there. */
  int inside = row->box.left >= 0 && row->box.top >= 0 && row->box.right <= row->width &&
               row->box.bottom <= row->height;
  Region region = {.width = row->width,
                   .height = row->height,
                   .box = inside ? box : (Box){0, 0, width, height},
                   .scale = scale,
                   .use_table = inside};
  Outcome outcome = decode_region(data, (size_t)row->length, &region, chunk->room,
                                  chunk->room_bytes, message);
  if (outcome != DONE) return outcome;
  size_t stride = (size_t)region.across * CHANNELS;
  size_t used = stride * (size_t)(region.box.bottom - region.box.top);
  Image image = {.first = chunk->room + region.indent * CHANNELS,
                 .stride = stride,
                 .width = region.box.right - region.box.left,
                 .height = region.box.bottom - region.box.top};
  if (inside) box = (Box){0, 0, image.width, image.height};
  return write_box(resizer, image, box, (int)row->flip, chunk->room + used,
                   chunk->room_bytes - used, out);
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
  return write_box(resizer, image, row->box, (int)row->flip, chunk->room, chunk->room_bytes, out);
}

static Outcome fill_one(Chunk *chunk, Resizer *resizer, const Row *row, uint8_t *out) {
  if (!is_sound(row, chunk->stored_bytes)) return NOT_HANDLED;
  uint8_t *data = chunk->stored + row->place;
  if (chunk->steps & READ) {
    double began = seconds(CLOCK_MONOTONIC), cpu_began = seconds(CLOCK_THREAD_CPUTIME_ID);
    int whole = read_all(row, data);
    chunk->read_s += seconds(CLOCK_MONOTONIC) - began;
    chunk->read_cpu_s += seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_began;
    if (!whole) return FAILED;
  }
  if (!(chunk->steps & SHOW)) return DONE;
  return (chunk->raw ? show_raw : show_jpeg)(chunk, resizer, row, data, out);
}

void fill_chunk(Chunk *chunk) {
  size_t image_bytes = (size_t)(chunk->size * chunk->size) * CHANNELS;
  Resizer *resizer = chunk->steps & SHOW ? new_resizer(chunk->size) : NULL;
  for (int64_t k = 0; k < chunk->count; k++) {
    if (chunk->steps & SLEEP) {
      struct timespec pause = {chunk->pause_ns / 1000000000, chunk->pause_ns % 1000000000};
      nanosleep(&pause, NULL);
      chunk->outcomes[k] = DONE;
    } else if (chunk->steps & SHOW && resizer == NULL) {
      chunk->outcomes[k] = NOT_HANDLED;
    } else {
      uint8_t *out = chunk->out + (size_t)k * image_bytes;
      chunk->outcomes[k] = (uint8_t)fill_one(chunk, resizer, chunk->rows + k, out);
    }
  }
  free_resizer(resizer);
}
