// The codes of a row's values, the values that codes stand for, and the words that codes share: what
// one core does in its first cache. Every result has the bits of the eager kernels.

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

// Calls f(i, place) with the places of values on a grid from -end to end. Values and scales that are
// not finite get any place, but in this range, as neighbors share a word.
template <class Round, class F>
inline void place_codes(const float* x, int n, float unit, float end, bool in_range, Round round,
                        F f) {
  if (in_range && has_quotients(unit)) {  // a place below 1 needs not be exact
    const float inverse = 1 / unit;
    for (int i = 0; i < n; i++) f(i, std::int32_t(round(quotient(x[i], unit, inverse) * end)));
    return;
  }
  if (in_range) {
    for (int i = 0; i < n; i++) f(i, std::int32_t(round(x[i] / unit * end)));
    return;
  }
  for (int i = 0; i < n; i++) {
    const float place = round(x[i] / unit * end), above = place > -end ? place : -end;
    f(i, std::int32_t(above < end ? above : end));
  }
}

void code(const Job& job, const float* x, int n, const float* p, Draw draw, Word index,
          Word* codes) {
  const float unit = *p > 0 ? *p : 1;
  const bool in_range = (job.fit == LARGEST || job.fit == NORM) && unit < INFINITY;
  switch (job.code) {
    case GRID: {  // scales.py `grid_codes`
      const std::int32_t end = std::int32_t(job.highest << 22), middle = end + (1 << 22);
      place_codes(x, n, unit, float(end), in_range, [](float place) { return place; },
                  [=](int i, std::int32_t place) {
                    const std::int32_t noise = std::int32_t(draw(index + Word(i))) >> 9;
                    codes[i] = Word((place + noise + middle) >> 23);
                  });
      break;
    }
    case NEAREST: {
      const std::int32_t levels = std::int32_t(job.highest / 2);
      place_codes(x, n, unit, float(levels), in_range,
                  [](float place) { return std::nearbyint(place); },
                  [=](int i, std::int32_t place) { codes[i] = Word(place + levels); });
      break;
    }
    case REACHES: {
      const float threshold = job.fitted == 3 ? p[1] : 0;
      for (int i = 0; i < n; i++) codes[i] = x[i] >= threshold;
      break;
    }
    case NEAREST_LEVEL: nearest_levels(job, x, n, p[1], codes); break;
    case TABLE:
      if (job.base < MANY_LEVELS) return code_few(x, n, p, job.base, draw, index, codes);
      for (int i = 0; i < n; i++) codes[i] = table_code(x[i], p, job.base, draw(index + Word(i)));
  }
}

// Calls f(i, value) for the values of codes, in any order.
template <class F>
inline void values(const Job& job, const Word* codes, int n, const float* p, Index step, F f) {
  switch (job.value) {
    case ON_GRID: {
      const float half = float(job.highest) / 2, inverse = 1 / half, scale = *p;
#pragma GCC ivdep
      for (int i = 0; i < n; i++) {
        f(i, quotient(float(std::int32_t(codes[i])) - half, half, inverse) * scale);
      }
      break;
    }
    case SIGNED: {
      const float scale = *p, opposite = -scale;
#pragma GCC ivdep
      for (int i = 0; i < n; i++) f(i, codes[i] ? scale : opposite);
      break;
    }
    case LEVEL: {
      if (job.base == 2) {
        const float low = p[0], high = p[step];
#pragma GCC ivdep
        for (int i = 0; i < n; i++) f(i, codes[i] ? high : low);
        break;
      }
      const Word last = Word(job.base - 1);
#pragma GCC ivdep
      for (int i = 0; i < n; i++) f(i, p[std::min(codes[i], last)]);
      break;
    }
    case TIMES_LEVEL: {
      const float scale = *p;
#pragma GCC ivdep
      for (int i = 0; i < n; i++) f(i, job.levels[codes[i]] * scale);
    }
  }
}

// Words

// Adds the codes of a group's row k to its words, which are 0 before the first row. `number` holds
// the digits so far of a number that is not complete.
void put(const Job& job, const Word* codes, int n, Index k, Word* words, Word* number) {
  const Index place = k / job.digits * job.bits, digit = k % job.digits, shift = place % 32;
  words += place / 32 * job.row;
  if (job.digits > 1) {
    Word power = 1;
    for (Index i = 0; i < digit; i++) power *= Word(job.base);
    for (int i = 0; i < n; i++) number[i] = (digit ? number[i] : 0) + codes[i] * power;
    if (digit + 1 < job.digits) return;
    codes = number;
  }
  for (int i = 0; i < n; i++) words[i] |= codes[i] << shift;
  if (shift + job.bits > 32) {
    for (int i = 0; i < n; i++) words[job.row + i] |= codes[i] >> (32 - shift);
  }
}

// Replaces numbers by their digits base^i; radix.py `from_words` says why floors are exact.
template <class Real>
inline void take_digit(Word* numbers, int n, Index base, Index digit) {
  Real power = 1;
  for (Index i = 0; i < digit; i++) power *= Real(base);
  const Real low = 1 / power, high = 1 / (power * Real(base));
  for (int i = 0; i < n; i++) {
    const Real x = Real(std::int32_t(numbers[i])) + Real(0.5);
    numbers[i] = Word(std::int32_t(x * low) - std::int32_t(base) * std::int32_t(x * high));
  }
}

// Writes the codes of a group's row k.
void get(const Job& job, const Word* words, int n, Index k, Word* codes) {
  const Index place = k / job.digits * job.bits, shift = place % 32;
  const Word mask = job.bits < 32 ? (Word(1) << job.bits) - 1 : ~Word(0);
  words += place / 32 * job.row;
  if (shift + job.bits > 32) {
    for (int i = 0; i < n; i++) {
      codes[i] = (words[i] >> shift | words[job.row + i] << (32 - shift)) & mask;
    }
  } else {
    for (int i = 0; i < n; i++) codes[i] = words[i] >> shift & mask;
  }
  if (job.digits > 1) {
    if (job.bits <= 21) take_digit<float>(codes, n, job.base, k % job.digits);
    else take_digit<double>(codes, n, job.base, k % job.digits);
  }
}

}  // namespace
