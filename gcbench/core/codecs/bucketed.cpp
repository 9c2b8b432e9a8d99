// Codes of values in buckets: fitted, drawn, packed and decoded in one pass over memory.
//
// Values are read where they lie, bucket by bucket, and a core's chunk of them is packed at once. The
// number of threads changes nothing.

#include <vector>

#include "codes.h"
#include "numbers.h"

namespace {

constexpr Index AHEAD = 1 << 11;  // how many values further on a core fetches into its second cache
constexpr Index SPAN = BLOCK << 8;  // values of a tensor whose sums are one task, and a subtree

struct Piece {  // consecutive values of a tensor in one bucket
  Index tensor, offset, length, bucket;
};

// Where the values of all tensors, one after the other, lie in tensors and buckets.
struct Layout {
  const Job& job;
  std::vector<Index> first_value{0}, first_bucket{0};  // of each tensor, and of what is behind all

  explicit Layout(const Job& j) : job(j) {
    for (Index t = 0; t < job.tensors; t++) {
      const Index n = job.sizes[t], size = size_in(t);
      first_value.push_back(first_value[t] + n);
      first_bucket.push_back(first_bucket[t] + (n + size - 1) / size);
    }
  }

  Index values() const { return first_value.back(); }

  Index size_in(Index tensor) const {
    return job.bucket_size ? job.bucket_size : std::max<Index>(job.sizes[tensor], 1);
  }

  // Calls f(piece, whether it is a whole bucket) for the parts of buckets from one value to another.
  template <class F>
  void each(Index from, Index end, F f) const {
    const auto after = std::upper_bound(first_value.begin(), first_value.end(), from);
    for (Index t = after - first_value.begin() - 1; from < end; t++) {
      const Index n = job.sizes[t], size = size_in(t);
      Index offset = from - first_value[t], k = offset / size;
      for (; offset < n && from < end; k++) {
        const Index bucket_end = std::min(k * size + size, n);
        const Index length = std::min(bucket_end - offset, end - from);
        f(Piece{t, offset, length, first_bucket[t] + k}, length == bucket_end - k * size);
        offset += length, from += length;
      }
    }
  }

  // Returns where chunks of whole buckets end, but for buckets larger than a chunk, which are cut.
  std::vector<Index> cuts(Index least) const {
    std::vector<Index> cuts{0};
    while (cuts.back() < values()) {
      Index end = cuts.back() + CHUNK;
      if (end < values()) {
        each(end - 1, end, [&](const Piece& p, bool) {
          const Index size = size_in(p.tensor), start = p.offset / size * size;
          const Index length = std::min(size, job.sizes[p.tensor] - start);
          if (length <= CHUNK) end = first_value[p.tensor] + start + length;
        });
      }
      cuts.push_back(end + least > values() ? values() : end);
    }
    return cuts;
  }

  std::vector<Piece> buckets_above(Index most) const {
    std::vector<Piece> found;
    for (Index t = 0; t < job.tensors; t++) {
      if (std::min(size_in(t), job.sizes[t]) <= most) continue;
      each(first_value[t], first_value[t + 1], [&](const Piece& p, bool) {
        if (p.length > most) found.push_back(p);
      });
    }
    return found;
  }
};

// The residual of error feedback: floats, or bytes with one scale per 512 values of a tensor.
struct Feedback {
  const void* const* before;
  void* const* left;          // what is not sent, which may be `before`
  const float* const* scales;  // null: floats
  float* const* new_scales;
  float alpha, keep;  // coded is x + alpha before, left that minus what is sent + keep before
};

struct Source {  // the tensors of one worker, and what is fitted to them
  const Job& job;
  const float* const* x;
  const Feedback* feedback;  // null without error feedback
  Index first;               // of the worker's tensors among all
  const Word* starts;  // the number of each tensor's first value among the draws
  Draw draw;
  float* fitted;
  const float* limits = nullptr;  // of the magnitudes in each tensor; null: none

  // Returns whether sums stay where the residual lies, after they were read for the first time.
  bool sums_stay() const { return feedback && !feedback->scales && feedback->keep == 0; }

  float* left(Index tensor) const { return static_cast<float*>(feedback->left[first + tensor]); }

  // Writes n values of the residual, of one block.
  void residual(Index tensor, Index place, int n, float* out) const {
    const Index t = first + tensor;
    if (!feedback->scales) {
      std::memcpy(out, static_cast<const float*>(feedback->before[t]) + place, 4 * n);
      return;
    }
    const float scale = feedback->scales[t][place / BLOCK];
    const std::int8_t* bytes = static_cast<const std::int8_t*>(feedback->before[t]) + place;
    for (int i = 0; i < n; i++) out[i] = float(bytes[i]) * scale;
  }

  // Returns the n <= 512 values to code, in `room` if they lie nowhere.
  const float* read(Index tensor, Index place, int n, float* room, bool again) const {
    const float* g = x[tensor] + place;
    if (!feedback) return g;
    const float alpha = feedback->alpha;
    if (!sums_stay()) {
      residual(tensor, place, n, room);
      for (int i = 0; i < n; i++) room[i] = __builtin_fmaf(alpha, room[i], g[i]);
      return room;
    }
    float* to = left(tensor) + place;
    const float* e = static_cast<const float*>(feedback->before[first + tensor]) + place;
    if (again) return to;
#pragma GCC ivdep
    for (int i = 0; i < n; i++) to[i] = __builtin_fmaf(alpha, e[i], g[i]);
    return to;
  }

  float first_of(Index tensor) const {
    if (!feedback) return *x[tensor];
    float e;
    residual(tensor, 0, 1, &e);
    return __builtin_fmaf(feedback->alpha, e, *x[tensor]);
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
  void sum_span(const Piece& p, float from, double* sums) const {
    float room[BLOCK];
    shifted_sums([&](Index i, int n) { return read(p.tensor, p.offset + i, n, room, false); },
                 p.length, from, sums);
  }

  // Fits a bucket; returns whether its codes are written, too, if there is room for them.
  bool fit_bucket(const Piece& p, std::uint8_t* codes = nullptr) const {
    float room[BLOCK], within[BLOCK];
    Index read_to = limits ? p.length : 0;
    const auto values = [&](Index from, int n) {
      const float* v = read(p.tensor, p.offset + from, n, room, from < read_to);
      read_to = std::max(read_to, from + n);
      return clipped(p.tensor, v, n, within);
    };
    if (feedback) codes = nullptr;  // as what they leave out is written with them
    fit(job, values, p.length, fitted + p.bucket * job.fitted, codes);
    return codes && fits_codes(job);
  }

  // Writes the codes of a piece, and what they leave out.
  void code_piece(const Piece& p, std::uint8_t* codes) const {
    float room[BLOCK], within[BLOCK];
    const float* parameters = fitted + p.bucket * job.fitted;
    for (Index done = 0; done < p.length;) {
      // A block of a residual in bytes has one scale.
      const Index place = p.offset + done;
      const int n = int(std::min(p.length - done, BLOCK - place % BLOCK));
      const Word index = starts ? starts[p.tensor] + Word(place) : 0;
      const float* v = read(p.tensor, place, n, room, true);
      // What is read next, as hardware stops at pages. With a residual, that would be too much.
      for (int i = 0; i < n && !feedback; i += 16) __builtin_prefetch(v + AHEAD + i, 0, 2);
      code(job, clipped(p.tensor, v, n, within), n, parameters, draw, index, codes + done);
      if (feedback) leave(p.tensor, place, n, v, codes + done, parameters);
      done += n;
    }
  }

  void leave(Index tensor, Index place, int n, const float* coded, const std::uint8_t* codes,
             const float* parameters) const {
    float rest[BLOCK], old[BLOCK];
    float* to = feedback->scales ? rest : left(tensor) + place;
    const float keep = feedback->keep;
    if (keep != 0) residual(tensor, place, n, old);
    // Adding 0 turns -0 into 0, as where decoded values are added to zeros.
    values(job, codes, n, parameters, job.step,
           [=](int i, float value) { to[i] = coded[i] - (value + 0.0f); });
    if (keep != 0) {
      for (int i = 0; i < n; i++) to[i] = __builtin_fmaf(keep, old[i], to[i]);
    }
    if (!feedback->scales) return;
    // loco.py `_to_bytes`
    const Index t = first + tensor;
    const float scale = largest_of(rest, n) / 127, unit = scale > 0 ? scale : 1;
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

// Codes of chunks as they are packed: a unit that a cut divides waits for both of its chunks.
class Message {
 public:
  Message(const Digits& digits, const std::vector<Index>& cuts, std::uint8_t* to)
      : digits(digits), cuts(cuts), to(to), divided(cuts.size() * digits.unit + 8) {}

  // Packs the codes of chunk c, of which up to 8 bytes beyond the last are read.
  void put(std::size_t c, const std::uint8_t* codes) {
    const Index from = cuts[c], end = cuts[c + 1], unit = digits.unit;
    const Index head = std::min((from + unit - 1) / unit * unit, end);
    const Index tail = std::max(end / unit * unit, head);
    std::copy(codes, codes + head - from, &divided[c * unit] + from % unit);
    digits.put(codes + head - from, head, (tail - head) / unit, to);
    std::copy(codes + tail - from, codes + end - from, &divided[(c + 1) * unit]);
  }

  void finish() {
    for (std::size_t c = 1; c < cuts.size(); c++) {
      const Index unit = digits.unit;
      if (cuts[c] % unit) digits.put(&divided[c * unit], cuts[c] / unit * unit, 1, to);
    }
  }

 private:
  const Digits& digits;
  const std::vector<Index>& cuts;
  std::uint8_t* to;
  std::vector<std::uint8_t> divided;  // of each cut
};

}  // namespace

extern "C" {

// Fits buckets (unless they are given) to values that are clipped to `clip` standard deviations of
// their tensor, if that is not 0, and writes messages of `bytes` each, or the codes of all values;
// without either, it only fits. Pointers are to [workers][tensors].
void encode(const Job* job_, Index workers, const float* const* x, const Feedback* feedback,
            double clip, const Word* starts, const Word* keys, float* fitted,
            std::uint8_t* messages, Index bytes, std::uint8_t* codes, int threads) {
  const Job& job = *job_;
  const Layout layout(job);
  const Digits digits(job.base, job.digits, job.bits, layout.values());
  const auto cuts = layout.cuts(digits.unit);
  const bool fits = job.fit != GIVEN;
  const auto large = layout.buckets_above(fits ? CHUNK : layout.values());
  std::vector<float> limits(clip > 0 ? job.tensors : 0), firsts(limits.size());
  std::vector<Piece> spans;
  for (Index t = 0; t < Index(limits.size()); t++) {
    for (Index from = 0; from < job.sizes[t]; from += SPAN) {
      spans.push_back({t, from, std::min(SPAN, job.sizes[t] - from), 0});
    }
  }
  std::vector<double> sums(2 * spans.size());
  std::vector<Message> writers;
  for (Index w = 0; messages && w < workers; w++) {
    writers.emplace_back(digits, cuts, messages + w * bytes);
  }
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<std::uint8_t> room(messages ? 2 * CHUNK + 2 * digits.unit + 8 : 0);
    for (Index w = 0; w < workers; w++) {
      const Index t = w * job.tensors;
      Source source{job, x + t, feedback, t, starts ? starts + t : nullptr,
                    keys ? Draw{keys[2 * w], keys[2 * w + 1]} : Draw{},
                    fitted + w * job.buckets * job.fitted};
      if (clip > 0) {
#pragma omp single
        for (Index i = 0; i < job.tensors; i++) firsts[i] = job.sizes[i] ? source.first_of(i) : 0;
#pragma omp for
        for (Index s = 0; s < Index(spans.size()); s++) {
          source.sum_span(spans[s], firsts[spans[s].tensor], &sums[2 * s]);
        }
#pragma omp single
        set_limits(spans, sums, job.sizes, clip, limits.data());
        source.limits = limits.data();
      }
#pragma omp for schedule(dynamic)
      for (Index i = 0; i < Index(large.size()); i++) source.fit_bucket(large[i]);
#pragma omp for schedule(dynamic, 4)
      for (Index c = 0; c < Index(cuts.size()) - 1; c++) {
        std::uint8_t* to = codes ? codes + w * layout.values() + cuts[c] : room.data();
        const bool codes_too = messages || codes;
        layout.each(cuts[c], cuts[c + 1], [&](const Piece& p, bool whole) {
          const bool fits_now = fits && whole && p.length <= CHUNK;
          const bool coded = fits_now && source.fit_bucket(p, codes_too ? to : nullptr);
          if (codes_too && !coded) source.code_piece(p, to);
          to += p.length;
        });
        if (messages) writers[w].put(c, room.data());
      }
    }
  }
  for (Message& writer : writers) writer.finish();
}

// Adds the values of all workers' messages [workers][rows] to `out` [rows][tensors], writes their
// mean or subtracts them, in the order of the workers.
void decode(const Job* job_, Index workers, Index rows, const std::uint8_t* messages, Index bytes,
            const float* sent, Index parameters, float* const* out, Index into, int threads) {
  const Job& job = *job_;
  const Layout layout(job);
  const Digits digits(job.base, job.digits, job.bits, layout.values());
  const Index values_of = layout.values(), chunk = digits.unit * (1 + CHUNK / 2 / digits.unit);
  const float divisor = float(workers);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<std::uint8_t> codes(chunk + 8);
    for (Index r = 0; r < rows; r++) {
#pragma omp for schedule(dynamic, 8) nowait
      for (Index from = 0; from < values_of; from += chunk) {
        const Index end = std::min(from + chunk, values_of);
        for (Index w = 0; w < workers; w++) {
          const Index message = w * rows + r;
          const std::uint8_t* code = codes.data();
          digits.get(messages + message * bytes, from, (end - from + digits.unit - 1) / digits.unit,
                     codes.data());
          layout.each(from, end, [&](const Piece& p, bool) {
            float* to = out[r * job.tensors + p.tensor] + p.offset;
            const int n = int(p.length);
            const float* of_bucket = sent + (message * job.buckets + p.bucket) * parameters;
            with_put(w && into == WRITE ? Index(ADD) : into, [&](auto put) {
              values(job, code, n, of_bucket, 1, [=](int i, float v) { put(to[i], v); });
            });
            for (int i = 0; into == WRITE && w && w == workers - 1 && i < n; i++) to[i] /= divisor;
            code += n;
          });
        }
      }
    }
  }
}

}  // extern "C"
