// Signs as bits, and the sums of either sign, in one pass over memory.

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

using Index = std::int64_t;

constexpr Index LINE = 16;    // floats per cache line; as many sums are added side by side
constexpr Index AHEAD = 256;  // how many floats ahead to prefetch

inline std::int32_t bits_of(float x) {
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(std::int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace

extern "C" {

// Writes the signs of groups of 32 rows as words: bit k of word j says whether value j of row k is
// at least 0. Adds each row to the sides of its bucket, as add_sides does.
void signs(const float* x, const Index* buckets, std::int32_t* words, double* sides, Index groups,
           Index row) {
  for (Index group = 0; group < groups; group++, words += row) {
    std::fill_n(words, row, 0);
    for (int k = 0; k < 32; k++, x += row) {
      const std::int32_t bit = std::int32_t(std::uint32_t(1) << k);
      float up[LINE] = {}, down[LINE] = {};
      std::int32_t count[LINE] = {};
      // There is no branch, which would keep the loop from being vectorized.
      const auto take = [&](Index j, Index lane) {
        const std::int32_t bits = bits_of(x[j]), mask = -std::int32_t(x[j] >= 0);
        words[j] |= mask & bit;
        up[lane] += float_of(bits & mask);
        down[lane] += float_of(bits & ~mask);
        count[lane] -= mask;
      };
      Index j = 0;
      for (; j + LINE <= row; j += LINE) {
        __builtin_prefetch(x + j + AHEAD);
#pragma omp simd
        for (Index lane = 0; lane < LINE; lane++) take(j + lane, lane);
      }
      for (; j < row; j++) take(j, 0);
      double* of_bucket = sides + 3 * *buckets++;
      for (Index lane = 0; lane < LINE; lane++) {
        of_bucket[0] += up[lane];
        of_bucket[1] += down[lane];
        of_bucket[2] += count[lane];
      }
    }
  }
}

// Adds n values to the sides [buckets, 3] of their buckets: the sum of those that are at least 0,
// that of the others, and how many are at least 0.
void add_sides(const float* x, const Index* buckets, double* sides, Index n) {
  for (Index i = 0; i < n; i++) {
    double* of_bucket = sides + 3 * buckets[i];
    of_bucket[x[i] >= 0 ? 0 : 1] += x[i];
    of_bucket[2] += x[i] >= 0;
  }
}

}  // extern "C"
