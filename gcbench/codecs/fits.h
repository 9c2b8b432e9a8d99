// A method, the layout of its tensors, and the parameters that fit a bucket.
//
// Every result has the bits of the eager kernels: a bucket's sum is added in a fixed order (`Tree`),
// and the build never contracts a product and a sum.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

using Index = std::int64_t;
using Word = std::uint32_t;

enum Fit { GIVEN, LARGEST, NORM, MEAN, RMS, SIDES, HALVES };
enum Code { GRID, NEAREST, REACHES, TABLE };
enum Value { ON_GRID, SIGNED, LEVEL };

struct Piece {  // consecutive values of a tensor, of which number i is in bucket + i / size
  Index tensor, offset, length, bucket, size;
};

struct Job {  // a method and the layout of its tensors, as native.py fills it in
  Index fit, code, value, base, highest, digits, bits, rows, words, fitted, step;
  Index row, bucket_size, buckets, full, groups, rest, row_pieces, tails, shorts;
  const Piece* pieces;  // those of rows, then the tails, then the shorter buckets
};

// Sums

typedef float Floats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));
constexpr Index LANES = 32, BLOCK = 512;

// Sums of blocks, added in pairs of neighbors, then pairs of pairs: means.py `fixed_sum`.
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
  const Doubles halves = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  double sums[8];
  std::memcpy(sums, &halves, sizeof sums);
  for (Index half = 4; half; half /= 2) {
    for (Index i = 0; i < half; i++) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Calls f(k, values) for every eight values of a block, where k is their place in a line of lanes.
template <class F>
inline void for_lanes(const float* x, Index n, F f) {
  float last[LANES] = {};
  for (Index j = 0; j < n; j += LANES) {
    const float* line = x + j;
    if (j + LANES > n) line = static_cast<float*>(std::memcpy(last, x + j, 4 * (n - j)));
    for (Index k = 0; k < LANES / 8; k++) {
      Floats v;
      std::memcpy(&v, line + 8 * k, sizeof v);
      f(k, __builtin_convertvector(v, Doubles));
    }
  }
}

// Returns the sum of f over n values; `read(from, n)` returns where those of a block lie.
template <class Read, class F>
inline double sum(Read read, Index n, F f) {
  Tree tree;
  for (Index j = 0; j < n; j += BLOCK) {
    const int length = int(std::min(BLOCK, n - j));
    Doubles lanes[LANES / 8] = {};
    for_lanes(read(j, length), length, [&](Index k, Doubles v) { lanes[k] += f(v); });
    tree.add(add_lanes(lanes));
  }
  return tree.total();
}

const auto magnitude = [](Doubles v) { return v < 0 ? -v : v; };
const auto square = [](Doubles v) { return v * v; };

inline float largest(const float* x, int n) {
  Word most = 0;  // bits of magnitudes have their order, and those of a NaN are above all
  for (int i = 0; i < n; i++) {
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
  float most[BLOCK] = {};  // of blocks, as many times as there is room
  Index count = 0;
  for (Index j = 0; j < n; j += BLOCK) {
    const int length = int(std::min(BLOCK, n - j));
    most[count++] = largest(read(j, length), length);
    if (count == BLOCK) most[0] = largest(most, int(count)), count = 1;
  }
  return largest(most, int(count));
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
    Doubles low_lanes[LANES / 8] = {}, high_lanes[LANES / 8] = {};
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

template <class Read>
void fit(const Job& job, Read read, Index n, float* to) {
  switch (job.fit) {
    case LARGEST: *to = largest(read, n); break;
    case NORM: {
      const float norm = float(std::sqrt(sum(read, n, square))), most = largest(read, n);
      *to = norm < most ? most : norm;
      break;
    }
    case MEAN: *to = float(sum(read, n, magnitude) / n); break;
    case RMS: *to = float(std::sqrt(sum(read, n, square) / n)); break;
    case SIDES: two_means(read, n, 0, to, to + 1); break;
    case HALVES:
      to[1] = float(sum(read, n, [](Doubles v) { return v; }) / n);
      two_means(read, n, to[1], to, to + 2);
  }
}

}  // namespace
