// Attention by maps with few nonzero weights: what has no weight is skipped, forward and backward.

#include "support.h"

namespace {

INLINE void accumulate(float* out, const float* x, float w, int64_t d) {
    SIMD()
    for (int64_t e = 0; e < d; ++e) out[e] += w * x[e];
}

INLINE float product(const float* x, const float* y, int64_t d) {
    float sum = 0;
    SIMD(reduction(+ : sum))
    for (int64_t e = 0; e < d; ++e) sum += x[e] * y[e];
    return sum;
}

}  // namespace

// Attention: a block of score rows to their support (places, weights, counts; `room` of them a row) and their contexts.
// Returns 0, 1 for NaN or +inf, 2 if a row needs more room.
static int attend_rows(const float* scores, const float* v, float* out, int32_t* place, float* weight,
                                int32_t* count, int64_t rows, int64_t n, int64_t d, int64_t room, double alpha) {
    int failed = 0;
    for (int64_t i = 0; i < rows; ++i) {
        Scratch& s = scratch(n);
        const int64_t kept = support(scores + i * n, n, alpha, s);
        if (kept < 0) failed |= 1;
        if (kept > room) failed |= 2;
        if (failed) return failed;
        float* c = out + i * d;
        std::memset(c, 0, d * sizeof(float));
        for (int64_t j = 0; j < kept; ++j) {
            const float w = static_cast<float>(s.value[j]);
            place[i * room + j] = s.place[j];
            weight[i * room + j] = w;
            accumulate(c, v + s.place[j] * d, w, d);
        }
        count[i] = static_cast<int32_t>(kept);
    }
    return 0;
}

EXPORT int regard_attend_forward(const float* scores, const float* v, float* out, int32_t* place, float* weight,
                                     int32_t* count, int64_t rows, int64_t n, int64_t d, int64_t room, double alpha,
                                     int threads) {
    const int parts = threads_for(rows * n, threads);
    int failed = 0;
    PARALLEL(num_threads(parts) reduction(| : failed))
    for (int part = 0; part < parts; ++part) {
        const int64_t a = rows * part / parts, b = rows * (part + 1) / parts;
        failed |= attend_rows(scores + a * n, v, out + a * d, place + a * room, weight + a * room, count + a, b - a, n,
                              d, room, alpha);
    }
    return failed;
}

// Gradient in the scores, on the support alone (`slope`, as `weight`), and from it that in the queries.
static void slopes_of_rows(const float* k, const float* v, const float* grad, const int32_t* place,
                                    const float* weight, const int32_t* count, float* slope, float* dq, int64_t rows,
                                    int64_t e, int64_t d, int64_t room, double alpha) {
    for (int64_t i = 0; i < rows; ++i) {
        const int32_t* at = place + i * room;
        const float* p = weight + i * room;
        float* s = slope + i * room;
        double sum = 0, dot = 0;
        for (int32_t j = 0; j < count[i]; ++j) {
            s[j] = product(grad + i * d, v + at[j] * d, d);
            const double w = alpha == 2.0 ? 1.0 : std::sqrt(double(p[j]));
            sum += w;
            dot += w * s[j];
        }
        const float centre = sum > 0 ? static_cast<float>(dot / sum) : 0.0f;
        float* out = dq + i * e;
        std::memset(out, 0, e * sizeof(float));
        for (int32_t j = 0; j < count[i]; ++j) {
            const float w = alpha == 2.0 ? 1.0f : std::sqrt(p[j]);
            s[j] = w * (s[j] - centre);
            accumulate(out, k + at[j] * e, s[j], e);
        }
    }
}

// Gradients in the keys and values `first` to `last`, each gathered from the queries that look at it.
static void gather_keys(const float* q, const float* grad, const int64_t* start, const int64_t* slot,
                                 const float* weight, const float* slope, float* dk, float* dv, int64_t first,
                                 int64_t last, int64_t e, int64_t d, int64_t room) {
    for (int64_t j = first; j < last; ++j) {
        std::memset(dk + j * e, 0, e * sizeof(float));
        std::memset(dv + j * d, 0, d * sizeof(float));
        for (int64_t t = start[j]; t < start[j + 1]; ++t) {
            const int64_t i = slot[t] / room;
            accumulate(dk + j * e, q + i * e, slope[slot[t]], e);
            accumulate(dv + j * d, grad + i * d, weight[slot[t]], d);
        }
    }
}

EXPORT int regard_attend_backward(const float* q, const float* k, const float* v, const float* grad,
                                      const int32_t* place, const float* weight, const int32_t* count, float* slope,
                                      float* dq, float* dk, float* dv, int64_t rows, int64_t n, int64_t e, int64_t d,
                                      int64_t room, double alpha, int threads) {
    const int parts = std::max(1, threads);
    PARALLEL(num_threads(parts))
    for (int part = 0; part < parts; ++part) {
        const int64_t a = rows * part / parts, b = rows * (part + 1) / parts;
        slopes_of_rows(k, v, grad + a * d, place + a * room, weight + a * room, count + a, slope + a * room, dq + a * e,
                       b - a, e, d, room, alpha);
    }
    // The same entries sorted by key.
    std::vector<int64_t> start(n + 1, 0);
    for (int64_t i = 0; i < rows; ++i)
        for (int32_t j = 0; j < count[i]; ++j) ++start[place[i * room + j] + 1];
    for (int64_t j = 0; j < n; ++j) start[j + 1] += start[j];
    std::vector<int64_t> slot(start[n]), next(start.begin(), start.end() - 1);
    for (int64_t i = 0; i < rows; ++i)
        for (int32_t j = 0; j < count[i]; ++j) slot[next[place[i * room + j]]++] = i * room + j;
    PARALLEL(num_threads(parts))
    for (int part = 0; part < parts; ++part)
        gather_keys(q, grad, start.data(), slot.data(), weight, slope, dk, dv, n * part / parts, n * (part + 1) / parts,
                    e, d, room);
    return 0;
}
