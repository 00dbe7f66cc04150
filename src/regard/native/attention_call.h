// What a call of attention computes, and the memory of its threads.
#pragma once

#include <cstring>
#include <limits>
#include <vector>

#include "row_slopes.h"

namespace {

// Something for each pair of a query and a key: `rows` of them, or one for all, in each of `count` matrices, of which
// head h has number of[h]. None if count is zero.
template <typename T>
struct Pairs {
    const T* at;
    const int64_t* of;
    int64_t count, rows;
    const T* row(int64_t h, int64_t i, int64_t n) const { return at + (of[h] * rows + (rows > 1 ? i : 0)) * n; }
};

// What is computed, as Python passes it. Query i sees the keys up to i + diagonal.
struct Attention {
    const float *q, *k, *v;
    Pairs<uint8_t> mask;
    Pairs<float> bias;
    const double* alphas;
    int64_t heads, rows, n, e, d, per_head, diagonal;
    float scale;
    double alpha(int64_t h) const { return alphas[per_head ? h : 0]; }
    int64_t seen(int64_t i) const { return std::max<int64_t>(0, std::min(n, i + diagonal + 1)); }
};

// The supports of all rows. Row i has count[i] keys, from start[i] on in `place` and `weight`, or start[i] is -1.
// The pointers are those of constants in the backward pass.
template <typename Start, typename Count, typename Weight, typename Number>
struct SupportsOf {
    Start* start;
    Count *count, *place;
    Weight* weight;
    Number* edge;  // three numbers a row, `Edge`
};
typedef SupportsOf<int64_t, int32_t, float, double> Supports;
typedef SupportsOf<const int64_t, const int32_t, const float, const double> KnownSupports;

// Memory of a thread.
struct Workspace {
    std::vector<float> keys, values, scores, weights, slope, hold, list;
    std::vector<int32_t> place;
    int64_t keys_of = -1, values_of = -1;  // heads whose keys and values are packed
    int64_t range_of = -1;                 // head whose keys and values are known to be in range
    double largest_key = 0;
    void forget() { keys_of = values_of = range_of = -1; }
    void release() {  // what is large is not kept between calls
        if (keys.size() + values.size() + scores.size() + weights.size() > (1 << 20)) *this = Workspace();
    }
};

Workspace& workspace() {
    static thread_local Workspace own;
    return own;
}

template <typename T>
INLINE T* fitted(std::vector<T>& x, int64_t n) {
    if (static_cast<int64_t>(x.size()) < n) x.resize(n);
    return x.data();
}

constexpr double range = 8e37;  // a quarter of the largest float: products below it cannot overflow when summed
constexpr double small = 1e30;  // lost in rounding beside the largest float, so that adding to that cannot overflow

struct Gradients {
    const float* of_context;
    float *q, *k, *v;  // k and v: of this head and part
    double alpha;
    bool learned;
};

// Gradients of one row from its support.
static void backward_row(const Attention& c, int64_t h, int64_t i, const int32_t* place, const float* weight,
                         int64_t count, Gradients& g, Workspace& w) {
    const int64_t row = h * c.rows + i;
    const float* grad = g.of_context + row * c.d;
    float *slope = fitted(w.slope, c.n), *hold = fitted(w.hold, padded(c.n));
    products_at(c.v + h * c.n * c.d, c.d, place, count, grad, slope);
    g.alpha += slopes(weight, slope, count, c.alpha(h), c.scale, g.learned, hold, slope);
    gather(c.k + h * c.n * c.e, c.e, place, slope, count, g.q + row * c.e);
    scatter(c.q + row * c.e, c.e, place, slope, count, g.k);
    scatter(grad, c.d, place, weight, count, g.v);
}

INLINE bool below_infinity(const float* x, int64_t n) {
    float wrong = 0;
    SIMD(reduction(+ : wrong))
    for (int64_t i = 0; i < n; ++i) wrong += x[i] < std::numeric_limits<float>::infinity() ? 0.0f : 1.0f;
    return wrong == 0;
}

}  // namespace
