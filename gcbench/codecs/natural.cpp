// Natural compression: values rounded to powers of two, sent as exponents, and signs in 1 bit.
//
// Bit k of byte j is the sign of value j + k m, for m bytes (packing.py), so that a core walks eight
// stretches side by side.

#include "codes.h"

namespace {

constexpr Word FINITE = 255u << 23;  // what the bits of finite magnitudes are below

// Calls f(k, value, from, n) for the k-th stretch of up to TILE bytes from `byte` on.
template <class F>
inline void stretches(Index values, Index byte, F f) {
  const Index bytes = (values + 7) / 8;
  for (int k = 0; k < 8; k++) {
    const Index from = k * bytes + byte, end = std::min((k + 1) * bytes, values);
    if (from < end) f(k, from, int(std::min(TILE, end - from)));
  }
}

}  // namespace

extern "C" {

// Run i of the values ends before ends[i]; its first one has the number starts[i] among the draws.
void natural_encode(const float* x, Index values, const Index* ends, const Word* starts,
                    const Word* key, std::uint8_t* exponents, std::uint8_t* signs, int threads) {
  const Word key_word = key[0], inner = key[1];
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index byte = 0; byte < (values + 7) / 8; byte += TILE) {
    std::uint8_t of_tile[TILE] = {};
    stretches(values, byte, [&](int k, Index from, int n) {
      // Copies, as a byte that is written may be part of anything that is not local.
      const Draw draw{key_word, inner};
      std::uint8_t *__restrict to = exponents + from, *__restrict bytes = of_tile;
      Word bits[TILE];
      std::memcpy(bits, x + from, sizeof(Word) * n);
      for (int i = 0; i < n; i++) bytes[i] |= std::uint8_t(bits[i] >> 31 << k);
      Index run = 0;
      for (int done = 0; done < n;) {
        while (ends[run] <= from + done) run++;
        const int stop = int(std::min<Index>(n, ends[run] - from));
        const Index start = run ? ends[run - 1] : 0;
        const Word index = starts[run] + Word(from - start);
        for (int i = done; i < stop; i++) {
          const Word size = bits[i] & 0x7fffffff;
          const Word rounded = (size + (draw(index + Word(i)) >> 9)) >> 23;
          const Word most = rounded < 254 ? rounded : 254;
          to[i] = std::uint8_t(size < FINITE ? most : 255);
        }
        done = stop;
      }
    });
    std::copy_n(of_tile, std::min(TILE, (values + 7) / 8 - byte), signs + byte);
  }
}

void natural_decode(const std::uint8_t* exponents, const std::uint8_t* signs, Index values,
                    float* out, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index byte = 0; byte < (values + 7) / 8; byte += TILE) {
    stretches(values, byte, [&](int k, Index from, int n) {
      const std::uint8_t *e = exponents + from, *s = signs + byte;
      Word bits[TILE];
      float decoded[TILE];
      for (int i = 0; i < n; i++) bits[i] = Word(e[i]) << 23 | Word(s[i]) >> k << 31;
      std::memcpy(decoded, bits, sizeof(float) * n);
      for (int i = 0; i < n; i++) out[from + i] += decoded[i];
    });
  }
}

}  // extern "C"
