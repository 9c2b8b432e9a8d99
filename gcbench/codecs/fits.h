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

// Returns the sum of f over a block: lanes first, then halves of the lanes.
template <class F>
inline double block_sum(const float* x, Index n, F f) {
  Doubles lanes[LANES / 8] = {};
  float last[LANES] = {};
  for (Index j = 0; j < n; j += LANES) {
    const float* line = x + j;
    if (j + LANES > n) line = static_cast<float*>(std::memcpy(last, x + j, 4 * (n - j)));
    for (Index k = 0; k < LANES / 8; k++) {
      Floats v;
      std::memcpy(&v, line + 8 * k, sizeof v);
      lanes[k] += f(__builtin_convertvector(v, Doubles));
    }
  }
  const Doubles halves = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  double sums[8];
  std::memcpy(sums, &halves, sizeof sums);
  for (Index half = 4; half; half /= 2) {
    for (Index i = 0; i < half; i++) sums[i] += sums[i + half];
  }
  return sums[0];
}

template <class F, class G>
inline void sum_both(const float* x, Index n, F f, G g, double* sums) {
  Tree of_f, of_g;
  for (Index j = 0; j < n; j += BLOCK) {
    const Index length = std::min(BLOCK, n - j);
    of_f.add(block_sum(x + j, length, f));
    of_g.add(block_sum(x + j, length, g));
  }
  sums[0] = of_f.total();
  sums[1] = of_g.total();
}

template <class F>
inline double sum(const float* x, Index n, F f) {
  Tree tree;
  for (Index j = 0; j < n; j += BLOCK) tree.add(block_sum(x + j, std::min(BLOCK, n - j), f));
  return tree.total();
}

const auto magnitude = [](Doubles v) { return v < 0 ? -v : v; };
const auto square = [](Doubles v) { return v * v; };

float largest(const float* x, Index n) {
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

// Writes the means of the values that do not reach a threshold, and of those that do.
void two_means(const float* x, Index n, float threshold, float* low, float* high) {
  Index reach = 0;
  for (Index i = 0; i < n; i++) reach += x[i] >= threshold;
  const double t = threshold;
  const Doubles none = {};
  double sums[2];
  sum_both(x, n, [=](Doubles v) { return v >= t ? none : v; },
           [=](Doubles v) { return v >= t ? v : none; }, sums);
  *low = float(sums[0] / std::max<Index>(n - reach, 1));
  *high = float(sums[1] / std::max<Index>(reach, 1));
}

void fit(const Job& job, const float* x, Index n, float* to) {
  switch (job.fit) {
    case LARGEST: *to = largest(x, n); break;
    case NORM: {
      const float norm = float(std::sqrt(sum(x, n, square))), most = largest(x, n);
      *to = norm < most ? most : norm;
      break;
    }
    case MEAN: *to = float(sum(x, n, magnitude) / n); break;
    case RMS: *to = float(std::sqrt(sum(x, n, square) / n)); break;
    case SIDES: two_means(x, n, 0, to, to + 1); break;
    case HALVES:
      to[1] = float(sum(x, n, [](Doubles v) { return v; }) / n);
      two_means(x, n, to[1], to, to + 2);
  }
}

}  // namespace
