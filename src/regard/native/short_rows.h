// Short rows, eight at a time. Each lane of a vector is a row, so that nothing is summed across a vector and eight
// rows share their divisions and roots. The thresholds are those of support.h.
#pragma once

#include "support.h"

namespace {

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
            sum_a += choose(a > low_a, a, zero);
            sum_b += choose(b > low_b, b, zero);
            count_a += choose(a > low_a, one, zero);
            count_b += choose(b > low_b, one, zero);
        }
        // Rows only ever lose entries, so that nothing has changed if the counts add up to what they were.
        if (none(before_a - count_a) && none(before_b - count_b)) break;
        before_a = count_a, before_b = count_b;
        const Four higher_a = (sum_a - 1.0) / choose(count_a > one, count_a, one);
        const Four higher_b = (sum_b - 1.0) / choose(count_b > one, count_b, one);
        low_a = choose(higher_a > low_a, higher_a, low_a);
        low_b = choose(higher_b > low_b, higher_b, low_b);
    }
    low.in[0] = low_a, low.in[1] = low_b;
}

// One half of the lanes, with `open` one where a row is not done.
INLINE void thresholds_15(const Eight* c, int64_t n, int side, Four& floor, Four& open) {
    const Four zero = {}, one = zero + 1.0, far = zero + 1e300;
    const Four low = floor;
    Four sum = zero, square = zero, count = zero, least = far;
    for (int64_t i = 0; i < n; ++i) {
        const Four d = c[i].in[side] - low, y = choose(d > zero, d, zero), z = choose(d > zero, d, far);
        sum += y;
        square += y * y;
        count += choose(d > zero, one, zero);
        least = choose(z < least, z, least);
    }
    const Four mean = sum / count, room = one - (square - sum * mean);
    const Four root = mean - roots(choose(room > zero, room, zero) / count);
    const Four higher = low + (square - roots(square)) / sum;
    const auto found = (room > zero) & (root <= least);
    const auto climbs = higher > low;
    const Four next = choose(found, low + choose(root > zero, root, zero), choose(climbs, higher, low));
    floor = choose(open > zero, next, low);
    open = choose(found | ~climbs, zero, open);
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
        SIMD()
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
        const Floats u = vector_at<Floats>(near + i * lanes), e = vector_at<Floats>(rest + i * lanes);
        const Whole in = u > 1e-30f;
        const Floats safe = choose(in, u, one), reciprocal = one / safe;
        const Floats log = log_of<Floats, Whole>(safe) + choose(in, e, zero) * reciprocal;
        const Floats w = choose(in, exp_of<Floats, Whole>(log * inverse), zero);
        const Floats more = w - lost, higher = total + more;  // a sum that keeps what it rounds away
        lost = (higher - total) - more;
        total = higher;
        steep += w * reciprocal;
        put(near + i * lanes, w);
    }
    for (int64_t r = 0; r < lanes; ++r) sum.of[r] = double(total[r]) - double(lost[r]), slopes.of[r] = double(steep[r]);
    if (weight != nullptr)
        for (int64_t k = 0; k < n * lanes; ++k) weight[0].of[k] = double(near[k]);
}

INLINE void powers(const Eight* c, int64_t n, double delta, const Eight& low, Eight* weight, Eight& sum, Eight& slopes,
                   Scratch&, double) {
    sum = slopes = {};
    for (int64_t i = 0; i < n; ++i)
        SIMD()
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
                const Four zero = {}, y = value[i].in[side] - low.in[side], positive = choose(y > zero, y, zero);
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

}  // namespace
