// What a call of attention computes, and the memory of its threads.
#pragma once

#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "half.h"
#include "row_slopes.h"
#include "row_support.h"

namespace {

// Rows of numbers for each of the heads, which lie `inner` apart in groups of `count`, these `outer` apart; rows are
// `step` apart. What begins with another row than the first says with which.
template <typename T>
struct Heads {
    T* at;
    int64_t count, outer, inner, step, first = 0;
    T* of(int64_t h) const { return at + h / count * outer + h % count * inner; }
    T* row(int64_t h, int64_t i) const { return of(h) + (i - first) * step; }
};
typedef Heads<const float> Given;
typedef Heads<float> Result;

// Something for each pair of a query and a key: `rows` of them, or one for all, in each of `count` matrices, of which
// head h has number of[h]. None if count is zero.
template <typename T>
struct Pairs {
    const T* at;
    const int64_t* of;
    int64_t count, rows;
    const T* row(int64_t h, int64_t i, int64_t n) const { return at + (of[h] * rows + (rows > 1 ? i : 0)) * n; }
};

// What is computed, in numbers of type C. Query i sees the keys up to i + diagonal.
template <typename C>
struct AttentionOf {
    Heads<const C> q, k, v;
    Pairs<uint8_t> mask;
    Pairs<C> bias;
    const double* alphas;
    int64_t heads, rows, n, e, d, per_head, diagonal;
    C scale;
    double alpha(int64_t h) const { return alphas[per_head ? h : 0]; }
    int64_t seen(int64_t i) const { return std::max<int64_t>(0, std::min(n, i + diagonal + 1)); }
    bool in_registers() const { return e % wide == 0 && d % wide == 0; }
};
typedef AttentionOf<float> Attention;

// What is kept of a row whose weights are computed again: the numbers of `Edge`, the threshold in two parts.
constexpr int64_t edge_numbers = 4;

// The supports of all rows. Row i has count[i] keys, from start[i] on in `place` and `weight`, or start[i] is -1 and it
// has its edge alone. A place takes two bytes, or four where there are more keys than two can number.
template <typename Start, typename Place, typename Weight>
struct SupportsOf {
    Start *start, *count;
    Place* place;
    Weight *weight, *edge;
};
template <typename C>
using KeptSupports = SupportsOf<int32_t, int16_t, C>;
template <typename C>
using ReadSupports = SupportsOf<const int32_t, const int16_t, const C>;
typedef KeptSupports<float> Supports;
typedef ReadSupports<float> KnownSupports;

constexpr int64_t numbered = 65536;  // keys that two bytes can number

template <typename C>
static void keep_edge(const KeptSupports<C>& kept, int64_t row, int64_t count, const Edge& edge) {
    const C low = static_cast<C>(edge.low), rest = static_cast<C>(edge.low - double(low));
    const C numbers[edge_numbers] = {static_cast<C>(edge.top), low, rest, static_cast<C>(edge.factor)};
    kept.start[row] = -1;
    kept.count[row] = static_cast<int32_t>(count);
    std::memcpy(kept.edge + edge_numbers * row, numbers, sizeof(numbers));
}

template <typename C>
static void keep_list(const KeptSupports<C>& kept, int64_t row, int64_t at, int64_t n, const int32_t* place,
                      const C* weight, int64_t count) {
    kept.start[row] = static_cast<int32_t>(at);
    std::memcpy(kept.weight + at, weight, count * sizeof(C));
    if (n > numbered) {
        std::memcpy(kept.place + 2 * at, place, count * sizeof(int32_t));
        return;
    }
    SIMD()
    for (int64_t j = 0; j < count; ++j) kept.place[at + j] = static_cast<int16_t>(place[j]);
}

// The places of a list, in `place`.
template <typename C>
static void known_places(const ReadSupports<C>& kept, int64_t row, int64_t n, int32_t* place) {
    const int64_t at = kept.start[row], count = kept.count[row];
    if (n > numbered) {
        std::memcpy(place, kept.place + 2 * at, count * sizeof(int32_t));
        return;
    }
    SIMD()
    for (int64_t j = 0; j < count; ++j) place[j] = static_cast<int32_t>(static_cast<uint16_t>(kept.place[at + j]));
}

// A share of the memory for supports, taken from all of it a chunk at a time.
struct Store {
    std::atomic<int64_t>& used;
    int64_t room, next, end;
    int64_t take(int64_t n) {
        if (next + n > end) {
            const int64_t chunk = std::max<int64_t>(n, 4096), from = used.fetch_add(chunk);
            if (from + chunk > room) return -1;
            next = from;
            end = from + chunk;
        }
        next += n;
        return next - n;
    }
};

// Memory of a thread.
template <typename C>
struct WorkspaceOf {
    std::vector<C> keys, scores, weights, slope, hold, list;
    std::vector<C> q, k, v, grad, out, dk, dv;  // of a head in half precision, widened
    std::vector<int32_t> place;
    int64_t wide_of = -1;   // head whose keys and values are widened
    int64_t keys_of = -1;   // head whose keys are packed
    int64_t range_of = -1;  // head whose keys and values are known to be in range
    double largest_key = 0;
    void forget() { keys_of = range_of = wide_of = -1; }
    void release() {  // what is large is not kept between calls
        const size_t widened = q.size() + k.size() + v.size() + grad.size() + out.size() + dk.size() + dv.size();
        if (keys.size() + scores.size() + weights.size() + widened > (1 << 20)) *this = WorkspaceOf();
    }
};
typedef WorkspaceOf<float> Workspace;

template <typename C>
WorkspaceOf<C>& workspace() {
    static thread_local WorkspaceOf<C> own;
    return own;
}

template <typename T>
INLINE T* fitted(std::vector<T>& x, int64_t n) {
    if (static_cast<int64_t>(x.size()) < n) x.resize(n);
    return x.data();
}

// A quarter of the largest number: products below it cannot overflow when summed.
template <typename C>
constexpr double range = double(std::numeric_limits<C>::max()) / 4;
// Lost in rounding beside the largest number, so that adding to that cannot overflow.
template <typename C>
constexpr double small = range<C> * double(std::numeric_limits<C>::epsilon()) / 16;

// Gradients of a head; those in keys and values are sums over some of its queries.
template <typename C>
struct GradientsOf {
    Heads<const C> of_context;
    Heads<C> q;
    C *k, *v, *bias;  // bias: `bias_rows` rows of n numbers, to which this head adds; null if it is not learned
    int64_t k_step, v_step, bias_rows;
    double alpha;
    bool learned;
};
typedef GradientsOf<float> Gradients;

// Gradients of one row from its support.
template <typename C>
static void backward_row(const AttentionOf<C>& c, int64_t h, int64_t i, const int32_t* place, const C* weight,
                         int64_t count, GradientsOf<C>& g, WorkspaceOf<C>& w) {
    const C* grad = g.of_context.row(h, i);
    C *slope = fitted(w.slope, c.n), *hold = fitted(w.hold, padded(c.n));
    products_at(c.v.of(h), c.v.step, c.d, place, count, grad, slope);
    const C factor = g.bias == nullptr ? c.scale : C(1);
    g.alpha += slopes(weight, slope, count, c.alpha(h), factor, g.learned, hold, slope);
    if (g.bias != nullptr) {
        C* sums = g.bias + (g.bias_rows > 1 ? i : 0) * c.n;
        for (int64_t j = 0; j < count; ++j) {
            sums[place[j]] += slope[j];
            slope[j] *= c.scale;
        }
    }
    gather(c.k.of(h), c.k.step, c.e, place, slope, count, g.q.row(h, i));
    scatter(c.q.row(h, i), c.e, place, slope, count, g.k, g.k_step);
    scatter(grad, c.d, place, weight, count, g.v, g.v_step);
}

template <typename C>
INLINE bool below_infinity(const C* x, int64_t n) {
    C wrong = 0;
    SIMD(reduction(+ : wrong))
    for (int64_t i = 0; i < n; ++i) wrong += x[i] < std::numeric_limits<C>::infinity() ? C(0) : C(1);
    return wrong == 0;
}

}  // namespace
