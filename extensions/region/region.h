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

/* Whether a box of this size is shown by `write_box`: averaging over areas is left to OpenCV. */
int is_shown(int64_t across, int64_t down, int64_t size);
/* Write a box, which may reach outside the image, to `out`. `room` has `room_bytes` for a box with
 * its mirrored edges. NOT_HANDLED: too little room, or `is_shown` is false. */
Outcome write_box(Resizer *resizer, Image image, Box box, int flip, uint8_t *room,
                  size_t room_bytes, uint8_t *out);
/* Bytes of `room` that `write_box` needs. */
size_t room_of(Image image, Box box);

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

/* draw.c and chunk.c: the images of a chunk, read and shown. */

enum { READ = 1, SHOW = 2, SLEEP = 4 };
enum { CROP_CENTRE, CROP_PAD, CROP_RESIZED };

typedef struct {
  int crop, mirrored;
  double crop_scale, crop_pad, crop_pct;
  uint64_t seed;
} View;

typedef struct {
  int64_t file, offset, length, place; /* `place`: where the stored bytes are in `stored` */
  int64_t width, height;
  int64_t sample, epoch;
  Box box; /* in stored pixels; may reach outside */
  int64_t flip;
} Row;

/* Set the box and the flip of a row, as `stoker.data.loading.crops` draws them. */
void draw_box(const View *view, int64_t size, Row *row);

typedef struct {
  const uint8_t *bytes;
  size_t size;
} Shard;

typedef struct {
  const Row *rows;
  int64_t count, size;
  const View *view; /* NULL: boxes are those of the rows */
  int steps, raw;
  int64_t pause_ns; /* SLEEP: sleep this long for each image, and neither read nor show it */
  uint8_t *stored, *out;
  size_t stored_bytes;
  const Shard *shards; /* NULL: stored bytes are in `stored`; else `file` is the number of a shard */
  int64_t shards_count;
  uint8_t *outcomes;
  double read_s, read_cpu_s;
  uint8_t *room; /* for decoded pixels; grows */
  size_t room_bytes;
} Chunk;

void fill_chunk(Chunk *chunk);

#endif
