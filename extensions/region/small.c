/* Small raw images of shards in memory: their boxes are drawn and shown in one call.
 *
 * Invariants: boxes are those of `stoker.data.loading.crops`, drawn with the hash of
 * `stoker.chance`; the bytes are those of `write_box`, faster where a box is as large as the image.
 */

#include "region.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
static const uint64_t SHIFT = 0xA50B3B45u, FLIP = 0x9AFEE455u; /* crc32 of these two words */

static uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

static uint64_t with(uint64_t state, uint64_t part) {
  return mix(state + GOLDEN + mix(part + GOLDEN));
}

static double uniform(uint64_t key) { return (double)(key >> 11) * 0x1p-53; }

void draw_box(const Draws *draws, int64_t number, int64_t box[5]) {
  uint64_t state = with(with(0, draws->seed), (uint64_t)draws->epochs[number]);
  state = with(state, (uint64_t)draws->samples[number]);
  for (int side = 0; side < 2; side++) {
    int64_t shift = 0;
    if (draws->limit > 0) {
      double drawn = uniform(with(with(state, SHIFT), (uint64_t)side));
      shift = (int64_t)floor(drawn * (double)(2 * draws->limit + 1)) - draws->limit;
    }
    box[side] = draws->corner + shift;
    box[side + 2] = box[side] + draws->across;
  }
  box[4] = draws->mirrored && uniform(with(with(state, FLIP), 0)) < 0.5;
}

/* The columns of a row that lie outside the image, from the mirrored ones inside. */
static void fill_outside(const uint8_t *row, int64_t side, int64_t left, int flip, uint8_t *out) {
  int64_t from = left < 0 ? 0 : side - left, until = left < 0 ? -left : side;
  for (int64_t x = from; x < until; x++) {
    int64_t place = flip ? side - 1 - x : x;
    memcpy(out + place * CHANNELS, row + reflected(x + left, side) * CHANNELS, CHANNELS);
  }
}

/* A box as large as the image, moved by less than its side. */
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

static Outcome gather_one(const Gather *job, Resizer *resizer, int64_t number, uint8_t *room,
                          size_t room_bytes, uint8_t *out) {
  int64_t side = job->side, bytes = side * side * CHANNELS, drawn[5];
  const int64_t *box = job->boxes ? job->boxes + 5 * number : drawn;
  int64_t shard = job->numbers[number], offset = job->offsets[number];
  if (shard < 0 || shard >= job->shards_count || offset < 0) return NOT_HANDLED;
  if ((size_t)bytes > job->shards[shard].size ||
      (size_t)offset > job->shards[shard].size - (size_t)bytes)
    return NOT_HANDLED;
  if (!job->boxes) draw_box(&job->draws, number, drawn);
  for (int k = 0; k < 4; k++)
    if (box[k] < -side || box[k] > 2 * side) return NOT_HANDLED;
  const uint8_t *first = job->shards[shard].bytes + offset;
  int64_t left = box[0], top = box[1];
  if (box[2] - left == side && box[3] - top == side && job->size == side && left > -side &&
      left < side && top > -side && top < side) {
    shift_image(first, side, left, top, box[4] != 0, out);
    return DONE;
  }
  Image image = {first, (size_t)side * CHANNELS, side, side};
  return write_box(resizer, image, (Box){left, top, box[2], box[3]}, box[4] != 0, room, room_bytes,
                   out);
}

void gather(Gather *job) {
  size_t image_bytes = (size_t)(job->size * job->size) * CHANNELS;
  /* Boxes reach from -side to 2 side at most. */
  size_t room_bytes = 9 * (size_t)(job->side * job->side) * CHANNELS;
  Resizer *resizer = new_resizer(job->size);
  uint8_t *room = malloc(room_bytes);
  for (int64_t k = 0; k < job->count; k++)
    job->outcomes[k] = resizer == NULL || room == NULL
                           ? NOT_HANDLED
                           : (uint8_t)gather_one(job, resizer, k, room, room_bytes,
                                                 job->out + (size_t)k * image_bytes);
  free(room);
  free_resizer(resizer);
}
