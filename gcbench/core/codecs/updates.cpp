// Steps of optimizers in one or two passes over memory. PyTorch's make a pass for each operation.
// Every operation is rounded as there: where PyTorch adds a multiple, it adds it unrounded (fma).

#include <algorithm>
#include <cstdint>

namespace {

using Index = std::int64_t;

inline float add(float x, float factor, float y) { return __builtin_fmaf(factor, y, x); }

constexpr Index PART = 1 << 14;  // values of a task

template <class F>
void run(F f, Index begin, Index end) {
#pragma omp simd
  for (Index i = begin; i < end; i++) f(i);
}

// Calls what `of` returns for a tensor with each of its places.
template <class Of>
void each(Index tensors, const Index* sizes, int threads, Of of) {
  for (Index t = 0; t < tensors; t++) {
    const Index n = sizes[t];
    const auto f = of(t);
#pragma omp parallel for num_threads(threads) if (threads > 1 && n > 2 * PART)
    for (Index begin = 0; begin < n; begin += PART) run(f, begin, std::min(begin + PART, n));
  }
}

enum Along { MOMENTUM, NESTEROV, BOTH };  // what a step goes along; BOTH is PowerSGD's

struct Momentum {
  Index tensors;
  const Index* sizes;
  float* const* xs;
  const float* const* ds;
  float* const* ms;
  float lr, kept, added, decay;
  int first, threads;

  template <Along ALONG, bool DECAYS, bool FIRST>
  void step() const {
    each(tensors, sizes, threads, [this](Index t) {
      return [x = xs[t], g = ds[t], m = ms[t], job = *this](Index i) {
        const float d = DECAYS ? add(g[i], job.decay, x[i]) : g[i];
        const float now = m[i] = FIRST ? d : add(m[i] * job.kept, job.added, d);
        const float ahead = ALONG == NESTEROV ? add(d, job.kept, now) : d + now;
        x[i] = add(x[i], -job.lr, ALONG == MOMENTUM ? now : ahead);
      };
    });
  }
  template <Along ALONG, bool DECAYS>
  void step() const {
    if (first) step<ALONG, DECAYS, true>();
    else step<ALONG, DECAYS, false>();
  }
  template <Along ALONG>
  void step() const {
    if (decay != 0) step<ALONG, true>();
    else step<ALONG, false>();
  }
};

}  // namespace

extern "C" {

// m <- kept m + added d, or d in the first step; x <- x - lr times what `along` says. With `decay`,
// d is d + decay x, here and below.
void momentum_step(Index tensors, const Index* sizes, float* const* xs, const float* const* ds,
                   float* const* ms, float lr, float kept, float added, float decay, int along,
                   int first, int threads) {
  const Momentum job{tensors, sizes, xs, ds, ms, lr, kept, added, decay, first, threads};
  if (along == MOMENTUM) job.step<MOMENTUM>();
  else if (along == NESTEROV) job.step<NESTEROV>();
  else job.step<BOTH>();
}

// m <- m + fresh1 (d - m); v <- kept2 v + fresh2 d^2
void adam_moments(Index tensors, const Index* sizes, const float* const* xs, const float* const* ds,
                  float* const* ms, float* const* vs, float fresh1, float kept2, float fresh2,
                  float decay, int threads) {
  const bool near = fresh1 < 0.5f;  // as torch.lerp interpolates from the nearer end
  each(tensors, sizes, threads, [=](Index t) {
    return [=, x = xs[t], g = ds[t], m = ms[t], v = vs[t]](Index i) {
      const float d = decay != 0 ? add(g[i], decay, x[i]) : g[i];
      m[i] = near ? add(m[i], fresh1, d - m[i]) : add(d, fresh1 - 1, d - m[i]);
      v[i] = add(v[i] * kept2, fresh2 * d, d);
    };
  });
}

// x <- shrunk x - size m / (root / divisor + eps), where root is sqrt(v).
void adam_step(Index tensors, const Index* sizes, float* const* xs, const float* const* ms,
               const float* const* roots, float shrunk, float size, float divisor, float eps,
               int threads) {
  each(tensors, sizes, threads, [=](Index t) {
    return [=, x = xs[t], m = ms[t], root = roots[t]](Index i) {
      x[i] = x[i] * shrunk + -size * m[i] / (root[i] / divisor + eps);
    };
  });
}
}
