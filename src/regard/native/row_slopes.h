// Gradients of a row of weights in its scores and in alpha (docs/math.md, 2.11 and 2.12).
#pragma once

#include "support.h"

namespace {

// p^power of numbers in (0, 1]; zero stays zero.
INLINE float powered(float p, float power) {
    const bool in = p > std::numeric_limits<float>::min();
    const float log = log_of<float, int32_t>(in ? p : 1.0f);
    return in ? exp_of<float, int32_t>(power * log) : 0.0f;
}

// The derivative of e_alpha(y) in alpha at fixed y, from its value p and w = p^(2 - alpha): -p (ln p)^2 f(x) with
// x = -(alpha - 1) ln p and f(x) = (e^x - 1 - x) / x^2, by a series where that is a small difference.
INLINE float bend(float p, float w, float delta) {
    const bool in = p > std::numeric_limits<float>::min();
    const float log = log_of<float, int32_t>(in ? p : 1.0f), x = -delta * log;
    float series = 1.0f / 3628800;
    series = series * x + 1.0f / 362880;
    series = series * x + 1.0f / 40320;
    series = series * x + 1.0f / 5040;
    series = series * x + 1.0f / 720;
    series = series * x + 1.0f / 120;
    series = series * x + 1.0f / 24;
    series = series * x + 1.0f / 6;
    series = series * x + 0.5f;
    const float near = p * log * log * series, far = (w - p - p * x) / (delta * delta);
    return in ? (x < 0.5f ? -near : -far) : 0.0f;
}

// The gradient in the scores of a row, w (g - <w, g> / sum w) with w = p^(2 - alpha) on the support, times `factor`.
// p, g: n weights, and the gradient in them. w: room for n numbers. out: may be g. Returns the gradient in alpha if it
// is `learned`, else zero.
static double slopes(const float* p, const float* g, int64_t n, double alpha, float factor, bool learned, float* w,
                     float* out) {
    float sum = 0, dot = 0;
    if (alpha == 2.0) {
        SIMD(reduction(+ : sum, dot))
        for (int64_t i = 0; i < n; ++i) {
            w[i] = p[i] > 0 ? 1.0f : 0.0f;
            sum += w[i];
            dot += p[i] > 0 ? g[i] : 0.0f;
        }
    } else if (alpha == 1.5) {
        SIMD(reduction(+ : sum, dot))
        for (int64_t i = 0; i < n; ++i) {
            w[i] = std::sqrt(p[i]);
            sum += w[i];
            dot += w[i] * g[i];
        }
    } else {
        const float power = static_cast<float>(2.0 - alpha);
        SIMD(reduction(+ : sum, dot))
        for (int64_t i = 0; i < n; ++i) {
            w[i] = powered(p[i], power);
            sum += w[i];
            dot += w[i] * g[i];
        }
    }
    const float centre = sum > 0 ? dot / sum : 0.0f;
    double in_alpha = 0;
    if (learned) {
        const float delta = static_cast<float>(alpha - 1.0);
        SIMD(reduction(+ : in_alpha))
        for (int64_t i = 0; i < n; ++i) in_alpha += double(bend(p[i], w[i], delta) * (g[i] - centre));
    }
    SIMD()
    for (int64_t i = 0; i < n; ++i) out[i] = p[i] > 0 ? factor * w[i] * (g[i] - centre) : 0.0f;
    return in_alpha;
}

}  // namespace
