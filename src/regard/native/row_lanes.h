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

// One step from thresholds `low` of n entries each; `open` is one where a row is not done.
template <int kind>
INLINE void climb(const float* x, int64_t n, int64_t step, float delta, Wide& low, Wide& open) {
    const Wide zero = {}, one = zero + 1.0f, far = zero + 1e30f;
    const float inverse = 1.0f / delta;
    Wide weights = zero, slopes = zero, count = zero, least = far;
    for (int64_t j = 0; j < n; ++j) {
        const Wide u = load(x + j * step) - low;
        Wide p, slope;
        weight_of<kind>(u, inverse, p, slope);
        weights += p;
        slopes += slope;
        if constexpr (kind == 1) {
            count += choose(u > zero, one, zero);
            const Wide z = choose(u > zero, u, far);
            least = choose(z < least, z, least);
        }
    }
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
        done = absolute(off) < 3e-4f;
    }
    const Wide higher = low + choose(empty, zero, move);
    done = done | (higher <= low) | empty;
    low = choose(open > zero, higher, low);
    open = choose(done, zero, open);
}

INLINE bool all_zero(const Wide& x) { return !(largest(x) > 0.0f); }

template <int kind>
INLINE Wide climbed(const float* x, int64_t n, int64_t step, Wide low, float delta, int steps) {
    Wide open = Wide{} + 1.0f;
    for (int i = 0; i < steps && !all_zero(open); ++i) climb<kind>(x, n, step, delta, low, open);
    return low;
}

// From n scores to the weights of each row, in place. Rows without a score above -inf have none.
template <int kind>
static void lane_weights(float* x, int64_t n, int64_t step, float delta) {
    constexpr int64_t groups = 8;
    const Wide zero = {}, one = zero + 1.0f, lowest = zero - 1e30f;
    Wide top = zero - std::numeric_limits<float>::infinity(), sum = zero, count = zero;
    float heads[groups * wide];  // maxima of strided groups: their threshold is a lower bound of the row's own
    for (int64_t j = 0; j < n; ++j) top = larger(load(x + j * step), top);
    top = choose(top < -std::numeric_limits<float>::max(), zero, top);
    for (int64_t j = 0; j < groups; ++j) store(heads + j * wide, lowest);
    for (int64_t j = 0; j < n; ++j) {
        const Wide y = larger((load(x + j * step) - top) * delta, lowest);
        store(x + j * step, y);
        float* head = heads + j % groups * wide;
        store(head, larger(y, load(head)));
        const auto in = y > -1e29f;
        sum += choose(in, y, zero);
        count += choose(in, one, zero);
    }
    const Wide some = larger(count, one);
    const Wide by_mean = sum / some - power_of(some, -delta) - 1e-6f;  // Jensen's inequality
    const Wide start = larger(climbed<kind>(heads, groups, wide, zero - 1.0f, delta, 2), by_mean);
    const Wide low = climbed<kind>(x, n, step, start, delta, 40);
    Wide total = zero;
    for (int64_t j = 0; j < n; ++j) {
        Wide p, slope;
        weight_of<kind>(load(x + j * step) - low, 1.0f / delta, p, slope);
        store(x + j * step, p);
        total += p;
    }
    const Wide factor = choose(total > zero, 1.0f / choose(total > zero, total, one), zero);
    for (int64_t j = 0; j < n; ++j) store(x + j * step, load(x + j * step) * factor);
}

static void lane_weights(float* x, int64_t n, int64_t step, double alpha) {
    const float delta = static_cast<float>(alpha - 1.0);
    if (alpha == 2.0) return lane_weights<2>(x, n, step, delta);
    if (alpha == 1.5) return lane_weights<1>(x, n, step, delta);
    return lane_weights<0>(x, n, step, delta);
}

}  // namespace
