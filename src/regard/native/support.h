// The support of one row and its weights.
//
// A row of sparsemax or entmax is found in three short steps: its maximum; the few entries close enough to it that
// they can have weight, with their places; the threshold on those alone, in double precision. The rest is zeros.
// docs/math.md, 2.7 to 2.10, has the equations.
#pragma once

#include <limits>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "double_powers.h"
#include "powers.h"

namespace {

constexpr int64_t spare = 8;  // places are written eight at a time, so that a list of them needs room at its end

// What the weights of a row are made of: the largest score, the threshold in its units, and the factor of the weights.
struct Edge {
    double top, low, factor;
};

struct Scratch {
    Edge edge;  // of the last row
    std::vector<double> value;
    std::vector<int32_t> place;
    std::vector<float> near, rest;  // for powers in single precision
    void fit(int64_t n) {
        if (static_cast<int64_t>(value.size()) < n) {
            value.resize(n);
            place.resize(n);
        }
    }
};

Scratch& scratch(int64_t n) {
    static thread_local Scratch own;
    own.fit(n + spare);
    return own;
}

// Maxima of strided groups, `heads` of them at most: the largest of all is among them, and the threshold of any part
// of a row is a lower bound of the row's own. Returns their number; `bad` is set if an entry is NaN or +inf.
constexpr int64_t few = 16, many = 128;

template <typename T, int64_t groups>
INLINE int64_t grouped(const T* x, int64_t n, T* heads, bool& bad) {
    const T infinity = std::numeric_limits<T>::infinity();
    T wrong[groups];
    for (int64_t j = 0; j < groups; ++j) heads[j] = -infinity, wrong[j] = 0;
    int64_t start = 0;
    for (; start + groups <= n; start += groups)
        SIMD()
        for (int64_t j = 0; j < groups; ++j) {
            const T y = x[start + j];
            heads[j] = y > heads[j] ? y : heads[j];
            wrong[j] = y < infinity ? wrong[j] : T(1);
        }
    for (int64_t j = 0; start < n; ++start, ++j) {
        heads[j] = x[start] > heads[j] ? x[start] : heads[j];
        wrong[j] = x[start] < infinity ? wrong[j] : T(1);
    }
    bad = false;
    for (int64_t j = 0; j < groups; ++j) bad |= wrong[j] != 0;
    return std::min(n, groups);
}

#if defined(__AVX2__)
// For each of the 256 outcomes of eight comparisons, which lanes passed, one byte each.
struct Lanes {
    uint64_t of[256];
    constexpr Lanes() : of() {
        for (int hits = 0; hits < 256; ++hits)
            for (int lane = 0, found = 0; lane < 8; ++lane)
                if (hits >> lane & 1) of[hits] |= static_cast<uint64_t>(lane) << 8 * found++;
    }
};
static constexpr Lanes passed;

// Places of the entries above `bound`, eight comparisons at a time and no branch.
INLINE int64_t above(const float* x, int64_t n, float bound, int32_t* place) {
    const __m256 least = _mm256_set1_ps(bound);
    int64_t found = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        const unsigned hits = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), least, _CMP_GT_OQ));
        const __m256i lane = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(passed.of[hits])));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(place + found),
                            _mm256_add_epi32(lane, _mm256_set1_epi32(static_cast<int32_t>(i))));
        found += _mm_popcnt_u32(hits);
    }
    for (; i < n; ++i) {
        place[found] = static_cast<int32_t>(i);
        found += x[i] > bound;
    }
    return found;
}
#endif

template <typename T>
INLINE int64_t above(const T* x, int64_t n, T bound, int32_t* place) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
        place[found] = static_cast<int32_t>(i);
        found += x[i] > bound;
    }
    return found;
}

// Entries above `top + reach`, as unit * (x - top), and where they are. Returns how many there are.
template <typename T>
INLINE int64_t candidates(const T* x, int64_t n, T top, double reach, double unit, Scratch& s) {
    // A little below the bound: rounding it to T must not lose an entry.
    const double slack = 4 * std::numeric_limits<T>::epsilon() * (std::abs(double(top)) - reach);
    const int64_t found = above(x, n, static_cast<T>(double(top) + reach - slack), s.place.data());
    for (int64_t i = 0; i < found; ++i) s.value[i] = unit * (double(x[s.place[i]]) - double(top));
    return found;
}

// Threshold of sparsemax on n candidates: Michelot's algorithm.
INLINE double threshold_2(const double* c, int64_t n, double low) {
    int64_t before = -1;
    for (;;) {
        double sum = 0;
        int64_t count = 0;
        SIMD(reduction(+ : sum, count))
        for (int64_t i = 0; i < n; ++i) {
            const bool in = c[i] > low;
            sum += in ? c[i] : 0.0;
            count += in;
        }
        if (count == before || count == 0) return low;
        before = count;
        low = std::max(low, (sum - 1.0) / static_cast<double>(count));
    }
}

// Threshold of entmax 1.5 on n candidates, from a lower bound: the root of the quadratic on those above it, if that
// leaves none of them out; else a Newton step on the norm, which stays below. At most `steps` of them.
INLINE double threshold_15(const double* c, int64_t n, double low, int steps) {
    for (int step = 0; step < steps; ++step) {
        double sum = 0, square = 0, count = 0, least = 1e300;
        SIMD(reduction(+ : sum, square, count) reduction(min : least))
        for (int64_t i = 0; i < n; ++i) {
            const bool in = c[i] > low;
            const double y = in ? c[i] - low : 0.0, z = in ? y : 1e300;
            sum += y;
            square += y * y;
            count += in ? 1.0 : 0.0;
            least = z < least ? z : least;
        }
        const double mean = sum / count, room = 1.0 - (square - sum * mean);
        if (room > 0.0) {
            const double root = mean - std::sqrt(room / count);
            if (root <= least) return low + std::max(root, 0.0);
        }
        const double higher = low + (square - std::sqrt(square)) / sum;
        if (!(higher > low)) return low;
        low = higher;
    }
    return low;
}

// e_alpha(y) = [1 + delta y]_+^(1/delta), and its slope, that over 1 + delta y.
INLINE void deformed(double y, double delta, float inverse, float& weight, float& slope) {
    const double base = 1.0 + delta * y;  // in double: near the edge of the support it is a small difference
    const float u = static_cast<float>(base);
    const bool in = u > 1e-30f;
    const float safe = in ? u : 1.0f, rest = in ? static_cast<float>(base - double(u)) : 0.0f;
    const float log = log_of<float, int32_t>(safe) + rest / safe;
    weight = in ? exp_of<float, int32_t>(log * inverse) : 0.0f;
    slope = weight / safe;
}

INLINE void deformed(double y, double delta, double inverse, double& weight, double& slope) {
    const double z = delta * y, u = 1.0 + z;
    const bool in = u > 1e-300;
    const double safe = in ? u : 1.0, rest = in ? z - (u - 1.0) : 0.0;  // what rounding has taken from u
    const double power = exp_double((log_double(safe) + rest / safe) * inverse);
    weight = in ? power : 0.0;
    slope = weight / safe;
}

// Threshold of entmax for 1 < alpha < 2 on n candidates, as in maps/entmax/threshold.py, from a lower bound, in at
// most `steps`. T is the precision of the powers. It ends with the step that makes the sum right to that precision.
template <typename T>
INLINE double threshold_any(const double* c, int64_t n, double delta, double low, int steps) {
    const double enough = 0.25 * std::sqrt(double(std::numeric_limits<T>::epsilon()));
    const T inverse = static_cast<T>(1.0 / delta);
    for (int step = 0; step < steps; ++step) {
        double sum = 0, slopes = 0;
        SIMD(reduction(+ : sum, slopes))
        for (int64_t i = 0; i < n; ++i) {
            T weight, slope;
            deformed(c[i] - low, delta, inverse, weight, slope);
            sum += double(weight);
            slopes += double(slope);
        }
        const double higher = low - sum * std::expm1(-delta * std::log(sum)) / delta / slopes;
        if (!(higher > low)) break;
        low = higher;
        if (sum - 1.0 < enough) break;
    }
    return low;
}

// The threshold of n candidates, from a lower bound `low`.
template <typename T>
INLINE double threshold(const double* c, int64_t n, double alpha, double low, int steps) {
    if (alpha == 2.0) return threshold_2(c, n, low);
    if (alpha == 1.5) return threshold_15(c, n, low, steps);
    return threshold_any<T>(c, n, alpha - 1.0, low, steps);
}

// The support of a row: places and weights (at the front of `s`), their number returned, -1 for NaN or +inf.
template <typename T>
INLINE int64_t support(const T* x, int64_t n, double alpha, Scratch& s) {
    bool bad;
    T heads[many];
    const int64_t groups = n < 512 ? grouped<T, few>(x, n, heads, bad) : grouped<T, many>(x, n, heads, bad);
    if (bad) return -1;
    const T top = *std::max_element(heads, heads + groups);
    s.edge = {0.0, 0.0, 0.0};
    if (top == -std::numeric_limits<T>::infinity()) return 0;
    // Thresholds are those of three formulas: weights are c - low, (c - low)^2 with c halved, and e_alpha(c - low).
    const bool shifted = alpha == 2.0 || alpha == 1.5;
    const double unit = alpha == 1.5 ? 0.5 : 1.0, delta = alpha - 1.0;
    double part[many];
    for (int64_t j = 0; j < groups; ++j) part[j] = std::max(unit * (double(heads[j]) - double(top)), -1e30);
    const double start = threshold<T>(part, groups, alpha, shifted ? -1.0 : 0.0, 2);
    const int64_t found = candidates(x, n, top, shifted ? start / unit : start - 1.0 / delta, unit, s);
    double* value = s.value.data();
    int32_t* place = s.place.data();
    const double low = threshold<T>(value, found, alpha, start, 60);
    double total = 0.0;
    const T inverse = static_cast<T>(1.0 / delta);
    if (shifted) {
        SIMD(reduction(+ : total))
        for (int64_t i = 0; i < found; ++i) {
            const double y = value[i] > low ? value[i] - low : 0.0;
            value[i] = alpha == 2.0 ? y : y * y;
            total += value[i];
        }
    } else {
        SIMD(reduction(+ : total))
        for (int64_t i = 0; i < found; ++i) {
            T weight, slope;
            deformed(value[i] - low, delta, inverse, weight, slope);
            value[i] = double(weight);
            total += value[i];
        }
    }
    const double scale = 1.0 / total;
    s.edge = {double(top), low, scale};
    int64_t kept = 0;
    for (int64_t i = 0; i < found; ++i) {
        const double w = value[i] * scale;
        const int32_t at = place[i];
        value[kept] = w;
        place[kept] = at;
        kept += w > 0.0;
    }
    return kept;
}

}  // namespace
