// The codes of a row's values, the values that codes stand for, and the words that codes share: what
// one core does in its first cache. Every result has the bits of the eager kernels.

#pragma once

#include <utility>

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

// What the codes and the values of a bucket depend on, for those that need no table.
struct Bucket {
  float unit, inverse, threshold, low, high;  // of a grid, `high` is the scale
  bool in_range;  // whether places are on the grid: values are finite, and none exceeds the scale

  Bucket() = default;
  Bucket(const Job& job, const float* p)
      : unit(*p > 0 ? *p : 1), inverse(1 / unit), threshold(job.fitted == 3 ? p[1] : 0),
        low(job.value == SIGNED ? -*p : *p), high(job.fitted > 1 ? p[job.fitted - 1] : *p),
        in_range((job.fit == LARGEST || job.fit == NORM) && *p < INFINITY) {}
};

// The codes and values of a method that need no table, one by one.
template <Index CODE, Index VALUE>
struct Single {
  const std::int32_t end, middle;  // in units of a draw
  const float places, half, inverse;

  explicit Single(const Job& job)
      : end(std::int32_t(job.highest << 22)), middle(end + (1 << 22)),
        places(CODE == GRID ? float(end) : float(job.highest / 2)), half(float(job.highest) / 2),
        inverse(1 / half) {}

  // Returns the code at a place on a grid, which begins at -places.
  Word at(std::int32_t place, Draw draw, Word index) const {
    if (CODE == NEAREST) return Word(place + std::int32_t(places));
    return Word((place + (std::int32_t(draw(index)) >> 9) + middle) >> 23);
  }

  float round(float place) const { return CODE == NEAREST ? std::nearbyint(place) : place; }

  // Returns a value's code in a bucket that is in range and has quotients, or needs neither.
  Word code(float x, const Bucket& of, Draw draw, Word index) const {
    if (CODE == REACHES) return x >= of.threshold;
    return at(std::int32_t(round(quotient(x, of.unit, of.inverse) * places)), draw, index);
  }

  float value(Word code, const Bucket& of) const {
    if (VALUE != ON_GRID) return code ? of.high : of.low;
    return quotient(float(std::int32_t(code)) - half, half, inverse) * of.high;
  }
};

// Writes the codes of a bucket's values; those out of range get any place, but on the grid, as
// neighbors share a word.
template <Index CODE>
void code_each(const Job& job, const float* x, int n, const Bucket& of, Draw draw, Word index,
               Word* codes) {
  const Single<CODE, ON_GRID> single(job);
  if (CODE == REACHES || (of.in_range && has_quotients(of.unit))) {
    // A place below 1 needs not be exact.
    for (int i = 0; i < n; i++) codes[i] = single.code(x[i], of, draw, index + Word(i));
    return;
  }
  const float end = of.in_range ? INFINITY : single.places;
  for (int i = 0; i < n; i++) {
    const float place = single.round(x[i] / of.unit * single.places);
    const float above = place > -end ? place : -end;
    codes[i] = single.at(std::int32_t(above < end ? above : end), draw, index + Word(i));
  }
}

void code(const Job& job, const float* x, int n, const float* p, Draw draw, Word index,
          Word* codes) {
  switch (job.code) {
    case GRID: return code_each<GRID>(job, x, n, {job, p}, draw, index, codes);
    case NEAREST: return code_each<NEAREST>(job, x, n, {job, p}, draw, index, codes);
    case REACHES: return code_each<REACHES>(job, x, n, {job, p}, draw, index, codes);
    case NEAREST_LEVEL: return nearest_levels(job, x, n, p[1], codes);
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

constexpr int LINES = 8;

struct Line {  // where values of a row lie, and what they are coded with
  const float *x, *before;
  float* left;
  Bucket of;
  Word index;
  float limit;
};

// Adds the codes of as many lines as there are K to words, each of which stays in a register
// meanwhile: they are the digits of a number of base FACTOR. With LEAVES, x + alpha before is coded,
// and `left` becomes what that leaves out.
template <Index CODE, Index VALUE, Word FACTOR, bool LEAVES, int... K>
void code_lines(const Job& job, const Line* lines, float alpha, Draw draw, int n, Index shift,
                Word* words) {
  const Single<CODE, VALUE> single(job);
  const Line line[] = {lines[K]...};  // a copy, which nothing that is written may be part of
#pragma GCC ivdep
  for (int i = 0; i < n; i++) {
    Word number = 0, power = 1;
    const auto add = [&](const Line& of) __attribute__((always_inline)) {
      const float v = LEAVES ? __builtin_fmaf(alpha, of.before[i], of.x[i]) : of.x[i];
      const float within = CODE == GRID ? clip(v, of.limit) : v;
      const Word code = single.code(within, of.of, draw, of.index + Word(i));
      if (LEAVES) of.left[i] = v - (single.value(code, of.of) + 0.0f);
      number += code * power;
      power *= FACTOR;
    };
    (add(line[K]), ...);
    words[i] |= number << shift;
  }
}

// Codes that have a template of their own, which takes `lines` rows at once.
struct Known {
  Index code, value, lines;
  Word factor;
  decltype(&code_lines<GRID, ON_GRID, 2, false, 0>) plain, leaving;
};

template <Index CODE, Index VALUE, Word FACTOR, int... K>
constexpr Known known(std::integer_sequence<int, K...>) {
  return {CODE, VALUE, sizeof...(K), FACTOR, code_lines<CODE, VALUE, FACTOR, false, K...>,
          code_lines<CODE, VALUE, FACTOR, true, K...>};
}

template <int N>
constexpr auto lines = std::make_integer_sequence<int, N>();

constexpr Known KNOWN[] = {
    known<GRID, ON_GRID, 2>(lines<8>),   known<GRID, ON_GRID, 4>(lines<8>),
    known<GRID, ON_GRID, 16>(lines<8>),  known<GRID, ON_GRID, 256>(lines<4>),
    known<GRID, ON_GRID, 3>(lines<5>),   known<REACHES, SIGNED, 2>(lines<8>),
    known<REACHES, LEVEL, 2>(lines<8>),
};

// Returns the template for a method's codes, or null.
inline const Known* find_known(const Job& job) {
  const Word factor = job.digits == 1 ? 1 << job.bits : Word(job.base);
  const Index at_once = job.digits == 1 ? std::min<Index>(LINES, job.rows) : job.digits;
  for (const Known& of : KNOWN) {
    const bool same = of.code == job.code && of.value == job.value && of.factor == factor;
    if (same && of.lines == at_once && job.words == 1 && (job.value != LEVEL || job.base == 2)) {
      return &of;
    }
  }
  return nullptr;
}

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
