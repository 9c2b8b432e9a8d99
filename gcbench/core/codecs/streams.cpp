// Codes of variable length: Elias's, block by block, and asymmetric numeral systems, row by row.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using Index = std::int64_t;
using Byte = std::uint8_t;
using Word = std::uint32_t;
using Long = std::uint64_t;

constexpr Index LONGEST = 2048, TOGETHER = 64;  // codes of a block, and blocks of a task

// The blocks of `size` codes over concatenated tensors, of which the last of each may be short.
struct Blocks {
  std::vector<Index> starts;  // and the end
  Blocks(Index tensors, const Index* lengths, Index size) : starts{0} {
    for (Index i = 0; i < tensors; i++) {
      for (Index end = starts.back() + lengths[i]; starts.back() < end;) {
        starts.push_back(std::min(starts.back() + size, end));
      }
    }
  }
  Index count() const { return Index(starts.size()) - 1; }
};

// Calls put(bits above a length of 32 bits) for the numbers of a block: elias.py. `distances` are
// null in the dense code.
template <class Put>
inline void each_number(const Byte* codes, Index n, const Long* numbers, const Long* distances,
                        Byte zero, Put put) {
  if (!distances) {
    for (Index i = 0; i < n; i++) put(numbers[codes[i]]);
    return;
  }
  for (Index i = 0, before = -1; i < n; i++) {
    if (codes[i] == zero) continue;
    put(distances[i - before]);
    put(numbers[codes[i]]);
    before = i;
  }
}

// Writes numbers from a place on, which other threads may do just before and behind it.
class Writer {
 public:
  Writer(Word* words, Index place) : to(words + place / 32), filled(int(place % 32)) {}
  void put(Long number) {
    bits |= (number & 0xffffffff) << filled;
    filled += int(number >> 32);
    if (filled < 32) return;
    if (shared) __atomic_fetch_or(to, Word(bits), __ATOMIC_RELAXED);
    else *to = Word(bits);
    shared = false, to++, bits >>= 32, filled -= 32;
  }
  void finish() {
    if (filled) __atomic_fetch_or(to, Word(bits), __ATOMIC_RELAXED);
  }

 private:
  Word* to;
  int filled;
  Long bits = 0;
  bool shared = true;
};

// Returns at least 57 bits from a place on, with zeros behind the end.
inline Long window(const Byte* bytes, Index count, Index place) {
  Long bits = 0;
  const Index first = place / 8;
  if (first + 8 <= count) std::memcpy(&bits, bytes + first, 8);
  else if (first < count) std::memcpy(&bits, bytes + first, count - first);
  return bits >> place % 8;
}

}  // namespace

extern "C" {

// Writes the lengths [rows][blocks] of the blocks of codes [rows][n] or, with `streams`, the bits.
// Streams are `words` words each, all 0.
void elias_encode(const Byte* codes, Index rows, Index tensors, const Index* sizes, Index size,
                  const Long* numbers, const Long* distances, Index zero, std::int16_t* lengths,
                  Word* streams, Index words, int threads) {
  const Blocks blocks(tensors, sizes, size);
  const Index count = blocks.count(), n = blocks.starts.back();
  for (Index r = 0; r < rows; r++) {
    std::int16_t* of_row = lengths + r * count;
    std::vector<Index> places(count + 1);
    for (Index b = 0; streams && b < count; b++) places[b + 1] = places[b] + of_row[b];
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (Index first = 0; first < count; first += TOGETHER) {
      Writer writer(streams ? streams + r * words : nullptr, places[first]);
      for (Index b = first; b < std::min(first + TOGETHER, count); b++) {
        const Byte* from = codes + r * n + blocks.starts[b];
        const Index length = blocks.starts[b + 1] - blocks.starts[b];
        Long bits = 0;
        if (streams) {
          each_number(from, length, numbers, distances, Byte(zero),
                      [&](Long number) { writer.put(number); });
        } else {
          each_number(from, length, numbers, distances, Byte(zero),
                      [&](Long number) { bits += number >> 32; });
          of_row[b] = std::int16_t(bits);
        }
      }
      if (streams) writer.finish();
    }
  }
}

// Writes the codes of streams of `bytes` bytes each. In the dense code, `first` has what up to 15
// bits begin with; in the sparse one distances, and `second` has the codes.
void elias_decode(const Byte* streams, Index rows, Index bytes, const std::int16_t* lengths,
                  Index tensors, const Index* sizes, Index size, const Long* first, Index mask,
                  const Long* second, Index second_mask, Index zero, Byte* codes, int threads) {
  const Blocks blocks(tensors, sizes, size);
  const Index count = blocks.count(), n = blocks.starts.back();
  for (Index r = 0; r < rows; r++) {
    std::vector<Index> places(count + 1);
    for (Index b = 0; b < count; b++) places[b + 1] = places[b] + lengths[r * count + b];
    const Byte* stream = streams + r * bytes;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, TOGETHER)
    for (Index b = 0; b < count; b++) {
      const Index length = blocks.starts[b + 1] - blocks.starts[b], end = places[b + 1];
      Byte* to = codes + r * n + blocks.starts[b];
      Index place = places[b];
      if (second) {
        std::memset(to, int(zero), length);
        for (Index at = -1; place < end;) {
          Long bits = window(stream, bytes, place);
          const Long distance = first[bits & mask], used = distance >> 16;
          const Long code = second[bits >> used & second_mask];
          at += Index(distance & 0xffff);
          if (at >= length || !used) break;
          to[at] = Byte(code);
          place += Index(used + (code >> 16));
        }
        continue;
      }
      Byte room[LONGEST + 16] = {};
      for (Index done = 0, from = -1; done < length && place < end && place > from;) {
        Long bits = window(stream, bytes, from = place);
        for (int turn = 0; turn < 3 && done < length; turn++) {
          const Long entry = first[bits & mask];
          std::memcpy(room + done, &entry, 8);
          done += Index(entry >> 56 & 7);
          bits >>= entry >> 59;
          place += Index(entry >> 59);
        }
      }
      std::memcpy(to, room, length);
    }
  }
}

// Writes each row's words behind their number, in room for `longest` words. Shares of 2^24 are
// differences of `cumulative` [rows][values + 1].
void ans_encode(const Byte* codes, Index rows, Index n, const Word* cumulative, Index values,
                Word* words, Index longest, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index r = 0; r < rows; r++) {
    const Word* below = cumulative + r * (values + 1);
    Word *to = words + r * longest + 1, *start = to;
    Long state = 0;
    for (Index i = n; i-- > 0;) {
      const Byte code = codes[r * n + i];
      const Word share = below[code + 1] - below[code];
      if (state >> 40 >= share) *to++ = Word(state), state >>= 32;
      state = (state / share) << 24 | (below[code] + state % share);
    }
    for (; state; state >>= 32) *to++ = Word(state);
    start[-1] = Word(to - start);
  }
}

// Writes the codes of words that `ans_encode` wrote.
void ans_decode(const Word* words, Index rows, Index n, const Word* cumulative, Index values,
                Byte* codes, Index longest, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (Index r = 0; r < rows; r++) {
    const Word *below = cumulative + r * (values + 1), *start = words + r * longest + 1;
    const Word* end = start + start[-1];
    Byte lowest[1 << 12];  // the code of each interval's first place
    for (Index i = 0, code = 0; i < 1 << 12; i++) {
      while (below[code + 1] <= Word(i << 12)) code++;
      lowest[i] = Byte(code);
    }
    Long state = 0;
    while (end > start && state >> 32 == 0) state = state << 32 | *--end;
    for (Index i = 0; i < n; i++) {
      const Word place = Word(state & 0xffffff);
      Index code = lowest[place >> 12];
      while (below[code + 1] <= place) code++;
      state = (state >> 24) * (below[code + 1] - below[code]) + (place - below[code]);
      if (state >> 32 == 0 && end > start) state = state << 32 | *--end;
      codes[r * n + i] = Byte(code);
    }
  }
}

}  // extern "C"
