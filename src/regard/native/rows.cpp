// Sparsemax and entmax of rows, forward and backward. The functions return 0, or 1 if a score was NaN or +inf.

#include "short_rows.h"

namespace {

template <typename T>
INLINE bool forward_row(const T* x, T* p, int64_t n, double alpha) {
    Scratch& s = scratch(n);
    const int64_t kept = support(x, n, alpha, s);
    if (kept < 0) {
        std::fill(p, p + n, std::numeric_limits<T>::quiet_NaN());
        return true;
    }
    std::memset(p, 0, n * sizeof(T));
    for (int64_t i = 0; i < kept; ++i) p[s.place[i]] = static_cast<T>(s.value[i]);
    return false;
}

// w (g - <w, g> / sum w) with w = p^(2 - alpha) on the support.
template <typename T>
INLINE void backward_row(const T* p, const T* g, T* out, int64_t n, double alpha) {
    T sum = 0, dot = 0;
    if (alpha == 2.0) {
        SIMD(reduction(+ : sum, dot))
        for (int64_t i = 0; i < n; ++i) {
            const T w = p[i] > 0 ? T(1) : T(0);
            sum += w;
            dot += w * g[i];
        }
        const T centre = sum > 0 ? dot / sum : T(0);
        SIMD()
        for (int64_t i = 0; i < n; ++i) out[i] = p[i] > 0 ? g[i] - centre : T(0);
        return;
    }
    if (alpha == 1.5) {
        SIMD(reduction(+ : sum, dot))
        for (int64_t i = 0; i < n; ++i) {
            const T w = std::sqrt(p[i]);
            out[i] = w;
            sum += w;
            dot += w * g[i];
        }
    } else {
        const T power = static_cast<T>(2.0 - alpha);
        SIMD(reduction(+ : sum, dot))
        for (int64_t i = 0; i < n; ++i) {
            const bool in = p[i] > std::numeric_limits<T>::min();
            T w;
            if constexpr (sizeof(T) == 4)
                w = exp_of<float, int32_t>(power * log_of<float, int32_t>(in ? p[i] : T(1)));
            else
                w = std::exp(power * std::log(in ? p[i] : T(1)));
            w = in ? w : T(0);
            out[i] = w;
            sum += w;
            dot += w * g[i];
        }
    }
    const T centre = sum > 0 ? dot / sum : T(0);
    SIMD()
    for (int64_t i = 0; i < n; ++i) out[i] *= g[i] - centre;
}

}  // namespace

#define ROW_MAPS(T, NAME)                                                                                             \
    static bool forward_rows_##NAME(const T* x, T* p, int64_t rows, int64_t n, const double* alpha,                   \
                                             int64_t alphas) {                                                        \
        bool bad = false;                                                                                             \
        if (alphas == 1 && n < short_row) {                                                                           \
            for (int64_t i = 0; i < rows; i += lanes)                                                                 \
                bad |= forward_eight(x + i * n, p + i * n, std::min(lanes, rows - i), n, alpha[0]);                   \
            return bad;                                                                                               \
        }                                                                                                             \
        for (int64_t i = 0; i < rows; ++i) bad |= forward_row(x + i * n, p + i * n, n, alpha[alphas > 1 ? i : 0]);    \
        return bad;                                                                                                   \
    }                                                                                                                 \
    static void backward_rows_##NAME(const T* p, const T* g, T* out, int64_t rows, int64_t n,                         \
                                              const double* alpha, int64_t alphas) {                                  \
        for (int64_t i = 0; i < rows; ++i)                                                                            \
            backward_row(p + i * n, g + i * n, out + i * n, n, alpha[alphas > 1 ? i : 0]);                            \
    }                                                                                                                 \
    EXPORT int regard_entmax_##NAME(const T* x, T* p, int64_t rows, int64_t n, const double* alpha,                   \
                                        int64_t alphas, int threads) {                                                \
        const int parts = threads_for(rows * n, threads);                                                             \
        int bad = 0;                                                                                                  \
        PARALLEL(num_threads(parts) reduction(| : bad)) for (int part = 0; part < parts; ++part) {                    \
            const int64_t a = rows * part / parts, b = rows * (part + 1) / parts;                                     \
            bad |= forward_rows_##NAME(x + a * n, p + a * n, b - a, n, alpha + (alphas > 1 ? a : 0), alphas);         \
        }                                                                                                             \
        return bad;                                                                                                   \
    }                                                                                                                 \
    EXPORT int regard_entmax_backward_##NAME(const T* p, const T* g, T* out, int64_t rows, int64_t n,                 \
                                                 const double* alpha, int64_t alphas, int threads) {                  \
        const int parts = threads_for(rows * n, threads);                                                             \
        PARALLEL(num_threads(parts)) for (int part = 0; part < parts; ++part) {                                       \
            const int64_t a = rows * part / parts, b = rows * (part + 1) / parts;                                     \
            backward_rows_##NAME(p + a * n, g + a * n, out + a * n, b - a, n, alpha + (alphas > 1 ? a : 0), alphas);  \
        }                                                                                                             \
        return 0;                                                                                                     \
    }

ROW_MAPS(float, f32)
ROW_MAPS(double, f64)
