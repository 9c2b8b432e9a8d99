// Randomized Hadamard transforms of blocks, each in a core's first cache: hadamard.py says which.

#include <vector>

#include "codes.h"

namespace {

constexpr int WIDTH = 16;
typedef float Lane __attribute__((vector_size(4 * WIDTH)));
typedef std::int32_t Bits __attribute__((vector_size(4 * WIDTH)));

inline Lane load(const float* x) {
  Lane v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

constexpr Word OTHER = 0x5BD1E995;  // noise.py `Noise.other`

inline void store(float* x, Lane v) { std::memcpy(x, &v, sizeof v); }

// Sums and differences of the lanes that lie `step` apart.
template <int step>
inline Lane in_lanes(Lane v) {
  Bits place;
  Lane sign;
  for (int i = 0; i < WIDTH; i++) place[i] = i ^ step, sign[i] = i & step ? -1.0f : 1.0f;
  return __builtin_shuffle(v, place) + v * sign;
}

// Four stages over 16 vectors.
inline void add_vectors(Lane* v) {
#pragma GCC unroll 4
  for (int step = 1; step < 16; step *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      if (i & step) continue;
      const Lane a = v[i], b = v[i + step];
      v[i] = a + b, v[i + step] = a - b;
    }
  }
}

inline Lane add_lanes(Lane v) { return in_lanes<8>(in_lanes<4>(in_lanes<2>(in_lanes<1>(v)))); }

// The stages from `step` on of the sums of n = 2^k values with the signs of a Hadamard matrix.
void add_from(float* x, Index n, Index step) {
  for (; step >= WIDTH && step * 16 <= n; step *= 16) {
    for (Index block = 0; block < n; block += 16 * step) {
      for (Index i = block; i < block + step; i += WIDTH) {
        Lane v[16];
        for (int k = 0; k < 16; k++) v[k] = load(x + i + k * step);
        add_vectors(v);
        for (int k = 0; k < 16; k++) store(x + i + k * step, v[k]);
      }
    }
  }
  for (; step < n; step *= 2) {
    for (Index block = 0; block < n; block += 2 * step) {
      float *low = x + block, *high = low + step;
#pragma GCC ivdep
      for (Index i = 0; i < step; i++) {
        const float a = low[i], b = high[i];
        low[i] = a + b, high[i] = a - b;
      }
    }
  }
}

constexpr Index GROUP = 16 * WIDTH, SIGNS = 16;  // values that a core holds; signs of a word

// The signs of a block's values: those of value i are in word i % 256, one for each group of 256.
struct Signs {
  Draw draw;
  Word first;
  Word words[GROUP];
  void at(Index from, Index n) {  // for the values from a multiple of 4096 on
    for (Index i = 0; i < std::min(n - from, GROUP); i++) {
      words[i] = draw(first + Word(from / SIGNS + i));
    }
  }
};

inline float times_sign(float x, Word word, Index group) {
  Word bits;
  std::memcpy(&bits, &x, 4);
  bits ^= word << group % SIGNS & 0x80000000u;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Writes H D x / sqrt(n) for the signs D, of which there may be none.
void turn(const float* from, float* to, Index n, float unit, Signs* signs) {
  for (Index g = 0; g < n; g += GROUP) {
    if (signs && g % (SIGNS * GROUP) == 0) signs->at(g, n);
    const Index count = std::min(n - g, GROUP);
    float flipped[GROUP];
    const float* x = from + g;
    for (Index i = 0; i < count; i++) flipped[i] = x[i] * unit;
    if (signs) {
      for (Index i = 0; i < count; i++) {
        flipped[i] = times_sign(flipped[i], signs->words[i], g / GROUP);
      }
    }
    if (count < GROUP) {
      Index step = 1;
      if (count >= WIDTH) {
        for (Index i = 0; i < count; i += WIDTH) store(flipped + i, add_lanes(load(flipped + i)));
        step = WIDTH;
      }
      add_from(flipped, count, step);
      std::copy_n(flipped, count, to + g);
      continue;
    }
    Lane v[16];
    for (int i = 0; i < 16; i++) v[i] = add_lanes(load(flipped + i * WIDTH));
    add_vectors(v);
    for (int i = 0; i < 16; i++) store(to + g + i * WIDTH, v[i]);
  }
  add_from(to, n, GROUP);
}

}  // namespace

extern "C" {

// Rotates the tensors `x` [rows][tensors] of `sizes` values into the rows of `y`, of `width` values, or
// back, adding to x: hadamard.py says how tensors are cut into blocks.
void rotate(Index rows, Index tensors, float* const* x, const Index* sizes, const Word* starts,
            const Word* keys, Index size, float* y, Index width, Index back, int threads) {
  struct Block {
    Index tensor, offset, length, place, size;
  };
  std::vector<Block> blocks;
  Index place = 0;
  for (Index t = 0; t < tensors; t++) {
    for (Index offset = 0; offset < sizes[t]; offset += size) {
      const Index length = std::min(size, sizes[t] - offset);
      Index padded = std::min<Index>(size, 64);
      while (padded < length) padded *= 2;
      blocks.push_back({t, offset, length, place, padded});
      place += padded;
    }
  }
  const Index count = Index(blocks.size());
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<float> room(size);
#pragma omp for schedule(static)
    for (Index i = 0; i < rows * count; i++) {
      const Index row = i / count;
      const Block& b = blocks[i % count];
      const Draw draw{keys[2 * row], keys[2 * row + 1]};
      const Word first = starts[row * tensors + b.tensor] + Word(b.offset);
      Signs one{draw, first}, two{{draw.inner ^ OTHER, draw.key ^ OTHER}, first};
      float* values = x[row * tensors + b.tensor] + b.offset;
      float* rotated = y + row * width + b.place;
      const float unit = float(1 / std::sqrt(double(b.size)));
      if (!back) {
        const float* source = values;
        if (b.length < b.size) {
          std::copy_n(values, b.length, room.data());
          std::fill(room.data() + b.length, room.data() + b.size, 0.0f);
          source = room.data();
        }
        turn(source, rotated, b.size, unit, &one);
        turn(rotated, rotated, b.size, unit, &two);
        continue;
      }
      turn(rotated, room.data(), b.size, unit, nullptr);
      turn(room.data(), room.data(), b.size, unit, &two);
      for (Index from = 0; from < b.length; from += GROUP) {
        if (from % (SIGNS * GROUP) == 0) one.at(from, b.size);
        const Index count = std::min(b.length - from, GROUP);
        for (Index k = 0; k < count; k++) {
          values[from + k] += times_sign(room[from + k], one.words[k], from / GROUP);
        }
      }
    }
  }
}

}  // extern "C"
