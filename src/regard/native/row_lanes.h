// Short rows, a register of them at a time: each lane is a row, whose scores lie key by key, `step` numbers apart, so
// that nothing is summed across a register. The thresholds are those of row_support.h, in the same units.
#pragma once

#include "row_support.h"

namespace {

INLINE Wide absolute(const Wide& x) { return choose(x > Wide{}, x, -x); }

// 1 - sum^-delta as `excess`, of a register.
INLINE Wide excesses(const Wide& sum, float delta) {
    const Wide t = sum - 1.0f;
    const Wide third = 1.0f - t * ((delta + 3) / 4), second = 1.0f - t * ((delta + 2) / 3) * third;
    const Wide near = t * delta * (1.0f - t * ((delta + 1) / 2) * second);
    return choose(t < 0.1f, near, 1.0f - power_of(sum, -delta));
}

// Thresholds in two parts, because weights are differences that one float may round away.
struct LaneLow {
    Wide low, rest;
};

// One step from thresholds of n entries each; `open` is one where a row is not done. `most`: upper bounds, if
// steps may go beyond the thresholds (`bent`), as in `step_of`.
template <int kind>
INLINE void climb(const float* x, int64_t n, int64_t step, float delta, bool bent, const Wide& most, LaneLow& at,
                  Wide& open) {
    const Wide zero = {}, one = zero + 1.0f, far = zero + 1e30f;
    const float inverse = 1.0f / delta;
    const Wide low = at.low, rest = at.rest;
    Wide weights = zero, others = zero, slopes = zero, count = zero, least = far, curves = zero;
    for (int64_t j = 0; j < n; ++j) {
        const Wide u = (load(x + j * step) - low) - rest;
        Wide p, slope;
        weight_of<kind>(u, inverse, p, slope);
        others += p;
        if (j % 32 == 31) weights += others, others = zero;  // a sum of sums rounds less
        slopes += slope;
        if constexpr (kind == 0) curves += slope * reciprocal_of(choose(u > 1e-30f, u, one));
        if constexpr (kind == 1) {
            count += choose(u > zero, one, zero);
            const Wide z = choose(u > zero, u, far);
            least = choose(z < least, z, least);
        }
    }
    weights += others;
    const auto empty = slopes <= zero;
    const Wide safe = choose(empty, one, slopes), off = weights - 1.0f;
    Wide move = off / safe;
    auto done = absolute(off) < 1e-6f;
    if constexpr (kind == 1) {
        // The root of the quadratic, if that leaves none of them out; near it a Newton step loses fewer digits.
        const Wide some = choose(empty, one, count), mean = slopes / some, room = 1.0f - (weights - slopes * mean);
        const Wide root = mean - roots(larger(room, zero) / some);
        const auto all = (room > zero) & (root <= least) & (weights > 1.001f);
        move = choose(all, root, (weights - roots(weights)) / safe);
        done = ~all & (absolute(off) < 8e-5f);
    } else if constexpr (kind == 0) {
        move = weights * excesses(weights, delta) / safe;
        if (bent) {
            const Wide some = choose(empty, one, weights), spread = curves / safe - slopes / some;
            const Wide part = 1.0f - move * spread * (0.5f * (inverse - 1.0f)), half = zero + 0.5f, two = zero + 2.0f;
            move = move / larger(choose(part < two, part, two), half);
        }
        done = absolute(off) < (bent ? 4e-3f : 3e-4f);
    }
    move = rest + choose(empty, zero, move);
    Wide higher = low + move;
    if (bent) higher = choose(higher < most, higher, most);
    done = done | (higher <= low) | empty;
    const Wide lost = move - (higher - low);
    at.rest = choose(open > zero, choose(absolute(lost) < 1e-6f, lost, zero), rest);
    at.low = choose(open > zero, higher, low);
    open = choose(done, zero, open);
}

INLINE bool all_zero(const Wide& x) { return !(largest(x) > 0.0f); }

// From lower bounds `low` to the thresholds, in at most `steps`.
template <int kind>
INLINE LaneLow climbed(const float* x, int64_t n, int64_t step, Wide low, float delta, int steps, bool bent, Wide most) {
    LaneLow at = {low, Wide{}};
    Wide open = Wide{} + 1.0f;
    for (int i = 0; i < steps && !all_zero(open); ++i) climb<kind>(x, n, step, delta, bent, most, at, open);
    return at;
}

// The thresholds of n entries delta (x - top) of each row, from lower bounds `start`, and the factors of the weights,
// which take the place of the entries.
struct LaneEdges {
    LaneLow at;
    Wide factor, count;
};

template <int kind>
INLINE LaneEdges solved(float* x, int64_t n, int64_t step, Wide start, float delta) {
    const Wide zero = {}, one = zero + 1.0f;
    Wide sum = zero, count = zero, total = zero, most = zero;
    const bool bent = kind == 0 && delta <= 0.5f;
    if (kind == 0) {
        for (int64_t j = 0; j < n; ++j) {
            const Wide y = load(x + j * step);
            sum += choose(y > -1e29f, y, zero);
            count += choose(y > -1e29f, one, zero);
        }
        // The largest weight is at least one nth; the mean gives a lower bound by Jensen's inequality.
        const Wide some = larger(count, one), share = power_of(some, -delta);
        start = larger(start, sum / some - share - 1e-6f);
        most = larger(share * (1.0f - 1e-6f), zero + 1e-6f) * -1.0f;
    }
    const LaneLow at = climbed<kind>(x, n, step, start, delta, 40, bent, most);
    Wide part = zero, weighted = zero;
    for (int64_t j = 0; j < n; ++j) {
        Wide p, slope;
        weight_of<kind>((load(x + j * step) - at.low) - at.rest, 1.0f / delta, p, slope);
        store(x + j * step, p);
        weighted += choose(p > zero, one, zero);
        part += p;
        if (j % 32 == 31) total += part, part = zero;
    }
    total += part;
    const Wide factor = choose(total > zero, 1.0f / choose(total > zero, total, one), zero);
    for (int64_t j = 0; j < n; ++j) store(x + j * step, load(x + j * step) * factor);
    return {at, factor, weighted};
}

// What is found of a register of rows: the numbers of `Edge`, the threshold in two parts, and how many have weight.
struct LaneRows {
    float top[wide], low[wide], rest[wide], factor[wide], count[wide];
};

INLINE Wide tops_of(const float* x, int64_t n, int64_t step) {
    Wide top = Wide{} - std::numeric_limits<float>::infinity();
    for (int64_t j = 0; j < n; ++j) top = larger(load(x + j * step), top);
    return choose(top < -std::numeric_limits<float>::max(), Wide{}, top);
}

// e^(x - top) of softmax; scores of -inf give zero.
INLINE Wide exponential(const Wide& x, const Wide& top) {
    return exp2_of(larger((x - top) * 1.44269504f, Wide{} - 1e4f));
}

// Softmax of n scores of each row, in place.
static void lane_softmax(float* x, int64_t n, int64_t step, LaneRows& found) {
    const Wide zero = {}, one = zero + 1.0f, top = tops_of(x, n, step);
    Wide total = zero, part = zero;
    for (int64_t j = 0; j < n; ++j) {
        const Wide p = exponential(load(x + j * step), top);
        store(x + j * step, p);
        part += p;
        if (j % 32 == 31) total += part, part = zero;
    }
    total += part;
    const Wide factor = choose(total > zero, 1.0f / choose(total > zero, total, one), zero);
    for (int64_t j = 0; j < n; ++j) store(x + j * step, load(x + j * step) * factor);
    found = {};
    store(found.top, top);
    store(found.factor, factor);
    store(found.count, zero + static_cast<float>(n));
}

// From n scores to the weights of each row, in place. Rows without a score above -inf have none.
template <int kind>
static void lane_weights(float* x, int64_t n, int64_t step, float delta, LaneRows& found) {
    constexpr int64_t groups = 8;
    const Wide zero = {}, lowest = zero - 1e30f, top = tops_of(x, n, step);
    float heads[groups * wide];  // maxima of strided groups: their threshold is a lower bound of the row's own
    for (int64_t j = 0; j < groups; ++j) store(heads + j * wide, lowest);
    for (int64_t j = 0; j < n; ++j) {
        const Wide y = larger((load(x + j * step) - top) * delta, lowest);
        store(x + j * step, y);
        float* head = heads + j % groups * wide;
        store(head, larger(y, load(head)));
    }
    const Wide start = climbed<kind>(heads, groups, wide, zero - 1.0f, delta, 2, false, zero).low;
    const LaneEdges edges = solved<kind>(x, n, step, start, delta);
    store(found.top, top);
    store(found.low, edges.at.low);
    store(found.rest, edges.at.rest);
    store(found.factor, edges.factor);
    store(found.count, edges.count);
}

// The same for alpha from `softest` on, and for one, softmax.
static void lane_weights(float* x, int64_t n, int64_t step, double alpha, LaneRows& found) {
    const float delta = static_cast<float>(alpha - 1.0);
    if (alpha == 1.0) return lane_softmax(x, n, step, found);
    if (alpha == 2.0) return lane_weights<2>(x, n, step, delta, found);
    if (alpha == 1.5) return lane_weights<1>(x, n, step, delta, found);
    return lane_weights<0>(x, n, step, delta, found);
}

template <int kind>
static void lane_weights_at(float* x, int64_t n, int64_t step, float delta, const LaneRows& known) {
    const Wide top = load(known.top), low = load(known.low), rest = load(known.rest), factor = load(known.factor);
    for (int64_t j = 0; j < n; ++j) {
        const Wide y = load(x + j * step);
        Wide p, slope;
        if constexpr (kind == 3)
            p = exponential(y, top);
        else
            weight_of<kind>(((y - top) * delta - low) - rest, 1.0f / delta, p, slope);
        store(x + j * step, p * factor);
    }
}

// The weights of n scores of each row, again, from what was found; every alpha.
static void lane_weights_at(float* x, int64_t n, int64_t step, double alpha, const LaneRows& known) {
    const float delta = static_cast<float>(alpha - 1.0);
    if (alpha == 1.0) return lane_weights_at<3>(x, n, step, delta, known);
    if (alpha == 2.0) return lane_weights_at<2>(x, n, step, delta, known);
    if (alpha == 1.5) return lane_weights_at<1>(x, n, step, delta, known);
    if (alpha >= softest) return lane_weights_at<0>(x, n, step, delta, known);
    const float inverse = static_cast<float>(1.0 / (alpha - 1.0));
    for (int64_t j = 0; j < n; ++j)
        SIMD()
        for (int64_t r = 0; r < wide; ++r) {
            const double low = double(known.top[r]) + double(known.low[r]) + double(known.rest[r]);
            float weight, slope;
            deformed(double(x[j * step + r]) - low, alpha - 1.0, inverse, weight, slope);
            x[j * step + r] = weight * known.factor[r];
        }
}

// Squares of registers of a matrix (wide x columns, a multiple of `wide`), transposed into `out` (columns x wide), or
// back.
INLINE void to_lanes(const float* x, int64_t step, int64_t columns, float* out) {
    for (int64_t j = 0; j < columns; j += wide) {
        Wide square[wide];
        transposed(x + j, step, square);
        for (int64_t i = 0; i < wide; ++i) store(out + (j + i) * wide, square[i]);
    }
}

INLINE void from_lanes(const float* x, int64_t columns, float* out, int64_t step) {
    for (int64_t j = 0; j < columns; j += wide) {
        Wide square[wide];
        transposed(x + j * wide, wide, square);
        for (int64_t i = 0; i < wide; ++i) store(out + i * step + j, square[i]);
    }
}

constexpr int64_t lane_keys = 1024;  // rows up to here are faster a register of them at a time

// The supports of up to a register of rows of n scores, which lie padded(n) apart with -inf behind them, for alpha from
// `softest` on: those of row r begin at value[r * room] and place[r * room], room = padded(n) + wide. `columns`: room
// for padded(n) registers. Entries must not be NaN or +inf.
template <int kind>
static void lane_supports(const float* x, int64_t rows, int64_t n, float delta, float* value, int32_t* place,
                          float* columns, Row* found) {
    const float infinity = std::numeric_limits<float>::infinity();
    const int64_t step = padded(n), room = step + wide;
    const Wide zero = {}, lowest = zero - 1e30f;
    float heads[wide * wide], head_columns[wide * wide], top[wide], low[wide], rest[wide], factor[wide];
    int64_t count[wide] = {}, most = 0;
    for (int64_t r = 0; r < wide; ++r) {
        Wide tops = zero - infinity;
        if (r < rows)
            for (int64_t i = 0; i < step; i += wide) tops = larger(load(x + r * step + i), tops);
        top[r] = largest(tops);
        store(heads + r * wide, top[r] > -infinity ? larger((tops - top[r]) * delta, lowest) : lowest);
    }
    to_lanes(heads, wide, wide, head_columns);
    const Wide start = climbed<kind>(head_columns, wide, wide, zero - 1.0f, delta, 2, false, zero).low;
    store(low, start);
    for (int64_t r = 0; r < wide; ++r) {
        // A little below the bound: rounding it must not lose an entry.
        const float reach = low[r] / delta, slack = 1e-6f * (std::abs(top[r]) - reach);
        if (top[r] > -infinity)
            count[r] = nearest(x + r * step, step, top[r] + reach - slack, top[r], delta, value + r * room, place + r * room);
        most = std::max(most, padded(count[r]));
    }
    for (int64_t r = 0; r < wide; ++r) std::fill(value + r * room + count[r], value + r * room + most, -1e30f);
    to_lanes(value, room, most, columns);
    const LaneEdges edges = solved<kind>(columns, most, wide, start, delta);
    from_lanes(columns, most, value, room);
    store(low, edges.at.low);
    store(rest, edges.at.rest);
    store(factor, edges.factor);
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t kept = positive(value + r * room, place + r * room, count[r]);
        found[r] = {kept, {double(top[r]), double(low[r]) + double(rest[r]), double(factor[r])}};
    }
}

static void lane_supports(const float* x, int64_t rows, int64_t n, double alpha, float* value, int32_t* place,
                          float* columns, Row* found) {
    const float delta = static_cast<float>(alpha - 1.0);
    if (alpha == 2.0) return lane_supports<2>(x, rows, n, delta, value, place, columns, found);
    if (alpha == 1.5) return lane_supports<1>(x, rows, n, delta, value, place, columns, found);
    lane_supports<0>(x, rows, n, delta, value, place, columns, found);
}

}  // namespace
