// Codes without buckets: powers of two, codes on a grid that all workers share, and small numbers.

#include "codes.h"
#include "numbers.h"

// Natural compression: values rounded to powers of two, sent as exponents, and signs in 1 bit.

namespace {

constexpr Word FINITE = 255u << 23;  // what the bits of finite magnitudes are below

inline float power_of_two(Word exponent, Word negative) {
  const Word bits = exponent << 23 | negative << 31;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

extern "C" {

// Run i of the values lies at x[i] and ends before ends[i]; its first one has the number starts[i]
// among the draws. With `before`, x + alpha before is coded, and `left` becomes what that leaves
// out; it may be `before`.
void natural_encode(const float* const* x, const float* const* before, float* const* left,
                    float alpha, Index values, Index runs, const Index* ends,
                    const Word* starts, const Word* key, std::uint8_t* exponents, std::uint8_t* signs, int threads) {
  const Draw draw{key[0], key[1]};
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index from = 0; from < values; from += TILE) {
    const Index end = std::min(from + TILE, values);
    std::uint8_t negative[TILE] = {};
    Index run = std::upper_bound(ends, ends + runs, from) - ends;
    for (Index at = from; at < end; run++) {
      const Index place = at - (run ? ends[run - 1] : 0);
      const int n = int(std::min(end, ends[run]) - at);
      const float *g = x[run] + place, *e = before ? before[run] + place : nullptr;
      const Word index = starts[run] + Word(place);
      float coded[TILE];
      std::uint8_t exponent[TILE], *sign = negative + (at - from);
      for (int i = 0; e && i < n; i++) coded[i] = __builtin_fmaf(alpha, e[i], g[i]);
      const float* v = e ? coded : g;
      for (int i = 0; i < n; i++) {
        Word bits;
        std::memcpy(&bits, v + i, sizeof bits);
        const Word size = bits & 0x7fffffff, rounded = (size + (draw(index + Word(i)) >> 9)) >> 23;
        const Word most = rounded < 254 ? rounded : 254;
        exponent[i] = std::uint8_t(size < FINITE ? most : 255);
        sign[i] = std::uint8_t(bits >> 31);
      }
      std::memcpy(exponents + at, exponent, n);
      float* rest = e ? left[run] + place : nullptr;
      for (int i = 0; e && i < n; i++) {
        // Adding 0 turns -0 into 0, as where decoded values are added to zeros.
        rest[i] = coded[i] - (power_of_two(exponent[i], sign[i]) + 0.0f);
      }
      at += n;
    }
    pack_groups<1>(negative, (end - from + 7) / 8, signs + from / 8);
  }
}

// Puts the values of all workers' messages, or their mean, into `out`.
void natural_decode(const std::uint8_t* const* exponents, const std::uint8_t* const* signs,
                    Index workers, Index values, float* out, Index into, int threads) {
  const float divisor = float(workers);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index from = 0; from < values; from += TILE) {
    const int n = int(std::min(TILE, values - from));
    float* to = out + from;
    for (Index w = 0; w < workers; w++) {
      std::uint8_t negative[TILE], exponent[TILE];
      unpack_groups<1>(signs[w] + from / 8, (n + 7) / 8, negative);
      std::memcpy(exponent, exponents[w] + from, n);
      with_put(w && into == WRITE ? Index(ADD) : into, [&](auto put) {
        for (int i = 0; i < n; i++) put(to[i], power_of_two(exponent[i], negative[i]));
      });
    }
    for (int i = 0; into == WRITE && workers > 1 && i < n; i++) to[i] /= divisor;
  }
}

}  // extern "C"

// Codes on a shared grid: drawn, packed into lanes whose words are added, and turned into values, each
// in one pass. The layout is that of packing.py `pack_lanes`.

namespace {

// Calls f(k, first, count) for the parts of n values that share words from `word` to `end`.
template <class F>
inline void each_plane(Index n, Index planes, Index words, Index word, Index end, F f) {
  for (Index k = 0; k < planes && k * words + word < n; k++) {
    f(k, k * words + word, std::min(end, n - k * words) - word);
  }
}

template <class C>
void fill_lanes(const C* codes, Index n, Index bits, Index words, std::uint64_t* out, int threads) {
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
// with `each` one for each value, as have `unit` and `lift`. `left`, which may be x, becomes what
// code * unit / lift leaves out.
void grid_codes(Index runs, const Index* lengths, const Word* starts, const Word* key,
                const float* x, const float* reach, Index each, Index levels, std::int16_t* codes,
                float* left, const float* unit, const float* lift, int threads) {
  const Draw draw{key[0], key[1]};
  const float most = float(levels);
  for (Index run = 0; run < runs; run++) {
    const Index n = lengths[run];
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (Index from = 0; from < n; from += 8 * TILE) {
      const Index end = std::min(n, from + 8 * TILE);
      const auto fill = [=](auto share) {
        for (Index i = from; i < end; i++) {
          const float place = share(std::fabs(x[i]), i) * most, low = std::floor(place);
          const float noise = float(std::int32_t(draw(starts[run] + Word(i)) >> 8)) * 0x1p-24f;
          const std::int32_t size = std::int32_t(low) + (noise < place - low);
          codes[i] = std::int16_t((x[i] < 0 ? -size : size) + std::int32_t(levels));
        }
      };
      const auto leave = [=](auto of) {
#pragma GCC ivdep
        for (Index i = from; left && i < end; i++) {
          left[i] = x[i] - float(codes[i] - std::int32_t(levels)) * unit[of(i)] / lift[of(i)];
        }
      };
      const float all = *reach > 0 ? *reach : 1, inverse = 1 / all;
      if (each) {
        fill([=](float size, Index i) { return size / (reach[i] > 0 ? reach[i] : 1); });
        leave([](Index i) { return i; });
        continue;
      }
      if (has_quotients(all)) fill([=](float size, Index) { return quotient(size, all, inverse); });
      else fill([=](float size, Index) { return size / all; });
      leave([](Index) { return Index(0); });
    }
    x += n, codes += n, left = left ? left + n : left;
    if (each) reach += n, unit += n, lift += n;
  }
}

void pack_lanes(const void* codes, Index bytes, Index n, Index bits, Index words,
                std::uint64_t* out, int threads) {
  if (bytes == 1) fill_lanes(static_cast<const std::uint8_t*>(codes), n, bits, words, out, threads);
  else fill_lanes(static_cast<const std::int16_t*>(codes), n, bits, words, out, threads);
}

// Writes (t - most / 2) / half * unit / divisor for the sums t in lanes. Values from `spans`[3 s] on
// have the units from number `spans`[3 s + 2] on, each for `spans`[3 s + 1] values.
void lane_values(const std::uint64_t* sums, Index n, Index bits, Index words, Index most,
                 float half, Index count, const Index* spans, const float* units,
                 const float* divisors, float* out, int threads) {
  const std::uint64_t mask = (std::uint64_t(1) << bits) - 1;
  const float inverse = 1 / half;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index word = 0; word < words; word += TILE) {
    const Index end = std::min(word + TILE, words);
    each_plane(n, 64 / bits, words, word, end, [&](Index k, Index first, Index length) {
      float centered[TILE];
      for (Index i = 0; i < length; i++) {
        const std::int32_t sum = std::int32_t(sums[word + i] >> (bits * k) & mask);
        centered[i] = quotient(float(2 * sum - std::int32_t(most)) / 2, half, inverse);
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
          const float one = *unit, by = *divisor;
          if (by == 1) for (; i < stop; i++) to[i] = centered[i] * one;
          else for (; i < stop; i++) to[i] = centered[i] * one / by;
        }
      }
    });
  }
}

}  // extern "C"

extern "C" {

// Packs rows of n codes below a base, in words of so many digits and bits, or with `back` unpacks
// rows of `size` bytes.
void pack(const std::uint8_t* from, Index rows, Index n, Index size, Index base, Index of_word,
          Index bits, Index back, std::uint8_t* to, int threads) {
  const Digits digits(base, of_word, bits, n);
  const Index chunk = digits.unit * (1 + CHUNK / digits.unit), chunks = (n + chunk - 1) / chunk;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index i = 0; i < rows * chunks; i++) {
    const Index row = i / chunks, start = i % chunks * chunk, count = std::min(chunk, n - start);
    const Index units = (count + digits.unit - 1) / digits.unit;
    std::vector<std::uint8_t> codes(chunk + 8);
    if (back) {
      digits.get(from + row * size, start, units, codes.data());
      std::copy_n(codes.data(), count, to + row * n + start);
    } else {
      std::copy_n(from + row * n + start, count, codes.data());
      digits.put(codes.data(), start, units, to + row * size);
    }
  }
}

// Writes the signs of sums of n signs in rows of numbers of 1 bit: 1 for +1, and 0 for -1.
void majority(const std::uint8_t* signs, Index rows, Index n, float* out, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index from = 0; from < n; from += TILE) {
    const Index count = std::min(TILE, n - from), groups = (count + 7) / 8;
    std::int32_t sums[TILE] = {};
    for (Index row = 0; row < rows; row++) {
      std::uint8_t of_row[TILE];
      unpack_groups<1>(signs + row * ((n + 7) / 8) + from / 8, groups, of_row);
      for (int i = 0; i < count; i++) sums[i] += 2 * of_row[i] - 1;
    }
    for (int i = 0; i < count; i++) out[from + i] = float((sums[i] > 0) - (sums[i] < 0));
  }
}

}  // extern "C"
