// Codes on a grid that all workers share: drawn, packed into lanes whose words are added, and turned
// into values, each in one pass. The layout is that of packing.py `pack_lanes`.

#include "codes.h"

namespace {

// Calls f(k, first, count) for the parts of n values that share words from `word` to `end`.
template <class F>
inline void each_plane(Index n, Index planes, Index words, Index word, Index end, F f) {
  for (Index k = 0; k < planes && k * words + word < n; k++) {
    f(k, k * words + word, std::min(end, n - k * words) - word);
  }
}

template <class C>
void pack(const C* codes, Index n, Index bits, Index words, std::uint64_t* out, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index word = 0; word < words; word += TILE) {
    const Index end = std::min(word + TILE, words);
    std::fill(out + word, out + end, 0);
    each_plane(n, 64 / bits, words, word, end, [=](Index k, Index first, Index count) {
      for (Index i = 0; i < count; i++) {
        out[word + i] |= std::uint64_t(codes[first + i]) << (bits * k);
      }
    });
  }
}

}  // namespace

extern "C" {

// maxnorm.py `_write_codes`, for runs of values with consecutive draws. `reach` has one value, or
// with `each` one for each value.
void grid_codes(Index runs, const Index* lengths, const Word* starts, const Word* key,
                const float* x, const float* reach, Index each, Index levels, std::int16_t* codes,
                int threads) {
  const Draw draw{key[0], key[1]};
  const float most = float(levels);
  for (Index run = 0; run < runs; run++) {
    const Index n = lengths[run];
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (Index from = 0; from < n; from += 1 << 14) {
      const Index end = std::min<Index>(n, from + (1 << 14));
      const auto code = [&](Index i, float unit) {
        const float place = std::fabs(x[i]) / unit * most, low = std::floor(place);
        const float noise = float(std::int32_t(draw(starts[run] + Word(i)) >> 8)) * 0x1p-24f;
        const std::int32_t size = std::int32_t(low) + (noise < place - low);
        codes[i] = std::int16_t((x[i] < 0 ? -size : size) + std::int32_t(levels));
      };
      if (each) {
        for (Index i = from; i < end; i++) code(i, reach[i] > 0 ? reach[i] : 1);
      } else {
        const float unit = *reach > 0 ? *reach : 1;
        for (Index i = from; i < end; i++) code(i, unit);
      }
    }
    x += n, codes += n, reach += each ? n : 0;
  }
}

void pack_lanes(const void* codes, Index bytes, Index n, Index bits, Index words,
                std::uint64_t* out, int threads) {
  if (bytes == 1) pack(static_cast<const std::uint8_t*>(codes), n, bits, words, out, threads);
  else pack(static_cast<const std::int16_t*>(codes), n, bits, words, out, threads);
}

// Writes (t - most / 2) / half * unit / divisor for the sums t in lanes. Values from `spans`[3 s] on
// have the units from number `spans`[3 s + 2] on, each for `spans`[3 s + 1] values.
void lane_values(const std::uint64_t* sums, Index n, Index bits, Index words, Index most,
                 float half, Index count, const Index* spans, const float* units,
                 const float* divisors, float* out, int threads) {
  const std::uint64_t mask = (std::uint64_t(1) << bits) - 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index word = 0; word < words; word += TILE) {
    const Index end = std::min(word + TILE, words);
    each_plane(n, 64 / bits, words, word, end, [&](Index k, Index first, Index length) {
      float centered[TILE];
      for (Index i = 0; i < length; i++) {
        const std::int32_t sum = std::int32_t(sums[word + i] >> (bits * k) & mask);
        centered[i] = float(2 * sum - std::int32_t(most)) / 2 / half;
      }
      for (Index i = 0; i < length;) {
        Index s = 0;  // the last span that begins at or before value first + i
        for (Index to = count; to - s > 1;) {
          const Index middle = (s + to) / 2;
          if (spans[3 * middle] <= first + i) s = middle;
          else to = middle;
        }
        const Index in_span = first + i - spans[3 * s], size = spans[3 * s + 1];
        const Index last = s + 1 < count ? spans[3 * s + 3] - first : length;
        const float* unit = units + spans[3 * s + 2] + in_span / size;
        const float* divisor = divisors + spans[3 * s + 2] + in_span / size;
        float* to = out + first;
        if (size == 1) {
          const Index stop = std::min(length, last);
          for (Index j = 0; i + j < stop; j++) to[i + j] = centered[i + j] * unit[j] / divisor[j];
          i = stop;
        } else {
          const Index stop = std::min({length, last, i + size - in_span % size});
          for (; i < stop; i++) to[i] = centered[i] * *unit / *divisor;
        }
      }
    });
  }
}

}  // extern "C"
