// The codes of values, and the values that codes stand for: what one core does in its first cache.
// Every result has the bits of the eager kernels.

#pragma once

#include "fits.h"

namespace {

constexpr Index TILE = 512;  // values whose codes stay in a core's first cache

struct Draw {  // the random numbers of a worker
  Word key, inner;
  // noise.py random_words, of one index or of several
  template <class W>
  W operator()(W index) const {
    W x = index ^ key;
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

// Returns x / by from by's rounded inverse: a product, and a correction that rounds it as a quotient
// is rounded (Markstein 1990), unless by's mantissa is all ones or something is denormal.
inline float quotient(float x, float by, float inverse) {
  const float near = x * inverse;
  return __builtin_fmaf(__builtin_fmaf(-near, by, x), inverse, near);
}

inline Row quotient(Row x, Row by, Row inverse) {
  Row result;
  for (int i = 0; i < ROW; i++) result[i] = quotient(x[i], by[i], inverse[i]);
  return result;
}

inline bool has_quotients(float by) {
  Word bits;
  std::memcpy(&bits, &by, sizeof bits);
  return by > 1e-18f && by < 1e18f && (~bits & 0x7fffff);
}

// As `table_code`, with few levels. Codes are written in whole rows.
void code_few(const float* x, int n, const float* levels, Index count, Draw draw, Word index,
              Word* codes) {
  const Index last = count - 1;
  const auto level = [=](Index k) { return levels[std::min(k, last)]; };
  const auto gap = [=](Index k) {
    const float apart = level(k + 1) - level(k);
    return apart > 0 ? apart : 1;
  };
  bool quotients = true;
  for (Index k = 0; k < last; k++) quotients &= has_quotients(gap(k));
  const Table below(level), by(gap), inverse([=](Index k) { return 1 / gap(k); });
  Words step;
  for (int i = 0; i < ROW; i++) step[i] = Word(i);
  with_search(farthest(count), [=](Index k) { return level(k + 1); }, [&](auto search) {
    for_rows(x, n, [&](Index i, Row v) {
      const Places place = search(v);
      const Row over = v - below[place];
      const Row share = quotients ? quotient(over, by[place], inverse[place]) : over / by[place];
      const Words drawn = draw(step + (index + Word(i))) >> 8;
      const Row noise = __builtin_convertvector((Places)drawn, Row) * 0x1p-24f;
      Places found = place - (noise < share);
      found = found < std::int32_t(last) ? found : std::int32_t(last) - Places{};
      std::memcpy(codes + i, &found, sizeof found);
    });
  });
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
      if (job.base <= FEW) code_few(x, n, p, job.base, draw, index, wide);
      else for (int i = 0; i < n; i++) wide[i] = table_code(x[i], p, job.base, draw(index + Word(i)));
  }
  for (int i = 0; i < n; i++) codes[i] = std::uint8_t(wide[i]);
}

// Calls use(value) with the function from a code to its value in a bucket with the parameters p.
template <class F>
inline void with_value(const Job& job, const float* p, Index step, F use) {
  const float half = float(job.highest) / 2, inverse = 1 / half, scale = *p;
  const float* levels = job.levels;
  const std::int32_t last = std::int32_t(job.base - 1);
  switch (job.value) {
    case ON_GRID:
      return use([=](std::int32_t c) { return quotient(float(c) - half, half, inverse) * scale; });
    case SIGNED: return use([=](std::int32_t c) { return c ? scale : -scale; });
    case LEVEL: return use([=](std::int32_t c) { return p[step * std::min(c, last)]; });
    case TIMES_LEVEL: return use([=](std::int32_t c) { return levels[c] * scale; });
  }
}

// Calls f(i, value) for the values of codes, in any order.
template <class F>
inline void values(const Job& job, const std::uint8_t* codes, int n, const float* p, Index step,
                   F f) {
  const Index last = job.base - 1;
  with_value(job, p, step, [=](auto value) {
    int i = 0;
    if (job.base == 2) {
      const float low = value(0), high = value(1);
#pragma GCC ivdep
      for (; i < n; i++) f(i, codes[i] ? high : low);
    } else if (job.base <= FEW) {
      const Table table([=](Index c) { return value(std::int32_t(std::min(c, last))); });
      constexpr int SOME = 4 * ROW;
      for (; i + SOME <= n; i += SOME) {
        float found[SOME];
        std::int32_t places[SOME];
        for (int k = 0; k < SOME; k++) places[k] = codes[i + k];
        for (int k = 0; k < SOME; k += ROW) {
          Places at;
          std::memcpy(&at, places + k, sizeof at);
          const Row those = table[at];
          std::memcpy(found + k, &those, sizeof those);
        }
#pragma GCC ivdep
        for (int k = 0; k < SOME; k++) f(i + k, found[k]);
      }
    }
#pragma GCC ivdep
    for (; i < n; i++) f(i, value(codes[i]));
  });
}

// Writes what error feedback codes: values, and alpha times their residual, which may lie at `to`.
inline void add_residual(const float* x, const float* before, float alpha, Index n, float* to) {
#pragma GCC ivdep
  for (Index i = 0; i < n; i++) to[i] = __builtin_fmaf(alpha, before[i], x[i]);
}

enum Into { ADD, WRITE, SUBTRACT };  // how decoded values get to where floats lie

// Calls f(put) with the function that puts a value into a float. Adding 0 turns -0 into 0, as where
// decoded values are added to zeros.
template <class F>
inline void with_put(Index into, F f) {
  if (into == ADD) f([](float& to, float v) { to += v; });
  else if (into == WRITE) f([](float& to, float v) { to = v + 0.0f; });
  else f([](float& to, float v) { to -= v + 0.0f; });
}

}  // namespace
