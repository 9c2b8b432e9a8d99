// Codes of values in buckets: fitted, drawn, packed and decoded in one pass over memory.
//
// Values are read where they lie: a row is `row` values of one tensor, and groups of rows fill whole
// words. The number of threads changes nothing.

#include <numeric>
#include <vector>

#include "codes.h"

namespace {

constexpr Index CHUNK = 1 << 12;  // values that are fitted, then coded, while in a core's cache
constexpr Index SPAN = BLOCK << 8;  // values of a tensor whose sums are one task, and a subtree

// The place of each row, and the parts into which threads divide the work.
struct Layout {
  const Job& job;
  std::vector<Index> first_row;  // of each piece
  std::vector<Index> first_rest;  // of each item outside groups: rows, then tails
  Index chunk_groups, chunk_buckets, chunks, rows_left;

  explicit Layout(const Job& j) : job(j), first_row{0} {
    for (Index i = 0; i < job.row_pieces; i++) {
      first_row.push_back(first_row.back() + job.pieces[i].length / job.row);
    }
    rows_left = first_row.back() - job.groups * job.rows;
    for (Index i = 0; i <= rows_left; i++) first_rest.push_back(i * job.row);
    for (Index i = 0; i < job.tails; i++) {
      first_rest.push_back(first_rest.back() + job.pieces[job.row_pieces + i].length);
    }
    const Index in_group = job.rows * job.row, size = job.bucket_size ? job.bucket_size : 1;
    const Index unit = std::lcm(in_group, size);
    const Index chunk = unit * std::max<Index>(1, CHUNK / unit);
    chunk_groups = chunk / in_group;
    chunk_buckets = chunk / size;
    chunks = std::max((job.groups + chunk_groups - 1) / chunk_groups,
                      (job.full + chunk_buckets - 1) / chunk_buckets);
  }

  // Returns the row's values as a piece.
  Piece row(Index number) const {
    const auto after = std::upper_bound(first_row.begin(), first_row.end(), number);
    const Index i = after - first_row.begin() - 1;
    return part(job.pieces[i], (number - first_row[i]) * job.row, job.row);
  }

  // Returns item `number` of those outside groups.
  Piece outside(Index number) const {
    if (number < rows_left) return row(job.groups * job.rows + number);
    return job.pieces[job.row_pieces + number - rows_left];
  }

  Piece full_bucket(Index number) const {
    Piece piece = row(number * (job.bucket_size / job.row));
    piece.length = job.bucket_size;
    return piece;
  }

  Index outsides() const { return rows_left + job.tails; }

 private:
  static Piece part(const Piece& of, Index start, Index length) {
    return {of.tensor, of.offset + start, length, of.bucket + start / of.size, of.size};
  }
};

// The residual of error feedback: floats, or bytes with one scale per 512 values of a tensor.
struct Feedback {
  const void* const* before;  // null: what is coded is x, which `left` may be
  void* const* left;          // what is not sent, which may be `before`
  const float* const* scales;  // null: floats
  float* const* new_scales;
  float alpha, keep;  // coded is x + alpha before, left that minus what is sent + keep before
};

struct Source {  // the tensors of one worker, and where to write
  const Job& job;
  const float* const* x;
  const Feedback* feedback;  // null without error feedback
  Index first;               // of the worker's tensors among all
  const Word* starts;  // the number of each tensor's first value among the draws
  Draw draw;
  float* fitted;
  std::uint8_t* const* codes;
  const float* limits = nullptr;  // of the magnitudes in each tensor; null: none

  // Writes n values of the residual, of one block.
  void residual(const Piece& p, Index from, int n, float* out) const {
    const Index t = first + p.tensor, place = p.offset + from;
    if (!feedback->scales) {
      std::memcpy(out, static_cast<const float*>(feedback->before[t]) + place, 4 * n);
      return;
    }
    const float scale = feedback->scales[t][place / BLOCK];
    const std::int8_t* bytes = static_cast<const std::int8_t*>(feedback->before[t]) + place;
    for (int i = 0; i < n; i++) out[i] = float(bytes[i]) * scale;
  }

  // Returns the n <= 512 values to code, in `room` if they are not x.
  const float* read(const Piece& p, Index from, int n, float* room) const {
    const float* g = x[p.tensor] + p.offset + from;
    if (!feedback || !feedback->before) return g;
    const float alpha = feedback->alpha;
    if (!feedback->scales) {
      const float* e = static_cast<const float*>(feedback->before[first + p.tensor]);
      e += p.offset + from;
      for (int i = 0; i < n; i++) room[i] = __builtin_fmaf(alpha, e[i], g[i]);
      return room;
    }
    residual(p, from, n, room);
    for (int i = 0; i < n; i++) room[i] = __builtin_fmaf(alpha, room[i], g[i]);
    return room;
  }

  // Returns n values of a tensor within its limit, in `room` if there is one.
  const float* clipped(Index tensor, const float* v, int n, float* room) const {
    if (!limits) return v;
    const float limit = limits[tensor];
    for (int i = 0; i < n; i++) room[i] = clip(v[i], limit);
    if (limit != limit) std::fill_n(room, n, limit);  // there are values that are not finite
    return room;
  }

  // Writes the sums of a span's differences from its tensor's first value, and of their squares.
  void sum_span(const Piece& p, double* sums) const {
    float room[BLOCK], first[1];
    const Piece whole{p.tensor, 0, 1, 0, 0};
    shifted_sums([&](Index from, int n) { return read(p, from, n, room); }, p.length,
                 *read(whole, 0, 1, first), sums);
  }

  void fit_bucket(const Piece& p) const {
    float room[BLOCK], within[BLOCK];
    const auto values = [&](Index from, int n) {
      return clipped(p.tensor, read(p, from, n, room), n, within);
    };
    fit(job, values, p.length,
        fitted + p.bucket * job.fitted);
  }

  // Fetches what the next chunk fits, while this one is coded.
  void prefetch(const Piece& p, Index from, int n) const {
    const Index place = p.offset + from + CHUNK;
    const bool floats = feedback && feedback->before && !feedback->scales;
    const float* e = floats ? static_cast<const float*>(feedback->before[first + p.tensor]) : 0;
    for (int i = 0; i < n; i += 16) {
      __builtin_prefetch(x[p.tensor] + place + i, 0, 2);
      if (floats) __builtin_prefetch(e + place + i, 0, 2);
    }
  }

  // Writes the codes of n values from `from` on, and what they leave out.
  void code_part(const Piece& p, Index from, int n, Word* out) const {
    float room[TILE], within[TILE];
    const float* parameters = fitted + p.bucket * job.fitted;
    prefetch(p, from, n);
    const Word index = starts ? starts[p.tensor] + Word(p.offset + from) : 0;
    const float* coded = read(p, from, n, room);
    code(job, clipped(p.tensor, coded, n, within), n, parameters, draw, index, out);
    if (feedback) leave(p, from, n, coded, out, parameters);
    if (codes) std::copy(out, out + n, codes[p.tensor] + p.offset + from);
  }

  // Returns the template for the codes of this source, or null.
  const Known* find_known() const {
    const bool plain = !feedback || (feedback->before && !feedback->scales && feedback->keep == 0);
    return codes || !plain || (limits && job.code == REACHES) ? nullptr : ::find_known(job);
  }

  // Adds the codes of n values of consecutive rows to their words, and writes what they leave out;
  // returns false and does nothing if one of them needs more than the template has.
  bool code_rows(const Known& known, const Layout& layout, Index first_row, Index from, int n,
                 Index shift, Word* words) const {
    Line lines[LINES];
    for (Index k = 0; k < known.lines; k++) {
      const Piece p = layout.row(first_row + k);
      const Index t = first + p.tensor, place = p.offset + from;
      prefetch(p, from, n);
      const Bucket of(job, fitted + p.bucket * job.fitted);
      const float limit = limits ? limits[p.tensor] : INFINITY;
      if (limit != limit) return false;
      if (job.code != REACHES && !(of.in_range && has_quotients(of.unit))) return false;
      lines[k] = {x[p.tensor] + place, nullptr, nullptr, of,
                  starts ? starts[p.tensor] + Word(place) : 0, limit};
      if (!feedback) continue;
      lines[k].before = static_cast<const float*>(feedback->before[t]) + place;
      lines[k].left = static_cast<float*>(feedback->left[t]) + place;
    }
    const auto add = feedback ? known.leaving : known.plain;
    add(job, lines, feedback ? feedback->alpha : 0, draw, n, shift, words);
    return true;
  }

  void leave(const Piece& p, Index from, int n, const float* coded, const Word* sent,
             const float* parameters) const {
    const Index t = first + p.tensor, place = p.offset + from;
    const bool floats = !feedback->scales;
    float rest[TILE], old[TILE];
    float* to = floats ? static_cast<float*>(feedback->left[t]) + place : rest;
    const float keep = feedback->keep;
    if (keep != 0) residual(p, from, n, old);
    // Adding 0 turns -0 into 0, as where decoded values are added to zeros.
    values(job, sent, n, parameters, job.step,
           [=](int i, float value) { to[i] = coded[i] - (value + 0.0f); });
    if (keep != 0) {
      for (int i = 0; i < n; i++) to[i] = __builtin_fmaf(keep, old[i], to[i]);
    }
    if (floats) return;
    // A block of the residual is one part of a row: loco.py `_to_bytes`.
    const float scale = largest(rest, n) / 127, unit = scale > 0 ? scale : 1;
    std::int8_t* bytes = static_cast<std::int8_t*>(feedback->left[t]) + place;
    for (int i = 0; i < n; i++) {
      const float level = std::nearbyint(rest[i] / unit);
      bytes[i] = std::int8_t(std::int32_t(std::min(std::max(level, -127.0f), 127.0f)));
    }
    feedback->new_scales[t][place / BLOCK] = scale;
  }
};

// scales.py `standard_deviation`, and scales.py `_limits`, from the sums of spans.
void set_limits(const std::vector<Piece>& spans, const std::vector<double>& sums,
                const Index* sizes, double clip, float* limits) {
  Tree differences, squares;
  for (std::size_t s = 0; s < spans.size(); s++) {
    differences.add(sums[2 * s]), squares.add(sums[2 * s + 1]);
    const Index i = spans[s].tensor;
    if (spans[s].offset + spans[s].length < sizes[i]) continue;
    const double n = double(sizes[i]), mean = differences.total() / n;
    const double variance = squares.total() / n - mean * mean;
    const double sigma = std::sqrt(variance < 0 ? 0 : variance);
    limits[i] = sigma == 0 ? INFINITY : float(clip * sigma);
    differences = squares = Tree();
  }
}

}  // namespace

extern "C" {

// Fits buckets (unless they are given) to values that are clipped to `clip` standard deviations of
// their tensor, if that is not 0, and writes words and the codes outside groups, or the codes of all
// values; without either, it only fits. Pointers are to [workers][tensors].
void encode(const Job* job_, Index workers, Index tensors, const float* const* x,
            const Feedback* feedback, const Index* sizes, double clip, const Word* starts, const Word* keys, float* fitted,
            Word* words, std::uint8_t* rest, std::uint8_t* const* codes, int threads) {
  const Job& job = *job_;
  const Layout layout(job);
  const Piece* shorts = job.pieces + job.row_pieces + job.tails;
  const bool fits = job.fit != GIVEN;
  std::vector<float> limits(clip > 0 ? tensors : 0);
  std::vector<Piece> spans;
  for (Index i = 0; i < Index(limits.size()); i++) {
    for (Index from = 0; from < sizes[i]; from += SPAN) {
      spans.push_back({i, from, std::min(SPAN, sizes[i] - from), 0, 0});
    }
  }
  std::vector<double> sums(2 * spans.size());
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (Index w = 0; w < workers; w++) {
    const Index t = w * tensors;
    Source source{job, x + t, feedback, t, starts ? starts + t : nullptr,
                  keys ? Draw{keys[2 * w], keys[2 * w + 1]} : Draw{},
                  fitted + w * job.buckets * job.fitted, codes ? codes + t : nullptr};
    if (clip > 0) {
#pragma omp for
      for (Index s = 0; s < Index(spans.size()); s++) source.sum_span(spans[s], &sums[2 * s]);
#pragma omp single
      set_limits(spans, sums, sizes, clip, limits.data());
      source.limits = limits.data();
    }
    const Known* known = source.find_known();
    if (fits) {
#pragma omp for schedule(dynamic)
      for (Index i = 0; i < job.shorts; i++) source.fit_bucket(shorts[i]);
    }
#pragma omp for schedule(dynamic, 8)
    for (Index c = 0; c < layout.chunks; c++) {
      const Index buckets = std::min((c + 1) * layout.chunk_buckets, job.full);
      for (Index b = c * layout.chunk_buckets; fits && b < buckets; b++) {
        source.fit_bucket(layout.full_bucket(b));
      }
      if (!words && !rest && !codes) continue;
      const Index groups = std::min((c + 1) * layout.chunk_groups, job.groups);
      for (Index g = c * layout.chunk_groups; g < groups; g++) {
        Word* to = words ? words + (w * job.groups + g) * job.words * job.row : nullptr;
        if (to) std::fill_n(to, job.words * job.row, 0);
        for (Index from = 0; from < job.row; from += TILE) {
          const int n = std::min<Index>(TILE, job.row - from);
          Word of_row[TILE], number[TILE];
          for (Index k = 0; k < job.rows;) {
            const Index row = g * job.rows + k, shift = k / job.digits * job.bits;
            if (to && known && k % known->lines == 0 &&
                source.code_rows(*known, layout, row, from, n, shift, to + from)) {
              k += known->lines;
              continue;
            }
            source.code_part(layout.row(row), from, n, of_row);
            if (to) put(job, of_row, n, k, to + from, number);
            k++;
          }
        }
      }
    }
#pragma omp for schedule(dynamic, 16)
    for (Index i = 0; i < layout.outsides() * (rest || codes); i++) {
      const Piece piece = layout.outside(i);
      std::uint8_t* to = rest ? rest + w * job.rest + layout.first_rest[i] : nullptr;
      for (Index from = 0; from < piece.length; from += TILE) {
        const int n = std::min<Index>(TILE, piece.length - from);
        Word of_part[TILE];
        source.code_part(piece, from, n, of_part);
        if (to) std::copy(of_part, of_part + n, to + from);
      }
    }
  }
}

// Adds the values of all workers' messages [workers][rows] to `out` [rows][tensors], or writes
// their mean. Values are added in the order of the workers.
void decode(const Job* job_, Index workers, Index rows, Index tensors, const Word* words,
            const std::uint8_t* rest, const float* sent, Index parameters, float* const* out,
            Index mean, int threads) {
  const Job& job = *job_;
  const Layout layout(job);
  const float divisor = float(workers);
  // Writes n values from `from` on; `codes_of(message, codes)` finds their codes.
  const auto write = [&](Index r, const Piece& p, Index from, int n, auto codes_of) {
    float* to = out[r * tensors + p.tensor] + p.offset + from;
    Word codes[TILE];
    for (Index w = 0; w < workers; w++) {
      const Index message = w * rows + r;
      codes_of(message, codes);
      const float* of_bucket = sent + (message * job.buckets + p.bucket) * parameters;
      if (mean && w == 0) {
        values(job, codes, n, of_bucket, 1, [=](int i, float v) { to[i] = v + 0.0f; });
      } else {
        values(job, codes, n, of_bucket, 1, [=](int i, float v) { to[i] += v; });
      }
    }
    if (mean && workers > 1) {
      for (int i = 0; i < n; i++) to[i] /= divisor;
    }
  };
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (Index r = 0; r < rows; r++) {
#pragma omp for schedule(dynamic, 8) nowait
    for (Index c = 0; c < layout.chunks; c++) {
      const Index groups = std::min((c + 1) * layout.chunk_groups, job.groups);
      for (Index g = c * layout.chunk_groups; g < groups; g++) {
        for (Index k = 0; k < job.rows; k++) {
          const Piece piece = layout.row(g * job.rows + k);
          for (Index from = 0; from < job.row; from += TILE) {
            const int n = std::min<Index>(TILE, job.row - from);
            write(r, piece, from, n, [&](Index message, Word* codes) {
              get(job, words + (message * job.groups + g) * job.words * job.row + from, n, k,
                  codes);
            });
          }
        }
      }
    }
#pragma omp for schedule(dynamic, 16) nowait
    for (Index i = 0; i < layout.outsides(); i++) {
      const Piece piece = layout.outside(i);
      for (Index from = 0; from < piece.length; from += TILE) {
        const int n = std::min<Index>(TILE, piece.length - from);
        write(r, piece, from, n, [&](Index message, Word* codes) {
          const std::uint8_t* of_part = rest + message * job.rest + layout.first_rest[i] + from;
          std::copy(of_part, of_part + n, codes);
        });
      }
    }
  }
}

}  // extern "C"
