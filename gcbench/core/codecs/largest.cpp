// The positions of the values of largest magnitude, in one pass over memory, and means of values at
// positions.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using Index = std::int64_t;
using Bits = std::uint32_t;
using Key = std::uint64_t;  // bits of a magnitude, which have its order, above ~position

constexpr Index LINE = 16;  // floats per cache line
constexpr Index SAMPLE = 1 << 14, PART = 512, AHEAD = 1 << 11;

inline Bits magnitude_of(float x) {
  Bits bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffff;
}

// Returns a bit for each value of a line, whether it reaches a threshold.
inline Bits reached_in(const float* x, Bits threshold) {
#if defined(__AVX512F__)
  const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));
  return _mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32(int(threshold)));
#elif defined(__AVX2__)
  Bits reached = 0;
  for (int half = 0; half < 2; half++) {
    const auto* at = reinterpret_cast<const __m256i*>(x + 8 * half);
    const __m256i bits = _mm256_and_si256(_mm256_loadu_si256(at), _mm256_set1_epi32(0x7fffffff));
    const __m256i above = _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(int(threshold) - 1));
    reached |= Bits(_mm256_movemask_ps(_mm256_castsi256_ps(above))) << 8 * half;
  }
  return reached;
#else
  Bits reached = 0;
  for (int i = 0; i < LINE; i++) reached |= Bits(magnitude_of(x[i]) >= threshold) << i;
  return reached;
#endif
}

struct Values {  // x, or x + alpha before, which is written to `sum` as it is read in order
  const float *x, *before;
  float* sum;
  float alpha;

  float at(Index i) const { return before ? __builtin_fmaf(alpha, before[i], x[i]) : x[i]; }

  const float* read(Index from, Index n) const {
    for (Index i = from; i < from + n; i += LINE) {
      __builtin_prefetch(x + i + AHEAD);
      if (before) __builtin_prefetch(before + i + AHEAD, 1);
    }
    if (!before) return x + from;
#pragma GCC ivdep
    for (Index i = from; i < from + n; i++) sum[i] = __builtin_fmaf(alpha, before[i], x[i]);
    return sum + from;
  }
};

// Returns a threshold, estimated from a sample, that most likely a few more than k values reach.
Bits threshold_of(const Values& values, Index n, Index k) {
  const Index stride = std::max<Index>(std::min<Index>(n / LINE, LINE), n / SAMPLE) | 1;
  std::vector<Bits> sample;
  for (Index i = 0; i < n; i += stride) sample.push_back(magnitude_of(values.at(i)));
  const double expected = double(k) * sample.size() / n;
  const auto above = std::size_t(expected + 4 * std::sqrt(expected) + 4);
  if (above >= sample.size()) return 0;
  std::nth_element(sample.begin(), sample.begin() + above, sample.end(), std::greater<>());
  return sample[above];
}

// Returns the keys of all values that reach the threshold, in order of position.
std::vector<Key> reaching(const Values& values, Index n, Bits threshold, Index expected) {
  std::vector<Key> keys;
  keys.reserve(expected);
  const auto add = [&](float value, Index i) {
    keys.push_back(Key(magnitude_of(value)) << 32 | Bits(~i));
  };
  for (Index from = 0; from < n; from += PART) {
    const Index count = std::min(PART, n - from), lines = count / LINE * LINE;
    const float* x = values.read(from, count);
    for (Index i = 0; i < lines; i += LINE) {
      for (Bits reached = reached_in(x + i, threshold); reached; reached &= reached - 1) {
        const Index at = i + __builtin_ctz(reached);
        add(x[at], from + at);
      }
    }
    for (Index i = lines; i < count; i++) {
      if (magnitude_of(x[i]) >= threshold) add(x[i], from + i);
    }
  }
  return keys;
}

}  // namespace

extern "C" {

// Writes the positions in their row, ascending, of the largest magnitudes of each segment of each
// row, with ties broken in favor of lower positions: ks[i] of the sizes[i] values of segment i, below
// 2^32 each. Segments are x[row][i]; with `before`, x + alpha before is written to `sums`, which may
// lie where that does, and its values are chosen.
void largest(const float* const* x, const float* const* before, float* const* sums, float alpha,
             std::int64_t* chosen, Index rows, Index count, const Index* sizes, const Index* ks,
             int threads) {
  std::vector<Index> starts(count + 1), places(count + 1);
  for (Index i = 0; i < count; i++) {
    starts[i + 1] = starts[i] + sizes[i];
    places[i + 1] = places[i] + ks[i];
  }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 8)
  for (Index task = 0; task < rows * count; task++) {
    const Index row = task / count, i = task % count, k = ks[i], n = sizes[i];
    const Values values{x[task], before ? before[task] : nullptr, before ? sums[task] : nullptr, alpha};
    std::int64_t* out = chosen + row * places[count] + places[i];
    const Bits threshold = threshold_of(values, n, k);
    std::vector<Key> keys = reaching(values, n, threshold, k + k / 2);
    if (Index(keys.size()) < k) {
      keys = reaching({before ? sums[task] : x[task], nullptr, nullptr, 0}, n, 0, n);
    }
    std::vector<Key> ordered = keys;
    std::nth_element(ordered.begin(), ordered.begin() + (k - 1), ordered.end(), std::greater<>());
    const Key least = ordered[k - 1];
    Index found = 0;
    for (std::size_t j = 0; found < k; j++) {  // without a branch, as none could be foreseen
      out[found] = starts[i] + Bits(~keys[j]);
      found += keys[j] >= least;
    }
  }
}

// Writes the means over workers of k values at positions of each row of n, which are 0 elsewhere.
// Values are added in the order of the workers.
void sparse_mean(const std::int64_t* positions, const float* values, Index workers, Index rows,
                 Index k, Index n, float* out, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index row = 0; row < rows; row++) {
    float* to = out + row * n;
    std::fill_n(to, n, 0.0f);
    for (Index w = 0; w < workers; w++) {
      const Index first = (w * rows + row) * k;
      for (Index i = first; i < first + k; i++) to[positions[i]] += values[i];
    }
    if (workers == 1) continue;
    std::vector<float> means;  // of all, before any is written, as workers share positions
    for (Index w = 0; w < workers; w++) {
      const Index first = (w * rows + row) * k;
      for (Index i = first; i < first + k; i++) means.push_back(to[positions[i]] / float(workers));
    }
    auto mean = means.begin();
    for (Index w = 0; w < workers; w++) {
      const Index first = (w * rows + row) * k;
      for (Index i = first; i < first + k; i++) to[positions[i]] = *mean++;
    }
  }
}

}  // extern "C"
