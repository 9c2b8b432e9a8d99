// Floats of few bits in blocks that share a scale: block_formats.py. Every result has the bits of the
// eager kernels.

#include <type_traits>
#include <vector>

#include "codes.h"

namespace {

enum Scale { FLOAT32, POWER_UP, POWER_DOWN, OF_TENSOR };

struct Form {  // floats.py `FloatFormat`
  int exponent, mantissa, last;
  int dropped() const { return 23 - mantissa; }
  int bias() const { return (1 << (exponent - 1)) - 1; }
  float step() const { return std::ldexp(1.0f, 1 - bias() - mantissa); }
  float largest() const {
    const int power = last >> mantissa, rest = last & ((1 << mantissa) - 1);
    return std::ldexp(1.0f + std::ldexp(float(rest), -mantissa), power - bias());
  }
};

constexpr Form E4M3{4, 3, 0x7E};

// floats.py `to_float_codes`
template <bool RANDOM>
inline int float_code(float x, const Form& form, float per_step, Word word) {
  std::int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int dropped = form.dropped(), bias = form.bias();
  const std::int32_t magnitude = std::min(bits & 0x7fffffff, 0x7f800000);
  const std::int32_t added = RANDOM ? std::int32_t(word >> (32 - dropped))
                                    : (1 << (dropped - 1)) - 1 + (magnitude >> dropped & 1);
  const int normal = (magnitude + added) >> dropped;
  const float all = std::fabs(x) * per_step, most = float(1 << form.mantissa);
  const float steps = all < most ? all : most, below = std::floor(steps);
  const float rounded = RANDOM ? below + (float(word >> 8) * 0x1p-24f < steps - below)
                               : std::nearbyint(steps);
  const bool is_small = magnitude < (128 - bias) << 23;
  const int code = is_small ? int(rounded) : normal - ((127 - bias) << form.mantissa);
  return std::min(code, form.last) | ((bits >> 31 & 1) << (form.exponent + form.mantissa));
}

// floats.py `of_float_codes`
inline float float_value(int code, const Form& form, float step) {
  const int sign = form.exponent + form.mantissa, magnitude = code & ((1 << sign) - 1);
  const std::int32_t bits = (magnitude << form.dropped()) + ((127 - form.bias()) << 23);
  float normal;
  std::memcpy(&normal, &bits, sizeof normal);
  const float value = magnitude < 1 << form.mantissa ? float(magnitude) * step : normal;
  return code >> sign & 1 ? -value : value;
}

// Returns the code in e8m0 of a block's scale: blocks.py `shared_exponents`.
inline int shared_exponent(float most, const Form& form, bool up) {
  std::int32_t bits;
  std::memcpy(&bits, &most, sizeof bits);
  const int exponent = bits >> 23, emax = (form.last >> form.mantissa) - form.bias();
  const int last = (form.last & ((1 << form.mantissa) - 1)) << form.dropped();
  if (exponent == 255) return 255;
  return std::clamp(exponent - emax + (up && (bits & 0x7fffff) > last), 0, 254 - emax);
}

inline float power(int code) {
  const std::int32_t bits = code == 0 ? 0x400000 : code == 255 ? 0x7fc00000 : code << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

constexpr Index PART = 512;  // values whose scales are computed at once

// Writes the scales of blocks from what is sent of them.
void scales_of(int kind, const void* sent, Index count, float of_tensor, float* scales) {
  const auto* floats = static_cast<const float*>(sent);
  const auto* bytes = static_cast<const std::uint8_t*>(sent);
  if (kind == FLOAT32) {
    std::copy_n(floats, count, scales);
  } else if (kind == OF_TENSOR) {
    const float step = E4M3.step();
    for (Index b = 0; b < count; b++) scales[b] = float_value(bytes[b], E4M3, step) * of_tensor;
  } else {
    for (Index b = 0; b < count; b++) scales[b] = power(bytes[b]);
  }
}

// Writes what is sent of the scales of blocks with these largest magnitudes.
void fit_scales(int kind, const Form& form, const float* most, Index count, float of_tensor,
                void* sent) {
  auto* floats = static_cast<float*>(sent);
  auto* bytes = static_cast<std::uint8_t*>(sent);
  const float last = form.largest(), unit = of_tensor == 0 ? 1 : of_tensor,
              per_step = 1 / E4M3.step();
  int codes[PART];
  for (Index b = 0; b < count; b++) {
    if (kind == FLOAT32) floats[b] = most[b] / last;
    else if (kind != OF_TENSOR) codes[b] = shared_exponent(most[b], form, kind == POWER_UP);
    else codes[b] = float_code<false>(most[b] / last / unit, E4M3, per_step, 0);
  }
  for (Index b = 0; kind != FLOAT32 && b < count; b++) bytes[b] = std::uint8_t(codes[b]);
}

// Calls f(tensor, first value in it, number of values, first value in the row, first block) for
// parts of whole blocks.
template <class F>
void each_part(Index tensors, const Index* sizes, Index size, int threads, F f) {
  const Index step = std::max<Index>(PART / size, 1) * size;
  Index row = 0, block = 0;
  for (Index t = 0; t < tensors; t++) {
    const Index n = sizes[t], count = (n + step - 1) / step;
#pragma omp parallel for num_threads(threads) if (threads > 1 && n >= 1 << 15)
    for (Index k = 0; k < count; k++) {
      const Index from = k * step;
      f(t, from, std::min(step, n - from), row + from, block + from / size);
    }
    row += n, block += (n + size - 1) / size;
  }
}

// Calls f(number, first value, number of values) for the blocks of n values. The last number is
// fixed at compile time for whole blocks of 16 and 32.
template <class F>
inline void each_block(Index n, Index size, F f) {
  for (Index b = 0, from = 0; from < n; b++, from += size) {
    if (std::min(size, n - from) == 16) f(b, from, std::integral_constant<Index, 16>());
    else if (std::min(size, n - from) == 32) f(b, from, std::integral_constant<Index, 32>());
    else f(b, from, std::min(size, n - from));
  }
}

// Copies of what a byte that is written may be part of: a format and draws are passed by value.
template <bool RANDOM, bool QUOTIENTS, class Size>
inline void encode_block(const float* x, Size n, float by, float inverse, Form form, float per_step,
                         Draw draw, Word index, std::uint8_t* __restrict codes) {
  for (Index first = 0; first < n; first += 64) {
    const int count = int(std::min<Index>(64, n - first));
    int of_few[64];
    for (int i = 0; i < count; i++) {
      const Word word = RANDOM ? draw(index + Word(first + i)) : 0;
      const float share = QUOTIENTS ? quotient(x[first + i], by, inverse) : x[first + i] / by;
      of_few[i] = float_code<RANDOM>(share, form, per_step, word);
    }
    for (int i = 0; i < count; i++) codes[first + i] = std::uint8_t(of_few[i]);
  }
}

// Puts the values of codes with the scales of their blocks into `out`.
void decode_part(const std::uint8_t* codes, Index n, Index size, const float* scales, Form form,
                 Index into, float* __restrict out) {
  const float step = form.step();
  with_put(into, [=](auto put) {
    each_block(n, size, [=](Index b, Index from, auto count) {
      const float scale = scales[b];
      float* to = out + from;
      for (Index i = 0; i < count; i++)
        put(to[i], float_value(codes[from + i], form, step) * scale);
    });
  });
}

}  // namespace

extern "C" {

// Writes the codes of a row's tensors, a byte each, and its scales. The first value of tensor t has
// the number starts[t] among the draws; without `key` values are rounded to the nearest. With
// `before`, x + alpha before is coded, and `left` becomes what that leaves out; it may be `before`.
void blocks_encode(const float* const* x, const float* const* before, float* const* left,
                   float alpha, Index tensors, const Index* sizes, Index size, int kind, int exponent,
                   int mantissa, int last, const Word* starts, const Word* key, std::uint8_t* codes,
                   void* scales, float* of_tensors, int threads) {
  const Form form{exponent, mantissa, last};
  const float per_step = 1 / form.step();
  const Draw draw = key ? Draw{key[0], key[1]} : Draw{};
  for (Index t = 0; kind == OF_TENSOR && t < tensors; t++) {
    float most[2] = {};
    for (Index from = 0; from < sizes[t]; from += PART) {
      const Index n = std::min(PART, sizes[t] - from);
      const float* v = x[t] + from;
      if (before) add_residual(v, before[t] + from, alpha, n, left[t] + from), v = left[t] + from;
      most[1] = largest_of(v, n), most[0] = largest_of(most, 2);
    }
    of_tensors[t] = most[0] / (form.largest() * E4M3.largest());
  }
  each_part(tensors, sizes, size, threads, [=](Index t, Index first, Index n, Index place,
                                               Index b) {
    const float *v = x[t] + first, of_tensor = of_tensors ? of_tensors[t] : 0;
    if (before) {
      float* sums = left[t] + first;
      if (kind != OF_TENSOR) add_residual(v, before[t] + first, alpha, n, sums);
      v = sums;
    }
    const Index blocks = (n + size - 1) / size;
    void* sent = static_cast<char*>(scales) + b * (kind == FLOAT32 ? 4 : 1);
    float most[PART], scale[PART], by[PART], inverse[PART];
    each_block(n, size, [&](Index k, Index from, auto count) {
      most[k] = largest_of(v + from, count);
    });
    fit_scales(kind, form, most, blocks, of_tensor, sent);
    scales_of(kind, sent, blocks, of_tensor, scale);
    int quotients = 1;  // but for scales below those of any float that is sent
    for (Index k = 0; k < blocks; k++) {
      by[k] = scale[k] == 0 ? 1 : scale[k], inverse[k] = 1 / by[k];
      quotients &= has_quotients(by[k]);
    }
    const Word index = key ? starts[t] + Word(first) : 0;
    const auto encode = [&](auto random, auto quotients) {
      each_block(n, size, [&](Index k, Index from, auto count) {
        encode_block<random, quotients>(v + from, count, by[k], inverse[k], form, per_step, draw,
                                        index + Word(from), codes + place + from);
      });
    };
    const std::true_type yes;
    const std::false_type no;
    if (key) quotients ? encode(yes, yes) : encode(yes, no);
    else quotients ? encode(no, yes) : encode(no, no);
    if (before) decode_part(codes + place, n, size, scale, form, SUBTRACT, left[t] + first);
  });
}

// Puts the values of codes into a row.
void blocks_decode(const std::uint8_t* codes, Index tensors, const Index* sizes, Index size,
                   int kind, int exponent, int mantissa, const void* scales,
                   const float* of_tensors, float* out, Index into, int threads) {
  const Form form{exponent, mantissa, 0};
  each_part(tensors, sizes, size, threads, [=](Index t, Index, Index n, Index place, Index b) {
    float scale[PART];
    const void* sent = static_cast<const char*>(scales) + b * (kind == FLOAT32 ? 4 : 1);
    scales_of(kind, sent, (n + size - 1) / size, of_tensors ? of_tensors[t] : 0, scale);
    decode_part(codes + place, n, size, scale, form, into, out + place);
  });
}
}
