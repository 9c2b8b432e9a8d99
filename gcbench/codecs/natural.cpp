// Natural compression: values rounded to powers of two, sent as exponents, and signs in 1 bit.
//
// Bit k of byte j is the sign of value j + k m, for m bytes (packing.py), so that a core walks eight
// stretches side by side.

#include "codes.h"

namespace {

constexpr Word FINITE = 255u << 23;  // what the bits of finite magnitudes are below

constexpr Index SPAN = 32 * TILE;  // bytes of signs whose values are coded at once, page by page

// Calls f(k, first, n, byte) for up to TILE values from `first` on, in the k-th stretch; their signs
// are in the bytes from `byte` on. This covers SPAN bytes.
template <class F>
inline void stretches(Index values, Index start, F f) {
  const Index bytes = (values + 7) / 8;
  for (int k = 0; k < 8; k++) {
    const Index end = std::min(std::min(start + SPAN, bytes), values - k * bytes);
    for (Index byte = start; byte < end; byte += TILE) {
      f(k, k * bytes + byte, int(std::min(TILE, end - byte)), byte);
    }
  }
}

}  // namespace

extern "C" {

// Run i of the values lies at x[i] and ends before ends[i]; its first one has the number starts[i]
// among the draws. With `before`, x + alpha before is coded, and `left` becomes what that leaves
// out; it may be `before`.
void natural_encode(const float* const* x, const float* const* before, float* const* left,
                    float alpha, Index values, Index runs, const Index* ends,
                    const Word* starts, const Word* key, std::uint8_t* exponents, std::uint8_t* signs, int threads) {
  const Draw of_key{key[0], key[1]};
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index start = 0; start < (values + 7) / 8; start += SPAN) {
    std::uint8_t of_span[SPAN] = {};
    stretches(values, start, [&](int k, Index from, int n, Index byte) {
      // A copy, as a byte that is written may be part of anything that is not local.
      const Draw draw = of_key;
      Index run = std::upper_bound(ends, ends + runs, from) - ends;
      for (int done = 0; done < n; run++) {
        const Index place = from + done - (run ? ends[run - 1] : 0);
        const int length = int(std::min<Index>(n - done, ends[run] - from - done));
        const float *g = x[run] + place, *e = before ? before[run] + place : nullptr;
        const Word index = starts[run] + Word(place);
        float coded[TILE];
        Word bits[TILE], sent[TILE];
        for (int i = 0; e && i < length; i++) coded[i] = __builtin_fmaf(alpha, e[i], g[i]);
        std::memcpy(bits, e ? coded : g, sizeof(Word) * length);
        for (int i = 0; i < length; i++) {
          const Word size = bits[i] & 0x7fffffff;
          const Word rounded = (size + (draw(index + Word(i)) >> 9)) >> 23;
          const Word most = rounded < 254 ? rounded : 254;
          sent[i] = size < FINITE ? most : 255;
        }
        std::uint8_t *__restrict to = exponents + from + done, *__restrict of = of_span + byte - start + done;
        for (int i = 0; i < length; i++) to[i] = std::uint8_t(sent[i]);
        for (int i = 0; i < length; i++) of[i] |= std::uint8_t(bits[i] >> 31 << k);
        if (e) {
          float decoded[TILE], *rest = left[run] + place;
          for (int i = 0; i < length; i++) sent[i] = sent[i] << 23 | (bits[i] & 1u << 31);
          std::memcpy(decoded, sent, sizeof(Word) * length);
          // Adding 0 turns -0 into 0, as where decoded values are added to zeros.
          for (int i = 0; i < length; i++) rest[i] = coded[i] - (decoded[i] + 0.0f);
        }
        done += length;
      }
    });
    std::copy_n(of_span, std::min(SPAN, (values + 7) / 8 - start), signs + start);
  }
}

// Adds the values of all workers' messages to `out`, or writes their mean.
void natural_decode(const std::uint8_t* const* exponents, const std::uint8_t* const* signs,
                    Index workers, Index values, float* out, Index mean, int threads) {
  const float divisor = float(workers);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index start = 0; start < (values + 7) / 8; start += SPAN) {
    stretches(values, start, [&](int k, Index from, int n, Index byte) {
      float total[TILE] = {}, *to = out + from;
      if (!mean) std::memcpy(total, to, sizeof(float) * n);
      for (Index w = 0; w < workers; w++) {
        const std::uint8_t *e = exponents[w] + from, *s = signs[w] + byte;
        Word bits[TILE];
        float decoded[TILE];
        for (int i = 0; i < n; i++) bits[i] = Word(e[i]) << 23 | Word(s[i]) >> k << 31;
        std::memcpy(decoded, bits, sizeof(float) * n);
        for (int i = 0; i < n; i++) total[i] += decoded[i];
      }
      for (int i = 0; mean && i < n; i++) total[i] /= divisor;
      std::memcpy(to, total, sizeof(float) * n);
    });
  }
}

}  // extern "C"
