// Small numbers: a group of eight numbers of b < 8 bits is b bytes, the first number lowest; digits
// share words. radix.py and packing.py say what is sent.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "fits.h"

namespace {

constexpr Index CHUNK = 1 << 13;  // codes that a core packs while they are in its caches

// Numbers of BITS bits that fill whole bytes: one byte, or eight numbers.
template <int BITS>
constexpr int TOGETHER = 8 % BITS ? 8 : 8 / BITS;
template <int BITS>
using Bytes = std::conditional_t<TOGETHER<BITS> == 2, std::uint16_t,
                                 std::conditional_t<TOGETHER<BITS> == 4, Word, std::uint64_t>>;

// Returns a mask of the lowest bits of every so many.
constexpr std::uint64_t lowest(int bits, int every) {
  std::uint64_t mask = 0;
  for (int at = 0; at < 64; at += every) mask |= ((std::uint64_t(1) << bits) - 1) << at;
  return mask;
}

// Joins each two numbers of BITS bits that share so many with a gap between them, or parts them.
template <int BITS, int EVERY, class U>
inline U close_gaps(U x) {
  constexpr U low = U(lowest(BITS, EVERY));
  return U((x & low) | (x >> (EVERY / 2 - BITS) & U(low << BITS)));
}

template <int BITS, int EVERY, class U>
inline U open_gaps(U x) {
  constexpr U low = U(lowest(BITS, EVERY));
  return U((x & low) | (U(x << (EVERY / 2 - BITS)) & U(low << EVERY / 2)));
}

// Packs numbers in bytes of their own, eight in a group, or unpacks them.
template <int BITS>
void pack_groups(const std::uint8_t* __restrict numbers, Index groups,
                 std::uint8_t* __restrict packed) {
  using U = Bytes<BITS>;
  constexpr int N = TOGETHER<BITS>, USED = BITS * N / 8;
  const Index count = groups * 8 / N;
  Index i = 0;
#if defined(__AVX2__)
  for (; BITS == 1 && i + 4 <= count; i += 4) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers + 8 * i));
    const int bits = _mm256_movemask_epi8(_mm256_slli_epi16(bytes, 7));
    std::memcpy(packed + i, &bits, 4);
  }
#endif
  for (; i < count; i++) {
    U x;
    std::memcpy(&x, numbers + N * i, N);
    x = close_gaps<BITS, 16>(x);
    if constexpr (N > 2) x = close_gaps<2 * BITS, 32>(x);
    if constexpr (N > 4) x = close_gaps<4 * BITS, 64>(x);
    if constexpr (USED == 1) packed[i] = std::uint8_t(x);
    else std::memcpy(packed + USED * i, &x, i + 3 <= count ? 8 : USED);  // 8 bytes are one store
  }
}

template <int BITS>
void unpack_groups(const std::uint8_t* __restrict packed, Index groups,
                   std::uint8_t* __restrict numbers) {
  using U = Bytes<BITS>;
  constexpr int N = TOGETHER<BITS>, USED = BITS * N / 8;
  const Index count = groups * 8 / N;
  for (Index i = 0; i < count; i++) {
    U x = 0;
    if constexpr (USED == 1) x = packed[i];
    else std::memcpy(&x, packed + USED * i, i + 3 <= count ? 8 : USED);
    if constexpr (N > 4) x = open_gaps<4 * BITS, 64>(x);
    if constexpr (N > 2) x = open_gaps<2 * BITS, 32>(x);
    x = open_gaps<BITS, 16>(x);
    std::memcpy(numbers + N * i, &x, N);
  }
}

constexpr decltype(&pack_groups<1>) PACK[] = {
    nullptr,        pack_groups<1>, pack_groups<2>, pack_groups<3>,
    pack_groups<4>, pack_groups<5>, pack_groups<6>, pack_groups<7>};
constexpr decltype(&unpack_groups<1>) UNPACK[] = {
    nullptr,          unpack_groups<1>, unpack_groups<2>, unpack_groups<3>,
    unpack_groups<4>, unpack_groups<5>, unpack_groups<6>, unpack_groups<7>};

// The words of n codes below a base: k digits each, in b bits, of which whole bytes are sent first.
class Digits {
 public:
  const Index unit;  // codes whose words are whole bytes

  Digits(Index base, Index k, Index b, Index n)
      : unit(8 * k), base(base), k(k), bits(b), words((n + k - 1) / k),
        low(b > 8 ? (k + 1) / 2 : k) {
    Index power = 1;
    for (Index i = 0; i < low; i++, power *= base) {
      joins |= b > 8 ? 0 : std::uint64_t(power) << 8 * (k - 1 - i);
    }
    by = 1 / double(power);
    // Also of what no sender makes of digits, as it may arrive.
    for (Index number = 0; k > 1 && number < (b > 8 ? power : 256); number++) {
      std::uint64_t all = 0;
      for (Index i = 0, rest = number; i < low; i++, rest /= base) {
        all |= std::uint64_t(rest % base) << 8 * i;
      }
      digits_of.push_back(all);
    }
  }

  Index bytes() const { return bits / 8 * words + bits % 8 * ((words + 7) / 8); }

  // Writes whole units of codes from number `first` on into a message. Codes are read up to 8 bytes
  // beyond their end, and so are those that `get` writes.
  void put(const std::uint8_t* codes, Index first, Index units, std::uint8_t* message) const {
    const Index count = 8 * units, at = first / k;
    if (k == 1) return put_bytes(codes, at, count, 0, message);
    const std::uint64_t two = base, four = two * two, eight = four * four;
    const std::uint64_t used = ~std::uint64_t(0) >> (64 - 8 * k);
    Word word[ROOM];
    for (Index done = 0; done < count; done += ROOM) {
      const Index some = std::min(ROOM, count - done);
      const auto digits = [=](Index j) {
        std::uint64_t x;
        std::memcpy(&x, codes + (done + j) * k, 8);
        return x & used;
      };
      // The product has the word in its byte k - 1, as no sum below it reaches a byte's end.
      for (Index j = 0; bits <= 8 && j < some; j++)
        word[j] = Word(digits(j) * joins >> 8 * (k - 1));
      for (Index j = 0; bits > 8 && j < some; j++) {  // joins neighbors: digits, pairs, then fours
        std::uint64_t x = digits(j);
        x = (x & lowest(8, 16)) + two * (x >> 8 & lowest(8, 16));
        x = (x & lowest(16, 32)) + four * (x >> 16 & lowest(16, 32));
        word[j] = Word(x) + Word(eight * (x >> 32));
      }
      for (Index p = 0; 8 * p < bits; p++) {
        std::uint8_t room[ROOM];
        for (Index j = 0; j < some; j++) room[j] = std::uint8_t(word[j] >> 8 * p);
        put_bytes(room, at + done, some, p, message);
      }
    }
  }

  void get(const std::uint8_t* message, Index first, Index units, std::uint8_t* codes) const {
    const Index count = 8 * units, at = first / k;
    const std::uint64_t* const table = digits_of.data();
    std::uint8_t room[ROOM];
    std::int32_t word[ROOM], above[ROOM];
    for (Index done = 0; done < count; done += ROOM) {
      const Index some = std::min(ROOM, count - done);
      std::uint8_t* to = codes + done * k;
      const std::uint8_t* byte = bytes_at(message, at + done, some, 0, k == 1 ? to : room);
      if (bits <= 8) {
        if (k > 1) for (Index j = 0; j < some; j++) std::memcpy(to + j * k, table + byte[j], 8);
        else if (byte != to) std::copy_n(byte, some, to);
        continue;
      }
      for (Index j = 0; j < some; j++) word[j] = byte[j];
      for (Index p = 1; 8 * p < bits; p++) {
        byte = bytes_at(message, at + done, some, p, room);
        for (Index j = 0; j < some; j++) word[j] |= std::int32_t(byte[j]) << 8 * p;
      }
      const std::int32_t power = std::int32_t(digits_of.size()), most = power - 1;
      for (Index j = 0; j < some; j++) {  // adding 0.5 keeps quotients away from whole numbers
        above[j] = std::int32_t((word[j] + 0.5) * by);
        word[j] -= above[j] * power;
        above[j] = above[j] < most ? above[j] : most;
      }
      for (Index j = 0; j < some; j++) {
        std::memcpy(to + j * k, table + word[j], 8);
        std::memcpy(to + j * k + low, table + above[j], 8);
      }
    }
  }

 private:
  static constexpr Index ROOM = 512;
  const Index base, k, bits, words, low;  // so many digits of a word are looked up at once
  double by;
  std::uint64_t joins = 0;
  std::vector<std::uint64_t> digits_of;  // of numbers of `low` digits, a byte each

  // Writes byte `plane` of words from number `at` on, of which there are all or a multiple of eight.
  void put_bytes(const std::uint8_t* from, Index at, Index count, Index plane,
                 std::uint8_t* message) const {
    std::uint8_t* to = message + plane * words;
    if (8 * (plane + 1) <= bits) std::copy_n(from, std::min(count, words - at), to + at);
    else PACK[bits % 8](from, count / 8, to + at / 8 * (bits % 8));
  }

  // Returns those bytes where they lie, or in `room`.
  const std::uint8_t* bytes_at(const std::uint8_t* message, Index at, Index count, Index plane,
                               std::uint8_t* room) const {
    const std::uint8_t* from = message + plane * words;
    if (8 * (plane + 1) > bits) UNPACK[bits % 8](from + at / 8 * (bits % 8), count / 8, room);
    else if (at + count <= words) return from + at;
    else std::copy_n(from + at, words - at, room);
    return room;
  }
};

}  // namespace
