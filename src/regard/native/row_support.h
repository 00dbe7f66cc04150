// The support of a row in single precision, a register at a time, for rows that were just computed and lie in the cache.
//
// Weights are u^(1 / delta) with u = delta (x - top) - low, where they are positive, delta = alpha - 1 and `low` makes
// them sum to one: the threshold of docs/math.md, 2.7 to 2.10, in units in which sparsemax and entmax are one formula.
// Newton's method on the norm starts from the threshold of the maxima of strided groups, a lower bound; entries that
// are not above it are dropped before anything else is computed.
#pragma once

#include "register_powers.h"
#include "short_rows.h"

namespace {

constexpr double softest = 1.05;  // the smallest alpha in single precision: the power 1 / delta magnifies rounding

struct Row {
    int64_t count;  // of keys with weight; -1 for a number that is not finite
    Edge edge;
};

INLINE Wide larger(const Wide& a, const Wide& b) { return choose(a > b, a, b); }

INLINE float largest(const Wide& x) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
    return _mm512_reduce_max_ps((__m512)x);
#else
    float top = x[0];
    for (int64_t i = 1; i < wide; ++i) top = x[i] > top ? x[i] : top;
    return top;
#endif
}

// The numbers y and places `at` of those lanes where x is above `bound`, side by side: `value` and `place` have room for a
// register. Returns how many they are.
INLINE int64_t put_above(const Wide& x, float bound, const Wide& y, const WideWhole& at, float* value, int32_t* place) {
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
    const __mmask16 in = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_GT_OQ);
    _mm512_storeu_ps(value, _mm512_maskz_compress_ps(in, (__m512)y));
    _mm512_storeu_si512(place, _mm512_maskz_compress_epi32(in, (__m512i)at));
    return _mm_popcnt_u32(in);
#elif defined(__AVX2__) && defined(__GNUC__) && !defined(REGARD_NO_VECTORS)
    const unsigned in = _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(bound), _CMP_GT_OQ));
    const __m256i lane = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(passed.of[in])));
    _mm256_storeu_ps(value, _mm256_permutevar8x32_ps((__m256)y, lane));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), _mm256_permutevar8x32_epi32((__m256i)at, lane));
    return _mm_popcnt_u32(in);
#else
    int64_t found = 0;
    for (int64_t i = 0; i < wide; ++i) {
        value[found] = y[i];
        place[found] = at[i];
        found += x[i] > bound;
    }
    return found;
#endif
}

// The places of the first register.
INLINE WideWhole first_places() {
    WideWhole at = {};
    for (int64_t i = 0; i < wide; ++i) at[i] = static_cast<int32_t>(i);
    return at;
}

// Entries above `bound`, as delta (x - top), and their places. n is a multiple of `wide`; both lists have room for more.
static int64_t nearest(const float* x, int64_t n, float bound, float top, float delta, float* value, int32_t* place) {
    int64_t found = 0;
    WideWhole at = first_places();
    for (int64_t i = 0; i < n; i += wide, at = at + static_cast<int32_t>(wide)) {
        const Wide y = load(x + i);
        found += put_above(y, bound, (y - top) * delta, at, value + found, place + found);
    }
    return found;
}

// Drop what has no weight. Returns how many are left.
static int64_t positive(float* p, int32_t* place, int64_t n) {
    int64_t kept = 0, i = 0;
    for (; i + wide <= n; i += wide) {  // what is written has been read: kept <= i
        const Wide y = load(p + i);
        kept += put_above(y, 0.0f, y, vector_at<WideWhole>(place + i), p + kept, place + kept);
    }
    for (; i < n; ++i) {
        const float y = p[i];
        const int32_t at = place[i];
        p[kept] = y;
        place[kept] = at;
        kept += y > 0.0f;
    }
    return kept;
}

// Sums over a row: of the weights p, of their slopes p / u, of ones and the least u, where u is positive; for other
// alphas than 1.5 and 2 also of p / u^2.
struct Sums {
    float weights, slopes, count, least, curves;
};

// The weights of some entries, from u; `slope` is their derivative in u, but for the factor 1 / delta.
template <int kind>
INLINE void weight_of(const Wide& u, float inverse, Wide& p, Wide& slope) {
    const Wide zero = {}, one = zero + 1.0f;
    if constexpr (kind == 2) {
        p = choose(u > zero, u, zero);
        slope = choose(u > zero, one, zero);
    } else if constexpr (kind == 1) {
        slope = choose(u > zero, u, zero);
        p = slope * slope;
    } else {
        p = power_of(u, inverse);
        slope = p * reciprocal_of(choose(u > 1e-30f, u, one));
    }
}

template <int kind>
INLINE Sums sums_at(const float* value, int64_t n, float low, float rest, float inverse) {
    const Wide zero = {}, one = zero + 1.0f, far = zero + 1e30f;
    Wide weights = zero, slopes = zero, count = zero, least = far, curves = zero;
    for (int64_t i = 0; i < n; i += wide) {
        const Wide u = (load(value + i) - low) - rest;
        Wide p, slope;
        weight_of<kind>(u, inverse, p, slope);
        weights += p;
        slopes += slope;
        if constexpr (kind == 0) curves += slope * reciprocal_of(choose(u > 1e-30f, u, one));
        if constexpr (kind == 1) {
            count += choose(u > zero, one, zero);
            const Wide z = choose(u > zero, u, far);
            least = choose(z < least, z, least);
        }
    }
    Sums sums = {total(weights), total(slopes), 0.0f, 0.0f, 0.0f};
    if constexpr (kind == 0) sums.curves = total(curves);
    if constexpr (kind == 1) {
        sums.count = total(count);
        sums.least = -largest(zero - least);
    }
    return sums;
}

// 1 - sum^-delta, for a sum of at least about one.
INLINE float excess(float sum, float delta) {
    const float t = sum - 1.0f;
    if (t < 0.1f) return delta * t * (1 - (delta + 1) * t / 2 * (1 - (delta + 2) * t / 3 * (1 - (delta + 3) * t / 4)));
    return 1.0f - exp2_of(log2_of(Wide{} + sum) * -delta)[0];
}

// A step of Newton's method on the norm of the weights, which stays below the threshold; `bent`: one of Halley's, for
// alpha up to 1.5, which is as good as two of them and may go beyond, but not to where no entry is left.
INLINE float step_of(const Sums& s, float delta, bool bent) {
    const float newton = s.weights * excess(s.weights, delta) / s.slopes;
    if (!bent) return newton;
    const float bend = 0.5f * newton * (1.0f / delta - 1.0f) * (s.curves / s.slopes - s.slopes / s.weights);
    return newton / std::min(std::max(1.0f - bend, 0.5f), 2.0f);
}

// From a lower bound `low` to the threshold, in at most `steps`; n is a multiple of `wide`. `most`: an upper bound, or
// zero if the result must be a lower bound too.
struct Low {
    float low, rest;  // two parts, because weights are differences that one float may round away
};

template <int kind>
INLINE Low climbed(const float* value, int64_t n, float low, float delta, int steps, float most) {
    const float inverse = 1.0f / delta;
    const bool bent = kind == 0 && most < 0.0f && delta <= 0.5f;
    const float enough = kind == 2 ? 1e-6f : kind == 1 ? 8e-5f : bent ? 4e-3f : 3e-4f;
    float rest = 0.0f;
    for (int step = 0; step < steps; ++step) {
        const Sums s = sums_at<kind>(value, n, low, rest, inverse);
        if (!(s.slopes > 0.0f)) return {low, rest};
        float move;
        if constexpr (kind == 2) {
            move = (s.weights - 1.0f) / s.slopes;
        } else if constexpr (kind == 1) {
            // The root of the quadratic, if that leaves none of them out; near it a Newton step loses fewer digits.
            const float mean = s.slopes / s.count, room = 1.0f - (s.weights - s.slopes * mean);
            const float root = mean - std::sqrt(std::max(room, 0.0f) / s.count);
            const bool all = room > 0.0f && root <= s.least && s.weights > 1.001f;
            move = all ? root : (s.weights - std::sqrt(s.weights)) / s.slopes;
            if (all) {
                low += move + rest;
                rest = 0.0f;
                continue;
            }
        } else {
            move = step_of(s, delta, bent);
        }
        move += rest;
        const float higher = bent ? std::min(low + move, most) : low + move, lost = move - (higher - low);
        rest = std::abs(lost) < 1e-6f ? lost : 0.0f;
        const bool done = std::abs(s.weights - 1.0f) < enough || !(higher != low);
        low = higher;
        if (done) break;
    }
    return {low, rest};
}

// The sum of n entries; writes zeros up to `end`.
INLINE float sum_of(float* value, int64_t n, int64_t end) {
    std::fill(value + n, value + end, 0.0f);
    Wide sum = {};
    for (int64_t i = 0; i < end; i += wide) sum += load(value + i);
    return total(sum);
}

// The support of n scores, with -inf up to a multiple of `wide` behind them: `value` gets the weights, `place` the keys.
template <int kind>
static Row support_of(const float* x, int64_t n, double alpha, float* value, int32_t* place) {
    const float infinity = std::numeric_limits<float>::infinity(), delta = static_cast<float>(alpha - 1.0);
    const int64_t room = padded(n);
    if (n == 0) return {0, {0.0, 0.0, 0.0}};
    Wide tops = load(x);
    for (int64_t i = wide; i < room; i += wide) tops = larger(load(x + i), tops);
    const float top = largest(tops);
    if (top == -infinity) return {0, {0.0, 0.0, 0.0}};
    if (!(top < infinity)) return {-1, {0.0, 0.0, 0.0}};
    const Wide zero = {}, lowest = zero - 1e30f;
    float start = -1.0f;
    if (room > 4 * wide) {  // a shorter row is solved at once
        store(value, larger((tops - top) * delta, lowest));
        start = climbed<kind>(value, wide, start, delta, 2, 0.0f).low;
    }
    // A little below the bound: rounding it must not lose an entry.
    const float reach = start / delta, slack = 1e-6f * (std::abs(top) - reach);
    const int64_t found = nearest(x, room, top + reach - slack, top, delta, value, place), end = padded(found);
    float most = 0.0f;
    if (kind == 0) {
        // The largest weight is at least one nth; and by Jensen's inequality, close where entries are all but equal:
        const float count = static_cast<float>(found), share = exp2_of(log2_of(zero + count) * -delta)[0];
        start = std::max(start, sum_of(value, found, end) / count - share - 1e-6f);
        most = std::min(-share * (1.0f - 1e-6f), -1e-6f);
    }
    for (int64_t i = found; i < end; ++i) value[i] = -1e30f;
    const Low at = climbed<kind>(value, end, start, delta, 40, most);
    const float inverse = 1.0f / delta;
    Wide sum = zero;
    for (int64_t i = 0; i < end; i += wide) {
        Wide p, slope;
        weight_of<kind>((load(value + i) - at.low) - at.rest, inverse, p, slope);
        store(value + i, p);
        sum += p;
    }
    const float factor = 1.0f / total(sum);
    for (int64_t i = 0; i < end; i += wide) store(value + i, load(value + i) * factor);
    return {positive(value, place, found), {double(top), double(at.low) + double(at.rest), double(factor)}};
}

// The same for every alpha from 1.01 to 2. Both lists have room for padded(n) + wide entries.
static Row support_of(const float* x, int64_t n, double alpha, float* value, int32_t* place) {
    if (alpha == 2.0) return support_of<2>(x, n, alpha, value, place);
    if (alpha == 1.5) return support_of<1>(x, n, alpha, value, place);
    if (alpha >= softest) return support_of<0>(x, n, alpha, value, place);
    Scratch& s = scratch(n);
    const int64_t count = support(x, n, alpha, s);
    if (count < 0) return {-1, {0.0, 0.0, 0.0}};
    for (int64_t i = 0; i < count; ++i) value[i] = static_cast<float>(s.value[i]);
    std::copy(s.place.begin(), s.place.begin() + count, place);
    return {count, s.edge};
}

// In double precision, by the rows of support.h.
static Row support_of(const double* x, int64_t n, double alpha, double* value, int32_t* place) {
    Scratch& s = scratch(n);
    const int64_t count = support(x, n, alpha, s);
    if (count < 0) return {-1, {0.0, 0.0, 0.0}};
    std::copy(s.value.begin(), s.value.begin() + count, value);
    std::copy(s.place.begin(), s.place.begin() + count, place);
    return {count, s.edge};
}

template <int kind>
static void weights_at(const float* x, int64_t n, float delta, float top, double edge, float factor, float* p) {
    const float inverse = 1.0f / delta, low = static_cast<float>(edge), rest = static_cast<float>(edge - double(low));
    for (int64_t i = 0; i < n; i += wide) {
        Wide weight, slope;
        weight_of<kind>(((load(x + i) - top) * delta - low) - rest, inverse, weight, slope);
        store(p + i, weight * factor);
    }
}

// The weights of n scores, again, from what `support_of` has found; memory as there.
static void weights_at(const float* x, int64_t n, double alpha, const Edge& e, float* p) {
    const float delta = static_cast<float>(alpha - 1.0), top = static_cast<float>(e.top);
    const float factor = static_cast<float>(e.factor);
    if (alpha == 2.0) return weights_at<2>(x, n, delta, top, e.low, factor, p);
    if (alpha == 1.5) return weights_at<1>(x, n, delta, top, e.low, factor, p);
    if (alpha >= softest) return weights_at<0>(x, n, delta, top, e.low, factor, p);
    SIMD()
    for (int64_t i = 0; i < n; ++i) {
        float weight, slope;
        deformed(double(x[i]) - e.top - e.low, alpha - 1.0, static_cast<float>(1.0 / (alpha - 1.0)), weight, slope);
        p[i] = static_cast<float>(double(weight) * e.factor);
    }
}

static void weights_at(const double* x, int64_t n, double alpha, const Edge& e, double* p) {
    const double delta = alpha - 1.0, unit = alpha == 1.5 ? 0.5 : 1.0;
    if (alpha == 2.0 || alpha == 1.5) {
        SIMD()
        for (int64_t i = 0; i < n; ++i) {
            const double y = unit * (x[i] - e.top) - e.low, u = y > 0.0 ? y : 0.0;
            p[i] = (alpha == 2.0 ? u : u * u) * e.factor;
        }
        return;
    }
    SIMD()
    for (int64_t i = 0; i < n; ++i) {
        double weight, slope;
        deformed(x[i] - e.top - e.low, delta, 1.0 / delta, weight, slope);
        p[i] = weight * e.factor;
    }
}

}  // namespace
