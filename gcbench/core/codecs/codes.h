// The codes of values, and the values that codes stand for: what one core does in its first cache.
// Every result has the bits of the eager kernels.

#pragma once

#include "fits.h"

namespace {

constexpr Index TILE = 512;        // values whose codes stay in a core's first cache
constexpr Index MANY_LEVELS = 17;  // from which on a search is faster than comparing with all

struct Draw {  // the random numbers of a worker
  Word key, inner;
  // noise.py random_words
  Word operator()(Word index) const {
    Word x = index ^ key;
    x ^= x >> 16;
    x = x * 0x21F0AAADu + inner;
    x ^= x >> 15;
    return x * 0x735A2D97u;
  }
};

// levels.py `random_codes`: the place of v among the levels by bisection, then rounding.
inline Word table_code(float v, const float* levels, Index count, Word word) {
  const Index last = count - 1;
  Index place = 0;
  for (Index n = count; n > 2;) {
    const Index half = n / 2;
    if (v >= levels[std::min(place + half, last)]) place += half;
    n = half + 1;
  }
  const float below = levels[std::min(place, last)], gap = levels[std::min(place + 1, last)] - below;
  const bool up = float(word >> 8) * 0x1p-24f < (v - below) / (gap > 0 ? gap : 1);
  return Word(std::min(place + up, last));
}

// Returns how far the bisection of this many levels can go.
inline Index farthest(Index count) {
  Index place = 0;
  for (Index n = count; n > 2; n = n / 2 + 1) place += n / 2;
  return std::min(place, count - 1);
}

void code_few(const float* x, int n, const float* levels, Index count, Draw draw, Word index,
              Word* codes) {
  float below[TILE], above[TILE];
  std::fill_n(below, n, levels[0]);
  std::fill_n(above, n, levels[1]);
  std::fill_n(codes, n, 0);
  for (Index k = 1; k <= farthest(count); k++) {
    const float level = levels[k], next = levels[std::min(k + 1, count - 1)];
    for (int i = 0; i < n; i++) {
      const bool reached = x[i] >= level;
      below[i] = reached ? level : below[i];
      above[i] = reached ? next : above[i];
      codes[i] += reached;
    }
  }
  const Word last = Word(count - 1);
  for (int i = 0; i < n; i++) {
    const float gap = above[i] - below[i];
    const float share = (x[i] - below[i]) / (gap > 0 ? gap : 1);
    codes[i] = std::min(codes[i] + (float(draw(index + Word(i)) >> 8) * 0x1p-24f < share), last);
  }
}

// Returns x / by from by's rounded inverse: a product, and a correction that rounds it as a quotient
// is rounded (Markstein 1990), unless by's mantissa is all ones or something is denormal.
inline float quotient(float x, float by, float inverse) {
  const float near = x * inverse;
  return __builtin_fmaf(__builtin_fmaf(-near, by, x), inverse, near);
}

inline bool has_quotients(float by) {
  Word bits;
  std::memcpy(&bits, &by, sizeof bits);
  return by > 1e-18f && by < 1e18f && (~bits & 0x7fffff);
}

// Returns v within a limit, which may be infinite.
inline float clip(float v, float limit) {
  const float low = v < -limit ? -limit : v;
  return low > limit ? limit : low;
}

// Writes the codes of n values on a grid from -scale to scale. What is beyond it, or not a number, is
// coded as an end, as a code shares a word with its neighbors.
template <Index CODE>
void code_on_grid(const Job& job, const float* x, int n, float scale, Draw draw, Word index,
                  std::uint8_t* codes) {
  const std::int32_t end = std::int32_t(job.highest << 22), middle = end + (1 << 22);
  const std::int32_t zero = std::int32_t(job.highest / 2);
  const float places = CODE == GRID ? float(end) : float(zero);  // in units of a draw, or of codes
  const float unit = scale > 0 ? scale : 1, inverse = 1 / unit;
  const auto code = [=](float share, int i) {
    const float place = share * places;
    if (CODE == NEAREST) return std::uint8_t(std::int32_t(std::nearbyint(place)) + zero);
    const std::int32_t noise = std::int32_t(draw(index + Word(i))) >> 9;
    return std::uint8_t(Word(std::int32_t(place) + noise + middle) >> 23);
  };
  const auto within = [](float v, float most) {
    const float above = v > -most ? v : -most;
    return above < most ? above : most;
  };
  if (has_quotients(unit)) {
    for (int i = 0; i < n; i++) codes[i] = code(quotient(within(x[i], unit), unit, inverse), i);
  } else {
    for (int i = 0; i < n; i++) codes[i] = code(within(x[i] / unit, 1), i);
  }
}

// Writes the codes of n values of a bucket with the parameters p.
inline void code(const Job& job, const float* x, int n, const float* p, Draw draw, Word index,
          std::uint8_t* codes) {
  Word wide[TILE];
  switch (job.code) {
    case GRID: return code_on_grid<GRID>(job, x, n, *p, draw, index, codes);
    case NEAREST: return code_on_grid<NEAREST>(job, x, n, *p, draw, index, codes);
    case REACHES: {
      const float threshold = job.fitted == 3 ? p[1] : 0;
      for (int i = 0; i < n; i++) codes[i] = x[i] >= threshold;
      return;
    }
    case NEAREST_LEVEL: nearest_levels(job, x, n, p[1], wide); break;
    case TABLE:
      if (job.base < MANY_LEVELS) code_few(x, n, p, job.base, draw, index, wide);
      else for (int i = 0; i < n; i++) wide[i] = table_code(x[i], p, job.base, draw(index + Word(i)));
  }
  for (int i = 0; i < n; i++) codes[i] = std::uint8_t(wide[i]);
}

// Calls f(i, value) for the values of codes, in any order.
template <class F>
inline void values(const Job& job, const std::uint8_t* codes, int n, const float* p, Index step,
                   F f) {
  const auto each = [=](auto value) {
#pragma GCC ivdep
    for (int i = 0; i < n; i++) f(i, value(codes[i]));
  };
  const float half = float(job.highest) / 2, inverse = 1 / half, scale = *p;
  const float* levels = job.levels;
  const std::int32_t last = std::int32_t(job.base - 1);
  switch (job.value) {
    case ON_GRID:
      return each([=](std::int32_t c) { return quotient(float(c) - half, half, inverse) * scale; });
    case SIGNED: return each([=](bool c) { return c ? scale : -scale; });
    case LEVEL:
      if (last > 1) return each([=](std::int32_t c) { return p[std::min(c, last)]; });
      return each([=, high = p[step]](bool c) { return c ? high : scale; });
    case TIMES_LEVEL: return each([=](std::uint8_t c) { return levels[c] * scale; });
  }
}

}  // namespace
