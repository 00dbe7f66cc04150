// Row maps and sparse attention rows for CPUs, behind a plain C interface. No header of torch or Python is used.
//
// A row of sparsemax or entmax is found in three short steps: its maximum; the few entries close enough to it that
// they can have weight, with their places; the threshold on those alone, in double precision. The rest is zeros.
// docs/math.md, 2.7 to 2.10, has the equations. Every function returns 0, or 1 if a score was NaN or +inf.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "common.h"

namespace {

// Eight numbers side by side. Those of double precision are in two halves, because compilers keep vectors of 32 bytes in
// registers and longer ones in memory.
constexpr int64_t lanes = 8, half = 4;
typedef double Four __attribute__((vector_size(32), aligned(8)));
typedef float Floats __attribute__((vector_size(32), aligned(4)));
typedef int32_t Whole __attribute__((vector_size(32), aligned(4)));

union Eight {
    double of[lanes];
    Four in[2];
};

constexpr int64_t spare = 8;  // places are written eight at a time, so that a list of them needs room at its end

struct Scratch {
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
#pragma omp simd
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

#if defined(__x86_64__) && defined(__GNUC__)
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
__attribute__((target("avx2,popcnt"))) static int64_t above_avx2(const float* x, int64_t n, float bound,
                                                                 int32_t* place) {
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
static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
#endif

template <typename T>
INLINE int64_t above(const T* x, int64_t n, T bound, int32_t* place) {
#if defined(__x86_64__) && defined(__GNUC__)
    if constexpr (sizeof(T) == 4)
        if (has_avx2) return above_avx2(x, n, bound, place);
#endif
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
#pragma omp simd reduction(+ : sum, count)
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
#pragma omp simd reduction(+ : sum, square, count) reduction(min : least)
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

INLINE float rounded(float x) { return std::nearbyint(x); }
INLINE float number(int32_t x) { return static_cast<float>(x); }
INLINE int32_t whole(float x) { return static_cast<int32_t>(x); }

INLINE Floats rounded(const Floats& x) { return (x + 12582912.0f) - 12582912.0f; }  // 1.5 * 2^23: no room for a fraction
INLINE Floats number(const Whole& x) { return __builtin_convertvector(x, Floats); }
INLINE Whole whole(const Floats& x) { return __builtin_convertvector(x, Whole); }

// Natural logarithm of positive normal numbers, one or eight.
template <typename F, typename I>
INLINE F log_of(const F& u) {
    I bits;
    std::memcpy(&bits, &u, sizeof(bits));
    const I exponent = (bits - 0x3f3504f3) >> 23;  // mantissa in [sqrt(1/2), sqrt(2))
    bits -= exponent * (1 << 23);
    F m;
    std::memcpy(&m, &bits, sizeof(m));
    const F f = m - 1.0f, s = f / (2.0f + f), z = s * s;
    const F tail = z * (0.66666666f + z * (0.40000004f + z * (0.28566827f + z * 0.2333375f)));
    const F square = 0.5f * f * f;
    const F e = number(exponent);
    return e * 0.693359375f + (e * -2.12194440e-4f + (f - (square - s * (square + tail))));
}

// exp of one or eight numbers that are not positive; below -87 it is zero.
template <typename F, typename I>
INLINE F exp_of(const F& y) {
    const F zero = {}, least = zero - 87.0f, x = y < least ? least : y;
    const F k = rounded(x * 1.44269504f);
    const F r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    F p = zero + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const I bits = (whole(k) + 127) * (1 << 23);
    F two;
    std::memcpy(&two, &bits, sizeof(two));
    return y < least ? zero : p * two;
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
    const double z = delta * y;
    weight = z > -1.0 ? std::exp(std::log1p(z) * inverse) : 0.0;
    slope = z > -1.0 ? weight / (1.0 + z) : 0.0;
}

// Threshold of entmax for 1 < alpha < 2 on n candidates, as in _threshold.py, from a lower bound, in at most `steps`.
// T is the precision of the powers. It ends with the step that makes the sum right to that precision.
template <typename T>
INLINE double threshold_any(const double* c, int64_t n, double delta, double low, int steps) {
    const double enough = 0.25 * std::sqrt(double(std::numeric_limits<T>::epsilon()));
    const T inverse = static_cast<T>(1.0 / delta);
    for (int step = 0; step < steps; ++step) {
        double sum = 0, slopes = 0;
#pragma omp simd reduction(+ : sum, slopes)
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
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < found; ++i) {
            const double y = value[i] > low ? value[i] - low : 0.0;
            value[i] = alpha == 2.0 ? y : y * y;
            total += value[i];
        }
    } else {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < found; ++i) {
            T weight, slope;
            deformed(value[i] - low, delta, inverse, weight, slope);
            value[i] = double(weight);
            total += value[i];
        }
    }
    const double scale = 1.0 / total;
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

// Short rows, eight at a time. Each lane of a vector is a row, so that nothing is summed across a vector and eight
// rows share their divisions and roots. The thresholds are those above.
constexpr int64_t short_row = 512;
constexpr double nowhere = -1e30;  // below every candidate

INLINE Four roots(const Four& x) {
    Four y;
    for (int64_t r = 0; r < half; ++r) y[r] = std::sqrt(x[r]);
    return y;
}

INLINE bool none(const Four& x) { return x[0] + x[1] + x[2] + x[3] == 0.0; }

INLINE void thresholds_2(const Eight* c, int64_t n, Eight& low) {
    const Four zero = {}, one = zero + 1.0;
    const Four *x = c->in;
    Four low_a = low.in[0], low_b = low.in[1], before_a = zero, before_b = zero;
    for (;;) {
        Four sum_a = zero, sum_b = zero, count_a = zero, count_b = zero;
        for (int64_t i = 0; i < n; ++i) {
            const Four a = x[2 * i], b = x[2 * i + 1];
            sum_a += a > low_a ? a : zero;
            sum_b += b > low_b ? b : zero;
            count_a += a > low_a ? one : zero;
            count_b += b > low_b ? one : zero;
        }
        // Rows only ever lose entries, so that nothing has changed if the counts add up to what they were.
        if (none(before_a - count_a) && none(before_b - count_b)) break;
        before_a = count_a, before_b = count_b;
        const Four higher_a = (sum_a - 1.0) / (count_a > one ? count_a : one);
        const Four higher_b = (sum_b - 1.0) / (count_b > one ? count_b : one);
        low_a = higher_a > low_a ? higher_a : low_a;
        low_b = higher_b > low_b ? higher_b : low_b;
    }
    low.in[0] = low_a, low.in[1] = low_b;
}

// One half of the lanes, with `open` one where a row is not done.
INLINE void thresholds_15(const Eight* c, int64_t n, int side, Four& floor, Four& open) {
    const Four zero = {}, one = zero + 1.0, far = zero + 1e300;
    const Four low = floor;
    Four sum = zero, square = zero, count = zero, least = far;
    for (int64_t i = 0; i < n; ++i) {
        const Four d = c[i].in[side] - low, y = d > zero ? d : zero, z = d > zero ? d : far;
        sum += y;
        square += y * y;
        count += d > zero ? one : zero;
        least = z < least ? z : least;
    }
    const Four mean = sum / count, room = one - (square - sum * mean);
    const Four root = mean - roots((room > zero ? room : zero) / count), higher = low + (square - roots(square)) / sum;
    const auto found = (room > zero) & (root <= least);
    const auto climbs = higher > low;
    const Four next = found ? low + (root > zero ? root : zero) : (climbs ? higher : low);
    floor = open > zero ? next : low;
    open = found | ~climbs ? zero : open;
}

INLINE void thresholds_15(const Eight* c, int64_t n, Eight& low, int steps) {
    Four open[2] = {{1.0, 1.0, 1.0, 1.0}, {1.0, 1.0, 1.0, 1.0}};
    for (int step = 0; step < steps; ++step) {
        thresholds_15(c, n, 0, low.in[0], open[0]);
        thresholds_15(c, n, 1, low.in[1], open[1]);
        if (none(open[0]) && none(open[1])) return;
    }
}

// e_alpha of n entries of eight rows, in double into `weight` if it is not null, and the sums of them and their slopes.
INLINE void powers(const Eight* c, int64_t n, double delta, const Eight& low, Eight* weight, Eight& sum, Eight& slopes,
                   Scratch& s, float) {
    if (static_cast<int64_t>(s.near.size()) < n * lanes) s.near.resize(n * lanes), s.rest.resize(n * lanes);
    float *near = s.near.data(), *rest = s.rest.data();
    for (int64_t i = 0; i < n; ++i)
#pragma omp simd
        for (int64_t r = 0; r < lanes; ++r) {
            const double base = 1.0 + delta * (c[i].of[r] - low.of[r]);  // in double, as in `deformed`
            const float u = static_cast<float>(base);
            near[i * lanes + r] = u;
            rest[i * lanes + r] = static_cast<float>(base - double(u));
        }
    const Floats zero = {}, one = zero + 1.0f;
    const float inverse = static_cast<float>(1.0 / delta);
    Floats total = zero, lost = zero, steep = zero;
    for (int64_t i = 0; i < n; ++i) {
        Floats u, e;
        std::memcpy(&u, near + i * lanes, sizeof(u));
        std::memcpy(&e, rest + i * lanes, sizeof(e));
        const Whole in = u > 1e-30f;
        const Floats safe = in ? u : one, reciprocal = one / safe;
        const Floats log = log_of<Floats, Whole>(safe) + (in ? e : zero) * reciprocal;
        const Floats w = in ? exp_of<Floats, Whole>(log * inverse) : zero;
        const Floats more = w - lost, higher = total + more;  // a sum that keeps what it rounds away
        lost = (higher - total) - more;
        total = higher;
        steep += w * reciprocal;
        std::memcpy(near + i * lanes, &w, sizeof(w));
    }
    for (int64_t r = 0; r < lanes; ++r) sum.of[r] = double(total[r]) - double(lost[r]), slopes.of[r] = double(steep[r]);
    if (weight != nullptr)
        for (int64_t k = 0; k < n * lanes; ++k) weight[0].of[k] = double(near[k]);
}

INLINE void powers(const Eight* c, int64_t n, double delta, const Eight& low, Eight* weight, Eight& sum, Eight& slopes,
                   Scratch&, double) {
    sum = slopes = {};
    for (int64_t i = 0; i < n; ++i)
        for (int64_t r = 0; r < lanes; ++r) {
            double w, slope;
            deformed(c[i].of[r] - low.of[r], delta, 1.0 / delta, w, slope);
            sum.of[r] += w;
            slopes.of[r] += slope;
            if (weight != nullptr) weight[i].of[r] = w;
        }
}

// 1 - sum^-delta, for a sum of at least about one; for float to four digits, which is enough for a step.
INLINE double excess(double sum, double delta, float) {
    const double t = sum - 1.0;
    const double near = delta * t * (1 - (delta + 1) * t / 2 * (1 - (delta + 2) * t / 3 * (1 - (delta + 3) * t / 4)));
    const float log = log_of<float, int32_t>(std::max(static_cast<float>(sum), 1e-30f));
    const double far = 1.0 - double(exp_of<float, int32_t>(static_cast<float>(-delta) * log));
    return t < 0.1 ? near : far;
}

INLINE double excess(double sum, double delta, double) { return -std::expm1(-delta * std::log(sum)); }

template <typename T>
INLINE void thresholds_any(const Eight* c, int64_t n, double delta, Eight& low, int steps, Scratch& s) {
    const double enough = 0.25 * std::sqrt(double(std::numeric_limits<T>::epsilon()));
    bool done[lanes] = {};
    for (int step = 0; step < steps; ++step) {
        Eight sum, slopes;
        powers(c, n, delta, low, nullptr, sum, slopes, s, T());
        bool every = true;
        for (int64_t r = 0; r < lanes; ++r) {
            const bool empty = !(slopes.of[r] > 0.0);
            const double move = sum.of[r] * excess(sum.of[r], delta, T()) / delta / (empty ? 1.0 : slopes.of[r]);
            low.of[r] += done[r] || empty ? 0.0 : move;
            done[r] |= empty || std::abs(sum.of[r] - 1.0) < enough;
            every &= done[r];
        }
        if (every) return;
    }
}

template <typename T>
INLINE void thresholds(const Eight* c, int64_t n, double alpha, Eight& low, int steps, Scratch& s) {
    if (alpha == 2.0)
        thresholds_2(c, n, low);
    else if (alpha == 1.5)
        thresholds_15(c, n, low, steps);
    else
        thresholds_any<T>(c, n, alpha - 1.0, low, steps, s);
}

// As forward_row, for at most eight rows of fewer than short_row entries. The lanes of rows that are not there are
// empty, so that a row does not depend on its neighbours.
template <typename T>
INLINE bool forward_eight(const T* x, T* p, int64_t rows, int64_t n, double alpha) {
    Scratch& s = scratch(lanes * (n + spare));
    Eight* value = reinterpret_cast<Eight*>(s.value.data());
    const T infinity = std::numeric_limits<T>::infinity();
    T heads[lanes][few], top[lanes];
    bool bad[lanes], any_bad = false;
    for (int64_t r = 0; r < lanes; ++r) {
        for (int64_t j = 0; j < few; ++j) heads[r][j] = -infinity;
        bad[r] = false;
        if (r < rows) grouped<T, few>(x + r * n, n, heads[r], bad[r]);
        any_bad |= bad[r];
        top[r] = -infinity;
        for (int64_t j = 0; j < few; ++j) top[r] = heads[r][j] > top[r] ? heads[r][j] : top[r];
        if (bad[r] || top[r] == -infinity) top[r] = 0;
    }
    const bool shifted = alpha == 2.0 || alpha == 1.5;
    const double unit = alpha == 1.5 ? 0.5 : 1.0, delta = alpha - 1.0;
    Eight part[few], low, total = {};
    for (int64_t j = 0; j < few; ++j)
        for (int64_t r = 0; r < lanes; ++r)
            part[j].of[r] = bad[r] ? nowhere : std::max(unit * (double(heads[r][j]) - double(top[r])), nowhere);
    for (int64_t r = 0; r < lanes; ++r) low.of[r] = shifted ? -1.0 : 0.0;
    thresholds<T>(part, few, alpha, low, 2, s);
    int64_t found[lanes] = {}, most = 0;
    for (int64_t r = 0; r < rows; ++r) {
        const double reach = shifted ? low.of[r] / unit : low.of[r] - 1.0 / delta;
        const double slack = 4 * std::numeric_limits<T>::epsilon() * (std::abs(double(top[r])) - reach);
        const T bound = bad[r] ? infinity : static_cast<T>(double(top[r]) + reach - slack);
        found[r] = above(x + r * n, n, bound, s.place.data() + r * (n + spare));
        most = std::max(most, found[r]);
    }
    for (int64_t r = 0; r < lanes; ++r) {
        const int32_t* place = s.place.data() + r * (n + spare);
        double* column = s.value.data() + r;
        for (int64_t i = 0; i < found[r]; ++i) column[i * lanes] = unit * (double(x[r * n + place[i]]) - double(top[r]));
        for (int64_t i = found[r]; i < most; ++i) column[i * lanes] = nowhere;
    }
    thresholds<T>(value, most, alpha, low, 60, s);
    if (shifted) {
        for (int64_t i = 0; i < most; ++i)
            for (int side = 0; side < 2; ++side) {
                const Four zero = {}, y = value[i].in[side] - low.in[side], positive = y > zero ? y : zero;
                value[i].in[side] = alpha == 2.0 ? positive : positive * positive;
                total.in[side] += value[i].in[side];
            }
    } else {
        Eight slopes;
        powers(value, most, delta, low, value, total, slopes, s, T());
    }
    for (int64_t r = 0; r < rows; ++r) {
        T* out = p + r * n;
        if (bad[r]) {
            std::fill(out, out + n, std::numeric_limits<T>::quiet_NaN());
            continue;
        }
        const int32_t* place = s.place.data() + r * (n + spare);
        const double* column = s.value.data() + r;
        const double scale = total.of[r] > 0.0 ? 1.0 / total.of[r] : 0.0;
        std::memset(out, 0, n * sizeof(T));
        for (int64_t i = 0; i < found[r]; ++i) out[place[i]] = static_cast<T>(column[i * lanes] * scale);
    }
    return any_bad;
}

// w (g - <w, g> / sum w) with w = p^(2 - alpha) on the support.
template <typename T>
INLINE void backward_row(const T* p, const T* g, T* out, int64_t n, double alpha) {
    T sum = 0, dot = 0;
    if (alpha == 2.0) {
#pragma omp simd reduction(+ : sum, dot)
        for (int64_t i = 0; i < n; ++i) {
            const T w = p[i] > 0 ? T(1) : T(0);
            sum += w;
            dot += w * g[i];
        }
        const T centre = sum > 0 ? dot / sum : T(0);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] = p[i] > 0 ? g[i] - centre : T(0);
        return;
    }
    if (alpha == 1.5) {
#pragma omp simd reduction(+ : sum, dot)
        for (int64_t i = 0; i < n; ++i) {
            const T w = std::sqrt(p[i]);
            out[i] = w;
            sum += w;
            dot += w * g[i];
        }
    } else {
        const T power = static_cast<T>(2.0 - alpha);
#pragma omp simd reduction(+ : sum, dot)
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
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] *= g[i] - centre;
}

INLINE void accumulate(float* out, const float* x, float w, int64_t d) {
#pragma omp simd
    for (int64_t e = 0; e < d; ++e) out[e] += w * x[e];
}

INLINE float product(const float* x, const float* y, int64_t d) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < d; ++e) sum += x[e] * y[e];
    return sum;
}

}  // namespace

#define ROW_MAPS(T, NAME)                                                                                             \
    VERSIONS static bool forward_rows_##NAME(const T* x, T* p, int64_t rows, int64_t n, const double* alpha,          \
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
    VERSIONS static void backward_rows_##NAME(const T* p, const T* g, T* out, int64_t rows, int64_t n,                \
                                              const double* alpha, int64_t alphas) {                                  \
        for (int64_t i = 0; i < rows; ++i)                                                                            \
            backward_row(p + i * n, g + i * n, out + i * n, n, alpha[alphas > 1 ? i : 0]);                            \
    }                                                                                                                 \
    extern "C" int regard_entmax_##NAME(const T* x, T* p, int64_t rows, int64_t n, const double* alpha,               \
                                        int64_t alphas, int threads) {                                                \
        const int parts = threads_for(rows * n, threads);                                                             \
        int bad = 0;                                                                                                  \
        _Pragma("omp parallel for num_threads(parts) reduction(| : bad)") for (int part = 0; part < parts; ++part) {  \
            const int64_t a = rows * part / parts, b = rows * (part + 1) / parts;                                     \
            bad |= forward_rows_##NAME(x + a * n, p + a * n, b - a, n, alpha + (alphas > 1 ? a : 0), alphas);         \
        }                                                                                                             \
        return bad;                                                                                                   \
    }                                                                                                                 \
    extern "C" int regard_entmax_backward_##NAME(const T* p, const T* g, T* out, int64_t rows, int64_t n,             \
                                                 const double* alpha, int64_t alphas, int threads) {                  \
        const int parts = threads_for(rows * n, threads);                                                             \
        _Pragma("omp parallel for num_threads(parts)") for (int part = 0; part < parts; ++part) {                     \
            const int64_t a = rows * part / parts, b = rows * (part + 1) / parts;                                     \
            backward_rows_##NAME(p + a * n, g + a * n, out + a * n, b - a, n, alpha + (alphas > 1 ? a : 0), alphas);  \
        }                                                                                                             \
        return 0;                                                                                                     \
    }

ROW_MAPS(float, f32)
ROW_MAPS(double, f64)

// Attention: a block of score rows to their support (places, weights, counts; `room` of them a row) and their contexts.
// Returns 0, 1 for NaN or +inf, 2 if a row needs more room.
VERSIONS static int attend_rows(const float* scores, const float* v, float* out, int32_t* place, float* weight,
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

extern "C" int regard_attend_forward(const float* scores, const float* v, float* out, int32_t* place, float* weight,
                                     int32_t* count, int64_t rows, int64_t n, int64_t d, int64_t room, double alpha,
                                     int threads) {
    const int parts = threads_for(rows * n, threads);
    int failed = 0;
#pragma omp parallel for num_threads(parts) reduction(| : failed)
    for (int part = 0; part < parts; ++part) {
        const int64_t a = rows * part / parts, b = rows * (part + 1) / parts;
        failed |= attend_rows(scores + a * n, v, out + a * d, place + a * room, weight + a * room, count + a, b - a, n,
                              d, room, alpha);
    }
    return failed;
}

// Gradient in the scores, on the support alone (`slope`, as `weight`), and from it that in the queries.
VERSIONS static void slopes_of_rows(const float* k, const float* v, const float* grad, const int32_t* place,
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
VERSIONS static void gather_keys(const float* q, const float* grad, const int64_t* start, const int64_t* slot,
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

extern "C" int regard_attend_backward(const float* q, const float* k, const float* v, const float* grad,
                                      const int32_t* place, const float* weight, const int32_t* count, float* slope,
                                      float* dq, float* dk, float* dv, int64_t rows, int64_t n, int64_t e, int64_t d,
                                      int64_t room, double alpha, int threads) {
    const int parts = std::max(1, threads);
#pragma omp parallel for num_threads(parts)
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
#pragma omp parallel for num_threads(parts)
    for (int part = 0; part < parts; ++part)
        gather_keys(q, grad, start.data(), slot.data(), weight, slope, dk, dv, n * part / parts, n * (part + 1) / parts,
                    e, d, room);
    return 0;
}

namespace {

// Sine and cosine between -pi/2 and pi/2.
INLINE void turn(const Floats& x, Floats& sine, Floats& cosine) {
    const Floats z = x * x;
    const Floats odd = 8.3333333e-3f + z * (-1.9841270e-4f + z * (2.7557319e-6f - z * 2.5052108e-8f));
    sine = x + x * z * (-1.6666667e-1f + z * odd);
    const Floats tail = -1.3888889e-3f + z * (2.4801587e-5f + z * (-2.7557319e-7f + z * 2.0876757e-9f));
    cosine = 1.0f + z * (-0.5f + z * (4.1666667e-2f + z * tail));
}

// The standard normal density without its constant, and the mass beyond |x| (Abramowitz and Stegun, 7.1.26).
INLINE void bell(const Floats& x, Floats& height, Floats& beyond) {
    const Floats zero = {}, size = x < zero ? -x : x, t = 1.0f / (1.0f + 0.23164189f * size);
    height = exp_of<Floats, Whole>(-0.5f * x * x);
    const Floats tail = 0.7107068705f + t * (-0.7265760135f + t * 0.5307027145f);
    beyond = height * t * (0.127414796f + t * (-0.142248368f + t * tail));
}

}  // namespace

// Gaussians under the paraboloid of an ellipse, as _block in continuous/quadrature.py with p = 1 and q = 1 or 2: eight
// ellipses at a time, one chord after another. `ratio` is the constant of q over that of p; `out` gets six sums each.
VERSIONS static void chords_of(const float* y1, const float* y2, const float* length, const float* width, float* out,
                               int64_t count, const float* node, const float* weight, int64_t nodes, int64_t q,
                               float reach, float ratio) {
    const Floats zero = {};
    const float root = 0.3989422804f;  // 1 / sqrt(2 pi)
    for (int64_t first = 0; first < count; first += lanes) {
        Floats a = zero, b = zero, wide = zero + 1.0f, narrow = zero + 2.0f, middle = zero, half_angle = zero;
        const int64_t here = std::min(lanes, count - first);
        for (int64_t r = 0; r < here; ++r) {
            a[r] = y1[first + r], b[r] = y2[first + r], wide[r] = length[first + r], narrow[r] = width[first + r];
            const float low = std::asin(std::max(-1.0f, std::min(1.0f, (-reach - a[r]) / wide[r])));
            const float high = std::asin(std::max(-1.0f, std::min(1.0f, (reach - a[r]) / wide[r])));
            middle[r] = 0.5f * (high + low), half_angle[r] = 0.5f * (high - low);
        }
        Floats sums[6] = {zero, zero, zero, zero, zero, zero};
        for (int64_t j = 0; j < nodes; ++j) {
            Floats sine, cosine, upper, lower, above_mass, below_mass;
            turn(middle + half_angle * node[j], sine, cosine);
            cosine = cosine > 1e-4f ? cosine : zero + 1e-4f;
            const Floats along = a + wide * sine, h = narrow * cosine, above = b + h, below = b - h;
            bell(above, upper, above_mass);
            bell(below, lower, below_mass);
            const Floats inside = 1.0f - (above_mass + below_mass), beside = above_mass - below_mass;
            const Floats mass = above < zero ? beside : (below > zero ? -beside : inside);
            const Floats edge = h * root * (upper + lower), moment = root * (lower - upper) - b * mass;
            const Floats flat = h * h, first_power = (flat - 1.0f) * mass + b * moment + edge;
            const Floats square = cosine * cosine, inverse = 1.0f / h, cube = inverse * inverse * inverse;
            const Floats bump = exp_of<Floats, Whole>(-0.5f * along * along) * (root * weight[j]);
            const Floats kernel = bump * square * square * cube;
            const Floats v = kernel * first_power, s = -2.0f * kernel * moment, v_along = v * along;
            sums[0] += v;
            sums[1] += v_along;
            sums[2] += s;
            if (q == 1) {
                sums[3] += v_along * along - v;
                sums[4] += s * along;
                sums[5] += 2.0f * kernel * (edge - mass);
            } else {
                const Floats next = -b * first_power - 2.0f * moment;
                const Floats second_power = (flat - 3.0f) * first_power + b * next + 2.0f * flat * mass;
                const Floats higher = kernel * square * inverse * inverse * ratio;
                // By parts on a large ellipse, as there.
                const Floats direct = (along * along - 1.0f) * higher * second_power;
                sums[3] += wide > 2.0f ? -4.0f * ratio * v_along * sine / wide : direct;
                sums[4] += -4.0f * higher * next * along;
                sums[5] += -4.0f * higher * (3.0f * first_power - 2.0f * flat * mass);
            }
        }
        for (int64_t r = 0; r < here; ++r)
            for (int64_t e = 0; e < 6; ++e) out[(first + r) * 6 + e] = sums[e][r] * half_angle[r];
    }
}

extern "C" int regard_chords_f32(const float* y1, const float* y2, const float* length, const float* width, float* out,
                                 int64_t count, const float* node, const float* weight, int64_t nodes, int64_t q,
                                 double reach, double ratio, int threads) {
    const int parts = threads_for(count * nodes, threads);
#pragma omp parallel for num_threads(parts)
    for (int part = 0; part < parts; ++part) {
        const int64_t a = count * part / parts, b = count * (part + 1) / parts;
        chords_of(y1 + a, y2 + a, length + a, width + a, out + 6 * a, b - a, node, weight, nodes, q,
                  static_cast<float>(reach), static_cast<float>(ratio));
    }
    return 0;
}

VERSIONS static bool finite_part(const float* x, int64_t n) {
    int32_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof(bits));
        bad |= (bits & 0x7f800000) == 0x7f800000;  // the exponent of NaN and of the infinities
    }
    return bad == 0;
}

// Whether n numbers are finite: one pass that only reads.
extern "C" int regard_finite_f32(const float* x, int64_t n, int threads) {
    const int parts = threads_for(n / 16, threads);
    int bad = 0;
#pragma omp parallel for num_threads(parts) reduction(| : bad)
    for (int part = 0; part < parts; ++part) {
        const int64_t a = n * part / parts, b = n * (part + 1) / parts;
        bad |= !finite_part(x + a, b - a);
    }
    return !bad;
}

extern "C" int regard_version() { return 4; }
