// The positions of the values of largest magnitude, in one pass over memory.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace {

using Index = std::int64_t;
using Key = std::uint64_t;  // bits of a magnitude, which have its order, above ~position

constexpr Index LINE = 16;  // floats per cache line
constexpr Index SAMPLE = 1 << 14;

inline std::uint32_t magnitude_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffff;
}

inline Key key_of(const float* x, Index i) {
  return Key(magnitude_of(x[i])) << 32 | ~std::uint32_t(i);
}

// Returns a threshold, estimated from a sample, that most likely a few more than k values reach.
std::uint32_t threshold_of(const float* x, Index n, Index k) {
  const Index stride = std::max<Index>(std::min<Index>(n / LINE, LINE), n / SAMPLE) | 1;
  std::vector<std::uint32_t> sample;
  for (Index i = 0; i < n; i += stride) sample.push_back(magnitude_of(x[i]));
  const double expected = double(k) * sample.size() / n;
  const auto above = std::size_t(expected + 4 * __builtin_sqrt(expected) + 4);
  if (above >= sample.size()) return 0;
  std::nth_element(sample.begin(), sample.begin() + above, sample.end(), std::greater<>());
  return sample[above];
}

// Returns the keys of all values that reach the threshold, in order of position.
std::vector<Key> reaching(const float* x, Index n, std::uint32_t threshold, Index expected) {
  std::vector<Key> keys;
  keys.reserve(expected);
  Index i = 0;
  for (; i + LINE <= n; i += LINE) {
    std::uint32_t reached = 0;  // one bit per value; without a branch, the loop is vectorized
#pragma omp simd reduction(| : reached)
    for (Index lane = 0; lane < LINE; lane++) {
      reached |= std::uint32_t(magnitude_of(x[i + lane]) >= threshold) << lane;
    }
    for (; reached; reached &= reached - 1) keys.push_back(key_of(x, i + __builtin_ctz(reached)));
  }
  for (; i < n; i++) {
    if (magnitude_of(x[i]) >= threshold) keys.push_back(key_of(x, i));
  }
  return keys;
}

}  // namespace

extern "C" {

// Writes the positions in their row, ascending, of the largest magnitudes of each segment of each
// row of n values, with ties broken in favor of lower positions: ks[i] of the sizes[i] values of
// segment i, below 2^32 each.
void largest(const float* x, std::int64_t* chosen, Index rows, Index n, Index count,
             const Index* sizes, const Index* ks, int threads) {
  std::vector<Index> starts(count + 1), places(count + 1);
  for (Index i = 0; i < count; i++) {
    starts[i + 1] = starts[i] + sizes[i];
    places[i + 1] = places[i] + ks[i];
  }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 8)
  for (Index task = 0; task < rows * count; task++) {
    const Index row = task / count, i = task % count, k = ks[i];
    const float* values = x + row * n + starts[i];
    std::int64_t* out = chosen + row * places[count] + places[i];
    std::vector<Key> keys = reaching(values, sizes[i], threshold_of(values, sizes[i], k), k + k / 2);
    if (Index(keys.size()) < k) keys = reaching(values, sizes[i], 0, sizes[i]);
    std::vector<Key> ordered = keys;
    std::nth_element(ordered.begin(), ordered.begin() + (k - 1), ordered.end(), std::greater<>());
    const Key least = ordered[k - 1];
    for (const Key key : keys) {
      if (key >= least) *out++ = starts[i] + std::uint32_t(~key);
    }
  }
}

}  // extern "C"
