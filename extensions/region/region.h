/* What the parts of the extra share. None of them touches Python: they run without its lock. */

#ifndef STOKER_REGION_H
#define STOKER_REGION_H

#include <stddef.h>
#include <stdint.h>

enum { CHANNELS = 3 };
typedef enum { DONE, NOT_HANDLED, FAILED } Outcome;

typedef struct {
  int64_t left, top, right, bottom;
} Box;

/* pixels.c: a box of an image, mirrored at the image's edges, resized and mirrored as a whole. */

typedef struct {
  const uint8_t *first; /* of the image's pixels; rows follow each other at `stride` bytes */
  size_t stride;
  int64_t width, height;
} Image;

typedef struct Resizer Resizer;

/* NULL without memory. One is made for a chunk: `size` is the side of its output images. */
Resizer *new_resizer(int64_t size);
void free_resizer(Resizer *resizer);
/* Use only portable C for what is vectorised otherwise: for tests. */
void use_portable_code(int only);

/* Write the pixels of a row in reverse order. */
void reverse_row(const uint8_t *row, int64_t pixels, uint8_t *out);
/* An index outside an edge mirrored to one inside; the edge itself is not repeated. */
int64_t reflected(int64_t index, int64_t side);
/* Whether a box of this size is shown by `write_box`: averaging over areas is left to OpenCV. */
int is_shown(int64_t across, int64_t down, int64_t size);
/* Write a box, which may reach outside the image, to `out`. `room` has `room_bytes` for a box with
 * its mirrored edges. NOT_HANDLED: too little room, or `is_shown` is false. */
Outcome write_box(Resizer *resizer, Image image, Box box, int flip, uint8_t *room,
                  size_t room_bytes, uint8_t *out);

/* decode.c: one rectangle of a JPEG. */

enum { MESSAGE_BYTES = 256 };

typedef struct {
  int64_t width, height; /* of the stored image, as the caller knows it */
  Box box;               /* in pixels of the shrunk image */
  int64_t scale;
  int use_table;         /* begin at a restart marker, where the file has our table of them */
  int64_t across, indent; /* found: pixels of a written row, and those before the box */
} Region;

Outcome decode_region(const uint8_t *data, size_t size, Region *region, uint8_t *out, size_t room,
                      char *message);
extern const int WIDEST, LIBJPEG_VERSION;

/* chunk.c: stored images of a chunk, read and shown. */

enum { READ = 1, SHOW = 2, SLEEP = 4 };

typedef struct {
  int64_t file, offset, length, place; /* `place`: where the stored bytes are in `stored` */
  int64_t width, height;
  Box box; /* in stored pixels; may reach outside */
  int64_t flip;
} Row;

typedef struct {
  const Row *rows;
  int64_t count, size;
  int steps, raw;
  int64_t pause_ns; /* SLEEP: an image takes this long, and nothing is read or shown */
  uint8_t *stored, *room, *out;
  size_t stored_bytes, room_bytes;
  uint8_t *outcomes;
  double read_s, read_cpu_s;
} Chunk;

void fill_chunk(Chunk *chunk);

/* small.c: small raw images of shards in memory, with boxes that are drawn here. */

typedef struct {
  const uint8_t *bytes;
  size_t size;
} Shard;

typedef struct {
  uint64_t seed;
  const int64_t *samples, *epochs;
  int64_t corner, across, limit; /* a centred square of `across` pixels, moved by up to `limit` */
  int mirrored;
} Draws;

typedef struct {
  const Shard *shards;
  int64_t shards_count, count, side, size;
  const int64_t *numbers, *offsets; /* of each image: its shard, and its first pixel there */
  const int64_t *boxes;             /* left, top, right, bottom, flip of each; NULL: draw them */
  Draws draws;
  uint8_t *out, *outcomes;
} Gather;

void gather(Gather *job);
/* Left, top, right, bottom and flip of one image's box, as `stoker.data.loading.crops` draws it. */
void draw_box(const Draws *draws, int64_t number, int64_t box[5]);

#endif
