// The values of largest magnitude and their positions, in one pass over memory, and means of values
// at positions.

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

// A value and its position, the largest first: from the highest bit down, its magnitude, whose bits
// have the order of floats, ~position, and its sign.
using Key = std::uint64_t;

constexpr Index LINE = 16;  // floats per cache line
constexpr Index SAMPLE = 1 << 14;

inline Bits bits_of(float x) {
  Bits bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline Bits magnitude_of(float x) { return bits_of(x) & 0x7fffffff; }

inline Key key_of(float x, Index i) {
  return Key(magnitude_of(x)) << 33 | Key(Bits(~i)) << 1 | bits_of(x) >> 31;
}

inline Bits position_of(Key key) { return ~Bits(key >> 1); }

inline float value_of(Key key) {
  const Bits bits = Bits(key >> 33) | Bits(key << 31);
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

struct Values {  // x, or x + alpha before, which is written to `sum` as it is read in order
  const float *x, *before;
  float* sum;
  float alpha;

  float at(Index i) const { return before ? __builtin_fmaf(alpha, before[i], x[i]) : x[i]; }

  // Returns a bit for each value of a line, whether it reaches a threshold.
  Bits reached_in(Index i, Bits threshold) const {
#if defined(__AVX512F__)
    __m512 v = _mm512_loadu_ps(x + i);
    if (before) {
      v = _mm512_fmadd_ps(_mm512_set1_ps(alpha), _mm512_loadu_ps(before + i), v);
      _mm512_storeu_ps(sum + i, v);
    }
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
    return _mm512_cmpge_epu32_mask(bits, _mm512_set1_epi32(int(threshold)));
#elif defined(__AVX2__)
    Bits reached = 0;
    for (int half = 0; half < 16; half += 8) {
      __m256 v = _mm256_loadu_ps(x + i + half);
      if (before) {
        v = _mm256_fmadd_ps(_mm256_set1_ps(alpha), _mm256_loadu_ps(before + i + half), v);
        _mm256_storeu_ps(sum + i + half, v);
      }
      const __m256i bits = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
      const __m256i above = _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(int(threshold) - 1));
      reached |= Bits(_mm256_movemask_ps(_mm256_castsi256_ps(above))) << half;
    }
    return reached;
#else
    Bits reached = 0;
    for (int k = 0; k < LINE; k++) reached |= Bits(reaches(i + k, threshold)) << k;
    return reached;
#endif
  }

  bool reaches(Index i, Bits threshold) const {
    const float v = at(i);
    if (before) sum[i] = v;
    return magnitude_of(v) >= threshold;
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
  const float* v = values.before ? values.sum : values.x;
  Index from = 0;
  for (; from + LINE <= n; from += LINE) {
    for (Bits reached = values.reached_in(from, threshold); reached; reached &= reached - 1) {
      const Index i = from + __builtin_ctz(reached);
      keys.push_back(key_of(v[i], i));
    }
  }
  for (; from < n; from++) {
    if (values.reaches(from, threshold)) keys.push_back(key_of(v[from], from));
  }
  return keys;
}

// Returns the k-th largest key. Only those of its bin are sorted.
Key largest_key(const std::vector<Key>& keys, Index k) {
  constexpr Index BINS = 256;
  const auto [low, high] = std::minmax_element(keys.begin(), keys.end());
  const Key lowest = *low;
  int shift = 0;
  while ((*high - lowest) >> shift >= BINS) shift++;
  const auto bin_of = [=](Key key) { return (key - lowest) >> shift; };
  Index counts[BINS] = {}, bin = BINS - 1;
  for (const Key key : keys) counts[bin_of(key)]++;
  for (; counts[bin] < k; bin--) k -= counts[bin];
  std::vector<Key> same;
  for (const Key key : keys) {
    if (Index(bin_of(key)) == bin) same.push_back(key);
  }
  std::nth_element(same.begin(), same.begin() + (k - 1), same.end(), std::greater<>());
  return same[k - 1];
}

}  // namespace

extern "C" {

// Writes the positions in their row, ascending, of the largest magnitudes of each segment of each
// row, with ties broken in favor of lower positions: ks[i] of the sizes[i] values of segment i, of
// less than 2^32; and their values. Segments are x[row][i]. With `before`, x + alpha before is
// written to `sums`, which may lie where that does, and 0 is left there for what is chosen.
void largest(const float* const* x, const float* const* before, float* const* sums, float alpha,
             std::int64_t* chosen, float* values, Index rows, Index count, const Index* sizes,
             const Index* ks, int threads) {
  std::vector<Index> starts(count + 1), places(count + 1);
  for (Index i = 0; i < count; i++) {
    starts[i + 1] = starts[i] + sizes[i];
    places[i + 1] = places[i] + ks[i];
  }
  Bits near = 0;  // what most likely a few more than k values of a short segment reach
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 8) \
    firstprivate(near)
  for (Index task = 0; task < rows * count; task++) {
    const Index row = task / count, i = task % count, k = ks[i], n = sizes[i];
    float* sum = before ? sums[task] : nullptr;
    Values in{x[task], before ? before[task] : nullptr, sum, alpha};
    std::vector<Key> keys;
    const auto enough_reach = [&](Bits threshold) {
      keys = reaching(in, n, threshold, k + k / 2);
      if (before) in = Values{sum, nullptr, nullptr, 0};
      return Index(keys.size()) >= k;
    };
    const bool near_is_enough = near && n <= SAMPLE && enough_reach(near);
    if (!near_is_enough && !enough_reach(threshold_of(in, n, k))) enough_reach(0);
    const Key least = largest_key(keys, k);
    near = magnitude_of(0.9f * value_of(least));  // as the next one is much like this
    Key* end = keys.data();
    for (const Key key : keys) {  // without a branch, as none could be foreseen
      *end = key;
      end += key >= least;
    }
    const Index first = row * places[count] + places[i];
    for (Index j = 0; j < k; j++) {
      const Bits at = position_of(keys[j]);
      chosen[first + j] = starts[i] + at;
      values[first + j] = value_of(keys[j]);
      if (before) sum[at] = 0;
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
