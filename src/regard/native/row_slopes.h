// Gradients of rows of weights in their scores and in alpha (docs/math.md, 2.11 and 2.12).
#pragma once

#include "double_powers.h"
#include "register_powers.h"

namespace {

// w = p^(2 - alpha) of weights p; zero stays zero. Of softmax it is p.
template <int kind>
INLINE Wide steepness(const Wide& p, float power) {
    const Wide zero = {}, one = zero + 1.0f;
    if constexpr (kind == 2) return choose(p > zero, one, zero);
    if constexpr (kind == 1) return roots(p);
    if constexpr (kind == 3) return p;
    return power_of(p, power);
}

// The derivative of e_alpha(y) in alpha at fixed y, from its value p and w = p^(2 - alpha): -p (ln p)^2 f(x) with
// x = -(alpha - 1) ln p and f(x) = (e^x - 1 - x) / x^2, by a series where that is a small difference.
INLINE Wide bend(const Wide& p, const Wide& w, float delta) {
    const Wide zero = {}, one = zero + 1.0f;
    const auto in = p > std::numeric_limits<float>::min();
    const Wide log = log2_of(choose(in, p, one)) * 0.69314718f, x = log * -delta;
    Wide series = zero + 1.0f / 3628800;
    series = series * x + 1.0f / 362880;
    series = series * x + 1.0f / 40320;
    series = series * x + 1.0f / 5040;
    series = series * x + 1.0f / 720;
    series = series * x + 1.0f / 120;
    series = series * x + 1.0f / 24;
    series = series * x + 1.0f / 6;
    series = series * x + 0.5f;
    const Wide near = p * log * log * series, far = (w - p - p * x) * (1.0f / (delta * delta));
    return choose(in, choose(x < 0.5f, -near, -far), zero);
}

// Up to a register of numbers, zeros behind them.
INLINE Wide load_some(const float* x, int64_t n) {
    if (n >= wide) return load(x);
    float some[wide] = {};
    std::memcpy(some, x, n * sizeof(float));
    return load(some);
}

template <int kind>
static double slopes(const float* p, const float* g, int64_t n, float delta, float factor, bool learned, float* w,
                     float* out) {
    const Wide zero = {};
    Wide sum = zero, dot = zero, in_alpha = zero;
    for (int64_t i = 0; i < n; i += wide) {
        const Wide steep = steepness<kind>(load_some(p + i, n - i), 1.0f - delta);
        store(w + i, steep);
        sum += steep;
        dot += steep * load_some(g + i, n - i);
    }
    const float all = total(sum), centre = all > 0 ? total(dot) / all : 0.0f;
    for (int64_t i = 0; i < n; i += wide) {
        const Wide steep = load(w + i), rest = load_some(g + i, n - i) - centre;
        const Wide slope = choose(steep > zero, steep * rest * factor, zero);
        if (learned) in_alpha += bend(load_some(p + i, n - i), steep, delta) * rest;
        if (n - i >= wide)
            store(out + i, slope);
        else
            std::memcpy(out + i, &slope, (n - i) * sizeof(float));
    }
    return double(total(in_alpha));
}

// The gradient in the scores of a row, w (g - <w, g> / sum w) with w = p^(2 - alpha) on the support, times `factor`.
// p, g: n weights, and the gradient in them. w: room for n numbers and a register. out: may be g. Returns the gradient
// in alpha if it is `learned`, else zero.
static double slopes(const float* p, const float* g, int64_t n, double alpha, float factor, bool learned, float* w,
                     float* out) {
    const float delta = static_cast<float>(alpha - 1.0);
    if (alpha == 1.0) return slopes<3>(p, g, n, delta, factor, learned, w, out);
    if (alpha == 2.0) return slopes<2>(p, g, n, delta, factor, learned, w, out);
    if (alpha == 1.5) return slopes<1>(p, g, n, delta, factor, learned, w, out);
    return slopes<0>(p, g, n, delta, factor, learned, w, out);
}

// `bend` in double precision.
INLINE double bend(double p, double w, double delta) {
    const bool in = p > std::numeric_limits<double>::min();
    const double log = log_double(in ? p : 1.0), x = log * -delta;
    double series = 1.0 / 20922789888000.0;
    series = series * x + 1.0 / 1307674368000.0;
    series = series * x + 1.0 / 87178291200.0;
    series = series * x + 1.0 / 6227020800.0;
    series = series * x + 1.0 / 479001600;
    series = series * x + 1.0 / 39916800;
    series = series * x + 1.0 / 3628800;
    series = series * x + 1.0 / 362880;
    series = series * x + 1.0 / 40320;
    series = series * x + 1.0 / 5040;
    series = series * x + 1.0 / 720;
    series = series * x + 1.0 / 120;
    series = series * x + 1.0 / 24;
    series = series * x + 1.0 / 6;
    series = series * x + 0.5;
    const double near = p * log * log * series, far = (w - p - p * x) / (delta * delta);
    return in ? (x < 0.5 ? -near : -far) : 0.0;
}

// `slopes` in double precision.
static double slopes(const double* p, const double* g, int64_t n, double alpha, double factor, bool learned, double* w,
                     double* out) {
    double sum = 0, dot = 0, in_alpha = 0;
    SIMD(reduction(+ : sum, dot))
    for (int64_t i = 0; i < n; ++i) {
        const double steep = alpha == 2.0   ? (p[i] > 0 ? 1.0 : 0.0)
                             : alpha == 1.5 ? std::sqrt(p[i])
                                            : power_double(p[i], 2.0 - alpha);
        w[i] = steep;
        sum += steep;
        dot += steep * g[i];
    }
    const double centre = sum > 0 ? dot / sum : 0.0;
    if (learned)
        SIMD(reduction(+ : in_alpha))
        for (int64_t i = 0; i < n; ++i) in_alpha += bend(p[i], w[i], alpha - 1.0) * (g[i] - centre);
    SIMD()
    for (int64_t i = 0; i < n; ++i) out[i] = w[i] > 0 ? w[i] * (g[i] - centre) * factor : 0.0;
    return in_alpha;
}

// The same for a register of rows, which lie as in row_lanes.h; g becomes the gradient in the scores.
template <int kind>
static double lane_slopes(const float* p, float* g, int64_t n, int64_t step, float delta, float factor, bool learned,
                          float* w) {
    const Wide zero = {};
    Wide sum = zero, dot = zero, in_alpha = zero;
    for (int64_t j = 0; j < n; ++j) {
        const Wide steep = steepness<kind>(load(p + j * step), 1.0f - delta);
        store(w + j * wide, steep);
        sum += steep;
        dot += steep * load(g + j * step);
    }
    const Wide centre = choose(sum > zero, dot / choose(sum > zero, sum, zero + 1.0f), zero);
    for (int64_t j = 0; j < n; ++j) {
        const Wide steep = load(w + j * wide), rest = load(g + j * step) - centre;
        if (learned) in_alpha += bend(load(p + j * step), steep, delta) * rest;
        store(g + j * step, choose(steep > zero, steep * rest * factor, zero));
    }
    return double(total(in_alpha));
}

// w: room for n registers.
static double lane_slopes(const float* p, float* g, int64_t n, int64_t step, double alpha, float factor, bool learned,
                          float* w) {
    const float delta = static_cast<float>(alpha - 1.0);
    if (alpha == 1.0) return lane_slopes<3>(p, g, n, step, delta, factor, learned, w);
    if (alpha == 2.0) return lane_slopes<2>(p, g, n, step, delta, factor, learned, w);
    if (alpha == 1.5) return lane_slopes<1>(p, g, n, step, delta, factor, learned, w);
    return lane_slopes<0>(p, g, n, step, delta, factor, learned, w);
}

}  // namespace
