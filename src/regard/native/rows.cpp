// Sparsemax and entmax of rows, forward and backward. The functions return 0, or 1 if a score was NaN or +inf.

#include "row_lanes.h"
#include "row_slopes.h"

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

// Rows of single precision in registers: copies with -inf up to a whole one behind them, lists, and columns.
struct Registers {
    std::vector<float> scores, lists, columns;
    std::vector<int32_t> places;
};

// As forward_row, for up to a register of rows of fewer than lane_keys entries, for alpha from `softest` on.
static bool forward_group(const float* x, float* p, int64_t rows, int64_t n, double alpha) {
    static thread_local Registers own;
    const float hidden = -std::numeric_limits<float>::infinity();
    const int64_t step = padded(n), room = step + wide;
    if (static_cast<int64_t>(own.lists.size()) < wide * room) {
        own.scores.resize(wide * step), own.columns.resize(wide * step);
        own.lists.resize(wide * room), own.places.resize(wide * room);
    }
    float *scores = own.scores.data(), *lists = own.lists.data();
    int32_t* places = own.places.data();
    bool bad[wide], any_bad = false;
    Row found[wide];
    for (int64_t r = 0; r < rows; ++r) {
        float wrong = 0;
        SIMD(reduction(+ : wrong))
        for (int64_t i = 0; i < n; ++i) {
            const float y = x[r * n + i];
            wrong += y < -hidden ? 0.0f : 1.0f;
            scores[r * step + i] = y;
        }
        bad[r] = wrong != 0;
        any_bad |= bad[r];
        std::fill(scores + r * step + (bad[r] ? 0 : n), scores + (r + 1) * step, hidden);
    }
    lane_supports(scores, rows, n, alpha, lists, places, own.columns.data(), found);
    for (int64_t r = 0; r < rows; ++r) {
        float* out = p + r * n;
        std::fill(out, out + n, bad[r] ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
        for (int64_t i = 0; i < found[r].count; ++i) out[places[r * room + i]] = lists[r * room + i];
    }
    return any_bad;
}

static bool forward_group(const double*, double*, int64_t, int64_t, double) { return false; }  // never called

// How many of some rows go the way of forward_group together, or zero. Sums of long rows lose too many digits there; the
// thresholds of 1.5 and 2 are exact in double precision, also where a score is at the very edge of the support.
INLINE int64_t grouped(const double* alpha, int64_t alphas, int64_t rows, int64_t n) {
    if (alpha[0] < softest || n >= lane_keys || alpha[0] == 1.5 || alpha[0] == 2.0) return 0;
    const int64_t most = std::min(wide, rows);
    int64_t same = 1;
    while (same < most && (alphas == 1 || alpha[same] == alpha[0])) ++same;
    return same;
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
    } else if constexpr (sizeof(T) == 4) {
        static thread_local std::vector<float> steep;
        if (static_cast<int64_t>(steep.size()) < padded(n)) steep.resize(padded(n));
        slopes(p, g, n, alpha, 1.0f, false, steep.data(), out);
        return;
    } else {
        const T power = static_cast<T>(2.0 - alpha);
        SIMD(reduction(+ : sum, dot))
        for (int64_t i = 0; i < n; ++i) {
            const T w = power_double(p[i], power);
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
        if constexpr (sizeof(T) == 4) {                                                                               \
            int64_t i = 0;                                                                                            \
            for (int64_t same; i < rows; i += same) {                                                                 \
                same = grouped(alpha + (alphas > 1 ? i : 0), alphas, rows - i, n);                                    \
                if (same == 0 && alphas == 1) break;                                                                  \
                if (same > 0)                                                                                         \
                    bad |= forward_group(x + i * n, p + i * n, same, n, alpha[alphas > 1 ? i : 0]);                   \
                else                                                                                                  \
                    bad |= forward_row(x + i * n, p + i * n, n, alpha[i]), same = 1;                                  \
            }                                                                                                         \
            x += i * n, p += i * n, rows -= i, alpha += alphas > 1 ? i : 0;                                           \
        }                                                                                                             \
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
