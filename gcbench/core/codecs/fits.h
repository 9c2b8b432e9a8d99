// A method, and the parameters that fit a bucket.
//
// Every result has the bits of the eager kernels: a bucket's sum is added in a fixed order (`Tree`),
// and the build never contracts a product and a sum.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using Index = std::int64_t;
using Word = std::uint32_t;

enum Fit {
  GIVEN, LARGEST, NORM, MEAN, RMS, SIDES, HALVES, CLAMP, QUANTILES, LEAST_ERROR,
  UNBIASED, BIASED, LENGTH
};
enum Code { GRID, NEAREST, REACHES, TABLE, NEAREST_LEVEL };
enum Value { ON_GRID, SIGNED, LEVEL, TIMES_LEVEL };

struct Job {  // a method and its tensors, as one_pass.py fills it in
  Index fit, code, value, base, highest, digits, bits, fitted, step, bucket_size, buckets, tensors;
  const Index* sizes;   // of the tensors
  const float* levels;  // of all buckets, and then the places halfway between them; null: none
};

#ifdef __AVX512F__
constexpr int WIDE = 8;  // doubles in a register
#else
constexpr int WIDE = 4;
#endif

// Tables in registers

constexpr Index FEW = 16, ROW = 2 * WIDE;  // values in a table, and floats in a register
typedef float Row __attribute__((vector_size(4 * ROW)));
typedef std::int32_t Places __attribute__((vector_size(4 * ROW)));
typedef Word Words __attribute__((vector_size(4 * ROW)));

// Calls f(i, row) for n values in rows, of which the last one may be filled up with zeros.
template <class F>
inline void for_rows(const float* x, Index n, F f) {
  for (Index i = 0; i < n; i += ROW) {
    Row v = {};
    if (i + ROW <= n) std::memcpy(&v, x + i, sizeof v);
    else std::memcpy(&v, x + i, 4 * (n - i));
    f(i, v);
  }
}

struct Table {
  Row parts[FEW / ROW];

  template <class F>
  explicit Table(F value) {
    float all[FEW];
    for (Index k = 0; k < FEW; k++) all[k] = value(k);
    std::memcpy(parts, all, sizeof all);
  }

  Row operator[](Places at) const {
    const Row found = __builtin_shuffle(parts[0], at);  // of the lowest bits
    return FEW == ROW                ? found
           : at < std::int32_t(ROW) ? found
                                    : __builtin_shuffle(parts[FEW / ROW - 1], at);
  }
};

// Counts how many of fewer than 2^DEPTH ascending thresholds values reach, by bisection.
template <int DEPTH>
struct Search {
  Row tree[DEPTH];  // of each depth, the thresholds from left to right

  template <class F>
  Search(Index count, F threshold) {
    for (int d = 0; d < DEPTH; d++) {
      float row[ROW];
      for (Index k = 0; k < ROW; k++) {
        const Index at = ((2 * k + 1) << (DEPTH - 1 - d)) - 1;
        row[k] = at < count ? threshold(at) : NAN;  // which nothing reaches
      }
      std::memcpy(tree + d, row, sizeof row);
    }
  }

  Places operator()(Row v) const {
    Places place = {};
    for (int d = 0; d < DEPTH; d++) {
      place += place - (v >= __builtin_shuffle(tree[d], place));
    }
    return place;
  }
};

// Calls f with a search among fewer than 16 thresholds.
template <class T, class F>
inline void with_search(Index count, T threshold, F f) {
  if (count < 2) f(Search<1>(count, threshold));
  else if (count < 4) f(Search<2>(count, threshold));
  else if (count < 8) f(Search<3>(count, threshold));
  else f(Search<4>(count, threshold));
}

// Sums

typedef float Floats __attribute__((vector_size(4 * WIDE)));
typedef double Doubles __attribute__((vector_size(8 * WIDE)));
typedef std::int64_t Longs __attribute__((vector_size(8 * WIDE)));

// Returns floats as doubles: `__builtin_convertvector` would take them by halves.
inline Doubles widen(Floats v) {
#if defined(__AVX512F__)
  return (Doubles)_mm512_cvtps_pd((__m256)v);
#elif defined(__AVX2__)
  return (Doubles)_mm256_cvtps_pd((__m128)v);
#else
  return __builtin_convertvector(v, Doubles);
#endif
}

constexpr Index LANES = 32, BLOCK = 512, IN_LINE = LANES / WIDE;

// Sums of blocks, added in pairs of neighbors, then pairs of pairs: scales.py `fixed_sum`.
struct Tree {
  double sums[64];
  Index top = 0, count = 0;
  void add(double sum) {
    for (Index c = count++; c & 1; c >>= 1) sum = sums[--top] + sum;
    sums[top++] = sum;
  }
  double total() {
    double sum = sums[--top];
    while (top) sum = sums[--top] + sum;
    return sum;
  }
};

// Returns the sum of all lanes: halves are added to halves.
inline double add_lanes(const Doubles* lanes) {
  double sums[LANES];
  std::memcpy(sums, lanes, sizeof sums);
  for (Index half = LANES / 2; half; half /= 2) {
    for (Index i = 0; i < half; i++) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Calls f(k, values) for each register of a block's values, where k is its place in a line of lanes.
template <class F>
inline void for_lanes(const float* x, Index n, F f, float beyond = 0) {
  float last[LANES];
  std::fill_n(last, LANES, beyond);
  for (Index j = 0; j < n; j += LANES) {
    const float* line = x + j;
    if (j + LANES > n) line = static_cast<float*>(std::memcpy(last, x + j, 4 * (n - j)));
#pragma GCC unroll 8
    for (Index k = 0; k < IN_LINE; k++) {
      Floats v;
      std::memcpy(&v, line + WIDE * k, sizeof v);
      f(k, widen(v));
    }
  }
}

// Returns the sum of f over n values; `read(from, n)` returns where those of a block lie.
template <class Read, class F>
inline double sum(Read read, Index n, F f) {
  Tree tree;
  for (Index j = 0; j < n; j += BLOCK) {
    const int length = int(std::min(BLOCK, n - j));
    Doubles lanes[IN_LINE] = {};
    for_lanes(read(j, length), length, [&](Index k, Doubles v) { lanes[k] += f(v); });
    tree.add(add_lanes(lanes));
  }
  return tree.total();
}

// Writes the sums of the differences of values from one of them, and of their squares.
template <class Read>
void shifted_sums(Read read, Index n, float first, double* sums) {
  Tree differences, squares;
  const double by = first;
  for (Index j = 0; j < n; j += BLOCK) {
    const int length = int(std::min(BLOCK, n - j));
    Doubles lanes[IN_LINE] = {}, of_squares[IN_LINE] = {};
    const auto add = [&](Index k, Doubles v) {
      const Doubles difference = v - by;
      lanes[k] += difference;
      of_squares[k] += difference * difference;
    };
    for_lanes(read(j, length), length, add, first);
    differences.add(add_lanes(lanes));
    squares.add(add_lanes(of_squares));
  }
  sums[0] = differences.total(), sums[1] = squares.total();
}

const auto magnitude = [](Doubles v) { return (Doubles)((Longs)v & 0x7fffffffffffffff); };
const auto square = [](Doubles v) { return v * v; };

template <class Size>
inline float largest_of(const float* x, Size n) {
  Word most = 0;  // bits of magnitudes have their order, and those of a NaN are above all
  for (Index i = 0; i < n; i++) {
    Word bits;
    std::memcpy(&bits, x + i, sizeof bits);
    most = std::max(most, bits & 0x7fffffff);
  }
  float result;
  std::memcpy(&result, &most, sizeof result);
  return result;
}

template <class Read>
inline float largest(Read read, Index n) {
  float most[BLOCK];  // of blocks, as many times as there is room
  Index count = 0;
  for (Index j = 0; j < n; j += BLOCK) {
    const int length = int(std::min(BLOCK, n - j));
    most[count++] = largest_of(read(j, length), length);
    if (count == BLOCK) most[0] = largest_of(most, int(count)), count = 1;
  }
  return largest_of(most, int(count));
}

// Writes the means of the values that do not reach a threshold, and of those that do.
template <class Read>
void two_means(Read read, Index n, float threshold, float* low, float* high) {
  Tree below, above;
  Index reach = 0;
  const double t = threshold;
  const Doubles none = {};
  for (Index j = 0; j < n; j += BLOCK) {
    const int length = int(std::min(BLOCK, n - j));
    const float* x = read(j, length);
    Doubles low_lanes[IN_LINE] = {}, high_lanes[IN_LINE] = {};
    for_lanes(x, length, [&](Index k, Doubles v) {
      low_lanes[k] += v >= t ? none : v;
      high_lanes[k] += v >= t ? v : none;
    });
    below.add(add_lanes(low_lanes));
    above.add(add_lanes(high_lanes));
    int reached = 0;  // as wide as a float, so that a core counts sixteen at once
    for (int i = 0; i < length; i++) reached += x[i] >= threshold;
    reach += reached;
  }
  *low = float(below.total() / std::max<Index>(n - reach, 1));
  *high = float(above.total() / std::max<Index>(reach, 1));
}

// Returns what reads consecutive values.
inline auto lie(const float* x) {
  return [x](Index from, int) { return x + from; };
}

// Exact sums, which have the same bits in any order

// Rounds values to multiples of a power of two, so that sums of n of them are whole numbers below
// 2^51: levels.py `fixed_point`.
struct Fixed {
  double scale;
  Fixed(float most, Index n) {
    Word bits;
    std::memcpy(&bits, &most, 4);
    int length = 0;
    while (Index(1) << length < n) length++;
    scale = std::ldexp(1.0, 176 - length - int(std::max(bits >> 23, Word(1))));
  }
  template <class D>
  D operator()(D v) const {
    return (v * scale + 0x1.8p52) - 0x1.8p52;  // no larger double has a fraction
  }
};

// levels.py `clamp_level`: the t at which the sum of all magnitudes >= t is n t. The sum falls while
// n t rises, so that the sum at t and t itself are on either side of the result.
float clamp_level(const float* x, Index n, float most) {
  const Fixed fixed(most, n);
  const auto sum_from = [&](float from) {
    const double t = from;
    return sum(lie(x), n, [=](Doubles v) {
      const Doubles a = magnitude(v), none = {};
      return a >= t ? fixed(a) : none;
    });
  };
  const auto cross = [&](double sum) { return float(sum / n / fixed.scale); };
  double of_low = sum_from(0), of_high = -1;
  float low = 0, high = std::nextafter(cross(of_low), INFINITY), t = 0.78f * high;  // as a start
  for (int turn = 0; of_low != of_high && std::nextafter(low, high) < high; turn++) {
    if (turn && turn % 2 == 0) {  // as if both were linear
      const double a = of_low / n / fixed.scale - low, b = high - of_high / n / fixed.scale;
      t = float(low + (double(high) - low) * a / (a + b));
    }
    t = std::max(t, std::nextafter(low, high));  // what the last sum is at may be `low`
    if (turn > 12 || !(t < high)) {  // halves the floats between them
      Word from, to;
      std::memcpy(&from, &low, 4);
      std::memcpy(&to, &high, 4);
      from += (to - from) / 2;
      std::memcpy(&t, &from, 4);
    }
    const double of_t = sum_from(t);
    const float crossing = cross(of_t);
    if (crossing >= t) low = t, of_low = of_t;
    else high = t, of_high = of_t;
    t = crossing;
  }
  return of_low == of_high ? cross(of_low) : low;
}

// Order

// The values of a bucket in bins, in ascending order, and sorted only where it was asked for.
class Order {
 public:
  Order(const float* x, Index n, float most) : values(new float[n]) {
    const std::unique_ptr<std::uint16_t[]> bin(new std::uint16_t[n]);
    Word bits;
    std::memcpy(&bits, &most, 4);
    const std::int32_t lowest = std::int32_t(bits >> FINE) - (SIDE - 1);
    for (Index i = 0; i < n; i++) {
      Word of;
      std::memcpy(&of, x + i, 4);
      const std::int32_t place = std::max(std::int32_t((of & 0x7fffffff) >> FINE) - lowest, 0);
      bin[i] = std::uint16_t(of >> 31 ? SIDE - 1 - place : SIDE + place);
    }
    for (Index i = 0; i < n; i++) ends[bin[i] + 1]++;
    for (int b = 0; b < 2 * SIDE; b++) ends[b + 1] += ends[b];
    for (Index i = 0; i < n; i++) values[ends[bin[i]]++] = x[i];
  }

  // Returns the value at a place, and leaves all smaller ones before it; from `from` to `to` no
  // other place was asked for.
  float at(Index place, Index from, Index to) {
    const Index* end = std::upper_bound(ends, ends + 2 * SIDE, place);
    if (end > ends) from = std::max(from, end[-1]);
    std::nth_element(&values[from], &values[place], &values[0] + std::min(to, *end));
    return values[place];
  }

  const std::unique_ptr<float[]> values;

 private:
  // 8 bins for each of the 16 powers of two below the largest magnitude, on either side of 0.
  static constexpr int FINE = 20, SIDE = 128;
  Index ends[2 * SIDE + 1] = {};
};

// levels.py `quantile_levels`.
void quantiles(Order order, Index n, Index count, float* to) {
  for (Index k = 0, before = -1; k < count; k++) {
    const Index place = (2 * k * (n - 1) + count - 1) / (2 * (count - 1));
    to[k] = place > before ? order.at(place, before + 1, n) : to[k - 1];
    before = place;
  }
}

// levels.py `orq_levels`.
void least_error(Order order, const float* x, Index n, Index count, float most, float* to) {
  const Fixed fixed(most, n);
  const auto sum_of = [&](const float* from, Index length) {
    return length ? sum(lie(from), length, fixed) : 0;
  };
  const std::unique_ptr<Index[]> places(new Index[count]);
  const std::unique_ptr<double[]> below(new double[count]);  // the sums of all before a place
  const Index last = count - 1;
  places[0] = 0, places[last] = n - 1;
  to[0] = order.at(0, 0, n), to[last] = n > 1 ? order.at(n - 1, 1, n) : to[0];
  below[0] = 0, below[last] = sum_of(x, n) - fixed(double(to[last]));
  for (Index step = last / 2; step; step /= 2) {
    for (Index left = 0; left < last; left += 2 * step) {
      const Index right = left + 2 * step, middle = left + step;
      const double low = fixed(double(to[left])), high = fixed(double(to[right]));
      const Index from = places[left], end = places[right];
      const double above = below[right] + high - below[left] - double(end - from + 1) * low;
      const Index place =
          std::max(end - Index(above / (high > low ? high - low : 1)), from);
      places[middle] = place;
      to[middle] = place == from ? to[left] : place == end ? to[right]
                                                           : order.at(place, from + 1, end);
      if (step > 1) below[middle] = below[left] + sum_of(&order.values[from], place - from);
    }
  }
}

void fit_order(const Job& job, const float* x, Index n, float* to) {
  const float most = largest(lie(x), n);
  if (job.fit == CLAMP) {
    *to = most < INFINITY ? clamp_level(x, n, most) : most;
  } else if (most < INFINITY) {
    if (job.fit == QUANTILES) quantiles(Order(x, n, most), n, job.base, to);
    else least_error(Order(x, n, most), x, n, job.base, most, to);
    for (Index k = 0; k < job.base; k++) to[k] += 0.0f;  // 0 and -0 have no order
  } else {
    std::fill_n(to, job.base, NAN);
  }
}

// Levels of all buckets

// eden.py `code`: by bisection. Codes are written in whole rows.
inline void nearest_levels(const Job& job, const float* x, int n, float unit, Word* codes) {
  const float *halfway = job.levels + job.base, by = unit < INFINITY ? unit : 1;
  if (job.base <= FEW) {
    with_search(job.base - 1, [=](Index k) { return halfway[k] * by; }, [=](auto search) {
      for_rows(x, n, [&](Index i, Row v) {
        const Places place = search(v);
        std::memcpy(codes + i, &place, sizeof place);
      });
    });
    return;
  }
  std::fill_n(codes, n, 0);
  for (Word half = Word(job.base / 2); half; half /= 2) {
    for (int i = 0; i < n; i++) {
      codes[i] += x[i] >= halfway[codes[i] + half - 1] * by ? half : 0;
    }
  }
}

// Writes the levels of codes in whole rows.
inline void levels_of(const Job& job, const Word* codes, int n, float* to) {
  const Index last = job.base - 1;
  if (job.base > FEW) {
    for (int i = 0; i < n; i++) to[i] = job.levels[codes[i]];
    return;
  }
  const Table table([=](Index k) { return job.levels[std::min(k, last)]; });
  for (int i = 0; i < n; i += ROW) {
    Places at;
    std::memcpy(&at, codes + i, sizeof at);
    const Row those = table[at];
    std::memcpy(to + i, &those, sizeof those);
  }
}

// eden.py `fit`: the scale of the levels, and the root mean square. The codes that it needs are
// written, unless there is no room for them.
template <bool BIASED_SCALE, class Read>
void fit_levels(const Job& job, Read read, Index n, float* to, std::uint8_t* coded) {
  const double squares = sum(read, n, square);
  to[0] = to[1] = float(std::sqrt(squares / n));
  if (job.fit == LENGTH) return;
  Tree products, of_levels;
  for (Index j = 0; j < n; j += BLOCK) {
    const int length = int(std::min(BLOCK, n - j));
    const float* x = read(j, length);
    Word codes[BLOCK];
    float values[BLOCK], levels[BLOCK];
    nearest_levels(job, x, length, to[1], codes);
    levels_of(job, codes, length, levels);
    for (int i = 0; coded && i < length; i++) coded[j + i] = std::uint8_t(codes[i]);
    const int end = int((length + LANES - 1) / LANES * LANES);
    std::copy_n(x, length, values);
    std::fill(values + length, values + end, 0.0f);
    std::fill(levels + length, levels + end, 0.0f);
    Doubles lanes[IN_LINE] = {}, squared[IN_LINE] = {};
    for (int i = 0; i < end; i += LANES) {
#pragma GCC unroll 8
      for (int k = 0; k < IN_LINE; k++) {
        Floats v, q;
        std::memcpy(&v, values + i + WIDE * k, sizeof v);
        std::memcpy(&q, levels + i + WIDE * k, sizeof q);
        const Doubles wide = widen(q);
        lanes[k] += widen(v) * wide;
        if (BIASED_SCALE) squared[k] += wide * wide;
      }
    }
    products.add(add_lanes(lanes));
    of_levels.add(add_lanes(squared));
  }
  const double product = products.total();
  const double scale = BIASED_SCALE ? product / of_levels.total() : squares / product;
  to[0] = product == 0 ? 0 : float(scale);
}

// Returns whether to fit a bucket also gives the codes of its values.
inline bool fits_codes(const Job& job) { return job.fit == UNBIASED || job.fit == BIASED; }

// Writes the parameters of a bucket, and its codes if there is room for them and `fits_codes`.
template <class Read>
void fit(const Job& job, Read read, Index n, float* to, std::uint8_t* coded = nullptr) {
  switch (job.fit) {
    case CLAMP:
    case QUANTILES:
    case LEAST_ERROR: {
      const std::unique_ptr<float[]> x(new float[n]);
      for (Index j = 0; j < n; j += BLOCK) {
        const int length = int(std::min(BLOCK, n - j));
        std::copy_n(read(j, length), length, &x[j]);
      }
      fit_order(job, x.get(), n, to);
      break;
    }
    case LARGEST: *to = largest(read, n); break;
    case NORM: {
      const float norm = float(std::sqrt(sum(read, n, square))), most = largest(read, n);
      *to = norm < most ? most : norm;
      break;
    }
    case MEAN: *to = float(sum(read, n, magnitude) / n); break;
    case RMS: *to = float(std::sqrt(sum(read, n, square) / n)); break;
    case SIDES: two_means(read, n, 0, to, to + 1); break;
    case BIASED: fit_levels<true>(job, read, n, to, coded); break;
    case UNBIASED:
    case LENGTH: fit_levels<false>(job, read, n, to, coded); break;
    case HALVES:
      to[1] = float(sum(read, n, [](Doubles v) { return v; }) / n);
      two_means(read, n, to[1], to, to + 2);
  }
}

}  // namespace
