/* Which part of an image is shown, drawn by a hash of (seed, epoch, sample).
 *
 * Invariant: boxes are those of `stoker.data.loading.crops` to the last bit, with the hash of
 * `stoker.chance`. Only +, -, *, / and square roots are used, in the same order as there.
 */

#include "region.h"

#include <math.h>

enum { TRIES = 10 };
static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
/* crc32 of these words, as the hash of a string begins. */
static const uint64_t SHIFT = 0xA50B3B45u, FLIP = 0x9AFEE455u;
static const uint64_t AREA = 0xD7943D68u, ASPECT = 0xF083C355u, PLACE = 0x741D53CDu;

static uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

static uint64_t with(uint64_t state, uint64_t part) {
  return mix(state + GOLDEN + mix(part + GOLDEN));
}

/* The nth number in [0, 1) of a purpose. */
static double drawn(uint64_t state, uint64_t purpose, int nth) {
  return (double)(with(with(state, purpose), (uint64_t)nth) >> 11) * 0x1p-53;
}

static double smaller(double a, double b) { return a < b ? a : b; }

static Box box_at(double left, double top, double across, double down) {
  return (Box){(int64_t)left, (int64_t)top, (int64_t)(left + across), (int64_t)(top + down)};
}

static Box centre_box(double share, double wide, double high) {
  double side = floor(smaller(wide, high) * share + 0.5);
  if (side < 1) side = 1;
  return box_at(floor((wide - side) / 2), floor((high - side) / 2), side, side);
}

/* (4/3) ** exponent by its series: exp() differs between libraries. */
static double power_of_four_thirds(double exponent) {
  double x = exponent * 0.28768207245178085, total = 1;
  for (int degree = 12; degree > 0; degree--) total = 1 + total * x / degree;
  return total;
}

static Box resized_box(const View *view, uint64_t state, double wide, double high) {
  for (int try = 0; try < TRIES; try++) {
    double area = drawn(state, AREA, try) * (1 - view->crop_scale) + view->crop_scale;
    double ratio = power_of_four_thirds(2 * drawn(state, ASPECT, try) - 1);
    double pixels = wide * high * area;
    double across = floor(sqrt(pixels * ratio) + 0.5);
    double down = floor(sqrt(pixels / ratio) + 0.5);
    if (across <= wide && down <= high && across >= 1 && down >= 1)
      return box_at(floor(drawn(state, PLACE, 0) * (wide - across + 1)),
                    floor(drawn(state, PLACE, 1) * (high - down + 1)), across, down);
  }
  return centre_box(1.0, wide, high);
}

static int64_t shift_of(uint64_t state, int nth, double limit) {
  return (int64_t)(floor(drawn(state, SHIFT, nth) * (2 * limit + 1)) - limit);
}

void draw_box(const View *view, int64_t size, Row *row) {
  uint64_t state = with(with(with(0, view->seed), (uint64_t)row->epoch), (uint64_t)row->sample);
  double wide = (double)row->width, high = (double)row->height;
  if (view->crop == CROP_RESIZED) {
    row->box = resized_box(view, state, wide, high);
  } else {
    Box box = centre_box(view->crop_pct, wide, high);
    if (view->crop == CROP_PAD) {
      double side = (double)(box.right - box.left);
      double limit = floor(smaller(view->crop_pad * side / (double)size, side - 1) + 0.5);
      int64_t across = shift_of(state, 0, limit), down = shift_of(state, 1, limit);
      box = (Box){box.left + across, box.top + down, box.right + across, box.bottom + down};
    }
    row->box = box;
  }
  row->flip = view->mirrored && drawn(state, FLIP, 0) < 0.5;
}
