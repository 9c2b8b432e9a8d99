// Randomized Hadamard transforms of blocks, each in a core's first cache: hadamard.py says which.

#include <vector>

#include "codes.h"

namespace {

inline Row load(const float* x) {
  Row v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

inline void store(float* x, Row v) { std::memcpy(x, &v, sizeof v); }

constexpr Word OTHER = 0x5BD1E995;  // noise.py `Noise.other`

// Sums and differences of the lanes that lie `step`, 2 `step`, ... apart.
template <int step>
inline Row in_lanes(Row v) {
  if constexpr (step < ROW) {
    Places place;
    Row sign;
    for (int i = 0; i < ROW; i++) place[i] = i ^ step, sign[i] = i & step ? -1.0f : 1.0f;
    return in_lanes<2 * step>(__builtin_shuffle(v, place) + v * sign);
  }
  return v;
}

// The stages over as many rows as a row has lanes: as many as there are registers for.
inline void add_rows(Row* v) {
#pragma GCC unroll 4
  for (int step = 1; step < ROW; step *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < ROW; i++) {
      if (i & step) continue;
      const Row a = v[i], b = v[i + step];
      v[i] = a + b, v[i + step] = a - b;
    }
  }
}

// The stages from `step` on of the sums of n = 2^k values with the signs of a Hadamard matrix.
void add_from(float* x, Index n, Index step) {
  for (; step * ROW <= n; step *= ROW) {
    for (Index block = 0; block < n; block += ROW * step) {
      for (Index i = block; i < block + step; i += ROW) {
        Row v[ROW];
#pragma GCC unroll 16
        for (int k = 0; k < ROW; k++) v[k] = load(x + i + k * step);
        add_rows(v);
#pragma GCC unroll 16
        for (int k = 0; k < ROW; k++) store(x + i + k * step, v[k]);
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

constexpr Index GROUP = 256, SIGNS = 16;  // values that words have signs for; signs of a word

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

  // Returns the values from number i on with their signs.
  Row flip(Row v, Index i) const {
    Words bits;
    std::memcpy(&bits, words + i % GROUP, sizeof bits);
    return (Row)((Words)v ^ (bits << Word(i / GROUP % SIGNS) & 0x80000000u));
  }
};

// Writes H D x / sqrt(n) for the signs D, of which there may be none.
void turn(const float* from, float* to, Index n, float unit, Signs* signs) {
  const auto lanes = [=](Index i) {
    const Row v = load(from + i) * unit;
    return in_lanes<1>(signs ? signs->flip(v, i) : v);
  };
  const Index square = std::min<Index>(n, ROW * ROW);
  for (Index i = 0; i < n; i += square) {
    if (signs && i % (SIGNS * GROUP) == 0) signs->at(i, n);
    if (square < ROW * ROW) {
      for (Index k = 0; k < n; k += ROW) store(to + k, lanes(k));
      return add_from(to, n, ROW);
    }
    Row v[ROW];
#pragma GCC unroll 16
    for (int k = 0; k < ROW; k++) v[k] = lanes(i + k * ROW);
    add_rows(v);
#pragma GCC unroll 16
    for (int k = 0; k < ROW; k++) store(to + i + k * ROW, v[k]);
  }
  add_from(to, n, square);
}

}  // namespace

extern "C" {

// Rotates the tensors `x` [rows][tensors] of `sizes` values into the rows of `y`, of `width` values,
// or back into x: hadamard.py says how tensors are cut into blocks.
void rotate(Index rows, Index tensors, float* const* x, const Index* sizes, const Word* starts,
            const Word* keys, Index size, float* y, Index width, Index back, Index into,
            int threads) {
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
      for (Index k = 0; k < b.size; k += ROW) {
        if (k % (SIGNS * GROUP) == 0) one.at(k, b.size);
        store(&room[k], one.flip(load(&room[k]), k));
      }
      with_put(into, [&](auto put) {
        for (Index k = 0; k < b.length; k++) put(values[k], room[k]);
      });
    }
  }
}

}  // extern "C"
