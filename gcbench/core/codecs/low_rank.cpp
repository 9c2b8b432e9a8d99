// A step of power iteration on matrices M [n, m], in as few passes over memory as possible.
//
// Factors are stored transposed, P [r, n] and Q [r, m], so that their long side is contiguous; the
// factors of all matrices are concatenated. Every sum is added in the same order, however many
// threads there are and whichever worker it belongs to.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

using Index = std::int64_t;

struct Shape {
  Index rows, columns, rank;
};

constexpr Index LINE = 16;    // floats per cache line; as many sums are added side by side
constexpr Index AHEAD = 256;  // how many floats ahead to prefetch
constexpr Index TILE = 4096;  // columns per tile, whose sums stay in a core's caches

// Calls f(c, k) for the k columns of the factors that begin at c. The compiler knows k, which is at
// most four, so that the sums stay in registers.
template <class F>
inline void few_columns(Index rank, F f) {
  Index c = 0;
  for (; c + 4 <= rank; c += 4) f(c, std::integral_constant<int, 4>{});
  switch (rank - c) {
    case 3: return f(c, std::integral_constant<int, 3>{});
    case 2: return f(c, std::integral_constant<int, 2>{});
    case 1: return f(c, std::integral_constant<int, 1>{});
  }
}

// Returns whether to write with streaming stores. The output is not read again until all other
// matrices have been processed, so it bypasses the caches, which would first read what is
// overwritten. Only whole cache lines can be streamed, and only if the factors have at most four
// columns: further columns would read again what the first ones have written.
inline bool goes_past_caches(const float* x, Shape s) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % (LINE * sizeof(float)) == 0;
  return aligned && s.columns % LINE == 0 && s.rank <= 4;
}

inline void write_line(float* to, const float* x, bool past_caches) {
#ifdef __AVX__
  if (past_caches) {
    _mm256_stream_ps(to, _mm256_loadu_ps(x));
    _mm256_stream_ps(to + 8, _mm256_loadu_ps(x + 8));
    return;
  }
#endif
  std::copy(x, x + LINE, to);
}

// Calls f(i) for all i below n on `threads` threads, which then wait for their streaming stores.
template <class F>
inline void in_parallel(Index n, int threads, F f) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
#pragma omp for
    for (Index i = 0; i < n; i++) f(i);
#ifdef __AVX__
    _mm_sfence();
#endif
  }
}

double dot(const float* a, const float* b, Index n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Index i = 0; i < n; i++) sum += double(a[i]) * b[i];
  return sum;
}

void divide(float* x, double by, Index n) {
#pragma omp simd
  for (Index i = 0; i < n; i++) x[i] = float(x[i] / by);
}

// Scales a column to norm 1 and returns the norm that it had; a zero column stays zero.
double normalize(float* x, Index n) {
  const double norm = std::sqrt(dot(x, x, n));
  if (norm > 0) divide(x, norm, n);
  return norm;
}

// Replaces x by x - B^T B x, for `count` orthonormal rows of B.
void project_out(float* x, const float* b, Index count, Index n) {
  std::vector<double> along(count);
  for (Index k = 0; k < count; k++) along[k] = dot(b + k * n, x, n);
  for (Index k = 0; k < count; k++)
#pragma omp simd
    for (Index i = 0; i < n; i++) x[i] = float(x[i] - along[k] * b[k * n + i]);
}

void add_times(Shape s, const float* g, const float* e, float alpha, const float* q, float* m,
               float* p, bool past_caches) {
  few_columns(s.rank, [&](Index c, auto few) {
    const float* qc = q + c * s.columns;
    float lanes[few][LINE] = {};
    Index j = 0;
    auto add_line = [&](const float* x) {
      for (int k = 0; k < few; k++)
#pragma omp simd
        for (Index l = 0; l < LINE; l++) lanes[k][l] += x[l] * qc[k * s.columns + j + l];
    };
    if (c == 0) {
      for (; j + LINE <= s.columns; j += LINE) {
        __builtin_prefetch(g + j + AHEAD);
        __builtin_prefetch(e + j + AHEAD);
        float x[LINE];
#pragma omp simd
        for (Index l = 0; l < LINE; l++) x[l] = g[j + l] + alpha * e[j + l];
        write_line(m + j, x, past_caches);
        add_line(x);
      }
      for (Index t = j; t < s.columns; t++) m[t] = g[t] + alpha * e[t];
    } else {
      for (; j + LINE <= s.columns; j += LINE) add_line(m + j);
    }
    for (int k = 0; k < few; k++) {
      float sum = 0;
      for (Index l = 0; l < LINE; l++) sum += lanes[k][l];
      for (Index t = j; t < s.columns; t++) sum += m[t] * qc[k * s.columns + t];
      p[(c + k) * s.rows] = sum;
    }
  });
}

void transposed_times(Shape s, const float* m, const float* p, float* q, Index start, Index end) {
  few_columns(s.rank, [&](Index c, auto few) {
    float* qc = q + c * s.columns;
    for (int k = 0; k < few; k++) {
      std::fill(qc + k * s.columns + start, qc + k * s.columns + end, 0.f);
    }
    Index i = 0;
    for (; i + 4 <= s.rows; i += 4) {
      const float *a = m + i * s.columns, *b = a + s.columns;
      const float *d = b + s.columns, *e = d + s.columns;
      float w[few][4];
      for (int k = 0; k < few; k++)
        for (int l = 0; l < 4; l++) w[k][l] = p[(c + k) * s.rows + i + l];
      auto add = [&](Index j) {
        for (int k = 0; k < few; k++)
          qc[k * s.columns + j] +=
              (w[k][0] * a[j] + w[k][1] * b[j]) + (w[k][2] * d[j] + w[k][3] * e[j]);
      };
      Index j = start;
      for (; j + LINE <= end; j += LINE) {
        for (int l = 0; l < 4; l++) __builtin_prefetch(a + (4 + l) * s.columns + j);
#pragma omp simd
        for (Index t = j; t < j + LINE; t++) add(t);
      }
      for (; j < end; j++) add(j);
    }
    for (; i < s.rows; i++)
      for (int k = 0; k < few; k++) {
        const float w = p[(c + k) * s.rows + i];
#pragma omp simd
        for (Index j = start; j < end; j++) qc[k * s.columns + j] += w * m[i * s.columns + j];
      }
  });
}

void product_and_rest(Shape s, const float* p, const float* q, const float* own_p, const float* r,
                      float* m, float* u, bool past_caches) {
  few_columns(s.rank, [&](Index c, auto few) {
    const float *qc = q + c * s.columns, *rc = r + c * s.columns;
    float w[few], own[few];
    for (int k = 0; k < few; k++) {
      w[k] = p[(c + k) * s.rows];
      own[k] = own_p[(c + k) * s.rows];
    }
    auto subtract = [&](Index j) {
      for (int k = 0; k < few; k++) m[j] -= own[k] * rc[k * s.columns + j];
    };
    auto add = [&](Index j, float so_far) {
      for (int k = 0; k < few; k++) so_far += w[k] * qc[k * s.columns + j];
      return so_far;
    };
    Index j = 0;
    if (u && c == 0)
      for (; j + LINE <= s.columns; j += LINE) {
        __builtin_prefetch(m + j + AHEAD, 1);
        float x[LINE];
#pragma omp simd
        for (Index l = 0; l < LINE; l++) {
          x[l] = add(j + l, 0);
          subtract(j + l);
        }
        write_line(u + j, x, past_caches);
      }
    for (Index t = j; u && t < s.columns; t++) u[t] = add(t, c == 0 ? 0 : u[t]);
#pragma omp simd
    for (Index t = j; t < s.columns; t++) subtract(t);
  });
}

}  // namespace

// The functions take `count` matrices for each of `workers` workers: m[i] is [workers, n, m]. The
// parts of two consecutive workers in matrix i begin steps[i] floats apart where steps are given,
// else n m floats. Factors that differ between workers are [workers, all].
extern "C" {

// Scales the columns of Q to a largest magnitude of 1; columns that are zero, or not finite, are
// replaced by those of `fresh`.
void restart(Index count, const Shape* shapes, const float* const* q, const float* fresh,
             float* out) {
  for (Index i = 0; i < count; i++)
    for (Index c = 0; c < shapes[i].rank; c++) {
      const Index n = shapes[i].columns;
      const float* column = q[i] + c * n;
      float largest = 0, not_finite = 0;
#pragma omp simd reduction(max : largest) reduction(+ : not_finite)
      for (Index j = 0; j < n; j++) {
        largest = std::max(largest, std::fabs(column[j]));
        not_finite += column[j] - column[j];
      }
      const bool kept = largest > 0 && not_finite == 0;
      std::copy_n(kept ? column : fresh, n, out);
      if (kept) divide(out, largest, n);
      fresh += n;
      out += n;
    }
}

// Makes the columns of each P orthonormal in place, by Gram-Schmidt as in low_rank.py: a column is
// projected twice, and becomes zero if it is dependent.
void orthogonalize(Index count, const Shape* shapes, float* p) {
  for (Index i = 0; i < count; i++) {
    const auto [rows, _, rank] = shapes[i];
    for (Index c = 0; c < rank; c++) {
      float* column = p + c * rows;
      normalize(column, rows);
      if (c == 0) continue;
      project_out(column, p, c, rows);
      normalize(column, rows);
      project_out(column, p, c, rows);
      if (!(normalize(column, rows) > 0.5)) std::fill_n(column, rows, 0.f);
    }
    p += rank * rows;
  }
}

// M = G + alpha E and P = M Q.
void add_times(Index count, const Shape* shapes, Index workers, const float* const* g,
               const Index* g_steps, const float* const* e, const Index* e_steps, float alpha,
               const float* q, float* const* m, float* p, Index p_size, int threads) {
  for (Index i = 0; i < count; i++) {
    const Shape s = shapes[i];
    const bool past_caches = goes_past_caches(m[i], s);
    in_parallel(workers * s.rows, threads, [&](Index row) {
      const Index worker = row / s.rows, of_worker = row % s.rows, at = of_worker * s.columns;
      const float *g_row = g[i] + worker * g_steps[i] + at, *e_row = e[i] + worker * e_steps[i] + at;
      float* p_row = p + worker * p_size + of_worker;
      add_times(s, g_row, e_row, alpha, q, m[i] + row * s.columns, p_row, past_caches);
    });
    q += s.rank * s.columns;
    p += s.rank * s.rows;
  }
}

// Q = M^T P, with the same P for all workers.
void transposed_times(Index count, const Shape* shapes, Index workers, const float* const* m,
                      const float* p, float* q, Index q_size, int threads) {
  for (Index i = 0; i < count; i++) {
    const Shape s = shapes[i];
    const Index tiles = (s.columns + TILE - 1) / TILE;
    in_parallel(workers * tiles, threads, [&](Index task) {
      const Index worker = task / tiles, start = task % tiles * TILE;
      const float* of_worker = m[i] + worker * s.rows * s.columns;
      const Index end = std::min(start + TILE, s.columns);
      transposed_times(s, of_worker, p, q + worker * q_size, start, end);
    });
    p += s.rank * s.rows;
    q += s.rank * s.columns;
  }
}

// U = P Q^T and, in place, M = M - P' R^T. P' and R are a worker's own factors or, where their size
// is 0, those of all.
void product_and_rest(Index count, const Shape* shapes, Index workers, const float* p,
                      const float* q, const float* own_p, Index own_p_size, const float* r,
                      Index r_size, float* const* m, float* const* u, int threads) {
  for (Index i = 0; i < count; i++) {
    const Shape s = shapes[i];
    const bool past_caches = goes_past_caches(u[i], s);
    in_parallel(workers * s.rows, threads, [&](Index row) {
      const Index worker = row / s.rows, of_worker = row % s.rows, at = row * s.columns;
      float* update = worker == 0 ? u[i] + at : nullptr;
      product_and_rest(s, p + of_worker, q, own_p + worker * own_p_size + of_worker,
                       r + worker * r_size, m[i] + at, update, past_caches);
    });
    p += s.rank * s.rows;
    own_p += s.rank * s.rows;
    q += s.rank * s.columns;
    r += s.rank * s.columns;
  }
}

}  // extern "C"
