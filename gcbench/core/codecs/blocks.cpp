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

inline float largest(const float* x, Index n) {
  std::int32_t most = 0;  // the bits of magnitudes rise with them, and those of a NaN are above all
  for (Index i = 0; i < n; i++) {
    std::int32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    most = std::max(most, bits & 0x7fffffff);
  }
  float value;
  std::memcpy(&value, &most, sizeof value);
  return value;
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

inline float scale_of(int kind, const void* scales, Index block, float of_tensor) {
  if (kind == FLOAT32) return static_cast<const float*>(scales)[block];
  const int code = static_cast<const std::uint8_t*>(scales)[block];
  if (kind == OF_TENSOR) return float_value(code, E4M3, E4M3.step()) * of_tensor;
  return power(code);
}

// Calls f(tensor, first value in it, number of values, first value in the row, block).
template <class F>
void each_block(Index tensors, const Index* sizes, Index size, int threads, F f) {
  Index row = 0, block = 0;
  for (Index t = 0; t < tensors; t++) {
    const Index n = sizes[t], count = (n + size - 1) / size;
#pragma omp parallel for num_threads(threads) if (threads > 1 && n >= 1 << 15)
    for (Index b = 0; b < count; b++) {
      f(t, b * size, std::min(size, n - b * size), row + b * size, block + b);
    }
    row += n, block += count;
  }
}

// Copies of what a byte that is written may be part of: a format and draws are passed by value.
template <bool RANDOM, class Size>
inline void encode_block(const float* x, Size n, float scale, Form form, Draw draw, Word index,
                         std::uint8_t* __restrict codes) {
  const float by = scale == 0 ? 1 : scale, per_step = 1 / form.step(), inverse = 1 / by;
  const bool quotients = has_quotients(by);  // but for those below any float that is sent
  for (Index first = 0; first < n; first += 64) {
    const int count = int(std::min<Index>(64, n - first));
    int of_few[64];
    for (int i = 0; i < count; i++) {
      const Word word = RANDOM ? draw(index + Word(first + i)) : 0;
      const float share = quotients ? quotient(x[first + i], by, inverse) : x[first + i] / by;
      of_few[i] = float_code<RANDOM>(share, form, per_step, word);
    }
    for (int i = 0; i < count; i++) codes[first + i] = std::uint8_t(of_few[i]);
  }
}

template <class Size>
inline void decode_block(const std::uint8_t* codes, Size n, float scale, Form form,
                         float* __restrict out) {
  const float step = form.step();
  for (Index i = 0; i < n; i++) out[i] += float_value(codes[i], form, step) * scale;
}

// Calls f with a number of values, which is fixed at compile time for whole blocks of 16 and 32.
template <class F>
inline void with_size(Index n, F f) {
  if (n == 16) f(std::integral_constant<Index, 16>());
  else if (n == 32) f(std::integral_constant<Index, 32>());
  else f(n);
}

}  // namespace

extern "C" {

// Writes the codes of a row's tensors, a byte each, and its scales. The first value of tensor t has
// the number starts[t] among the draws; without `key` values are rounded to the nearest.
void blocks_encode(const float* const* x, Index tensors, const Index* sizes, Index size, int kind,
                   int exponent, int mantissa, int last, const Word* starts, const Word* key,
                   std::uint8_t* codes, void* scales, float* of_tensors, int threads) {
  const Form form{exponent, mantissa, last};
  const Draw draw = key ? Draw{key[0], key[1]} : Draw{};
  for (Index t = 0; kind == OF_TENSOR && t < tensors; t++) {
    of_tensors[t] = largest(x[t], sizes[t]) / (form.largest() * E4M3.largest());
  }
  each_block(tensors, sizes, size, threads, [=](Index t, Index first, Index n, Index place, Index b) {
    const float* v = x[t] + first;
    const float most = largest(v, n);
    if (kind == FLOAT32) {
      static_cast<float*>(scales)[b] = most / form.largest();
    } else if (kind != OF_TENSOR) {
      static_cast<std::uint8_t*>(scales)[b] =
          std::uint8_t(shared_exponent(most, form, kind == POWER_UP));
    } else {
      const float unit = of_tensors[t] == 0 ? 1 : of_tensors[t], share = most / form.largest() / unit;
      static_cast<std::uint8_t*>(scales)[b] =
          std::uint8_t(float_code<false>(share, E4M3, 1 / E4M3.step(), 0));
    }
    const float scale = scale_of(kind, scales, b, of_tensors ? of_tensors[t] : 0);
    const Word index = key ? starts[t] + Word(first) : 0;
    with_size(n, [=](auto size) {
      if (key) encode_block<true>(v, size, scale, form, draw, index, codes + place);
      else encode_block<false>(v, size, scale, form, draw, index, codes + place);
    });
  });
}

// Adds the values of codes to a row.
void blocks_decode(const std::uint8_t* codes, Index tensors, const Index* sizes, Index size,
                   int kind, int exponent, int mantissa, const void* scales,
                   const float* of_tensors, float* out, int threads) {
  const Form form{exponent, mantissa, 0};
  each_block(tensors, sizes, size, threads, [=](Index t, Index, Index n, Index place, Index b) {
    const float scale = scale_of(kind, scales, b, of_tensors ? of_tensors[t] : 0);
    with_size(n, [=](auto size) { decode_block(codes + place, size, scale, form, out + place); });
  });
}
}
